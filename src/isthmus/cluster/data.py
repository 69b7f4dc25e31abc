"""Rows in internal units: centred, scaled to unit variance, with gaps marked."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError

# Entries of one block of rows: small enough to stay in a core's cache.
BLOCK_ENTRIES = 2**19
# Rows of one block where a table is read once.
BLOCK_ROWS = 8192


@contextmanager
def name_text_columns(X: Any) -> Iterator[None]:
    """Name the columns with text or dates if a pandas or polars table is refused."""
    try:
        yield
    except (TypeError, ValueError) as error:
        names = [name for name in getattr(X, "columns", ()) if not _is_numeric(X[name])]
        if not names:
            raise
        listed = ", ".join(map(repr, names))
        raise InvalidInputError(
            f"Column {listed} of X does not hold numbers. Leave it out or encode it first."
        ) from error


def _is_numeric(column: Any) -> bool:
    try:
        np.asarray(column, dtype=float)
    except (TypeError, ValueError):
        return False
    return np.asarray(column).dtype.kind not in "mM"


@dataclass(frozen=True)
class Units:
    """The change of units x = centre + scale * internal, which keeps arithmetic in range."""

    centre: NDArray[Any]
    scale: float

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any]) -> Units:
        """Centre on the weighted mean of X and scale to a mean variance of 1 per feature."""
        parts = [slice(start, start + BLOCK_ROWS) for start in range(0, len(X), BLOCK_ROWS)]
        mass = sum(weights[part] @ ~np.isnan(X[part]) for part in parts)
        if not np.all(mass):
            columns = ", ".join(map(str, np.flatnonzero(mass == 0)[:5]))
            raise InvalidInputError(
                f"Column {columns} of X has no observed value, so nothing can be learned about "
                "it. Leave it out."
            )
        # Numbers are brought near 1 first, so that squares of huge ones do not overflow.
        size = largest_value(X)

        def mean(function: Callable[[Any], Any]) -> NDArray[Any]:
            total = np.zeros(X.shape[1])
            for part in parts:
                # Contiguous, because the rounding of a product depends on the order in memory.
                values = function(np.ascontiguousarray(X[part]) / size)
                total += weights[part] @ np.where(np.isnan(values), 0.0, values)
            return total / mass

        centre = mean(lambda values: values)
        variance = float(mean(lambda values: (values - centre) ** 2).mean())
        return cls(centre * size, math.sqrt(variance) * size if variance > 1e-30 else size)

    def to_internal(self, X: NDArray[Any]) -> NDArray[Any]:
        """Convert from the units of the user. (N, D) -> (N, D)"""
        inside = np.subtract(X, self.centre.astype(X.dtype))
        inside *= X.dtype.type(1 / self.scale)
        return inside

    def to_user(self, points: Tensor) -> NDArray[Any]:
        """Convert to the units of the user, in float64. (K, D) -> (K, D)"""
        return points.double().numpy() * self.scale + self.centre


@dataclass(frozen=True)
class Rows:
    """The data of a fit, in internal units.

    `values` (N, D) are zero where unknown, `observed` (N, D) is one where known (None: everywhere),
    and `squares` (N,) are the squared lengths of the values.
    """

    values: Tensor
    weights: Tensor
    observed: Tensor | None
    squares: Tensor

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any], units: Units) -> Rows:
        """Convert a table in which NaN marks unknown values."""
        inside = units.to_internal(X)
        observed = None
        if np.isnan(inside.sum()):
            gaps = np.isnan(inside)
            inside[gaps] = 0
            observed = torch.from_numpy((~gaps).astype(inside.dtype))
        values = torch.from_numpy(np.ascontiguousarray(inside))
        squares = torch.linalg.vector_norm(values, dim=1).square()
        return cls(values, torch.from_numpy(weights.astype(inside.dtype)), observed, squares)

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        """The number of features D."""
        return self.values.shape[1]

    @property
    def smallest_variance(self) -> float:
        """The variance below which rounding errors would decide."""
        return 1e-10 if self.values.dtype == torch.float64 else 1e-6

    @cached_property
    def total(self) -> float:
        """The sum of weights."""
        return float(self.weights.double().sum())

    @cached_property
    def square(self) -> float:
        """The weighted sum of squared lengths."""
        return float(self.weights.double() @ self.squares.double())

    @cached_property
    def known_total(self) -> float:
        """The weighted number of known coordinates."""
        return float(self.weights.double() @ self.coordinates().double())

    def coordinates(self) -> Tensor:
        """Return the number of known coordinates of each row. (N,)"""
        if self.observed is None:
            return self.values.new_full((len(self),), self.dim)
        return self.observed.sum(1)

    def take(self, index: Any) -> Rows:
        """Return the rows at a slice or an index."""
        observed = None if self.observed is None else self.observed[index]
        return Rows(self.values[index], self.weights[index], observed, self.squares[index])

    def blocks(self, width: int) -> Iterator[tuple[slice, Rows]]:
        """Yield consecutive blocks of rows, small enough for `width` numbers each in cache."""
        size = max(BLOCK_ENTRIES // max(width, 1), 64)
        for start in range(0, len(self), size):
            block = slice(start, min(start + size, len(self)))
            yield block, self.take(block)


def distinct_rows(X: NDArray[Any], weights: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the distinct rows in a canonical order, and the sum of the weights of each.

    A fit then depends neither on the order of the rows nor on whether a row of weight two was
    written twice. Rows count as equal if they differ by rounding errors of the largest value.
    """
    lowest, size = np.fmin.reduce(X, 0), largest_value(X)
    direction = np.random.RandomState(0).uniform(0.5, 1.5, X.shape[1])
    key = np.empty(len(X))
    for start in range(0, len(X), BLOCK_ROWS):
        block = (X[start : start + BLOCK_ROWS].astype(np.float64) - lowest) / size
        # Row by row sums, unlike a matrix product, do not depend on where a row stands.
        key[start : start + BLOCK_ROWS] = (np.nan_to_num(block, nan=-0.137) * direction).sum(1)
    _, first, group = np.unique(key, return_index=True, return_inverse=True)
    return X[first], np.bincount(group, weights)


def largest_value(X: NDArray[Any]) -> float:
    """Return the largest absolute value, or 1 if there is none above 0."""
    return max(float(np.fmax.reduce(X, None)), -float(np.fmin.reduce(X, None))) or 1.0
