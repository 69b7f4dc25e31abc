"""Figures of capacity, and of the equivalence of Gaussian KDE and Hopfield network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray

from isthmus.capacity import basins
from isthmus.figures.landscapes import draw_energy, draw_landscape, draw_memories, paths_of
from isthmus.figures.style import (
    CURVE,
    GREEN,
    INK,
    MEMORY,
    MUTED,
    PAPER,
    PURPLE,
    SKY,
    YELLOW,
    heading,
    new_figure,
    note_at,
    styled,
    to_array,
)
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.modern import ModernHopfield
from isthmus.paper.counts import CapacityKind, capacity_bound
from isthmus.paper.sweep import Sweep

SHADES = (MEMORY, PURPLE, GREEN, CURVE, SKY, INK)
MARKS = "osDPX*"
FACES = (PAPER, SKY, MEMORY, YELLOW)
# Colour, line and name of each bound.
BOUNDS: dict[CapacityKind, tuple[str, str, str]] = {
    "claimed": (MEMORY, "--", "claimed, 4^(D-1)"),
    "dense": (SKY, "--", "dense limit, not proved to bind"),
    "half-weight": (INK, "-", "half-weight ceiling"),
    "certified": (CURVE, "-", "certified, random coding"),
    "packing": (GREEN, "-.", "packing, Ramsauer's condition"),
    "random": (PURPLE, ":", "random, Ramsauer's theorem"),
}
# References of the sweep, with their markers.
THEORY: dict[CapacityKind, str] = {"certified": "v", "half-weight": "|"}


@styled
def basins_merging(
    memories: Any, sigmas: Iterable[float], counts: Iterable[int] | None = None
) -> Figure:
    """Draw the energy of patterns on a line and their retrieval, one row per bandwidth.

    All panels have the scale of the bandwidth with the lowest hills; higher ones leave the panel.
    Each of `counts`, numbers of patterns from the first on, has a column. Default: all.

    Examples
    --------
    >>> from isthmus.figures import basins_merging
    >>> len(basins_merging([[-1.0], [1.0]], [0.5, 1.5]).axes)
    2
    """
    marks = to_array(memories).reshape(-1, 1)
    columns, rows = list(counts or [len(marks)]), list(sigmas)
    # Bandwidths of one set of patterns stand side by side.
    shape = (len(rows), len(columns)) if len(columns) > 1 else (1, len(rows))
    figure = new_figure(3.0 * shape[0], gap=0.04)
    grid = figure.subplots(*shape, squeeze=False)
    cells = [(sigma, count) for sigma in rows for count in columns]
    for axes, (sigma, count) in zip(grid.flat, cells, strict=True):
        shown = marks[:count]
        found = basins(shown, sigma).n_basins
        draw_landscape(axes, GaussianKDE(shown, sigma), shown, shown, window=marks)
        note = f"{count} patterns, {found} {'basin' if found == 1 else 'basins'}"
        heading(axes, f"σ = {sigma:g}", note, lines=1)
        axes.set(xlabel="x", ylabel="energy (nats)")
    heights = np.array([np.asarray(axes.lines[0].get_ydata()) for axes in grid.flat])  # of curves
    low = float(heights.min())
    high = float(heights.reshape(len(rows), -1).max(1).min())
    for axes in grid.flat:
        axes.set_ylim(low - 0.16 * (high - low), high + 0.1 * (high - low))
        axes.label_outer()
        axes.tick_params(labelleft=True)
    return figure


@styled
def retrieval_sweep(sweep: Sweep) -> Figure:
    """Draw retrieval against the number of patterns, one line per dimension.

    Bands are 95 % over seeds. Marks along the top are what theory says of each dimension: a
    triangle at a certified number of stored patterns, a bar at the half-weight ceiling.
    """
    figure = new_figure(4.2)
    left, right = figure.subplots(1, 2, sharex=True)
    counts = sweep.counts
    shades = [SHADES[number % len(SHADES)] for number in range(len(sweep.dims))]
    for axes, measure in ((left, "retrieved"), (right, "normalized_ratio")):
        top = axes.get_xaxis_transform()
        for number, (shade, dim) in enumerate(zip(shades, sweep.dims, strict=True)):
            mean, half = np.array([sweep.band(measure, dim, count) for count in counts]).T
            mark = f"{MARKS[number % len(MARKS)]}-"
            axes.plot(counts, mean, mark, color=shade, ms=5, lw=1.6, label=f"D = {dim}")
            low, high = np.maximum(mean - half, 0), mean + half
            high = np.minimum(high, 1) if measure == "retrieved" else high
            axes.fill_between(counts, low, high, color=shade, alpha=0.18, lw=0)
            for kind, marker in THEORY.items():
                bound = capacity_bound(dim, kind=kind)
                if counts[0] <= bound <= counts[-1]:
                    axes.axvline(bound, color=shade, lw=0.8, ls=":", alpha=0.7, zorder=0)
                    axes.plot([bound], [0.97], marker, transform=top, color=shade, ms=8, mew=2)
                    look = {"color": shade, "fontweight": "bold", "va": "center", "xycoords": top}
                    note_at(axes, f"D = {dim}", (bound, 0.97), (6, 0), **look)
        axes.set(xscale="log", xlabel="number of patterns N")
    left.set(ylim=(-0.03, 1.13), ylabel="share of particles")
    most = right.get_ylim()[1]
    right.set(
        ylim=(-0.03 * most, 1.15 * most), ylabel="final / initial / mean distance of patterns"
    )
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    note = (
        "Triangle: certified number. Bar: half-weight ceiling, "
        "no more can keep half of their own weight."
    )
    heading(left, "Retrieved", note, characters=56)
    heading(right, "The paper's measure", "Distance that is left: the smaller the better.")
    return figure


@styled
def capacity_bounds(
    dims: Iterable[int], measured: Mapping[str, Mapping[int, float]] | None = None
) -> Figure:
    """Draw every bound on the number N of patterns against the dimension D.

    On the sphere of radius 2 sigma sqrt(D - 1). With `measured` counts, by the name of an
    experiment and the dimension, a second panel shows them with the bounds as growth N^(1/(D-1)),
    for the first half of the dimensions.
    """
    grid = np.array(list(dims))
    figure = new_figure(5.4)
    panels = figure.subplots(1, 2) if measured else [figure.subplots()]
    for kind, (colour, line, name) in BOUNDS.items():
        logs = np.array([capacity_bound(int(dim), kind=kind, log=True) for dim in grid])
        panels[0].plot(grid, logs / np.log(10), line, color=colour, lw=1.8, label=name)
        if measured:
            panels[1].plot(grid, np.exp(logs / (grid - 1)), line, color=colour, lw=1.8)
    panels[0].set(xlabel="dimension D", ylabel="number of patterns N", ylim=(0, None))
    panels[0].yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    panels[0].yaxis.set_major_locator(MaxNLocator(7, integer=True))
    panels[0].yaxis.set_minor_locator(NullLocator())
    panels[0].legend(loc="upper left")
    note = "Half-weight: no more keep half of their own weight, which storage does not need."
    heading(panels[0], "How many patterns fit on a sphere", note)
    if measured:
        _draw_growth(panels[1], measured, int(grid.max()))
    return figure


def _draw_growth(axes: Axes, measured: Mapping[str, Mapping[int, float]], last: int) -> None:
    """Draw marks, each smaller than the one before, so that none hides another."""
    for number, (name, counts) in enumerate(measured.items()):
        growth = [count ** (1 / (dim - 1)) for dim, count in counts.items()]
        mark, face = MARKS[number % len(MARKS)], FACES[number % len(FACES)]
        look: dict[str, Any] = {"color": INK, "mfc": face, "mew": 1.3, "zorder": 4}
        axes.plot([*counts], growth, mark, ms=max(9.5 - 1.5 * number, 7), label=name, **look)
    farthest = max(dim for counts in measured.values() for dim in counts)
    axes.set(xlim=(1.5, max(last / 2, farthest + 0.5)), yscale="log", ylim=(0.95, 22))
    axes.set(xlabel="dimension D", ylabel="growth N^(1/(D-1))", yticks=(1, 2, 3, 4, 5, 10, 20))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.yaxis.set_minor_locator(NullLocator())
    axes.xaxis.set_major_locator(MaxNLocator(integer=True))
    axes.legend(loc="upper right", title="stored")
    heading(axes, "Growth per dimension", "Lines as on the left, marks are stored.")


@styled
def noise_recall(curves: Mapping[str, Mapping[float, float]], delta: float) -> Figure:
    """Draw the share of noisy patterns recalled, by noise in units of the certified level."""
    figure = new_figure(3.8)
    axes = figure.subplots()
    for number, (name, shares) in enumerate(curves.items()):
        mark = f"{MARKS[number % len(MARKS)]}-"
        axes.plot([*shares], [*shares.values()], mark, color=SHADES[number], ms=6, label=name)
    axes.axvline(1, color=MUTED, lw=1, ls=":")
    axes.plot(
        [0, 1], [1 - delta] * 2, color=INK, lw=3, zorder=1, label=f"proved: at least {1 - delta:g}"
    )
    axes.set(xlim=(0, None), ylim=(-0.03, 1.06), ylabel="share recalled")
    axes.set(xlabel="standard deviation of the noise / certified level")
    axes.legend(loc="lower left")
    note = "Patterns with normal noise in every coordinate."
    heading(axes, "Recall under noise", note, characters=80, lines=1)
    return figure


@styled
def kde_and_hopfield(
    on: Any, off: Any, queries: Any, sigma: float, differences: Mapping[float, float]
) -> Figure:
    """Draw paths of queries in a KDE and in a network, and differences by spread of lengths."""
    figure = new_figure(4.6)
    left, middle, right = figure.subplots(1, 3)
    starts = to_array(queries)
    reach = 1.12 * max(float(abs(to_array(each)).max()) for each in (on, off, starts))
    for axes, patterns, title, note in (
        (left, on, "Equal lengths", "Both models take the same steps to the same places."),
        (middle, off, "Unequal lengths", "The network favours long patterns; the KDE does not."),
    ):
        _draw_pair(axes, to_array(patterns), starts, sigma, reach)
        heading(axes, title, note)
    spreads, gaps = zip(*sorted(differences.items()), strict=True)
    floor = 1e-17
    right.plot(spreads, [max(gap, floor) for gap in gaps], "o-", color=INK, ms=5, lw=1.6)
    right.set_xscale("symlog", linthresh=min((s for s in spreads if s > 0), default=1.0))
    right.set(yscale="log", xlabel="spread of lengths (share of the mean)")
    right.set(ylabel="largest difference of an update", xlim=(0, 2 * max(spreads) or 1.0))
    right.set_xticks([0, *(10.0**power for power in (-6, -4, -2))])
    right.minorticks_off()
    right.set_box_aspect(1)
    right.locator_params(axis="y", numticks=6)
    heading(right, "How far apart", "One update of each, from the same places.")
    names = [
        Line2D([], [], color=INK, lw=1.3, label="Gaussian KDE"),
        Line2D([], [], color=YELLOW, lw=2, ls="--", label="modern Hopfield network"),
    ]
    figure.legend(handles=names, loc="outside lower left", ncols=2, fontsize=9.5)
    return figure


def _draw_pair(
    axes: Axes, marks: NDArray[Any], starts: NDArray[Any], sigma: float, reach: float
) -> None:
    kde, network = GaussianKDE(marks, sigma), ModernHopfield(marks, beta=1 / sigma**2)
    draw_energy(axes, kde, reach)
    for energy, colour, line, width in ((kde, INK, "-", 1.3), (network, YELLOW, "--", 2.0)):
        for path in paths_of(energy, starts)[0]:
            axes.plot(*path.T, line, color=colour, lw=width, zorder=3 if line == "-" else 4)
            axes.plot(*path[-1], "o", color=colour, ms=5, mec=PAPER, mew=0.6, zorder=7)
    axes.plot(*starts.T, "o", ms=4, mfc=PAPER, mec=INK, mew=0.8, zorder=5)
    draw_memories(axes, marks)
    axes.set(xlabel="x₁", ylabel="x₂")
