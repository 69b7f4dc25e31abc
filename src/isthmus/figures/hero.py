"""The figure at the top: one energy that remembers, knows probabilities and completes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.energy import Energy
from isthmus.figures.completion import as_images, draw_image
from isthmus.figures.landscape_2d import draw_energy, draw_memories, draw_retrieval
from isthmus.figures.sampling import draw_density, draw_draws
from isthmus.figures.style import heading, new_figure, styled, to_array

__all__ = ["hero"]


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
