"""Densities of one or two dimensions as a table on a grid."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError, UnsupportedOperationError
from isthmus.validation import as_count, as_number, as_points

if TYPE_CHECKING:
    from isthmus.memories.gaussian import GaussianKDE

FloatArray = NDArray[np.float64]
LARGEST_GRID = 2**25
# Draws of the density at which the error is measured, and pairs of them and memories, at most.
CHECKED, CHECKED_PAIRS = 256, 2**24


@dataclass(frozen=True, repr=False)
class TabulatedDensity:
    """A density on a grid, from :meth:`isthmus.GaussianKDE.on_grid`."""

    low: FloatArray
    """The first corner of the grid. (D,)"""
    step: FloatArray
    """The widths of the cells. (D,)"""
    log_density: FloatArray
    """The table, ``-inf`` where no memory is in reach. (G,) or (G, H)"""
    error: float
    """The largest error among up to 256 draws, a measurement and not a bound."""
    dtype: torch.dtype

    def log_prob(self, x: Any) -> Any:
        """Return the log-density of each point, by cubic interpolation. x: (..., D) -> (...).

        A tensor for a tensor, and an array for an array.
        """
        points = as_points(x, "x", dim=len(self.low))
        flat = points.detach().double().reshape(-1, len(self.low)).numpy()
        # Places beyond the table may be beyond whole numbers, too.
        with np.errstate(over="ignore"):
            places = np.clip((flat - self.low) / self.step, -4, np.add(self.log_density.shape, 4))
        values = _interpolated(self.log_density, places)
        found = torch.from_numpy(values).to(self.dtype).reshape(points.shape[:-1])
        return found if isinstance(x, Tensor) else found.numpy()

    def __repr__(self) -> str:
        cells = " x ".join(f"{size:,}" for size in self.log_density.shape)
        return f"TabulatedDensity({cells} cells, error {self.error:.1e})"


@torch.no_grad()
def grid_density(kde: GaussianKDE, cells_per_sigma: int, reach: float) -> TabulatedDensity:
    """Return the density of a memory on a grid; see :meth:`GaussianKDE.on_grid`."""
    from scipy.ndimage import gaussian_filter

    cells = as_count(cells_per_sigma, "cells_per_sigma", at_least=2, at_most=1000)
    reach = as_number(reach, "reach", at_least=3, at_most=30)
    if kde.dim > 2 or kde.covariance is not None or kde.factors is not None:
        raise UnsupportedOperationError(
            "A grid holds densities of one or two dimensions, without covariance or factors. "
            "Use log_prob, with an index for many memories."
        )
    sigma = kde.sigma.detach().double().expand(kde.dim).numpy()
    memories = kde.memories.detach().double().numpy()
    step = sigma / cells
    margin = int(np.ceil(reach * cells)) + 3
    low = memories.min(0) - margin * step
    shape = np.floor((memories.max(0) - low) / step).astype(np.int64) + margin + 2
    if np.prod(shape.astype(float)) > LARGEST_GRID:
        raise InvalidInputError(
            f"The grid would have {np.prod(shape.astype(float)):.2g} cells; at most "
            f"{LARGEST_GRID:,} are allowed. Lower cells_per_sigma, raise sigma, or use log_prob."
        )
    weights = kde.log_mixing_weights.detach().double().exp().numpy()
    density = _binned((memories - low) / step, weights, tuple(shape.tolist()))
    density = gaussian_filter(density, cells, mode="constant", truncate=reach) / step.prod()
    # Shares of a memory may be negative; what they leave far from all memories counts as zero.
    with np.errstate(divide="ignore"):
        table = np.log(np.maximum(density, 0.0))
    found = TabulatedDensity(low, step, table, np.nan, kde.memories.dtype)
    draws = torch.as_tensor(kde.sample(min(CHECKED, max(16, CHECKED_PAIRS // kde.n_memories))))
    error = (found.log_prob(draws) - kde.log_prob(draws)).abs().max()
    return TabulatedDensity(low, step, table, float(error), kde.memories.dtype)


def _corners(places: FloatArray, shape: tuple[int, ...]) -> Iterator[tuple[Any, FloatArray]]:
    """Yield the nodes about places (N, D), by their place in the flat table, with cubic weights."""
    first = np.floor(places.T).astype(np.int64) - 1
    t = places.T - first
    outer, inner = (t - 1) * (t - 2), t * (t - 3)
    weights = [-outer * (t - 3) / 6, inner * (t - 2) / 2, -inner * (t - 1) / 2, outer * t / 6]
    strides = np.array([*shape[1:], 1])
    nodes = strides @ first
    for corner in product(range(4), repeat=len(shape)):
        shares = [weights[c][axis] for axis, c in enumerate(corner)]
        yield nodes + strides @ corner, shares[0] if len(shares) == 1 else shares[0] * shares[1]


def _binned(places: FloatArray, masses: FloatArray, shape: tuple[int, ...]) -> FloatArray:
    """Share the masses at places (N, D) out among the nodes about them."""
    total = np.zeros(int(np.prod(shape)))
    for nodes, share in _corners(places, shape):
        total += np.bincount(nodes, share * masses, minlength=len(total))
    return total.reshape(shape)


def _interpolated(table: FloatArray, places: FloatArray) -> FloatArray:
    """Interpolate cubically along each axis; places without four finite neighbours are -inf."""
    inside = ((places >= 1) & (places < np.array(table.shape) - 2)).all(1)
    result = np.full(len(places), -np.inf)
    with np.errstate(invalid="ignore"):
        parts = [
            share * table.flat[nodes] for nodes, share in _corners(places[inside], table.shape)
        ]
        total = np.sum(parts, axis=0)
    result[inside] = np.where(np.isfinite(total), total, -np.inf)
    return result
