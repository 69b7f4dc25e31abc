r"""The normal noise that a certified pattern survives, with a given probability.

For a query :math:`x_n + \varepsilon` with :math:`\varepsilon \sim N(0, s^2 I)`, one update ends in
the certified ball of radius R if :math:`\sum_j Y_j \le R`, where

.. math:: Y_j = (d_j - R)_+ \, e^{a_j + b d_j g_j}, \qquad g_j \sim N(0, s^2)

and the :math:`a_j`, :math:`b` are those of :mod:`isthmus.capacity.contraction`. Two bounds on the
probability that it does not are

.. math:: \sum_j \mathbb E \min(1, Y_j / R), \qquad \sum_j \Pr(g_j > t_j)
          \quad\text{for any } t_j \text{ at which the } Y_j \text{ add up to at most } R .

The proof is in docs/capacity-proofs.md, section 12.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri

from isthmus.capacity.contraction import ROW_BLOCK, UNIT_ROUNDOFF, Contraction, largest

FloatArray = NDArray[np.float64]
# Share of R that all patterns get in equal parts; the rest goes where one common t needs it.
EQUAL_SHARE = 0.1
# Sums are raised by this share before they are compared, for rounding.
SLACK = 1e-6
# Both bounds are proved to grow with s while they are below 1 / e.
LARGEST_DELTA = 1 / 3


def noise_levels(terms: Contraction, radius: FloatArray, delta: float) -> FloatArray:
    """Return the largest proved s of each pattern, given the radius of its certified ball. (N,)"""
    level = np.where(np.isinf(radius), np.inf, 0.0)
    rows = np.flatnonzero((radius > 0) & np.isfinite(radius))
    for block in np.split(rows, range(ROW_BLOCK, len(rows), ROW_BLOCK)):
        if len(block):
            level[block] = _levels(terms.take(block), radius[block, None], delta)
    return level


def _levels(terms: Contraction, radius: FloatArray, delta: float) -> FloatArray:
    n, b = len(radius), terms.sharpness
    distances, exponents = terms.distances, terms.exponents
    count = np.ones(distances.shape[1])
    possible, limit = np.ones(n, dtype=bool), np.full(n, np.inf)
    if terms.rest:
        # All others together, at the distance and exponent where each of them counts most.
        last, exponent = terms.rest_distance, terms.rest_exponent
        if exponent is None:
            exponent = -0.5 * b * last**2
            possible, limit = last >= 2 / b**0.5, last - b**-0.5
        distances, exponents = np.c_[distances, last], np.c_[exponents, exponent]
        count = np.append(count, terms.rest)
    # log(Y_j / R) is log_y + slope g_j. Patterns inside the ball do not count.
    slack = 2 * (terms.dim + 6) * UNIT_ROUNDOFF
    excess = np.maximum(distances * (1 + slack) - radius, 0) / radius
    slope = b * np.where(excess > 0, distances * (1 + 2 * slack), 1.0)
    with np.errstate(divide="ignore"):
        log_y = np.log(excess) + exponents + slack * np.abs(exponents)
    alone = (-log_y / slope).min(1)  # at this g, one pattern alone uses up R
    possible &= np.isfinite(alone) & (alone > 0)
    alone = np.where(possible, alone, 1.0)

    def fits(t: FloatArray) -> NDArray[np.bool_]:
        total = (count * np.exp(log_y + slope * t[:, None])).sum(1)
        return total <= (1 - EQUAL_SHARE) * (1 - SLACK)

    def enough(s: FloatArray) -> NDArray[np.bool_]:
        tails = (count * ndtr(-thresholds / s[:, None])).sum(1)
        spread = slope * s[:, None]
        score = log_y / spread
        below = np.exp(log_y + 0.5 * spread**2 + log_ndtr(-score - spread))
        means = (count * (ndtr(score) + below)).sum(1)
        return np.minimum(tails, means) * (1 + SLACK) <= delta

    with np.errstate(invalid="ignore", over="ignore"):
        common = largest(fits, np.zeros(n), np.minimum(alone, limit))
        equal = (np.log(EQUAL_SHARE / count.sum()) - log_y) / slope
        thresholds = np.maximum(common[:, None], equal)
        lowest = thresholds.min(1) / -ndtri(delta * (1 - SLACK) / count.sum())
        level = largest(enough, lowest, alone / -ndtri(delta))
    return np.where(possible, level, 0.0)
