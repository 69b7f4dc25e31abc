"""Figures that only the report of the paper draws: capacity, clustering and attention."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import Wedge
from matplotlib.ticker import MaxNLocator, NullLocator
from numpy.typing import NDArray
from torch import Tensor

from isthmus.capacity import basins
from isthmus.cluster.elbo import Dynamics, elbo_flow
from isthmus.figures.landscapes import (
    draw_energy,
    draw_landscape,
    draw_memories,
    draw_retrieval,
    paths_of,
)
from isthmus.figures.style import (
    CURVE,
    DEPTH,
    GREEN,
    INK,
    MEMORY,
    MUTED,
    PAPER,
    PURPLE,
    RULE,
    SKY,
    YELLOW,
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
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.mixture import Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.paper.attention import Experiment
from isthmus.paper.counts import CapacityKind, capacity_bound
from isthmus.paper.sweep import Sweep

SHADES = (MEMORY, PURPLE, GREEN, CURVE, SKY, INK)
MARKS = "osDPX*"
FACES = (PAPER, SKY, MEMORY, YELLOW)
# Colour, line and name of each bound.
BOUNDS: dict[CapacityKind, tuple[str, str, str]] = {
    "claimed": (MEMORY, "--", "claimed, 4^(D-1)"),
    "dense": (SKY, "--", "dense limit, not proved to bind"),
    "half-weight": (INK, "-", "half-weight ceiling"),
    "certified": (CURVE, "-", "certified, random coding"),
    "packing": (GREEN, "-.", "packing, Ramsauer's condition"),
    "random": (PURPLE, ":", "random, Ramsauer's theorem"),
}
# References of the sweep, with their markers.
THEORY: dict[CapacityKind, str] = {"certified": "v", "half-weight": "|"}


@styled
def basins_merging(
    memories: Any, sigmas: Iterable[float], counts: Iterable[int] | None = None
) -> Figure:
    """Draw the energy of patterns on a line and their retrieval, one row per bandwidth.

    All panels have the scale of the bandwidth with the lowest hills; higher ones leave the panel.
    Each of `counts`, numbers of patterns from the first on, has a column. Default: all.

    Examples
    --------
    >>> from isthmus.figures import basins_merging
    >>> len(basins_merging([[-1.0], [1.0]], [0.5, 1.5]).axes)
    2
    """
    marks = to_array(memories).reshape(-1, 1)
    columns, rows = list(counts or [len(marks)]), list(sigmas)
    # Bandwidths of one set of patterns stand side by side.
    shape = (len(rows), len(columns)) if len(columns) > 1 else (1, len(rows))
    figure = new_figure(3.0 * shape[0], gap=0.04)
    grid = figure.subplots(*shape, squeeze=False)
    cells = [(sigma, count) for sigma in rows for count in columns]
    for axes, (sigma, count) in zip(grid.flat, cells, strict=True):
        shown = marks[:count]
        found = basins(shown, sigma).n_basins
        draw_landscape(axes, GaussianKDE(shown, sigma), shown, shown, window=marks)
        note = f"{count} patterns, {found} {'basin' if found == 1 else 'basins'}"
        heading(axes, f"σ = {sigma:g}", note, lines=1)
        axes.set(xlabel="x", ylabel="energy (nats)")
    heights = np.array([np.asarray(axes.lines[0].get_ydata()) for axes in grid.flat])  # of curves
    low = float(heights.min())
    high = float(heights.reshape(len(rows), -1).max(1).min())
    for axes in grid.flat:
        axes.set_ylim(low - 0.16 * (high - low), high + 0.1 * (high - low))
        axes.label_outer()
        axes.tick_params(labelleft=True)
    return figure


@styled
def retrieval_sweep(sweep: Sweep) -> Figure:
    """Draw retrieval against the number of patterns, one line per dimension.

    Bands are 95 % over seeds. Marks along the top are what theory says of each dimension, in its
    colour: a triangle at a certified number of stored patterns, a bar at the half-weight ceiling.
    """
    figure = new_figure(4.2)
    left, right = figure.subplots(1, 2, sharex=True)
    counts = sweep.counts
    for axes, measure in ((left, "retrieved"), (right, "normalized_ratio")):
        for number, dim in enumerate(sweep.dims):
            look: dict[str, Any] = {"color": SHADES[number % len(SHADES)]}
            mean, half = np.array([sweep.band(measure, dim, count) for count in counts]).T
            mark = f"{MARKS[number % len(MARKS)]}-"
            axes.plot(counts, mean, mark, ms=5, lw=1.6, label=f"D = {dim}", **look)
            high = np.minimum(mean + half, 1) if measure == "retrieved" else mean + half
            axes.fill_between(counts, np.maximum(mean - half, 0), high, alpha=0.18, lw=0, **look)
            for kind, marker in THEORY.items():
                bound = capacity_bound(dim, kind=kind)
                if counts[0] <= bound <= counts[-1]:
                    top = axes.get_xaxis_transform()
                    axes.plot([bound], [0.97], marker, transform=top, ms=8, mew=2, **look)
        axes.set(xscale="log", xlabel="number of patterns N")
    left.set(ylim=(-0.03, 1.13), ylabel="share of particles")
    right.set(ylim=(0, 1.15 * right.get_ylim()[1]))
    right.set(ylabel="final / initial / mean distance of patterns")
    right.legend(loc="upper left", bbox_to_anchor=(1.0, 1.0))
    note = "Triangle: certified number. Bar: half-weight ceiling."
    heading(left, "Retrieved", note, characters=56)
    heading(right, "The paper's measure", "Distance that is left: the smaller the better.")
    return figure


@styled
def capacity_bounds(dims: Iterable[int], measured: Mapping[str, Mapping[int, float]]) -> Figure:
    """Draw every bound on the number N of patterns against the dimension D.

    On the sphere of radius 2 sigma sqrt(D - 1). A second panel shows `measured` counts, by the name
    of an experiment and the dimension, with the bounds as growth N^(1/(D-1)), for the first half of
    the dimensions.
    """
    grid = np.array(list(dims))
    figure = new_figure(5.4)
    left, right = figure.subplots(1, 2)
    for kind, (colour, line, name) in BOUNDS.items():
        logs = np.array([capacity_bound(int(dim), kind=kind, log=True) for dim in grid])
        look: dict[str, Any] = {"ls": line, "color": colour, "lw": 1.8}
        left.plot(grid, logs / np.log(10), label=name, **look)
        right.plot(grid, np.exp(logs / (grid - 1)), **look)
    left.set(xlabel="dimension D", ylabel="number of patterns N", ylim=(0, None))
    left.yaxis.set_major_formatter(lambda value, _: f"$10^{{{value:.0f}}}$")
    left.yaxis.set_major_locator(MaxNLocator(7, integer=True))
    left.legend(loc="upper left")
    note = "Half-weight: no more keep half of their own weight, which storage does not need."
    heading(left, "How many patterns fit on a sphere", note)
    # Each mark is smaller than the one before, so that none hides another.
    for number, (name, counts) in enumerate(measured.items()):
        growth = [count ** (1 / (dim - 1)) for dim, count in counts.items()]
        look = {"ms": max(9.5 - 1.5 * number, 7), "mfc": FACES[number % len(FACES)], "mew": 1.3}
        mark = MARKS[number % len(MARKS)]
        right.plot([*counts], growth, mark, color=INK, zorder=4, label=name, **look)
    farthest = max(dim for counts in measured.values() for dim in counts)
    right.set(xlim=(1.5, max(grid.max() / 2, farthest + 0.5)), yscale="log", ylim=(0.95, 22))
    right.set(xlabel="dimension D", ylabel="growth N^(1/(D-1))", yticks=(1, 2, 3, 4, 5, 10, 20))
    right.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    right.yaxis.set_minor_locator(NullLocator())
    right.xaxis.set_major_locator(MaxNLocator(integer=True))
    right.legend(loc="upper right", title="stored")
    heading(right, "Growth per dimension", "Lines as on the left, marks are stored.")
    return figure


@styled
def kde_and_hopfield(on: Any, off: Any, queries: Any, sigma: float) -> Figure:
    """Draw paths of queries in a KDE and in a network, with patterns on a circle and off it."""
    figure = new_figure(6.3)
    left, right = figure.subplots(1, 2)
    starts = to_array(queries)
    reach = 1.12 * max(float(abs(to_array(each)).max()) for each in (on, off, starts))
    for axes, patterns, title, note in (
        (left, on, "Equal lengths", "Both models take the same steps to the same places."),
        (right, off, "Unequal lengths", "The network favours long patterns; the KDE does not."),
    ):
        kde, network = GaussianKDE(patterns, sigma), ModernHopfield(patterns, beta=1 / sigma**2)
        draw_energy(axes, kde, reach)
        looks = {"Gaussian KDE": (kde, INK, "-"), "modern Hopfield": (network, YELLOW, "--")}
        for name, (energy, colour, line) in looks.items():
            paths = paths_of(energy, starts)[0]
            axes.plot(*paths.T, line, color=colour, lw=1.6, label=name)
            axes.plot(*paths[:, -1].T, "o", color=colour, ms=5, mec=PAPER, mew=0.6, zorder=7)
        axes.plot(*starts.T, "o", ms=4, mfc=PAPER, mec=INK, mew=0.8, zorder=5)
        draw_memories(axes, to_array(patterns))
        axes.set(xlabel="x₁", ylabel="x₂")
        heading(axes, title, note)
    handles, labels = left.get_legend_handles_labels()
    unique = dict(zip(labels, handles, strict=True))
    figure.legend([*unique.values()], [*unique], loc="outside lower left", ncols=2)
    return figure


# Of clusters, in Okabe and Ito's colours. Green always means "new".
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
        flows.items(), ("-o", "--s"), (CURVE, GREEN), strict=False
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
    hatching = LineCollection(lines, colors=GREEN, linewidths=0.9, alpha=0.55)
    axes.add_collection(hatching, autolim=False)
    hatching.set_clip_path(region, axes.transData)
    axes.contour(x, y, odds, [0], colors=[GREEN], linewidths=1.6)
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
    colours = [CLUSTERS[k % len(CLUSTERS)] for k in range(n_memories)] + [GREEN]
    ends = 90 + 360 * np.concatenate([[0.0], np.cumsum(shares)])
    for colour, share, start, end in zip(colours, shares, ends, ends[1:], strict=False):
        if share > 1e-3:
            axes.add_patch(Wedge(tuple(place), radius, start, end, fc=colour, lw=0, zorder=5))
    axes.add_patch(Wedge(tuple(place), radius, 0, 360, fc="none", ec=INK, lw=0.7, zorder=5))


VARIANTS = {"pre-norm": (INK, "o"), "QK-norm": (CURVE, "s"), "SALN": (MEMORY, "^")}


@styled
def attention_experiment(experiment: Experiment) -> Figure:
    """Draw loss, fraction of diverged runs and largest logit against the learning rate.

    Lines are medians over seeds, small marks the seeds themselves.
    """
    figure = new_figure(3.9, gap=0.05)
    loss, share, logit = figure.subplots(1, 3, sharex=True)
    rates = experiment.learning_rates
    for number, variant in enumerate(experiment.variants):
        colour, marker = VARIANTS[variant]
        look = {"color": colour, "marker": marker, "ms": 5, "lw": 1.6, "mec": PAPER, "mew": 0.5}
        for axes, measure in ((loss, "loss"), (logit, "largest_logit")):
            middle = np.array([experiment.median(measure, variant, rate) for rate in rates])
            middle[~np.isfinite(middle)] = np.nan
            axes.plot(rates, middle, label=variant, zorder=3, **look)
            runs = [run for run in experiment.runs if run.variant == variant]
            seeds = np.array([(run.learning_rate, run.value(measure)) for run in runs])
            seeds = seeds[np.isfinite(seeds[:, 1])]
            axes.plot(*seeds.T, marker, color=colour, ms=3, alpha=0.45, mew=0)
        # Side by side, so that equal shares do not hide each other.
        shifted = np.array(rates) * 1.12 ** (number - 1)
        share.plot(shifted, [experiment.fraction_diverged(variant, r) for r in rates], **look)
    guess = np.log(10)
    loss.axhline(guess, color=RULE, lw=1, zorder=0)
    note_at(loss, "guessing", (rates[0], guess), (0, 3), fontsize=8.5, color=MUTED)
    for axes in (loss, logit):
        axes.set_yscale("log")
    for axes in (loss, share, logit):
        axes.set(xscale="log", xlabel="learning rate")
    share.set_ylim(-0.05, 1.05)
    share.yaxis.set_major_formatter(lambda value, _: f"{value:.0%}")
    loss.legend(loc="lower right")
    heading(loss, "Training loss", "At the end.", characters=40, lines=1)
    heading(share, "Runs that diverged", "Ended no better than guessing.", lines=1)
    heading(logit, "Largest attention logit", "In any block, during training.", lines=1)
    return figure
