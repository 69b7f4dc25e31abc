"""Figures of memories: certificates and phases."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import EllipseCollection
from matplotlib.figure import Figure
from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter

from isthmus.capacity import Certificate, Phases
from isthmus.capacity.atlas import (
    binary_line,
    central_limit_line,
    condensation_line,
    storage_line,
)
from isthmus.capacity.certificate import KINDS
from isthmus.errors import ShapeError
from isthmus.figures import style
from isthmus.figures.clusters import project
from isthmus.figures.style import styled, to_array
from isthmus.printing import counted

PHASES = {
    "stores": style.CURVE,
    "condenses": style.MEMORY,
    "blends": style.PURPLE,
    "generalises": style.GREEN,
    "forgets": style.MUTED,
}


@styled
def certificate_plot(
    certificate: Certificate, X: Any, columns: Sequence[str] = (), *, axes: Axes | None = None
) -> Figure:
    """Draw patterns on a plane, coloured by their certificate, with their guaranteed balls.

    Those of more dimensions are projected to their main directions, without balls: the shadow of a
    ball would promise more than the ball does.

    Parameters
    ----------
    certificate : Certificate
    X : array (N, D)
        The patterns that it was made for.
    columns : sequence of str
        Names of the D coordinates.
    axes : matplotlib Axes, optional
        Default: those of a new figure.
    """
    is_new = axes is None
    axes = axes or style.new_figure(6.0).subplots()
    points = to_array(X)
    if points.ndim != 2 or len(points) != len(certificate) or not points.shape[1]:
        raise ShapeError(
            f"X must be the {len(certificate)} patterns of the certificate, not {points.shape}."
        )
    flat = points.shape[1] <= 2
    labels = [*map(style.literal, columns or ("first coordinate", "second coordinate"))][:2]
    note = "Disc: every start in it reaches the pattern's own fixed point."
    if not flat:
        labels = ["first principal component", "second principal component"]
        note = "Seen along the two directions of the largest variance."
        points = project(points, points[:1])[0]
    elif points.shape[1] == 1:
        points, labels = np.pad(points, ((0, 0), (0, 1))), [labels[0], ""]
    proved, iterated = certificate.decided == "proved", certificate.decided == "iterated"
    finite = proved & np.isfinite(certificate.guaranteed_radius) & flat
    reach = np.where(finite, certificate.guaranteed_radius, 0.0)[:, None]
    lower, upper = style.limits_of(np.concatenate([points - reach, points + reach]), 0.04)
    widths = 2 * reach[finite, 0]
    look: dict[str, Any] = {"offsets": points[finite], "transOffset": axes.transData, "units": "xy"}
    look |= {"facecolor": style.CURVE, "edgecolor": style.CURVE, "alpha": 0.16}
    axes.add_collection(EllipseCollection(widths, widths, np.zeros(len(widths)), **look))
    stored = certificate.stored
    for name, rows, colour, marker in (
        ("stored, proved", proved, style.CURVE, "o"),
        ("stored, by iterating", stored & ~proved, style.GREEN, "s"),
        ("not stored", ~stored & iterated, style.MEMORY, "X"),
        ("open", ~stored & ~iterated & ~proved, style.MUTED, "d"),
    ):
        if rows.any():
            look = {"color": colour, "ms": 6, "mec": style.PAPER, "mew": 0.6}
            axes.plot(*points[rows].T, marker, label=f"{name}: {int(rows.sum())}", **look)
    axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]))
    axes.set_aspect("equal" if flat else "auto")  # balls are round
    axes.set(xlabel=labels[0], ylabel=labels[1])
    axes.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    name = KINDS[certificate.kind][0].upper() + KINDS[certificate.kind][1:]
    style.heading(axes, f"{name}, sigma = {certificate.sigma:.3g}", note, characters=80, lines=1)
    figure = style.root_of(axes)
    if flat and is_new:
        # In inches: space above and below the axes, and their width left of the legend.
        wide, high = upper - lower
        figure.set_figheight(0.95 + float(np.clip(7.3 * high / wide, 1.6, 7.5)))
    return figure


@styled
def phase_plot(phases: Phases) -> Figure:
    """Draw the phases of a memory over its bandwidth, beside the lines of theory.

    On the right, the data are a row of marks at their own ln N / D. Rows that are correlated or lie
    in clusters cease to be stored earlier than random patterns of the same number.

    Parameters
    ----------
    phases : isthmus.capacity.Phases
    """
    figure = style.new_figure(4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.25, 1.0))
    _draw_measures(left, phases)
    _draw_theory(right, phases)
    for axis in (left.xaxis, right.xaxis, right.yaxis):
        low, high = axis.get_view_interval()
        axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0) if high < 500 * low else (1.0,)))
        axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
        axis.set_minor_formatter(NullFormatter())
    for axes in (left, right):
        axes.legend(loc="upper center", bbox_to_anchor=(0.48, -0.16), ncols=2, columnspacing=0.8)
    return figure


def _draw_measures(axes: Axes, phases: Phases) -> None:
    """Draw what is stored at each bandwidth, in front of the phases."""
    sigmas = phases.sigmas
    # Regions end half-way between bandwidths.
    edges = np.r_[sigmas[0], np.sqrt(sigmas[1:] * sigmas[:-1]), sigmas[-1]]
    where: dict[str, Any] = {"rotation": 90, "va": "top", "ha": "center", "fontsize": 9}
    for name, low, high in phases.regions:
        start, end = edges[np.searchsorted(sigmas, low)], edges[np.searchsorted(sigmas, high) + 1]
        axes.axvspan(start, end, color=PHASES[name], alpha=0.18, lw=0)
        axes.text(math.sqrt(start * end), 1.43, name, color=style.INK, **where)
    basins = np.log(phases.n_basins) / math.log(phases.rows)
    for values, line, colour, name in (
        (phases.stored, "o-", style.CURVE, "rows stored, share"),
        (phases.proved, ":", style.CURVE, "proved"),
        (phases.largest_weight, "s-", style.MEMORY, "largest weight at a draw, median"),
        (basins, "^-", style.INK, "ln(basins) / ln N"),
    ):
        axes.plot(sigmas, values, line, ms=3, color=colour, label=name)
    marks = {
        "likeliest sigma": (phases.likelihood_sigma, "-"),
        "predicted collapse": (phases.collapse_sigma, "--"),
    }
    for name, (sigma, line) in marks.items():
        if edges[0] <= sigma <= edges[-1]:
            look: dict[str, Any] = {"color": style.MUTED, "ls": line, "lw": 1}
            # It ends below the names of phases.
            axes.axvline(sigma, 0, 0.69, label=f"{name}: {sigma:.3g}", **look)
    axes.set(xscale="log", xlabel="bandwidth sigma", ylim=(-0.03, 1.46), xlim=edges[[0, -1]])
    axes.set_yticks(np.linspace(0, 1, 6))
    title = f"{phases.rows:,} rows in {counted(phases.dim, 'dimension')}"
    style.heading(axes, title, lines=1)


def _draw_theory(axes: Axes, phases: Phases) -> None:
    """Draw the lines between phases of random patterns, and the data as a row of marks."""
    share = phases.sigmas * math.sqrt(phases.dim) / phases.radius
    load = math.log(phases.rows) / phases.dim
    for name, colour in PHASES.items():
        here = share[phases.phase == name]
        if len(here):
            look: dict[str, Any] = {"color": colour, "mec": style.INK, "mew": 0.4, "zorder": 3}
            axes.plot(here, np.full(len(here), load), "o", ms=6, label=name, **look)
    grid = np.geomspace(min(0.1, share[0]), max(2.0, 1.2 * share[-1]), 300)
    for curve, colour, line, name in (
        (storage_line, style.CURVE, "-", "stored below: random, on a sphere"),
        (binary_line, style.CURVE, ":", "stored below: random, binary"),
        (condensation_line, style.MEMORY, "-", "condensed below: Gaussian"),
        (central_limit_line, style.MUTED, "--", "central limit above: Gaussian"),
    ):
        axes.plot(grid, curve(grid), line, color=colour, lw=1.6, label=name)
    axes.set(xscale="log", xlim=grid[[0, -1]], xlabel="sigma sqrt(D) / M", ylabel="ln N / D")
    axes.set(yscale="log", ylim=(min(0.5 * load, 0.05), max(4.0, 2 * load)))
    style.heading(axes, "Theory for random patterns", lines=1)
