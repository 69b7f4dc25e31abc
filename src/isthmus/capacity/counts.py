r"""How many patterns a Gaussian kernel density estimate can store on a sphere.

Bounds from below and from above, all on a log scale and for any dimension. With
:math:`\beta = 1/\sigma^2` they hold for modern Hopfield networks too, which are the same thing
on a sphere. Proofs are in ``docs/capacity-proofs.md``.

References
----------
Ramsauer et al., Hopfield Networks is All You Need, ICLR 2021 (arXiv:2008.02217).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal, get_args

import numpy as np
from scipy.optimize import brentq, minimize_scalar

from isthmus.capacity.arguments import as_whole, positive
from isthmus.capacity.random_patterns import random_pattern_capacity
from isthmus.capacity.sphere import SphereQuadrature, log_cap_fraction, log_kernel_mean
from isthmus.errors import InvalidInputError

__all__ = ["CapacityKind", "RandomCoding", "capacity_bound", "capacity_rate", "random_coding"]

CapacityKind = Literal["claimed", "packing", "random", "certified", "ceiling"]

# Radii tried before the best of them is refined.
RADIUS_GRID = 9
# Counts up to this are exact in float64, so that rounding them down means something.
LARGEST_EXACT_LOG = 53 * math.log(2)
# Where M / sigma may lie, so that squares and angles keep their digits.
SMALLEST_RATIO, LARGEST_RATIO = 1e-12, 1e12


@dataclass(frozen=True)
class RandomCoding:
    """How many patterns random coding certifies, and with which radius.

    Attributes
    ----------
    log_count : float
        Natural log of the number of patterns, never below zero.
    radius : float
        The radius R of the ball about each pattern from which every query comes home.
    """

    log_count: float
    radius: float


def capacity_bound(
    dim: int,
    sigma: float = 1.0,
    max_norm: float | None = None,
    kind: CapacityKind = "certified",
    *,
    failure: float = 1e-3,
    log: bool = False,
) -> float:
    r"""How many patterns can be stored on a sphere of radius M in D dimensions.

    ============  ==========================================================================
    kind          meaning
    ============  ==========================================================================
    "certified"   so many can be stored: random coding with the certificate of this package,
                  :math:`N \ge \max_R 1/(4\tau(R))`; see :func:`random_coding`
    "packing"     so many can be stored: greedy packing with Ramsauer et al.'s condition,
                  the largest N with :math:`N \le 1/\Omega_D(\alpha)` at the angle where
                  :math:`M^2 (1 - \cos\alpha) = 2\sigma^2/N + \sigma^2 \ln(2 N^2 M^2/\sigma^2)`
    "random"      so many random patterns are all stored, but for a chance of `failure`:
                  Ramsauer et al.'s Theorem 3/A5; see :func:`random_pattern_capacity`
    "ceiling"     no more can be, if each is to keep half of its own weight at its own place,
                  as every pattern with a certified ball of its own does:
                  :math:`N \le 2/A_0`, where
                  :math:`A_0 = \Gamma(\frac D2) (\frac 2\kappa)^{D/2-1} e^{-\kappa}
                  I_{D/2-1}(\kappa)`, :math:`\kappa = M^2/\sigma^2`
    "claimed"     :math:`2^{2(D-1)}`, stated by Ramsauer et al. (Theorem A3) and by the paper
                  for :math:`M = 2\sigma\sqrt{D-1}`. **Unproved**: the proof places patterns
                  that do not fit on the sphere. From D = 8 on it lies above the ceiling.
    ============  ==========================================================================

    All of them depend on :math:`M/\sigma` only.

    Parameters
    ----------
    dim : int
        D, at least 2.
    sigma : float
        Bandwidth.
    max_norm : float, optional
        M, the radius of the sphere. By default :math:`2 \sigma \sqrt{D-1}`.
    kind : {"certified", "packing", "random", "ceiling", "claimed"}
        Which bound.
    failure : float
        For "random", how likely the statement may be wrong.
    log : bool
        Return the natural logarithm, which exists where the number itself overflows.

    Returns
    -------
    float
        At least 1 (one pattern is always stored), or nan where the statement says nothing:
        "random" where its conditions fail, "claimed" on smaller spheres.

    Examples
    --------
    >>> from isthmus.capacity import capacity_bound
    >>> for kind in ("packing", "certified", "ceiling", "claimed"):
    ...     print(f"{kind:9} {capacity_bound(20, kind=kind):.3g}")
    packing   5.75e+03
    certified 4.82e+07
    ceiling   3.39e+10
    claimed   2.75e+11
    >>> round(capacity_bound(10_000, log=True))
    12231
    """
    if kind not in get_args(CapacityKind):
        known = ", ".join(repr(name) for name in get_args(CapacityKind))
        raise InvalidInputError(
            f"There is no capacity bound of kind {kind!r}; take one of {known}."
        )
    dim, ratio = _dim_and_ratio(dim, sigma, max_norm)
    bounds: dict[CapacityKind, Callable[[], float]] = {
        "claimed": lambda: _log_claimed(dim, ratio),
        "packing": lambda: _log_packing(dim, ratio),
        "random": lambda: random_pattern_capacity(dim, 1.0, ratio, failure).log_count,
        "certified": lambda: random_coding(dim, 1.0, ratio).log_count,
        "ceiling": lambda: math.log(2) - log_kernel_mean(dim, ratio),
    }
    log_count = bounds[kind]()
    return log_count if log else _exponential(log_count)


def capacity_rate(K: float = 2.0) -> float:
    r"""The rate c at which capacity grows, as :math:`e^{c D}`, for :math:`M = K\sigma\sqrt{D-1}`.

    .. math:: c = \tfrac12 \Big[1 + z - \sqrt{1+z^2} + \ln \frac{1 + \sqrt{1+z^2}}2\Big],
              \qquad z = 2 K^2

    Both the "certified" lower bound and the "ceiling" of :func:`capacity_bound` grow at this
    rate; they differ by a factor that is polynomial in D.

    Parameters
    ----------
    K : float
        Radius of the sphere over :math:`\sigma \sqrt{D-1}`.

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity import capacity_rate
    >>> round(math.exp(capacity_rate(2.0)), 3), round(math.exp(capacity_rate(1.7)), 3)
    (3.402, 2.926)
    """
    z = 2 * positive(K, "K") ** 2
    root = math.hypot(1.0, z)
    # z - root, without cancellation.
    return 0.5 * (1 - 1 / (z + root) + math.log1p(0.5 * z * z / (1 + root)))


def random_coding(
    dim: int, sigma: float = 1.0, max_norm: float | None = None, radius: float | None = None
) -> RandomCoding:
    r"""How many patterns on a sphere can each have a certified ball of radius R of its own.

    .. math::
        N \ge \frac1{4 \tau(R)}, \qquad \tau(R) = \frac{A_1(R)}R + \frac{A_2(R)}{\sigma^2}
        + \Pr(d \le 2R), \qquad
        A_p(R) = \mathbb E\big[d^p e^{-(d^2 - 2 R d)/(2\sigma^2)}\big]

    where d is the distance of two independent uniform points on the sphere.

    Parameters
    ----------
    dim : int
        D, at least 2.
    sigma : float
        Bandwidth.
    max_norm : float, optional
        M, the radius of the sphere. By default :math:`2 \sigma \sqrt{D-1}`.
    radius : float, optional
        R, by default the one that allows most patterns.

    Returns
    -------
    RandomCoding

    Examples
    --------
    >>> import math
    >>> from isthmus.capacity import random_coding
    >>> best = random_coding(10)
    >>> round(math.exp(best.log_count)), round(best.radius, 2)
    (484, 0.2)
    >>> round(math.exp(random_coding(10, radius=0.5).log_count))
    288
    """
    dim, ratio = _dim_and_ratio(dim, sigma, max_norm)
    sphere = SphereQuadrature(dim, ratio)
    scaled = _best_radius(sphere) if radius is None else positive(radius, "radius") / sigma
    return RandomCoding(max(-math.log(4) - _log_tau(sphere, scaled), 0.0), scaled * sigma)


def _log_tau(sphere: SphereQuadrature, radius: float) -> float:
    _, log_first, log_second = sphere.log_moments(radius)
    terms = [log_first - math.log(radius), log_second, sphere.log_near(2 * radius)]
    return float(np.logaddexp.reduce(terms))


def _best_radius(sphere: SphereQuadrature) -> float:
    """The radius of smallest tau, in units of the bandwidth.

    The first two terms of tau alone are least near R d = 0.62 for the distance d that counts,
    which is at most 2 M, and not much below 1 if M is not; the third only grows with R.
    """
    largest = min(sphere.radius, 2.0)
    smallest = min(0.1 / sphere.radius, 0.1 * largest)
    grid = np.linspace(math.log(smallest), math.log(largest), RADIUS_GRID)
    best = int(np.argmin([_log_tau(sphere, math.exp(u)) for u in grid]))
    bracket = grid[max(best - 1, 0)], grid[min(best + 1, RADIUS_GRID - 1)]
    found = minimize_scalar(
        lambda u: _log_tau(sphere, math.exp(u)),
        bounds=bracket,
        method="bounded",
        options={"xatol": 1e-4},
    )
    return math.exp(found.x)


def _log_packing(dim: int, ratio: float) -> float:
    """Greedy packing: a point that no cap covers can be added while N caps do not fill the sphere.

    The angle that N patterns need grows with N, so the room for them falls: one crossing.
    """

    def room(log_count: float) -> float:
        needed = 2 * math.exp(-log_count) + math.log(2) + 2 * (log_count + math.log(ratio))
        versine = needed / ratio**2
        if versine >= 2:
            return -math.inf
        angle = 2 * math.asin(math.sqrt(max(0.5 * versine, 0.0)))
        return -log_cap_fraction(dim, angle) - log_count

    # Where M <= sigma the update contracts everywhere: one fixed point for all patterns.
    if ratio <= 1 or room(math.log(2)) < 0:
        return 0.0
    upper = 1.0
    while room(upper) > 0:
        upper *= 2
    found = float(brentq(lambda u: max(room(u), -1.0), math.log(2), upper, xtol=1e-13, rtol=1e-14))
    return math.log(math.floor(math.exp(found))) if found < LARGEST_EXACT_LOG else found


def _log_claimed(dim: int, ratio: float) -> float:
    smallest = 2 * math.sqrt(dim - 1)
    return 2 * (dim - 1) * math.log(2) if ratio >= smallest * (1 - 1e-9) else math.nan


def _dim_and_ratio(dim: int, sigma: float, max_norm: float | None) -> tuple[int, float]:
    """D and M / sigma, checked."""
    dim, sigma = as_whole(dim, "dim", 2), positive(sigma, "sigma")
    if max_norm is None:
        return dim, 2 * math.sqrt(dim - 1)
    ratio = positive(max_norm, "max_norm") / sigma
    if not SMALLEST_RATIO <= ratio <= LARGEST_RATIO:
        raise InvalidInputError(
            f"max_norm / sigma is {ratio:g}; the formulas can be computed from "
            f"{SMALLEST_RATIO:g} to {LARGEST_RATIO:g}."
        )
    return dim, ratio


def _exponential(log_value: float) -> float:
    try:
        return math.exp(log_value)
    except OverflowError:
        return math.inf
