"""The figures of a study: mean ranks, and violins of all fits."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from functools import partial
from itertools import product
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Patch
from numpy.typing import NDArray

from isthmus.figures import style
from isthmus.figures.style import styled
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
    "davies_bouldin": "Davies-Bouldin (low is good)",
    "silhouette": "Silhouette",
}
OURS = ("ClAM", "ClAM+ELBO", "ClAM+CRP", "ClAM+CRP+ELBO", "BasinFlow")
ROW_HEIGHT, WIDTH = 0.92, 0.84
RING: dict[str, Any] = {"mfc": style.PAPER, "mec": style.INK, "ms": 5.6, "mew": 1.0, "zorder": 4}
DIAMOND: dict[str, Any] = {"mfc": style.INK, "mec": style.PAPER, "ms": 4.2, "mew": 0.7, "zorder": 5}


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
    drawings: dict[str, Callable[[], Figure]] = {}
    ranked: dict[str, Comparison] = {}
    for kind, word in QUESTIONS.items():
        comparison = report.comparison(kind, "ari")
        if comparison.ranks:
            ranked[f"The number of clusters is {word}"] = comparison
        for metrics, group in ((LABELLED, "labelled"), (UNLABELLED, "unlabelled")):
            name = f"violins-{kind.removeprefix('K ')}-{group}"
            if comparison.methods:
                drawings[name] = partial(violins, report, kind, metrics)
    if ranked:
        drawings["critical-difference"] = partial(rank_diagrams, ranked)
    return {name: draw() for name, draw in drawings.items() if only is None or name in only}


@styled
def rank_diagrams(compared: Mapping[str, Comparison]) -> Figure:
    """Draw mean ranks, and bars that join methods that do not differ significantly."""
    depths = [len(each.ranks) + 2 for each in compared.values()]
    figure = style.new_figure(sum(0.27 * depth + 0.6 for depth in depths), gap=0.04)
    grid = figure.subplots(len(depths), 1, squeeze=False, height_ratios=depths)
    for axes, (title, comparison) in zip(grid.flat, compared.items(), strict=True):
        ranks, last = comparison.ranks, len(comparison.ranks)
        names = sorted(ranks, key=lambda name: ranks[name])
        axes.plot([ranks[name] for name in names], names, "o", color=style.INK, ms=6)
        for name in names:
            style.note_at(axes, f"{ranks[name]:.2f}", (ranks[name], name), (8, 0), va="center")
        for level, group in enumerate(comparison.groups, start=1):
            ends = [last + 0.02 * last * level] * 2
            axes.plot(ends, [group[0], group[-1]], color=style.CURVE, lw=4, solid_capstyle="round")
        axes.set(xlim=(0.9, 1.2 * last), ylim=(last - 0.4, -0.6), xticks=range(1, last + 1))
        axes.set_xlabel(f"mean rank (critical difference {comparison.critical_difference:.2f})")
        axes.grid(axis="y", color=style.RULE, lw=0.6)
        for label in axes.get_yticklabels():
            label.set_fontweight("bold" if label.get_text() in OURS else "normal")
        assert comparison.friedman is not None
        note = (
            f"ARI of the selected fit (datasets: {len(comparison.ranked)}); Friedman "
            f"p = {comparison.friedman.p_value:.2g}. Bars: methods not significantly different."
        )
        style.heading(axes, title, note, characters=120, lines=1)
    return figure


@styled
def violins(report: Report, kind: Kind, metrics: Sequence[str]) -> Figure:
    """Draw the distribution of scores over all fits: datasets in rows, metrics in columns.

    A violin spans the fits of one method; its width is their density. A diamond marks the fit that
    the method selects, and a ring the best fit. ``n/m`` below a method means that n of m fits have
    a score. Metrics without a common scale have a logarithmic axis for each dataset.
    """
    tried = report.comparison(kind, metrics[0]).fits
    datasets, methods = tried.index, tried.columns
    figure = style.new_figure(1.15 + ROW_HEIGHT * len(datasets), gap=0.02)
    grid = figure.subplots(len(datasets), len(metrics), squeeze=False, sharex=True)
    for metric, column in zip(metrics, grid.T, strict=True):
        bounded, fits = metric in BOUNDED, report.fits(kind, metric)
        chosen, best = (report.comparison(kind, metric, v).scores for v in ("selected", "oracle"))
        for axes, dataset in zip(column, datasets, strict=True):
            shown = product(datasets if bounded else [dataset], methods)
            _prepare(axes, np.concatenate([fits.get(cell, ()) for cell in shown]), not bounded)
            axes.set(xlim=(-0.6, len(methods) - 0.4), xticks=[])
            for spot, method in enumerate(methods):
                cell = dataset, method
                _draw_fits(axes, spot, fits.get(cell, np.empty(0)), tried.loc[cell])
            for scores, marker, look in ((best, "o", RING), (chosen, "D", DIAMOND)):
                axes.plot(scores.loc[dataset].to_numpy(), marker, **look)
        column[0].set_title(TITLES[metric])
    for axes, dataset in zip(grid[:, 0], datasets, strict=True):
        label = dataset.replace("_", "\n", 1).replace("_", " ")
        axes.set_ylabel(label, rotation=0, ha="right", va="center", color=style.INK, labelpad=6)
    figure.align_ylabels(grid[:, 0])
    handles: list[Any] = [
        *(Patch(color=style.PALETTE[spot % 8], label=name) for spot, name in enumerate(methods)),
        Line2D([], [], marker="D", ls="", label="selected without labels", **DIAMOND),
        Line2D([], [], marker="o", ls="", label="best of all fits by this score", **RING),
    ]
    figure.legend(handles=handles, loc="outside upper center", ncols=4, fontsize=10)
    return figure


def _prepare(axes: Axes, values: NDArray[np.float64], logarithmic: bool) -> None:
    """Set limits, ticks and grid of the axes, by the scores on some datasets."""
    low, high = (float(values.min()), float(values.max())) if len(values) else (0.0, 1.0)
    if logarithmic and low > 0:
        axes.set_yscale("log")
        wide = (high / low) ** 0.12 if high > low else 1.1
        axes.set_ylim(low / wide, high * wide)
        axes.set_yticks([low, high], [f"{tick:.2g}" for tick in (low, high)])
        axes.minorticks_off()
    else:
        pad = 0.12 * (high - low) or 0.1 * (abs(high) or 1.0)
        axes.set_ylim(low - pad, high + pad)
        axes.locator_params(axis="y", nbins=4)
    axes.tick_params(length=2, pad=2, labelsize=8)
    axes.grid(axis="y", color=style.RULE, lw=0.6)
    axes.spines["left"].set_visible(False)


def _draw_fits(axes: Axes, spot: int, fits: NDArray[np.float64], tried: int) -> None:
    """Draw the scores of a method, and the number of its fits if some have no score."""
    if len(fits) < tried:
        look: dict[str, Any] = {"xycoords": axes.get_xaxis_transform(), "color": style.MUTED}
        # Upright, since methods are closer than the numbers are wide.
        look |= {"ha": "center", "va": "top", "fontsize": 7, "rotation": 90}
        style.note_at(axes, f"{len(fits)}/{tried}", (spot, 0), (0, -2), **look)
    if len(fits):
        parts: Any = axes.violinplot(fits.round(DIGITS), [spot], widths=WIDTH, showextrema=False)
        parts["bodies"][0].set(color=style.PALETTE[spot % 8], alpha=1, lw=0.6)
