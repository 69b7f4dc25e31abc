"""Skeleton of a part of the report: one update of a Gaussian KDE never raises its energy.

A part is a function of a seed, and of ``full`` for the paper's sizes, that returns a ``Section``: a
figure or table, the numbers behind it, and a verdict for each claim.

Copy the function to the module of its chapter in ``src/isthmus/paper/report/parts/``, list it in
``src/isthmus/paper/report/registry.py``, and test in ``tests/report/`` that the verdict changes
when the claim is false.
"""

from __future__ import annotations

import isthmus as ist
from isthmus.figures import landscapes_1d
from isthmus.report import Section, judge

__all__ = ["descent_of_an_update"]

ROUNDING = 1e-12


def descent_of_an_update(seed: int, full: bool = False) -> Section:
    """Measure the largest rise of the energy in one update, over random queries.

    Examples
    --------
    >>> descent_of_an_update(0).findings[0].verdict
    'held'
    """
    memories = [[-1.0], [0.5], [2.0]]
    energy = ist.GaussianKDE(memories, sigma=0.6)
    queries = energy.sample(10_000 if full else 1000, seed=seed)
    rise = float((energy.energy(energy.step(queries)) - energy.energy(queries)).max())
    return Section(
        caption="One update of a Gaussian KDE moves every query downhill.",
        figure=landscapes_1d({"Gaussian KDE": energy}, memories),
        numbers={"queries": len(queries), "largest_rise": rise},
        findings=(
            judge(
                "An update never raises the energy.",
                f"The largest rise over {len(queries):,} queries is {rise:.1e}.",
                as_printed=rise <= ROUNDING,
            ),
        ),
    )
