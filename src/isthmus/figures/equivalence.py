"""Figure of the equivalence of Gaussian KDE and modern Hopfield network on a sphere."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D

from isthmus.dynamics.retrieve import retrieve
from isthmus.errors import InvalidInputError
from isthmus.figures.landscape_2d import draw_energy
from isthmus.figures.style import (
    INK,
    MEMORY,
    PAPER,
    heading,
    new_figure,
    styled,
    to_array,
)
from isthmus.memories.kde import GaussianKDE
from isthmus.memories.modern import ModernHopfield

__all__ = ["kde_and_hopfield"]

BRIGHT = "#e69f00"


@styled
def kde_and_hopfield(
    on: Any, off: Any, queries: Any, sigma: float, differences: Mapping[float, float]
) -> Figure:
    """Draw the paths of both models with patterns of equal and of unequal length.

    Parameters
    ----------
    on, off : array (N, 2)
        Patterns on a circle, and patterns that are not.
    queries : array (Q, 2)
    sigma : float
        The network has beta = 1 / sigma^2.
    differences : mapping of float to float
        The largest difference of the two updates for each spread of lengths.

    Examples
    --------
    >>> on, off = [[1.0, 0.0], [0.0, 1.0]], [[1.0, 0.0], [0.0, 2.0]]
    >>> len(kde_and_hopfield(on, off, on, 0.5, {0.0: 0.0, 1.0: 0.3}).axes)
    3
    """
    if not differences:
        raise InvalidInputError("differences is empty; pass at least one.")
    figure = new_figure(4.6)
    left, middle, right = figure.subplots(1, 3)
    starts = to_array(queries)
    reach = 1.12 * max(float(abs(to_array(each)).max()) for each in (on, off, starts))
    _draw_pair(left, on, starts, sigma, reach)
    _draw_pair(middle, off, starts, sigma, reach)
    heading(left, "Equal lengths", "Both models take the same steps to the same places.")
    heading(middle, "Unequal lengths", "The network favours long patterns; the KDE does not.")
    spreads, gaps = zip(*sorted(differences.items()), strict=True)
    floor = 1e-17
    right.plot(spreads, [max(gap, floor) for gap in gaps], "o-", color=INK, ms=5, lw=1.6)
    right.set(yscale="log", xlabel="spread of lengths (share of the mean)")
    right.set_xscale("symlog", linthresh=min((s for s in spreads if s > 0), default=1.0))
    right.set_xticks([0, *(10.0**power for power in (-6, -4, -2))])
    right.set_xlim(0, 2 * max(spreads) or 1.0)
    right.minorticks_off()
    right.set_box_aspect(1)
    right.locator_params(axis="y", numticks=6)
    right.set_ylabel("largest difference of an update")
    heading(right, "How far apart", "One update of each, from the same places.")
    figure.legend(
        handles=[
            Line2D([], [], color=INK, lw=1.3, label="Gaussian KDE"),
            Line2D([], [], color=BRIGHT, lw=2, ls="--", label="modern Hopfield network"),
        ],
        loc="outside lower left",
        ncols=2,
        fontsize=9.5,
        frameon=False,
    )
    return figure


def _draw_pair(axes: Axes, patterns: Any, starts: Any, sigma: float, reach: float) -> None:
    marks = to_array(patterns)
    kde, network = GaussianKDE(marks, sigma), ModernHopfield(marks, beta=1 / sigma**2)
    draw_energy(axes, kde, reach)
    for energy, colour, line, width in ((kde, INK, "-", 1.3), (network, BRIGHT, "--", 2.0)):
        trace = retrieve(energy, starts, trace=True).trace
        assert trace is not None
        paths = to_array(trace).swapaxes(0, 1)  # (Q, T + 1, 2)
        for path in paths:
            axes.plot(*path.T, line, color=colour, lw=width, zorder=3 if line == "-" else 4)
            axes.plot(*path[-1], "o", color=colour, ms=5, mec=PAPER, mew=0.6, zorder=7)
    axes.plot(*to_array(starts).T, "o", ms=4, mfc=PAPER, mec=INK, mew=0.8, zorder=5)
    axes.plot(*marks.T, "D", color=MEMORY, ms=7, mec=PAPER, mew=0.9, zorder=6)
    axes.set(xlabel="x₁", ylabel="x₂")
