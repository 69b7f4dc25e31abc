"""Rows as the learners see them: centred, scaled to unit spread, with gaps marked."""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError

__all__ = ["Frame", "Rows", "distinct_rows", "naming_text_columns"]

BLOCK_ENTRIES = 2**19
"""Entries of one block of rows: small enough to stay in a core's cache."""


@contextmanager
def naming_text_columns(X: Any) -> Iterator[None]:
    """Where a table of pandas or polars is refused for text or dates, say in which columns."""
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
class Frame:
    """The change of units that makes arithmetic harmless: x = centre + scale * internal."""

    centre: NDArray[Any]
    scale: float

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any]) -> Frame:
        """Centre on the weighted mean; scale to a mean variance of one per feature."""
        if not np.isnan(X.sum()):
            return cls._of_complete(X, weights)
        seen = ~np.isnan(X)
        zeros = np.where(seen, X, 0.0)
        mass = weights @ seen
        if not mass.all():
            columns = ", ".join(map(str, np.flatnonzero(mass == 0)[:5]))
            raise ValueError(
                f"Column {columns} of X has no observed value, so nothing can be learned about "
                "it. Leave it out."
            )
        # Two passes, after bringing numbers near 1, so that huge ones do not overflow.
        size = float(np.abs(zeros).max()) or 1.0
        centre = (weights @ (zeros / size)) / mass * size
        deviations = np.where(seen, (X - centre) / size, 0.0)
        variance = float(np.mean((weights @ deviations**2) / mass))
        return cls(centre, float(np.sqrt(variance)) * size if variance > 1e-30 else size)

    @classmethod
    def _of_complete(cls, X: NDArray[Any], weights: NDArray[Any]) -> Frame:
        size = max(float(X.max()), -float(X.min())) or 1.0
        total, centre, variance = weights.sum(), np.zeros(X.shape[1]), 0.0
        parts = [slice(start, start + 8192) for start in range(0, len(X), 8192)]
        for part in parts:
            centre = centre + weights[part] @ (X[part] / size) / total
        for part in parts:
            variance += float(weights[part] @ ((X[part] / size - centre) ** 2).mean(1)) / total
        return cls(centre * size, math.sqrt(variance) * size if variance > 1e-30 else size)

    def into(self, X: NDArray[Any]) -> NDArray[Any]:
        """From the user's units. (N, D) -> (N, D)"""
        inside = np.subtract(X, self.centre.astype(X.dtype))
        inside *= X.dtype.type(1 / self.scale)
        return inside

    def back(self, points: Tensor) -> NDArray[Any]:
        """To the user's units, in float64. (K, D) -> (K, D)"""
        return points.double().numpy() * self.scale + self.centre


@dataclass(frozen=True)
class Rows:
    """What a learner iterates over.

    Attributes
    ----------
    values : Tensor (N, D)
        In internal units; zero where unknown.
    weights : Tensor (N,)
    observed : Tensor (N, D) or None
        One where known and zero elsewhere; None if everything is.
    squares : Tensor (N,)
        Squared lengths of `values`.
    """

    values: Tensor
    weights: Tensor
    observed: Tensor | None
    squares: Tensor

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any], frame: Frame) -> Rows:
        """Rows in the frame's units."""
        inside = frame.into(X)
        observed = None
        if np.isnan(inside.sum()):
            gaps = np.isnan(inside)
            inside[gaps] = 0
            observed = torch.from_numpy((~gaps).astype(inside.dtype))
        values = torch.from_numpy(np.ascontiguousarray(inside))
        return cls(
            values,
            torch.from_numpy(weights.astype(inside.dtype)),
            observed,
            torch.linalg.vector_norm(values, dim=1).square(),
        )

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        """The number of features D."""
        return self.values.shape[1]

    @property
    def total(self) -> float:
        """The sum of weights."""
        return float(self.weights.double().sum())

    def coordinates(self) -> Tensor:
        """How many coordinates each row has. (N,)"""
        if self.observed is None:
            return self.values.new_full((len(self),), self.dim)
        return self.observed.sum(1)

    def take(self, index: Any) -> Rows:
        """Some of the rows, by a slice or an index."""
        return replace(
            self,
            values=self.values[index],
            weights=self.weights[index],
            observed=None if self.observed is None else self.observed[index],
            squares=self.squares[index],
        )

    def blocks(self, width: int) -> Iterator[tuple[slice, Rows]]:
        """Consecutive blocks of rows, few enough for `width` numbers each to stay in cache."""
        size = max(BLOCK_ENTRIES // max(width, 1), 64)
        for start in range(0, len(self), size):
            block = slice(start, min(start + size, len(self)))
            yield block, self.take(block)


def distinct_rows(X: NDArray[Any], weights: NDArray[Any]) -> tuple[NDArray[Any], NDArray[Any]]:
    """Distinct rows in an order of their own, with their weights added up.

    What follows then depends neither on the order of the rows nor on whether a row of weight
    two was written twice.
    """
    direction = np.random.RandomState(0).uniform(0.5, 1.5, X.shape[1])
    key = np.empty(len(X))
    for start in range(0, len(X), 8192):
        block = X[start : start + 8192].astype(np.float64)
        # Row by row sums, unlike a matrix product, do not depend on where a row stands.
        key[start : start + 8192] = (np.nan_to_num(block, nan=0.137) * direction).sum(1)
    order = np.argsort(key, kind="stable")
    key = key[order]
    first = np.ones(len(X), dtype=bool)
    same_key = np.flatnonzero(key[1:] == key[:-1]) + 1
    for start in range(0, len(same_key), 8192):
        here = same_key[start : start + 8192]
        left, right = X[order[here - 1]], X[order[here]]
        first[here] = ~((left == right) | (np.isnan(left) & np.isnan(right))).all(1)
    starts = np.flatnonzero(first)
    return X[order[starts]], np.add.reduceat(weights[order], starts)
