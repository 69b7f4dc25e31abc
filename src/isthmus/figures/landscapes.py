"""Figures of energies on a line or a plane, with retrieval and draws; and of completed images."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.collections import LineCollection
from matplotlib.figure import Figure
from matplotlib.patches import FancyArrowPatch
from matplotlib.path import Path
from matplotlib.ticker import MaxNLocator
from numpy.typing import NDArray

from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError, UnknownNormalizerError
from isthmus.figures.style import (
    CURVE,
    DEPTH,
    INK,
    MEMORY,
    MUTED,
    NOWHERE,
    PAPER,
    PIXELS,
    RULE,
    WIDTH,
    grid_points,
    heading,
    label_plane,
    limits_of,
    new_figure,
    panels,
    styled,
    to_array,
    visible_range,
)

QUERIES = 9
LEVELS = 14
# Even steps of the square root show both flanks and peaks; below 1 % is white.
DENSITY_LEVELS = np.linspace(0.1, 1.0, 10) ** 2


@styled
def landscapes_1d(
    energies: Mapping[str, Energy],
    memories: Any,
    queries: Any = None,
    *,
    notes: Mapping[str, str] | None = None,
    resolution: int = 1201,
) -> Figure:
    """Draw one-dimensional energies side by side, with retrieval.

    Hollow dots are queries, full dots the places where they come to rest. Where an energy is
    infinite the panel is hatched, and a query there is a cross, for it cannot move.

    Parameters
    ----------
    energies : mapping of str to Energy
        A panel each, under its name. All with one coordinate.
    memories : array or Tensor (N, 1)
        Marked by orange triangles.
    queries : array or Tensor (Q, 1), optional
        Where retrieval starts. Default: evenly spaced.
    notes : mapping of str to str, optional
        A caption for each panel, of one or two lines.
    resolution : int
        Points of each curve.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[-1.0], [1.0]])
    >>> figure = landscapes_1d({"KDE": ist.GaussianKDE(memories, sigma=0.5)}, memories)
    >>> figure.axes[0].get_ylabel()
    'energy (nats)'
    """
    marks = _as_points(energies, memories).reshape(-1)
    if queries is None:
        queries = np.linspace(*limits_of(marks, 0.22), QUERIES + 2)[1:-1, None]
    figure, grid = panels(len(energies), columns=3, panel_height=2.9)
    for axes, (name, energy) in zip(grid, energies.items(), strict=True):
        draw_landscape(axes, energy, marks, queries, resolution=resolution)
        axes.set(xlabel="x", ylabel=energy_label(energy))
        heading(axes, name, (notes or {}).get(name, ""))
    figure.align_ylabels()
    return figure


def _as_points(energies: Mapping[str, Energy], points: Any) -> NDArray[Any]:
    if not energies:
        raise InvalidInputError("energies is empty; pass at least one to draw.")
    return to_array(next(iter(energies.values())).as_input(points))


def energy_label(energy: Energy) -> str:
    """Return the label of the energy axis, in nats if the energy is -log p up to a constant."""
    try:
        energy.log_normalizer()
    except UnknownNormalizerError:
        return "energy"
    return "energy (nats)" if float(energy.inverse_temperature) == 1 else "energy"


def draw_landscape(
    axes: Axes,
    energy: Energy,
    memories: Any,
    queries: Any,
    *,
    window: Any = None,
    resolution: int = 1201,
) -> None:
    """Draw an energy on a line, with memories (N, 1) queries (Q, 1), about `window` (M, 1)."""
    marks = to_array(memories).reshape(-1)
    limits = limits_of(marks if window is None else to_array(window).reshape(-1), 0.22)
    _draw_curve(axes, energy, np.linspace(*limits, resolution))
    edge = axes.get_xaxis_transform()
    axes.vlines(marks, 0, 1, transform=edge, color=MEMORY, alpha=0.3, lw=0.8)
    heights = np.full_like(marks, 0.035)
    axes.plot(marks, heights, "^", transform=edge, color=MEMORY, ms=7, mec=PAPER, mew=0.6, zorder=5)
    if queries is not None:
        _draw_line_retrieval(axes, energy, queries)
    axes.set_xlim(*limits)


def _energies(energy: Energy, positions: NDArray[Any]) -> NDArray[Any]:
    return to_array(energy.energy(positions[:, None]))


def _draw_curve(axes: Axes, energy: Energy, positions: NDArray[Any]) -> None:
    height = _energies(energy, positions)
    finite = np.isfinite(height)
    # Towards an edge of the support the energy has no bound: the curve may leave the panel.
    low, high = visible_range(height, 1.0 if finite.all() else 0.95)
    axes.set_ylim(low - 0.16 * (high - low), high + 0.1 * (high - low))
    axes.yaxis.set_major_locator(MaxNLocator(4))
    axes.xaxis.set_major_locator(MaxNLocator(5, integer=True))
    axes.plot(positions, np.where(finite, height, np.nan), color=CURVE, linewidth=1.6, zorder=2)
    look: dict[str, Any] = {"facecolor": NOWHERE, "edgecolor": RULE, "hatch": "////", "lw": 0}
    axes.fill_between(positions, *axes.get_ylim(), where=~finite, zorder=0, **look)


def _draw_line_retrieval(axes: Axes, energy: Energy, queries: Any) -> None:
    """Draw queries, an arrow along the curve from each, and full dots where they come to rest."""
    found = retrieve(energy, queries)
    starts = to_array(energy.as_input(queries)).reshape(-1)
    ends, heights = to_array(found.state).reshape(-1), to_array(found.energy)
    stuck = ~np.isfinite(heights)
    width = np.ptp(axes.dataLim.intervalx)
    # The head is half-way, where the dot at the end does not hide it.
    head = "-|>,head_length=5.5,head_width=2.8"
    look: dict[str, Any] = {"color": INK, "linewidth": 0, "shrinkA": 0, "shrinkB": 0, "zorder": 3}
    for start, end in zip(starts[~stuck], ends[~stuck], strict=True):
        if abs(end - start) >= 0.01 * width:
            along = np.linspace(start, end, 61)
            vertices = np.column_stack([along, _energies(energy, along)])
            axes.plot(*vertices.T, color=INK, linewidth=1.7, zorder=3)
            axes.add_patch(FancyArrowPatch(path=Path(vertices[:36]), arrowstyle=head, **look))
    begin = _energies(energy, starts)
    axes.plot(starts[~stuck], begin[~stuck], "o", ms=5, mfc=PAPER, mec=INK, mew=1.1, zorder=4)
    axes.plot(ends[~stuck], heights[~stuck], "o", ms=6, color=INK, zorder=5)
    crosses, edge = np.full(int(stuck.sum()), 0.5), axes.get_xaxis_transform()
    axes.plot(starts[stuck], crosses, "x", transform=edge, color=MUTED, ms=6, mew=1.6, zorder=5)


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
        Where retrieval starts.
    notes, resolution
        As in :func:`landscapes_1d`, with grid points along each axis.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[-1.0, 0.0], [1.0, 0.0]])
    >>> energies = {str(s): ist.GaussianKDE(memories, sigma=s) for s in (0.5, 1.0, 2.0)}
    >>> len(landscapes_2d(energies, memories, 2 * torch.eye(2), resolution=21).axes)
    3
    """
    marks, starts = _as_points(energies, memories), _as_points(energies, queries)
    reach = 1.08 * float(np.abs(np.concatenate([marks, starts])).max())
    figure, grid = panels(len(energies), columns=3, panel_height=3.7, sharex=True, sharey=True)
    for axes, (name, energy) in zip(grid, energies.items(), strict=True):
        draw_energy(axes, energy, reach, resolution)
        draw_memories(axes, marks)
        draw_retrieval(axes, energy, starts)
        label_plane(axes)
        heading(axes, name, (notes or {}).get(name, ""))
    return figure


def ring(count: int, radius: float, turn: float = 0.0) -> NDArray[Any]:
    """Return evenly spaced points on a circle about the origin: (count, 2)."""
    angles = 2 * np.pi * (np.arange(count) + turn) / count
    return radius * np.column_stack([np.cos(angles), np.sin(angles)])


def draw_energy(axes: Axes, energy: Energy, reach: Any, resolution: int = 241) -> None:
    """Fill the square [-reach, reach]^2, or a box of two corners, with contours, low dark."""
    lower, upper = reach if isinstance(reach, tuple) else (-reach, reach)
    x, y, points = grid_points(lower, upper, resolution)
    height = to_array(energy.energy(points))
    finite = np.isfinite(height)
    levels = np.linspace(*visible_range(height, 0.93), LEVELS)
    clipped = np.ma.masked_where(~finite, np.clip(height, levels[0], levels[-1]))
    if not finite.all():
        axes.set_facecolor(NOWHERE)
        axes.patch.set_hatch("////")
    axes.contourf(x, y, clipped, levels, cmap=DEPTH.reversed())
    axes.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()), aspect="equal")
    axes.locator_params(nbins=5)


def draw_memories(axes: Axes, memories: NDArray[Any], size: float = 7) -> None:
    """Mark memories (N, 2) by orange diamonds."""
    axes.plot(*memories.T, "D", color=MEMORY, ms=size, mec=PAPER, mew=0.9, zorder=6)


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
    notes, resolution
        As in :func:`landscapes_2d`.

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
    lower, upper = limits_of(np.concatenate(list(draws.values())), 0.05)
    height = 2.2 * (upper[1] - lower[1]) / (upper[0] - lower[0]) + 1.25
    figure, grid = panels(len(draws), columns=4, panel_height=height, sharex=True, sharey=True)
    for axes, (name, points) in zip(grid, draws.items(), strict=True):
        draw_density(axes, energy, lower, upper, resolution)
        draw_draws(axes, points)
        axes.set(xlabel="x₁", ylabel="x₂" if axes is grid[0] else "")
        heading(axes, name, (notes or {}).get(name, ""), characters=31)
    return figure


def draw_density(axes: Axes, energy: Energy, lower: Any, upper: Any, resolution: int = 201) -> None:
    """Fill the box between two corners with contours of exp(-beta E), high dark."""
    x, y, points = grid_points(lower, upper, resolution)
    log_density = -float(energy.inverse_temperature) * to_array(energy.energy(points))
    density = np.exp(log_density - log_density.max())
    axes.contourf(x, y, density, DENSITY_LEVELS, cmap=DEPTH)
    axes.set(xlim=(x.min(), x.max()), ylim=(y.min(), y.max()), aspect="equal")
    axes.locator_params(nbins=5)


def draw_draws(axes: Axes, draws: NDArray[Any], size: float = 2.0) -> None:
    """Draw points (n, 2) as small dots."""
    axes.plot(*draws.T, "o", color=INK, ms=size, mec=PAPER, mew=0, alpha=0.55, zorder=3)


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
    parts = {"masked": masked, "completed": completed, "originals": originals}
    given, returned, truth = (_as_images(each, name, shape) for name, each in parts.items())
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
    """Draw labelled rows of images (M, H, W), dark is high in `scale`; NaN is hatched."""
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
    memories, queries, draws : array or Tensor (N, 2), (Q, 2), (n, 2)
        The queries are where retrieval starts; the draws are from the energy.
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
