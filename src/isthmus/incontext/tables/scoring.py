"""score_rows: log-densities of rows given a table, their percentiles, and outliers."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS, ICLTables, as_numbers
from isthmus.memories.student_mixture import StudentMixture
from isthmus.validation import as_count, as_number, as_seed, require_kind

# Parts of a table whose rows are scored without themselves.
FOLDS = 10


@dataclass(frozen=True)
class RowScores:
    """Scores of rows under the density of a table.

    Attributes
    ----------
    log_density : ndarray (n,)
        In nats, in the units of the columns; of the known cells, where some are missing. NaN for
        a row without a known cell, of which nothing can be said.
    percentile : ndarray (n,)
        Percentage of the density's own draws that are less likely than the row, or NaN.
    outlier : ndarray (n,) of bool
        True where the percentile is below `level` percent.
    level : float
    """

    log_density: NDArray[np.float64]
    percentile: NDArray[np.float64]
    outlier: NDArray[np.bool_]
    level: float

    @property
    def summary(self) -> dict[str, Any]:
        """The main numbers, for a JSON file."""
        return {
            "rows": len(self.log_density),
            "mean_log_density": float(np.nanmean(self.log_density)),
            "outliers": int(self.outlier.sum()),
            "level": self.level,
        }

    def __str__(self) -> str:
        count, rows = int(self.outlier.sum()), len(self.log_density)
        return (
            f"{rows} rows, mean log-density {np.nanmean(self.log_density):.4g} nats\n"
            f"{count} outlier{'s' * (count != 1)}: less likely than {100 - self.level:g} % of "
            "the density's own draws"
        )


def score_rows(
    X: Any,
    rows: Any = None,
    *,
    level: float = 1.0,
    model: str | Path | ICLTables = "tables",
    draws: int = 4000,
    seed: int = 0,
) -> RowScores:
    """Score rows by the in-context density of a table.

    Parameters
    ----------
    X : array, Tensor or data frame (n, D)
        The table that says what is usual; NaN marks a missing cell.
    rows : array, Tensor or data frame (m, D), optional
        Rows to score. Default: those of X, each under the density of nine tenths of the others.
    level : float
        A row is an outlier if less than this percentage of the density's draws are less likely.
    model : str, Path or ICLTables
        As in :func:`~isthmus.incontext.pretrained`.
    draws, seed : int
        Number of draws behind the percentiles, and their seed.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import score_rows
    >>> scores = score_rows(load_iris().data, [[5.0, 3.4, 1.5, 0.2], [5.0, 3.4, 4.5, 0.2]])
    >>> scores.outlier
    array([False,  True])
    """
    level = as_number(level, "level", above=0, below=100)
    draws, seed = as_count(draws, "draws"), as_seed(seed)
    table, reader = as_numbers(X), reader_of(model)
    if rows is None:
        log_density, percentile = _cross_scored(reader, table, draws, seed)
    else:
        queries = as_numbers(rows)
        if queries.ndim != 2 or queries.shape[1:] != table.shape[1:]:
            raise ShapeError(f"rows must be (m, {table.shape[-1]}) as X, not {queries.shape}.")
        log_density, percentile = _scored(reader.condition(table), queries, draws, seed)
    return RowScores(log_density, percentile, percentile < level, level)


def reader_of(model: str | Path | ICLTables) -> ICLTables:
    """Return a model of tables that is given by its name, by its folder, or itself."""
    found = pretrained(model) if isinstance(model, str | Path) else model
    require_kind(found, "model", ICLTables)
    return found


def _cross_scored(
    model: ICLTables, table: NDArray[np.float64], draws: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Score each row under the density of rows of other folds."""
    model.condition(table)  # refuses a table that cannot be read
    order = np.random.default_rng(seed).permutation(len(table))
    log_density, percentile = np.empty(len(table)), np.empty(len(table))
    folds = FOLDS if len(table) > FOLDS + FEWEST_ROWS else len(table)
    for fold in np.array_split(order, folds):
        density = model.condition(np.delete(table, fold, axis=0))
        log_density[fold], percentile[fold] = _scored(density, table[fold], draws, seed)
    return log_density, percentile


def _scored(
    density: StudentMixture, rows: NDArray[np.float64], draws: int, seed: int
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    points, own = torch.from_numpy(rows), torch.as_tensor(density.sample(draws, seed=seed))
    known = ~points.isnan()
    found = density.log_prob(points) if bool(known.all()) else density.log_prob(points, known)
    percentile = torch.empty_like(found)
    for pattern in torch.unique(known, dim=0):
        mine = (known == pattern).all(1)
        usual: Tensor = density.log_prob(own, pattern).sort().values
        percentile[mine] = 100 * torch.searchsorted(usual, found[mine]).double() / draws
    empty = ~known.any(1)
    found[empty] = percentile[empty] = torch.nan
    return found.numpy(), percentile.numpy()
