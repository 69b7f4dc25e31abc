"""Gaussian mean shift: clusters are the basins of a kernel density estimate."""

from __future__ import annotations

from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import BaseEstimator, ClusterMixin
from sklearn.utils.validation import check_is_fitted

from isthmus.bandwidth.rules import scott_width
from isthmus.cluster.base import as_number_or
from isthmus.cluster.data import require_in_memory
from isthmus.dynamics.modes import centred, distances, find_modes, require_squares
from isthmus.dynamics.retrieve import retrieve
from isthmus.energy import as_arrays
from isthmus.memories.gaussian import GaussianKDE
from isthmus.plotting import Plottable
from isthmus.rows import checked_table
from isthmus.validation import as_count, as_number


class GaussianMeanShift(Plottable, ClusterMixin, BaseEstimator):
    """Clusters as basins of attraction of a Gaussian kernel density estimate.

    Every row flows uphill to a mode of the density; rows that meet are a cluster. The number
    of clusters follows from the bandwidth. Unlike scikit-learn's ``MeanShift``, whose kernel
    is flat (Comaniciu and Meer 2002), this climbs a smooth density, and moves all rows at once.

    Parameters
    ----------
    bandwidth : "scott" or float
        Sigma. Scott's rule, n^(-1/(D+4)) times the root mean variance, suits one cluster;
        with several it is on the wide side.
    max_iter, tol : int, float
        A row rests when a step moves it by no more than the share `tol` of the bandwidth.

    Attributes
    ----------
    cluster_centers_ : ndarray (n_clusters, n_features)
        The modes, those of the largest basins first.
    labels_ : ndarray (n_samples,)
    bandwidth_ : float
    n_clusters_, n_iter_, n_features_in_ : int

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import GaussianMeanShift
    >>> X = np.array([[0.0], [0.4], [0.2], [5.0], [5.3]])
    >>> GaussianMeanShift(bandwidth=1.0).fit(X).labels_.tolist()
    [0, 0, 0, 1, 1]
    """

    def __init__(self, bandwidth: Any = "scott", *, max_iter: int = 1000, tol: float = 1e-4):
        self.bandwidth = bandwidth
        self.max_iter = max_iter
        self.tol = tol

    def fit(self, X: Any, y: Any = None) -> Self:
        """Find the modes of the density and the mode that each row reaches."""
        table = self._table(X, reset=True)
        chosen = as_number_or(self.bandwidth, "bandwidth", ("scott",), above=0)
        starts = torch.from_numpy(table)
        require_squares(starts)
        self.bandwidth_ = scott_width(table) if chosen == "scott" else chosen
        self._rows = table
        tol, max_steps = self._stopping()
        found = find_modes(self.energy_, starts, tol=tol, max_steps=max_steps)
        self.cluster_centers_ = found.fixed_points.astype(table.dtype)
        self.labels_, self.n_clusters_ = found.labels, len(self.cluster_centers_)
        self.n_iter_ = max(found.steps, 1)
        return self

    def _stopping(self) -> tuple[float, int]:
        return as_number(self.tol, "tol", at_least=0), as_count(self.max_iter, "max_iter")

    @property
    def energy_(self) -> GaussianKDE:
        """The density whose modes are the clusters."""
        check_is_fitted(self, "bandwidth_")
        return GaussianKDE(self._rows, self.bandwidth_)

    def predict(self, X: Any) -> NDArray[np.int64]:
        """Return the cluster whose mode each row reaches. -> (n_samples,)"""
        tol, max_steps = self._stopping()
        energy, starts, centre = centred(self.energy_, torch.from_numpy(self._table(X)))
        ends = retrieve(energy, starts, tol=tol, max_steps=max_steps).state
        modes = torch.from_numpy(self.cluster_centers_) - centre
        return distances(ends.double(), modes).argmin(1).numpy()

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Return the log-density of each row. -> (n_samples,)"""
        return as_arrays(self.energy_.log_prob(self._table(X)))

    def _table(self, X: Any, reset: bool = False) -> NDArray[Any]:
        require_in_memory(X, type(self).__name__)
        if not reset:
            check_is_fitted(self, "cluster_centers_")
        return np.array(checked_table(self, X, reset=reset, dtype=[np.float64, np.float32]))
