"""Rows in internal units: centred, of unit variance, gaps marked; in memory or in blocks."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, Self, cast

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.distributed.blocks import (
    Blocks,
    HeldBlocks,
    TableBlock,
    TableLayout,
    dask_blocks,
    is_dask,
)
from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.scaling import Scaling

# Entries of one block of rows: small enough to stay in a core's cache.
BLOCK_ENTRIES = 2**19
# Starts of a training are found on at most this many distinct rows.
SAMPLE_ROWS = 50_000
# Scales of data whose squares, and the inverses of these, are far from overflow.
SMALLEST_SCALE = 1e-140


def units_of(
    X: NDArray[Any], weights: NDArray[Any], given: bool = False, names: Any = None
) -> Scaling:
    """Return units with the weighted mean of X as centre, and a mean variance of 1 per feature."""
    if given:
        return Scaling(np.zeros(X.shape[1]), 1.0)
    moments: Moments = one_block(X, weights).total(Moments.of)
    return moments.units(names)


def counted(block: TableBlock) -> tuple[NDArray[Any], NDArray[Any]]:
    """Return the rows of positive weight, and their weights."""
    if block.extra is None:
        return block.values, np.ones(len(block.values))
    weights = np.asarray(block.extra, dtype=np.float64)
    if not np.isfinite(weights).all() or (weights < 0).any():
        raise InvalidInputError(f"{block.name}: weights must be finite and not negative.")
    kept = weights > 0
    return block.values[kept], weights[kept]


@dataclass(frozen=True)
class Moments:
    """Weight, mean and squared deviation of each column, in units of the largest value."""

    weight: NDArray[Any]
    mean: NDArray[Any]
    squares: NDArray[Any]
    size: float
    n_rows: int

    @classmethod
    def of(cls, block: TableBlock) -> Moments | None:
        """Return the moments of one block; None if no row counts."""
        X, weights = counted(block)
        if not len(X):
            return None
        size = largest_value(X)
        X = X.astype(np.float64, order="C") / size
        masses = np.where(np.isnan(X), 0.0, weights[:, None])
        X = np.nan_to_num(X, copy=False)
        weight = masses.sum(0)
        mean = (masses * X).sum(0) / np.maximum(weight, 1e-300)
        return cls(weight, mean, (masses * np.square(X - mean)).sum(0), size, len(X))

    def __add__(self, other: Moments) -> Moments:
        size = max(self.size, other.size)
        mine, yours = self.size / size, other.size / size
        weight = self.weight + other.weight
        share = other.weight / np.maximum(weight, 1e-300)
        apart = other.mean * yours - self.mean * mine
        squares = self.squares * mine**2 + other.squares * yours**2
        squares += np.square(apart) * self.weight * share
        mean = self.mean * mine + share * apart
        return Moments(weight, mean, squares, size, self.n_rows + other.n_rows)

    def columns(self) -> Scaling:
        """Return the units in which each column has variance 1, or 0."""
        deviation = np.sqrt(self.squares / np.maximum(self.weight, 1e-300))
        varies = deviation > np.maximum(1e-12 * np.abs(self.mean), SMALLEST_SCALE / self.size)
        return Scaling(self.mean * self.size, np.where(varies, deviation * self.size, 1.0))

    def units(self, names: Any = None) -> Scaling:
        """Return the units in which the mean variance per column is 1; errors have the names."""
        if not self.weight.all():
            names = np.arange(len(self.weight)) if names is None else names
            empty = listed([repr(name) for name in np.asarray(names)[self.weight == 0].tolist()])
            raise InvalidInputError(
                f"Column {empty} of X has no observed value, so nothing can be learned about it. "
                "Leave it out."
            )
        variance = float((self.squares / self.weight).mean())
        scale = math.sqrt(variance) * self.size if variance > 1e-30 else self.size
        if not SMALLEST_SCALE < scale < 1 / SMALLEST_SCALE:
            raise InvalidInputError(
                f"Rows of X are {scale:.3g} apart, which cannot be squared in double precision. "
                "Rescale the columns."
            )
        return Scaling(self.mean * self.size, scale)


@dataclass(frozen=True)
class Rows:
    """The data of a fit, in the units of the table or in internal ones.

    `values` (N, D) are zero where unknown, `observed` (N, D) is one where known (None: everywhere).
    `keys` (N,) are the hashes of distinct rows.
    """

    values: Tensor
    weights: Tensor
    observed: Tensor | None = None
    keys: Tensor | None = None

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any], units: Scaling | None = None) -> Self:
        """Convert a table in which NaN marks unknown values, to units if they are given."""
        values = X.copy() if units is None else units.into(X)
        observed = None
        if np.isnan(values.sum()):
            gaps = np.isnan(values)
            values[gaps] = 0
            observed = torch.from_numpy((~gaps).astype(values.dtype))
        # Sums over equal rows, and weights of any size, need double precision.
        masses = torch.from_numpy(weights.astype("f8" if units is None else values.dtype))
        return cls(torch.from_numpy(np.ascontiguousarray(values)), masses, observed)

    @classmethod
    def distinct(cls, X: NDArray[Any], weights: NDArray[Any]) -> Self:
        """Convert a table, equal rows as one."""
        return replace(cls.of(X, weights), keys=torch.from_numpy(row_hashes(X))).joined()

    def joined(self) -> Self:
        """Return equal rows as one, in an order that depends on values only."""
        keys, weights = cast(Tensor, self.keys).numpy(), self.weights.numpy()
        _, first, group = np.unique(keys, return_index=True, return_inverse=True)
        masses = torch.from_numpy(np.bincount(group, weights)).to(self.weights.dtype)
        return replace(self.take(torch.from_numpy(first)), weights=masses)

    def __add__(self, other: Rows) -> Self:
        """Return the rows of both, equal ones as one."""
        both = [
            (each.values, each.weights, each.known, cast(Tensor, each.keys))
            for each in (self, other)
        ]
        values, weights, known, keys = map(torch.cat, zip(*both, strict=True))
        observed = None if self.observed is other.observed is None else known
        return type(self)(values, weights, observed, keys).joined()

    def in_order(self) -> Self:
        """Return the rows in their canonical order, which depends on their values only."""
        places = np.argsort(projected(self.values.numpy()), kind="stable")
        return self.take(torch.from_numpy(places))

    def into(self, units: Scaling) -> Rows:
        """Convert to internal units."""
        values = torch.from_numpy(units.into(self.values.numpy()))
        values = values if self.observed is None else values * self.observed
        return Rows(values, self.weights.to(values.dtype), self.observed, self.keys)

    @property
    def known(self) -> Tensor:
        """One where a value is known. (N, D)"""
        return torch.ones_like(self.values) if self.observed is None else self.observed

    @property
    def table(self) -> NDArray[Any]:
        """The values, NaN where unknown. (N, D)"""
        return torch.where(self.known > 0, self.values, torch.nan).numpy()

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        """The number of features D."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Float32 or float64."""
        return self.values.dtype

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(rows, *arguments)``: these rows are one block."""
        return function(self, *arguments)

    def sample(self, most: int = SAMPLE_ROWS) -> Self:
        """Return a random choice of distinct rows, by their values only, or all if they are few."""
        if self.keys is None or len(self) <= most:
            return self
        return self.take(self.keys.argsort()[:most].sort().values)

    @cached_property
    def squares(self) -> Tensor:
        """The squared length of each row. (N,)"""
        return torch.linalg.vector_norm(self.values, dim=1).square()

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

    def hard_shares(self, labels: Tensor, n_clusters: int) -> Tensor:
        """Return a matrix that gives the weight of each row to the cluster of its label. (N, K)"""
        shares = self.values.new_zeros(len(self), n_clusters)
        return shares.scatter_(1, labels[:, None], self.weights[:, None])

    def take(self, index: Any) -> Self:
        """Return the rows at a slice or an index."""
        observed = None if self.observed is None else self.observed[index]
        keys = None if self.keys is None else self.keys[index]
        return type(self)(self.values[index], self.weights[index], observed, keys)

    def without_clusters(self, most: int, generator: np.random.RandomState) -> Rows:
        """Draw up to `most` rows of the same covariance, gaps and weight from one Gaussian."""
        size = max(len(self), min(round(self.total), most))
        weights = self.weights.double()
        places = torch.arange(size, dtype=torch.float64).add_(0.5) * self.total / size
        # Gaps are those of the rows, in proportion to their weights.
        like = self.take(torch.searchsorted(weights.cumsum(0), places).clamp_(max=len(self) - 1))
        root = torch.linalg.qr(self.values.double() * weights.sqrt()[:, None], mode="r").R
        draws = torch.from_numpy(generator.standard_normal((size, len(root))))
        values = torch.linalg.qr(draws - draws.mean(0)).Q @ root
        if like.observed is not None:
            values *= like.observed
        values *= math.sqrt(size * self.square / self.total) / max(float(values.norm()), 1e-300)
        values = values.to(self.values.dtype)
        shares = values.new_full((size,), self.total / size)
        return Rows(values, shares, like.observed)

    def blocks(self, width: int) -> Iterator[tuple[slice, Rows]]:
        """Yield consecutive blocks of rows, small enough for `width` numbers each in cache."""
        size = max(BLOCK_ENTRIES // max(width, 1), 64)
        for start in range(0, len(self), size):
            block = slice(start, min(start + size, len(self)))
            yield block, self.take(block)


class RowSample(Rows):
    """Distinct rows, of which a sum has a random choice."""

    def __add__(self, other: Rows) -> Self:
        return super().__add__(other).sample()


def row_hashes(X: NDArray[Any]) -> NDArray[np.int64]:
    """Return a hash of the values of each row, in which all NaN, and both zeros, are alike. (n,)"""
    hashes = np.zeros(len(X), dtype=np.uint64)
    for column in X.T:
        values = column.astype(np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        hashes += np.uint64(0x9E3779B97F4A7C15)
        hashes ^= values.view(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            hashes ^= hashes >> np.uint64(shift)  # the finaliser of splitmix64
            hashes *= np.uint64(factor)
        hashes ^= hashes >> np.uint64(31)
    return hashes.view(np.int64)


def projected(X: NDArray[Any]) -> NDArray[np.float64]:
    """Return the projection of each row on one random direction; unknown values are 0. (n,)"""
    direction = np.random.RandomState(0).uniform(0.5, 1.5, (X.shape[1],))
    places = np.zeros(len(X))
    # Column by column, unlike in a matrix product, rounding does not depend on where a row stands.
    with np.errstate(over="ignore", invalid="ignore"):
        for column, factor in zip(X.T, direction, strict=True):
            places += factor * np.nan_to_num(column.astype(np.float64))
    return places


def largest_value(X: NDArray[Any]) -> float:
    """Return the largest absolute value, or 1 if there is none above 0."""
    largest = np.fmax(np.fmax.reduce(X, None), -np.fmin.reduce(X, None))
    return float(np.nan_to_num(largest)) or 1.0


def fits_float32(size: float) -> bool:
    """Return True if squares of such numbers, and one over them, fit into float32."""
    return 1e-12 < size < 1e15


def in_blocks(X: Any, sample_weight: Any = None) -> Blocks | None:
    """Return the blocks of a Dask collection; None for everything else."""
    if isinstance(X, Blocks):
        if sample_weight is not None:
            raise InvalidInputError("Blocks of a file have no sample_weight.")
        return X
    return dask_blocks(X, extra=sample_weight) if is_dask(X) else None


def one_block(X: NDArray[Any], weights: NDArray[Any]) -> Blocks:
    """Return checked rows in memory as a table of one block."""
    return HeldBlocks([TableBlock("X", 0, X, weights)], TableLayout(X.shape[1], X.dtype))


def require_in_memory(X: Any, name: str) -> None:
    """Raise for Dask collections, which would be gathered silently."""
    if is_dask(X) or isinstance(X, Blocks):
        raise InvalidInputError(
            f"{name} needs these rows in memory: pass X.compute(), or one block at a time to "
            "partial_fit if it has one."
        )


@dataclass(frozen=True)
class BlockRows:
    """The data of a fit in blocks; it stands for :class:`Rows` where statistics are summed."""

    blocks: Blocks
    few: Rows
    n_rows: int
    total: float
    square: float
    known_total: float

    @classmethod
    def of(cls, raw: Blocks, n_rows: int, few: RowSample, units: Scaling) -> BlockRows:
        """Convert blocks to internal units, where they are."""
        rows = raw.mapped(_sample, few.values.numpy().dtype, units)
        totals = rows.total(lambda own: np.array([own.total, own.square, own.known_total]))
        return cls(rows, few.into(units), n_rows, *totals.tolist())

    @property
    def dim(self) -> int:
        """The number of features D."""
        return self.few.dim

    @property
    def dtype(self) -> torch.dtype:
        """Float32 or float64."""
        return self.few.dtype

    def __len__(self) -> int:
        """Return the number of distinct rows, if all are in the sample, or else of all rows."""
        return len(self.few) if self.few.total >= self.total * (1 - 1e-9) else self.n_rows

    def sample(self) -> Rows:
        """Return a random choice of distinct rows, or all of them if they are few."""
        return self.few

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum over all blocks of ``function(rows, *arguments)``."""
        return self.blocks.total(function, *arguments)


AnyRows = Rows | BlockRows


def _sample(block: TableBlock, dtype: Any, units: Scaling | None = None) -> Any:
    """Return a sample of the distinct rows of a block, or all of them in internal units."""
    X, weights = counted(block)
    if not len(X):
        return None
    distinct = RowSample.distinct(X.astype(dtype, copy=False), weights)
    return distinct.sample() if units is None else distinct.in_order().into(units)


def measured(
    raw: Blocks, names: Any = None, by_column: bool = False
) -> tuple[int, RowSample, Scaling]:
    """Return the number of rows that count, a sample of them (float32 if it fits), and units."""
    moments: Moments = raw.total(Moments.of)
    dtype = raw.layout.dtype if fits_float32(moments.size) else np.dtype(np.float64)
    few: RowSample = raw.total(_sample, dtype)
    units = moments.units(names)
    return moments.n_rows, few.in_order(), moments.columns() if by_column else units
