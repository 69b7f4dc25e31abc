"""Modes of Gaussian memories, and the starts that reach each of them."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from isthmus.dynamics.attraction import Attractors, attractors, centred, homes_after_one_update
from isthmus.dynamics.retrieve import descend
from isthmus.errors import InvalidInputError
from isthmus.memories.base import GaussianMemory

FloatArray = NDArray[np.float64]
# Fixed points closer than this share of sigma count as one.
SAME_POINT = 0.02
# Starts closer than this share of sigma are moved together.
JOINED = 1e-3
# With at least this many starts, a random subset goes first.
MANY, PILOTS = 512, 64


class Modes(NamedTuple):
    """Fixed points in descending order of the number of starts that reach them."""

    fixed_points: FloatArray  # (B, D)
    labels: NDArray[np.int64]  # (N,): the fixed point that each start reaches
    converged: NDArray[np.bool_]  # (N,)
    steps: int  # updates of the slowest start


def find_modes(
    memory: GaussianMemory, starts: Tensor, *, tol: float = 1e-4, max_steps: int = 5000
) -> Modes:
    """Find the modes that starts (N, D) flow to on a memory.

    A start rests when an update moves it by no more than the share `tol` of sigma. If there are
    many, a random subset goes first; the others stop as soon as they enter a ball that one of
    the modes found is known to attract. Starts within a thousandth of sigma of each other
    continue as one. All of this happens in coordinates centred on the memories.
    """
    require_squares(memory.memories)
    memory, starts, centre = centred(memory, memory.as_input(starts))
    sigma = float(memory.sigma)
    balls = _balls_of_pilots(memory, starts, tol * sigma, max_steps)
    home = homes_after_one_update(memory, starts, balls)
    state = balls.placed(starts, home)
    rests, follows = (home >= 0).numpy(), np.arange(len(starts))
    steps, leg = 0, 1
    while not rests.all() and steps < max_steps:
        moving = torch.from_numpy(~rests)
        limit = min(leg, max_steps - steps)
        found = descend(memory, state[moving], tol=tol * sigma, max_steps=limit)
        home = balls.holding(found.state)
        state[moving] = balls.placed(found.state, home)
        rests[~rests] = (found.resting | (home >= 0)).numpy()
        state, rests, follows = _joined(state, rests, follows, JOINED * sigma)
        steps, leg = steps + int(found.steps.max()), 2 * leg
    ends = state.double().numpy()[follows]
    labels = shared_fixed_points(ends, SAME_POINT * sigma)
    order = np.argsort(-np.bincount(labels), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    labels = rank[labels]
    points = np.zeros((len(order), ends.shape[1]))
    np.add.at(points, labels, ends)
    points = points / np.bincount(labels)[:, None] + centre.numpy()
    return Modes(points, labels, rests[follows], steps)


def require_squares(points: Tensor) -> None:
    """Raise if squared distances of points (N, D) overflow or underflow in their dtype."""
    if points.numel() == 0:
        raise InvalidInputError(
            f"X is empty (shape {tuple(points.shape)}); pass at least one pattern."
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
    """Return balls about modes that at least two starts of a random subset flow to."""
    none = Attractors(starts[:0], starts.new_zeros(0))
    if len(starts) < MANY:
        return none
    chosen = np.random.RandomState(0).permutation(len(starts))[:PILOTS]
    found = descend(memory, starts[torch.from_numpy(chosen)], tol=tol, max_steps=max_steps)
    ends = found.state[found.resting]
    if not len(ends):
        return none
    labels = shared_fixed_points(ends.double().numpy(), SAME_POINT * float(memory.sigma))
    _, first, sizes = np.unique(labels, return_index=True, return_counts=True)
    return attractors(memory, ends[torch.from_numpy(first[sizes > 1])])


def _joined(
    state: Tensor, rests: NDArray[np.bool_], follows: NDArray[np.intp], radius: float
) -> tuple[Tensor, NDArray[np.bool_], NDArray[np.intp]]:
    """Keep one row for each cell of a grid; `follows` maps each start to its row."""
    _, first, inverse = np.unique(
        np.round(state.double().numpy() / radius), axis=0, return_index=True, return_inverse=True
    )
    return state[torch.from_numpy(first)], rests[first], inverse.reshape(-1)[follows]


def shared_fixed_points(points: FloatArray, radius: float) -> NDArray[np.int64]:
    """Give one label to points linked by a chain of distances up to `radius`. (N, D) -> (N,)"""
    cells, inverse = np.unique(np.round(points / radius), axis=0, return_inverse=True)
    inverse = inverse.reshape(-1)
    first = np.zeros(len(cells), dtype=np.intp)
    first[inverse[::-1]] = np.arange(len(points))[::-1]
    pairs = cKDTree(points[first]).query_pairs(2 * radius, output_type="ndarray")
    graph = coo_matrix((np.ones(len(pairs)), pairs.T), shape=(len(cells), len(cells)))
    _, labels = connected_components(graph, directed=False)
    return labels[inverse].astype(np.int64)
