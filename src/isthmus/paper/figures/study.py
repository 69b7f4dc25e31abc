"""Figures of the clustering study: mean ranks, a map of scores, and violins of all fits."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
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
    DEPTH,
    INK,
    MEMORY,
    MUTED,
    PAPER,
    RULE,
    heading,
    new_figure,
    note_at,
    styled,
    to_array,
)


@dataclass(frozen=True)
class Ranking:
    """Data of a critical-difference diagram.

    Parameters
    ----------
    ranks : mapping of str to float
        Mean rank of each method; 1 is best.
    critical_difference : float
        Smallest significant difference of mean ranks.
    groups : sequence of sequence of str
        Sets of methods that do not differ significantly.
    note : str
        Line below the title.
    bold : sequence of str
        Methods to highlight.
    """

    ranks: Mapping[str, float]
    critical_difference: float
    groups: Sequence[Sequence[str]] = ()
    note: str = ""
    bold: Sequence[str] = ()


@styled
def critical_difference_diagram(rankings: Mapping[str, Ranking]) -> Figure:
    """Draw mean ranks on a line and join methods that do not differ significantly (Demšar, 2006).

    Parameters
    ----------
    rankings : mapping of str to Ranking
        A diagram for each, below its title.

    Examples
    --------
    >>> ranking = Ranking({"a": 1.2, "b": 1.9, "c": 2.9}, 0.8, [("a", "b")])
    >>> len(critical_difference_diagram({"Three methods": ranking}).axes)
    1
    """
    if not rankings:
        raise InvalidInputError("rankings is empty; pass at least one to draw.")
    for title, ranking in rankings.items():
        if len(ranking.ranks) < 2:
            raise InvalidInputError(f"{title}: a diagram needs the ranks of at least two methods.")
    depths = [_depth(ranking) for ranking in rankings.values()]
    figure = new_figure(sum(0.36 * depth + 0.9 for depth in depths), gap=0.04)
    grid = figure.subplots(len(depths), 1, squeeze=False, height_ratios=depths)
    for axes, (title, ranking) in zip(grid.flat, rankings.items(), strict=True):
        _draw_ranking(axes, ranking)
        heading(axes, title, ranking.note, characters=120, lines=1)
    return figure


# Heights in a diagram, in units of one line of text. The axis is at zero; down is positive.
RULER, FIRST_BAR, BAR, LEADER = -1.5, 0.55, 0.42, 0.95


def _depth(ranking: Ranking) -> float:
    leaders = (len(ranking.ranks) + 1) // 2
    return -RULER + FIRST_BAR + BAR * len(ranking.groups) + LEADER * leaders + 0.8


def _draw_ranking(axes: Axes, ranking: Ranking) -> None:
    ranks, last = ranking.ranks, len(ranking.ranks)
    wide, edge, top = 0.3 * (last - 1), 0.06 * (last - 1), FIRST_BAR + BAR * len(ranking.groups)
    axes.set(xlim=(1 - wide, last + wide), ylim=(_depth(ranking) + RULER, RULER - 0.5))
    axes.axis("off")
    axes.plot([1, last], [0, 0], color=INK, lw=1.2)
    axes.text(1 - edge, 0, "mean rank", ha="right", va="center", color=MUTED)
    for rank in range(1, last + 1):
        axes.plot([rank, rank], [-0.22, 0], color=INK, lw=1.2)
        axes.text(rank, -0.32, f"{rank}", ha="center", va="bottom", color=MUTED, fontsize=9.5)
    _draw_ruler(axes, ranking)
    for level, group in enumerate(ranking.groups):
        ends = [ranks[name] for name in group]
        bar = np.array([min(ends) - 0.02 * last / 6, max(ends) + 0.02 * last / 6])
        level_of_bar = [FIRST_BAR + BAR * level] * 2
        axes.plot(bar, level_of_bar, color=CURVE, lw=4.5, solid_capstyle="round", zorder=3)
    for place, name in enumerate(sorted(ranks, key=lambda name: ranks[name])):
        better = place < (last + 1) // 2
        height = top + LEADER * ((place if better else last - 1 - place) + 0.6)
        end, side, offset = (1 - edge, "right", -5) if better else (last + edge, "left", 5)
        axes.plot([ranks[name], ranks[name], end], [0, height, height], color=MUTED, lw=0.9)
        words = f"{name}  {ranks[name]:.2f}" if better else f"{ranks[name]:.2f}  {name}"
        weight = "bold" if name in ranking.bold else "normal"
        look = {"ha": side, "va": "center", "fontweight": weight, "fontsize": 10.5}
        note_at(axes, words, (end, height), (offset, 0), **look)


def _draw_ruler(axes: Axes, ranking: Ranking) -> None:
    """Draw the critical difference at the start of the axis, in words if it is wider than that."""
    end, place = 1 + ranking.critical_difference, (1.0, 0)
    words = f"critical difference {ranking.critical_difference:.2f}"
    if end > len(ranking.ranks):
        words += ", more than the whole axis: no two methods can differ significantly"
    else:
        axes.plot([1, end], [RULER, RULER], color=CURVE, lw=1.6)
        for tick in (1, end):
            axes.plot([tick, tick], [RULER - 0.16, RULER + 0.16], color=CURVE, lw=1.6)
        place = end, 6
    look = {"va": "center", "color": CURVE, "fontsize": 9.5}
    note_at(axes, words, (place[0], RULER), (place[1], 0), **look).set_in_layout(False)


@styled
def score_map(
    tables: Mapping[str, Mapping[Cell, float]], datasets: Sequence[str], note: str = ""
) -> Figure:
    """Draw scores as shaded numbers: datasets in rows, methods in columns, the best in bold.

    Parameters
    ----------
    tables : mapping of str to mapping of (dataset, method) to float
        A panel for each, below its title. Higher is better and 1 is the maximum; NaN stands for
        a method without a score.
    datasets : sequence of str
    note : str
        Description of the numbers.

    Examples
    --------
    >>> len(score_map({"ARI": {("iris", "KMeans"): 0.6}}, ["iris"]).axes)
    1
    """
    if not (tables and datasets and all(tables.values())):
        raise InvalidInputError("There is nothing to draw: no table, no score or no dataset.")
    columns = [list(dict.fromkeys(method for _, method in table)) for table in tables.values()]
    figure = new_figure(2.0 + 0.29 * len(datasets), gap=0.02)
    grid = figure.subplots(1, len(tables), squeeze=False, width_ratios=[len(c) for c in columns])
    for axes, methods, (title, table) in zip(grid.flat, columns, tables.items(), strict=True):
        _draw_table(axes, table, methods, datasets)
        heading(axes, title, note if axes is grid[0, 0] else " ", characters=70, lines=1)
    for axes in grid[0, 1:]:
        axes.set_yticklabels([])
    return figure


def _draw_table(
    axes: Axes, table: Mapping[Cell, float], methods: Sequence[str], datasets: Sequence[str]
) -> None:
    values = np.array([[table.get((row, name), np.nan) for name in methods] for row in datasets])
    axes.imshow(np.nan_to_num(values).clip(0, 1), cmap=DEPTH, vmin=0, vmax=1, aspect="auto")
    for (row, column), value in np.ndenumerate(values):
        if (datasets[row], methods[column]) not in table:
            continue
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5, "color": INK}
        written = "none"
        if np.isfinite(value):
            written = f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")
            best = value >= np.nanmax(values[row]) - 5e-4
            look |= {"color": PAPER if value > 0.72 else INK}
            look |= {"fontweight": "bold" if best else "normal"}
        axes.text(column, row, written, **look)
    axes.set_xticks(range(len(methods)), methods, rotation=38, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(datasets)), [name.replace("_", " ") for name in datasets])
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)


Scale = Literal["shared", "own", "log"]
Cell = tuple[str, str]

COLOURS = (MEMORY, CURVE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
ROW_HEIGHT, HALF_WIDTH, RESOLUTION = 0.92, 0.42, 120
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
            shown = datasets if column.scale == "shared" else [dataset]
            _prepare(axes, column, [*product(shown, methods)], len(methods))
            for spot, method in enumerate(methods):
                _draw_fits(axes, spot, column, (dataset, method), COLOURS[spot % len(COLOURS)])
        grid[0, place].set_title(column.title)
    for axes, dataset in zip(grid[:, 0], datasets, strict=True):
        label = dataset.replace("_", "\n", 1).replace("_", " ")
        axes.set_ylabel(label, rotation=0, ha="right", va="center", color=INK, labelpad=6)
    figure.align_ylabels(grid[:, 0])
    _add_legend(figure, columns, [*product(datasets, methods)], methods)
    return figure


def _prepare(axes: Axes, column: MetricColumn, cells: Sequence[Cell], count: int) -> None:
    """Set limits, ticks and grid of the axes, by the scores of some cells."""
    found = [[*column.fits.get(cell, ())] for cell in cells]
    found += [
        [marked[cell] for cell in cells if cell in marked]
        for marked in (column.selected, column.best)
    ]
    values = [value for each in found for value in each if np.isfinite(value)]
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
    axes.set(xlim=(-0.6, count - 0.4), xticks=[])
    axes.tick_params(length=2, pad=2, labelsize=8)
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def _draw_fits(axes: Axes, spot: int, column: MetricColumn, cell: Cell, colour: str) -> None:
    fits = to_array(column.fits.get(cell, ()))
    if column.missing(cell):
        edge = axes.get_xaxis_transform()
        look: dict[str, Any] = {"xycoords": edge, "ha": "center", "va": "top", "color": MUTED}
        written = f"{len(fits)}/{column.attempts[cell]}"
        note_at(axes, written, (spot, 0), (0, -2), fontsize=7.5, **look)
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
    heights = np.linspace(values.min() - least, values.max() + least, RESOLUTION)
    density = np.exp(-0.5 * ((heights[:, None] - values) / width) ** 2).sum(1)
    return back(heights), density / density.max()


def _add_legend(
    figure: Figure, columns: Sequence[MetricColumn], cells: Sequence[Cell], methods: Sequence[str]
) -> None:
    """Add a legend of the colours and of the marks that occur."""
    counts = {len(column.fits.get(cell, ())) for column in columns for cell in cells}
    handles: list[Any] = [
        Patch(color=COLOURS[spot % len(COLOURS)], label=name) for spot, name in enumerate(methods)
    ]
    entries = [
        ("D", INK, PAPER, 6.5, "selected without labels"),
        ("o", PAPER, INK, 6.5, "best of all fits by this score"),
        ("x", MUTED, MUTED, 6.5, "no score"),
    ]
    if any(0 < count < FEWEST for count in counts):
        entries.append((".", MUTED, MUTED, 9.0, f"one fit, if fewer than {FEWEST}"))
    if any(column.missing(cell) for column in columns for cell in cells):
        entries.append(("$n/m$", MUTED, MUTED, 17.0, "n of m fits have a score"))
    for marker, face, edge, size, label in entries:
        style: dict[str, Any] = {"marker": marker, "mfc": face, "mec": edge, "ms": size}
        style |= {"mew": 0} if marker.startswith("$") else {}
        handles.append(Line2D([], [], color="none", label=label, **style))
    look: dict[str, Any] = {"fontsize": 10, "handlelength": 1.2, "columnspacing": 1.6}
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)), **look)
