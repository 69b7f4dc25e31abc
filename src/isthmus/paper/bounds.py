r"""Ramsauer et al.'s theorems for patterns that lie far enough apart, or are drawn at random.

The setting is that of :mod:`isthmus.capacity.ramsauer`; theorems are those of Ramsauer et al.,
Hopfield Networks is All You Need, ICLR 2021 (arXiv:2008.02217).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray
from scipy.special import gammaln, lambertw, wrightomega

from isthmus.capacity.ramsauer import checked_sizes, guaranteed_radius
from isthmus.validation import as_array, as_count, as_flag, as_number


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

    The condition holds for every pattern that has the separation of :func:`required_separation`.

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
    n_patterns, max_norm, sigma = checked_sizes(n_patterns, max_norm, sigma)
    if n_patterns == 1 or max_norm == 0:
        return np.zeros_like(separation)
    if distance is None:
        distance = 0.5 * sigma * (sigma / max_norm)
    log_others = _log_others(separation, n_patterns, max_norm, sigma, distance)
    return exponential(log_others + math.log(2) + math.log(max_norm))


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
    separation, n_patterns, max_norm, sigma
        As in :func:`retrieval_error_bound`.
    distance : array (...)
        :math:`\|\xi - x_n\|`, from the query to the pattern.
    fixed_point_distance : array (...), optional
        :math:`\|x_n^* - x_n\|`. By default the smaller of :func:`guaranteed_radius` and
        :func:`retrieval_error_bound`.
    sharp : bool
        Use :math:`\|J\| \le (4 M^2/\sigma^2) (N-1) \exp(\dots)`, which is smaller by N/2: a
        covariance is at most the second moment about :math:`x_n`.

    Examples
    --------
    >>> from isthmus.capacity import one_step_error_bound
    >>> one_step_error_bound([15.0, 20.0], 100, 6.0, sigma=1.0, distance=0.1).round(5)
    array([0.07311, 0.00049])
    """
    separation = as_array(separation, "separation")
    distance = as_array(distance, "distance", allow_negative=False)
    n_patterns, max_norm, sigma = checked_sizes(n_patterns, max_norm, sigma)
    if n_patterns == 1 or max_norm == 0:
        return np.zeros(np.broadcast_shapes(separation.shape, distance.shape))
    if fixed_point_distance is None:
        error = retrieval_error_bound(separation, n_patterns, max_norm, sigma)
        fixed_point_distance = np.minimum(error, guaranteed_radius(n_patterns, max_norm, sigma))
    offset = as_array(fixed_point_distance, "fixed_point_distance", allow_negative=False)
    farther = np.maximum(distance, offset)
    log_others = _log_others(separation, n_patterns, max_norm, sigma, farther)
    factor = math.log(4) if as_flag(sharp, "sharp") else math.log(2) + math.log(n_patterns)
    log_jacobian = log_others + factor + 2 * (math.log(max_norm) - math.log(sigma))
    with np.errstate(divide="ignore"):
        return exponential(log_jacobian + np.log(distance + offset))


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


def exponential(log_value: ArrayLike) -> NDArray[np.float64]:
    """Return exp, which is ``inf`` where it overflows."""
    with np.errstate(over="ignore", under="ignore"):
        value: NDArray[np.float64] = np.exp(log_value)
    return value


# The solution of x exp(x) = 1.
OMEGA = 0.5671432904097838


@dataclass(frozen=True)
class RandomPatternCapacity:
    r"""The result of Theorem A5 for one sphere: its constants, and the log of the number stored.

    It `applies` if :math:`c \ge (2/\sqrt p)^{4/(D-1)}` and :math:`M > \sigma`, without which no two
    balls are disjoint; otherwise `log_count` is nan.
    """

    a: float
    b: float
    c: float
    log_count: float
    applies: bool


def random_pattern_capacity(
    dim: float,
    sigma: float = 1.0,
    max_norm: float | None = None,
    failure: float = 1e-3,
    *,
    lambert: bool = True,
) -> RandomPatternCapacity:
    r"""Return the number of random patterns on a sphere that are all stored with high probability.

    With :math:`M = K \sqrt{D-1}` and :math:`\beta = 1/\sigma^2` (Theorem 3/A5):

    .. math::
        a = \tfrac{2}{D-1} \big(1 + \ln(2 \beta K^2 p (D-1))\big), \quad
        b = \tfrac 25 \beta K^2, \quad c = \frac{b}{W_0(\exp(a + \ln b))}, \quad
        N \ge \sqrt p \, c^{(D-1)/4}

    with probability at least 1 - p, if :math:`c \ge (2/\sqrt p)^{4/(D-1)}`.

    Parameters
    ----------
    dim : float
        D, above 1; whole, except where it comes from :func:`random_pattern_dimension`.
    sigma, max_norm : float
        Bandwidth, and the radius M of the sphere, by default :math:`2 \sigma \sqrt{D-1}`.
    failure : float
        p
    lambert : bool
        False bounds the Lambert function by elementary ones (Corollary A1), for a smaller c.

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity import random_pattern_capacity
    >>> round(random_pattern_capacity(20, max_norm=3 * math.sqrt(19)).c, 5)
    3.15461
    """
    dim, lambert = as_number(dim, "dim", at_least=1 + 1e-9), as_flag(lambert, "lambert")
    sigma = as_number(sigma, "sigma", above=0)
    failure = as_number(failure, "failure", above=0, below=1)
    degrees = dim - 1
    norm = 2 * sigma * math.sqrt(degrees)
    if max_norm is not None:
        norm = as_number(max_norm, "max_norm", above=0)
    log_square = 2 * (math.log(norm) - math.log(sigma)) - math.log(degrees)
    a = 2 / degrees * (1 + math.log(2 * failure * degrees) + log_square)
    log_b = math.log(0.4) + log_square
    exponent = a + log_b
    # Wright's omega function is Lambert's W_0 of the exponential.
    divisor = float(wrightomega(exponent)) if lambert else _lambert_upper(exponent)
    log_c = log_b - math.log(divisor)
    log_count = 0.5 * math.log(failure) + 0.25 * degrees * log_c
    # Where M <= sigma the update contracts everywhere: one fixed point for all patterns.
    distinct = norm > sigma
    applies = distinct and log_c >= 4 / degrees * (math.log(2) - 0.5 * math.log(failure))
    log_count = log_count if applies else math.nan
    return RandomPatternCapacity(a, math.exp(log_b), math.exp(log_c), log_count, applies)


def random_pattern_dimension(base: float, norm_ratio: float = 2.0, failure: float = 1e-3) -> float:
    r"""Return the dimension at which the base of Theorem A5 takes a given value (Theorem A6).

    .. math::
        a = \tfrac12 \ln c - \tfrac{\beta K^2}{5 c}, \quad b = 1 + \ln(2 p \beta K^2), \quad
        D = 1 + \tfrac1a W(a e^{-b})

    with the branch :math:`W_0` for a > 0 and :math:`W_{-1}` for a < 0. `base` is c, `norm_ratio`
    is :math:`K / \sigma`, and `failure` is p. The dimension is not rounded, and nan where there
    is none.

    Examples
    --------
    >>> from isthmus.capacity import random_pattern_dimension
    >>> round(random_pattern_dimension(3.15461, norm_ratio=3.0), 2)
    20.0
    """
    base = as_number(base, "base", above=0)
    failure = as_number(failure, "failure", above=0, below=1)
    square = as_number(norm_ratio, "norm_ratio", above=0) ** 2
    a = 0.5 * math.log(base) - square / (5 * base)
    b = 1 + math.log(2 * failure * square)
    if a == 0:
        return 1 + math.exp(-b)
    if a > 0:
        return 1 + float(wrightomega(math.log(a) - b)) / a
    argument = a * math.exp(-b)
    if argument < -math.exp(-1):
        return math.nan
    return 1 + float(lambertw(argument, -1).real) / a


def minimal_angle_probability(n_patterns: int, dim: int, angle: float) -> float:
    r"""Bound the probability that N random directions are all farther apart than an angle.

    .. math::
        \Pr(\alpha_{\min} \ge \alpha) \ge 1 - \tfrac12 \kappa_{D-1} N^2 \alpha^{D-1}, \qquad
        \kappa_d = \frac{\Gamma((d+1)/2)}{d \sqrt\pi \, \Gamma(d/2)}

    This is Lemma A13 (Brauchart et al., 2018), for an angle in radians; zero where it is trivial.

    Examples
    --------
    >>> from isthmus.capacity import minimal_angle_probability
    >>> round(minimal_angle_probability(100, 20, 0.6), 4)
    0.9725
    """
    n_patterns, dim = as_count(n_patterns, "n_patterns"), as_count(dim, "dim", at_least=2)
    angle = as_number(angle, "angle", at_least=0)
    if n_patterns == 1 or angle == 0:
        return 1.0
    degrees = dim - 1
    log_kappa = float(gammaln(0.5 * dim) - gammaln(0.5 * degrees))
    log_kappa -= math.log(degrees) + 0.5 * math.log(math.pi)
    log_risk = log_kappa - math.log(2) + 2 * math.log(n_patterns) + degrees * math.log(angle)
    return -math.expm1(min(log_risk, 0.0))


def _lambert_upper(log_argument: float) -> float:
    """Return an elementary upper bound on W_0(exp(u)) (Hoorfar and Hassani)."""
    u = log_argument
    if u <= 0:
        return math.log((OMEGA * math.exp(u) + 1) / (OMEGA * (1 + OMEGA)))
    return math.exp(u / (1 + u) * math.log(u))
