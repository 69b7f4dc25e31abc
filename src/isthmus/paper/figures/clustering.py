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

from isthmus.cluster.crp import ClAMCRP, ClAMCRPELBO
from isthmus.cluster.elbo import Dynamics, elbo_flow
from isthmus.errors import InvalidInputError, ShapeError
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
FLOOR = 1e-12


@styled
def memory_creation(
    means: Any,
    counts: Any,
    *,
    beta: float,
    rho: float,
    alphas: Sequence[float],
    reach: float | None = None,
    resolution: int = 241,
) -> Figure:
    """Draw the energies of a finite mixture and of CRP mixtures, which may add memories.

    Dark is low. Where the new cluster has the largest responsibility, so that a datum there
    would become a memory, the panel is hatched green. The memories are `means` (K, 2) of `counts`
    (K,) data each; `beta`, `rho` and `alphas`, one for each panel, are as in
    :class:`isthmus.CRPMixture`. The panels show [-reach, reach]^2, by default half as far again as
    the farthest mean.
    """
    if not alphas:
        raise InvalidInputError("alphas is empty; pass at least one to draw.")
    marks, weights = to_array(means), to_array(counts)
    reach = reach or 1.5 * float(np.abs(marks).max())
    finite = Mixture(marks, beta=beta, log_weights=np.log(weights))
    figure, grid = panels(1 + len(alphas), columns=3, panel_height=4.15, sharex=True, sharey=True)
    note = "Every point of the plane rolls down to one of the memories that are there."
    draw_energy(grid[0], finite, reach, resolution)
    heading(grid[0], "Finite mixture (ClAM)", note)
    for axes, alpha in zip(grid[1:], alphas, strict=True):
        growing = CRPMixture(marks, weights, beta=beta, rho=rho, alpha=alpha)
        draw_energy(axes, growing, reach, resolution)
        share = _draw_new_region(axes, growing, reach, resolution)
        note = f"A datum in the hatched part, {share:.0%} of this square, opens a memory."
        heading(axes, f"CRP mixture, α = {alpha:g}", note)
    for axes in grid:
        draw_memories(axes, marks)
        label_plane(axes)
    return figure


def _newness(
    energy: CRPMixture, reach: float, resolution: int
) -> tuple[NDArray[Any], NDArray[Any], NDArray[Any]]:
    """Return a grid and the log-odds of a new memory against the best known one."""
    x, y, points = grid_points(-reach, reach, resolution)
    shares = to_array(energy.responsibilities(points.reshape(-1, 2)))
    logs = np.log(np.maximum(shares, 1e-300))
    return x, y, (logs[:, -1] - logs[:, :-1].max(1)).reshape(x.shape)


def _draw_new_region(axes: Axes, energy: CRPMixture, reach: float, resolution: int) -> float:
    """Hatch, in green, where a datum would add a memory, and return the share of the area."""
    x, y, odds = _newness(energy, reach, resolution)
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


def elbo_trace(
    log_joint: Tensor, dynamics: Dynamics, start: Tensor, *, steps: int, step_size: float = 0.5
) -> Tensor:
    """Return the largest error of the assignment probabilities after each step: (steps + 1, S).

    The starts are logits (S, K), and `log_joint` is (K,).
    """
    target = log_joint.expand_as(start)
    posterior = torch.softmax(target, -1)
    logits, errors = start, []
    for _ in range(steps + 1):
        errors.append((torch.softmax(logits, -1) - posterior).abs().amax(-1))
        flow = elbo_flow(target, dynamics, start=logits, step_size=step_size, tol=0.0, max_steps=1)
        logits = flow.logits
    return torch.stack(errors)


@styled
def elbo_dynamics(
    log_joint: Any, sizes: Sequence[float] = (0.0, 5.0, 10.0, 20.0), *, steps: int = 3000
) -> Figure:
    """Draw the distance of assignment probabilities from the posterior after each step.

    The logits of one datum start at zero, and at ever larger values that favour its least
    probable memory. The mirror flow and the one exact step do not care; the Euclidean flow
    of the paper stalls, for its metric vanishes where a probability is close to one.

    `log_joint` (K,) is log p(x, z = k) of the datum, `sizes` are the starting logits, and steps
    are of size 0.5.
    """
    joint = torch.as_tensor(to_array(log_joint))
    if joint.ndim != 1 or len(joint) < 2:
        raise ShapeError(f"log_joint must be (K,) with K of 2 or more, not {tuple(joint.shape)}.")
    start = joint.new_zeros(len(sizes), len(joint))
    start[:, int(joint.argmin())] = torch.as_tensor(sizes, dtype=joint.dtype)
    figure = new_figure(4.2, gap=0.06)
    mirror, euclidean = figure.subplots(1, 2, sharey=True)
    shades = DEPTH(np.linspace(0.45, 1.0, len(sizes)))
    panels: dict[Dynamics, Axes] = {"mirror": mirror, "euclidean": euclidean}
    for dynamics, axes in panels.items():
        shown = min(steps, 45) if dynamics == "mirror" else steps
        errors = to_array(elbo_trace(joint, dynamics, start, steps=shown))
        for size, shade, error in zip(sizes, shades, errors.T, strict=True):
            reached = np.flatnonzero(error <= FLOOR)
            end = reached[0] + 1 if len(reached) else len(error)
            shown_error = np.maximum(error[:end], FLOOR)
            axes.plot(np.arange(end), shown_error, color=shade, lw=2.2, label=f"{size:g}")
        axes.set(xlabel="steps", yscale="log", ylim=(FLOOR, 3.0), xlim=(0, shown))
        axes.grid(axis="y", color=RULE, lw=0.6)
        axes.set_axisbelow(True)
    mirror.set_ylabel("distance of q from the posterior")
    farthest = (torch.softmax(start, -1) - torch.softmax(joint, -1)).abs().amax()
    mirror.plot([0, 1], [float(farthest), FLOOR], color=INK, lw=1.6)
    note_at(mirror, "exact: one step", (0.55, 10 ** (0.55 * math.log10(FLOOR))), (9, -20))
    note = "One step; or the same few from anywhere, halving the error in each."
    heading(mirror, "Exact step and mirror flow", note, characters=70, lines=1)
    note = "Stalls where it starts almost certain of the wrong memory."
    heading(euclidean, "Euclidean flow (the paper's)", note, characters=70, lines=1)
    euclidean.legend(title="starting logit", title_fontsize=9, loc="lower right")
    return figure


@styled
def clustering_tour(
    model: ClAMCRP | ClAMCRPELBO, points: Any, strangers: Any, *, resolution: int = 201
) -> Figure:
    """Draw a fitted clusterer: memories, posteriors, imputed values and novelty.

    The model was fitted to `points` (N, 2), with NaN for unknown values, and has not seen the
    `strangers` (M, 2).
    """
    rows, news = to_array(points), to_array(strangers)
    if rows.ndim != 2 or rows.shape[1] != 2 or news.shape[1:] != (2,):
        raise ShapeError("points and strangers must be (N, 2) and (M, 2).")
    complete = ~np.isnan(rows).any(1)
    shown = np.concatenate([rows[complete], news])
    lower, upper = limits_of(shown, 0.08)
    figure, grid = panels(3, columns=3, panel_height=4.1, sharex=True, sharey=True)
    _draw_given(grid[0], rows, complete)
    _draw_learned(grid[1], model, rows, complete)
    _draw_novelty(grid[2], model, rows[complete], news, lower, upper, resolution)
    for axes in grid:
        axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), box_aspect=1)
        label_plane(axes)
    gaps = int((~complete).sum())
    note = f"{len(rows)} rows, in {gaps} of them one value unknown (ticks); no number of clusters."
    heading(grid[0], "Given", note)
    note = "Pale where the posterior is unsure; rings are rows whose gap was filled."
    heading(grid[1], f"Learned: {model.n_clusters_} memories", note)
    note = "Probability of belonging to no known memory; lines at 0.1, 0.5, 0.9."
    heading(grid[2], "Novelty", note)
    return figure


def _draw_given(axes: Axes, rows: NDArray[Any], complete: NDArray[Any]) -> None:
    axes.plot(*rows[complete].T, "o", color=MUTED, ms=3.4, mew=0, alpha=0.75)
    first_known = rows[~complete & ~np.isnan(rows[:, 0]), 0]
    second_known = rows[~complete & ~np.isnan(rows[:, 1]), 1]
    style: dict[str, Any] = {"color": INK, "lw": 1.0, "alpha": 0.8}
    axes.vlines(first_known, 0, 0.045, transform=axes.get_xaxis_transform(), **style)
    axes.hlines(second_known, 0, 0.045, transform=axes.get_yaxis_transform(), **style)


def _draw_learned(
    axes: Axes, model: ClAMCRP | ClAMCRPELBO, rows: NDArray[Any], complete: NDArray[Any]
) -> None:
    colours = _paled(model.predict_proba(rows))
    scatter(axes, rows[complete], s=15, c=colours[complete], linewidths=0, zorder=2)
    rings: dict[str, Any] = {"facecolors": PAPER, "edgecolors": colours[~complete]}
    filled = model.complete(rows[~complete], how="mode")
    scatter(axes, filled, s=26, linewidths=1.5, zorder=3, **rings)
    draw_memories(axes, to_array(model.memories_), size=8)


def _paled(posteriors: NDArray[Any]) -> NDArray[Any]:
    """Return the colour of each row's best memory, greyer at lower probability. (n, 3)"""
    best, n_memories = posteriors.argmax(1), posteriors.shape[1]
    palette = np.array([to_rgb(CLUSTERS[k % len(CLUSTERS)]) for k in range(n_memories)])
    unsure = 1 / min(n_memories, 2)
    sure = ((posteriors.max(1) - unsure) / max(1 - unsure, 1e-9)).clip(0.0, 1.0)[:, None]
    faint = 0.12 * palette[best] + 0.88 * np.array(to_rgb("#d9dee3"))
    mixed: NDArray[Any] = sure * palette[best] + (1 - sure) * faint
    return mixed


def _draw_novelty(
    axes: Axes,
    model: ClAMCRP | ClAMCRPELBO,
    known: NDArray[Any],
    strangers: NDArray[Any],
    lower: NDArray[Any],
    upper: NDArray[Any],
    resolution: int,
) -> None:
    x, y, points = grid_points(lower, upper, resolution)
    newness = model.novelty(points.reshape(-1, 2)).reshape(x.shape)
    axes.contourf(x, y, newness, np.linspace(0, 1, 11), cmap=NEWNESS)
    axes.contour(x, y, newness, [0.1, 0.5, 0.9], colors=[NEW], linewidths=[0.8, 1.8, 0.8])
    axes.plot(*known.T, "o", color=MUTED, ms=2.4, mew=0, alpha=0.45)
    axes.plot(*strangers.T, "X", color=INK, ms=8, mec=PAPER, mew=0.8, zorder=5)
    for place, chance in zip(strangers, model.novelty(strangers), strict=True):
        bold = {"ha": "center", "fontweight": "bold", "zorder": 6}
        note_at(axes, f"{chance:.2f}", place, (0, 8), **bold)


@styled
def four_models(
    means: Any,
    counts: Any,
    data: Any,
    *,
    beta: float,
    rho: float,
    alpha: float,
    reach: float,
    resolution: int = 201,
) -> Figure:
    """Draw ClAM, ClAM+CRP, ClAM+ELBO and ClAM+CRP+ELBO on the same memories and data.

    Above, the state is a datum that rolls down an energy in the space of data. Below, it stays
    where it is, and the state is its assignment, which flows to the posterior: a pie, green
    where it belongs to no memory yet. Left, the memories are given; right, new ones may open.
    The parameters are those of :func:`memory_creation`, and `data` is (N, 2).
    """
    marks, weights, points = to_array(means), to_array(counts), to_array(data)
    if marks.ndim != 2 or marks.shape[1] != 2 or points.shape[1:] != (2,):
        raise ShapeError("means and data must be (K, 2) and (N, 2).")
    finite = Mixture(marks, beta=beta, log_weights=np.log(weights))
    growing = CRPMixture(marks, weights, beta=beta, rho=rho, alpha=alpha)
    figure, grid = panels(4, columns=2, panel_height=4.9, sharex=True, sharey=True)
    for energy, above, below in ((finite, grid[0], grid[2]), (growing, grid[1], grid[3])):
        draw_energy(above, energy, reach, resolution)
        draw_energy(below, energy, reach, resolution)
        draw_retrieval(above, energy, points)
        log_joint = energy.responsibilities(energy.as_input(points)).clamp(min=1e-300).log()
        posteriors = to_array(elbo_flow(log_joint, "mirror").probabilities)
        for place, shares in zip(points, posteriors, strict=True):
            _draw_pie(below, place, shares, len(marks), 0.055 * reach)
    _draw_new_region(grid[1], growing, reach, resolution)
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
