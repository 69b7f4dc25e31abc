"""Figure of energies on a line, with memories and retrieval."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, UnknownNormalizerError
from isthmus.figures.style import (
    CURVE,
    INK,
    MEMORY,
    MUTED,
    NOWHERE,
    PAPER,
    RULE,
    heading,
    panels,
    styled,
    to_array,
    visible_range,
)

QUERIES = 9


@styled
def landscapes_1d(
    energies: Mapping[str, Energy],
    memories: Any,
    queries: Any = None,
    *,
    notes: Mapping[str, str] | None = None,
    resolution: int = 1201,
) -> Figure:
    """Draw one-dimensional energies side by side, with retrieval.

    Hollow dots are queries, full dots the places where they come to rest. Where an energy is
    infinite the panel is hatched, and a query there is a cross, for it cannot move.

    Parameters
    ----------
    energies : mapping of str to Energy
        A panel each, under its name. All with one coordinate.
    memories : array or Tensor (N, 1)
        Marked by orange triangles.
    queries : array or Tensor (Q, 1), optional
        Where retrieval starts. Default: evenly spaced.
    notes : mapping of str to str, optional
        A caption for each panel, of one or two lines.
    resolution : int
        Points of each curve.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[-1.0], [1.0]])
    >>> figure = landscapes_1d({"KDE": ist.GaussianKDE(memories, sigma=0.5)}, memories)
    >>> figure.axes[0].get_ylabel()
    'energy (nats)'
    """
    if not energies:
        raise InvalidInputError("energies is empty; pass at least one to draw.")
    first = next(iter(energies.values()))
    marks = to_array(first.as_input(memories)).reshape(-1)
    lower, upper = _window(marks)
    if queries is None:
        queries = np.linspace(lower, upper, QUERIES + 2)[1:-1, None]
    figure, grid = panels(len(energies), columns=3, panel_height=2.9)
    for axes, (name, energy) in zip(grid, energies.items(), strict=True):
        draw_landscape(axes, energy, marks, queries, resolution=resolution)
        axes.set_xlabel("x")
        axes.set_ylabel(energy_label(energy))
        heading(axes, name, (notes or {}).get(name, ""))
    figure.align_ylabels()
    return figure


def energy_label(energy: Energy) -> str:
    """Return the label of the energy axis, in nats if the energy is -log p up to a constant."""
    try:
        energy.log_normalizer()
    except UnknownNormalizerError:
        return "energy"
    return "energy (nats)" if float(energy.inverse_temperature) == 1 else "energy"


def draw_landscape(
    axes: Axes,
    energy: Energy,
    memories: Any,
    queries: Any,
    *,
    window: Any = None,
    resolution: int = 1201,
) -> None:
    """Draw one energy on a line: its curve, memories (N, 1), and the retrieval of queries (Q, 1).

    The axes hold all points of `window` (M, 1); those of `memories` by default.
    """
    marks = to_array(memories).reshape(-1)
    lower, upper = _window(marks if window is None else to_array(window).reshape(-1))
    _draw_curve(axes, energy, np.linspace(lower, upper, resolution))
    _draw_memories(axes, marks)
    _draw_retrieval(axes, energy, queries)
    axes.set_xlim(lower, upper)


def _window(marks: NDArray[Any]) -> tuple[float, float]:
    margin = 0.22 * float(np.ptp(marks)) or 1.0
    return float(marks.min()) - margin, float(marks.max()) + margin


def _energies(energy: Energy, positions: NDArray[Any]) -> NDArray[Any]:
    return to_array(energy.energy(positions[:, None]))


def _draw_curve(axes: Axes, energy: Energy, positions: NDArray[Any]) -> None:
    height = _energies(energy, positions)
    finite = np.isfinite(height)
    # Towards an edge of the support the energy has no bound: the curve may leave the panel.
    low, high = visible_range(height, 1.0 if finite.all() else 0.95)
    span = high - low
    axes.set_ylim(low - 0.16 * span, high + 0.1 * span)
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.plot(positions, np.where(finite, height, np.nan), color=CURVE, linewidth=1.6, zorder=2)
    if not finite.all():
        axes.fill_between(
            positions,
            *axes.get_ylim(),
            where=~finite,
            facecolor=NOWHERE,
            edgecolor=RULE,
            hatch="////",
            linewidth=0,
            zorder=0,
        )


def _draw_memories(axes: Axes, marks: NDArray[Any]) -> None:
    axes.vlines(marks, 0, 1, transform=axes.get_xaxis_transform(), color=MEMORY, alpha=0.3, lw=0.8)
    axes.plot(
        marks,
        np.full_like(marks, 0.035),
        "^",
        transform=axes.get_xaxis_transform(),
        color=MEMORY,
        markersize=7,
        markeredgecolor=PAPER,
        markeredgewidth=0.6,
        zorder=5,
    )


def _draw_retrieval(axes: Axes, energy: Energy, queries: Any) -> None:
    found = retrieve(energy, queries)
    starts = to_array(energy.as_input(queries)).reshape(-1)
    ends = to_array(found.state).reshape(-1)
    heights = to_array(found.energy)
    stuck = ~np.isfinite(heights)
    for start, end in zip(starts[~stuck], ends[~stuck], strict=True):
        _draw_path(axes, energy, start, end)
    begin = _energies(energy, starts)
    axes.plot(starts[~stuck], begin[~stuck], "o", ms=5, mfc=PAPER, mec=INK, mew=1.1, zorder=4)
    axes.plot(ends[~stuck], heights[~stuck], "o", ms=6, color=INK, zorder=5)
    axes.plot(
        starts[stuck],
        np.full(int(stuck.sum()), 0.5),
        "x",
        transform=axes.get_xaxis_transform(),
        color=MUTED,
        ms=6,
        mew=1.6,
        zorder=5,
    )


def _draw_path(axes: Axes, energy: Energy, start: float, end: float) -> None:
    """Draw an arrow along the curve from start to end, unless they coincide."""
    lower, upper = axes.dataLim.intervalx
    if abs(end - start) < 0.01 * (upper - lower):
        return
    along = np.linspace(start, end, 61)
    vertices = np.column_stack([along, _energies(energy, along)])
    axes.plot(*vertices.T, color=INK, linewidth=1.7, zorder=3)
    # The head is half-way, where the dot at the end does not hide it.
    axes.add_patch(
        FancyArrowPatch(
            path=Path(vertices[:36]),
            arrowstyle="-|>,head_length=5.5,head_width=2.8",
            color=INK,
            linewidth=0,
            shrinkA=0,
            shrinkB=0,
            zorder=3,
        )
    )
