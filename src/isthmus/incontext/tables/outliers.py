"""Scores of rows, and kernels as wide as neighbourhoods that score the rows of a table itself."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.spatial.distance import cdist
from scipy.special import logsumexp

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.printing import Summarised, counted
from isthmus.tables.encoding import Coding, as_frame, is_mixed
from isthmus.validation import as_numbers

Array = NDArray[np.float64]

# Entries of the largest temporary, a budget of memory.
BLOCK_ENTRIES = 2**23
# The lowest share of the log-densities of a table is smoothed by an exponential tail.
TAIL = 0.1
# Rows that stand for the table where cells are missing: a budget of computation.
MOST_COMPARED = 500
# Kernels are at least this wide, in standard deviations of the columns.
NARROWEST = 1e-3
# Columns named for each outlier, and outliers that are printed.
MOST_NAMED, MOST_SHOWN = 3, 10


@dataclass(frozen=True)
class RowScores(Summarised):
    """Scores of rows under the density of a table.

    Attributes
    ----------
    log_density : ndarray (n,)
        In nats, in the units of the columns; of the known cells, where some are missing. NaN for
        a row without a known cell, of which nothing can be said.
    percentile : ndarray (n,)
        Percentage of usual rows that are less likely: of the other rows of the table, or of the
        density's own draws. NaN if nothing can be said.
    outlier : ndarray (n,) of bool
        True where the percentile is below `level` percent.
    level : float
    odd_columns : dict of int to tuple
        Of each outlier, up to three columns that are least likely given the others, first the
        oddest: those at least half as surprising, in nats, as the first.
    ids : sequence or None
        Names of the rows in the printed lines; None for their numbers, from 0.
    p_value : ndarray (n,) or None
        Probability that a row of the density is no more likely, which is never 0 of finitely many
        draws; None of rows that were scored by each other.
    """

    log_density: Array
    percentile: Array
    outlier: NDArray[np.bool_]
    level: float
    odd_columns: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    ids: Any = None
    p_value: Array | None = None

    @property
    def summary(self) -> dict[str, Any]:
        """The main numbers, for a JSON file."""
        names = range(len(self.outlier)) if self.ids is None else self.ids
        odd = [(names[row], columns) for row, columns in self.odd_columns.items()]
        return {
            "rows": len(self.log_density),
            "mean_log_density": self._mean,
            "outliers": int(self.outlier.sum()),
            "level": self.level,
            "odd_columns": {str(row): list(map(str, columns)) for row, columns in odd},
        }

    @property
    def _mean(self) -> float:
        known = self.log_density[~np.isnan(self.log_density)]
        return float(known.mean()) if len(known) else math.nan

    def __str__(self) -> str:
        count, rows = int(self.outlier.sum()), len(self.log_density)
        return (
            f"{rows} rows, mean log-density {self._mean:.4g} nats\n"
            f"{count} outlier{'s' * (count != 1)}: less likely than {100 - self.level:g} % of "
            "usual rows" + "".join(f"\n  {line}" for line in self._flagged())
        )

    def _flagged(self) -> list[str]:
        """Return a line for each of the first outliers, oddest first: its id and its columns."""
        order = sorted(self.odd_columns, key=lambda row: self.percentile[row])
        names = range(len(self.outlier)) if self.ids is None else self.ids
        lines = [
            f"row {names[row]}: {', '.join(map(str, self.odd_columns[row]))}"
            for row in order[:MOST_SHOWN]
        ]
        return lines + [f"and {len(order) - MOST_SHOWN} more"] * (len(order) > MOST_SHOWN)


def odd_columns(
    rows: NDArray[Any], gains: Array, names: Sequence[Any]
) -> dict[int, tuple[Any, ...]]:
    """Return the columns of each row with the largest gains, at least half of the first."""
    found = {}
    for row, gain in zip(rows.tolist(), gains, strict=True):
        order = np.argsort(-gain, kind="stable")[:MOST_NAMED]
        found[row] = tuple(names[place] for place in order if gain[place] >= 0.5 * gain[order[0]])
    return found


class NeighbourKernels:
    r"""A kernel on each row of a table, as wide as the distance of its neighbours.

    In standard units, the kernel of row j is a round Gaussian of the width
    :math:`h_j = r_j / \sqrt D`, where :math:`r_j` is the distance of its :math:`\sqrt n`-th nearest
    row. So a group of fewer than :math:`\sqrt n` rows apart from the others has kernels that reach
    the others, and its rows do not make each other usual. A kernel keeps the category of its row
    with probability :math:`1 / (1 + h_j^2)`, and else has those of the column; it has the
    mean and deviation of a column where its row has a gap.
    """

    def __init__(self, X: Any) -> None:
        self.coding = Coding.of(as_frame(X)) if is_mixed(X) else None
        self.names = list(X.columns) if hasattr(X, "columns") else None
        numbers, codes = self._read(X)
        empty = np.isnan(numbers).all(0)
        known = np.where(empty, 0.0, numbers)
        size = np.maximum(np.nanmax(np.abs(known), 0, initial=0), 1e-300)
        self.centre = np.nanmean(known / size, 0) * size
        scale = np.nanstd(known / size, 0) * size
        self.scale = np.where(scale > 1e-12 * size, scale, np.maximum(size, 1e-3) * 1e-3)
        self.codes, self.shares, weights = codes, [], []
        for column in codes.T:
            counts = np.bincount(column[column >= 0].astype(int), minlength=1)
            share = (counts + 1 / len(counts)) / (counts.sum() + 1)
            self.shares.append(share)
            weights.append(2 / max(1 - float(np.square(share).sum()), 1e-3))
        self.apart = np.array(weights)
        self.rows = self._standard(numbers)
        count, self.dim = len(numbers), numbers.shape[1] + codes.shape[1]
        if count < 3:
            raise InvalidInputError(f"X has {counted(count, 'row')}; outliers need at least 3.")
        if (numbers == numbers[0]).all() and (codes == codes[0]).all():
            raise InvalidInputError("All rows are equal, so they have no density.")
        nearest = min(math.ceil(math.sqrt(count)), count - 1)
        found = [
            np.partition(squares, nearest, axis=1)[:, nearest]
            for squares in self._by_block(self._distances, self.rows, codes)
        ]
        widths = np.maximum(np.sqrt(np.concatenate(found) / self.dim), NARROWEST)
        # Too few rows share a known column with the row: its neighbours are not known.
        self.widths = np.where(np.isfinite(widths), widths, 1.0)

    def _read(self, X: Any) -> tuple[Array, Array]:
        """Return numbers (n, D), and codes of categories (n, C), -1 where missing."""
        if self.coding is None:
            numbers = as_numbers(X, "X")
            if numbers.ndim != 2 or 0 in numbers.shape:
                raise ShapeError(f"X must be a table of shape (n, D), not {numbers.shape}.")
            codes = np.empty((len(numbers), 0))
        else:
            frame, names = as_frame(X), self.names or []
            if missing := [name for name in names if name not in getattr(frame, "columns", [])]:
                raise InvalidInputError(f"rows must have the columns of X; {missing} are missing.")
            numbers, codes = self.coding.codes(frame[names])
        if np.isinf(numbers).any():
            raise InvalidInputError("X has infinite values. Mark missing cells with NaN.")
        return numbers, codes

    def read(self, rows: Any) -> tuple[Array, Array]:
        """Return rows of the same columns in standard units, and their codes."""
        numbers, codes = self._read(rows)
        if numbers.shape[1] + codes.shape[1] != self.dim:
            raise ShapeError(f"rows must be (m, {self.dim}) as X, not {np.shape(rows)}.")
        return self._standard(numbers), codes

    def _standard(self, numbers: Array) -> Array:
        return np.clip((numbers - self.centre) / self.scale, -1e100, 1e100)

    def _by_block(self, function: Any, *arrays: Any) -> list[Any]:
        size = max(1, BLOCK_ENTRIES // len(self.rows))
        starts = range(0, max(len(arrays[0]), 1), size)
        return [function(*(each[start : start + size] for each in arrays)) for start in starts]

    def _squares(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return sums over columns known in both, their number, and sums of the other columns."""
        seen, own = ~np.isnan(rows), ~np.isnan(self.rows)
        if seen.all() and own.all():
            zero = np.zeros((1, 1))
            return cdist(rows, self.rows, "sqeuclidean"), zero + rows.shape[1], zero
        known, rows, memories = seen.astype(float), np.nan_to_num(rows), np.nan_to_num(self.rows)
        squares = np.square(rows) @ own.T - 2 * rows @ memories.T + known @ np.square(memories).T
        return np.maximum(squares, 0), known @ own.T, np.square(rows) @ (~own).T

    def _same(self, codes: Array, place: int) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """Return where the categories of rows and memories are equal, and where both are known."""
        column, own = codes[:, place, None], self.codes[:, place]
        return column == own, (column >= 0) & (own >= 0)

    def _distances(self, rows: Array, codes: Array) -> Array:
        """Return squared distances to the rows of the table, as if all columns were known."""
        squares, both, _ = self._squares(rows)
        for place, apart in enumerate(self.apart):
            same, known = self._same(codes, place)
            squares += apart * (known & ~same)
            both = both + known
        return np.where(both > 0, squares * self.dim / np.maximum(both, 1), np.inf)

    def _logits(self, rows: Array, codes: Array) -> Array:
        """Return the log-density of each kernel at rows, of their known cells. (q, n)"""
        squares, both, others = self._squares(rows)
        logits = -0.5 * (squares / self.widths**2 + others) - both * np.log(self.widths)
        kept = 1 / (1 + self.widths**2)
        for place, share in enumerate(self.shares):
            column = codes[:, place, None].astype(int)
            usual = np.where(column < len(share), share[np.minimum(column, len(share) - 1)], 0.0)
            usual = np.where(usual > 0, usual, share.min())
            same, known = self._same(codes, place)
            chance = np.where(known, kept * same + (1 - kept) * usual, usual)
            logits += np.where(column >= 0, np.log(chance), 0.0)
        return np.asarray(logits)

    def log_density(
        self, rows: Array, codes: Array, own: NDArray[Any] | None = None
    ) -> NDArray[np.float64]:
        """Return log-densities of the known cells; `own` numbers kernels to leave out. (q,)"""

        def density(rows: Array, codes: Array, own: Any = None) -> Array:
            logits = self._logits(rows, codes)
            if own is not None:
                logits[np.arange(len(rows)), own] = -np.inf
            return np.asarray(logsumexp(logits, axis=1))

        blocks = self._by_block(density, rows, codes, *([] if own is None else [own]))
        found = np.concatenate(blocks)
        units = np.log(self.scale) + 0.5 * math.log(2 * math.pi)
        found -= (~np.isnan(rows)) @ units + math.log(len(self.rows) - (own is not None))
        return np.where(self._known(rows, codes).any(1), found, np.nan)

    @staticmethod
    def _known(rows: Array, codes: Array) -> NDArray[np.bool_]:
        return np.concatenate([~np.isnan(rows), codes >= 0], 1)

    def scored(self, rows: Array, codes: Array, own: NDArray[Any] | None) -> tuple[Array, Array]:
        """Return log-densities, and percentiles among those of the table's rows."""
        found = self.log_density(rows, codes, own)
        percentile = np.full(len(rows), np.nan)
        known, table = self._known(rows, codes), self._known(self.rows, self.codes)
        numbers = self.rows.shape[1]
        for pattern in np.unique(known, axis=0):
            if not pattern.any():
                continue
            mine = (known == pattern).all(1)
            places = np.flatnonzero(table[:, pattern].all(1))
            if len(places) < 2:
                places = np.arange(len(table))
            if not pattern.all() and len(places) > MOST_COMPARED:
                places = places[np.linspace(0, len(places) - 1, MOST_COMPARED).astype(int)]
            part = np.where(pattern[:numbers], self.rows[places], np.nan)
            kinds = np.where(pattern[numbers:], self.codes[places], -1)
            usual = self.log_density(part, kinds, places)
            percentile[mine] = percentiles(found[mine], usual)
        return found, percentile

    def blame(self, rows: Array, codes: Array, own: NDArray[Any] | None = None) -> Array:
        """Return by how many nats each column lowers the density of a row. (q, D + C)

        It is the gain in log-density per cell if a row is scored without the column.
        """
        whole = self.log_density(rows, codes, own)
        gains = np.zeros((len(rows), self.dim))
        numbers = rows.shape[1]
        for place in range(self.dim):
            part, kinds = rows.copy(), codes.copy()
            if place < numbers:
                part[:, place] = np.nan
            else:
                kinds[:, place - numbers] = -1
            unit = math.log(self.scale[place]) if place < numbers else 0.0
            gains[:, place] = self.log_density(part, kinds, own) - whole - unit
        return np.nan_to_num(gains, nan=0.0)

    @property
    def columns(self) -> list[Any]:
        """Names of the columns, numbers first, as :meth:`blame` orders them."""
        names = list(range(self.dim)) if self.names is None else self.names
        if self.coding is None:
            return names
        pairs = sorted(zip(self.coding.kinds, names, strict=True), key=lambda p: p[0] == "category")
        return [name for _, name in pairs]


def percentiles(log_density: Array, usual: Array) -> Array:
    """Return percentages of usual log-densities at or below others.

    Below the lowest tenth the distribution is exponential, as log-densities in the tails of normal
    and of heavy-tailed rows are, with the median of that tenth. So few rows are enough for
    a small level, and outliers below one row in twenty change nothing.
    """
    usual = np.sort(usual[np.isfinite(usual)])
    if not len(usual):
        return np.full(len(log_density), np.nan)
    ranks = 100 * np.searchsorted(usual, log_density, side="right") / len(usual)
    start, middle = np.quantile(usual, [TAIL, TAIL / 2])
    rate = math.log(2) / max(start - middle, 1e-12)
    tail = 100 * TAIL * np.exp(np.minimum(rate * (log_density - start), 0))
    return np.where(np.isnan(log_density), np.nan, np.where(log_density < start, tail, ranks))
