"""Rules that choose the bandwidth of a Gaussian kernel density estimate from data."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_number, as_points, require_squarable

__all__ = ["leave_one_out", "left_out_log_density", "scott", "silverman"]

# All pairs of rows are compared, so at most this many distinct rows choose the bandwidth.
MAX_PAIRED_ROWS = 2000

# Rows whose logits against all others are held at once.
BLOCK_ROWS = 512


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
    >>> from isthmus.memories.bandwidth import leave_one_out
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
    squared = squareform(pdist(distinct, "sqeuclidean"))
    np.fill_diagonal(squared, np.inf)
    # The optimum lies between the smallest and the largest distance.
    widest = squared[squared < np.inf].max()
    bounds = (0.5 * math.log(squared.min()) - 2, 0.5 * math.log(widest) + 1)

    def loss(log_sigma: float) -> float:
        mixture = logsumexp(-0.5 * math.exp(-2 * log_sigma) * squared, axis=1)
        return dim * log_sigma - float(mixture.mean())

    best = math.exp(minimize_scalar(loss, bounds=bounds, method="bounded").x)
    return best * float((len(distinct) / count) ** (1 / (dim + 4)))


def left_out_log_density(X: Any, sigma: float) -> float:
    """Return the mean log-density of each row under the kernels of all other rows, in nats.

    Parameters
    ----------
    X : array or Tensor (n, D)
        At least two rows. Duplicates count as often as they occur.
    sigma : float
        Bandwidth.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.memories.bandwidth import left_out_log_density
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


def scott(X: Any) -> float:
    r"""Return Scott's bandwidth, :math:`n^{-1/(D+4)}` times the root mean variance.

    The rule suits one Gaussian cluster; data with several get a bandwidth that is too wide.
    Constant data get 1.

    Parameters
    ----------
    X : array or Tensor (n, D)

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.memories.bandwidth import scott
    >>> round(scott(np.array([[0.0, 0.0], [2.0, 2.0]])), 4)
    0.8909
    """
    table = as_rows(X)
    n, dim = table.shape
    spread = float(np.sqrt(table.var(0).mean()))
    return spread * n ** (-1 / (dim + 4)) or 1.0


def silverman(X: Any) -> Any:
    r"""Return Silverman's bandwidth for each coordinate.

    .. math:: h_d = s_d \left(\frac{4}{(D + 2)\, n}\right)^{1/(D + 4)}

    with the standard deviation :math:`s_d` (n - 1 in the denominator) of coordinate d.

    Parameters
    ----------
    X : array or Tensor (..., n, D)
        At least two rows. Leading axes are a batch of tables. The result is (..., D), and a
        tensor if X is one.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.memories.bandwidth import silverman
    >>> silverman(np.array([[0.0, 0.0], [2.0, 4.0]])).round(4)
    array([1.2599, 2.5198])
    """
    points = as_points(X, "X")
    if points.ndim < 2 or points.shape[-2] < 2:
        raise ShapeError(f"X must be (..., n, D) with n >= 2, not {tuple(points.shape)}.")
    n, dim = points.shape[-2:]
    widths = points.std(-2) * (4 / ((dim + 2) * n)) ** (1 / (dim + 4))
    return widths if isinstance(X, Tensor) else widths.numpy()


def as_rows(X: Any) -> NDArray[np.float64]:
    """Return X as a checked float64 table (n, D)."""
    points = as_points(X, "X")
    if points.ndim != 2 or 0 in points.shape:
        raise ShapeError(f"X must be a table (n, D) with at least one row, not {points.shape}.")
    table: NDArray[np.float64] = points.detach().to("cpu", torch.float64).numpy()
    return table
