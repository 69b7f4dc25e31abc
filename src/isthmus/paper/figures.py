"""Figures that only the report of the paper draws: capacity, clustering and attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import pandas as pd
import torch
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from matplotlib.ticker import MaxNLocator, NullLocator
from torch import Tensor

import isthmus as ist
from isthmus.attention import VMFMixture, entanglement
from isthmus.capacity import basins
from isthmus.cluster.elbo import Dynamics, elbo_flow
from isthmus.figures import landscapes as land
from isthmus.figures import style
from isthmus.figures.style import styled, to_array
from isthmus.paper.counts import CapacityKind, capacity_bound
from isthmus.paper.sweep import Sweep

SHADES = (style.MEMORY, style.PURPLE, style.GREEN, style.CURVE, style.SKY, style.INK)
MARKS = "osDPX*"
# Colour, line and name of each bound.
BOUNDS: dict[CapacityKind, tuple[str, str, str]] = {
    "claimed": (style.MEMORY, "--", "claimed, 4^(D-1)"),
    "half-weight": (style.INK, "-", "half-weight, if each keeps half its weight"),
    "certified": (style.CURVE, "-", "certified, random coding"),
    "packing": (style.GREEN, "-.", "packing, Ramsauer's condition"),
}


@styled
def basins_merging(
    memories: Any, sigmas: Iterable[float], counts: Iterable[int] | None = None
) -> Figure:
    """Draw the energy of patterns on a line and their retrieval, one row per bandwidth.

    Each of `counts`, numbers of patterns from the first on, has a column. Default: all.

    Examples
    --------
    >>> from isthmus.figures import basins_merging
    >>> len(basins_merging([[-1.0], [1.0]], [0.5, 1.5]).axes)
    2
    """
    marks, rows = to_array(memories).reshape(-1, 1), list(sigmas)
    columns = list(counts or [len(marks)])
    figure = style.new_figure(3.0 * len(rows), gap=0.04)
    grid = figure.subplots(len(rows), len(columns), squeeze=False)
    for place, axes in np.ndenumerate(grid):
        sigma, shown = rows[place[0]], marks[: columns[place[1]]]
        found = basins(shown, sigma).n_basins
        land.draw_landscape(axes, ist.GaussianKDE(shown, sigma), shown, shown, window=marks)
        note = f"{len(shown)} patterns, {found} {'basin' if found == 1 else 'basins'}"
        style.heading(axes, f"σ = {sigma:g}", note, lines=1)
        axes.set(xlabel="x", ylabel="energy")
    return figure


@styled
def retrieval_sweep(sweep: Sweep) -> Figure:
    """Draw retrieval against the number of patterns, one line per dimension.

    Bands are 95 % over seeds.
    """
    figure = style.new_figure(4.2)
    left, right = figure.subplots(1, 2, sharex=True)
    counts = sweep.counts
    for axes, measure in ((left, "retrieved"), (right, "normalized_ratio")):
        for number, dim in enumerate(sweep.dims):
            colour, mark = SHADES[number % len(SHADES)], MARKS[number % len(MARKS)]
            mean, half = np.array([sweep.band(measure, dim, count) for count in counts]).T
            axes.plot(counts, mean, f"{mark}-", color=colour, ms=5, lw=1.6, label=f"D = {dim}")
            low, high = np.maximum(mean - half, 0), mean + half
            axes.fill_between(counts, low, high, color=colour, alpha=0.18, lw=0)
        axes.set(xscale="log", xlabel="number of patterns N")
    left.set(ylim=(-0.03, 1.06), ylabel="share of particles")
    right.set(ylim=(0, None), ylabel="final / initial / mean distance of patterns")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    style.heading(left, "Retrieved", "Ends nearest to its own pattern.", lines=1)
    style.heading(right, "The paper's measure", "The smaller the better.", lines=1)
    return figure


@styled
def capacity_bounds(dims: Iterable[int], measured: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw every bound on the number N of patterns against the dimension D.

    On the sphere of radius 2 sigma sqrt(D - 1). A second panel shows `measured` counts, by the name
    of an experiment and the dimension, with the bounds as growth N^(1/(D-1)), for the first half of
    the dimensions.
    """
    grid = np.array(list(dims))
    figure = style.new_figure(5.4)
    left, right = figure.subplots(1, 2)
    for kind, (colour, line, name) in BOUNDS.items():
        logs = np.array([capacity_bound(int(dim), kind=kind, log=True) for dim in grid])
        left.plot(grid, logs / np.log(10), line, color=colour, lw=1.8, label=name)
        right.plot(grid, np.exp(logs / (grid - 1)), line, color=colour, lw=1.8)
    left.set(xlabel="dimension D", ylabel="number of patterns N", ylim=(0, None))
    left.yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    left.yaxis.set_major_locator(MaxNLocator(7, integer=True))
    left.legend(loc="upper left")
    for number, (name, counts) in enumerate(measured.items()):
        growth = [count ** (1 / (dim - 1)) for dim, count in counts.items()]
        look: dict[str, Any] = {"color": style.INK, "mfc": SHADES[-number], "ms": 8, "zorder": 4}
        right.plot([*counts], growth, MARKS[number % len(MARKS)], label=name, **look)
    farthest = max(dim for counts in measured.values() for dim in counts)
    right.set(xlim=(1.5, max(grid.max() / 2, farthest + 0.5)), yscale="log", ylim=(0.95, 22))
    right.set(xlabel="dimension D", ylabel="growth N^(1/(D-1))", yticks=(1, 2, 3, 4, 5, 10, 20))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.yaxis.set_minor_locator(NullLocator())
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(loc="upper right")
    note = "On the sphere of radius 2σ√(D−1)."
    style.heading(left, "How many patterns fit on a sphere", note, lines=1)
    note = "Above the black line, some keep less than half of their weight."
    style.heading(right, "Growth per dimension", note, characters=70, lines=1)
    return figure


# Of clusters; green always means "new".
CLUSTERS = (style.CURVE, style.PURPLE, style.YELLOW, style.SKY)
FLOOR = 1e-12


@styled
def memory_creation(
    finite: ist.Mixture,
    growing: Sequence[ist.CRPMixture],
    reach: float,
    flows: Mapping[str, Mapping[float, float]],
) -> Figure:
    """Draw the energies of a finite mixture and of CRP mixtures on [-reach, reach]^2.

    Where the new cluster has the largest responsibility, so that a datum there would become a
    memory, the panel is green. The last panel shows `flows`: by the name of a curve, the
    share of the square that ends at the origin at each alpha.
    """
    figure, (*grid, last) = style.panels(2 + len(growing), columns=2, panel_height=4.15)
    for axes, energy in zip(grid, (finite, *growing), strict=True):
        land.draw_energy(axes, energy, reach)
        if isinstance(energy, ist.CRPMixture):
            share = draw_new_region(axes, energy, reach)
            note = f"A datum in the green part, {share:.0%} of this square, opens a memory."
            style.heading(axes, f"CRP mixture, α = {float(energy.alpha):g}", note)
        else:
            style.heading(
                axes, "Finite mixture (ClAM)", "Every point rolls to a memory that is there."
            )
        land.draw_memories(axes, to_array(finite.means))
        style.label_plane(axes)
    for (name, shares), line, colour in zip(flows.items(), ("-o", "--s"), SHADES, strict=False):
        last.plot([*shares], [*shares.values()], line, color=colour, label=name, lw=1.6, ms=5)
    last.set(xscale="log", xlabel="α", ylabel="share of the square", ylim=(-0.03, 1.03))
    last.legend(loc="upper left")
    style.heading(last, "Points that end at the origin", "A larger α attracts more of them.")
    return figure


def draw_new_region(axes: Axes, energy: ist.CRPMixture, reach: float) -> float:
    """Shade, in green, where a datum would add a memory, and return the share of the area."""
    x, y, points = style.grid_points(-reach, reach, 201)
    logs = np.log(np.maximum(to_array(energy.responsibilities(points.reshape(-1, 2))), 1e-300))
    odds = (logs[:, -1] - logs[:, :-1].max(1)).reshape(x.shape)
    if odds.max() > 0:
        axes.contourf(x, y, odds, [0, max(odds.max(), 1e-9)], colors=[style.GREEN], alpha=0.3)
        axes.contour(x, y, odds, [0], colors=[style.GREEN], linewidths=1.6)
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
    figure = style.new_figure(4.2, gap=0.06)
    grid = figure.subplots(1, 2, sharey=True)
    shades = style.DEPTH(np.linspace(0.45, 1.0, len(start)))
    drawn: tuple[tuple[Dynamics, int, str, str], ...] = (
        ("mirror", min(steps, 45), "Mirror flow", "The same few steps from anywhere."),
        ("euclidean", steps, "Euclidean flow (the paper's)", "Stalls at the wrong memory."),
    )
    for axes, (dynamics, shown, title, note) in zip(grid, drawn, strict=True):
        path = torch.softmax(elbo_path(target, dynamics, start, shown), -1)
        errors = to_array((path - torch.softmax(target, -1)).abs().amax(-1))
        for size, shade, error in zip(start[:, -1], shades, errors.T, strict=True):
            axes.plot(np.maximum(error, FLOOR), color=shade, lw=2.2, label=f"{float(size):g}")
        axes.set(xlabel="steps", yscale="log", ylim=(FLOOR, 3.0), xlim=(0, shown))
        axes.grid(axis="y", color=style.RULE, lw=0.6)
        style.heading(axes, title, note, lines=1)
    grid[0].set_ylabel("distance of q from the posterior")
    grid[1].legend(title="starting logit", title_fontsize=9, loc="lower right")
    return figure


@styled
def four_models(finite: ist.Mixture, growing: ist.CRPMixture, data: Tensor, reach: float) -> Figure:
    """Draw ClAM, ClAM+CRP, ClAM+ELBO and ClAM+CRP+ELBO on the same memories and data.

    Above, the state is a datum that rolls down an energy. Below, it is its assignment, which flows
    to the posterior: a pie, green where it belongs to no memory yet.
    """
    marks, points = to_array(finite.means), to_array(data)
    figure, grid = style.panels(4, columns=2, panel_height=4.9, sharex=True, sharey=True)
    for energy, above, below in ((finite, grid[0], grid[2]), (growing, grid[1], grid[3])):
        land.draw_energy(above, energy, reach)
        land.draw_energy(below, energy, reach)
        land.draw_retrieval(above, energy, points)
        log_joint = energy.responsibilities(data).clamp(min=1e-300).log()
        posteriors = to_array(elbo_flow(log_joint, "mirror").probabilities)
        colours = [*CLUSTERS[: len(marks)], style.GREEN]
        for place, shares in zip(points, posteriors, strict=True):
            ends = 90 + 360 * np.cumsum([0.0, *shares])
            for colour, start, end in zip(colours, ends, ends[1:], strict=False):
                if end - start > 0.36:
                    pie = Wedge(tuple(place), 0.055 * reach, start, end, fc=colour, zorder=5)
                    below.add_patch(pie)
    draw_new_region(grid[1], growing, reach)
    notes = {
        "ClAM": "State: the datum. It rolls to a memory and returns its label.",
        "ClAM + CRP": "The same, but a datum in the green part opens a memory.",
        "ClAM + ELBO": "State: its assignment. It flows to the posterior over memories (pies).",
        "ClAM + CRP + ELBO": "Posterior over memories and a new one (green): both at once.",
    }
    for axes, (name, note) in zip(grid, notes.items(), strict=True):
        land.draw_memories(axes, marks)
        style.label_plane(axes)
        style.heading(axes, name, note, characters=58)
    return figure


@styled
def keys_of_heads(views: Mapping[str, VMFMixture]) -> Figure:
    """Draw concentration and log-weight of all keys, a row of panels for each layer of heads."""
    columns = max(view.concentration.shape[1] for view in views.values())
    figure = style.new_figure(2.4 * len(views))
    grid = figure.subplots(len(views), columns, squeeze=False, sharex=True, sharey="row")
    for line, (name, view) in zip(grid, views.items(), strict=True):
        correlations = entanglement(view).correlation.tolist()
        for head, (axes, correlation) in enumerate(zip(line, correlations, strict=True)):
            kappa, weight = view.concentration[:, head], view.log_weight[:, head]
            look: dict[str, Any] = {"color": style.CURVE, "ms": 3, "mew": 0, "alpha": 0.4}
            axes.plot(to_array(kappa).ravel(), to_array(weight).ravel(), "o", **look)
            style.heading(axes, f"{name}, head {head}", f"Correlation {correlation:.2f}", lines=1)
            axes.set(xlabel="concentration κ", ylabel="log w")
            axes.label_outer()
    return figure


VARIANTS = {
    "pre-norm": (style.INK, "o"),
    "QK-norm": (style.CURVE, "s"),
    "SALN": (style.MEMORY, "^"),
}


@styled
def attention_experiment(experiment: pd.DataFrame) -> Figure:
    """Draw loss, fraction of diverged runs and largest logit against the learning rate.

    `experiment` has a row for each run. Lines are medians over seeds, small marks the seeds.
    """
    figure = style.new_figure(3.9, gap=0.05)
    loss, share, logit = figure.subplots(1, 3, sharex=True)
    finite = experiment.replace(np.inf, np.nan)
    for number, (variant, (colour, marker)) in enumerate(VARIANTS.items()):
        runs, drawn = (each[each["variant"] == variant] for each in (experiment, finite))
        if runs.empty:
            continue
        look: dict[str, Any] = {"color": colour, "marker": marker, "mec": style.PAPER, "mew": 0.5}
        by_rate = runs.groupby("learning_rate")
        for axes, measure in ((loss, "loss"), (logit, "largest_logit")):
            middle = by_rate[measure].median().replace(np.inf, np.nan)
            axes.plot(middle, label=variant, lw=1.6, ms=5, zorder=3, **look)
            seeds = drawn["learning_rate"], drawn[measure]
            axes.plot(*seeds, marker, color=colour, ms=3, alpha=0.45, mew=0)
            axes.set_yscale("log")
        # Side by side, so that equal shares do not hide each other.
        diverged = by_rate["diverged"].mean()
        share.plot(diverged.index * 1.12 ** (number - 1), diverged, lw=1.6, ms=5, **look)
    guess = np.log(10)
    loss.axhline(guess, color=style.RULE, lw=1, zorder=0)
    place = (experiment["learning_rate"].min(), guess)
    style.note_at(loss, "guessing", place, (0, 3), fontsize=8.5, color=style.MUTED)
    for axes in (loss, share, logit):
        axes.set(xscale="log", xlabel="learning rate")
    share.set(ylim=(-0.05, 1.05))
    share.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    loss.legend(loc="lower right")
    style.heading(loss, "Training loss", "At the end.", lines=1)
    style.heading(share, "Runs that diverged", "Ended no better than guessing.", lines=1)
    style.heading(logit, "Largest attention logit", "In any block, during training.", lines=1)
    return figure
