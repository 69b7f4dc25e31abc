"""Which starts come to rest at the same point."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from isthmus.dynamics.attraction import Attractors, attractors, homes_after_one_update
from isthmus.dynamics.flow import flow
from isthmus.errors import InvalidInputError
from isthmus.memories.base import GaussianMemory

__all__ = ["SAME_POINT", "Modes", "find_modes", "require_squares", "shared_fixed_points"]

FloatArray = NDArray[np.float64]
# Fixed points closer than this share of sigma are one.
SAME_POINT = 0.02
# Starts closer than this share of sigma are moved as one.
JOINED = 1e-3
# From so many starts on, so many go first.
MANY, PILOTS = 512, 64


@dataclass(frozen=True)
class Modes:
    """Fixed points, those that most starts reach first.

    Attributes
    ----------
    fixed_points : ndarray (B, D)
    labels : ndarray (N,)
        Which of them each start reaches.
    converged : ndarray (N,) of bool
    steps : int
        How many updates the slowest start took.
    """

    fixed_points: FloatArray
    labels: NDArray[np.int64]
    converged: NDArray[np.bool_]
    steps: int


def find_modes(
    memory: GaussianMemory, starts: Tensor, *, tol: float = 1e-4, max_steps: int = 5000
) -> Modes:
    """Let starts flow on a memory and see which meet. starts: (N, D).

    A start rests when an update moves it by no more than the share `tol` of sigma. Where there
    are many, a few go first; the others need not go farther than into a ball that the modes of
    those are known to attract. Starts that have come within a thousandth of sigma of each other
    go on as one.
    """
    require_squares(memory.memories)
    sigma, starts = float(memory.sigma), memory.as_input(starts)
    balls = _balls_of_pilots(memory, starts, tol * sigma, max_steps)
    home = homes_after_one_update(memory, starts, balls)
    state = balls.placed(starts, home)
    rests, follows = (home >= 0).numpy(), np.arange(len(starts))
    steps, leg = 0, 1
    while not rests.all() and steps < max_steps:
        moving = torch.from_numpy(~rests)
        found = flow(memory, state[moving], tol=tol * sigma, max_steps=min(leg, max_steps - steps))
        home = balls.holding(found.state)
        state[moving] = balls.placed(found.state, home)
        rests[~rests] = (found.converged | (home >= 0)).numpy()
        state, rests, follows = _joined(state, rests, follows, JOINED * sigma)
        steps, leg = steps + found.steps, 2 * leg
    ends = state.double().numpy()[follows]
    labels = shared_fixed_points(ends, SAME_POINT * sigma)
    order = np.argsort(-np.bincount(labels), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    labels = rank[labels]
    points = np.zeros((len(order), ends.shape[1]))
    np.add.at(points, labels, ends)
    points /= np.bincount(labels)[:, None]
    return Modes(points, labels, rests[follows], steps)


def require_squares(points: Tensor) -> None:
    """Refuse points (N, D) whose squared distances are too large or too small for their dtype."""
    if points.numel() == 0:
        raise InvalidInputError(
            f"There are no patterns (shape {tuple(points.shape)}); pass at least one."
        )
    limits = torch.finfo(points.dtype)
    largest = float(points.abs().max())
    spread = float((points - points[0]).abs().max())
    too_large = not largest < 0.25 * (limits.max / points.shape[1]) ** 0.5
    if too_large or 0 < spread < limits.tiny**0.5:
        size = f"Coordinates of {largest:.3g}" if too_large else f"Differences of {spread:.3g}"
        raise InvalidInputError(
            f"{size} cannot be squared in {points.dtype}. Rescale the patterns and sigma alike."
        )


def _balls_of_pilots(
    memory: GaussianMemory, starts: Tensor, tol: float, max_steps: int
) -> Attractors:
    """Balls about the modes that several of a few starts, drawn at random, flow to."""
    none = Attractors(starts[:0], starts.new_zeros(0))
    if len(starts) < MANY:
        return none
    chosen = np.random.RandomState(0).permutation(len(starts))[:PILOTS]
    ends, rests, _ = flow(memory, starts[torch.from_numpy(chosen)], tol=tol, max_steps=max_steps)
    ends = ends[rests]
    if not len(ends):
        return none
    labels = shared_fixed_points(ends.double().numpy(), SAME_POINT * float(memory.sigma))
    _, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    return attractors(memory, ends[torch.from_numpy(first[sizes > 1])])


def _joined(
    state: Tensor, rests: NDArray[np.bool_], follows: NDArray[np.intp], radius: float
) -> tuple[Tensor, NDArray[np.bool_], NDArray[np.intp]]:
    """One row for all that are in the same cell of a grid; `follows` says where each start is."""
    _, first, inverse = np.unique(
        np.round(state.double().numpy() / radius), axis=0, return_index=True, return_inverse=True
    )
    return state[torch.from_numpy(first)], rests[first], inverse.reshape(-1)[follows]


def shared_fixed_points(points: FloatArray, radius: float) -> NDArray[np.int64]:
    """Label points so that those within `radius` of each other, or of a chain, are one. (N,)"""
    cells, inverse = np.unique(np.round(points / radius), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    first = np.zeros(len(cells), dtype=np.intp)
    first[inverse[::-1]] = np.arange(len(points))[::-1]
    pairs = cKDTree(points[first]).query_pairs(2 * radius, output_type="ndarray")
    graph = coo_matrix((np.ones(len(pairs)), pairs.T), shape=(len(cells), len(cells)))
    _, labels = connected_components(graph, directed=False)
    return labels[inverse].astype(np.int64)
