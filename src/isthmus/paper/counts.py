r"""Bounds on the number of patterns that a Gaussian KDE can store on a sphere.

All are on a log scale and for any dimension. With :math:`\beta = 1/\sigma^2` they hold for
modern Hopfield networks too, which are equivalent on a sphere. Proofs are in
``docs/capacity-proofs.md``.
"""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq, minimize_scalar
from scipy.special import betainc, betaln, log_expit, logsumexp

from isthmus.errors import InvalidInputError
from isthmus.validation import as_choice, as_count, as_flag, as_number

FloatArray = NDArray[np.float64]
CapacityKind = Literal["claimed", "packing", "certified", "half-weight"]

# Radii tried before the best of them is refined.
RADIUS_GRID = 9
# Counts up to this are exact in float64 and can be rounded down.
LARGEST_EXACT_LOG = 53 * math.log(2)
# Range of M / sigma in which squares and angles keep their digits.
SMALLEST_RATIO, LARGEST_RATIO = 1e-12, 1e12
# The angle is pi / (1 + exp(-t)). Outside this range of t the integrand vanishes in float64. The
# coarse points locate it, up to exp(-NEGLIGIBLE) of its maximum. With the fine ones the trapezoid
# rule, which converges exponentially for such integrands, has an error at the level of rounding.
WIDEST, COARSE_POINTS, NEGLIGIBLE, FINE_POINTS = 45.0, 901, 50.0, 1025
# Below this, the incomplete beta function is summed on a log scale.
SMALLEST_FRACTION = 1e-250


def capacity_bound(
    dim: int,
    sigma: float = 1.0,
    max_norm: float | None = None,
    kind: CapacityKind = "certified",
    *,
    log: bool = False,
) -> float:
    r"""Bound the number of patterns that a sphere of radius M in D dimensions can store.

    ============= ==========================================================================
    kind          meaning
    ============= ==========================================================================
    "certified"   lower bound: random coding with the certificate of this package,
                  :math:`N \ge \max_R 1/(4\tau(R))` (section 6 of the proofs)
    "packing"     lower bound: greedy packing with Ramsauer et al.'s condition, the largest N
                  with :math:`N \le 1/\Omega_D(\alpha)` at the angle where
                  :math:`M^2 (1 - \cos\alpha) = 2\sigma^2/N + \sigma^2 \ln(2 N^2 M^2/\sigma^2)`
    "half-weight" no more than :math:`2/A_0` patterns can each keep half of the weight at their
                  own place, as certified ones do; :math:`A_0 = \mathbb E[e^{-d^2/2\sigma^2}]`
                  over the distance d of two random points. More can be stored.
    "claimed"     :math:`2^{2(D-1)}`, stated by Ramsauer et al. (Theorem A3) and by the paper
                  for :math:`M = 2\sigma\sqrt{D-1}`, D >= 4, and :math:`M = 1.7\sigma\sqrt{D-1}`,
                  D >= 50, with an invalid proof. At D = 4 and D = 8 more are proved stored; in
                  general it is open.
    ============= ==========================================================================

    Parameters
    ----------
    dim : int
        D, at least 2.
    sigma : float
        Bandwidth.
    max_norm : float, optional
        M, the radius of the sphere. By default :math:`2 \sigma \sqrt{D-1}`.
    kind : {"certified", "packing", "half-weight", "claimed"}
    log : bool
        Return the natural logarithm, which is finite where the number overflows.

    Returns
    -------
    float
        At least 1, or nan for "claimed" on smaller spheres and in fewer dimensions.

    Examples
    --------
    >>> from isthmus.capacity import capacity_bound
    >>> for kind in ("packing", "certified", "half-weight", "claimed"):
    ...     print(f"{kind:11} {capacity_bound(20, kind=kind):.3g}")
    packing     5.75e+03
    certified   4.82e+07
    half-weight 3.39e+10
    claimed     2.75e+11
    """
    as_choice(kind, "kind", get_args(CapacityKind))
    dim, sigma = as_count(dim, "dim", at_least=2), as_number(sigma, "sigma", above=0)
    ratio = 2 * math.sqrt(dim - 1)
    if max_norm is not None:
        ratio = as_number(max_norm, "max_norm", above=0) / sigma
        if not SMALLEST_RATIO <= ratio <= LARGEST_RATIO:
            raise InvalidInputError(
                f"max_norm / sigma is {ratio:g}; the formulas can be computed from "
                f"{SMALLEST_RATIO:g} to {LARGEST_RATIO:g}."
            )
    if kind == "claimed":
        scale = ratio / math.sqrt(dim - 1) * (1 + 1e-9)
        stated = (scale >= 2 and dim >= 4) or (scale >= 1.7 and dim >= 50)
        log_count = 2 * (dim - 1) * math.log(2) if stated else math.nan
    elif kind == "packing":
        log_count = _log_packing(dim, ratio)
    elif kind == "certified":
        log_count = log_certified(dim, ratio)[0]
    else:
        log_count = math.log(2) - log_kernel_mean(dim, ratio)
    if as_flag(log, "log"):
        return log_count
    with np.errstate(over="ignore"):
        count = float(np.exp(log_count))
    whole = kind in ("packing", "claimed") and math.isfinite(count)
    return float(round(count)) if whole else count


def capacity_rate(K: float = 2.0) -> float:
    r"""Return the rate c of capacity :math:`e^{c D}` for :math:`M = K\sigma\sqrt{D-1}`.

    .. math:: c = \tfrac12 \Big[1 + z - \sqrt{1+z^2} + \ln \frac{1 + \sqrt{1+z^2}}2\Big],
              \qquad z = 2 K^2

    Both the "certified" lower bound and the "half-weight" ceiling of :func:`capacity_bound` grow
    at this rate. The rate of stored patterns is at least c; its value is open.

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity import capacity_rate
    >>> round(math.exp(capacity_rate(2.0)), 3)
    3.402
    """
    z = 2 * as_number(K, "K", above=0) ** 2
    root = math.hypot(1.0, z)
    # z - root, without cancellation.
    return 0.5 * (1 - 1 / (z + root) + math.log1p(0.5 * z * z / (1 + root)))


def log_certified(dim: int, ratio: float) -> tuple[float, float]:
    r"""Return the log of the number of patterns that random coding certifies, and their radius R.

    .. math::
        N \ge \max_R \frac1{4 \tau(R)}, \qquad \tau(R) = \frac{A_1(R)}R + \frac{A_2(R)}{\sigma^2}
        + \Pr(d \le 2R), \qquad
        A_p(R) = \mathbb E\big[d^p e^{-(d^2 - 2 R d)/(2\sigma^2)}\big]

    where d is the distance of two independent uniform points on the sphere, and sigma is 1. Every
    query in the ball of radius R about a pattern reaches it.
    """

    def log_tau(radius: float) -> float:
        _, log_first, log_second = log_moments(dim, ratio, radius)
        log_near = log_cap_fraction(dim, 2 * math.asin(min(radius / ratio, 1.0)))
        return float(np.logaddexp.reduce([log_first - math.log(radius), log_second, log_near]))

    # The first two terms alone are least near R d = 0.62 for the distance d that counts, which
    # is at most 2 M, and not much below 1 if M is not; the third only grows with R.
    largest = min(ratio, 2.0)
    smallest = min(0.1 / ratio, 0.1 * largest)
    grid = np.linspace(math.log(smallest), math.log(largest), RADIUS_GRID)
    best = int(np.argmin([log_tau(math.exp(u)) for u in grid]))
    bracket = grid[max(best - 1, 0)], grid[min(best + 1, RADIUS_GRID - 1)]
    options = {"bounds": bracket, "method": "bounded", "options": {"xatol": 1e-4}}
    radius = math.exp(minimize_scalar(lambda u: log_tau(math.exp(u)), **options).x)
    if radius >= ratio:  # one ball holds the sphere
        return 0.0, radius
    return max(-math.log(4) - log_tau(radius), 0.0), radius


def _log_packing(dim: int, ratio: float) -> float:
    def room(log_count: float) -> float:
        needed = 2 * math.exp(-log_count) + math.log(2) + 2 * (log_count + math.log(ratio))
        versine = needed / ratio**2
        if versine >= 2:
            return -math.inf
        angle = 2 * math.asin(math.sqrt(max(0.5 * versine, 0.0)))
        return -log_cap_fraction(dim, angle) - log_count

    # Points can be added while N caps do not cover the sphere. The angle that N need grows with N.
    if ratio <= 1 or room(math.log(2)) < 0:
        return 0.0
    upper = 1.0
    while room(upper) > 0:
        upper *= 2
    found = float(brentq(lambda u: max(room(u), -1.0), math.log(2), upper, xtol=1e-13, rtol=1e-14))
    return math.log(math.floor(math.exp(found))) if found < LARGEST_EXACT_LOG else found


def log_cap_fraction(dim: int, angle: float) -> float:
    """Return the log of the share of a sphere within an angle of a given point, Omega_D."""
    if angle > math.pi / 2:
        return math.log1p(-math.exp(log_cap_fraction(dim, math.pi - angle)))
    if angle <= 0:
        return -math.inf
    order, x = 0.5 * (dim - 1), math.sin(angle) ** 2
    share = float(betainc(order, 0.5, x))
    if share > SMALLEST_FRACTION:
        return math.log(share) - math.log(2)
    # I_x(a, 1/2) = x^a (1-x)^(1/2) / (a B(a, 1/2)) * F(a + 1/2, 1; a + 1; x), terms all positive.
    count = math.ceil(40 / -math.log(x))
    k = np.arange(count)
    ratios = x * (order + 0.5 + k) / (order + 1 + k)
    series = 1 + float(np.cumprod(ratios).sum())
    log_front = 2 * order * math.log(math.sin(angle)) + math.log(math.cos(angle))
    return log_front - math.log(2 * order) - float(betaln(order, 0.5)) + math.log(series)


def log_kernel_mean(dim: int, radius: float) -> float:
    """Return the log of A_0, the mean of exp(-|x - y|^2 / 2) over a sphere of this radius."""
    return min(float(log_moments(dim, radius, 0.0)[0]), 0.0)


def log_moments(dim: int, radius: float, tilt: float) -> FloatArray:
    r"""Return logs of :math:`A_p(R) = \mathbb E[d^p e^{-(d^2 - 2 R d)/2}]`, p = 0, 1, 2, R = tilt.

    The distance of two uniform points on a sphere is :math:`d = 2 M \sin(\theta/2)`, with
    :math:`\theta` of density :math:`\propto \sin^{D-2}\theta`. The mean is integrated over t,
    :math:`\theta = \pi / (1 + e^{-t})`. `radius` is M in units of the bandwidth.
    """

    def log_integrands(t: FloatArray) -> FloatArray:
        """Return log integrands without their factor exp(R^2 / 2). (3, n)"""
        log_share, log_rest = log_expit(t), log_expit(-t)
        log_distance = np.log(2 * radius * np.sin(0.5 * math.pi * np.exp(log_share)))
        log_sine = np.log(np.sin(math.pi * np.exp(np.minimum(log_share, log_rest))))
        log_by_angle = (dim - 2) * log_sine - betaln(0.5 * (dim - 1), 0.5)
        # As a square, because d^2 - 2 R d would cancel for large R.
        kernel = -0.5 * (np.exp(log_distance) - tilt) ** 2
        log_density = log_by_angle + math.log(math.pi) + log_share + log_rest
        terms: FloatArray = log_density + kernel + np.arange(3)[:, None] * log_distance
        return terms

    coarse = np.linspace(-WIDEST, WIDEST, COARSE_POINTS)
    values = log_integrands(coarse)
    seen = np.flatnonzero((values > values.max(1, keepdims=True) - NEGLIGIBLE).any(0))
    first, last = max(seen[0] - 1, 0), min(seen[-1] + 1, COARSE_POINTS - 1)
    t = np.linspace(coarse[first], coarse[last], FINE_POINTS)
    log_step = math.log(t[1] - t[0])
    total: FloatArray = logsumexp(log_integrands(t), axis=1) + log_step
    return total + 0.5 * tilt * tilt
