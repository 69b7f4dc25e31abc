"""Figures of completed images, and the figure at the top of the README."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.energy import Energy
from isthmus.errors import ShapeError
from isthmus.figures.landscapes import (
    draw_density,
    draw_draws,
    draw_energy,
    draw_memories,
    draw_retrieval,
)
from isthmus.figures.style import (
    NOWHERE,
    PIXELS,
    RULE,
    WIDTH,
    heading,
    new_figure,
    styled,
    to_array,
)


@styled
def completion(
    originals: Any,
    masked: Any,
    completed: Any,
    shape: tuple[int, int],
    *,
    title: str = "",
) -> Figure:
    """Draw three rows of images: masked, completed, original.

    Parameters
    ----------
    originals, masked, completed : array or Tensor (M, D)
        Images as rows; NaN in `masked` is an unknown pixel, left blank and hatched.
    shape : (int, int)
        Height and width, with D = height * width.
    title : str
        A line above the images.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> images = torch.eye(4)
    >>> upper = torch.tensor([[0.9, 0.1, torch.nan, torch.nan]])
    >>> whole = ist.complete(ist.GaussianKDE(images, sigma=0.2), upper)
    >>> len(completion(images[:1], upper, whole, shape=(2, 2)).axes)
    3
    """
    given, returned, truth = (
        _as_images(images, name, shape)
        for images, name in ((masked, "masked"), (completed, "completed"), (originals, "originals"))
    )
    if not given.shape == returned.shape == truth.shape:
        raise ShapeError(
            f"originals {truth.shape}, masked {given.shape} and completed {returned.shape} "
            "must hold as many images."
        )
    count = given.shape[0]
    side = (WIDTH - 0.5) / count
    figure = new_figure(3 * side * shape[0] / shape[1] + 0.45 * bool(title), gap=0.0)
    grid = figure.subplots(3, count, squeeze=False)
    _draw_rows(grid, {"given": given, "returned": returned, "original": truth}, truth)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def _draw_rows(grid: NDArray[Any], rows: Mapping[str, NDArray[Any]], scale: NDArray[Any]) -> None:
    """Draw labelled rows of images (M, H, W), dark ink on paper; NaN is hatched.

    All have the range of values of the images `scale`.
    """
    limits = {"vmin": float(np.nanmin(scale)), "vmax": float(np.nanmax(scale))}
    for line, (label, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.set_facecolor(NOWHERE)
            axes.patch.set_hatch("/////")
            axes.imshow(np.ma.masked_invalid(image), PIXELS, interpolation="nearest", **limits)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=RULE)
        line[0].set_ylabel(label, fontsize=10.5)


def _as_images(images: Any, name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Return rows (M, D) as images (M, H, W)."""
    array = to_array(images)
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != shape[0] * shape[1]:
        raise ShapeError(
            f"{name} must be (M, {shape[0] * shape[1]}) for images of {shape[0]} by {shape[1]} "
            f"pixels, not {array.shape}."
        )
    return array.reshape(-1, *shape)


@styled
def hero(
    energy: Energy,
    memories: Any,
    queries: Any,
    draws: Any,
    masked: Any,
    completed: Any,
    shape: tuple[int, int],
) -> Figure:
    """Draw the valleys of an energy, its density, and completed images, side by side.

    Parameters
    ----------
    energy : Energy
        With two coordinates; drawn twice.
    memories : array or Tensor (N, 2)
    queries : array or Tensor (Q, 2)
        Where retrieval starts.
    draws : array or Tensor (n, 2)
        Draws from the energy.
    masked, completed : array or Tensor (M, D)
        Images as rows, before (NaN is unknown) and after.
    shape : (int, int)
        Height and width of an image.
    """
    marks, starts, drawn = (
        to_array(energy.as_input(value)) for value in (memories, queries, draws)
    )
    given, returned = _as_images(masked, "masked", shape), _as_images(completed, "completed", shape)
    reach = 1.08 * float(np.abs(np.concatenate([marks, starts])).max())
    figure = new_figure(height=3.8)
    grid = figure.add_gridspec(1, 3, wspace=0.06)
    valleys, density = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    draw_energy(valleys, energy, reach)
    draw_memories(valleys, marks)
    draw_retrieval(valleys, energy, starts)
    draw_density(density, energy, -reach, reach)
    draw_draws(density, drawn)
    for axes in (valleys, density):
        axes.set(xticks=[], yticks=[], xlabel="x₁", ylabel="x₂", anchor="N")
        axes.spines[:].set_visible(True)
    cells = grid[2].subgridspec(2, len(given)).subplots(squeeze=False)
    _draw_rows(cells, {"half in": given, "whole out": returned}, returned)
    for row, anchor in enumerate("NS"):
        for axes in cells[row]:
            axes.set_anchor(anchor)
    for axes, title, note in (
        (valleys, "It remembers", "Queries fall into the valley of a memory."),
        (density, "It knows probabilities", "The same energy is a density; dots are draws."),
        (cells[0, 0], "It completes", "Half an image in, the whole out."),
    ):
        heading(axes, title, note, characters=60, lines=1)
    return figure
