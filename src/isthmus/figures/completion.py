"""Figure of completed images."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.errors import ShapeError
from isthmus.figures.style import NOWHERE, PIXELS, RULE, WIDTH, new_figure, styled, to_array

__all__ = ["as_images", "completion", "draw_image"]

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
