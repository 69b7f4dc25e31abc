"""The exact one-step condition of sparse Hopfield networks, and the noise that it allows."""

from __future__ import annotations

from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import ndtr

from isthmus.capacity.contraction import ROW_BLOCK, largest
from isthmus.memories.sparse import SparseHopfield

FloatArray = NDArray[np.float64]
BISECTIONS = 60


def one_step(
    memory: SparseHopfield, delta: float | None
) -> tuple[FloatArray, NDArray[np.bool_], dict[str, Any]]:
    """Return nearest distances, the patterns proved stored, and the bounds of a certificate."""
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
    # The bound of Santos et al. (2024).
    santos = np.maximum(separation - required, 0) / (2 * norms.max()) if norms.max() else 0 * radius
    bounds = {
        "separation": separation,
        "required_separation": required,
        "ramsauer_radius": np.minimum(santos, radius),
        "guaranteed_radius": radius,
        "error_bound": np.where(radius > 0, 0.0, np.inf),
        "noise": None if delta is None else level,
    }
    return nearest, radius > 0, bounds


def _noise(reach: FloatArray, radius: FloatArray, delta: float) -> FloatArray:
    """Return the largest s at which tails of N(0, s^2) beyond `reach` (n, N) add up to delta."""
    if len(radius) == reach.shape[1] == 1:  # a single pattern is retrieved from everywhere
        return radius
    tiny = np.finfo(float).tiny

    def fits(s: FloatArray) -> NDArray[np.bool_]:
        with np.errstate(divide="ignore"):
            return (ndtr(-reach / np.maximum(s, tiny)[:, None]).sum(1) <= delta) & (radius > 0)

    high = radius
    while (good := fits(high)).any():
        high = np.where(good, 2 * high, high)
    return largest(fits, np.zeros(len(reach)), high, BISECTIONS)
