"""Violins of the scores of all fits of a study, by method and dataset."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.figures.style import (
    CURVE,
    INK,
    MEMORY,
    MUTED,
    PAPER,
    RULE,
    new_figure,
    styled,
    to_array,
)

Scale = Literal["shared", "own", "log"]
Cell = tuple[str, str]

# Okabe and Ito's palette, and two colours of another lightness.
COLOURS = (MEMORY, CURVE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
ROW_HEIGHT = 0.92
HALF_WIDTH = 0.42
RESOLUTION = 120
# Smallest height of a violin, as a share of its panel, so that equal fits are visible.
SMOOTHEST = 0.012
# Fewer fits than this are drawn as dots.
FEWEST = 5


@dataclass(frozen=True)
class MetricColumn:
    """Data of one column of panels: a metric on all datasets.

    Parameters
    ----------
    title : str
    fits : mapping of (dataset, method) to sequence of float
        Scores of all fits.
    selected, best : mapping of (dataset, method) to float
        Scores of the selected fit and of the best fit.
    scale : {"shared", "own", "log"}
        One axis for all panels of the column, or one for each, linear or logarithmic.
    attempts : mapping of (dataset, method) to int
        Number of fits. Where fewer have a score, both numbers are printed below.
    """

    title: str
    fits: Mapping[Cell, Sequence[float]]
    selected: Mapping[Cell, float]
    best: Mapping[Cell, float]
    scale: Scale = "shared"
    attempts: Mapping[Cell, int] = field(default_factory=dict)

    def missing(self, cell: Cell) -> int:
        """Return the number of fits without a score."""
        fits = len(self.fits.get(cell, ()))
        return self.attempts.get(cell, fits) - fits


@styled
def grid_violins(
    columns: Sequence[MetricColumn], datasets: Sequence[str], methods: Sequence[str]
) -> Figure:
    """Draw the distribution of scores over all fits: datasets in rows, metrics in columns.

    A violin spans the fits of one method; its width is their density. Fewer than five fits are
    dots. A diamond marks the fit that the method selects, a ring the best fit, and a cross a
    method without any score. ``n/m`` below a method means that n of m fits have a score.

    Parameters
    ----------
    columns : sequence of MetricColumn
    datasets, methods : sequence of str
        Datasets and methods to draw, in this order.

    Examples
    --------
    >>> cell = ("iris", "KMeans")
    >>> column = MetricColumn("ARI", {cell: [0.5, 0.6]}, {cell: 0.6}, {cell: 0.6})
    >>> len(grid_violins([column], ["iris"], ["KMeans"]).axes)
    1
    """
    if not (columns and datasets and methods):
        raise InvalidInputError("There is nothing to draw: no metric, no dataset or no method.")
    figure = new_figure(1.15 + ROW_HEIGHT * len(datasets), gap=0.02)
    grid = figure.subplots(len(datasets), len(columns), squeeze=False, sharex=True)
    for place, column in enumerate(columns):
        for axes, dataset in zip(grid[:, place], datasets, strict=True):
            _prepare(axes, column, dataset, datasets, methods)
            for spot, method in enumerate(methods):
                _draw_fits(axes, spot, column, (dataset, method), COLOURS[spot % len(COLOURS)])
        grid[0, place].set_title(column.title)
    for axes, dataset in zip(grid[:, 0], datasets, strict=True):
        label = dataset.replace("_", "\n", 1).replace("_", " ")
        axes.set_ylabel(label, rotation=0, ha="right", va="center", color=INK, labelpad=6)
    figure.align_ylabels(grid[:, 0])
    _add_legend(figure, columns, datasets, methods)
    return figure


def _prepare(
    axes: Axes,
    column: MetricColumn,
    dataset: str,
    datasets: Sequence[str],
    methods: Sequence[str],
) -> None:
    """Set limits, ticks and grid of the axes."""
    shown = datasets if column.scale == "shared" else [dataset]
    values = [value for name in shown for each in methods for value in _values(column, name, each)]
    logarithmic = column.scale == "log" and bool(values) and min(values) > 0
    if logarithmic:
        axes.set_yscale("log")
        values = np.log(values).tolist()
    low, high = (min(values), max(values)) if values else (0.0, 1.0)
    pad = 0.12 * (high - low) or 0.1 * (abs(high) or 1.0)
    limits = np.array([low - pad, high + pad])
    axes.set_ylim(*(np.exp(limits) if logarithmic else limits))
    if logarithmic:
        ticks = [float(f"{np.exp(value):.2g}") for value in (low + 0.1 * pad, high - 0.1 * pad)]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="y", nbins=3 if column.scale == "own" else 4)
    axes.set_xlim(-0.6, len(methods) - 0.4)
    axes.set_xticks([])
    axes.tick_params(length=2, pad=2, labelsize=8)
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def _values(column: MetricColumn, dataset: str, method: str) -> list[float]:
    cell = (dataset, method)
    marks = [marked[cell] for marked in (column.selected, column.best) if cell in marked]
    return [value for value in (*column.fits.get(cell, ()), *marks) if np.isfinite(value)]


def _draw_fits(axes: Axes, spot: int, column: MetricColumn, cell: Cell, colour: str) -> None:
    fits = to_array(column.fits.get(cell, ()))
    if column.missing(cell):
        axes.annotate(
            f"{len(fits)}/{column.attempts[cell]}",
            (spot, 0),
            xycoords=axes.get_xaxis_transform(),
            xytext=(0, -2),
            textcoords="offset points",
            ha="center",
            va="top",
            color=MUTED,
            fontsize=7.5,
        )
    if not len(fits):
        style: dict[str, Any] = {"color": MUTED, "ms": 5, "mew": 1.1, "zorder": 3}
        axes.plot([spot], [0.12], "x", transform=axes.get_xaxis_transform(), **style)
        return
    if len(fits) < FEWEST:
        axes.scatter(np.full(len(fits), spot), fits, s=22, color=colour, lw=0, zorder=3)
    else:
        heights, widths = _outline(fits, axes)
        left, right = spot - HALF_WIDTH * widths, spot + HALF_WIDTH * widths
        axes.fill_betweenx(heights, left, right, color=colour, lw=0.6)
    best, selected = column.best.get(cell, np.nan), column.selected.get(cell, np.nan)
    axes.plot([spot], [best], "o", mfc=PAPER, mec=INK, ms=5.6, mew=1.0, zorder=4)
    axes.plot([spot], [selected], "D", mfc=INK, mec=PAPER, ms=4.2, mew=0.7, zorder=5)


def _outline(
    fits: NDArray[np.float64], axes: Axes
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Return heights (R,) from the lowest fit to the highest, and the density (R,), at most 1.

    The bandwidth is Scott's, but at least wide enough to be visible.
    """
    logarithmic = axes.get_yscale() == "log"
    forward, back = (np.log, np.exp) if logarithmic else (np.asarray, np.asarray)
    values, (low, high) = forward(fits), forward(np.array(axes.get_ylim()))
    least = SMOOTHEST * (high - low)
    width = max(float(values.std()) * len(values) ** -0.2, least)
    ends = values.min() - least, values.max() + least
    heights = np.linspace(*ends, RESOLUTION)
    density = np.exp(-0.5 * ((heights[:, None] - values) / width) ** 2).sum(1)
    return back(heights), density / density.max()


def _add_legend(
    figure: Figure,
    columns: Sequence[MetricColumn],
    datasets: Sequence[str],
    methods: Sequence[str],
) -> None:
    """Add a legend of the colours and of the marks that occur."""
    cells = [(column, (name, each)) for column in columns for name in datasets for each in methods]
    counts = {len(column.fits.get(cell, ())) for column, cell in cells}
    marks: list[Any] = [
        Patch(color=COLOURS[spot % len(COLOURS)], label=name) for spot, name in enumerate(methods)
    ]
    entries = [
        ("D", INK, PAPER, 6.5, "selected without labels"),
        ("o", PAPER, INK, 6.5, "best of all fits by this score"),
        ("x", MUTED, MUTED, 6.5, "no score"),
    ]
    if any(0 < count < FEWEST for count in counts):
        entries.append((".", MUTED, MUTED, 9.0, f"one fit, if fewer than {FEWEST}"))
    if any(column.missing(cell) for column, cell in cells):
        entries.append(("$n/m$", MUTED, MUTED, 17.0, "n of m fits have a score"))
    for marker, face, edge, size, label in entries:
        style: dict[str, Any] = {"marker": marker, "mfc": face, "mec": edge, "ms": size}
        if marker.startswith("$"):
            style["mew"] = 0
        marks.append(Line2D([], [], color="none", label=label, **style))
    figure.legend(
        handles=marks,
        loc="outside upper center",
        ncols=min(4, len(marks)),
        frameon=False,
        fontsize=10,
        handlelength=1.2,
        columnspacing=1.6,
    )
