"""Figures of learned memories: four models, new memories, and convergence to posteriors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from numpy.typing import NDArray
from torch import Tensor

from isthmus.cluster.elbo import Dynamics, elbo_flow
from isthmus.figures.landscapes import draw_energy, draw_memories, draw_retrieval
from isthmus.figures.style import (
    CURVE,
    DEPTH,
    GREEN,
    INK,
    RULE,
    grid_points,
    heading,
    label_plane,
    new_figure,
    note_at,
    panels,
    styled,
    to_array,
)
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture

# Green always means "new". It is Okabe and Ito's, as are the colours of clusters.
NEW = GREEN
CLUSTERS = (CURVE, "#cc79a7", "#e69f00", "#56b4e9", "#7a5195", "#8c6d31")
FLOOR = 1e-12


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
    for axes, energy in zip(grid, (finite, *growing), strict=True):
        draw_energy(axes, energy, reach)
        if isinstance(energy, CRPMixture):
            share = draw_new_region(axes, energy, reach)
            note = f"A datum in the hatched part, {share:.0%} of this square, opens a memory."
            heading(axes, f"CRP mixture, α = {float(energy.alpha):g}", note)
        else:
            heading(axes, "Finite mixture (ClAM)", "Every point rolls to a memory that is there.")
        draw_memories(axes, to_array(finite.means))
        label_plane(axes)
    for (name, shares), line, colour in zip(
        flows.items(), ("-o", "--s"), (CURVE, NEW), strict=False
    ):
        last.plot([*shares], [*shares.values()], line, color=colour, label=name, lw=1.6, ms=5)
    last.set(xscale="log", xlabel="α", ylabel="share of the square", ylim=(-0.03, 1.03))
    last.legend(loc="upper left")
    heading(last, "Points that end at the origin", "A larger α attracts more of them.")
    return figure


def draw_new_region(axes: Axes, energy: CRPMixture, reach: float) -> float:
    """Hatch, in green, where a datum would add a memory, and return the share of the area."""
    x, y, points = grid_points(-reach, reach, 201)
    logs = np.log(np.maximum(to_array(energy.responsibilities(points.reshape(-1, 2))), 1e-300))
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


@styled
def elbo_dynamics(target: Tensor, start: Tensor, steps: int) -> Figure:
    """Draw the distance of assignment probabilities from the posterior after each step.

    `target` (S, K) has the log-joints of one datum, `start` (S, K) logits that favour its last
    memory ever more.
    """
    figure = new_figure(4.2, gap=0.06)
    grid = figure.subplots(1, 2, sharey=True)
    shades = DEPTH(np.linspace(0.45, 1.0, len(start)))
    drawn: tuple[tuple[Dynamics, int, str, str], ...] = (
        ("mirror", min(steps, 45), "Exact step and mirror flow",
         "One step; or the same few from anywhere, halving the error in each."),
        ("euclidean", steps, "Euclidean flow (the paper's)",
         "Stalls where it starts almost certain of the wrong memory."),
    )  # fmt: skip
    for axes, (dynamics, shown, title, note) in zip(grid, drawn, strict=True):
        path = torch.softmax(elbo_path(target, dynamics, start, shown), -1)
        errors = to_array((path - torch.softmax(target, -1)).abs().amax(-1))
        for size, shade, error in zip(start[:, -1], shades, errors.T, strict=True):
            end = int(np.argmax(error <= FLOOR)) + 1 if (error <= FLOOR).any() else len(error)
            height = np.maximum(error[:end], FLOOR)
            axes.plot(np.arange(end), height, color=shade, lw=2.2, label=f"{float(size):g}")
        axes.set(xlabel="steps", yscale="log", ylim=(FLOOR, 3.0), xlim=(0, shown))
        axes.grid(axis="y", color=RULE, lw=0.6)
        axes.set_axisbelow(True)
        heading(axes, title, note, characters=70, lines=1)
    grid[0].set_ylabel("distance of q from the posterior")
    grid[0].plot([0, 1], [errors[0].max(), FLOOR], color=INK, lw=1.6)
    note_at(grid[0], "exact: one step", (0.55, FLOOR**0.55), (9, -20))
    grid[1].legend(title="starting logit", title_fontsize=9, loc="lower right")
    return figure


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
    draw_new_region(grid[1], growing, reach)
    notes = {
        "ClAM": "State: the datum. It rolls to a memory and returns its label.",
        "ClAM + CRP": "The same, but a datum in the hatched part opens a memory.",
        "ClAM + ELBO": "State: its assignment. It flows to the posterior over memories (pies).",
        "ClAM + CRP + ELBO": "Posterior over memories and a new one (green): both at once.",
    }
    for axes, (name, note) in zip(grid, notes.items(), strict=True):
        draw_memories(axes, marks)
        label_plane(axes)
        heading(axes, name, note, characters=58)
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
