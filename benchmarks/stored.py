r"""A proof by computer that the 600-cell and a shell of E8 are stored.

    python benchmarks/stored.py            # in interval arithmetic, by python-flint
    python benchmarks/stored.py --floats   # with floats and a margin, in seconds

The record is benchmarks/results/stored.json, which the report shows.

Patterns :math:`x_j = M v_j`, :math:`M = 2\sqrt{D-1}`, :math:`\sigma = 1`. Split space into the axis
through one pattern and the space across it, :math:`x = (a, u)`, and let the patterns at the same
place on the axis be a shell. On the cylinder :math:`a_1 \le a \le M + R`, :math:`|u| \le R` an
update f satisfies

1. :math:`|f_u| < |u|` unless u = 0,
2. :math:`f_a \ge a_1` on the bottom (and everywhere, since :math:`f_a` grows with a),
3. :math:`f_a` contracts the axis, and moves the place :math:`M - R` outwards.

So f maps the cylinder into itself, and each start in it converges to the only fixed point, on the
axis. The ball of radius R about the pattern lies inside; by symmetry all are stored. The bounds
hold for all directions of u at once, by expanding sums over shells in spherical harmonics
(docs/capacity-proofs.md, section 14).
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import asdict, dataclass
from functools import cache
from itertools import combinations_with_replacement, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.paper.spheres import cell_600, e8_shell

RESULTS = Path(__file__).parent / "results" / "stored.json"

FloatArray = NDArray[np.float64]
# Harmonics up to this degree are bounded one by one; terms of a power series.
DEGREES, TERMS = 24, 36
# Float64 results are raised by this share, which exceeds the error of sums of 1e5 terms.
SLACK = 1e-10


@dataclass(frozen=True)
class Arrangement:
    """A set of unit vectors that a group permutes transitively, and the constants of its proof."""

    name: str
    vectors: Callable[[], FloatArray]
    # Cosines between vectors, (p + q sqrt 5) / 8.
    cosines: tuple[tuple[int, int], ...]
    # The first degree above 0 with a harmonic that the stabiliser of a vector leaves unchanged.
    first_degree: int
    # R, a_1 and the numbers of intervals in a and in |u|.
    radius: float
    bottom: float
    intervals: tuple[int, int]


def _e8_shell() -> FloatArray:
    """Return the shell, with one sign changed so that its first vector has equal coordinates."""
    vectors = e8_shell() * np.array([1.0] * 7 + [-1.0])
    first = int(np.argmax(vectors.sum(1)))
    return np.roll(vectors, -first, axis=0)


_GOLDEN = ((8, 0), (2, 2), (4, 0), (-2, 2), (0, 0), (2, -2), (-4, 0), (-2, -2), (-8, 0))
_EIGHTHS = tuple((p, 0) for p in range(8, -9, -1))
CELL_600 = Arrangement("600-cell", cell_600, _GOLDEN, 6, 0.48, 2.92, (64, 16))
E8_SHELL = Arrangement("E8 shell", _e8_shell, _EIGHTHS, 3, 0.618, 4.597, (64, 32))


@dataclass(frozen=True)
class Proof:
    """The bounds that prove an arrangement stored.

    `across` bounds :math:`|f_u|/|u|` in the cylinder and `along` the slope of :math:`f_a` on the
    axis, from above; `inward` and `outward` the moves inward at :math:`a_1` and outward at
    :math:`M - R`, from below, weighted by the pattern's own weight. `spacing` is half the distance
    of neighbours. The proof `holds` if all inequalities are true in every interval.
    """

    name: str
    dim: int
    patterns: int
    claimed: int
    radius: float
    spacing: float
    across: float
    inward: float
    along: float
    outward: float
    holds: bool

    def __str__(self) -> str:
        return (
            f"{self.name}: {self.patterns:,} patterns, D = {self.dim} (claimed {self.claimed:,})\n"
            f"  |f_u| / |u|        at most  {self.across + 5e-5:.4f}   must be below 1\n"
            f"  inward at a_1      at least {self.inward - 5e-5:.4f}   must be above 0\n"
            f"  slope on the axis  at most  {self.along + 5e-5:.4f}   must be below 1\n"
            f"  outward at M - R   at least {self.outward - 5e-5:.4f}   must be above 0\n"
            f"  radius R                    {self.radius:.4f}   must be below {self.spacing:.4f}\n"
            f"{'All are stored.' if self.holds else 'Nothing is proved.'}"
        )


def prove_stored(arrangement: Arrangement, number: Callable[[Any], Any] = float) -> Proof:
    """Compute the bounds of an arrangement in a type of numbers.

    It is float, with a margin for rounding, or an interval type such as ``flint.arb``, with
    ``sqrt`` and ``exp``, whose comparisons are certain.
    """
    shells = Shells(arrangement, number)
    M, slack = shells.M, shells.slack
    R, bottom = number(str(arrangement.radius)), number(str(arrangement.bottom))
    steps, n_lengths = arrangement.intervals
    # The bounds are tightest at the bottom and at |u| = R, where intervals are the shortest.
    places = np.array([bottom + (M + R - bottom) * k * k / steps**2 for k in range(steps + 1)])
    intervals = list(pairwise(R * _sqrt(number(k) / n_lengths) for k in range(n_lengths + 1)))
    upper, lower = shells.weights(places[:-1]), shells.weights(places[1:])  # weights fall with a
    across = (1 + slack) * np.concatenate(
        [_moved(shells, upper, lower, low, high).ravel() for low, high in intervals]
    )
    slope = (1 + slack) * (upper * _square(shells.place - M)).sum(-1) / lower.sum(-1)
    inward = np.array([_inward(shells, bottom, low, high) for low, high in intervals])
    excess = shells.weights(M - R) * (shells.place - (M - R))
    outward = excess.sum() - slack * np.abs(excess).sum()
    spacing = M * _sqrt((1 - shells.cosines[1]) / 2)
    # A ratio is negative where the sum of weights is not bounded away from 0.
    below = (across > 0).all() and (across < 1).all() and (slope < 1).all() and spacing > R
    return Proof(
        *(arrangement.name, shells.across + 1, len(shells.vectors), 4**shells.across),
        *(arrangement.radius, float(spacing), float(max(across)), float(min(inward))),
        *(float(max(slope)), float(outward)),
        holds=bool(below and (inward > 0).all() and outward > 0),
    )


class Shells:
    """The patterns of an arrangement by their places along the axis, and their harmonics across."""

    def __init__(self, arrangement: Arrangement, number: Callable[[Any], Any]) -> None:
        self.vectors, self.number = arrangement.vectors(), number
        self.across, self.slack = self.vectors.shape[1] - 1, SLACK if number is float else 1e-20
        self.sizes, pairs = _counted(arrangement.vectors, arrangement.cosines)
        root5, self.M = _sqrt(number(5)), 2 * _sqrt(number(self.across))
        self.cosines = np.array([(p + q * root5) / 8 for p, q in arrangement.cosines])
        self.place = self.M * self.cosines
        self.length = self.M * np.array([_sqrt(abs(1 - c * c)) for c in self.cosines])
        self.length[[0, -1]] = number(0)  # the pattern and its antipode
        self.kernels = shell_kernels(pairs, self.cosines, self.across, number)
        self.series = [_series(degree, self.across, number) for degree in range(DEGREES + 2)]
        self.degrees = range(arrangement.first_degree, DEGREES + 2)

    def weights(self, a: Any) -> Any:
        """Return the weights of shells on the axis, relative to the pattern's own. (..., S)"""
        return self.sizes * np.exp(np.multiply.outer(a, self.place - self.M))

    def value(self, degree: int, length: Any) -> Any:
        """Return the coefficients of harmonics of a degree at |u|, for each shell. (S,)"""
        return _power_series(self.series[degree], length * self.length, 0)

    def rate(self, degree: int, length: Any) -> Any:
        """Return their derivatives by |u|, over |u|. (S,)"""
        terms = [(power, power * value) for power, value in self.series[degree] if power > 0]
        return self.length**2 * _power_series(terms, length * self.length, -2)

    def slide(self, degree: int, length: Any) -> Any:
        """Return the coefficients over |u|^2, which multiply gradients along the sphere. (S,)"""
        return self.length**2 * _power_series(self.series[degree], length * self.length, -2)

    def steepest(self, degree: int) -> Any:
        """Return the largest gradient of a harmonic that is at most 1 in its kernel's norm."""
        return _sqrt(self.number(degree * (degree + self.across - 2)) / (self.across - 1))

    def bound(self, one: Any, other: Any, degree: int) -> Any:
        """Bound sums of coefficients times means over shells of one degree's harmonic.

        The coefficients (..., S) are any between `one` and `other`. Kernels have negative entries,
        so that the ends bound nothing: the norm of the middle and that of the rest are added.
        """
        middle, half = _middle(one, other)
        if degree > DEGREES:  # a mean is at most 1, and all terms beyond are less than the first
            return 2 * (np.abs(middle) + half).sum(-1)
        kernel = self.kernels[degree]
        return self._norm(middle, kernel) + self._norm(half, np.abs(kernel))

    def _norm(self, coefficients: Any, kernel: Any) -> Any:
        form = ((coefficients @ kernel) * coefficients).sum(-1)
        return np.sqrt(np.abs(form) + self.slack * _square(np.abs(coefficients).sum(-1)))


def _moved(shells: Shells, upper: Any, lower: Any, low: Any, high: Any) -> Any:
    """Bound |f_u|/|u| for weights between `lower` and `upper` and lengths from low to high."""
    if shells.degrees[0] == 3:
        radial, tangential, mass = _by_permutations(shells, upper, lower, low, high)
    else:
        radial, tangential, mass = _isotropic(shells, upper, lower, low, high, shells.degrees)
    return np.sqrt(_square(radial) + _square(tangential)) / mass


def _isotropic(
    shells: Shells, upper: Any, lower: Any, low: Any, high: Any, degrees: range
) -> tuple[Any, Any, Any]:
    """Bound the radial and tangential parts of a move over |u|, and the sum of weights below.

    The radial part is never negative (a log-sum-exp is convex in u, and least at 0).
    """
    radial = (upper * shells.rate(0, high)).sum(-1)
    tangential = 0 * radial
    mass = (lower * shells.value(0, low)).sum(-1)
    for degree in degrees:
        most, least = upper * shells.rate(degree, high), lower * shells.rate(degree, low)
        radial = radial + shells.bound(most, least, degree)
        most, least = upper * shells.slide(degree, high), lower * shells.slide(degree, low)
        slide = shells.bound(most, least, degree)
        tangential = tangential + shells.steepest(degree) * slide
        mass = mass - slide * _square(high)
    return radial, tangential, mass


def _by_permutations(
    shells: Shells, upper: Any, lower: Any, low: Any, high: Any
) -> tuple[Any, Any, Any]:
    r"""Bound the same if permutations of 8 coordinates, which add up to 0 across, are symmetries.

    Then harmonics of degrees 3 and 4 are multiples of :math:`p_3` and :math:`p_4 - 7/24`, where
    :math:`p_k = \sum_i w_i^k` and w is the direction of u. All (p_3, p_4) are enclosed by cells.
    """
    axis = (slice(None), None)
    radial, tangential, mass = (
        part[axis] for part in _isotropic(shells, upper, lower, low, high, range(5, DEGREES + 2))
    )
    p3, p4, gradients = _a7_cells(shells.number)
    for degree, power, gradient in zip((3, 4), (p3, p4), gradients, strict=True):
        mean = _means_at_corner(shells, degree)

        def between(high_end: Any, low_end: Any, mean: Any = mean) -> tuple[Any, Any]:
            """Return the middle and half the width of a sum of signed terms."""
            one, other = upper * high_end * mean, lower * low_end * mean
            middle, half = _middle(one, other)
            size = shells.slack * np.abs(one).sum(-1)
            return middle.sum(-1)[axis], (half.sum(-1) + size)[axis]

        middle, half = between(shells.rate(degree, high), shells.rate(degree, low))
        radial = radial + middle * power[0] + np.abs(middle) * power[1]
        radial = radial + half * (np.abs(power[0]) + power[1])
        middle, half = between(shells.slide(degree, high), shells.slide(degree, low))
        tangential = tangential + (np.abs(middle) + half) * gradient
        middle, half = between(shells.value(degree, high), shells.value(degree, low))
        mass = mass + middle * power[0] - np.abs(middle) * power[1]
        mass = mass - half * (np.abs(power[0]) + power[1])
    return radial, tangential, mass


def _a7_cells(number: Callable[[Any], Any]) -> tuple[Any, Any, Any]:
    r"""Return cells that hold p_3 and p_4 - 7/24 of all directions, and bounds on gradients.

    Cells are middles and half widths, of :math:`p_3` and :math:`y = p_4 - 1/8 - p_3^2 \ge 0`, up to
    the largest :math:`p_4 = 43/56`. The gradients have the squares :math:`9 y` and
    :math:`16(p_6 - p_3^2/8 - p_4^2)`, and :math:`p_6 \le 7 p_4/8`.
    """
    half3, half_y = number(1) / 64, number(1) / 32
    cells = [
        (k * half3, m * half_y)
        for k in range(-53, 54, 2)
        for m in range(1, 22, 2)
        if max(abs(k) - 1, 0) ** 2 / 64**2 + (m - 1) / 32 <= 0.643
    ]
    p3, y = (np.array(each) for each in zip(*cells, strict=True))
    square_half = 2 * np.abs(p3) * half3 + half3**2
    p4, half4 = _square(p3) + y + number(1) / 8, square_half + half_y
    least = np.where(p4 > half4, p4 - half4, 0 * p4)
    steep4 = 7 * (p4 + half4) / 8 - _square(least)
    gradients = 3 * np.sqrt(y + half_y), 4 * np.sqrt(steep4)
    return (p3, half3 + 0 * p3), (p4 - number(7) / 24, half4), gradients


def _means_at_corner(shells: Shells, degree: int) -> Any:
    """Return means over shells of a harmonic, per unit of p_3, or of p_4 - 7/24. (S,)

    They are computed in the direction (7, -1, ..., -1), whose p_3 is 6 / sqrt 56.
    """
    number, vectors = shells.number, shells.vectors
    seven = _sqrt(number(7))
    units = np.round(2 * math.sqrt(8) * vectors[:, 0]).astype(int)
    levels = np.round(8 * vectors @ vectors[0]).astype(int)
    means = np.full(len(shells.cosines), number(0))
    for shell in range(1, len(means) - 1):
        cosine = shells.cosines[shell]
        inside = units[levels == 8 - shell]
        for unit, count in zip(*np.unique(inside, return_counts=True), strict=True):
            t = (number(int(unit)) / 2 - cosine) / (seven * _sqrt(1 - cosine**2))
            harmonic = (9 * t**3 - 3 * t) / 6 if degree == 3 else (99 * t**4 - 54 * t**2 + 3) / 48
            means[shell] = means[shell] + int(count) * harmonic / len(inside)
    largest = 6 / _sqrt(number(56)) if degree == 3 else number(43) / 56 - number(7) / 24
    return means / largest


def _inward(shells: Shells, bottom: Any, low: Any, high: Any) -> Any:
    """Bound the sum over patterns of weights times a - a_1, at a_1, from below."""
    excess = shells.weights(bottom) * (shells.place - bottom)
    # Terms grow with |u|: positive ones are taken at the low end, negative ones at the high.
    terms = excess * np.where(excess > 0, shells.value(0, low), shells.value(0, high))
    lost = [
        shells.bound(excess * shells.value(each, high), excess * shells.value(each, low), each)
        for each in shells.degrees
    ]
    return terms.sum() - sum(lost) - shells.slack * np.abs(terms).sum()


@cache
def _counted(
    vectors: Callable[[], FloatArray], cosines: tuple[tuple[int, int], ...]
) -> tuple[FloatArray, FloatArray]:
    """Count the vectors of each shell about the first, and the pairs of two shells by cosine.

    Returns sizes (S,) and counts (S, S, S) by shell, shell and cosine.
    """
    points, values = vectors(), np.array([(p + q * math.sqrt(5)) / 8 for p, q in cosines])
    order, count = np.argsort(values), len(cosines)
    edges = 0.5 * (values[order][1:] + values[order][:-1])
    shells = order[np.searchsorted(edges, points @ points[0])]
    members = [points[shells == shell] for shell in range(count)]
    pairs = np.zeros((count, count, count))
    fine = order[np.searchsorted(edges, np.arange(-256, 257) / 256)]  # finer than cosines differ
    for one, other in combinations_with_replacement(range(count), 2):
        products = (256 * members[one]) @ members[other].T
        numbers = np.bincount((products + 256.5).astype(int).ravel(), minlength=513)
        pairs[one, other] = pairs[other, one] = np.bincount(fine, numbers, minlength=count)
    return np.bincount(shells, minlength=count).astype(float), pairs


def shell_kernels(
    pairs: FloatArray, cosines: Any, across: int, number: Callable[[Any], Any] = float
) -> list[Any]:
    """Return mean values of the zonal harmonic of each degree between two shells. [(S, S)]

    The first and the last shell are single points on the axis, and have none.
    """
    inner, count = cosines[1:-1], len(cosines)
    sine = np.array([_sqrt(1 - cosine**2) for cosine in inner])
    angle = cosines - np.multiply.outer(inner, inner)[..., None]
    angle = angle / np.multiply.outer(sine, sine)[..., None]
    counts = np.array([number(int(each)) for each in pairs[1:-1, 1:-1].ravel()])
    share = counts.reshape(angle.shape)
    share = share / share.sum(-1)[..., None]
    kernels, before, now = [], 0 * angle + number(1), angle
    for degree in range(DEGREES + 1):
        kernel = np.full((count, count), number(0))
        kernel[1:-1, 1:-1] = (share * before).sum(-1)
        kernels.append(kernel)
        ahead = (2 * degree + across) * angle * now - (degree + 1) * before
        before, now = now, ahead / (degree + across - 1)
    return kernels


def _series(degree: int, across: int, number: Callable[[Any], Any]) -> list[tuple[int, Any]]:
    r"""Return powers and coefficients of :math:`c_l`, :math:`e^{zt} = \sum_l c_l(z) P_l(t)`."""
    first = math.comb(degree + across - 1, across - 1)
    dimension = first - (math.comb(degree + across - 3, across - 1) if degree > 1 else 0)
    value = number(dimension)
    for k in range(degree):
        value = value / (across + 2 * k)
    terms = []
    for k in range(TERMS):
        terms.append((degree + 2 * k, value))
        value = value / (2 * (k + 1) * (across + 2 * degree + 2 * k))
    return terms


def _power_series(series: list[tuple[int, Any]], z: Any, shift: int) -> Any:
    """Return the sum of a series whose powers rise in steps of two, times z^shift."""
    total = 0 * z
    for _, coefficient in reversed(series):
        total = total * (z * z) + coefficient
    return total * z ** (series[0][0] + shift)


def _middle(one: Any, other: Any) -> tuple[Any, Any]:
    """Return the middle and half the width of intervals with these ends."""
    return (one + other) / 2, np.abs(one - other) / 2


def _square(value: Any) -> Any:
    return value * value  # not a power, which is not defined for intervals that hold zero


def _sqrt(value: Any) -> Any:
    return value.sqrt() if hasattr(value, "sqrt") else math.sqrt(value)


def main() -> int:
    """Print both proofs; the exit code is 0 if they hold."""
    if "--floats" in sys.argv:
        proofs = [prove_stored(each) for each in (CELL_600, E8_SHELL)]
    else:
        from flint import arb, ctx

        ctx.prec = 100
        proofs = [prove_stored(each, arb) for each in (CELL_600, E8_SHELL)]
        record = {"proofs": [asdict(each) for each in proofs]}
        RESULTS.write_text(json.dumps(record, indent=1) + "\n")
    print(*proofs, sep="\n\n")
    return 0 if all(proof.holds for proof in proofs) else 1


if __name__ == "__main__":
    raise SystemExit(main())
