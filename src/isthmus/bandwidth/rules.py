"""Bandwidths of a Gaussian kernel density estimate, and rules that choose them from data."""

from __future__ import annotations

import math
import sys
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp, softmax

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_number, as_points, require_squarable

FloatArray = NDArray[np.float64]
Kind = Literal["round", "columns", "full"]

# All pairs of rows are compared, so at most this many distinct rows choose the bandwidth.
MAX_PAIRED_ROWS = 2000

# Rows whose logits against all others are held at once.
BLOCK_ROWS = 512


@dataclass(frozen=True)
class Bandwidth:
    """A bandwidth with the shape of its kernels, which ``GaussianKDE(X, bandwidth)`` uses.

    Attributes
    ----------
    sigma : float or ndarray (D,)
    covariance : ndarray (D, D) or None
        Of the kernels, which sigma squared multiplies.
    factors : ndarray (n,) or None
    log_likelihood : float
        Mean log-density of a row given the others, in nats; NaN if not measured.
    """

    kind: Kind
    sigma: Any
    covariance: FloatArray | None = field(repr=False)
    factors: FloatArray | None = field(repr=False)
    log_likelihood: float = math.nan

    def __float__(self) -> float:
        if np.ndim(self.sigma) or self.covariance is not None or self.factors is not None:
            raise InvalidInputError(f"This bandwidth of kind {self.kind!r} is not one number.")
        return float(self.sigma)


def leave_one_out(X: Any, seed: int = 0) -> float:
    r"""Return the bandwidth at which each row is most likely given all the others.

    Exact duplicates count as one row. If X has more than 2,000 distinct rows, a random subset of
    2,000 is used, and the result is scaled by Scott's rule, :math:`\sigma \propto n^{-1/(D + 4)}`.

    Parameters
    ----------
    X : array or Tensor (n, D)
    seed : int
        Seed of the subset.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.bandwidth import leave_one_out
    >>> X = np.random.default_rng(0).normal(size=(500, 2))
    >>> round(leave_one_out(X), 2)
    0.45
    """
    distinct = np.unique(as_rows(X), axis=0)
    count, dim = distinct.shape
    if count == 1:
        raise InvalidInputError(
            "X has only one distinct row, so it gives no bandwidth. Pass sigma instead."
        )
    if count > MAX_PAIRED_ROWS:
        distinct = np.random.default_rng(seed).permutation(distinct)[:MAX_PAIRED_ROWS]
    with np.errstate(over="ignore"):
        unit = float(np.ptp(distinct, 0).max())
    if not sys.float_info.min <= unit <= sys.float_info.max:
        raise InvalidInputError("The range of X is beyond float64; rescale the columns.")
    squared = squareform(pdist(distinct / unit, "sqeuclidean"))
    np.fill_diagonal(squared, np.inf)
    # The optimum lies between the smallest and the largest distance, which is 1 or more.
    smallest = max(float(squared.min()), sys.float_info.min)
    bounds = (0.5 * math.log(smallest) - 2, 0.5 * math.log(squared[squared < np.inf].max()) + 1)

    def loss(log_sigma: float) -> float:
        mixture = logsumexp(-0.5 * math.exp(-2 * log_sigma) * squared, axis=1)
        return dim * log_sigma - float(mixture.mean())

    best = unit * math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)
    return best * float((len(distinct) / count) ** (1 / (dim + 4)))


def left_out_log_density(X: Any, sigma: float) -> float:
    """Return the mean log-density of rows of X (n, D) under the kernels of all others, in nats.

    Duplicates count as often as they occur.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.bandwidth import left_out_log_density
    >>> round(left_out_log_density(np.array([[0.0], [1.0]]), sigma=1.0), 4)
    -1.4189
    """
    table, sigma = as_rows(X), as_number(sigma, "sigma", above=0)
    n, dim = table.shape
    if n < 2:
        raise InvalidInputError("X has one row; a left-out density needs at least two.")
    require_squarable(torch.from_numpy(table), "X")
    table = table - table.mean(0)
    squares = np.einsum("nd,nd->n", table, table)
    total = 0.0
    for start in range(0, n, BLOCK_ROWS):
        block = slice(start, start + BLOCK_ROWS)
        logits = squares[block, None] - 2 * table[block] @ table.T + squares
        logits /= -2 * sigma**2
        np.fill_diagonal(logits[:, start:], -np.inf)
        total += float(logsumexp(logits, axis=1).sum())
    return total / n - math.log(n - 1) - dim / 2 * math.log(2 * math.pi * sigma**2)


def scott(X: Any) -> Bandwidth:
    r"""Return Scott's bandwidth: the covariance of the rows, times :math:`n^{-2/(D+4)}`.

    The rule of :class:`scipy.stats.gaussian_kde` and ``GaussianKDE(X, "scott")`` suits one Gaussian
    cluster; rows (n, D) with several get kernels that are too wide.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.bandwidth import scott
    >>> round(scott(np.array([[0.0], [2.0], [4.0]])).sigma, 4)  # times the standard deviation, 2
    0.8027
    """
    return by_rule(as_rows(X), "scott")


def scott_width(table: FloatArray) -> float:
    """Return Scott's bandwidth of round kernels, from the mean variance; 1 for constant data."""
    n, dim = table.shape
    return float(np.sqrt(table.var(0).mean())) * n ** (-1 / (dim + 4)) or 1.0


def silverman(X: Any) -> Bandwidth:
    r"""Return Silverman's bandwidth: the covariance, times :math:`(4 / ((D+2) n))^{2/(D+4)}`.

    It is otherwise as :func:`scott`, and the rule of ``GaussianKDE(X, "silverman")``.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.bandwidth import silverman
    >>> round(silverman(np.array([[0.0], [2.0], [4.0]])).sigma, 4)
    0.8503
    """
    return by_rule(as_rows(X), "silverman")


def by_rule(rows: FloatArray, rule: str, log_weights: FloatArray | None = None) -> Bandwidth:
    """Return the bandwidth of a rule for rows with weights."""
    logits = np.zeros(len(rows)) if log_weights is None else log_weights
    shares = softmax(logits)
    if len(rows) < 2 or not 1 - np.square(shares).sum() > 0:
        raise InvalidInputError("A covariance needs two rows with weight. Pass sigma instead.")
    covariance = np.cov(rows.T, aweights=shares).reshape(rows.shape[1], -1)
    if np.linalg.eigvalsh(covariance)[0] <= 0:
        raise InvalidInputError(
            "The covariance of the rows is not positive definite: a column is constant, or the sum "
            "of others. Use sigma='auto'."
        )
    count, dim = 1 / float(np.square(shares).sum()), rows.shape[1]
    if rule == "silverman":
        count *= (dim + 2) / 4
    return Bandwidth("full", count ** (-1 / (dim + 4)), covariance, None)


def as_rows(X: Any) -> FloatArray:
    """Return X as a checked float64 table (n, D)."""
    points = as_points(X, "X")
    if points.ndim != 2 or 0 in points.shape:
        raise ShapeError(
            f"X must be a table (n, D) with at least one row, not {tuple(points.shape)}; "
            "a single column is X.reshape(-1, 1)."
        )
    table: FloatArray = points.detach().to("cpu", torch.float64).numpy()
    return table
