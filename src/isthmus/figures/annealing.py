"""The figure of annealed draws: memorised, spurious or new as memories become many."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.dynamics.anneal import Annealed, Verdicts
from isthmus.errors import InvalidInputError
from isthmus.figures.style import (
    CURVE,
    GREEN,
    INK,
    MEMORY,
    PURPLE,
    heading,
    label_plane,
    limits_of,
    panels,
    styled,
    to_array,
)
from isthmus.memories.base import Memory

COLOURS = {"memorised": CURVE, "spurious": PURPLE, "new": GREEN}


@styled
def annealing_phases(found: Mapping[int, Annealed]) -> Figure:
    """Draw annealed points by verdict for a few, some and many memories, and all shares.

    Parameters
    ----------
    found : mapping of int to Annealed
        By the number of memories, of two coordinates, at one final noise level. At least three.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> ring = torch.tensor([[0.0, 1.0], [1.0, 0.0], [0.0, -1.0], [-1.0, 0.0]])
    >>> schedule = ist.noise_schedule(3.0, 0.1, 10)
    >>> found = {n: ist.anneal(ist.GaussianKDE(ring[:n], 0.1), schedule, 20) for n in (1, 2, 4)}
    >>> len(annealing_phases(found).axes)
    4
    """
    if len(found) < 3:
        raise InvalidInputError("found must have at least three numbers of memories.")
    counts = sorted(found)
    for one in found.values():
        if one.draws.shape[1] != 2 or not isinstance(one.energy, Memory):
            raise InvalidInputError("Draws must have two coordinates and an energy with memories.")
    verdicts = {count: found[count].judge() for count in counts}
    figure, axes = panels(4, columns=4, panel_height=3.0)
    limits = limits_of(np.concatenate([to_array(found[count].draws) for count in counts]), 0.05)
    shown = [counts[0], counts[len(counts) // 2], counts[-1]]
    for panel, count in zip(axes, _most_telling(counts, verdicts) or shown, strict=False):
        _draw_points(panel, found[count], verdicts[count], limits)
        heading(panel, f"{count} memor{'y' if count == 1 else 'ies'}")
    _draw_shares(axes[3], counts, verdicts)
    return figure


def _most_telling(counts: list[int], verdicts: Mapping[int, Verdicts]) -> list[int]:
    """Return the numbers of memories with most memorised, spurious and new draws, if different."""
    best = [max(counts, key=lambda n: verdicts[n].shares[name]) for name in COLOURS]
    return best if len(set(best)) == 3 else []


def _draw_points(
    axes: Axes, found: Annealed, verdicts: Verdicts, limits: tuple[np.ndarray, np.ndarray]
) -> None:
    draws = to_array(found.draws)
    assert isinstance(found.energy, Memory)
    memories = to_array(found.energy.memories)
    for name, colour in COLOURS.items():
        own = draws[to_array(getattr(verdicts, name)).astype(bool)]
        axes.plot(*own.T, "o", ms=3, mew=0, color=colour, alpha=0.7)
    if len(memories) <= 64:
        axes.plot(*memories.T, "^", ms=6, color=MEMORY, mec="white", mew=0.6)
    lower, upper = limits
    axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), aspect="equal")
    label_plane(axes)


def _draw_shares(axes: Axes, counts: list[int], verdicts: Mapping[int, Verdicts]) -> None:
    for name, colour in COLOURS.items():
        shares = [verdicts[count].shares[name] for count in counts]
        axes.plot(counts, shares, "o-", color=colour, ms=4, label=name)
    axes.set_xscale("log", base=2)
    axes.set(xlabel="number of memories N", ylim=(-0.03, 1.03))
    axes.tick_params(labelcolor=INK)
    axes.legend(
        loc="upper center",
        bbox_to_anchor=(0.45, -0.22),
        ncols=3,
        handlelength=0.8,
        columnspacing=0.8,
        handletextpad=0.4,
    )
    heading(axes, "Share of draws")
