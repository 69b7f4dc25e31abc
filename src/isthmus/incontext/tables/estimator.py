"""TableDensity: the in-context density of tables as a scikit-learn estimator."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, DensityMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from isthmus.energy import as_arrays
from isthmus.incontext.model import pretrained
from isthmus.incontext.tables.model import FEWEST_ROWS
from isthmus.memories.student_mixture import StudentMixture
from isthmus.rows import checked_table
from isthmus.validation import as_count


class TableDensity(DensityMixin, BaseEstimator):
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
        table = checked_table(
            self,
            X,
            dtype=np.float64,
            ensure_all_finite="allow-nan",
            ensure_min_samples=FEWEST_ROWS,
        )
        self.energy_ = pretrained(self.model).condition(table)
        return self

    def score_samples(self, X: Any) -> NDArray[np.float64]:
        """Return the log-density of each row. (n, D) -> (n,)."""
        check_is_fitted(self)
        rows = checked_table(self, X, dtype=np.float64, ensure_all_finite="allow-nan", reset=False)
        points = torch.from_numpy(np.array(rows))
        known = ~points.isnan()
        complete = bool(known.all())
        found: NDArray[np.float64] = self.energy_.log_prob(
            points, None if complete else known
        ).numpy()
        return found

    def score(self, X: Any, y: Any = None) -> float:
        """Return the total log-density of the rows; y is ignored."""
        return float(self.score_samples(X).sum())

    def sample(self, n_samples: int = 1, random_state: Any = None) -> NDArray[np.float64]:
        """Draw rows from the density. -> (n_samples, D)."""
        check_is_fitted(self)
        count = as_count(n_samples, "n_samples")
        seed = int(check_random_state(random_state).randint(2**31 - 1))
        drawn: NDArray[np.float64] = as_arrays(self.energy_.sample(count, seed=seed))
        return drawn

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        return tags
