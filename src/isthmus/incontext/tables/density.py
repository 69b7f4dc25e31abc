"""The in-context density of tables for users: an estimator, scores of rows, and filled cells."""

from __future__ import annotations

from functools import wraps
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from isthmus.energy import as_arrays
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS, Array, ICLTables, as_numbers
from isthmus.incontext.tables.outliers import NeighbourKernels, RowScores
from isthmus.incontext.tables.questions import ConditionedTable, read_frame, read_numbers
from isthmus.memories.base import generator_for
from isthmus.memories.table_mixture import StudentMixture, TableMixture
from isthmus.plotting import Plottable
from isthmus.rows import checked_table
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
) -> RowScores:
    """Score rows by the density of a table: how usual each is, and which are outliers.

    The rows of the table itself are scored by kernels as wide as the distance of their
    sqrt(n)-th neighbour in standard units, each without its own kernel, so that a small group of
    outliers does not hide itself. New rows are scored by the in-context density of a table of 5 or
    more rows and up to 64 columns, and by those kernels else.

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
    if rows is not None and _fits(reader, X):
        table = _conditioned(reader, X)
        rows = rows if is_mixed(X) else _rows_like(X, rows)
        return table.outliers(rows, level, draws=draws, seed=seed)
    return NeighbourKernels(X).outliers(rows, level)


def _fits(reader: ICLTables, X: Any) -> bool:
    """Return True for a table that the in-context density reads."""
    shape = X.shape if is_mixed(X) else as_numbers(X).shape
    few = len(shape) != 2 or shape[1] <= reader.config.max_columns
    return few and shape[0] >= FEWEST_ROWS


def _conditioned(reader: ICLTables, X: Any) -> ConditionedTable:
    if is_mixed(X):
        return read_frame(reader, X)
    return read_numbers(reader, as_numbers(X), getattr(X, "columns", None))


def _rows_like(X: Any, rows: Any) -> Array:
    found, width = as_numbers(rows), np.shape(X)[-1]
    if found.ndim != 2 or found.shape[1] != width:
        raise ShapeError(f"rows must be (m, {width}) as X, not {found.shape}.")
    return found


def reader_of(model: str | Path | ICLTables) -> ICLTables:
    """Return a model of tables that is given by its name, by its folder, or itself."""
    found = pretrained(model) if isinstance(model, str | Path) else model
    require_kind(found, "model", ICLTables)
    return found


@torch.no_grad()
def fill_rows(
    X: Any,
    rows: Any = None,
    *,
    draws: int | None = None,
    model: str | Path | ICLTables = "tables",
    seed: int = 0,
) -> Any:
    """Fill the missing cells of rows, given the other cells and a table.

    Of a data frame with categories, the result is a data frame, and `draws` are refused:
    :meth:`ConditionedTable.sample` draws.

    Parameters
    ----------
    X : array, Tensor or data frame (n, D)
        The table to read; NaN marks a missing cell.
    rows : array, Tensor or data frame (m, D), optional
        Rows to fill. Default: those of X.
    draws : int, optional
        Number of random fillings, for multiple imputation. Default: one filling by the
        conditional means, which have the least squared error.
    model, seed
        As in :func:`score_rows`.

    Returns
    -------
    ndarray (m, D), or (draws, m, D)

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import fill_rows
    >>> petals = load_iris().data[:, 2:]
    >>> fill_rows(petals, [[1.5, np.nan], [5.5, np.nan]]).round(1)
    array([[1.5, 0.2],
           [5.5, 2. ]])
    >>> fill_rows(petals, [[1.5, np.nan]], draws=3).shape
    (3, 1, 2)
    """
    table = _conditioned(reader_of(model), X)
    if is_mixed(X):
        if draws is not None:
            raise InvalidInputError("draws= is for tables of numbers; leave it out.")
        return table.fill(X if rows is None else rows)
    density = table.energy
    points = torch.from_numpy(_rows_like(X, X if rows is None else rows))
    if draws is None:
        return density.conditional_mean(points, ~points.isnan()).numpy()
    generator = generator_for(as_seed(seed), torch.device("cpu"))
    filled = points.repeat(as_count(draws, "draws"), 1, 1)
    for row in points.isnan().any(1).nonzero()[:, 0].tolist():
        drawn = density.conditional(points[row]).sample(draws, seed=generator)
        filled[:, row, points[row].isnan()] = torch.as_tensor(drawn)
    return filled.numpy()


def _asking(name: str) -> Any:
    """Return the method of :class:`ConditionedTable` of this name as one of an estimator."""
    question = getattr(ConditionedTable, name)

    @wraps(question)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_is_fitted(self)
        return getattr(self.table_, name)(*args, **kwargs)

    return method


class TableDensity(Plottable, DensityMixin, BaseEstimator):
    """Density of small tables by a pretrained transformer, with scikit-learn's interface.

    :meth:`fit` conditions the model on the table; there are no parameters to tune. The methods are
    those of :class:`sklearn.neighbors.KernelDensity`, and the questions of a
    :class:`ConditionedTable`. NaN marks missing cells, in ``fit`` and in
    ``score_samples``, which then returns the log-density of the other cells. Data frames may hold
    categories, truth values and times.

    Parameters
    ----------
    model : str or Path
        ``"tables"``, or a folder of another trained :class:`~isthmus.incontext.ICLTables`.

    Attributes
    ----------
    energy_ : StudentMixture or TableMixture
        The density, with ``marginal``, ``conditional`` and ``conditional_mean``.
    table_ : ConditionedTable
        What answers questions.
    n_features_in_ : int
    feature_names_in_ : ndarray of str
        If the table is a data frame.

    References
    ----------
    Hollmann et al., "TabPFN: A Transformer That Solves Small Tabular Classification Problems in a
    Second", ICLR 2023; Schaeffer et al., 2024, arXiv:2402.10202.

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import TableDensity
    >>> X = load_iris().data
    >>> density = TableDensity().fit(X[::2])
    >>> density.score(X[1::2]) > density.score(X[1::2] + 1)
    True
    >>> density.sample(3, random_state=0).shape
    (3, 4)
    """

    energy_: StudentMixture | TableMixture
    table_: ConditionedTable

    log_prob, outliers, conditional = map(_asking, ("log_prob", "outliers", "conditional"))
    quantile, interval, cdf, fill = map(_asking, ("quantile", "interval", "cdf", "fill"))

    def __init__(self, model: str | Path = "tables") -> None:
        self.model = model

    def fit(self, X: Any, y: Any = None) -> Self:
        """Condition the model on a table (n, D) of at least 5 rows; y is ignored."""
        reader = pretrained(self.model)
        if is_mixed(X):
            self.table_ = read_frame(reader, X)
            self.n_features_in_ = len(self.table_.columns)
            self.feature_names_in_ = np.array(self.table_.columns, dtype=object)
        else:
            table = self._rows(X, ensure_min_samples=FEWEST_ROWS)
            self.table_ = read_numbers(reader, table, getattr(self, "feature_names_in_", None))
        self.energy_ = self.table_.energy
        return self

    def _rows(self, X: Any, **options: Any) -> Any:
        gaps: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return checked_table(self, X, **gaps, **options)

    def _as_fitted(self, X: Any) -> Any:
        """Return rows as the table reads them: frames, or checked arrays of numbers."""
        check_is_fitted(self)
        return X if isinstance(self.energy_, TableMixture) else self._rows(X, reset=False)

    def predict(self, column: Any, rows: Any = None) -> Any:
        """Return a :meth:`ConditionedTable.predict` of a column.

        With a table alone, return the component with the largest share of each row, as mixtures of
        scikit-learn do.
        """
        check_is_fitted(self)
        if rows is not None or isinstance(column, str) or not np.ndim(column):
            return self.table_.predict(column, rows)
        points, seen = self.table_._read(self._as_fitted(column))
        return self.energy_._responsibilities(points, seen).argmax(1).numpy()

    def score_samples(self, X: Any) -> Array:
        """Return the log-density of each row. (n, D) -> (n,)."""
        return self.table_.log_prob(self._as_fitted(X))

    def score(self, X: Any, y: Any = None) -> float:
        """Return the total log-density of the rows; y is ignored."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None, given: Any = None) -> Any:
        """Draw rows from the density: (n_samples, D), or a data frame with categories or `given`.

        `given` is a dictionary of values that rows must have.
        """
        check_is_fitted(self)
        count = as_count(n_samples, "n_samples")
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        if given or isinstance(self.energy_, TableMixture):
            return self.table_.sample(count, given, seed)
        drawn: Array = as_arrays(self.energy_.sample(count, seed=seed))
        return drawn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
