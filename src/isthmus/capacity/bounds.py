r"""Ramsauer et al.'s bounds for patterns that lie far enough apart.

They hold for modern Hopfield networks with :math:`\beta = 1/\sigma^2` and patterns no longer
than M, where the separation is :math:`\Delta_n = \min_j x_n \cdot (x_n - x_j)`; and for
Gaussian kernel density estimates, where it is :math:`\tfrac12 \min_j \|x_n - x_j\|^2` and M may
be the radius of any ball, about any centre, that contains all patterns, since mean shift does
not depend on the origin. On a sphere about the origin the two are the same. Proofs are in
``docs/capacity-proofs.md``.

References
----------
Ramsauer et al., Hopfield Networks is All You Need, ICLR 2021 (arXiv:2008.02217).
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isthmus.validation import as_array, as_count, as_number

__all__ = [
    "guaranteed_radius",
    "one_step_error_bound",
    "required_separation",
    "retrieval_error_bound",
]


def required_separation(n_patterns: int, max_norm: float, sigma: float = 1.0) -> float:
    r"""Return the separation at which Ramsauer et al. prove N patterns stored.

    .. math:: \Delta_n \ge \frac{2\sigma^2}{N} + \sigma^2 \ln \frac{2 (N-1) N M^2}{\sigma^2}

    Then the update maps the ball of :func:`guaranteed_radius` about pattern n into itself, as a
    contraction (Lemmas A5 to A7). Such balls are disjoint if also
    :math:`2 (N-1) N M^2 > \sigma^2`. The condition is sufficient, and far from necessary.

    Parameters
    ----------
    n_patterns : int
        N
    max_norm : float
        M, the length of the longest pattern, or the radius of a ball that contains them all.
    sigma : float
        Bandwidth; :math:`\beta = 1/\sigma^2`.

    Returns
    -------
    float
        ``-inf`` for a single pattern, or for patterns that all coincide with the centre (M = 0).

    Examples
    --------
    >>> from isthmus.capacity import required_separation
    >>> round(required_separation(100, 6.0), 4)
    13.497
    """
    n_patterns, max_norm, sigma = _checked(n_patterns, max_norm, sigma)
    if n_patterns == 1 or max_norm == 0:
        return -math.inf
    log_product = math.log(2) + math.log(n_patterns - 1) + math.log(n_patterns)
    log_ratio = 2 * (math.log(max_norm) - math.log(sigma))
    return sigma * sigma * (2 / n_patterns + log_product + log_ratio)


def guaranteed_radius(n_patterns: int, max_norm: float, sigma: float = 1.0) -> float:
    r"""Return the radius of the ball from which a well separated pattern is retrieved.

    .. math:: r = \frac{\sigma^2}{N M}

    A lower bound, usually far below the true basin (Ramsauer et al., Lemmas A5 to A7). It needs
    the separation of :func:`required_separation`.

    Parameters
    ----------
    n_patterns, max_norm, sigma
        As in :func:`required_separation`.

    Returns
    -------
    float
        ``inf`` where M = 0.

    Examples
    --------
    >>> from isthmus.capacity import guaranteed_radius
    >>> guaranteed_radius(100, 5.0)
    0.002
    """
    n_patterns, max_norm, sigma = _checked(n_patterns, max_norm, sigma)
    if max_norm == 0:
        return math.inf
    return sigma / n_patterns * (sigma / max_norm)


def retrieval_error_bound(
    separation: ArrayLike,
    n_patterns: int,
    max_norm: float,
    sigma: float = 1.0,
    distance: ArrayLike | None = None,
) -> NDArray[np.float64]:
    r"""Bound the distance of a pattern to its fixed point, or to one update (Theorem 5/A9).

    .. math::
        \|x_n^* - x_n\| &\le 2 e (N-1) M \exp(-\Delta_n / \sigma^2)
        \quad\text{if } \|x_n^* - x_n\| \le \sigma^2 / (2 M), \\
        \|f(\xi) - x_n\| &\le 2 (N-1) M \exp(-(\Delta_n - 2 r M) / \sigma^2)
        \quad\text{for } r = \|\xi - x_n\|.

    The first is the second at :math:`r = \sigma^2 / (2 M)`. Its condition holds for every pattern
    that has the separation of :func:`required_separation`.

    Parameters
    ----------
    separation : array (...)
        :math:`\Delta_n`; ``inf`` where there is no other pattern.
    n_patterns, max_norm, sigma
        As in :func:`required_separation`.
    distance : array (...), optional
        r, for the second bound. Without it, the first.

    Returns
    -------
    array (...) of float64
        ``inf`` where the bound is too large to represent.

    Examples
    --------
    >>> from isthmus.capacity import retrieval_error_bound
    >>> retrieval_error_bound([15.0, 20.0], n_patterns=100, max_norm=6.0)
    array([9.87856118e-04, 6.65612217e-06])
    """
    separation = as_array(separation, "separation")
    n_patterns, max_norm, sigma = _checked(n_patterns, max_norm, sigma)
    if n_patterns == 1 or max_norm == 0:
        return np.zeros_like(separation)
    if distance is None:
        distance = 0.5 * sigma * (sigma / max_norm)
    log_others = _log_others(separation, n_patterns, max_norm, sigma, distance)
    return _exponential(log_others + math.log(2) + math.log(max_norm))


def one_step_error_bound(
    separation: ArrayLike,
    n_patterns: int,
    max_norm: float,
    sigma: float,
    distance: ArrayLike,
    fixed_point_distance: ArrayLike | None = None,
    *,
    sharp: bool = False,
) -> NDArray[np.float64]:
    r"""Bound the distance of one update of a query to the fixed point (Theorem 4/A8).

    .. math::
        \|f(\xi) - x_n^*\| \le \|J\| \, \|\xi - x_n^*\|, \qquad
        \|J\| \le \frac{2 N M^2}{\sigma^2} (N-1) \exp\!\Big(\!-\frac{\Delta_n - 2 r M}{\sigma^2}
        \Big), \qquad r = \max(\|\xi - x_n\|, \|x_n^* - x_n\|)

    and :math:`\|\xi - x_n^*\| \le \|\xi - x_n\| + \|x_n^* - x_n\|`.

    Parameters
    ----------
    separation : array (...)
        :math:`\Delta_n`; ``inf`` where there is no other pattern.
    n_patterns, max_norm, sigma
        As in :func:`required_separation`.
    distance : array (...)
        :math:`\|\xi - x_n\|`, from the query to the pattern.
    fixed_point_distance : array (...), optional
        :math:`\|x_n^* - x_n\|`. By default the smaller of :func:`guaranteed_radius` and
        :func:`retrieval_error_bound`, which bounds it for patterns that have the separation of
        :func:`required_separation`.
    sharp : bool
        Use :math:`\|J\| \le (4 M^2/\sigma^2) (N-1) \exp(\dots)`, which is smaller by N/2: the
        Jacobian is a covariance over :math:`\sigma^2`, and a covariance is at most the second
        moment about :math:`x_n`.

    Returns
    -------
    array (...) of float64
        ``inf`` where the bound is too large to represent.

    Examples
    --------
    >>> from isthmus.capacity import one_step_error_bound
    >>> one_step_error_bound([15.0, 20.0], 100, 6.0, sigma=1.0, distance=0.1).round(5)
    array([0.07311, 0.00049])
    """
    separation = as_array(separation, "separation")
    distance = as_array(distance, "distance", allow_negative=False)
    n_patterns, max_norm, sigma = _checked(n_patterns, max_norm, sigma)
    if n_patterns == 1 or max_norm == 0:
        return np.zeros(np.broadcast_shapes(separation.shape, distance.shape))
    if fixed_point_distance is None:
        error = retrieval_error_bound(separation, n_patterns, max_norm, sigma)
        fixed_point_distance = np.minimum(error, guaranteed_radius(n_patterns, max_norm, sigma))
    fixed_point_distance = as_array(
        fixed_point_distance, "fixed_point_distance", allow_negative=False
    )
    farther = np.maximum(distance, fixed_point_distance)
    log_others = _log_others(separation, n_patterns, max_norm, sigma, farther)
    factor = math.log(4) if sharp else math.log(2) + math.log(n_patterns)
    log_jacobian = log_others + factor + 2 * (math.log(max_norm) - math.log(sigma))
    with np.errstate(divide="ignore"):
        return _exponential(log_jacobian + np.log(distance + fixed_point_distance))


def _checked(n_patterns: int, max_norm: float, sigma: float) -> tuple[int, float, float]:
    return (
        as_count(n_patterns, "n_patterns"),
        as_number(max_norm, "max_norm", at_least=0),
        as_number(sigma, "sigma", above=0),
    )


def _log_others(
    separation: NDArray[np.float64],
    n_patterns: int,
    max_norm: float,
    sigma: float,
    distance: ArrayLike,
) -> NDArray[np.float64]:
    """Bound the log of the softmax weight of all other patterns, relative to that of this one."""
    distance = as_array(distance, "distance", allow_negative=False)
    gap = separation / sigma / sigma - 2 * (distance / sigma) * (max_norm / sigma)
    bound: NDArray[np.float64] = math.log(n_patterns - 1) - gap
    return bound


def _exponential(log_value: NDArray[np.float64]) -> NDArray[np.float64]:
    with np.errstate(over="ignore", under="ignore"):
        value: NDArray[np.float64] = np.exp(log_value)
    return value
