"""Figures of energies on a line or a plane, with retrieval and draws; and of completed images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.figures import style
from isthmus.figures.style import INK, MEMORY, MUTED, PAPER, limits_of, styled, to_array

QUERIES, LEVELS = 9, 14
# Even steps of the square root show both flanks and peaks; below 1 % is white.
DENSITY_LEVELS = np.linspace(0.1, 1.0, 10) ** 2


@styled
def landscapes_1d(
    energies: Mapping[str, Energy],
    memories: Any,
    queries: Any = None,
    *,
    notes: Mapping[str, str] | None = None,
) -> Figure:
    """Draw one-dimensional energies side by side, with retrieval.

    Hollow dots are queries, full dots the places where they come to rest. Where an energy is
    infinite the panel is hatched, and a query there is a cross, for it cannot move.

    Parameters
    ----------
    energies : mapping of str to Energy
        A panel each, under its name.
    memories, queries : array or Tensor (N, 1), (Q, 1)
        Triangles, and the starts of retrieval; by default, these are evenly spaced.
    notes : mapping of str to str, optional
        A caption for each panel, of one or two lines.

    Examples
    --------
    >>> import isthmus as ist
    >>> figure = landscapes_1d({"KDE": ist.GaussianKDE([[-1.0], [1.0]], 0.5)}, [[-1.0], [1.0]])
    """
    marks = _as_points(energies, memories)
    if queries is None:
        queries = np.linspace(*limits_of(marks, 0.22), QUERIES + 2)[1:-1]
    figure, grid = style.panels(len(energies), columns=3, panel_height=2.9)
    for axes, (name, energy) in zip(grid, energies.items(), strict=True):
        draw_landscape(axes, energy, marks, queries)
        axes.set(xlabel="x", ylabel="energy")
        style.heading(axes, name, (notes or {}).get(name, ""))
    figure.align_ylabels()
    return figure


def _as_points(energies: Mapping[str, Energy], points: Any) -> NDArray[Any]:
    if not energies:
        raise InvalidInputError("energies is empty; pass at least one to draw.")
    return to_array(next(iter(energies.values())).as_input(points))


def draw_landscape(
    axes: Axes, energy: Energy, memories: Any, queries: Any, *, window: Any = None
) -> None:
    """Draw an energy on a line, with memories (N, 1) and queries (Q, 1), about `window` (M, 1)."""
    marks = to_array(memories).reshape(-1)
    limits = limits_of(marks if window is None else to_array(window).reshape(-1), 0.22)
    positions = np.linspace(*limits, 1201)
    height = to_array(energy.energy(positions[:, None]))
    finite = np.isfinite(height)
    # Towards an edge of the support the energy has no bound: the curve may leave the panel.
    low, high = style.visible_range(height, 1.0 if finite.all() else 0.95)
    axes.set_ylim(low - 0.16 * (high - low), high + 0.1 * (high - low))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.plot(positions, np.where(finite, height, np.nan), color=style.CURVE, lw=1.6, zorder=2)
    look: dict[str, Any] = {"facecolor": style.NOWHERE, "edgecolor": style.RULE, "hatch": "////"}
    axes.fill_between(positions, *axes.get_ylim(), where=~finite, zorder=0, lw=0, **look)
    edge = axes.get_xaxis_transform()
    axes.vlines(marks, 0, 1, transform=edge, color=MEMORY, alpha=0.3, lw=0.8)
    heights = np.full_like(marks, 0.035)
    axes.plot(marks, heights, "^", transform=edge, color=MEMORY, ms=7, mec=PAPER, mew=0.6, zorder=5)
    if queries is not None:
        _draw_line_retrieval(axes, energy, queries)
    axes.set_xlim(*limits)


def _draw_line_retrieval(axes: Axes, energy: Energy, queries: Any) -> None:
    """Draw queries, the way along the curve from each, and full dots where they come to rest."""
    found = retrieve(energy, queries)
    starts, ends = to_array(energy.as_input(queries)), to_array(found.state)
    moves = np.isfinite(to_array(found.energy))
    along = np.linspace(starts[moves], ends[moves], 61)  # (61, q, 1)
    height = to_array(energy.energy(along))
    axes.plot(along[..., 0], height, color=INK, lw=1.7, zorder=3)
    axes.plot(along[0, :, 0], height[0], "o", ms=5, mfc=PAPER, mec=INK, mew=1.1, zorder=4)
    axes.plot(along[-1, :, 0], height[-1], "o", ms=6, color=INK, zorder=5)
    middle, edge = np.full(int((~moves).sum()), 0.5), axes.get_xaxis_transform()
    look: dict[str, Any] = {"color": MUTED, "ms": 6, "mew": 1.6, "zorder": 5}
    axes.plot(starts[~moves, 0], middle, "x", transform=edge, **look)


@styled
def landscapes_2d(
    energies: Mapping[str, Energy],
    memories: Any,
    queries: Any,
    *,
    notes: Mapping[str, str] | None = None,
    resolution: int = 241,
) -> Figure:
    """Draw two-dimensional energies side by side, low dark, with the paths of retrieval.

    Each path goes from a query, through one bend for every update, to a full dot where it rests.

    Parameters
    ----------
    energies, notes
        As in :func:`landscapes_1d`.
    memories, queries : array or Tensor (N, 2), (Q, 2)
        Diamonds, and the starts of retrieval.
    resolution : int
        Grid points along each axis.

    Examples
    --------
    >>> import numpy as np, isthmus as ist
    >>> energies = {str(s): ist.GaussianKDE(np.eye(2), sigma=s) for s in (0.5, 1.0)}
    >>> figure = landscapes_2d(energies, np.eye(2), 2 * np.eye(2), resolution=21)
    """
    marks, starts = _as_points(energies, memories), _as_points(energies, queries)
    reach = 1.08 * float(np.abs(np.concatenate([marks, starts])).max())
    shared = {"sharex": True, "sharey": True}
    figure, grid = style.panels(len(energies), columns=3, panel_height=3.7, **shared)
    for axes, (name, energy) in zip(grid, energies.items(), strict=True):
        draw_energy(axes, energy, reach, resolution)
        draw_memories(axes, marks)
        draw_retrieval(axes, energy, starts)
        style.label_plane(axes)
        style.heading(axes, name, (notes or {}).get(name, ""))
    return figure


def ring(count: int, radius: float, turn: float = 0.0) -> NDArray[Any]:
    """Return evenly spaced points on a circle about the origin: (count, 2)."""
    angles = 2 * np.pi * (np.arange(count) + turn) / count
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def draw_energy(axes: Axes, energy: Energy, reach: Any, resolution: int = 241) -> None:
    """Fill the square [-reach, reach]^2, or a box of two corners, with contours, low dark."""
    x, y, points = _plane(axes, reach, resolution)
    height = to_array(energy.energy(points))
    finite = np.isfinite(height)
    levels = np.linspace(*style.visible_range(height, 0.93), LEVELS)
    clipped = np.ma.masked_where(~finite, np.clip(height, levels[0], levels[-1]))
    if not finite.all():
        axes.set_facecolor(style.NOWHERE)
        axes.patch.set_hatch("////")
    axes.contourf(x, y, clipped, levels, cmap=style.DEPTH.reversed())


def _plane(axes: Axes, reach: Any, resolution: int) -> tuple[NDArray[Any], ...]:
    """Set the limits of the axes and return a grid of points between them."""
    lower, upper = reach if isinstance(reach, tuple) else (-reach, reach)
    x, y, points = style.grid_points(lower, upper, resolution)
    axes.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()), aspect="equal")
    axes.locator_params(nbins=5)
    return x, y, points


def draw_memories(axes: Axes, memories: NDArray[Any], size: float = 7) -> None:
    """Mark memories (N, 2) by orange diamonds."""
    axes.plot(*memories.T, "D", color=MEMORY, ms=size, mec=PAPER, mew=0.9, zorder=6)


def draw_draws(axes: Axes, draws: NDArray[Any], size: float = 2.0) -> None:
    """Draw points (n, 2) as small dots."""
    axes.plot(*draws.T, "o", color=INK, ms=size, mec=PAPER, mew=0, alpha=0.55, zorder=3)


def paths_of(energy: Energy, queries: Any) -> tuple[NDArray[Any], NDArray[np.bool_]]:
    """Return the path (Q, T + 1, 2) of each query under retrieval, and whether it can move."""
    found = retrieve(energy, queries, trace=True)
    assert found.trace is not None
    return to_array(found.trace).swapaxes(0, 1), np.isfinite(to_array(found.energy))


def draw_retrieval(axes: Axes, energy: Energy, queries: NDArray[Any]) -> None:
    """Draw the path of each query (Q, 2) to its resting place."""
    paths, moves = paths_of(energy, queries)
    axes.add_collection(LineCollection(list(paths[moves]), colors=INK, linewidths=0.9, zorder=3))
    axes.plot(*queries[moves].T, "o", ms=3.6, mfc=PAPER, mec=INK, mew=0.8, zorder=4)
    axes.plot(*queries[~moves].T, "x", color=MUTED, ms=5, mew=1.4, zorder=4)
    axes.plot(*paths[moves, -1].T, "o", ms=5, color=INK, mec=PAPER, mew=0.6, zorder=7)


@styled
def completion(originals: Any, masked: Any, completed: Any, shape: tuple[int, int]) -> Figure:
    """Draw three rows of images: masked, completed, original.

    Parameters
    ----------
    originals, masked, completed : array or Tensor (M, D)
        Images as rows; NaN in `masked` is an unknown pixel, left blank and hatched.
    shape : (int, int)
        Height and width, with D = height * width.

    Examples
    --------
    >>> import numpy as np
    >>> figure = completion(np.eye(4), np.where(np.eye(4), np.nan, 0), np.eye(4), shape=(2, 2))
    """
    rows = {
        "given": _as_images(masked, "masked", shape),
        "returned": _as_images(completed, "completed", shape),
        "original": _as_images(originals, "originals", shape),
    }
    count, *others = {len(images) for images in rows.values()}
    if others:
        raise ShapeError("originals, masked and completed must hold as many images.")
    side = (style.WIDTH - 0.5) / count
    figure = style.new_figure(3 * side * shape[0] / shape[1], gap=0.0)
    _draw_images(figure.subplots(3, count, squeeze=False), rows)
    return figure


def _draw_images(grid: NDArray[Any], rows: Mapping[str, NDArray[Any]]) -> None:
    """Draw labelled rows of images (M, H, W), dark where the last row is high; NaN is hatched."""
    scale = [*rows.values()][-1]
    limits = {"vmin": float(np.nanmin(scale)), "vmax": float(np.nanmax(scale))}
    for line, (label, images) in zip(grid, rows.items(), strict=True):
        for axes, image in zip(line, images, strict=True):
            axes.set_facecolor(style.NOWHERE)
            axes.patch.set_hatch("/////")
            image = np.ma.masked_invalid(image)
            axes.imshow(image, style.PIXELS, interpolation="nearest", **limits)
            axes.set(xticks=[], yticks=[])
            axes.spines[:].set(visible=True, color=style.RULE)
        line[0].set_ylabel(label, fontsize=10.5)


def _as_images(images: Any, name: str, shape: tuple[int, int]) -> NDArray[Any]:
    """Return rows (M, D) as images (M, H, W)."""
    array, (height, width) = to_array(images), shape
    if array.ndim != 2 or array.shape[0] == 0 or array.shape[1] != height * width:
        size = f"(M, {height * width}) for images of {height} by {width} pixels"
        raise ShapeError(f"{name} must be {size}, not {array.shape}.")
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
        With two coordinates.
    memories, queries, draws : array or Tensor (N, 2), (Q, 2), (n, 2)
    masked, completed, shape
        As in :func:`completion`.
    """
    marks, starts, drawn = (to_array(energy.as_input(each)) for each in (memories, queries, draws))
    images = {
        "half in": _as_images(masked, "masked", shape),
        "whole out": _as_images(completed, "completed", shape),
    }
    reach = 1.08 * float(np.abs(np.concatenate([marks, starts])).max())
    figure = style.new_figure(height=3.8)
    grid = figure.add_gridspec(1, 3, wspace=0.06)
    valleys, density = figure.add_subplot(grid[0]), figure.add_subplot(grid[1])
    draw_energy(valleys, energy, reach)
    draw_memories(valleys, marks)
    draw_retrieval(valleys, energy, starts)
    x, y, points = _plane(density, reach, 201)
    heights = float(energy.inverse_temperature) * to_array(energy.energy(points))
    density.contourf(x, y, np.exp(heights.min() - heights), DENSITY_LEVELS, cmap=style.DEPTH)
    draw_draws(density, drawn)
    cells = grid[2].subgridspec(2, len(images["half in"])).subplots(squeeze=False)
    _draw_images(cells, images)
    for axes, title, note in (
        (valleys, "It remembers", "Queries fall into the valley of a memory."),
        (density, "It knows probabilities", "The same energy is a density; dots are draws."),
        (cells[0, 0], "It completes", "Half an image in, the whole out."),
    ):
        style.heading(axes, title, note, characters=60, lines=1)
    for axes in (valleys, density):
        axes.set(xticks=[], yticks=[], xlabel="x₁", ylabel="x₂", anchor="N")
    return figure
