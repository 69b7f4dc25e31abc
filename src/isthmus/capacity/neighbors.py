"""Exact nearest neighbours of every pattern among all others, in memory linear in N."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

__all__ = ["Neighbors", "nearest_neighbors"]

# Float32 numbers of one block of squared distances: 16 MiB.
BLOCK_ENTRIES = 2**22
ROW_BLOCK = 1024
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

    distances: NDArray[np.float64]
    index: NDArray[np.int64]
    beyond: NDArray[np.float64]


def nearest_neighbors(patterns: NDArray[np.float64], k: int) -> Neighbors:
    """The k nearest other patterns of each, found in float32 and measured in float64.

    Blocks of squared distances come out of one matrix product each. A threshold per row,
    guessed from a sample of columns, lets through a few more than k candidates, whose
    distances are then computed anew from differences. What float32 may have hidden is bounded
    in ``beyond``.
    """
    n, dim = patterns.shape
    k = min(k, n - 1)
    if k == 0:
        empty = np.zeros((n, 0))
        return Neighbors(empty, empty.astype(np.int64), np.full(n, np.inf))
    given = torch.from_numpy(patterns)
    centred = torch.from_numpy(patterns - patterns.mean(0))
    scale = float(centred.abs().max()) or 1.0
    small = (centred / scale).float()
    squares = small.square().sum(1)
    keys = torch.cat([small, squares[:, None]], 1)
    # A bound on what rounding does to a float32 squared distance, from the sizes involved.
    slack = (dim + 8) * float(np.finfo(np.float32).eps) * 4 * float(squares.max())
    probe = torch.from_numpy(np.random.RandomState(0).permutation(n)[: min(PROBE, n)])
    distances = np.empty((n, k))
    index = np.empty((n, k), dtype=np.int64)
    beyond = np.empty(n)
    for start in range(0, n, ROW_BLOCK):
        rows = torch.arange(start, min(start + ROW_BLOCK, n))
        threshold = _thresholds(keys, squares, rows, probe, k)
        row, column, squared = _candidates(keys, squares, rows, threshold, k)
        chosen = _smallest(row, squared, len(rows), k)
        near, where = _measured(given, rows, column[chosen])
        block = slice(start, start + len(rows))
        distances[block], index[block] = near.numpy(), where.numpy()
        # Patterns that are not listed have float32 distances no smaller than the last listed.
        edge = (squared[chosen[:, -1]].double() - slack).clamp(min=0).sqrt() * scale
        beyond[block] = torch.minimum(edge, near[:, -1]).numpy()
    if k == n - 1:
        beyond[:] = np.inf
    return Neighbors(distances, index, beyond)


def _measured(given: Tensor, rows: Tensor, columns: Tensor) -> tuple[Tensor, Tensor]:
    """Float64 distances from differences, ascending, and the columns in that order. (r, k)"""
    parts = [
        torch.linalg.vector_norm(given[few, None] - given[columns[few - rows[0]]], dim=2)
        for few in rows.split(64)
    ]
    near, order = torch.cat(parts).sort(1)
    return near, columns.gather(1, order)


def _squared(keys: Tensor, squares: Tensor, rows: Tensor, columns: Tensor | slice) -> Tensor:
    """Squared distances of some rows to some columns, up to float32 rounding. (r, c)"""
    queries = torch.cat([-2 * keys[rows, :-1], torch.ones(len(rows), 1)], 1)
    return torch.addmm(squares[rows, None], queries, keys[columns].T)


def _thresholds(keys: Tensor, squares: Tensor, rows: Tensor, probe: Tensor, k: int) -> Tensor:
    """A squared distance per row below which more than k others are likely to lie. (r,)"""
    n = len(keys)
    if k + 1 >= len(probe) or k >= n - 1:
        return torch.full((len(rows),), torch.inf)
    sample = _squared(keys, squares, rows, probe).numpy()
    expected = 1.2 * k * len(probe) / n
    rank = min(int(expected + 2.5 * expected**0.5) + 2, len(probe) - 1)
    return torch.from_numpy(np.partition(sample, rank, axis=1)[:, rank].copy())


def _candidates(
    keys: Tensor, squares: Tensor, rows: Tensor, threshold: Tensor, k: int
) -> tuple[Tensor, Tensor, Tensor]:
    """Row in block, column and squared distance of all pairs below the row's threshold.

    Where fewer than k are, the row is looked at again with a larger one.
    """
    n = len(keys)
    width = max(BLOCK_ENTRIES // len(rows), 1)
    pending, found = torch.arange(len(rows)), []
    while len(pending):
        parts = []
        for start in range(0, n, width):
            columns = slice(start, min(start + width, n))
            squared = _squared(keys, squares, rows[pending], columns)
            row, column = torch.nonzero(squared <= threshold[pending, None], as_tuple=True)
            parts.append((pending[row], column + start, squared[row, column]))
        row, column, squared = (torch.cat(part) for part in zip(*parts, strict=True))
        other = rows[row] != column
        short = torch.bincount(row[other], minlength=len(rows)) < k
        kept = other & ~short[row]
        found.append((row[kept], column[kept], squared[kept]))
        pending = pending[short[pending]]
        threshold[pending] = torch.where(threshold[pending] > 0, threshold[pending] * 2, torch.inf)
    row, column, squared = (torch.cat(part) for part in zip(*found, strict=True))
    return row, column, squared


def _smallest(row: Tensor, squared: Tensor, n_rows: int, k: int) -> Tensor:
    """Where the k smallest entries of each row are, ascending. (r, k)"""
    order = torch.argsort(squared, stable=True)
    order = order[torch.argsort(row[order], stable=True)]
    counts = torch.bincount(row, minlength=n_rows)
    starts = torch.cat([torch.zeros(1, dtype=torch.int64), counts.cumsum(0)[:-1]])
    return order[starts[:, None] + torch.arange(k)]
