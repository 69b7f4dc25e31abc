"""Figures of the clustering study: mean ranks with critical differences, and a map of scores."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from isthmus.errors import InvalidInputError
from isthmus.figures.style import (
    CURVE,
    DEPTH,
    INK,
    MUTED,
    PAPER,
    heading,
    new_figure,
    styled,
)
from isthmus.figures.violins import Cell


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
    axes.set(xlim=(1 - 0.3 * (last - 1), last + 0.3 * (last - 1)))
    axes.set_ylim(_depth(ranking) + RULER, RULER - 0.5)
    axes.axis("off")
    axes.plot([1, last], [0, 0], color=INK, lw=1.2)
    axes.text(1 - 0.06 * (last - 1), 0, "mean rank", ha="right", va="center", color=MUTED)
    for rank in range(1, last + 1):
        axes.plot([rank, rank], [-0.22, 0], color=INK, lw=1.2)
        axes.text(rank, -0.32, f"{rank}", ha="center", va="bottom", color=MUTED, fontsize=9.5)
    _draw_ruler(axes, ranking)
    order = sorted(ranks, key=lambda name: ranks[name])
    for level, group in enumerate(ranking.groups):
        ends = [ranks[name] for name in group]
        height = FIRST_BAR + BAR * level
        axes.plot(
            [min(ends) - 0.02 * last / 6, max(ends) + 0.02 * last / 6],
            [height, height],
            color=CURVE,
            lw=4.5,
            solid_capstyle="round",
            zorder=3,
        )
    top = FIRST_BAR + BAR * len(ranking.groups)
    half = (last + 1) // 2
    for place, name in enumerate(order):
        better = place < half
        row = place if better else last - 1 - place
        end = 1 - 0.06 * (last - 1) if better else last + 0.06 * (last - 1)
        height = top + LEADER * (row + 0.6)
        axes.plot([ranks[name], ranks[name], end], [0, height, height], color=MUTED, lw=0.9)
        words = f"{name}  {ranks[name]:.2f}" if better else f"{ranks[name]:.2f}  {name}"
        axes.annotate(
            words,
            (end, height),
            xytext=(-5 if better else 5, 0),
            textcoords="offset points",
            ha="right" if better else "left",
            va="center",
            fontweight="bold" if name in ranking.bold else "normal",
            fontsize=10.5,
        )


def _draw_ruler(axes: Axes, ranking: Ranking) -> None:
    """Draw the critical difference at the start of the axis, in words if it is wider than that."""
    width, last = ranking.critical_difference, len(ranking.ranks)
    words, end = f"critical difference {width:.2f}", 1 + width
    if end > last:
        words += ", more than the whole axis: no two methods can differ significantly"
        axes.text(1, RULER, words, va="center", color=CURVE, fontsize=9.5).set_in_layout(False)
        return
    axes.plot([1, end], [RULER, RULER], color=CURVE, lw=1.6)
    for place in (1, end):
        axes.plot([place, place], [RULER - 0.16, RULER + 0.16], color=CURVE, lw=1.6)
    axes.annotate(
        words,
        (end, RULER),
        xytext=(6, 0),
        textcoords="offset points",
        va="center",
        color=CURVE,
        fontsize=9.5,
    ).set_in_layout(False)


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
        Datasets to draw, in this order.
    note : str
        Description of the numbers.

    Examples
    --------
    >>> table = {("iris", "KMeans"): 0.6, ("iris", "HDBSCAN"): 0.5}
    >>> len(score_map({"ARI": table}, ["iris"]).axes)
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
        best = value >= np.nanmax(values[row]) - 5e-4 if np.isfinite(value) else False
        axes.text(
            column,
            row,
            _written(value),
            ha="center",
            va="center",
            fontsize=9.5,
            fontweight="bold" if best else "normal",
            color=PAPER if np.isfinite(value) and value > 0.72 else INK,
        )
    axes.set_xticks(range(len(methods)), methods, rotation=38, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(datasets)), [name.replace("_", " ") for name in datasets])
    axes.tick_params(length=0, labelcolor=INK)
    for spine in axes.spines.values():
        spine.set_visible(False)


def _written(value: float) -> str:
    if not np.isfinite(value):
        return "none"
    return f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")
