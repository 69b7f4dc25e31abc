r"""Ramsauer et al.'s theorems for patterns drawn at random from a sphere.

References
----------
Ramsauer et al., Hopfield Networks is All You Need, ICLR 2021 (arXiv:2008.02217), Theorems 3/A5
and A6, Corollary A1, Lemma A13. The last is from Brauchart et al. (2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from scipy.special import gammaln, lambertw

from isthmus.validation import as_count, as_number

__all__ = [
    "RandomPatternCapacity",
    "minimal_angle_probability",
    "random_pattern_capacity",
    "random_pattern_dimension",
]

# The solution of x exp(x) = 1.
OMEGA = 0.5671432904097838


@dataclass(frozen=True)
class RandomPatternCapacity:
    r"""The result of Theorem A5 for one sphere.

    Attributes
    ----------
    a, b, c : float
        The theorem's constants; the count grows by :math:`c^{1/4}` per dimension.
    log_count : float
        Log of the number of patterns that are stored; nan where the theorem does not apply.
    applies : bool
        True if its conditions hold: :math:`c \ge (2/\sqrt p)^{4/(D-1)}`, and
        :math:`M > \sigma`, without which no two balls are disjoint.
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
        False replaces the Lambert function by elementary bounds on it (Corollary A1), which
        gives a smaller c.

    Returns
    -------
    RandomPatternCapacity

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity import random_pattern_capacity
    >>> found = random_pattern_capacity(20, max_norm=3 * math.sqrt(19))
    >>> round(found.c, 5), round(math.exp(found.log_count), 2)
    (3.15461, 7.41)
    """
    dim = as_number(dim, "dim", at_least=1 + 1e-9)
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
    divisor = _lambert(exponent) if lambert else _lambert_upper(exponent)
    log_c = log_b - math.log(divisor)
    log_count = 0.5 * math.log(failure) + 0.25 * degrees * log_c
    # Where M <= sigma the update contracts everywhere: one fixed point for all patterns.
    distinct = norm > sigma
    applies = distinct and log_c >= 4 / degrees * (math.log(2) - 0.5 * math.log(failure))
    return RandomPatternCapacity(
        a, math.exp(log_b), math.exp(log_c), log_count if applies else math.nan, applies
    )


def random_pattern_dimension(base: float, norm_ratio: float = 2.0, failure: float = 1e-3) -> float:
    r"""Return the dimension at which the base of Theorem A5 takes a given value (Theorem A6).

    .. math::
        a = \tfrac12 \ln c - \tfrac{\beta K^2}{5 c}, \quad b = 1 + \ln(2 p \beta K^2), \quad
        D = 1 + \tfrac1a W(a e^{-b})

    with the branch :math:`W_0` for a > 0 and :math:`W_{-1}` for a < 0.

    Parameters
    ----------
    base : float
        c
    norm_ratio : float
        :math:`K / \sigma`: the sphere has radius :math:`M = K \sqrt{D-1}`.
    failure : float
        p

    Returns
    -------
    float
        A dimension, not rounded; nan where there is none.

    Examples
    --------
    >>> from isthmus.capacity import random_pattern_dimension
    >>> round(random_pattern_dimension(3.15461, norm_ratio=3.0), 2)
    20.0
    """
    base, norm_ratio = (
        as_number(base, "base", above=0),
        as_number(norm_ratio, "norm_ratio", above=0),
    )
    failure = as_number(failure, "failure", above=0, below=1)
    square = norm_ratio * norm_ratio
    a = 0.5 * math.log(base) - square / (5 * base)
    b = 1 + math.log(2 * failure * square)
    if a == 0:
        return 1 + math.exp(-b)
    if a > 0:
        # W_0(a exp(-b)), from the logarithm of its argument.
        return 1 + _lambert(math.log(a) - b) / a
    argument = a * math.exp(-b)
    if argument < -math.exp(-1):
        return math.nan
    return 1 + float(lambertw(argument, -1).real) / a


def minimal_angle_probability(n_patterns: int, dim: int, angle: float) -> float:
    r"""Bound the probability that N random directions are all farther apart than an angle.

    .. math::
        \Pr(\alpha_{\min} \ge \alpha) \ge 1 - \tfrac12 \kappa_{D-1} N^2 \alpha^{D-1}, \qquad
        \kappa_d = \frac{\Gamma((d+1)/2)}{d \sqrt\pi \, \Gamma(d/2)}

    This is Lemma A13.

    Parameters
    ----------
    n_patterns : int
        N
    dim : int
        D, at least 2.
    angle : float
        In radians.

    Returns
    -------
    float
        A lower bound; zero where it is trivial.

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


def _lambert(log_argument: float) -> float:
    """Return Lambert's W_0 of exp(log_argument)."""
    if log_argument < 500:
        return float(lambertw(math.exp(log_argument)).real)
    # W + log W = log_argument; Newton's method, which converges at once from here.
    value = log_argument - math.log(log_argument)
    for _ in range(5):
        value -= (value + math.log(value) - log_argument) / (1 + 1 / value)
    return value


def _lambert_upper(log_argument: float) -> float:
    """Return an elementary upper bound on W_0(exp(u)) (Hoorfar and Hassani)."""
    u = log_argument
    if u <= 0:
        return math.log((OMEGA * math.exp(u) + 1) / (OMEGA * (1 + OMEGA)))
    return math.exp(u / (1 + u) * math.log(u))
