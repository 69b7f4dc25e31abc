"""Exact nearest neighbours of every pattern among all others, in memory linear in N."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray

__all__ = ["Neighbors", "nearest_neighbors"]

FloatArray = NDArray[np.float64]
SingleArray = NDArray[np.float32]
IndexArray = NDArray[np.int64]

# Rows and columns of one block of squared distances: 8 MiB in float32, which caches hold.
ROW_BLOCK, COLUMN_BLOCK = 512, 4096
# Columns that a row's threshold is guessed from.
PROBE = 4096


@dataclass(frozen=True)
class Neighbors:
    """The k nearest other patterns of each pattern.

    Attributes
    ----------
    distances : ndarray (N, k) float64
        In ascending order.
    index : ndarray (N, k)
    beyond : ndarray (N,) float64
        All patterns that are not listed are at least so far away, rounding included; ``inf``
        where every other pattern is listed.
    """

    distances: FloatArray
    index: IndexArray
    beyond: FloatArray


def nearest_neighbors(patterns: FloatArray, k: int) -> Neighbors:
    """The k nearest other patterns of each, found in float32 and measured in float64.

    Blocks of squared distances come out of one matrix product each. A threshold per row,
    guessed from a sample of columns, lets through a few more than k candidates, whose
    distances are then computed anew from differences. What float32 may have hidden is bounded
    in ``beyond``.
    """
    n = len(patterns)
    k = min(k, n - 1)
    if k == 0:
        empty = np.zeros((n, 0))
        return Neighbors(empty, empty.astype(np.int64), np.full(n, np.inf))
    blocks = _SquaredDistances(patterns)
    slack = blocks.slack
    probe = np.random.RandomState(0).permutation(n)[: min(PROBE, n)]
    distances, index, beyond = np.empty((n, k)), np.empty((n, k), dtype=np.int64), np.empty(n)
    for start in range(0, n, ROW_BLOCK):
        rows = np.arange(start, min(start + ROW_BLOCK, n))
        threshold = _thresholds(blocks, rows, probe, k)
        row, column, squared = _candidates(blocks, rows, threshold, k)
        chosen = _smallest(row, squared, len(rows), k)
        distances[rows], index[rows] = _measured(patterns, rows, column[chosen])
        # Patterns that are not listed have float32 distances no smaller than the last listed.
        edge = np.maximum(squared[chosen[:, -1]].astype(np.float64) - slack, 0.0)
        beyond[rows] = np.minimum(np.sqrt(edge) * blocks.scale, distances[rows, -1])
    if k == n - 1:
        beyond[:] = np.inf
    return Neighbors(distances, index, beyond)


class _SquaredDistances:
    """Squared distances between patterns in units of ``scale``, up to float32 rounding.

    |x - y|^2 is the product of [-2 x, 1, |x|^2] and [y, |y|^2, 1].
    """

    def __init__(self, patterns: FloatArray) -> None:
        centred = patterns - patterns.mean(0)
        self.scale = float(np.abs(centred).max()) or 1.0
        small = torch.from_numpy((centred / self.scale).astype(np.float32))
        squares, ones = small.square().sum(1, keepdim=True), torch.ones(len(small), 1)
        self._keys = torch.cat([small, squares, ones], 1)
        self._queries = torch.cat([-2 * small, ones, squares], 1)
        # A bound on what rounding does to one, from the sizes involved.
        eps = float(np.finfo(np.float32).eps)
        self.slack = (patterns.shape[1] + 8) * eps * 4 * float(squares.max())
        self._space = torch.empty(ROW_BLOCK * COLUMN_BLOCK)

    def __len__(self) -> int:
        return len(self._keys)

    def __call__(self, rows: IndexArray, columns: IndexArray | slice) -> SingleArray:
        """Those of some rows to some columns, in space that the next call uses again. (r, c)"""
        keys = self._keys[columns]
        found = self._space[: len(rows) * len(keys)].view(len(rows), len(keys))
        torch.mm(self._queries[torch.from_numpy(rows)], keys.T, out=found)
        return found.numpy()


def _thresholds(
    blocks: _SquaredDistances, rows: IndexArray, probe: IndexArray, k: int
) -> SingleArray:
    """A squared distance per row below which more than k others are likely to lie. (r,)"""
    n = len(blocks)
    if k + 1 >= len(probe) or k >= n - 1:
        return np.full(len(rows), np.inf, dtype=np.float32)
    expected = 1.2 * k * len(probe) / n
    rank = min(int(expected + 2.5 * expected**0.5) + 2, len(probe) - 1)
    return np.partition(blocks(rows, probe), rank, axis=1)[:, rank].copy()


def _candidates(
    blocks: _SquaredDistances, rows: IndexArray, threshold: SingleArray, k: int
) -> tuple[IndexArray, IndexArray, SingleArray]:
    """Row in block, column and squared distance of all pairs below the row's threshold.

    Where fewer than k are, the row is looked at again with a larger one.
    """
    n = len(blocks)
    pending, found = np.arange(len(rows)), []
    while len(pending):
        parts = []
        for start in range(0, n, COLUMN_BLOCK):
            squared = blocks(rows[pending], slice(start, min(start + COLUMN_BLOCK, n)))
            below = np.flatnonzero(squared <= threshold[pending, None])
            row, column = np.divmod(below, squared.shape[1])
            parts.append((pending[row], column + start, squared.reshape(-1)[below]))
        row, column, squared = (np.concatenate(part) for part in zip(*parts, strict=True))
        other = rows[row] != column
        short = np.bincount(row[other], minlength=len(rows)) < k
        kept = other & ~short[row]
        found.append((row[kept], column[kept], squared[kept]))
        pending = pending[short[pending]]
        larger = np.where(threshold[pending] > 0, threshold[pending] * 2, np.inf)
        threshold[pending] = larger
    row, column, squared = (np.concatenate(part) for part in zip(*found, strict=True))
    return row, column, squared


def _smallest(row: IndexArray, squared: SingleArray, n_rows: int, k: int) -> IndexArray:
    """Where the k smallest entries of each row are, ascending. (r, k)"""
    order = np.argsort(squared, kind="stable")
    # Of such small numbers, numpy sorts by counting.
    order = order[np.argsort(row[order].astype(np.uint16), kind="stable")]
    counts = np.bincount(row, minlength=n_rows)
    starts = np.cumsum(counts) - counts
    return order[starts[:, None] + np.arange(k)]


def _measured(
    patterns: FloatArray, rows: IndexArray, columns: IndexArray
) -> tuple[FloatArray, IndexArray]:
    """Float64 distances from differences, ascending, and the columns in that order. (r, k)"""
    given, chosen = torch.from_numpy(patterns), torch.from_numpy(columns)
    near = torch.cat(
        [
            torch.linalg.vector_norm(given[few, None] - given[others], dim=2)
            for few, others in zip(torch.from_numpy(rows).split(64), chosen.split(64), strict=True)
        ]
    )
    near, order = near.sort(1)
    return near.numpy(), chosen.gather(1, order).numpy()
