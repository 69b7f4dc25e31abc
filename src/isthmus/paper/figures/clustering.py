"""Figures of learned memories: new memories, convergence to posteriors, and fitted models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.colors import LinearSegmentedColormap, to_rgb
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray
from torch import Tensor

from isthmus.cluster.crp import ClAMCRP
from isthmus.cluster.elbo import Dynamics, elbo_flow
from isthmus.figures.landscapes import draw_energy, draw_memories, draw_retrieval
from isthmus.figures.style import (
    CURVE,
    DEPTH,
    GREEN,
    INK,
    MUTED,
    PAPER,
    RULE,
    grid_points,
    heading,
    label_plane,
    limits_of,
    new_figure,
    note_at,
    panels,
    scatter,
    styled,
    to_array,
)
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture

# Green always means "new". It is Okabe and Ito's, as are the colours of clusters.
NEW = GREEN
CLUSTERS = (CURVE, "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
NEWNESS = LinearSegmentedColormap.from_list("newness", [PAPER, "#e3f4ee", "#b5e1d2", "#7fcab1"])
SIGNED = LinearSegmentedColormap.from_list("signed", ["#e69f00", PAPER, "#56b4e9"])
FLOOR, RESOLUTION = 1e-12, 201


@styled
def memory_creation(
    finite: Mixture,
    growing: Sequence[CRPMixture],
    reach: float,
    flows: Mapping[str, Mapping[float, float]],
) -> Figure:
    """Draw the energies of a finite mixture and of CRP mixtures on [-reach, reach]^2.

    Where the new cluster has the largest responsibility, so that a datum there would become a
    memory, the panel is hatched green. The last panel shows `flows`: by the name of a curve, the
    share of the square that ends at the origin at each alpha.
    """
    figure, (*grid, last) = panels(2 + len(growing), columns=2, panel_height=4.15)
    note = "Every point of the plane rolls down to one of the memories that are there."
    draw_energy(grid[0], finite, reach)
    heading(grid[0], "Finite mixture (ClAM)", note)
    for axes, energy in zip(grid[1:], growing, strict=True):
        draw_energy(axes, energy, reach)
        share = _draw_new_region(axes, energy, reach)
        note = f"A datum in the hatched part, {share:.0%} of this square, opens a memory."
        heading(axes, f"CRP mixture, α = {float(energy.alpha):g}", note)
    for axes in grid:
        draw_memories(axes, to_array(finite.means))
        label_plane(axes)
    for (name, shares), line in zip(flows.items(), ("-o", "--o", "-s", "--s"), strict=False):
        colour = CURVE if line.endswith("o") else NEW
        last.plot([*shares], [*shares.values()], line, color=colour, label=name, lw=1.6, ms=5)
    last.set(xscale="log", xlabel="α", ylabel="share of the square", ylim=(-0.03, 1.03))
    last.legend(loc="upper left")
    heading(last, "Points that end at the origin", "A larger α attracts more of them.")
    return figure


def _draw_new_region(axes: Axes, energy: CRPMixture, reach: float) -> float:
    """Hatch, in green, where a datum would add a memory, and return the share of the area."""
    x, y, points = grid_points(-reach, reach, RESOLUTION)
    shares = to_array(energy.responsibilities(points.reshape(-1, 2)))
    logs = np.log(np.maximum(shares, 1e-300))
    odds = (logs[:, -1] - logs[:, :-1].max(1)).reshape(x.shape)
    if odds.max() <= 0:
        return 0.0
    region = axes.contourf(x, y, odds, [0, max(odds.max(), 1e-9)], colors="none").get_paths()[0]
    # Drawn as lines, because the colour of hatches depends on the version of matplotlib.
    shifts = np.arange(-2 * reach, 2 * reach, reach / 12)
    lines = [[(-reach, shift - reach), (reach, shift + reach)] for shift in shifts]
    hatching = LineCollection(lines, colors=NEW, linewidths=0.9, alpha=0.55)
    axes.add_collection(hatching, autolim=False)
    hatching.set_clip_path(region, axes.transData)
    axes.contour(x, y, odds, [0], colors=[NEW], linewidths=1.6)
    return float((odds > 0).mean())


def elbo_path(target: Tensor, dynamics: Dynamics, start: Tensor, steps: int) -> Tensor:
    """Return the assignment logits after each step: (steps + 1, S, K)."""
    path = [start]
    for _ in range(steps):
        path.append(elbo_flow(target, dynamics, start=path[-1], tol=0.0, max_steps=1).logits)
    return torch.stack(path)


def posterior_error(target: Tensor, logits: Tensor) -> Tensor:
    """Return the largest error of the assignment probabilities."""
    return (torch.softmax(logits, -1) - torch.softmax(target, -1)).abs().amax(-1)


@styled
def elbo_dynamics(target: Tensor, start: Tensor, steps: int) -> Figure:
    """Draw the distance of assignment probabilities from the posterior after each step.

    `target` (S, K) has the log-joints of one datum, `start` (S, K) logits that favour its last
    memory ever more.
    """
    figure = new_figure(4.2, gap=0.06)
    mirror, euclidean = figure.subplots(1, 2, sharey=True)
    shades = DEPTH(np.linspace(0.45, 1.0, len(start)))
    panels: dict[Dynamics, Axes] = {"mirror": mirror, "euclidean": euclidean}
    for dynamics, axes in panels.items():
        shown = min(steps, 45) if dynamics == "mirror" else steps
        errors = to_array(posterior_error(target, elbo_path(target, dynamics, start, shown)))
        for size, shade, error in zip(start[:, -1], shades, errors.T, strict=True):
            reached = np.flatnonzero(error <= FLOOR)
            end = reached[0] + 1 if len(reached) else len(error)
            shown_error = np.maximum(error[:end], FLOOR)
            axes.plot(np.arange(end), shown_error, color=shade, lw=2.2, label=f"{float(size):g}")
        axes.set(xlabel="steps", yscale="log", ylim=(FLOOR, 3.0), xlim=(0, shown))
        axes.grid(axis="y", color=RULE, lw=0.6)
        axes.set_axisbelow(True)
    mirror.set_ylabel("distance of q from the posterior")
    farthest = float(posterior_error(target, start).max())
    mirror.plot([0, 1], [farthest, FLOOR], color=INK, lw=1.6)
    note_at(mirror, "exact: one step", (0.55, 10 ** (0.55 * math.log10(FLOOR))), (9, -20))
    note = "One step; or the same few from anywhere, halving the error in each."
    heading(mirror, "Exact step and mirror flow", note, characters=70, lines=1)
    note = "Stalls where it starts almost certain of the wrong memory."
    heading(euclidean, "Euclidean flow (the paper's)", note, characters=70, lines=1)
    euclidean.legend(title="starting logit", title_fontsize=9, loc="lower right")
    return figure


@styled
def clustering_tour(model: ClAMCRP, points: Any, strangers: Any) -> Figure:
    """Draw a fitted clusterer: memories, posteriors, imputed values and novelty."""
    rows, news = to_array(points), to_array(strangers)
    complete = ~np.isnan(rows).any(1)
    shown = np.concatenate([rows[complete], news])
    lower, upper = limits_of(shown, 0.08)
    figure, grid = panels(3, columns=3, panel_height=4.1, sharex=True, sharey=True)
    _draw_given(grid[0], rows, complete)
    _draw_learned(grid[1], model, rows, complete)
    _draw_novelty(grid[2], model, rows[complete], news, (lower, upper))
    notes = {
        "Given": f"{len(rows)} rows, in {int((~complete).sum())} of them one value unknown "
        "(ticks); no number of clusters.",
        f"Learned: {model.n_clusters_} memories": "Pale where the posterior is unsure; rings are "
        "rows whose gap was filled.",
        "Novelty": "Probability of belonging to no known memory; lines at 0.1, 0.5, 0.9.",
    }
    for axes, (title, note) in zip(grid, notes.items(), strict=True):
        axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), box_aspect=1)
        label_plane(axes)
        heading(axes, title, note)
    return figure


def _draw_given(axes: Axes, rows: NDArray[Any], complete: NDArray[Any]) -> None:
    axes.plot(*rows[complete].T, "o", color=MUTED, ms=3.4, mew=0, alpha=0.75)
    style: dict[str, Any] = {"color": INK, "lw": 1.0, "alpha": 0.8}
    first, second = rows[~complete].T
    axes.vlines(first[~np.isnan(first)], 0, 0.045, transform=axes.get_xaxis_transform(), **style)
    axes.hlines(second[~np.isnan(second)], 0, 0.045, transform=axes.get_yaxis_transform(), **style)


def _draw_learned(axes: Axes, model: ClAMCRP, rows: NDArray[Any], complete: NDArray[Any]) -> None:
    """Draw rows in the colours of their best memories, greyer at lower probability."""
    posteriors = model.predict_proba(rows)
    best, n_memories = posteriors.argmax(1), posteriors.shape[1]
    palette = np.array([to_rgb(CLUSTERS[k % len(CLUSTERS)]) for k in range(n_memories)])[best]
    unsure = 1 / min(n_memories, 2)
    sure = ((posteriors.max(1) - unsure) / max(1 - unsure, 1e-9)).clip(0.0, 1.0)[:, None]
    faint = 0.12 * palette + 0.88 * np.array(to_rgb("#d9dee3"))
    colours = sure * palette + (1 - sure) * faint
    scatter(axes, rows[complete], s=15, c=colours[complete], linewidths=0, zorder=2)
    rings: dict[str, Any] = {"facecolors": PAPER, "edgecolors": colours[~complete]}
    filled = model.complete(rows[~complete], how="mode")
    scatter(axes, filled, s=26, linewidths=1.5, zorder=3, **rings)
    draw_memories(axes, to_array(model.memories_), size=8)


def _draw_novelty(
    axes: Axes,
    model: ClAMCRP,
    known: NDArray[Any],
    strangers: NDArray[Any],
    limits: tuple[NDArray[Any], NDArray[Any]],
) -> None:
    x, y, points = grid_points(*limits, RESOLUTION)
    newness = model.novelty(points.reshape(-1, 2)).reshape(x.shape)
    axes.contourf(x, y, newness, np.linspace(0, 1, 11), cmap=NEWNESS)
    axes.contour(x, y, newness, [0.1, 0.5, 0.9], colors=[NEW], linewidths=[0.8, 1.8, 0.8])
    axes.plot(*known.T, "o", color=MUTED, ms=2.4, mew=0, alpha=0.45)
    axes.plot(*strangers.T, "X", color=INK, ms=8, mec=PAPER, mew=0.8, zorder=5)
    bold = {"ha": "center", "fontweight": "bold", "zorder": 6}
    for place, chance in zip(strangers, model.novelty(strangers), strict=True):
        note_at(axes, f"{chance:.2f}", place, (0, 8), **bold)


@styled
def four_models(finite: Mixture, growing: CRPMixture, data: Tensor, reach: float) -> Figure:
    """Draw ClAM, ClAM+CRP, ClAM+ELBO and ClAM+CRP+ELBO on the same memories and data.

    Above, the state is a datum that rolls down an energy. Below, it is its assignment, which flows
    to the posterior: a pie, green where it belongs to no memory yet.
    """
    marks, points = to_array(finite.means), to_array(data)
    figure, grid = panels(4, columns=2, panel_height=4.9, sharex=True, sharey=True)
    for energy, above, below in ((finite, grid[0], grid[2]), (growing, grid[1], grid[3])):
        draw_energy(above, energy, reach)
        draw_energy(below, energy, reach)
        draw_retrieval(above, energy, points)
        log_joint = energy.responsibilities(data).clamp(min=1e-300).log()
        posteriors = to_array(elbo_flow(log_joint, "mirror").probabilities)
        for place, shares in zip(points, posteriors, strict=True):
            _draw_pie(below, place, shares, len(marks), 0.055 * reach)
    _draw_new_region(grid[1], growing, reach)
    for axes in grid:
        draw_memories(axes, marks)
        label_plane(axes)
    notes = {
        "ClAM": "State: the datum. It rolls to a memory and returns its label.",
        "ClAM + CRP": "The same, with room for more: a datum in the hatched part "
        "opens a memory, wherever it would roll.",
        "ClAM + ELBO": "State: its assignment. It flows to the posterior over memories (pies).",
        "ClAM + CRP + ELBO": "Posterior over memories and a new one (green): both at once.",
    }
    for axes, (name, note) in zip(grid, notes.items(), strict=True):
        heading(axes, name, note, characters=58, lines=2)
    return figure


@styled
def matrices(named: Mapping[str, Any], names: Sequence[str]) -> Figure:
    """Draw square matrices side by side, with their entries: blue above zero, orange below."""
    figure, grid = panels(len(named), columns=len(named), panel_height=4.6)
    for axes, (title, values) in zip(grid, named.items(), strict=True):
        matrix = to_array(values)
        most = float(abs(matrix).max())
        axes.imshow(matrix, cmap=SIGNED, vmin=-most, vmax=most)
        for (row, column), value in np.ndenumerate(matrix):
            axes.text(column, row, f"{value:+.3f}", ha="center", va="center", color=INK)
        axes.set_xticks(range(len(names)), names)
        axes.set_yticks(range(len(names)), names)
        axes.spines[:].set_visible(False)
        heading(axes, title)
    return figure


def _draw_pie(
    axes: Axes, place: NDArray[Any], shares: NDArray[Any], n_memories: int, radius: float
) -> None:
    """Draw a pie of the shares; the last one is that of a new memory."""
    colours = [CLUSTERS[k % len(CLUSTERS)] for k in range(n_memories)] + [NEW]
    ends = 90 + 360 * np.concatenate([[0.0], np.cumsum(shares)])
    for colour, share, start, end in zip(colours, shares, ends, ends[1:], strict=False):
        if share > 1e-3:
            axes.add_patch(Wedge(tuple(place), radius, start, end, fc=colour, lw=0, zorder=5))
    axes.add_patch(Wedge(tuple(place), radius, 0, 360, fc="none", ec=INK, lw=0.7, zorder=5))
