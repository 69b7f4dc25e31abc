"""Classes and numbers predicted from a table in context, with scikit-learn's interface."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.linear_model import LogisticRegression, RidgeCV
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import assert_all_finite, check_is_fitted, column_or_1d

from isthmus.errors import InvalidInputError
from isthmus.extras import require
from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS, Array
from isthmus.incontext.tables.questions import MOST_VALUES, ConditionedTable, read_frame
from isthmus.rows import checked_table
from isthmus.tables.encoding import as_frame, is_mixed

# The name of the column to predict, beside those of X.
TARGET = "(target)"
# The penalties that leave-one-out errors choose from: all that matter in standard units.
PENALTIES = np.geomspace(1e-2, 1e3, 16)
# Features are held within so many standard deviations, so that their squares are finite.
LARGEST = 1e6
# The length of a central interval of 90 % in standard deviations.
INTERVAL = 3.29


class _TablePredictor(BaseEstimator):
    """Condition the model of tables on rows and what to predict, and ask for it."""

    table_: ConditionedTable
    linear_: Any

    def __init__(self, model: str | Path = "tables") -> None:
        self.model = model

    def _fit(self, X: Any, y: Any, linear: Any) -> Self:
        frame = self._frame(X, reset=True)
        if len(frame) != len(y):
            raise InvalidInputError(
                f"Found input variables with inconsistent numbers of samples: {len(frame)} rows "
                f"of X and {len(y)} of y."
            )
        # A column without values says nothing, and cannot be read.
        self._kept = [name for name in frame if frame[name].notna().any()]
        frame = frame[self._kept].assign(**{TARGET: y})
        self.table_ = read_frame(pretrained(self.model), frame, TARGET)
        features = self._features(frame, reset=True)
        self.linear_ = linear.fit(features, y) if len(np.unique(y)) > 1 else None
        return self

    def _features(self, rows: Any, reset: bool = False) -> Array:
        """Return numbers in standard units, gaps at their mean, and indicators of categories."""
        _, x, seen, _ = self.table_._asked(TARGET, rows)
        count = self.table_.energy.n_numbers
        known = seen[:, :count].numpy()
        numbers = np.where(known, x[:, :count].numpy(), 0.0)
        with np.errstate(over="ignore"):
            if reset:
                shares = known / np.maximum(known.sum(0), 1)
                self._centre = (shares * numbers).sum(0)
                spread = np.sqrt((shares * (numbers - self._centre) ** 2).sum(0))
                self._scale = np.where(spread > 0, spread, 1)
            standard = np.where(known, (numbers - self._centre) / self._scale, 0.0)
        indicators = self.table_.energy._flags(x, seen)[:, :-1].numpy()
        return np.concatenate([np.clip(standard, -LARGEST, LARGEST), indicators], 1)

    def _frame(self, X: Any, reset: bool) -> Any:
        """Return rows of X as a data frame whose columns have numbers for names."""
        require("pandas")
        import pandas as pd

        mixed = is_mixed(X) and hasattr(X, "columns")
        if mixed:
            frame = as_frame(X)
            names = np.array(frame.columns, dtype=object)
            if reset:
                self.n_features_in_, self.feature_names_in_ = len(names), names
            elif list(getattr(self, "feature_names_in_", names)) != list(names):
                raise InvalidInputError("X must have the columns of the fit, in their order.")
            return frame.set_axis(range(frame.shape[1]), axis=1)
        rows = {"ensure_min_samples": FEWEST_ROWS} if reset else {"reset": False}
        table = checked_table(self, X, dtype=np.float64, ensure_all_finite="allow-nan", **rows)
        return pd.DataFrame(table)

    def _asked(self, X: Any) -> Any:
        check_is_fitted(self)
        return self._frame(X, reset=False)[self._kept]

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags


class TableClassifier(ClassifierMixin, _TablePredictor):
    """Classify rows by their in-context density with the class.

    :meth:`fit` conditions the pretrained model on the table. Probabilities are the mean of two
    answers, whose errors differ: the exact conditionals of the density that it writes, which
    ``table_.predict`` returns alone, and a logistic regression on the same columns.

    Parameters
    ----------
    model : str or Path
        ``"tables"``, or a folder of another trained :class:`~isthmus.incontext.ICLTables`.

    Attributes
    ----------
    classes_ : ndarray
    table_ : ConditionedTable
    linear_ : LogisticRegression, or None for a single class
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

    def fit(self, X: Any, y: Any) -> Self:
        """Condition on rows (n, D), a frame or an array with gaps as NaN, and classes (n,)."""
        target = checked_target(y)
        try:
            check_classification_targets(target)
            self.classes_, labels = np.unique(target, return_inverse=True)
        except TypeError:
            raise InvalidInputError("y mixes classes of kinds that have no order.") from None
        if len(self.classes_) > MOST_VALUES:
            raise InvalidInputError(
                f"y has {len(self.classes_)} classes; the model reads up to {MOST_VALUES}."
            )
        names = np.array([f"class {label}" for label in labels], dtype=object)
        return self._fit(X, names, LogisticRegression(max_iter=10_000))

    def predict_proba(self, X: Any) -> Array:
        """Return probabilities of the classes. (n, classes)"""
        rows = self._asked(X)
        names = [f"class {label}" for label in range(len(self.classes_))]
        shares: Array = self.table_.predict(TARGET, rows)[names].to_numpy()
        if self.linear_ is None:
            return shares
        places = [list(self.linear_.classes_).index(name) for name in names]
        beside: Array = self.linear_.predict_proba(self._features(rows))[:, places]
        return 0.5 * shares + 0.5 * beside

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable class of each row. (n,)"""
        shares = self.predict_proba(X)
        return self.classes_[shares.argmax(1)]


class TableRegressor(RegressorMixin, _TablePredictor):
    """Predict a number by the in-context density of rows with it.

    :meth:`fit` conditions the pretrained model on the table. Its conditional distributions, which
    ``table_`` returns alone, are shifted towards a ridge regression on the same columns: the means
    of both are averaged in proportion to their precisions, by the length of the interval of 90 %
    and by the leave-one-out error of the ridge.

    Parameters
    ----------
    model : str or Path
        ``"tables"``, or a folder of another trained :class:`~isthmus.incontext.ICLTables`.

    Attributes
    ----------
    table_ : ConditionedTable
    linear_ : RidgeCV, or None if all numbers are equal
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

    def fit(self, X: Any, y: Any) -> Self:
        """Condition on rows (n, D), a frame or an array with gaps as NaN, and numbers (n,)."""
        return self._fit(X, checked_target(y, np.float64), RidgeCV(PENALTIES))

    def predict(self, X: Any) -> Array:
        """Return the conditional mean for each row. (n,)"""
        rows = self._asked(X)
        mean, shift = self._mean_and_shift(rows)
        return mean + shift

    def predict_quantile(self, X: Any, q: Any = 0.5) -> Array:
        """Return conditional quantiles: (n,), or (n, Q) for several probabilities `q`."""
        rows = self._asked(X)
        quantiles: Array = self.table_.quantile(TARGET, q, rows)
        _, shift = self._mean_and_shift(rows)
        return quantiles + shift.reshape(-1, *[1] * (quantiles.ndim - 1))

    def _mean_and_shift(self, rows: Any) -> tuple[Array, Array]:
        """Return the mean in context, and the way from it to the mean with the ridge. (n,) each"""
        mean: Array = self.table_.predict(TARGET, rows).to_numpy()
        if self.linear_ is None:
            return mean, np.zeros_like(mean)
        low, high = self.table_.interval(TARGET, 0.9, rows)
        variance, error = ((high - low) / INTERVAL) ** 2, -self.linear_.best_score_
        with np.errstate(invalid="ignore"):
            weight = np.nan_to_num(variance / (variance + error))
        return mean, weight * (self.linear_.predict(self._features(rows)) - mean)


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
