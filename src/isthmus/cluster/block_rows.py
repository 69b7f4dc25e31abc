"""Fits on rows in blocks: the same statistics as of rows in memory, reduced over the blocks."""

from __future__ import annotations

import copy
import warnings
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.cluster.data import Moments, Rows, RowSample, Units, counted, require_observed
from isthmus.distributed.blocks import Blocks, TableBlock, dask_blocks, is_dask
from isthmus.errors import InvalidInputError


def in_blocks(X: Any, sample_weight: Any = None) -> Blocks | None:
    """Return the blocks of a Dask collection; None for everything else."""
    if isinstance(X, Blocks):
        if sample_weight is not None:
            raise InvalidInputError("Blocks of a file have no sample_weight.")
        return X
    return dask_blocks(X, extra=sample_weight) if is_dask(X) else None


def require_in_memory(X: Any, name: str) -> None:
    """Raise for Dask collections, which would be gathered silently."""
    if is_dask(X) or isinstance(X, Blocks):
        raise InvalidInputError(
            f"{name} needs these rows in memory: pass X.compute(), or one block at a time to "
            "partial_fit if it has one."
        )


@dataclass(frozen=True)
class Extent:
    """The range of each column, its number of known values, and the number of rows that count."""

    lowest: NDArray[Any]
    highest: NDArray[Any]
    known: NDArray[Any]
    n_rows: int

    @classmethod
    def of(cls, block: TableBlock) -> Extent | None:
        """Measure one block; None if no row counts."""
        X, _ = counted(block)
        if not len(X):
            return None
        return cls(np.fmin.reduce(X, 0), np.fmax.reduce(X, 0), (~np.isnan(X)).sum(0), len(X))

    def __add__(self, other: Extent) -> Extent:
        return Extent(
            np.fmin(self.lowest, other.lowest),
            np.fmax(self.highest, other.highest),
            self.known + other.known,
            self.n_rows + other.n_rows,
        )

    @property
    def size(self) -> float:
        """The largest absolute value, or 1 if there is none above 0."""
        return max(float(np.fmax.reduce(self.highest)), -float(np.fmin.reduce(self.lowest))) or 1.0


@dataclass(frozen=True)
class BlockRows:
    """The data of a fit in blocks; it stands for :class:`Rows` where statistics are summed."""

    blocks: Blocks
    few: Rows
    n_rows: int

    @classmethod
    def of(cls, raw: Blocks, extent: Extent, few: RowSample, units: Units) -> BlockRows:
        """Convert blocks to internal units, where they are."""
        rows = raw.mapped(_as_rows, units, few.values.dtype)
        return cls(rows, few.rows(units), extent.n_rows)

    def __len__(self) -> int:
        """Return the number of distinct rows, if all are in the sample, or else of all rows."""
        return len(self.few) if self.few.total >= self.total * (1 - 1e-9) else self.n_rows

    @property
    def dim(self) -> int:
        """The number of features D."""
        return self.few.dim

    @property
    def dtype(self) -> torch.dtype:
        """Float32 or float64."""
        return self.few.dtype

    @property
    def smallest_variance(self) -> float:
        """The variance below which rounding errors would decide."""
        return self.few.smallest_variance

    @cached_property
    def _totals(self) -> NDArray[np.float64]:
        return np.asarray(self.blocks.total(_totals))

    @property
    def total(self) -> float:
        """The sum of weights."""
        return float(self._totals[0])

    @property
    def square(self) -> float:
        """The weighted sum of squared lengths."""
        return float(self._totals[1])

    @property
    def known_total(self) -> float:
        """The weighted number of known coordinates."""
        return float(self._totals[2])

    def sample(self) -> Rows:
        """Return a random choice of distinct rows, or all of them if they are few."""
        return self.few

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum over all blocks of ``function(rows, *arguments)``."""
        return self.blocks.total(function, *arguments)


AnyRows = Rows | BlockRows


def _distinct(block: TableBlock, dtype: Any) -> RowSample | None:
    X, weights = counted(block)
    return RowSample.of(X.astype(dtype, copy=False), weights) if len(X) else None


def _as_rows(block: TableBlock, units: Units, dtype: Any) -> Rows | None:
    rows = _distinct(block, dtype)
    return None if rows is None else rows.rows(units)


def _totals(rows: Rows) -> NDArray[np.float64]:
    return np.array([rows.total, rows.square, rows.known_total])


def _sample(block: TableBlock, dtype: Any) -> RowSample | None:
    rows = _distinct(block, dtype)
    return None if rows is None else rows.cut()


def measured(raw: Blocks, limits: tuple[float, float]) -> tuple[Extent, RowSample, Units]:
    """Return the extent of the rows, a sample of them, and their units.

    Float32 is kept if the largest value is within the limits.
    """
    extent: Extent = raw.total(Extent.of)
    require_observed(extent.known > 0)
    dtype = raw.layout.dtype
    if not limits[0] < extent.size < limits[1]:
        dtype = np.dtype(np.float64)
    few: RowSample = raw.total(_sample, dtype)
    units = raw.total(Moments.of, extent.size).units(extent.size)
    return extent, few, units


def mapped_lazily(estimator: Any, method: str, X: Any, width: int | None, dtype: Any) -> Any:
    """Return a Dask array of what a method of an estimator says of each row, not yet computed."""
    array = X.to_dask_array() if hasattr(X, "to_dask_array") else X
    if array.ndim == 2 and array.numblocks[1] > 1:
        array = array.rechunk({1: -1})
    plain = copy.copy(estimator)
    vars(plain).pop("labels_", None)  # which is of other rows, and may hold all of them
    shape = {"drop_axis": 1} if width is None else {"chunks": (array.chunks[0], (width,))}
    meta = np.empty((0,) if width is None else (0, width), dtype=dtype)
    return array.map_blocks(
        partial(_on_block, plain, method, meta), dtype=dtype, meta=meta, **shape
    )


def _on_block(estimator: Any, method: str, empty: NDArray[Any], X: NDArray[Any]) -> NDArray[Any]:
    if not len(X):
        return empty
    with warnings.catch_warnings():
        # Blocks have no names of columns.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        found: NDArray[Any] = getattr(estimator, method)(X)
    return found.astype(empty.dtype, copy=False)
