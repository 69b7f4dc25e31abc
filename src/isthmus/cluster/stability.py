"""Agreement between fits on halves of the rows, which shows how far clusters can be relied on."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics.cluster import contingency_matrix

from isthmus.errors import IsthmusError, ShapeError, UnsupportedOperationError
from isthmus.validation import as_numbers, as_seed

# More rows are not needed to estimate a share.
MOST_ROWS = 10_000


def refit_agreement(estimator: Any, X: NDArray[Any], *, seed: int = 0) -> float | None:
    """Return the share of rows on which fits to two random halves of the rows agree.

    Every row is new to one of the two fits, and clusters are matched one to one. The share shows
    whether other rows of the same source would give the same clusters.

    Parameters
    ----------
    estimator : clusterer with `fit` and `predict`
        It is cloned.
    X : array (n, D)
        Of more than 10,000 rows, a random sample is used.
    seed : int
        Decides the halves.

    Returns
    -------
    float or None
        None if a half cannot be fitted, for example because it has fewer rows than clusters.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAMELBO, refit_agreement
    >>> rng = np.random.default_rng(0)
    >>> blob = rng.normal(size=(300, 2))
    >>> refit_agreement(ClAMELBO(2, random_state=0), np.concatenate([blob, blob + 9]))
    1.0
    >>> refit_agreement(ClAMELBO(9, random_state=0), blob) < 0.8
    True
    """
    if not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
        raise UnsupportedOperationError("estimator must be a clusterer with fit and predict.")
    X = as_numbers(X, "X")
    if X.ndim != 2:
        raise ShapeError(f"X must be a table (n, D), not {X.shape}.")
    rows = X[np.random.default_rng(as_seed(seed)).permutation(len(X))[:MOST_ROWS]]
    halves = rows[::2], rows[1::2]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            first, second = (clone(estimator).fit(half).predict(rows) for half in halves)
    except (IsthmusError, ValueError):
        return None
    shared = contingency_matrix(first, second)
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum() / len(rows))
