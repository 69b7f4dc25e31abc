"""Figure of the draws of several samplers on their target density."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.figures.style import DEPTH, INK, PAPER, grid_points, heading, panels, styled, to_array

__all__ = ["draw_density", "draw_draws", "samples_against_density"]

# Even steps of the square root show both flanks and peaks; below 1 % is white.
LEVELS = np.linspace(0.1, 1.0, 10) ** 2


@styled
def samples_against_density(
    energy: Energy,
    draws_by_name: Mapping[str, Any],
    *,
    notes: Mapping[str, str] | None = None,
    resolution: int = 201,
) -> Figure:
    """Draw the density of an energy with each set of draws on top.

    Parameters
    ----------
    energy : Energy
        With two coordinates. Its density is needed up to a factor only.
    draws_by_name : mapping of str to array or Tensor (n, 2)
    notes : mapping of str to str, optional
        A caption for each panel, of one or two lines.
    resolution : int
        Grid points along each axis.

    Returns
    -------
    Figure

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> energy = ist.GaussianKDE(torch.tensor([[0.0, 0.0], [2.0, 1.0]]), sigma=0.5)
    >>> figure = samples_against_density(energy, {"Exact": energy.sample(100)}, resolution=21)
    >>> figure.axes[0].get_title(loc="left")
    'Exact'
    """
    if not draws_by_name:
        raise InvalidInputError("draws_by_name is empty; pass at least one set of draws.")
    draws = {name: to_array(energy.as_input(value)) for name, value in draws_by_name.items()}
    window = _window(np.concatenate(list(draws.values())))
    lower, upper = window
    ratio = (upper[1] - lower[1]) / (upper[0] - lower[0])
    figure, grid = panels(
        len(draws), columns=4, panel_height=2.2 * ratio + 1.25, sharex=True, sharey=True
    )
    for axes, (name, points) in zip(grid, draws.items(), strict=True):
        draw_density(axes, energy, window, resolution)
        draw_draws(axes, points)
        axes.set_xlabel("x₁")
        axes.set_ylabel("x₂" if axes is grid[0] else "")
        heading(axes, name, (notes or {}).get(name, ""), characters=31)
    return figure


def draw_density(
    axes: Axes, energy: Energy, window: tuple[NDArray[Any], NDArray[Any]], resolution: int = 201
) -> None:
    """Fill the window with contours of exp(-beta E), high dark."""
    lower, upper = window
    x, y, points = grid_points(lower, upper, resolution)
    log_density = to_array(-energy.inverse_temperature * energy.energy(points))
    density = np.exp(log_density - log_density.max())
    axes.contourf(x, y, density, LEVELS, cmap=DEPTH)
    axes.set(xlim=(lower[0], upper[0]), ylim=(lower[1], upper[1]), aspect="equal")
    axes.locator_params(nbins=5)


def draw_draws(axes: Axes, draws: NDArray[Any], size: float = 2.0) -> None:
    """Draw points (n, 2) as small dots."""
    axes.plot(
        draws[:, 0], draws[:, 1], "o", color=INK, ms=size, mec=PAPER, mew=0, alpha=0.55, zorder=3
    )


def _window(points: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    lower, upper = points.min(0), points.max(0)
    margin = 0.05 * (upper - lower).clip(min=1e-9)
    return lower - margin, upper + margin
