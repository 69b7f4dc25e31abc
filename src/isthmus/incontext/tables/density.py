"""score_rows: how usual rows are, and which are outliers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS, ICLTables, as_numbers
from isthmus.incontext.tables.outliers import NeighbourKernels, RowScores
from isthmus.incontext.tables.questions import read_frame, read_numbers
from isthmus.tables.encoding import is_mixed
from isthmus.validation import as_count, as_number, as_seed, require_kind


def score_rows(
    X: Any,
    rows: Any = None,
    *,
    level: float = 1.0,
    model: str | Path | ICLTables = "tables",
    draws: int = 4000,
    seed: int = 0,
    show_progress: bool | None = False,
) -> RowScores:
    """Score rows by the density of a table: how usual each is, and which are outliers.

    The rows of the table itself are scored by kernels as wide as the distance of their
    sqrt(n)-th neighbour in standard units, each without its own kernel, so that a small group of
    outliers does not hide itself. Of more than 5,000 rows, a random choice has kernels. New rows
    are scored by the in-context density of a table of 5 or more rows and up to 64 columns, and by
    those kernels else.

    Parameters
    ----------
    X : array, Tensor or data frame (n, D)
        The table that says what is usual: numbers, categories, truth values, times, and gaps.
    rows : array, Tensor or data frame (m, D), optional
        Rows to score. Default: those of X, each without itself.
    level : float
        A row is an outlier if less than this percentage of usual rows are less likely: of the
        other rows of the table, with an exponential tail below the lowest tenth, or of
        the in-context density's draws.
    model : str, Path or ICLTables
        As in :func:`~isthmus.incontext.pretrained`.
    draws, seed : int
        Number of draws behind the percentiles of new rows, and their seed.
    show_progress : bool, optional
        None shows it on a terminal, if it takes long.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import score_rows
    >>> scores = score_rows(load_iris().data, [[5.0, 3.4, 1.5, 0.2], [5.0, 3.4, 4.5, 0.2]])
    >>> scores.outlier, scores.odd_columns
    (array([False,  True]), {1: (2,)})
    """
    level = as_number(level, "level", above=0, below=100)
    draws, seed, reader = as_count(draws, "draws"), as_seed(seed), reader_of(model)
    mixed = is_mixed(X)
    table = X if mixed else as_numbers(X)
    fits = len(table.shape) == 2 and table.shape[1] <= reader.config.max_columns
    if rows is None or not fits or len(table) < FEWEST_ROWS:
        return NeighbourKernels(X, show_progress).outliers(rows, level)
    if mixed:
        return read_frame(reader, X).outliers(rows, level, draws=draws, seed=seed)
    density = read_numbers(reader, table, getattr(X, "columns", None))
    return density.outliers(as_numbers(rows), level, draws=draws, seed=seed)


def reader_of(model: str | Path | ICLTables) -> ICLTables:
    """Return a model of tables that is given by its name, by its folder, or itself."""
    found = pretrained(model) if isinstance(model, str | Path) else model
    require_kind(found, "model", ICLTables)
    return found
