"""Figures of completed images, and the figure at the top of the README."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.energy import Energy
from isthmus.errors import ShapeError
from isthmus.figures.landscape_2d import (
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

ROWS = ("given", "returned", "original")


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

    Returns
    -------
    Figure

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
        as_images(images, name, shape)
        for images, name in ((masked, "masked"), (completed, "completed"), (originals, "originals"))
    )
    if not given.shape == returned.shape == truth.shape:
        raise ShapeError(
            f"originals {truth.shape}, masked {given.shape} and completed {returned.shape} "
            "must hold as many images."
        )
    limits = float(np.nanmin(truth)), float(np.nanmax(truth))
    count = given.shape[0]
    side = (WIDTH - 0.5) / count
    figure = new_figure(3 * side * shape[0] / shape[1] + 0.45 * bool(title), gap=0.0)
    grid = figure.subplots(3, count, squeeze=False)
    for row, images in enumerate((given, returned, truth)):
        for axes, image in zip(grid[row], images, strict=True):
            draw_image(axes, image, limits)
        grid[row, 0].set_ylabel(ROWS[row], fontsize=10.5)
    if title:
        figure.suptitle(title, x=0.01, ha="left", fontsize=11.5, fontweight="bold")
    return figure


def draw_image(axes: Axes, image: NDArray[Any], limits: tuple[float, float]) -> None:
    """Draw one image (H, W), dark ink on paper; NaN is hatched."""
    axes.set_facecolor(NOWHERE)
    axes.patch.set_hatch("/////")
    axes.imshow(
        np.ma.masked_invalid(image),
        cmap=PIXELS,
        vmin=limits[0],
        vmax=limits[1],
        interpolation="nearest",
    )
    axes.set(xticks=[], yticks=[])
    axes.spines[:].set(visible=True, color=RULE)


def as_images(images: Any, name: str, shape: tuple[int, int]) -> NDArray[Any]:
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

    Returns
    -------
    Figure
    """
    points = (to_array(energy.as_input(value)) for value in (memories, queries, draws))
    marks, starts, drawn = points
    reach = 1.08 * float(np.abs(np.concatenate([marks, starts])).max())
    figure = new_figure(height=3.8)
    grid = figure.add_gridspec(1, 3, wspace=0.06)

    valleys = figure.add_subplot(grid[0])
    draw_energy(valleys, energy, reach)
    draw_memories(valleys, marks)
    draw_retrieval(valleys, energy, starts)
    _finish(valleys, "It remembers", "Queries fall into the valley of a memory.")

    density = figure.add_subplot(grid[1])
    window = np.full(2, -reach), np.full(2, reach)
    draw_density(density, energy, window)
    draw_draws(density, drawn)
    _finish(density, "It knows probabilities", "The same energy is a density; dots are draws.")

    images = [as_images(masked, "masked", shape), as_images(completed, "completed", shape)]
    cells = grid[2].subgridspec(2, len(images[0])).subplots(squeeze=False)
    _draw_completions(cells, *images)
    return figure


def _finish(axes: Axes, title: str, note: str) -> None:
    axes.set(xticks=[], yticks=[], xlabel="x₁", ylabel="x₂")
    axes.spines[:].set_visible(True)
    axes.set_anchor("N")
    heading(axes, title, note, characters=60, lines=1)


def _draw_completions(cells: NDArray[Any], given: NDArray[Any], returned: NDArray[Any]) -> None:
    """Draw images (M, H, W) in two rows of axes (2, M)."""
    limits = float(np.nanmin(returned)), float(np.nanmax(returned))
    for row, (label, images) in enumerate((("half in", given), ("whole out", returned))):
        for axes, image in zip(cells[row], images, strict=True):
            draw_image(axes, image, limits)
            axes.set_anchor("N" if row == 0 else "S")
        cells[row, 0].set_ylabel(label, fontsize=10.5)
    heading(cells[0, 0], "It completes", "Half an image in, the whole out.", characters=60, lines=1)
