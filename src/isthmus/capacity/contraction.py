r"""Certified balls: those that an update maps into themselves and contracts.

For the update :math:`f(x) = \sum_j p_j(x) x_j` and :math:`\lVert x - x_n \rVert \le R`,

.. math::
    \phi_p(R) = \sum_{j \ne n} d_j^p\, e^{\,a_j + b R d_j}, \qquad
    \lVert f(x) - x_n \rVert \le \phi_1(R), \qquad \lVert J \rVert \le b\, \phi_2(R),

with :math:`b = 1/\sigma^2` and :math:`a_j = -d_j^2/(2\sigma^2)` for a Gaussian KDE, and with
:math:`b = \beta`, :math:`a_j = \beta\, x_n \cdot (x_j - x_n)` for a modern Hopfield network.
Hence :math:`\phi_1(R) \le R` and :math:`b\,\phi_2(R) < 1` prove that the ball holds one fixed
point, which every start in it reaches.

For a query :math:`x_n + \varepsilon` with :math:`\varepsilon \sim N(0, s^2 I)`, one update ends in
the ball if :math:`\sum_j Y_j \le R`, where

.. math:: Y_j = (d_j - R)_+ \, e^{a_j + b d_j g_j}, \qquad g_j \sim N(0, s^2) .

Two bounds on the probability that it does not are

.. math:: \sum_j \mathbb E \min(1, Y_j / R), \qquad \sum_j \Pr(g_j > t_j)
          \quad\text{for any } t_j \text{ at which the } Y_j \text{ add up to at most } R .

The proofs are in docs/capacity-proofs.md, sections 1 and 12.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.special import log_ndtr, ndtr, ndtri
from sklearn.neighbors import NearestNeighbors

FloatArray = NDArray[np.float64]

# Computed sums are raised by this share before they are compared: far more than the rounding
# error of a float64 sum of up to 1e6 positive terms. The rounding of exponents, which grows with
# their size, is added to them first (docs/capacity-proofs.md, section 3).
ROUNDING_SLACK = 1e-9
# Radii are bisected on a logarithmic scale.
BISECTIONS, FIXED_POINT_STEPS = 30, 200
ROW_BLOCK = 512
UNIT_ROUNDOFF = 2.0**-53
# Squares of smaller differences underflow. Error bounds are never below this.
SMALLEST_ERROR = 1e-150
# Float64 numbers of one block of differences between patterns: 32 MiB.
BLOCK_ENTRIES = 2**22
# Share of R that all patterns get in equal parts; the rest goes where one common t needs it.
EQUAL_SHARE = 0.1
# Sums of probabilities are raised by this share before they are compared, for rounding.
SLACK = 1e-6
# Both bounds are proved to grow with s while they are below 1 / e.
LARGEST_DELTA = 1 / 3


@dataclass(frozen=True)
class Neighbors:
    """Distances of each pattern to the k nearest others."""

    distances: FloatArray  # (N, k), ascending
    beyond: FloatArray  # (N,): lower bound on the distances of those not listed, or inf


def nearest_neighbors(patterns: FloatArray, k: int) -> Neighbors:
    """Find the k nearest other patterns of each of the patterns (N, D).

    The search expands squares, which loses digits. Distances are therefore computed again from
    differences, and ``beyond`` allows for the loss.
    """
    n, dim = patterns.shape
    k = min(k, n - 1)
    if k == 0:
        return Neighbors(np.zeros((n, 0)), np.full(n, np.inf))
    centred = patterns - patterns.mean(0)
    scale = float(np.abs(centred).max()) or 1.0
    centred /= scale
    searched, index = NearestNeighbors(algorithm="brute").fit(centred).kneighbors(centred, k + 1)
    # Leave out the pattern itself, or the last one where duplicates displaced it.
    left_out = index == np.arange(n)[:, None]
    left_out[~left_out.any(1), -1] = True
    index, searched = index[~left_out].reshape(n, k), searched[~left_out].reshape(n, k)
    distances = np.empty((n, k))
    size = max(1, BLOCK_ENTRIES // (k * dim))
    for start in range(0, n, size):
        rows = slice(start, start + size)
        apart = patterns[index[rows]] - patterns[rows, None]
        distances[rows] = np.sqrt(np.einsum("rkd,rkd->rk", apart, apart))
    distances.sort(axis=1)
    if k == n - 1:
        return Neighbors(distances, np.full(n, np.inf))
    slack = 16 * (dim + 8) * UNIT_ROUNDOFF * float(np.square(centred).sum(1).max())
    edge = np.sqrt(np.maximum(searched[:, -1] ** 2 * (1 - 1e-12) - slack, 0.0)) * scale
    return Neighbors(distances, np.minimum(edge, distances[:, -1]))


@dataclass(frozen=True)
class Contraction:
    """The terms of the sums for some patterns: neighbours one by one, all others together."""

    exponents: FloatArray  # (n, k): the a_j of the neighbours
    distances: FloatArray  # (n, k): their d_j
    rest: int  # number of all others
    rest_distance: FloatArray  # (n,): lower bound for a KDE, upper for a Hopfield network
    rest_exponent: FloatArray | None  # (n,): upper bound on their a_j; None for a KDE
    sharpness: float  # b
    dim: int

    def take(self, rows: NDArray[np.intp]) -> Contraction:
        """Return the terms of some of the patterns."""
        arrays = {name: value[rows] for name, value in vars(self).items() if np.ndim(value)}
        return replace(self, **arrays)

    def phi(self, radius: FloatArray, *powers: int) -> list[FloatArray]:
        """Return upper bounds on phi_p(R) for each pattern at its own radius, (n,) per power."""
        exponents = self._raised(self.exponents, self.sharpness * radius[:, None] * self.distances)
        with np.errstate(over="ignore", invalid="ignore"):
            weights = np.exp(exponents, out=exponents)
            totals = [
                (self.distances**power * weights).sum(1) + self._rest(power, radius)
                for power in powers
            ]
        return [total * (1 + ROUNDING_SLACK) for total in totals]

    def _raised(self, falling: FloatArray, rising: FloatArray) -> FloatArray:
        """Return the sum of both parts of an exponent, raised by its possible rounding error."""
        slack = 2 * (self.dim + 6) * UNIT_ROUNDOFF
        return falling + rising + slack * (np.abs(falling) + rising)

    def _rest(self, power: int, radius: FloatArray) -> FloatArray:
        """Bound the terms of patterns not listed, each at the distance where it is largest."""
        if self.rest == 0:
            return np.zeros_like(radius)
        b, distance = self.sharpness, self.rest_distance
        if self.rest_exponent is not None:
            exponent = self._raised(self.rest_exponent, b * radius * distance)
        else:
            # d^p exp(-b (d^2 - 2 R d) / 2) rises up to this distance and falls beyond it.
            peak = 0.5 * (radius + np.sqrt(radius**2 + 4 * power / b))
            distance = np.maximum(distance, peak)
            exponent = self._raised(-0.5 * b * distance**2, b * radius * distance)
        return self.rest * distance**power * np.exp(exponent)

    def highest_radius(self) -> FloatArray:
        """Return the radius at which one neighbour alone makes phi_2 too large, or ``inf``."""
        b, d = self.sharpness, self.distances
        apart = d > 0
        safe = np.where(apart, d, 1.0)
        limits = np.where(apart, -(np.log(b * safe**2) + self.exponents) / (b * safe), np.inf)
        highest: FloatArray = np.maximum(limits.min(1, initial=np.inf), 0.0)
        return highest

    def holds(self, radius: FloatArray) -> NDArray[np.bool_]:
        """Return True for patterns whose ball is certified at this radius. (n,)"""
        first, second = self.phi(radius, 1, 2)
        return (first <= radius) & (self.sharpness * second < 1)


def guaranteed_balls(terms: Contraction) -> tuple[FloatArray, FloatArray]:
    """Return the largest certified radii of patterns, 0 for none, and the error bounds there.

    phi_1 is convex in R, so certified radii form an interval, from its least fixed point.
    """
    n = len(terms.exponents)
    radius, error = np.zeros(n), np.full(n, np.inf)
    for start in range(0, n, ROW_BLOCK):
        rows = np.arange(start, min(start + ROW_BLOCK, n))
        here = terms.take(rows)
        # phi_2 grows with R: where it is too large at 0 already, no ball can be certified.
        rows = rows[terms.sharpness * here.phi(np.zeros(len(rows)), 2)[0] < 1]
        least = _least_fixed_point(terms.take(rows))
        rows, least = rows[np.isfinite(least)], least[np.isfinite(least)]
        held = terms.take(rows).holds(least)
        rows, least = rows[held], least[held]
        here = terms.take(rows)
        highest = here.highest_radius()
        endless = np.isinf(highest)
        low = np.log(least)
        high = np.where(endless, low, np.log(np.maximum(highest, least)))
        low = largest(lambda log_radius: here.holds(np.exp(log_radius)), low, high, BISECTIONS)  # noqa: B023
        # The exponential of a logarithm may be larger by a rounding than what was tried.
        tried = np.maximum(np.exp(low) * (1 - 1e-12), least)
        radius[rows], error[rows] = np.where(endless, np.inf, tried), least
    return radius, error


def largest(
    holds: Callable[[FloatArray], NDArray[np.bool_]],
    low: FloatArray,
    high: FloatArray,
    steps: int = 18,
) -> FloatArray:
    """Bisect for the largest values at which a condition holds; it does at the lower ends."""
    for _ in range(steps):
        middle = 0.5 * (low + high)
        good = holds(middle)
        low, high = np.where(good, middle, low), np.where(good, high, middle)
    return low


def _least_fixed_point(terms: Contraction) -> FloatArray:
    """Return the limit of e <- phi_1(e) from 0, raised a little, or ``inf``."""
    error = np.zeros(len(terms.exponents))
    highest = terms.highest_radius()
    highest = np.where(np.isinf(highest), 0.0, highest)  # all others are duplicates: e stays 0
    moving = np.arange(len(error))
    for _ in range(FIXED_POINT_STEPS):
        new = np.minimum(terms.take(moving).phi(error[moving], 1)[0], highest[moving])
        grew = new > error[moving] * (1 + 1e-7)
        moving = moving[grew]
        error[moving] = new[grew]
        # Rows that have grown to the limit of all radii fail below.
        moving = moving[error[moving] < highest[moving]]
        if not len(moving):
            break
    # Just above the limit, phi_1 is below the identity if the limit is a contraction's.
    error = np.maximum(error * (1 + 1e-6), SMALLEST_ERROR)
    return np.where(terms.phi(error, 1)[0] <= error, error, np.inf)


def kde_terms(found: Neighbors, n: int, dim: int, sigma: float) -> Contraction:
    """Return the terms of a Gaussian KDE of n patterns, from their neighbours."""
    sharpness = 1 / sigma**2
    return Contraction(
        exponents=-0.5 * sharpness * found.distances**2,
        distances=found.distances,
        rest=n - 1 - found.distances.shape[1],
        rest_distance=np.where(np.isfinite(found.beyond), found.beyond, 0.0),
        rest_exponent=None,
        sharpness=sharpness,
        dim=dim,
    )


def hopfield_terms(patterns: FloatArray, sigma: float, k: int) -> Contraction:
    """Return the terms of a modern Hopfield network.

    Neighbours are those whose softmax weight is largest at the pattern.
    """
    (n, dim), beta = patterns.shape, 1 / sigma**2
    squares = (patterns**2).sum(1)
    norms = np.sqrt(squares)
    longest = float(norms.max())
    exponents, distances, rest_exponent = np.empty((n, k)), np.empty((n, k)), np.empty(n)
    size = max(1, min(512, BLOCK_ENTRIES // (k * dim)))
    for start in range(0, n, size):
        rows = slice(start, min(start + size, n))
        here, everyone = patterns[rows], np.arange(start, rows.stop)
        gaps = here @ patterns.T - squares[rows, None]
        gaps[everyone - start, everyone] = -np.inf
        chosen = np.argpartition(-gaps, k - 1, axis=1)[:, :k]
        # Products of long patterns cancel: they select neighbours only.
        blur = 4 * (dim + 4) * UNIT_ROUNDOFF * (norms[rows] + longest) ** 2
        apart = patterns[chosen] - here[:, None]
        distances[rows] = np.linalg.norm(apart, axis=2)
        lost = 4 * (dim + 2) * UNIT_ROUNDOFF * norms[rows, None] * distances[rows]
        exponents[rows] = beta * (np.einsum("rd,rkd->rk", here, apart) + lost)
        rest_exponent[rows] = beta * (np.take_along_axis(gaps, chosen, 1).min(1) + blur)
    farthest = np.full(n, 2 * longest)
    return Contraction(exponents, distances, n - 1 - k, farthest, rest_exponent, beta, dim)


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
