"""The figures of a study: mean ranks, a map of scores, and violins of all fits."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

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
)
from isthmus.paper.study.comparison import Comparison
from isthmus.paper.study.methods import BOUNDED, LABELLED, UNLABELLED, Kind
from isthmus.paper.study.statistics import DIGITS
from isthmus.paper.study.store import Row
from isthmus.paper.study.verdict import Report, make_report

QUESTIONS: dict[Kind, str] = {"K given": "given", "K unknown": "not given"}
TITLES = {
    "rand": "Rand",
    "ari": "ARI",
    "ami": "AMI",
    "nmi": "NMI",
    "calinski_harabasz": "Calinski-Harabasz",
    "davies_bouldin": "Davies-Bouldin (lower is better)",
    "silhouette": "Silhouette",
}
OURS = ("ClAM", "ClAM+ELBO", "ClAM+CRP", "ClAM+CRP+ELBO", "BasinFlow")
# Heights in a diagram of ranks, in lines of text. The axis is at zero; down is positive.
RULER, FIRST_BAR, BAR, LEADER = -1.5, 0.55, 0.42, 0.95
COLOURS = (MEMORY, CURVE, "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
ROW_HEIGHT, WIDTH = 0.92, 0.84
# Fewer fits than this are drawn as dots.
FEWEST = 5


def study_figures(rows: Sequence[Row], only: Collection[str] | None = None) -> dict[str, Figure]:
    """Return the figures of a study by name.

    Parameters
    ----------
    rows : sequence of mapping
        See :meth:`isthmus.study.Store.read`.
    only : collection of str, optional
        Names of the figures to draw. Default: all for which there are rows.
    """
    report = make_report(rows)
    drawn: dict[str, Figure] = {}
    compared: dict[str, Comparison] = {}
    for kind, word in QUESTIONS.items():
        comparison = report.comparison(kind, "ari")
        if not comparison.methods:
            continue
        compared[f"The number of clusters is {word}"] = comparison
        for metrics, group in ((LABELLED, "labelled"), (UNLABELLED, "unlabelled")):
            name = f"violins-{kind.removeprefix('K ')}-{group}"
            if only is None or name in only:
                drawn[name] = violins(report, kind, metrics)
    ranked = {title: each for title, each in compared.items() if each.ranks}
    if ranked and (only is None or "critical-difference" in only):
        drawn["critical-difference"] = rank_diagrams(ranked)
    if only is None or "scores" in only:
        drawn["scores"] = score_maps(compared)
    return drawn


@styled
def rank_diagrams(compared: Mapping[str, Comparison]) -> Figure:
    """Draw mean ranks on a line and join methods that do not differ significantly (Demšar, 2006).

    Each comparison has a diagram, below its title.
    """
    depths = [_depth(each) for each in compared.values()]
    figure = new_figure(sum(0.36 * depth + 0.9 for depth in depths), gap=0.04)
    grid = figure.subplots(len(depths), 1, squeeze=False, height_ratios=depths)
    for axes, (title, comparison) in zip(grid.flat, compared.items(), strict=True):
        _draw_ranks(axes, comparison)
        assert comparison.friedman is not None
        p_value = f"Friedman p = {comparison.friedman.p_value:.2g}"
        note = (
            f"ARI of the selected fit (datasets: {len(comparison.ranked)}); {p_value}. Bars join "
            "methods that do not differ significantly."
        )
        heading(axes, title, note, characters=120, lines=1)
    return figure


def _depth(comparison: Comparison) -> float:
    leaders = (len(comparison.ranks) + 1) // 2
    return -RULER + FIRST_BAR + BAR * len(comparison.groups) + LEADER * leaders + 0.8


def _draw_ranks(axes: Axes, comparison: Comparison) -> None:
    ranks, last = comparison.ranks, len(comparison.ranks)
    wide, edge, top = 0.3 * (last - 1), 0.06 * (last - 1), FIRST_BAR + BAR * len(comparison.groups)
    axes.set(xlim=(1 - wide, last + wide), ylim=(_depth(comparison) + RULER, RULER - 0.5))
    axes.axis("off")
    axes.plot([1, last], [0, 0], color=INK, lw=1.2)
    axes.text(1 - edge, 0, "mean rank", ha="right", va="center", color=MUTED)
    for rank in range(1, last + 1):
        axes.plot([rank, rank], [-0.22, 0], color=INK, lw=1.2)
        axes.text(rank, -0.32, f"{rank}", ha="center", va="bottom", color=MUTED, fontsize=9.5)
    _draw_ruler(axes, comparison.critical_difference or 0.0, last)
    for level, group in enumerate(comparison.groups):
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
        weight = "bold" if name in OURS else "normal"
        look = {"ha": side, "va": "center", "fontweight": weight, "fontsize": 10.5}
        note_at(axes, words, (end, height), (offset, 0), **look)


def _draw_ruler(axes: Axes, width: float, last: int) -> None:
    """Draw the critical difference at the start of the axis, in words if it is wider than that."""
    end, place = 1 + width, (1.0, 0)
    words = f"critical difference {width:.2f}"
    if end > last:
        words += ", more than the whole axis: no two methods can differ significantly"
    else:
        axes.plot([1, end], [RULER, RULER], color=CURVE, lw=1.6)
        for tick in (1, end):
            axes.plot([tick, tick], [RULER - 0.16, RULER + 0.16], color=CURVE, lw=1.6)
        place = end, 6
    look = {"va": "center", "color": CURVE, "fontsize": 9.5}
    note_at(axes, words, (place[0], RULER), (place[1], 0), **look).set_in_layout(False)


@styled
def score_maps(compared: Mapping[str, Comparison]) -> Figure:
    """Draw scores as shaded numbers: datasets in rows, methods in columns, the best in bold."""
    datasets = sorted({name for each in compared.values() for name in each.scores.index})
    figure = new_figure(2.0 + 0.29 * len(datasets), gap=0.02)
    widths = [len(each.methods) for each in compared.values()]
    grid = figure.subplots(1, len(compared), squeeze=False, width_ratios=widths)
    note = "ARI of the fit selected without labels"
    for axes, (title, comparison) in zip(grid.flat, compared.items(), strict=True):
        _draw_scores(axes, comparison, datasets)
        heading(axes, title, note, characters=70, lines=1)
        note = " "
    for axes in grid[0, 1:]:
        axes.set_yticklabels([])
    return figure


def _draw_scores(axes: Axes, comparison: Comparison, datasets: Sequence[str]) -> None:
    values = comparison.scores.reindex(datasets).to_numpy()
    tried = comparison.fits.reindex(datasets, fill_value=0).to_numpy()
    axes.imshow(np.nan_to_num(values).clip(0, 1), cmap=DEPTH, vmin=0, vmax=1, aspect="auto")
    for row, column in np.argwhere(tried > 0):
        value = values[row, column]
        look: dict[str, Any] = {"ha": "center", "va": "center", "fontsize": 9.5, "color": INK}
        written = "none"
        if np.isfinite(value):
            written = f"{round(value, 2) + 0.0:.2f}".replace("-", "\N{MINUS SIGN}")
            best = value >= np.nanmax(values[row]) - 5e-4
            look |= {"color": PAPER if value > 0.72 else INK}
            look |= {"fontweight": "bold" if best else "normal"}
        axes.text(column, row, written, **look)
    names, methods = [name.replace("_", " ") for name in datasets], comparison.methods
    axes.set_xticks(range(len(methods)), methods, rotation=38, ha="right", rotation_mode="anchor")
    axes.set_yticks(range(len(datasets)), names)
    axes.tick_params(length=0, labelcolor=INK)
    axes.spines[:].set_visible(False)


@styled
def violins(report: Report, kind: Kind, metrics: Sequence[str]) -> Figure:
    """Draw the distribution of scores over all fits: datasets in rows, metrics in columns.

    A violin spans the fits of one method; its width is their density. Fewer than five fits are
    dots. A diamond marks the fit that the method selects, a ring the best fit, and a cross a
    method without any score. ``n/m`` below a method means that n of m fits have a score. Metrics
    without a common scale have a logarithmic axis for each dataset.
    """
    tried = report.comparison(kind, metrics[0]).fits
    datasets, methods = tried.index, tried.columns
    figure = new_figure(1.15 + ROW_HEIGHT * len(datasets), gap=0.02)
    grid = figure.subplots(len(datasets), len(metrics), squeeze=False, sharex=True)
    counts = []
    for metric, column in zip(metrics, grid.T, strict=True):
        bounded, fits = metric in BOUNDED, report.fits(kind, metric)
        counts += [len(scores) for scores in fits.values()]
        chosen, best = (report.comparison(kind, metric, v).scores for v in ("selected", "oracle"))
        for axes, dataset in zip(column, datasets, strict=True):
            shown = product(datasets if bounded else [dataset], methods)
            values = np.concatenate([fits.get(cell, ()) for cell in shown])
            _prepare(axes, values, not bounded)
            axes.set(xlim=(-0.6, len(methods) - 0.4), xticks=[])
            for spot, method in enumerate(methods):
                cell = dataset, method
                marks = best.loc[cell], chosen.loc[cell]
                _draw_fits(axes, spot, fits.get(cell, np.empty(0)), tried.loc[cell], marks)
        column[0].set_title(TITLES[metric])
    for axes, dataset in zip(grid[:, 0], datasets, strict=True):
        label = dataset.replace("_", "\n", 1).replace("_", " ")
        axes.set_ylabel(label, rotation=0, ha="right", va="center", color=INK, labelpad=6)
    figure.align_ylabels(grid[:, 0])
    some_lack = sum(counts) < len(metrics) * tried.to_numpy().sum()
    _add_legend(figure, methods, any(count < FEWEST for count in counts), some_lack)
    return figure


def _prepare(axes: Axes, values: NDArray[np.float64], logarithmic: bool) -> None:
    """Set limits, ticks and grid of the axes, by the scores on some datasets."""
    logarithmic = logarithmic and len(values) > 0 and values.min() > 0
    if logarithmic:
        axes.set_yscale("log")
        values = np.log(values)
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    pad = 0.12 * (high - low) or 0.1 * (abs(high) or 1.0)
    limits = np.array([low - pad, high + pad])
    axes.set_ylim(*(np.exp(limits) if logarithmic else limits))
    if logarithmic:
        ticks = [float(f"{np.exp(value):.2g}") for value in (low + 0.1 * pad, high - 0.1 * pad)]
        axes.set_yticks(ticks, [f"{tick:g}" for tick in ticks])
        axes.minorticks_off()
    else:
        axes.locator_params(axis="y", nbins=4)
    axes.tick_params(length=2, pad=2, labelsize=8)
    axes.grid(axis="y", color=RULE, lw=0.6)
    axes.set_axisbelow(True)
    axes.spines["left"].set_visible(False)


def _draw_fits(
    axes: Axes, spot: int, fits: NDArray[np.float64], tried: int, marks: tuple[float, float]
) -> None:
    """Draw the scores of a method and those of its best and its selected fit."""
    colour, edge = COLOURS[spot % len(COLOURS)], axes.get_xaxis_transform()
    if len(fits) < tried:
        look: dict[str, Any] = {"xycoords": edge, "ha": "center", "va": "top", "color": MUTED}
        note_at(axes, f"{len(fits)}/{tried}", (spot, 0), (0, -2), fontsize=7.5, **look)
    if not len(fits):
        axes.plot([spot], [0.12], "x", transform=edge, color=MUTED, ms=5, mew=1.1, zorder=3)
        return
    if len(fits) < FEWEST:
        axes.scatter(np.full(len(fits), spot), fits, s=22, color=colour, lw=0, zorder=3)
    else:
        parts: Any = axes.violinplot(fits.round(DIGITS), [spot], widths=WIDTH, showextrema=False)
        parts["bodies"][0].set(color=colour, alpha=1, lw=0.6)
    axes.plot([spot], marks[:1], "o", mfc=PAPER, mec=INK, ms=5.6, mew=1.0, zorder=4)
    axes.plot([spot], marks[1:], "D", mfc=INK, mec=PAPER, ms=4.2, mew=0.7, zorder=5)


def _add_legend(figure: Figure, methods: Sequence[str], dots: bool, some_lack: bool) -> None:
    """Add a legend of the colours and of the marks that occur."""
    handles: list[Any] = [
        Patch(color=COLOURS[spot % len(COLOURS)], label=name) for spot, name in enumerate(methods)
    ]
    entries = [
        ("D", INK, PAPER, 6.5, "selected without labels"),
        ("o", PAPER, INK, 6.5, "best of all fits by this score"),
        ("x", MUTED, MUTED, 6.5, "no score"),
        (".", MUTED, MUTED, 9.0, f"one fit, if fewer than {FEWEST}") if dots else None,
        ("$n/m$", MUTED, "none", 17.0, "n of m fits have a score") if some_lack else None,
    ]
    for marker, face, edge, size, label in filter(None, entries):
        style: dict[str, Any] = {"marker": marker, "mfc": face, "mec": edge, "ms": size}
        handles.append(Line2D([], [], color="none", label=label, **style))
    look: dict[str, Any] = {"fontsize": 10, "handlelength": 1.2, "columnspacing": 1.6}
    figure.legend(handles=handles, loc="outside upper center", ncols=min(4, len(handles)), **look)
