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
from isthmus.progress import progress
from isthmus.tables.encoding import Coding, as_frame, is_mixed
from isthmus.validation import as_numbers

Array = NDArray[np.float64]

# Entries of the largest temporary, a budget of memory.
BLOCK_ENTRIES = 2**23
# The lowest share of the log-densities of a table is smoothed by an exponential tail.
TAIL = 0.1
# Rows that stand for the table where cells are missing, and rows of a larger table that have
# kernels: budgets of computation.
MOST_COMPARED, MOST_KERNELS = 500, 5000
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
        known = self.log_density[~np.isnan(self.log_density)]
        odd = {str(names[row]): list(map(str, each)) for row, each in self.odd_columns.items()}
        return {
            "rows": len(self.log_density),
            "mean_log_density": float(known.mean()) if len(known) else math.nan,
            "outliers": int(self.outlier.sum()),
            "level": self.level,
            "odd_columns": odd,
        }

    def __str__(self) -> str:
        found, names = self.summary, range(len(self.outlier)) if self.ids is None else self.ids
        order = sorted(self.odd_columns, key=lambda row: self.percentile[row])
        lines = [
            f"{counted(found['rows'], 'row')}, "
            f"mean log-density {found['mean_log_density']:.4g} nats",
            f"{counted(found['outliers'], 'outlier')}: less likely than {100 - self.level:g} % of "
            "usual rows",
            *(f"  row {names[row]}: {', '.join(map(str, self.odd_columns[row]))}"
              for row in order[:MOST_SHOWN]),
            *[f"  and {len(order) - MOST_SHOWN} more"] * (len(order) > MOST_SHOWN),
        ]  # fmt: skip
        return "\n".join(lines)


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
    mean and deviation of a column where its row has a gap. Of more than 5,000 rows, a random choice
    has kernels.
    """

    def __init__(self, X: Any, show_progress: bool | None = False) -> None:
        self.show_progress = show_progress
        self.coding = Coding.of(as_frame(X)) if is_mixed(X) else None
        self.names = list(X.columns) if hasattr(X, "columns") else None
        cells = self._read(X)
        count, self.dim = cells.shape
        kinds = self.coding.kinds if self.coding else ()
        self.numbers = self.dim - kinds.count("category")
        if count < 3:
            raise InvalidInputError(f"X has {counted(count, 'row')}; outliers need at least 3.")
        if ((cells == cells[0]) | (np.isnan(cells) & np.isnan(cells[0]))).all():
            raise InvalidInputError("All rows are equal, so they have no density.")
        known = cells[:, : self.numbers]
        known = np.where(np.isnan(known).all(0), 0.0, known)
        size = np.maximum(np.nanmax(np.abs(known), 0, initial=0), 1e-300)
        self.centre = np.nanmean(known / size, 0) * size
        scale = np.nanstd(known / size, 0) * size
        self.scale = np.where(scale > 1e-12 * size, scale, np.maximum(size, 1e-3) * 1e-3)
        self.shares = []
        for column in cells[:, self.numbers :].T:
            counts = np.bincount(column[~np.isnan(column)].astype(int), minlength=1)
            self.shares.append((counts + 1 / len(counts)) / (counts.sum() + 1))
        self.table, self.own = self._standard(cells), np.full(count, -1)
        chosen = np.sort(np.random.default_rng(0).permutation(count)[:MOST_KERNELS])
        self.rows, self.own[chosen] = self.table[chosen], np.arange(len(chosen))
        nearest = min(math.ceil(math.sqrt(len(chosen))), len(chosen) - 1)
        found = [
            np.partition(self._distances(self.rows[part]), nearest, axis=1)[:, nearest]
            for part in self._blocks(len(chosen))
        ]
        widths = np.maximum(np.sqrt(np.concatenate(found) / self.dim), NARROWEST)
        # Too few rows share a known column with the row: its neighbours are not known.
        self.widths = np.where(np.isfinite(widths), widths, 1.0)

    def _read(self, X: Any) -> Array:
        """Return numbers, then codes of categories. (n, D + C)"""
        if self.coding is None:
            cells = as_numbers(X, "X")
            width = vars(self).get("dim", "D")
            if cells.ndim != 2 or 0 in cells.shape or width not in ("D", cells.shape[1]):
                raise ShapeError(f"Rows must be a table of shape (n, {width}), not {cells.shape}.")
        else:
            frame, names = as_frame(X), self.names or []
            if missing := [name for name in names if name not in getattr(frame, "columns", [])]:
                raise InvalidInputError(f"rows must have the columns of X; {missing} are missing.")
            numbers, codes = self.coding.codes(frame[names])
            cells = np.concatenate([numbers, np.where(codes < 0, np.nan, codes)], 1)
        if np.isinf(cells).any():
            raise InvalidInputError("X has infinite values. Mark missing cells with NaN.")
        return cells

    def _standard(self, cells: Array) -> Array:
        numbers = (cells[:, : self.numbers] - self.centre) / self.scale
        return np.concatenate([np.clip(numbers, -1e100, 1e100), cells[:, self.numbers :]], 1)

    def _blocks(self, count: int) -> list[slice]:
        size = max(1, BLOCK_ENTRIES // len(self.rows))
        return [slice(start, start + size) for start in range(0, max(count, 1), size)]

    def _squares(self, rows: Array) -> tuple[Array, Array, Array]:
        """Return sums over numbers known in both, how many, and sums of those of the rows alone."""
        rows, memories = rows[:, : self.numbers], self.rows[:, : self.numbers]
        seen, own = ~np.isnan(rows), ~np.isnan(memories)
        if seen.all() and own.all():
            zero = np.zeros((1, 1))
            return cdist(rows, memories, "sqeuclidean"), zero + self.numbers, zero
        known, rows, memories = seen.astype(float), np.nan_to_num(rows), np.nan_to_num(memories)
        squares = np.square(rows) @ own.T - 2 * rows @ memories.T + known @ np.square(memories).T
        return np.maximum(squares, 0), known @ own.T, np.square(rows) @ (~own).T

    def _distances(self, rows: Array) -> Array:
        """Return squared distances to the rows of the table, as if all columns were known."""
        squares, both, _ = self._squares(rows)
        for place, share in enumerate(self.shares, self.numbers):
            column, own = rows[:, place, None], self.rows[:, place]
            known = ~np.isnan(column) & ~np.isnan(own)
            apart = 2 / max(1 - float(np.square(share).sum()), 1e-3)
            squares += apart * (known & (column != own))
            both = both + known
        return np.where(both > 0, squares * self.dim / np.maximum(both, 1), np.inf)

    def _logits(self, rows: Array) -> Array:
        """Return the log-density of each kernel at rows, of their known cells. (q, n)"""
        squares, both, others = self._squares(rows)
        logits = -0.5 * (squares / self.widths**2 + others) - both * np.log(self.widths)
        kept = 1 / (1 + self.widths**2)
        for place, share in enumerate(self.shares, self.numbers):
            column, own = rows[:, place, None], self.rows[:, place]
            code = np.nan_to_num(column, nan=len(share)).astype(int)
            usual = np.append(share, share.min())[np.minimum(code, len(share))]  # the last is new
            chance = np.where(np.isnan(own), usual, kept * (column == own) + (1 - kept) * usual)
            logits += np.where(np.isnan(column), 0.0, np.log(chance))
        return np.asarray(logits)

    def log_density(self, rows: Array, own: NDArray[Any] | None = None) -> Array:
        """Return log-densities of known cells; `own` are kernels to leave out, -1 for none. (q,)"""
        found, own = [], np.full(len(rows), -1) if own is None else own
        with progress("scoring rows", len(rows), show=self.show_progress) as report:
            for part in self._blocks(len(rows)):
                logits, left = self._logits(rows[part]), np.flatnonzero(own[part] >= 0)
                logits[left, own[part][left]] = -np.inf
                found.append(logsumexp(logits, axis=1))
                report(part.stop)
        known, units = ~np.isnan(rows), np.log(self.scale) + 0.5 * math.log(2 * math.pi)
        shift = known[:, : self.numbers] @ units + np.log(len(self.rows) - (own >= 0))
        return np.where(known.any(1), np.concatenate(found) - shift, np.nan)

    def outliers(self, X: Any, level: float) -> RowScores:
        """Return scores of new rows or, if X is None, of those of the table without themselves."""
        own = self.own if X is None else None
        rows = self.table if X is None else self._standard(self._read(X))
        log_density, percentile = self.log_density(rows, own), np.full(len(rows), np.nan)
        known, table = ~np.isnan(rows), ~np.isnan(self.rows)
        for pattern in np.unique(known, axis=0):
            if not pattern.any():
                continue
            mine = (known == pattern).all(1)
            places = np.flatnonzero(table[:, pattern].all(1))
            if len(places) < 2:
                places = np.arange(len(table))
            if not pattern.all() and len(places) > MOST_COMPARED:
                places = places[np.linspace(0, len(places) - 1, MOST_COMPARED).astype(int)]
            usual = self.log_density(np.where(pattern, self.rows[places], np.nan), places)
            percentile[mine] = percentiles(log_density[mine], usual)
        outlier = percentile < level
        odd = np.flatnonzero(outlier)
        gains = self.blame(rows[odd], None if own is None else own[odd])
        columns = list(range(self.dim)) if self.names is None else self.names
        kinds = self.coding.kinds if self.coding else ("number",) * self.dim
        order = sorted(range(self.dim), key=lambda place: kinds[place] == "category")
        names = odd_columns(odd, gains, [columns[place] for place in order])
        return RowScores(log_density, percentile, outlier, level, names)

    def blame(self, rows: Array, own: NDArray[Any] | None = None) -> Array:
        """Return by how many nats each column lowers the density of a row. (q, D + C)"""
        whole, gains = self.log_density(rows, own), np.zeros(rows.shape)
        for place in range(self.dim):
            part = rows.copy()
            part[:, place] = np.nan
            unit = math.log(self.scale[place]) if place < self.numbers else 0.0
            gains[:, place] = self.log_density(part, own) - whole - unit
        return np.nan_to_num(gains, nan=0.0)


def percentiles(log_density: Array, usual: Array) -> Array:
    """Return percentages of usual log-densities at or below others, with an exponential tail."""
    # Tails of normal and of heavy-tailed log-densities are exponential. The median of the lowest
    # tenth decides the rate, so that few rows are enough, and outliers below one in twenty are not.
    usual = np.sort(usual[np.isfinite(usual)])
    if not len(usual):
        return np.full(len(log_density), np.nan)
    ranks = 100 * np.searchsorted(usual, log_density, side="right") / len(usual)
    start, middle = np.quantile(usual, [TAIL, TAIL / 2])
    rate = math.log(2) / max(start - middle, 1e-12)
    tail = 100 * TAIL * np.exp(np.minimum(rate * (log_density - start), 0))
    return np.where(np.isnan(log_density), np.nan, np.where(log_density < start, tail, ranks))
