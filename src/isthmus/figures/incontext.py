"""Figures of in-context energies: landscapes for growing contexts, samples, likelihoods."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.contour import ContourSet
from matplotlib.figure import Figure
from numpy.typing import NDArray
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.figures import style
from isthmus.figures.landscapes import draw_draws
from isthmus.figures.style import CURVE, MUTED, PAPER, grid_points, styled, to_array
from isthmus.incontext.evaluation import Evaluation
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.priors import MixtureTasks
from isthmus.incontext.sampling import box_scaling
from isthmus.scaling import Scaling
from isthmus.validation import as_count, as_names, as_points, as_seed

# Energies are shown up to this many nats above the lowest.
DEPTH_IN_NATS = 6.5
LEVELS = 14


@styled
def context_landscapes(
    model: ICLEBM,
    tasks: MixtureTasks | Any,
    contexts: Sequence[int] = (0, 2, 8, 32),
    *,
    seed: int = 0,
    resolution: int = 81,
    columns: Sequence[str] = ("x₁", "x₂"),
) -> Figure:
    """Draw in-context energies for growing contexts, as in the paper's figure.

    A row for each task, a column for each context size, and the true density at the end. What is
    coloured is -log p, normalised on the drawn square and on one scale per row, dark where it is
    low. Orange dots are the context.

    Parameters
    ----------
    model : ICLEBM
        With two coordinates.
    tasks : MixtureTasks, or array (B, n, 2)
        Densities, such as ``prior("compact").draw(3, generator)``; or datasets, whose points are
        added to the context in order, in any units.
    contexts : sequence of int
        Context sizes. Each context is the beginning of the next.
    seed : int
        Of the contexts that are drawn from tasks.
    resolution : int
        Grid points along each axis.
    columns : sequence of str
        Names of the coordinates.
    """
    names = as_names(columns, "columns")
    if len(names) != 2:
        raise ShapeError(f"columns must be 2 names, not {len(names)}.")
    sizes = sorted({as_count(size, "contexts", at_least=0) for size in contexts})
    if not sizes:
        raise InvalidInputError("contexts is empty; name at least one context size, such as 0.")
    scaling = Scaling(np.zeros(2), np.ones(2))
    if isinstance(tasks, MixtureTasks):
        sequences = tasks.sample(sizes[-1], torch.Generator().manual_seed(as_seed(seed)))
    else:
        sequences = as_points(tasks, "tasks", dim=model.dim)
        if sequences.ndim != 3 or not len(sequences) or sequences.shape[1] < sizes[-1]:
            wanted, shape = f"(B, n, 2) with n >= {sizes[-1]}", tuple(sequences.shape)
            raise ShapeError(f"tasks must be datasets {wanted}, not {shape}.")
        scaling = box_scaling(model, sequences.flatten(0, 1))
        sequences = torch.from_numpy(scaling.into(to_array(sequences)))
    reach = _reach(model, sequences)
    points = grid_points(-reach, reach, resolution)[2]
    titles = [f"n = {size}" for size in sizes] + ["truth"] * isinstance(tasks, MixtureTasks)
    rows, width = len(sequences), len(titles)
    figure = style.new_figure(0.75 + rows * 9.2 / width, gap=0.01)
    grid = figure.subplots(rows, width, squeeze=False, sharex=True, sharey=True)
    for row, (sequence, line) in enumerate(zip(sequences, grid, strict=True)):
        surfaces = [_surprise(model.condition(sequence[:n]), points, reach) for n in sizes]
        if isinstance(tasks, MixtureTasks):
            surfaces.append(_true_surprise(tasks[row], points))
        surfaces = [surface + np.log(scaling.scale).sum() for surface in surfaces]
        filled = _fill(line, scaling.back(points), surfaces)
        for axes, size in zip(line, sizes, strict=False):
            _draw_context(axes, scaling.back(to_array(sequence[:size])))
        bar = figure.colorbar(filled, ax=line.tolist(), pad=0.01, aspect=14, shrink=0.85)
        bar.set_label("−log p (nats)" if row == rows // 2 else "")
        bar.outline.set_visible(False)
        levels = list(filled.levels)
        bar.set_ticks(list(np.arange(np.ceil(levels[0]), levels[-1], 2)))
    for axes, title in zip(grid[0], titles, strict=True):
        axes.set_title(title)
    _outer_labels(grid, reach, scaling, names)
    return figure


@styled
def context_samples(
    model: ICLEBM, contexts: Tensor, rows: Mapping[str, tuple[str, Tensor]], resolution: int
) -> Figure:
    """Draw points over the densities that contexts (B, n, 2) make, in a column for each context.

    Each row of panels has a title, a note, and points for every context (B, m, 2).
    """
    reach = 1.1 * max(
        _reach(model, contexts), *(float(each.abs().max()) for _, each in rows.values())
    )
    points = grid_points(-reach, reach, resolution)[2]
    figure = style.new_figure(1.0 + len(rows) * 9.2 / max(len(contexts), 3), gap=0.01)
    grid = figure.subplots(len(rows), len(contexts), squeeze=False, sharex=True, sharey=True)
    for place, column in enumerate(grid.T):
        surface = _surprise(model.condition(contexts[place]), points, reach)
        _fill(column, points, [surface] * len(rows))
        for axes, (_, each) in zip(column, rows.values(), strict=True):
            draw_draws(axes, to_array(each[place]), size=2.6)
            _draw_context(axes, to_array(contexts[place]))
    for axes, (title, (note, _)) in zip(grid[:, 0], rows.items(), strict=True):
        style.heading(axes, title, note, lines=1)
    _outer_labels(grid, reach)
    return figure


def _reach(model: ICLEBM, sequences: Tensor) -> float:
    """Return half the width of the plane that is drawn, which model and tasks must have."""
    if not model.dim == sequences.shape[-1] == 2:
        raise ShapeError("Only planes can be drawn: the model and tasks must have 2 coordinates.")
    if model.config.box is not None:
        return model.config.box
    return 1.2 * float(sequences.abs().max()) if sequences.numel() else 5.0


@torch.no_grad()
def _surprise(energy: Energy, points: NDArray[Any], reach: float) -> NDArray[Any]:
    """Return -log p of points (R, R, 2), normalised on the square they cover."""
    x = energy.as_input(points)
    height = (energy.inverse_temperature * energy.energy(x)).double()
    cell = (2 * reach / (len(points) - 1)) ** 2
    return to_array(height + torch.logsumexp(-height.flatten(), 0) + np.log(cell))


def _true_surprise(task: MixtureTasks, points: NDArray[Any]) -> NDArray[Any]:
    flat = torch.from_numpy(points.reshape(1, -1, 2))
    return -to_array(task.to(torch.float64).log_prob(flat)).reshape(points.shape[:-1])


def _fill(
    row: Iterable[Axes], points: NDArray[Any], surfaces: Sequence[NDArray[Any]]
) -> ContourSet:
    """Fill panels with surfaces (R, R) on one scale, low dark, and return the last contours."""
    lowest = min(surface.min() for surface in surfaces)
    levels, shades = np.linspace(lowest, lowest + DEPTH_IN_NATS, LEVELS), style.DEPTH.reversed()
    x, y = np.moveaxis(points, -1, 0)
    for axes, surface in zip(row, surfaces, strict=True):
        filled = axes.contourf(x, y, surface.clip(max=levels[-1]), levels, cmap=shades)
    return filled


def _draw_context(axes: Axes, context: NDArray[Any]) -> None:
    """Mark the points in context, smaller the more there are."""
    size = 5.0 if len(context) <= 8 else 3.6
    axes.plot(*context.T, "o", color=style.MEMORY, ms=size, mec=PAPER, mew=0.5, zorder=5)


def _outer_labels(
    grid: NDArray[Any], reach: float, scaling: Scaling | None = None, *names: Sequence[str]
) -> None:
    corners = np.array([[-reach, -reach], [reach, reach]])
    (left, bottom), (right, top) = corners if scaling is None else scaling.back(corners)
    for axes in grid.flat:
        square = (right - left) / (top - bottom)
        axes.set(xlim=(left, right), ylim=(bottom, top), aspect=square)
        axes.locator_params(nbins=5, steps=[1, 2, 5, 10])
        style.label_plane(axes, *names)


# Colour, line, marker and name of each predictor, best first.
PREDICTORS = {
    "truth": (style.INK, "--", "", "true density"),
    "model": (CURVE, "-", "o", "in-context model"),
    "bayes": (style.GREEN, "--", "", "Bayes predictive (best possible)"),
    "em-0.1": (style.SKY, ":", "D", "EM, regularised 0.1"),
    "em-0.001": (style.YELLOW, "-.", "d", "EM, regularised 0.001"),
    "kde-best": (style.MEMORY, "-", "^", "KDE, best bandwidth"),
    "kde-silverman": (style.PURPLE, "-", "v", "KDE, Silverman"),
}


@styled
def nll_against_context(evaluation: Evaluation) -> Figure:
    """Draw the negative log-likelihood against the size of the context, with all references.

    Left, means over tasks with standard errors; curves far above the model's leave the panel.
    Right, what the model loses to the Bayes predictive, paired over tasks, where the evaluation has
    it; else its divergence from the true density.
    """
    figure = style.new_figure(4.6)
    left, right = figure.subplots(1, 2, width_ratios=(1.7, 1))
    sizes = np.array(evaluation.contexts)
    for name in sorted(evaluation.nll, key=[*PREDICTORS, *evaluation.nll].index):
        colour, line, marker, label = PREDICTORS.get(name, (MUTED, "-", ".", name))
        error = None if name == "truth" else np.nan_to_num(evaluation.standard_error(name))
        # Bayes lies on the model, or nearly: dashes on a broad line show both.
        width, order = {"model": (4.2, 4), "bayes": (2.0, 5)}.get(name, (1.4, 3))
        look: dict[str, Any] = {"color": colour, "ls": line, "marker": marker, "lw": width}
        look |= {"zorder": order, "ms": 5.5, "mec": PAPER, "mew": 0.6, "label": label}
        left.errorbar(sizes, evaluation.mean(name), error, **look)
    main = [evaluation.mean(name) for name in ("model", "truth", "bayes") if name in evaluation.nll]
    low, high = float(np.nanmin(main)), float(np.nanmax(main))
    span = max(high - low, 0.1)
    left.set(ylim=(low - 0.08 * span, high + 0.35 * span), ylabel="nats")
    # Beneath the curves, where they are high, and above the truth.
    left.legend(loc="lower left", bbox_to_anchor=(0.0, 0.11))
    note = f"Means over {evaluation.tasks} tasks, ± standard error."
    style.heading(left, "Negative log-likelihood of fresh points", note, characters=75, lines=1)
    mean, error = evaluation.kl.mean(1), evaluation.difference("truth")[1]
    title, note = "Divergence from the truth", "KL(truth, model), ± standard error."
    if "bayes" in evaluation.nll:
        mean, error = evaluation.difference("bayes")
        title, note = "Model above Bayes", "Paired over tasks, ± standard error."
    right.axhline(0, color=MUTED, lw=1)
    right.errorbar(sizes, mean, np.nan_to_num(error), color=CURVE, marker="o", lw=2.4)
    right.set_ylabel("nats")
    style.heading(right, title, note, characters=45, lines=1)
    for axes in (left, right):  # logarithmic from 1 on, with room for 0
        axes.set_xscale("symlog", base=2, linthresh=1, linscale=0.8)
        axes.set_xticks(list(sizes), [str(size) for size in sizes])
        axes.minorticks_off()
        axes.set(xlim=(-0.35, 1.25 * max(sizes) + 0.35), xlabel="points in context n")
    return figure
