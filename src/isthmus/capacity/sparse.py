"""The exact one-step condition of sparse Hopfield networks, and the noise that it allows."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import ndtr
from torch import Tensor

from isthmus.capacity.contraction import ROW_BLOCK
from isthmus.memories.sparse import SparseHopfield

FloatArray = NDArray[np.float64]
BISECTIONS = 60


class OneStep(NamedTuple):
    """What one update of a sparse network does about each of N patterns."""

    separation: FloatArray
    """min_j x_n . (x_n - x_j). (N,)"""
    required: float
    """The separation m / beta from which on a pattern is its own update."""
    radius: FloatArray
    """Radius of the largest ball that one update maps to the pattern itself, or 0. (N,)"""
    santos_radius: FloatArray
    """Its lower bound by Santos et al., (separation - m / beta) / (2 max |x|), or 0. (N,)"""
    nearest: FloatArray
    """Distance to the nearest other pattern. (N,)"""
    noise: FloatArray | None
    """Deviation of normal noise that one update removes but with probability delta. (N,)"""


def one_step(memory: SparseHopfield, delta: float | None) -> OneStep:
    """Return the exact one-step condition for every pattern of a memory of at least two."""
    patterns = memory.memories.detach().double().numpy()
    norms = np.linalg.norm(patterns, axis=1)
    required = memory.margin / float(memory.beta)
    # A logit of the network itself is off by about this much, in units of 1 / beta.
    unit = torch.finfo(memory.memories.dtype).eps
    slack = (memory.dim + 8) * unit * norms.max() ** 2
    found: list[tuple[FloatArray, ...]] = []
    for start in range(0, len(patterns), ROW_BLOCK):
        rows = patterns[start : start + ROW_BLOCK]
        lead = np.square(rows).sum(1, keepdims=True) - rows @ patterns.T
        distance = cdist(rows, patterns)
        own = np.arange(len(rows)), np.arange(start, start + len(rows))
        lead[own] = distance[own] = np.inf
        spare = lead - required - slack
        with np.errstate(divide="ignore", invalid="ignore"):
            reach = np.where(distance > 0, spare / distance, 0.0)
        reach[own] = np.inf
        radius = np.maximum(reach.min(1), 0)
        level = radius if delta is None else _noise(reach, radius, delta)
        found.append((lead.min(1), radius, distance.min(1), level))
    separation, radius, nearest, level = map(np.concatenate, zip(*found, strict=True))
    santos = np.maximum(separation - required, 0) / (2 * norms.max()) if norms.max() else 0 * radius
    noise = None if delta is None else level
    return OneStep(separation, required, radius, np.minimum(santos, radius), nearest, noise)


def _noise(reach: FloatArray, radius: FloatArray, delta: float) -> FloatArray:
    """Return the largest s at which the tails beyond `reach`, (n, N), add up to at most delta.

    Noise of deviation s leads to the pattern in one step unless its projection on the direction of
    another pattern, which is N(0, s^2), is longer than the reach in that direction.
    """
    low, high = np.zeros(len(reach)), np.maximum(radius, np.finfo(float).tiny)
    while ((ndtr(-reach / high[:, None]).sum(1) <= delta) & (radius > 0)).any():
        fits = (ndtr(-reach / high[:, None]).sum(1) <= delta) & (radius > 0)
        high = np.where(fits, 2 * high, high)
    for _ in range(BISECTIONS):
        middle = 0.5 * (low + high)
        with np.errstate(divide="ignore"):
            fits = ndtr(-reach / np.maximum(middle, np.finfo(float).tiny)[:, None]).sum(1) <= delta
        low, high = np.where(fits, middle, low), np.where(fits, high, middle)
    return np.where(radius > 0, low, 0.0)


def slopes_of_sparse(memory: SparseHopfield, points: Tensor) -> Tensor:
    """Return the symmetric Jacobians of an update at points. (B, D) -> (B, D, D)"""
    exact = memory.with_memories(memory.memories.detach().double())
    slope = torch.func.jacrev(lambda x: exact.step(x))
    found = [0.5 * (matrix + matrix.mT) for matrix in map(slope, points.double())]
    return torch.stack(found) if found else points.new_zeros((0, memory.dim, memory.dim))
