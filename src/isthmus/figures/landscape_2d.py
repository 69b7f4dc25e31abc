"""Figures of energies and densities on a plane."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from numpy.typing import NDArray

from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.figures.style import (
    DEPTH,
    INK,
    MEMORY,
    MUTED,
    NOWHERE,
    PAPER,
    grid_points,
    heading,
    panels,
    styled,
    to_array,
    visible_range,
)

LEVELS = 14


@styled
def landscapes_2d(
    energies: Mapping[str, Energy],
    memories: Any,
    queries: Any,
    *,
    notes: Mapping[str, str] | None = None,
    resolution: int = 241,
) -> Figure:
    """Draw two-dimensional energies side by side, with the paths of retrieval.

    Dark is low. Each path goes from a query, through one bend for every update, to a full dot
    where it rests. Where an energy is infinite the panel is hatched, and a query there is a
    cross, for it cannot move.

    Parameters
    ----------
    energies : mapping of str to Energy
        A panel each, under its name. All with two coordinates.
    memories : array or Tensor (N, 2)
        Marked by orange diamonds.
    queries : array or Tensor (Q, 2)
        Where retrieval starts, such as :func:`ring`.
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
    >>> memories = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    >>> energies = {str(s): ist.GaussianKDE(memories, sigma=s) for s in (0.5, 1.0, 2.0)}
    >>> len(landscapes_2d(energies, memories, ring(8, radius=2.0), resolution=21).axes)
    3
    """
    if not energies:
        raise InvalidInputError("energies is empty; pass at least one to draw.")
    first = next(iter(energies.values()))
    marks, starts = (to_array(first.as_input(points)) for points in (memories, queries))
    reach = 1.08 * float(np.abs(np.concatenate([marks, starts])).max())
    figure, grid = panels(len(energies), columns=3, panel_height=3.7, sharex=True, sharey=True)
    for axes, (name, energy) in zip(grid, energies.items(), strict=True):
        draw_energy(axes, energy, reach, resolution)
        draw_memories(axes, marks)
        draw_retrieval(axes, energy, starts)
        axes.set(xlabel="x₁", ylabel="x₂")
        axes.label_outer()
        heading(axes, name, (notes or {}).get(name, ""))
    return figure


def ring(count: int, radius: float, turn: float = 0.0) -> NDArray[Any]:
    """Return evenly spaced points on a circle about the origin: (count, 2)."""
    angles = 2 * np.pi * (np.arange(count) + turn) / count
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def draw_energy(axes: Axes, energy: Energy, reach: float, resolution: int = 241) -> None:
    """Fill the square [-reach, reach]^2 with the energy's contours, low dark."""
    x, y, points = grid_points(np.full(2, -reach), np.full(2, reach), resolution)
    height = to_array(energy.energy(points))
    finite = np.isfinite(height)
    levels = np.linspace(*visible_range(height, 0.93), LEVELS)
    clipped = np.ma.masked_where(~finite, np.clip(height, levels[0], levels[-1]))
    if not finite.all():
        axes.set_facecolor(NOWHERE)
        axes.patch.set_hatch("////")
    axes.contourf(x, y, clipped, levels, cmap=DEPTH.reversed())
    axes.set(xlim=(-reach, reach), ylim=(-reach, reach), aspect="equal")
    axes.locator_params(nbins=5)


def draw_memories(axes: Axes, memories: NDArray[Any], size: float = 7) -> None:
    """Mark memories (N, 2) by orange diamonds."""
    axes.plot(
        memories[:, 0], memories[:, 1], "D", color=MEMORY, ms=size, mec=PAPER, mew=0.9, zorder=6
    )


def draw_retrieval(axes: Axes, energy: Energy, queries: NDArray[Any]) -> None:
    """Draw the path of each query (Q, 2) to its resting place."""
    found = retrieve(energy, queries, trace=True)
    assert found.trace is not None
    paths = to_array(found.trace).swapaxes(0, 1)  # (Q, T + 1, 2)
    moves = np.isfinite(to_array(found.energy))
    ends = to_array(found.state)[moves]
    axes.add_collection(LineCollection(list(paths[moves]), colors=INK, linewidths=0.9, zorder=3))
    starts, stuck = queries[moves], queries[~moves]
    axes.plot(starts[:, 0], starts[:, 1], "o", ms=3.6, mfc=PAPER, mec=INK, mew=0.8, zorder=4)
    axes.plot(stuck[:, 0], stuck[:, 1], "x", color=MUTED, ms=5, mew=1.4, zorder=4)
    axes.plot(ends[:, 0], ends[:, 1], "o", ms=5, color=INK, mec=PAPER, mew=0.6, zorder=7)


# Even steps of the square root show both flanks and peaks; below 1 % is white.
DENSITY_LEVELS = np.linspace(0.1, 1.0, 10) ** 2


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
    axes.contourf(x, y, density, DENSITY_LEVELS, cmap=DEPTH)
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
