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

from isthmus.dynamics.retrieve import retrieve
from isthmus.memories.base import GaussianMemory

__all__ = ["SAME_POINT", "Modes", "find_modes", "shared_fixed_points"]

FloatArray = NDArray[np.float64]
# Fixed points closer than this share of sigma are one.
SAME_POINT = 0.02
# Starts closer than this share of sigma are moved as one; looked for after so many updates.
JOINED, LEG = 1e-3, 6


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

    A start rests when an update moves it by no more than the share `tol` of sigma. Those that
    have come within a thousandth of sigma of each other go on as one.
    """
    sigma = float(memory.sigma)
    state, follows = starts, np.arange(len(starts))
    rests = np.zeros(len(starts), dtype=bool)
    steps = 0
    while not rests.all() and steps < max_steps:
        leg = min(LEG, max_steps - steps)
        found = retrieve(memory, state[~torch.from_numpy(rests)], tol=tol * sigma, max_steps=leg)
        state = state.clone()
        state[~torch.from_numpy(rests)] = found.state.to(state.dtype)
        rests[~rests] = found.converged.numpy()
        steps += leg
        state, rests, follows = _joined(state, rests, follows, JOINED * sigma)
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
