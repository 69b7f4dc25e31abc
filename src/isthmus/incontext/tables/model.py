"""ICLTables: condition on a table, and get its density as a memory that answers questions."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus import validation
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext.storage import StoredModel
from isthmus.incontext.tables.network import TableConfig, TableNetwork, write_memory
from isthmus.memories.table_mixture import StudentMixture, TableMixture
from isthmus.printing import counted, listed

Array = NDArray[np.float64]
Codes = NDArray[np.int64]

FEWEST_ROWS = 5
# The most values of a category; the rarest of more are read as one.
MOST_VALUES = 64
# Larger tables are read in parts of `max_rows`, at most this many.
MOST_PARTS = 8
# The most numbers that the components of all parts have.
MOST_ENTRIES = 2**24
# The width of a constant column, relative to its value.
CONSTANT_WIDTH = 1e-3
# A column hardly repeats if this share of its rows have a value of their own.
DISTINCT = 0.95
# Spans of a column, within which widths of kernels and their inverses are normal numbers.
SMALLEST_SPAN, LARGEST_SPAN = 1e-302, 1e305


class ICLTables(StoredModel):
    r"""An in-context density of small tables: a transformer that writes a memory.

    :meth:`condition` reads a table of numbers and returns a :class:`~isthmus.StudentMixture` in
    the units of its columns, or a data frame and returns a :class:`ConditionedTable` that
    answers questions about it: a few components for each row, for each value of some categories,
    and for the whole table. Nothing is fitted. The density moves with the table under permutations
    of rows and columns, shifts, scales, sign flips and other names of categories.

    Parameters
    ----------
    config : TableConfig, optional

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.incontext import pretrained
    >>> rng = np.random.default_rng(0)
    >>> height = rng.normal(170, 10, 60)
    >>> table = np.stack([height, 0.9 * height - 90 + rng.normal(0, 6, 60)], 1)
    >>> density = pretrained("tables").condition(table)
    >>> density
    StudentMixture(N=182, D=2, weighted=True, float64)
    >>> np.diff(density.log_prob([[170.0, 63.0], [170.0, 110.0]])) < -5
    array([ True])
    >>> float(density.conditional([180.0, np.nan]).sample(1000).mean().round(-1))
    70.0
    """

    format = "isthmus-icltables-3"
    config_type = TableConfig
    config: TableConfig

    def __init__(self, config: TableConfig | None = None) -> None:
        config = TableConfig() if config is None else config
        super().__init__(config)
        self.network = TableNetwork(config)

    def condition(self, X: Any, target: Any = None) -> Any:
        """Return the density of the rows of a table.

        Parameters
        ----------
        X : array, Tensor or data frame (n, D)
            At least 5 rows of 1 to ``config.max_columns`` columns. Arrays and tensors hold numbers;
            frames may also hold truth values, categories and times. NaN marks a missing
            cell, and rows with no other cells are left out.

            Of more than ``config.max_rows`` rows, up to eight parts of that size are read, taken
            evenly along the distance from the mean, and their densities averaged.
        target : hashable or int, optional
            A column that will be asked for: the density is written so that its conditionals given
            the others are as good as can be, at the expense of the rest.

        Returns
        -------
        StudentMixture, or ConditionedTable for a data frame
            In float64. Kernels along a column are at least 0.0015 of its standard deviations wide.
            Where a column repeats values, such as counts, its resolution is the smallest gap
            beside a repeated value, and kernels are so wide that none exceeds the density
            1 / resolution. A constant column gets a width of a thousandth of its value. Rows that
            repeat as a whole, in a table with a column that hardly repeats otherwise, are copies
            and read once.
        """
        if hasattr(X, "columns") and hasattr(X, "dtypes"):
            from isthmus.incontext.tables.questions import read_frame

            return read_frame(self, X, target)
        table = validation.as_numbers(X, "X")
        if table.ndim != 2:
            raise ShapeError(f"X must be a table of shape (n, D), not {table.shape}.")
        if target is not None:
            target = validation.as_count(target, "target", at_least=0, at_most=table.shape[1] - 1)
        found = self.density_of(table, target=target)
        density = StudentMixture(found.means, found.scale_trils, found.dof, found.log_weights)
        density.returns_arrays = not isinstance(X, Tensor)
        return density

    @torch.no_grad()
    def density_of(
        self,
        table: Array,
        codes: Codes | None = None,
        names: Sequence[Any] | None = None,
        target: int | None = None,
        origin: Any = 0.0,
    ) -> TableMixture:
        """Return the density of numbers (n, D) and categories (n, C), -1 if missing.

        The values of a category are 0, 1, ...; one more stands for others. `names` are those of the
        columns, numbers first. The `target` is a number, or a category from D on. Numbers are
        measured from an `origin`.
        """
        codes = np.zeros((len(table), 0), np.int64) if codes is None else codes
        table, codes = self._checked(table - origin, codes, names)
        location, scale, varying = _units(table)
        numbers, counts = table.shape[1], codes.max(0, initial=-1) + 1
        if not varying.any() and not codes.shape[1]:
            raise InvalidInputError(
                "All rows of X are equal, so they say nothing about the spread of its columns."
            )
        standard = np.zeros((len(table), 1))
        if varying.any():
            standard = ((table - location) / scale)[:, varying]
        place: int | None = None
        if target is not None and target >= numbers:
            place = standard.shape[1] + target - numbers
        elif target is not None and varying[target]:
            place = int(varying[:target].sum())
        dtype, known = next(self.network.parameters()).dtype, torch.from_numpy(counts)[None]
        parts = []
        for rows in self._parts(standard, codes, numbers**2 + int(counts.sum())):
            context, labels = (torch.from_numpy(each[rows])[None] for each in (standard, codes))
            parts.append(write_memory(self.network, context.to(dtype), labels, known, place))
        means, trils, dof, logs = (torch.cat([each[i][0] for each in parts]).double()
                                   for i in range(4))  # fmt: skip
        # In the units of all columns, the constant ones included.
        all_means = means.new_zeros(len(logs), numbers)
        all_trils = torch.eye(numbers).to(trils).repeat(len(logs), 1, 1)
        if varying.any():
            index = torch.from_numpy(np.flatnonzero(varying))
            all_means[:, index] = means
            all_trils[:, index[:, None], index] = trils
        unit, shares = torch.from_numpy(scale), torch.cat([each.log_shares[0] for each in parts])
        values = []
        for column, count in zip(shares.double().unbind(1), counts.tolist(), strict=True):
            known = torch.cat([column[:, :count], column[:, -1:]], 1).softmax(1)
            kept = min(count, MOST_VALUES)  # the rarest values and those that no row has are others
            values.append(torch.cat([known[:, :kept], known[:, kept:].sum(1, keepdim=True)], 1))
        all_means = all_means * unit + torch.from_numpy(location + origin)
        logs = logs - math.log(len(parts))
        return TableMixture(all_means, values, all_trils * unit[:, None], dof, logs)

    def _parts(self, table: Array, codes: Codes, entries: int) -> list[NDArray[np.int64]]:
        """Return rows of parts of at most `max_rows`, which do not depend on the order of rows."""
        size = self.config.max_rows
        if len(table) <= size:
            return [np.arange(len(table))]
        room = MOST_ENTRIES // (self.config.kernels * size * max(1, entries))
        count = min(MOST_PARTS, math.ceil(len(table) / size), max(1, room))
        distance = np.nansum(np.square(table), 1)
        for column in codes.T:
            values, place, times = np.unique(column, return_inverse=True, return_counts=True)
            distance = distance - np.where(values < 0, 0.0, np.log(times / len(table)))[place]
        order = np.argsort(distance, kind="stable")
        kept = order[
            np.linspace(0, len(table) - 1, min(len(table), count * size)).round().astype(int)
        ]
        return [kept[part::count] for part in range(count)]

    def _checked(
        self, table: Array, codes: Codes, names: Sequence[Any] | None
    ) -> tuple[Array, Codes]:
        """Return rows that have values, and of numbers alone without copies, after checks."""
        width, limit = table.shape[1] + codes.shape[1], self.config.max_columns
        names = range(width) if names is None else names
        if not 1 <= width <= limit:
            raise InvalidInputError(
                f"X has {width} columns; the model reads 1 to {limit}. Choose the columns that "
                f"matter, or project numbers with sklearn.decomposition.PCA({limit})."
            )
        known = np.concatenate([~np.isnan(table), codes >= 0], 1)
        rows = known.any(1)
        infinite, empty = (
            listed([str(names[place]) for place in np.flatnonzero(mask).tolist()])
            for mask in (np.isinf(table).any(0), ~known.any(0))
        )
        if infinite:
            raise InvalidInputError(f"Infinite values in {infinite} of X. Use NaN for gaps.")
        if empty and len(known):
            raise InvalidInputError(f"Columns without values: {empty}. Leave them out.")
        if rows.sum() < FEWEST_ROWS:
            raise InvalidInputError(
                f"X has {counted(int(rows.sum()), 'row')} with values; the model needs at least "
                f"{FEWEST_ROWS}."
            )
        table, codes = table[rows], codes[rows]
        table = table if codes.shape[1] else _without_copies(table)
        return table, codes[: len(table)]


def _without_copies(table: Array) -> Array:
    """Return the distinct rows, if they are enough and a column hardly repeats among them."""
    if table.shape[1] < 2 or bool(np.isnan(table).any()):
        return table
    rows = np.unique(table, axis=0)
    if not FEWEST_ROWS <= len(rows) < len(table):
        return table
    # Rows that share a value which others do not have are copies, whatever ties there are.
    distinct = max(len(np.unique(column)) for column in rows.T)
    return rows if distinct >= DISTINCT * len(rows) else table


def _units(table: Array) -> tuple[Array, Array, NDArray[np.bool_]]:
    """Return locations and scales of columns, without overflow, and which of them vary. (D,)"""
    low, high = np.nanmin(table, 0), np.nanmax(table, 0)
    middle, half, varying = low / 2 + high / 2, high / 2 - low / 2, low < high
    wrong = varying & ~((half > SMALLEST_SPAN) & (half < LARGEST_SPAN))
    for name in np.flatnonzero(wrong):
        raise InvalidInputError(
            f"Column {name} of X goes from {low[name]:.3g} to {high[name]:.3g}, beyond what "
            "double precision can normalise. Rescale it."
        )
    inside = (table - middle) / np.where(varying, half, 1.0)
    location = np.where(varying, middle + half * np.nanmean(inside, 0), low)
    width = CONSTANT_WIDTH * np.where(low == 0, 1.0, np.abs(low))
    return location, np.where(varying, half * np.nanstd(inside, 0), width), varying
