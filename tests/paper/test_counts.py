"""How many patterns fit on a sphere, and means over two points of it: oracles and growth."""

import math

import mpmath
import numpy as np
import pytest

from isthmus.capacity import capacity_bound, capacity_rate
from isthmus.paper.counts import log_cap_fraction, log_certified, log_kernel_mean, log_moments


def uniform_on_sphere(count, dim, radius, seed=0):
    points = np.random.default_rng(seed).normal(size=(count, dim))
    return points * radius / np.linalg.norm(points, axis=1, keepdims=True)


def distances(points):
    gram = points @ points.T
    squares = np.diag(gram)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0))


@pytest.mark.parametrize("dim", [6, 10, 20])
def test_packing_is_the_largest_self_consistent_count(dim):
    def room(count):
        with mpmath.workdps(30):
            square = mpmath.mpf(4 * (dim - 1))
            separation = mpmath.mpf(2) / count + mpmath.log(2 * mpmath.mpf(count) ** 2 * square)
            cosine = 1 - separation / square
            half = mpmath.mpf(1) / 2
            return 2 / mpmath.betainc((dim - 1) * half, half, 0, 1 - cosine**2, regularized=True)

    count = round(capacity_bound(dim, kind="packing"))
    assert room(count) >= count
    assert room(count + 1) < count + 1


def test_the_claim_passes_the_ceiling_from_eight_dimensions_on():
    for dim in [*range(4, 100), 1000, 10_000]:
        claimed, ceiling = (
            capacity_bound(dim, kind=kind, log=True) for kind in ("claimed", "half-weight")
        )
        assert (claimed > ceiling) == (dim >= 8)


@pytest.mark.parametrize(
    ("dim", "factor", "stated"),
    [(3, 2.0, False), (4, 2.0, True), (4, 1.99, False), (49, 1.7, False), (50, 1.7, True)],
)
def test_the_claim_is_made_in_its_two_cases_only(dim, factor, stated):
    found = capacity_bound(dim, 1.5, 1.5 * factor * math.sqrt(dim - 1), "claimed", log=True)
    assert math.isnan(found) != stated
    assert not stated or found == pytest.approx(2 * (dim - 1) * math.log(2))


@pytest.mark.parametrize("factor", [1.0, 1.7, 2.0, 4.0])
def test_certified_and_ceiling_grow_at_the_capacity_rate(factor):
    def log_bound(dim, kind):
        return capacity_bound(dim, 1.0, factor * math.sqrt(dim - 1), kind, log=True)

    for kind in ("certified", "half-weight"):
        errors = [
            abs((log_bound(2 * dim, kind) - log_bound(dim, kind)) / dim - capacity_rate(factor))
            for dim in (500, 5000)
        ]
        assert errors[1] < 3e-4
        assert errors[1] < 0.2 * errors[0]


def test_capacity_rates():
    assert math.exp(capacity_rate(1.7)) == pytest.approx(2.926, abs=5e-4)
    # Large spheres: every direction of size sigma counts, M sqrt(e) / sqrt(D) of them.
    assert capacity_rate(1e8) == pytest.approx(0.5 + math.log(1e8), rel=1e-12)
    # Small ones: c = K^2 - K^4 + ..., which must not cancel away.
    assert capacity_rate(1e-4) == pytest.approx(1e-8, rel=1e-6)


def test_half_of_a_random_draw_of_twice_the_count_is_certified():
    dim = 8
    log_count, radius = log_certified(dim, 2 * math.sqrt(dim - 1))
    count = 1 + math.floor(2 * math.exp(log_count))
    good = 0
    for seed in range(40):
        distance = distances(uniform_on_sphere(count, dim, 2 * math.sqrt(dim - 1), seed))
        weight = np.exp(-0.5 * distance**2 + radius * distance)
        first, second = (distance * weight).sum(1), (distance**2 * weight).sum(1)
        np.fill_diagonal(distance, math.inf)
        good += np.sum((first <= radius) & (second < 1) & (distance.min(1) > 2 * radius))
    assert good >= 0.5 * 40 * count


@pytest.mark.parametrize("dim", [2, 3, 8])
def test_no_arrangement_beats_the_ceiling(dim):
    norm = 2 * math.sqrt(dim - 1)
    clustered = uniform_on_sphere(300, dim, norm) + 3 * np.eye(dim)[0]
    clustered *= norm / np.linalg.norm(clustered, axis=1, keepdims=True)
    cross = norm * np.concatenate([np.eye(dim), -np.eye(dim)])
    for points in (clustered, cross, uniform_on_sphere(2000, dim, norm)):
        inverse_own_weight = np.exp(-0.5 * distances(points) ** 2).sum(1)
        least = len(points) * math.exp(log_kernel_mean(dim, norm))
        assert inverse_own_weight.mean() >= least * (1 - 1e-12)


SPHERES = [(2, 2.0), (3, 0.3), (4, 300.0), (10, 6.0), (51, 14.0), (1000, 63.0)]


def mpmath_moment(dim, radius, tilt, power):
    """Log of A_p(R), by integrating over the logarithm of the tangent of half the angle."""
    with mpmath.workdps(18):

        def log_integrand(u):
            distance = 2 * radius / mpmath.sqrt(1 + mpmath.exp(-2 * u))
            exponent = power * mpmath.log(distance) - distance * (distance / 2 - tilt)
            return exponent + (dim - 1) * mpmath.log(mpmath.sech(u))

        grid = mpmath.linspace(-44, 44, 401)
        top = max(map(log_integrand, grid))
        integral = mpmath.quad(lambda u: mpmath.exp(log_integrand(u) - top), grid[::4])
        normalizer = mpmath.beta(mpmath.mpf(dim - 1) / 2, mpmath.mpf(1) / 2)
        return float(mpmath.log(integral / normalizer) + top)


@pytest.mark.parametrize(("dim", "radius"), SPHERES)
@pytest.mark.parametrize("tilt", [0.07, 1.3])
def test_moments_match_mpmath(dim, radius, tilt):
    expected = [mpmath_moment(dim, radius, tilt, power) for power in range(3)]
    found = log_moments(dim, radius, tilt)
    np.testing.assert_allclose(found, expected, rtol=1e-12, atol=1e-9)


@pytest.mark.parametrize(("dim", "radius"), SPHERES)
def test_kernel_mean_matches_mpmath(dim, radius):
    with mpmath.workdps(40):
        order, kappa = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(radius) ** 2
        bessel = mpmath.besseli(order, kappa)
        mean = mpmath.gamma(order + 1) * (2 / kappa) ** order * mpmath.exp(-kappa) * bessel
        expected = float(mpmath.log(mean))
    assert log_kernel_mean(dim, radius) == pytest.approx(expected, rel=1e-12, abs=1e-9)


@pytest.mark.parametrize("dim", [2, 3, 7, 200, 10_000])
@pytest.mark.parametrize("angle", [1e-6, 0.1, 0.7, 1.5, math.pi / 2, 1.7, 3.0])
def test_cap_fraction_matches_mpmath(dim, angle):
    with mpmath.workdps(60):
        square = mpmath.sin(mpmath.mpf(angle)) ** 2
        half = mpmath.mpf(1) / 2
        share = mpmath.betainc((dim - 1) * half, half, 0, square, regularized=True) / 2
        expected = float(mpmath.log(share if angle <= math.pi / 2 else 1 - share))
    assert log_cap_fraction(dim, angle) == pytest.approx(expected, rel=1e-11, abs=1e-13)
