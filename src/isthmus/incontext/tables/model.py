"""ICLTables: condition on a small table of numbers, and get its density as a memory."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus import validation
from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.incontext.storage import StoredModel
from isthmus.incontext.tables.network import Components, TableConfig, TableNetwork, write_memory
from isthmus.memories.student_mixture import StudentMixture

Array = NDArray[np.float64]

FEWEST_ROWS = 5
# Larger tables are read in parts of `max_rows`, at most this many.
MOST_PARTS = 4
# The width of a constant column, relative to its value.
CONSTANT_WIDTH = 1e-3
# A column hardly repeats if this share of its rows have a value of their own.
DISTINCT = 0.95
# Spans of a column, within which widths of kernels and their inverses are normal numbers.
SMALLEST_SPAN, LARGEST_SPAN = 1e-302, 1e305


class ICLTables(StoredModel):
    r"""An in-context density of small tables: a transformer that writes a memory.

    :meth:`condition` reads a table and returns a :class:`~isthmus.StudentMixture` in the units of
    its columns: a few components for each row and two for the whole table, with exact
    ``log_prob``, ``sample``, ``marginal`` and ``conditional``. Nothing is fitted. The density
    moves with the table under permutations of rows and columns, shifts, scales and sign flips.

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

    @torch.no_grad()
    def condition(self, X: Any) -> StudentMixture:
        """Return the density of the rows of a table.

        Parameters
        ----------
        X : array, Tensor or data frame (n, D)
            At least 5 rows of 1 to ``config.max_columns`` numeric columns; NaN marks a missing
            cell, and rows with no other cells are left out.

            Of more than ``config.max_rows`` rows, up to four parts of that size are read, taken
            evenly along the distance from the mean, and their densities averaged.

        Returns
        -------
        StudentMixture
            In float64. Kernels along a column are at least 0.0015 of its standard deviations wide.
            Where a column repeats values, such as counts, its resolution is the smallest gap
            beside a repeated value, and kernels are so wide that none exceeds the density
            1 / resolution. A constant column gets a width of a thousandth of its value. Rows that
            repeat as a whole, in a table with a column that hardly repeats otherwise, are copies
            and read once.
        """
        table = _without_copies(self._as_table(X))
        columns = [_Column.of(values, name) for name, values in enumerate(table.T)]
        varying = [index for index, column in enumerate(columns) if not column.constant]
        if not varying:
            raise InvalidInputError(
                "All rows of X are equal, so they say nothing about the spread of its columns."
            )
        standard = np.stack([columns[index].standard(table[:, index]) for index in varying], 1)
        parts = [self._read(torch.from_numpy(part)) for part in self._parts(standard)]
        density = _assembled(parts, columns, varying)
        density.returns_arrays = not isinstance(X, Tensor)
        return density

    def _read(self, context: Tensor) -> Components:
        """Return what the network writes of a table in standard units."""
        return write_memory(self.network, context[None].to(next(self.network.parameters()).dtype))

    def _parts(self, table: Array) -> list[Array]:
        """Return parts of at most `max_rows` rows that do not depend on the order of rows."""
        size = self.config.max_rows
        if len(table) <= size:
            return [table]
        count = min(MOST_PARTS, math.ceil(len(table) / size))
        order = np.argsort(np.nanmean(np.square(table), 1), kind="stable")
        kept = order[
            np.linspace(0, len(table) - 1, min(len(table), count * size)).round().astype(int)
        ]
        return [table[kept[part::count]] for part in range(count)]

    def _as_table(self, X: Any) -> Array:
        table = as_numbers(X)
        if table.ndim != 2:
            raise ShapeError(f"X must be a table of shape (n, D), not {table.shape}.")
        limit = self.config.max_columns
        if not 1 <= table.shape[1] <= limit:
            raise InvalidInputError(
                f"X has {table.shape[1]} columns; the model reads 1 to {limit}. Choose the "
                f"columns that matter, or project with sklearn.decomposition.PCA({limit})."
            )
        if bool(np.isinf(table).any()):
            raise InvalidInputError("X has infinite values. Mark missing cells with NaN.")
        missing = np.isnan(table)
        if empty := np.flatnonzero(missing.all(0)).tolist():
            raise InvalidInputError(f"Columns {empty} of X have no values. Leave them out.")
        table = table[~missing.all(1)]
        if len(table) < FEWEST_ROWS:
            raise InvalidInputError(
                f"X has {len(table)} row{'s' * (len(table) != 1)} with values; the model needs at "
                f"least {FEWEST_ROWS}."
            )
        return table


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


class _Column:
    """Location and scale of a column, computed without overflow."""

    def __init__(self, location: float, scale: float, constant: bool) -> None:
        self.location, self.scale, self.constant = location, scale, constant

    @classmethod
    def of(cls, values: Array, name: int) -> _Column:
        known = values[~np.isnan(values)]
        low, high = known.min(), known.max()
        if low == high:
            return cls(low, CONSTANT_WIDTH * (abs(low) or 1.0), True)
        middle, half = low / 2 + high / 2, high / 2 - low / 2
        if not SMALLEST_SPAN < half < LARGEST_SPAN:
            raise InvalidInputError(
                f"Column {name} of X goes from {low:.3g} to {high:.3g}, beyond what "
                "double precision can normalise. Rescale it."
            )
        inside = (known - middle) / half
        return cls(middle + half * inside.mean(), half * inside.std(), False)

    def standard(self, values: Array) -> Array:
        return (values - self.location) / self.scale


def _assembled(
    parts: list[Components], columns: list[_Column], varying: list[int]
) -> StudentMixture:
    """Return the average of the parts in the units of all columns, the constant ones included."""
    location = torch.tensor([column.location for column in columns], dtype=torch.float64)
    scale = torch.tensor([column.scale for column in columns], dtype=torch.float64)
    means, trils, dof, log_weights = (
        torch.cat([part[i][0] for part in parts]).double() for i in range(4)
    )
    all_means = means.new_zeros(len(means), len(columns))
    all_means[:, varying] = means
    all_trils = torch.eye(len(columns), dtype=means.dtype).repeat(len(means), 1, 1)
    index = torch.tensor(varying)
    all_trils[:, index[:, None], index] = trils
    return StudentMixture(
        all_means * scale + location,
        all_trils * scale[:, None],
        dof,
        log_weights - math.log(len(parts)),
    )


def as_numbers(X: Any) -> Array:
    """Return a table as float64, with NaN for missing cells; text is refused."""
    try:
        return validation.as_numbers(X, "X")
    except DtypeError:
        raise DtypeError(
            "X holds text, dates or other values that are not numbers. Leave such columns out: the "
            "model knows numeric columns only, and one column for each category is no substitute."
        ) from None
