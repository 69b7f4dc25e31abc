"""Skeleton of a clusterer: rows become memories by farthest-point selection.

A clusterer is a scikit-learn estimator that learns memories and exposes them as an ``Energy`` in
``energy_``. Labels, posteriors and densities are calls on that energy, never a second
implementation. The constructor stores its arguments unchanged; fitted attributes end in ``_``.

Copy the class to ``src/isthmus/cluster/``, export it in ``isthmus/cluster/__init__.py``, and add it
to ``tests/cluster/test_estimator_contract.py``. If it iterates, derive it from ``MemoryEstimator``
in ``cluster/base.py``, which has the training loop, missing values, weights, streams, and files.
"""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted, validate_data

import isthmus as ist
from isthmus.errors import InvalidInputError
from isthmus.validation import as_count

__all__ = ["FarthestPoints"]


class FarthestPoints(ClusterMixin, BaseEstimator):
    """Cluster rows around memories that are far from each other.

    The first memory is a random row; each further one is the row farthest from all memories so far
    (Gonzalez 1985).

    Parameters
    ----------
    n_clusters : int
    random_state : int, RandomState or None

    Attributes
    ----------
    memories_ : ndarray (n_clusters, n_features)
    energy_ : Mixture
    labels_ : ndarray (n_samples,)

    Examples
    --------
    >>> X = [[0.0, 0.1], [0.2, 0.0], [4.0, 4.1], [4.2, 3.9]]
    >>> labels = FarthestPoints(2, random_state=0).fit_predict(X)
    >>> bool(labels[0] == labels[1] != labels[2] == labels[3])
    True
    """

    def __init__(self, n_clusters: int = 3, *, random_state: Any = None) -> None:
        self.n_clusters = n_clusters
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Learn memories from the rows of X (n_samples, n_features)."""
        X = validate_data(self, X, dtype=np.float64)
        count = as_count(self.n_clusters, "n_clusters")
        if count > len(X):
            raise InvalidInputError(
                f"n_clusters={count} is more than the n_samples={len(X)} rows; reduce it."
            )
        chosen = [int(check_random_state(self.random_state).randint(len(X)))]
        distance = np.full(len(X), np.inf)
        for _ in range(count):
            distance = np.minimum(distance, ((X - X[chosen[-1]]) ** 2).sum(1))
            chosen.append(int(distance.argmax()))
        self.memories_ = X[chosen[:count]]
        variance = distance.mean() / X.shape[1] or 1.0
        self.energy_ = ist.Mixture(self.memories_, beta=0.5 / variance)
        self.labels_ = self.predict(X)
        return self

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return the most likely memory of each row: (n_samples,)."""
        check_is_fitted(self)
        X = validate_data(self, X, dtype=np.float64, reset=False)
        return np.asarray(self.energy_.responsibilities(X)).argmax(-1)
