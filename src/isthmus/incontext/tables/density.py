"""The in-context density of tables for users: an estimator, scores of rows, and filled cells."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted
from torch import Tensor

from isthmus.energy import as_arrays
from isthmus.errors import ShapeError
from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS, Array, ICLTables, as_numbers
from isthmus.incontext.tables.outliers import NeighbourKernels
from isthmus.memories.base import generator_for
from isthmus.memories.student_mixture import StudentMixture
from isthmus.plotting import Plottable
from isthmus.printing import Summarised
from isthmus.rows import checked_table
from isthmus.tables.encoding import is_mixed
from isthmus.validation import as_count, as_number, as_seed, require_kind

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
    """

    log_density: Array
    percentile: Array
    outlier: NDArray[np.bool_]
    level: float
    odd_columns: dict[int, tuple[Any, ...]] = field(default_factory=dict)
    ids: Any = None

    @property
    def summary(self) -> dict[str, Any]:
        """The main numbers, for a JSON file."""
        names = range(len(self.outlier)) if self.ids is None else self.ids
        odd = [(names[row], columns) for row, columns in self.odd_columns.items()]
        return {
            "rows": len(self.log_density),
            "mean_log_density": float(np.nanmean(self.log_density)),
            "outliers": int(self.outlier.sum()),
            "level": self.level,
            "odd_columns": {str(row): list(map(str, columns)) for row, columns in odd},
        }

    def __str__(self) -> str:
        count, rows = int(self.outlier.sum()), len(self.log_density)
        return (
            f"{rows} rows, mean log-density {np.nanmean(self.log_density):.4g} nats\n"
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
    sqrt(n)-th neighbour in standard units, each without its own kernel. So a small group of
    outliers does not hide its rows from each other. New rows are scored by the in-context density
    of a table of 5 or more rows and up to 16 columns of numbers, and by those kernels else.

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
    draws, seed = as_count(draws, "draws"), as_seed(seed)
    density = None
    # The model is loaded where it is used, or to check another name.
    is_default = isinstance(model, str) and model == "tables"
    reader = None if rows is None and is_default else reader_of(model)
    if rows is not None and reader and not is_mixed(X) and _fits(reader, as_numbers(X)):
        table = as_numbers(X)
        density, points = reader.condition(table), _rows_like(table, rows)
        log_density, percentile = _scored(density, points, draws, seed)
    else:
        kernels = NeighbourKernels(X)
        own = None if rows is not None else np.arange(len(kernels.rows))
        cells = (kernels.rows, kernels.codes) if rows is None else kernels.read(rows)
        log_density, percentile = kernels.scored(*cells, own)
    outlier = percentile < level
    odd = np.flatnonzero(outlier)
    if density is None:
        few = None if own is None else own[odd]
        gains, names = kernels.blame(cells[0][odd], cells[1][odd], few), kernels.columns
    else:
        gains = _surprises(density, points[odd], table.std(0))
        names = list(getattr(X, "columns", range(table.shape[1])))
    columns = {int(row): _oddest(gain, names) for row, gain in zip(odd, gains, strict=True)}
    return RowScores(log_density, percentile, outlier, level, columns)


def _fits(reader: ICLTables, table: Array) -> bool:
    """Return True for a table that the in-context density reads."""
    few = table.ndim != 2 or table.shape[1] <= reader.config.max_columns
    return few and len(table) >= FEWEST_ROWS


def _surprises(density: StudentMixture, rows: Array, units: Array) -> Array:
    """Return -log p of each cell given the others of its row, in standard units. (q, D)"""
    points = torch.from_numpy(rows)
    whole, gains = _log_prob(density, points), torch.zeros_like(points)
    for place in range(rows.shape[1]):
        part = points.clone()
        part[:, place] = torch.nan
        gains[:, place] = _log_prob(density, part) - whole
    return np.nan_to_num(gains.numpy() - np.log(np.where(units > 0, units, 1.0)))


def _oddest(gains: Array, names: list[Any]) -> tuple[Any, ...]:
    order = np.argsort(-gains, kind="stable")[:MOST_NAMED]
    return tuple(names[place] for place in order if gains[place] >= 0.5 * gains[order[0]])


def _rows_like(table: Array, rows: Any) -> Array:
    found = as_numbers(rows)
    if found.ndim != 2 or found.shape[1:] != table.shape[1:]:
        raise ShapeError(f"rows must be (m, {table.shape[-1]}) as X, not {found.shape}.")
    return found


def reader_of(model: str | Path | ICLTables) -> ICLTables:
    """Return a model of tables that is given by its name, by its folder, or itself."""
    found = pretrained(model) if isinstance(model, str | Path) else model
    require_kind(found, "model", ICLTables)
    return found


def _log_prob(density: StudentMixture, rows: Tensor) -> Tensor:
    """Return the log-density of the known cells of each row."""
    known = ~rows.isnan()
    return density.log_prob(rows, None if bool(known.all()) else known)


def _scored(density: StudentMixture, rows: Array, draws: int, seed: int) -> tuple[Array, Array]:
    points, own = torch.from_numpy(rows), torch.as_tensor(density.sample(draws, seed=seed))
    known, found = ~points.isnan(), _log_prob(density, points)
    percentile = torch.empty_like(found)
    for pattern in torch.unique(known, dim=0):
        mine = (known == pattern).all(1)
        usual: Tensor = density.log_prob(own, pattern).sort().values
        percentile[mine] = 100 * torch.searchsorted(usual, found[mine]).double() / draws
    empty = ~known.any(1)
    found[empty] = percentile[empty] = torch.nan
    return found.numpy(), percentile.numpy()


@torch.no_grad()
def fill_rows(
    X: Any,
    rows: Any = None,
    *,
    draws: int | None = None,
    model: str | Path | ICLTables = "tables",
    seed: int = 0,
) -> Array:
    """Fill the missing cells of rows, given the other cells and a table.

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
    table, reader = as_numbers(X), reader_of(model)
    density = reader.condition(table)
    points = torch.from_numpy(table if rows is None else _rows_like(table, rows))
    generator = generator_for(as_seed(seed), torch.device("cpu"))
    if draws is None:
        return density.conditional_mean(points, ~points.isnan()).numpy()
    filled = points.repeat(as_count(draws, "draws"), 1, 1)
    for row in points.isnan().any(1).nonzero()[:, 0].tolist():
        free = points[row].isnan()
        drawn = density.conditional(points[row]).sample(draws, seed=generator)
        filled[:, row, free] = torch.as_tensor(drawn)
    return filled.numpy()


class TableDensity(Plottable, DensityMixin, BaseEstimator):
    """Density of small tables by a pretrained transformer, with scikit-learn's interface.

    :meth:`fit` conditions the model on the table; there are no parameters to tune. The methods are
    those of :class:`sklearn.neighbors.KernelDensity`. NaN marks missing cells, in ``fit`` and in
    ``score_samples``, which then returns the log-density of the other cells.

    Parameters
    ----------
    model : str or Path
        ``"tables"``, or a folder of another trained :class:`~isthmus.incontext.ICLTables`.

    Attributes
    ----------
    energy_ : StudentMixture
        The density, with ``marginal``, ``conditional`` and ``conditional_mean``.
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

    energy_: StudentMixture

    def __init__(self, model: str | Path = "tables") -> None:
        self.model = model

    def fit(self, X: Any, y: Any = None) -> Self:
        """Condition the model on a table (n, D) of at least 5 rows; y is ignored."""
        table = self._rows(X, ensure_min_samples=FEWEST_ROWS)
        self.energy_ = pretrained(self.model).condition(table)
        return self

    def _rows(self, X: Any, **options: Any) -> Any:
        gaps: dict[str, Any] = {"dtype": np.float64, "ensure_all_finite": "allow-nan"}
        return checked_table(self, X, **gaps, **options)

    def score_samples(self, X: Any) -> Array:
        """Return the log-density of each row. (n, D) -> (n,)."""
        check_is_fitted(self)
        points = torch.from_numpy(np.array(self._rows(X, reset=False)))
        return _log_prob(self.energy_, points).numpy()

    def score(self, X: Any, y: Any = None) -> float:
        """Return the total log-density of the rows; y is ignored."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> Array:
        """Draw rows from the density. -> (n_samples, D)."""
        check_is_fitted(self)
        count = as_count(n_samples, "n_samples")
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        drawn: Array = as_arrays(self.energy_.sample(count, seed=seed))
        return drawn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
