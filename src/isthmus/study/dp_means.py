"""DP-means: k-means that opens a cluster wherever a row is too far from all of them."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils import check_random_state
from sklearn.utils.validation import validate_data

from isthmus.errors import InvalidInputError


class DPMeans(ClusterMixin, BaseEstimator):
    r"""Hard clustering with a price on each cluster (Kulis and Jordan, 2012).

    Minimises :math:`\sum_n \|x_n - \mu_{z_n}\|^2 + \lambda K`, the small-variance limit of a
    Dirichlet process mixture. Never rises from one iteration to the next.

    Parameters
    ----------
    penalty : float
        Lambda, in units of the rows' mean squared distance from their mean.
    max_iter : int
    random_state : int, RandomState or None
        Decides the order in which rows may open clusters.

    Attributes
    ----------
    cluster_centers_ : ndarray (K, n_features)
    labels_ : ndarray (n_samples,)
    objective_ : float
    objective_trace_ : ndarray
    n_iter_ : int
    converged_ : bool

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.study import DPMeans
    >>> X = np.array([[0.0], [0.2], [5.0], [5.2], [9.0]])
    >>> DPMeans(penalty=0.2, random_state=0).fit(X).labels_.max() + 1
    np.int64(3)
    """

    def __init__(self, penalty: float = 1.0, *, max_iter: int = 100, random_state: Any = None):
        self.penalty = penalty
        self.max_iter = max_iter
        self.random_state = random_state

    def fit(self, X: Any, y: Any = None) -> Self:
        """Open clusters and move them until nothing changes."""
        if not self.penalty > 0:
            raise InvalidInputError(f"penalty must be above zero, not {self.penalty!r}.")
        if not self.max_iter >= 1:
            raise InvalidInputError(f"max_iter must be at least 1, not {self.max_iter!r}.")
        X = validate_data(self, X, dtype=np.float64)
        order = check_random_state(self.random_state).permutation(len(X))
        rows = X[order]
        centres = rows.mean(0, keepdims=True)
        price = self.penalty * float(((rows - centres) ** 2).sum(1).mean()) or 1.0
        trace: list[float] = []
        self.converged_ = False
        for _ in range(self.max_iter):
            centres = _opened(rows, centres, price)
            found, labels = np.unique(_squared(rows, centres).argmin(1), return_inverse=True)
            sums = np.zeros((len(found), rows.shape[1]))
            np.add.at(sums, labels, rows)
            centres = sums / np.bincount(labels)[:, None]
            cost = float(((rows - centres[labels]) ** 2).sum()) + price * len(centres)
            trace.append(cost)
            if len(trace) > 1 and trace[-2] - cost <= 1e-9 * abs(cost):
                self.converged_ = True
                break
        self.cluster_centers_ = centres
        self.labels_ = np.empty(len(X), dtype=np.int64)
        self.labels_[order] = labels
        self.objective_trace_, self.objective_ = np.array(trace), trace[-1]
        self.n_iter_ = len(trace)
        return self


def _opened(rows: NDArray[Any], centres: NDArray[Any], price: float) -> NDArray[Any]:
    """Return the centres and each row that is further than the price from all before it."""
    nearest = _squared(rows, centres).min(1)
    lengths = (rows**2).sum(1)
    opened = []
    for place in np.flatnonzero(nearest > price):
        if nearest[place] > price:  # still: those opened meanwhile may be nearer
            opened.append(place)
            np.minimum(nearest, lengths - 2 * rows @ rows[place] + lengths[place], out=nearest)
    return np.concatenate([centres, rows[opened]])


def _squared(rows: NDArray[Any], centres: NDArray[Any]) -> NDArray[Any]:
    squared = (rows**2).sum(1)[:, None] - 2 * rows @ centres.T + (centres**2).sum(1)
    return np.maximum(squared, 0)
