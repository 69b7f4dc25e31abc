"""Figures of capacity, and of the equivalence of Gaussian KDE and Hopfield network."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator, NullLocator

from isthmus.capacity import basins
from isthmus.figures.landscapes import draw_energy, draw_landscape, draw_memories, paths_of
from isthmus.figures.style import (
    CURVE,
    GREEN,
    INK,
    MEMORY,
    PAPER,
    PURPLE,
    SKY,
    YELLOW,
    heading,
    new_figure,
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

    Bands are 95 % over seeds. Marks along the top are what theory says of each dimension, in its
    colour: a triangle at a certified number of stored patterns, a bar at the half-weight ceiling.
    """
    figure = new_figure(4.2)
    left, right = figure.subplots(1, 2, sharex=True)
    counts = sweep.counts
    for axes, measure in ((left, "retrieved"), (right, "normalized_ratio")):
        for number, dim in enumerate(sweep.dims):
            look: dict[str, Any] = {"color": SHADES[number % len(SHADES)]}
            mean, half = np.array([sweep.band(measure, dim, count) for count in counts]).T
            mark = f"{MARKS[number % len(MARKS)]}-"
            axes.plot(counts, mean, mark, ms=5, lw=1.6, label=f"D = {dim}", **look)
            high = np.minimum(mean + half, 1) if measure == "retrieved" else mean + half
            axes.fill_between(counts, np.maximum(mean - half, 0), high, alpha=0.18, lw=0, **look)
            for kind, marker in THEORY.items():
                bound = capacity_bound(dim, kind=kind)
                if counts[0] <= bound <= counts[-1]:
                    top = axes.get_xaxis_transform()
                    axes.plot([bound], [0.97], marker, transform=top, ms=8, mew=2, **look)
        axes.set(xscale="log", xlabel="number of patterns N")
    left.set(ylim=(-0.03, 1.13), ylabel="share of particles")
    right.set(ylim=(0, 1.15 * right.get_ylim()[1]))
    right.set(ylabel="final / initial / mean distance of patterns")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    note = "Triangle: certified number. Bar: half-weight ceiling."
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
    first, *others = figure.subplots(1, 2 if measured else 1, squeeze=False)[0]
    for kind, (colour, line, name) in BOUNDS.items():
        logs = np.array([capacity_bound(int(dim), kind=kind, log=True) for dim in grid])
        look: dict[str, Any] = {"ls": line, "color": colour, "lw": 1.8}
        first.plot(grid, logs / np.log(10), label=name, **look)
        for axes in others:
            axes.plot(grid, np.exp(logs / (grid - 1)), **look)
    first.set(xlabel="dimension D", ylabel="number of patterns N", ylim=(0, None))
    first.yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    first.yaxis.set_major_locator(MaxNLocator(7, integer=True))
    first.legend(loc="upper left")
    note = "Half-weight: no more keep half of their own weight, which storage does not need."
    heading(first, "How many patterns fit on a sphere", note)
    for axes in others:
        # Each mark is smaller than the one before, so that none hides another.
        for number, (name, counts) in enumerate((measured or {}).items()):
            growth = [count ** (1 / (dim - 1)) for dim, count in counts.items()]
            look = {"ms": max(9.5 - 1.5 * number, 7), "mfc": FACES[number % len(FACES)], "mew": 1.3}
            mark = MARKS[number % len(MARKS)]
            axes.plot([*counts], growth, mark, color=INK, zorder=4, label=name, **look)
        farthest = max(dim for counts in (measured or {}).values() for dim in counts)
        axes.set(xlim=(1.5, max(grid.max() / 2, farthest + 0.5)), yscale="log", ylim=(0.95, 22))
        axes.set(xlabel="dimension D", ylabel="growth N^(1/(D-1))", yticks=(1, 2, 3, 4, 5, 10, 20))
        axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
        axes.yaxis.set_minor_locator(NullLocator())
        axes.xaxis.set_major_locator(MaxNLocator(integer=True))
        axes.legend(loc="upper right", title="stored")
        heading(axes, "Growth per dimension", "Lines as on the left, marks are stored.")
    return figure


@styled
def kde_and_hopfield(on: Any, off: Any, queries: Any, sigma: float) -> Figure:
    """Draw paths of queries in a KDE and in a network, with patterns on a circle and off it."""
    figure = new_figure(6.3)
    left, right = figure.subplots(1, 2)
    starts = to_array(queries)
    reach = 1.12 * max(float(abs(to_array(each)).max()) for each in (on, off, starts))
    for axes, patterns, title, note in (
        (left, on, "Equal lengths", "Both models take the same steps to the same places."),
        (right, off, "Unequal lengths", "The network favours long patterns; the KDE does not."),
    ):
        kde, network = GaussianKDE(patterns, sigma), ModernHopfield(patterns, beta=1 / sigma**2)
        draw_energy(axes, kde, reach)
        looks = {"Gaussian KDE": (kde, INK, "-"), "modern Hopfield": (network, YELLOW, "--")}
        for name, (energy, colour, line) in looks.items():
            paths = paths_of(energy, starts)[0]
            axes.plot(*paths.T, line, color=colour, lw=1.6, label=name)
            axes.plot(*paths[:, -1].T, "o", color=colour, ms=5, mec=PAPER, mew=0.6, zorder=7)
        axes.plot(*starts.T, "o", ms=4, mfc=PAPER, mec=INK, mew=0.8, zorder=5)
        draw_memories(axes, to_array(patterns))
        axes.set(xlabel="x₁", ylabel="x₂")
        heading(axes, title, note)
    handles, labels = left.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend([*unique.values()], [*unique], loc="outside lower left", ncols=2)
    return figure
