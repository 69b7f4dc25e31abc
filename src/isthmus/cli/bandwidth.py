"""A bandwidth for rows, by the likelihood of each given the others."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp

from isthmus.errors import InvalidInputError

__all__ = ["MOST_PAIRED", "leave_one_out_sigma"]

# So many distinct rows at most choose the bandwidth, since all pairs are looked at.
MOST_PAIRED = 2000


def leave_one_out_sigma(X: NDArray[np.float64], seed: int = 0) -> float:
    r"""The bandwidth at which each row (n, D) is most likely given the others.

    Exact twins count as one row, since they would ask for a bandwidth of zero. Of more than
    2,000 distinct rows, as many are drawn, and the bandwidth is corrected for the number by
    Scott's rule, :math:`\sigma \propto n^{-1/(D + 4)}`.
    """
    distinct = np.unique(X, axis=0)
    count, dim = distinct.shape
    if count == 1:
        raise InvalidInputError(
            "one row, however often, does not tell how far from it others lie; give --sigma."
        )
    if count > MOST_PAIRED:
        distinct = np.random.default_rng(seed).permutation(distinct)[:MOST_PAIRED]
    squared = squareform(pdist(distinct, "sqeuclidean"))
    np.fill_diagonal(squared, np.inf)
    # Between the two rows that are nearest and the two that are farthest apart.
    bounds = (
        0.5 * math.log(squared.min()) - 2,
        0.5 * math.log(squared[squared < np.inf].max()) + 1,
    )

    def loss(log_sigma: float) -> float:
        mixture = logsumexp(-0.5 * math.exp(-2 * log_sigma) * squared, axis=1)
        return dim * log_sigma - float(mixture.mean())

    best = math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)
    return best * float((len(distinct) / count) ** (1 / (dim + 4)))
