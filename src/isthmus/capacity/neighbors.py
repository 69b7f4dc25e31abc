"""Exact nearest neighbours of every pattern among all others, in memory linear in N."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.neighbors import NearestNeighbors

__all__ = ["Neighbors", "nearest_neighbors"]

FloatArray = NDArray[np.float64]
UNIT_ROUNDOFF = 2.0**-53
# Float64 numbers of one block of differences between patterns: 32 MiB.
BLOCK_ENTRIES = 2**22


@dataclass(frozen=True)
class Neighbors:
    """The k nearest other patterns of each pattern.

    Attributes
    ----------
    distances : ndarray (N, k)
        In ascending order.
    index : ndarray (N, k)
    beyond : ndarray (N,)
        A lower bound on the distance of all patterns that are not listed, rounding included;
        ``inf`` where every other pattern is listed.
    """

    distances: FloatArray
    index: NDArray[np.int64]
    beyond: FloatArray


def nearest_neighbors(patterns: FloatArray, k: int) -> Neighbors:
    """Find the k nearest other patterns of each of the patterns (N, D).

    The search expands squares, which loses digits. Distances are therefore computed again from
    differences, and ``beyond`` allows for the loss.
    """
    n, dim = patterns.shape
    k = min(k, n - 1)
    if k == 0:
        empty = np.zeros((n, 0))
        return Neighbors(empty, empty.astype(np.int64), np.full(n, np.inf))
    centred = patterns - patterns.mean(0)
    scale = float(np.abs(centred).max()) or 1.0
    centred /= scale
    searched, index = NearestNeighbors(algorithm="brute").fit(centred).kneighbors(centred, k + 1)
    # Leave out the pattern itself, or the last one where duplicates displaced it.
    left_out = index == np.arange(n)[:, None]
    left_out[~left_out.any(1), -1] = True
    index, searched = index[~left_out].reshape(n, k), searched[~left_out].reshape(n, k)
    distances = np.empty((n, k))
    size = max(1, BLOCK_ENTRIES // (k * dim))
    for start in range(0, n, size):
        rows = slice(start, start + size)
        apart = patterns[index[rows]] - patterns[rows, None]
        distances[rows] = np.sqrt(np.einsum("rkd,rkd->rk", apart, apart))
    order = np.argsort(distances, axis=1, kind="stable")
    index, distances = (np.take_along_axis(each, order, 1) for each in (index, distances))
    if k == n - 1:
        return Neighbors(distances, index, np.full(n, np.inf))
    slack = 16 * (dim + 8) * UNIT_ROUNDOFF * float(np.square(centred).sum(1).max())
    edge = np.sqrt(np.maximum(searched[:, -1] ** 2 * (1 - 1e-12) - slack, 0.0)) * scale
    return Neighbors(distances, index, np.minimum(edge, distances[:, -1]))
