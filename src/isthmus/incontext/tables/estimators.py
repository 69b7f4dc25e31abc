"""Estimators of tables in context, with scikit-learn's interface, and scores of rows."""

from __future__ import annotations

import math
from abc import abstractmethod
from copy import copy
from functools import wraps
from pathlib import Path
from typing import Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize
from scipy.special import log_softmax
from sklearn.base import BaseEstimator, ClassifierMixin, DensityMixin, RegressorMixin, clone
from sklearn.ensemble import RandomForestClassifier
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, column_or_1d

from isthmus.distribution import probabilities
from isthmus.energy import as_arrays
from isthmus.errors import InvalidInputError
from isthmus.extras import require
from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS, MOST_VALUES, Array, ICLTables
from isthmus.incontext.tables.outliers import NeighbourKernels, RowScores
from isthmus.incontext.tables.questions import ConditionedTable, read_frame, read_numbers
from isthmus.memories.table_mixture import StudentMixture, TableMixture
from isthmus.plotting import Plottable
from isthmus.rows import checked_table
from isthmus.scaling import Scaling
from isthmus.tables.encoding import as_frame, is_mixed
from isthmus.validation import as_count, as_number, as_numbers, as_seed, require_kind

# The name of the column to predict, beside those of X.
TARGET = "(target)"
# The penalties that leave-one-out errors choose from: all that matter in standard units.
PENALTIES = np.geomspace(1e-2, 1e3, 16)
# Features are held within so many standard deviations, so that their squares are finite.
LARGEST = 1e6
# Folds on which answers are blended, and the fewest rows for that: with fewer, the start is kept.
FOLDS, FEWEST_BLENDED = 5, 10
# Rows that are divided into folds, and those of a fold whose answers are judged: budgets.
MOST_FOLDED, MOST_JUDGED = 1280, 100
# Quantiles whose errors decide how answers are blended.
LEVELS = np.arange(1, 10) / 10


class _OfTables(BaseEstimator):
    """An estimator that conditions the model of tables on rows."""

    table_: ConditionedTable

    def __init__(self, model: str | Path = "tables") -> None:
        self.model = model

    def _rows(self, X: Any, reset: bool = False) -> Any:
        """Return a frame with other columns than numbers, or a checked array."""
        if is_mixed(X):
            frame = as_frame(X)
            names = np.array(frame.columns, dtype=object)
            if reset:
                self.n_features_in_, self.feature_names_in_ = len(names), names
            elif list(getattr(self, "feature_names_in_", names)) != list(names):
                raise InvalidInputError("X must have the columns of the fit, in their order.")
            return frame
        rows = {"ensure_min_samples": FEWEST_ROWS} if reset else {"reset": False}
        return checked_table(self, X, dtype=np.float64, ensure_all_finite="allow-nan", **rows)

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


def _asking(name: str) -> Any:
    """Return the method of :class:`ConditionedTable` of this name as one of an estimator."""
    question = getattr(ConditionedTable, name)

    @wraps(question)
    def method(self: Any, *args: Any, **kwargs: Any) -> Any:
        check_is_fitted(self)
        return getattr(self.table_, name)(*args, **kwargs)

    return method


class TableDensity(Plottable, DensityMixin, _OfTables):
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

    log_prob, outliers, conditional = map(_asking, ("log_prob", "outliers", "conditional"))
    quantile, interval, cdf, fill = map(_asking, ("quantile", "interval", "cdf", "fill"))

    def fit(self, X: Any, y: Any = None) -> Self:
        """Condition the model on a table (n, D) of at least 5 rows; y is ignored."""
        reader, rows = pretrained(self.model), self._rows(X, reset=True)
        names = getattr(self, "feature_names_in_", None)
        mixed = is_mixed(X)
        self.table_ = read_frame(reader, rows) if mixed else read_numbers(reader, rows, names)
        self.energy_ = self.table_.energy
        return self

    def _as_fitted(self, X: Any) -> Any:
        """Return rows as the table reads them: frames, or checked arrays of numbers."""
        check_is_fitted(self)
        return X if isinstance(self.energy_, TableMixture) else self._rows(X)

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


class _TablePredictor(_OfTables):
    """Condition the model of tables on rows and what to predict, and ask for it."""

    peers_: list[Any]
    _scaling: Scaling
    blend_: Array
    # The models that are asked too; where the search for `blend_` starts, and its bounds.
    _peers: ClassVar[tuple[Any, ...]]
    _start: ClassVar[tuple[float, ...]]
    _bounds: ClassVar[list[tuple[float, float]]]

    @abstractmethod
    def _answers(self, frame: Any) -> Array:
        """Return what the density and the peers say of rows. (m, ...)"""

    @staticmethod
    @abstractmethod
    def _loss(blend: Array, answers: Array, truth: NDArray[Any]) -> float:
        """Return the mean loss of blended answers."""

    def _fit(self, X: Any, y: Any, truth: NDArray[Any]) -> Self:
        frame = self._frame(X, reset=True)
        if len(frame) != len(y):
            raise InvalidInputError(
                f"Found input variables with inconsistent numbers of samples: {len(frame)} rows "
                f"of X and {len(y)} of y."
            )
        self._condition(frame, y)
        self.blend_ = self._blended(frame, y, truth)
        return self

    def _condition(self, frame: Any, y: Any) -> Self:
        """Read rows and what to predict, and fit the peers, but to a constant."""
        # A column without values says nothing, and cannot be read.
        self._kept, self._size = [name for name in frame if frame[name].notna().any()], len(frame)
        frame = frame[self._kept].assign(**{TARGET: y})
        self.table_ = read_frame(pretrained(self.model), frame, TARGET)
        features = self._features(frame, reset=True)
        peers = self._peers if len(np.unique(y)) > 1 else ()
        self.peers_ = [clone(each).fit(features, y) for each in peers]
        return self

    def _blended(self, frame: Any, y: Any, truth: NDArray[Any]) -> Array:
        """Return the numbers with the least loss on rows of five folds that were not read."""
        start = np.array(self._start)
        if len(frame) < FEWEST_BLENDED:
            return start
        some = slice(None, None, math.ceil(len(frame) / MOST_FOLDED))
        frame, y, truth = frame.iloc[some], y[some], truth[some]
        orders, parts = [], []
        # Every fold has rows of nearly every class, and numbers of all sizes.
        order = np.lexsort([np.random.default_rng(0).permutation(len(truth)), truth])
        place = np.empty(len(truth), np.int64)
        place[order] = np.arange(len(truth)) % FOLDS
        try:
            for part in range(FOLDS):
                rows, others = np.flatnonzero(place != part), np.flatnonzero(place == part)
                fold = copy(self)._condition(frame.iloc[rows], y[rows])
                others = others[:: math.ceil(len(others) / MOST_JUDGED)]
                orders.append(others)
                parts.append(fold._answers(frame.iloc[others]))
        except InvalidInputError:  # the rows of a fold are not enough for a table
            return start
        answers, truth = np.concatenate(parts), truth[np.concatenate(orders)]
        # One row more, with the loss of the start, pulls them there.
        pull = self._loss(start, answers, truth) / len(frame)

        def loss(blend: Array) -> float:
            return self._loss(blend, answers, truth) + pull * float(np.square(blend - start).sum())

        found: Array = minimize(loss, start, method="Nelder-Mead", bounds=self._bounds).x
        return found

    def _features(self, rows: Any, reset: bool = False) -> Array:
        """Return numbers in standard units, gaps at their mean, and indicators of categories."""
        _, x, seen, _ = self.table_._asked(TARGET, rows)
        numbers = torch.where(seen, x, torch.nan)[:, : self.table_.energy.n_numbers].numpy()
        with np.errstate(over="ignore", invalid="ignore"):
            self._scaling = Scaling.of(numbers) if reset else self._scaling
            standard = np.nan_to_num(self._scaling.into(numbers))
        indicators = self.table_.energy._flags(x, seen)[:, :-1].numpy()
        return np.concatenate([np.clip(standard, -LARGEST, LARGEST), indicators], 1)

    def _frame(self, X: Any, reset: bool = False) -> Any:
        """Return rows of X as a data frame whose columns have numbers for names."""
        require("pandas")
        import pandas as pd

        if not reset:
            check_is_fitted(self)
        frame = pd.DataFrame(self._rows(X, reset))
        return frame.set_axis(range(frame.shape[1]), axis=1)


class TableClassifier(ClassifierMixin, _TablePredictor):
    """Classify rows by their in-context density with the class.

    :meth:`fit` conditions the pretrained model on the table. Probabilities are in proportion to
    :math:`p^a q^b r^c`: p are the exact conditionals of the density, which ``table_.predict``
    returns alone, q and r those of a logistic regression and of a random forest on the same
    columns. The exponents have the least log loss on five folds, so that probabilities are
    calibrated on the table itself.

    Parameters
    ----------
    model : str or Path
        ``"tables"``, or a folder of another trained :class:`~isthmus.incontext.ICLTables`.

    Attributes
    ----------
    classes_ : ndarray
    table_ : ConditionedTable
    peers_ : list
        The fitted LogisticRegression and RandomForestClassifier; empty for a single class.
    blend_ : ndarray (3,)
        The exponents a, b and c; a third each with fewer than 10 rows.
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_iris
    >>> from isthmus.incontext import TableClassifier
    >>> X, y = load_iris(return_X_y=True)
    >>> bool(TableClassifier().fit(X[::2], y[::2]).score(X[1::2], y[1::2]) > 0.93)
    True
    """

    classes_: NDArray[Any]
    _peers = (
        LogisticRegression(max_iter=10_000),
        RandomForestClassifier(50, min_samples_leaf=2, random_state=0),
    )
    _start, _bounds = (1 / 3,) * 3, [(0.0, 4.0)] * 3

    def fit(self, X: Any, y: Any) -> Self:
        """Condition on rows (n, D), a frame or an array with gaps as NaN, and classes (n,)."""
        target = checked_target(y)
        try:
            check_classification_targets(target)
            self.classes_, labels, counts = np.unique(
                target, return_inverse=True, return_counts=True
            )
        except TypeError:
            raise InvalidInputError("y mixes classes of kinds that have no order.") from None
        if len(self.classes_) > MOST_VALUES:
            raise InvalidInputError(
                f"y has {len(self.classes_)} classes; the model reads up to {MOST_VALUES}."
            )
        self._usual = counts / len(labels)
        names = np.array([f"class {label}" for label in labels], dtype=object)
        return self._fit(X, names, labels)

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of the classes. (n, classes)"""
        answers = self._answers(self._frame(X))
        shares: Array = np.exp(self._pooled(self.blend_, answers))
        return shares

    def _answers(self, frame: Any) -> Array:
        """Return log-probabilities by the density and by each peer. (m, 3, classes)"""
        rows, names = frame[self._kept], [f"class {label}" for label in range(len(self.classes_))]
        context, features = self.table_.predict(TARGET, rows), self._features(rows)
        found = [context] * (3 - len(self.peers_))
        for peer in self.peers_:
            found.append(type(context)(peer.predict_proba(features), columns=peer.classes_))
        shares = np.stack([each.reindex(columns=names, fill_value=0.0) for each in found], 1)
        # Those of one row more that is of any class: nothing is certain, in a fold without it too.
        logs: Array = np.log((self._size * shares + self._usual) / (self._size + 1))
        return logs

    @staticmethod
    def _pooled(blend: Array, answers: Array) -> Array:
        found: Array = log_softmax(np.einsum("k,mkc->mc", blend, answers), axis=1)
        return found

    @staticmethod
    def _loss(blend: Array, answers: Array, truth: NDArray[Any]) -> float:
        logs = TableClassifier._pooled(blend, answers)[np.arange(len(truth)), truth]
        return float(-logs.mean())

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row. (n,)"""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(1)]


class TableRegressor(RegressorMixin, _TablePredictor):
    """Predict a number by the in-context density of rows with it.

    :meth:`fit` conditions the pretrained model on the table. Its conditional distributions, which
    ``table_`` returns alone, are moved towards a ridge regression on the same columns by a share of
    the way between their means, and stretched about the mean. Share and stretch have the
    least pinball loss on five folds. Means and quantiles are those of one distribution.

    Parameters
    ----------
    model : str or Path
        ``"tables"``, or a folder of another trained :class:`~isthmus.incontext.ICLTables`.

    Attributes
    ----------
    table_ : ConditionedTable
    peers_ : list
        The fitted RidgeCV; empty if all numbers are equal.
    blend_ : ndarray (2,)
        The share of the ridge and the stretch; 0.5 and 1 with fewer than 10 rows.
    n_features_in_ : int

    Examples
    --------
    >>> from sklearn.datasets import load_diabetes
    >>> from isthmus.incontext import TableRegressor
    >>> X, y = load_diabetes(return_X_y=True)
    >>> model = TableRegressor().fit(X[:200], y[:200])
    >>> model.predict_quantile(X[200:], [0.05, 0.95]).shape
    (242, 2)
    """

    _peers = (RidgeCV(PENALTIES),)
    _start, _bounds = (0.5, 1.0), [(0.0, 1.0), (0.5, 2.0)]

    def fit(self, X: Any, y: Any) -> Self:
        """Condition on rows (n, D), a frame or an array with gaps as NaN, and numbers (n,)."""
        target = checked_target(y, np.float64)
        return self._fit(X, target, target)

    def predict(self, X: Any) -> Array:
        """Return the conditional mean for each row. (n,)"""
        answers = self._answers(self._frame(X), np.empty(0))
        return self._moved(self.blend_, answers, answers[:, 0])

    def predict_quantile(self, X: Any, q: Any = 0.5) -> Array:
        """Return conditional quantiles: (n,), or (n, Q) for several probabilities `q`."""
        levels = probabilities(q)
        answers = self._answers(self._frame(X), levels.reshape(-1))
        found = self._moved(self.blend_, answers, answers[:, 2:].T).T
        return found.reshape(len(found), *levels.shape)

    def _answers(self, frame: Any, levels: Array = LEVELS) -> Array:
        """Return means by the density and by the ridge, and quantiles by the density. (m, 2 + Q)"""
        rows = frame[self._kept]
        mean = linear = self.table_.predict(TARGET, rows).to_numpy()
        for ridge in self.peers_:
            linear = ridge.predict(self._features(rows))
        quantiles = [self.table_.quantile(TARGET, levels, rows)] if len(levels) else []
        return np.column_stack([mean, linear, *quantiles])

    @staticmethod
    def _moved(blend: Array, answers: Array, values: Array) -> Array:
        """Return values (..., m) of the density where the blend has them."""
        (share, stretch), mean, linear = blend, answers[:, 0], answers[:, 1]
        found: Array = mean + share * (linear - mean) + stretch * (values - mean)
        return found

    @staticmethod
    def _loss(blend: Array, answers: Array, truth: NDArray[Any]) -> float:
        away = truth - TableRegressor._moved(blend, answers, answers[:, 2:].T)
        levels = LEVELS[:, None]
        return float(np.maximum(levels * away, (levels - 1) * away).mean())


def checked_target(y: Any, dtype: Any = None) -> NDArray[Any]:
    """Return what is to be predicted as an array (n,) without gaps."""
    require("pandas")
    import pandas as pd

    if y is None:
        raise InvalidInputError("The estimator requires y to be passed, but the target y is None.")
    try:
        target: NDArray[Any] = column_or_1d(y, warn=True, dtype=dtype)
        if target.dtype == object and any(value is None or value is pd.NA for value in target):
            raise ValueError("Input y contains gaps.")
        assert_all_finite(target, input_name="y")
    except (TypeError, ValueError, OverflowError, RuntimeError) as error:
        raise InvalidInputError(str(error)) from None
    return target


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
    table = X if mixed else as_numbers(X, "X")
    fits = len(table.shape) == 2 and table.shape[1] <= reader.config.max_columns
    if rows is None or not fits or len(table) < FEWEST_ROWS:
        return NeighbourKernels(X, show_progress).outliers(rows, level)
    if mixed:
        return read_frame(reader, X).outliers(rows, level, draws=draws, seed=seed)
    density = read_numbers(reader, table, getattr(X, "columns", None))
    return density.outliers(as_numbers(rows, "rows"), level, draws=draws, seed=seed)


def reader_of(model: str | Path | ICLTables) -> ICLTables:
    """Return a model of tables that is given by its name, by its folder, or itself."""
    found = pretrained(model) if isinstance(model, str | Path) else model
    require_kind(found, "model", ICLTables)
    return found
