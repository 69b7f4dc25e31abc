"""How many patterns fit on a sphere: known values, oracles, order, and growth."""

import math

import mpmath
import numpy as np
import pytest
from scipy.integrate import quad

from isthmus.capacity import (
    capacity_bound,
    capacity_rate,
    dense_radius,
    guaranteed_radius,
    random_coding,
    required_separation,
)
from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.paper.counts import (
    SphereQuadrature,
    log_cap_fraction,
    log_kernel_mean,
    log_levenshtein,
)

KINDS = ["claimed", "packing", "random", "certified", "half-weight", "dense"]


def uniform_on_sphere(count, dim, radius, seed=0):
    points = np.random.default_rng(seed).normal(size=(count, dim))
    return points * radius / np.linalg.norm(points, axis=1, keepdims=True)


def distances(points):
    gram = points @ points.T
    squares = np.diag(gram)
    return np.sqrt(np.maximum(squares[:, None] + squares - 2 * gram, 0))


@pytest.mark.parametrize(
    ("dim", "expected"), [(6, 6.38), (8, 53.4), (10, 483.8), (20, 4.82e7), (50, 1.69e23)]
)
def test_certified_counts(dim, expected):
    assert capacity_bound(dim) == pytest.approx(expected, rel=2e-3)


def test_certified_count_and_radius_in_a_hundred_dimensions():
    best = random_coding(100)
    assert math.exp(best.log_count) == pytest.approx(3.23e49, rel=2e-3)
    assert best.radius == pytest.approx(0.0637, rel=2e-2)
    assert capacity_bound(100) == pytest.approx(math.exp(best.log_count))


@pytest.mark.parametrize(
    ("dim", "expected", "rel"),
    [(6, 10, 0), (8, 26, 0), (10, 64, 0), (20, 5750, 0), (50, 4.53e9, 1e-3), (100, 3.27e19, 2e-3)],
)
def test_packing_counts(dim, expected, rel):
    assert capacity_bound(dim, kind="packing") == pytest.approx(expected, rel=max(rel, 1e-12))


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


@pytest.mark.parametrize(
    ("dim", "expected"),
    [(6, 3.09), (8, 4.15), (10, 5.22), (20, 10.53), (50, 26.48), (100, 53.07)],
)
def test_ceilings(dim, expected):
    found = capacity_bound(dim, kind="half-weight", log=True) / math.log(10)
    assert found == pytest.approx(expected, abs=0.006)


@pytest.mark.parametrize(
    ("dim", "expected"), [(6, 1.66), (8, 2.30), (10, 3.19), (20, 16.2), (50, 2.1e3), (100, 6.9e6)]
)
def test_mean_inverse_own_weight_at_the_claimed_count(dim, expected):
    log_mean = capacity_bound(dim, kind="claimed", log=True) + log_kernel_mean(
        dim, 2 * math.sqrt(dim - 1)
    )
    assert math.exp(log_mean) == pytest.approx(expected, rel=0.01)


def test_the_claim_passes_the_ceiling_from_eight_dimensions_on():
    above = {
        dim: capacity_bound(dim, kind="claimed", log=True)
        > capacity_bound(dim, kind="half-weight", log=True)
        for dim in [*range(2, 300), 1000, 10_000]
    }
    assert all(passes == (dim >= 8) for dim, passes in above.items())


def test_the_claim_is_made_for_large_enough_spheres_only():
    assert capacity_bound(10, 1.0, 6.0, "claimed") == pytest.approx(4**9)
    assert capacity_bound(10, 2.0, 12.0, "claimed") == pytest.approx(4**9)
    assert math.isnan(capacity_bound(10, 2.0, 6.0, "claimed"))


@pytest.mark.parametrize(
    ("dim", "factor", "stated"),
    [
        (3, 2.0, False),
        (4, 2.0, True),
        (4, 1.99, False),
        (49, 1.7, False),
        (50, 1.7, True),
        (50, 1.69, False),
        (200, 1.8, True),
    ],
)
def test_the_claim_is_made_in_its_two_cases_only(dim, factor, stated):
    found = capacity_bound(dim, 1.5, 1.5 * factor * math.sqrt(dim - 1), "claimed", log=True)
    assert math.isnan(found) != stated
    assert not stated or found == pytest.approx(2 * (dim - 1) * math.log(2))


def test_random_counts():
    assert math.isnan(capacity_bound(20, kind="random"))
    assert capacity_bound(50, kind="random") == pytest.approx(316, rel=2e-3)
    assert capacity_bound(100, kind="random") == pytest.approx(3.18e6, rel=2e-3)
    assert capacity_bound(100, kind="random", failure=0.1) > capacity_bound(100, kind="random")


@pytest.mark.parametrize("factor", [0.6, 1.7, 2.0, 5.0])
def test_lower_bounds_stay_below_the_ceiling(factor):
    for dim in [*range(4, 201, 1 if factor == 2 else 14), 1000, 10_000]:
        norm = factor * math.sqrt(dim - 1)
        ceiling = capacity_bound(dim, 1.0, norm, "half-weight", log=True)
        for kind in ("packing", "random", "certified"):
            bound = capacity_bound(dim, 1.0, norm, kind, log=True)
            assert math.isnan(bound) or 0 <= bound < ceiling


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


@pytest.mark.parametrize("dim", [10, 30, 300, 10_000])
def test_certified_and_ceiling_differ_by_a_polynomial_factor(dim):
    ratio = 2 * math.sqrt(dim - 1)
    log_mean = math.log(32 * math.e * ratio**2) + log_kernel_mean(dim, ratio)
    log_near = math.log(4) + log_cap_fraction(dim, 2 * math.asin(0.5 / ratio**2))
    assert capacity_bound(dim, log=True) >= -np.logaddexp(log_mean, log_near)


def test_capacity_rates():
    assert math.exp(capacity_rate()) == pytest.approx(3.402, abs=5e-4)
    assert math.exp(capacity_rate(1.7)) == pytest.approx(2.926, abs=5e-4)
    # Large spheres: every direction of size sigma counts, M sqrt(e) / sqrt(D) of them.
    assert capacity_rate(1e8) == pytest.approx(0.5 + math.log(1e8), rel=1e-12)
    # Small ones: c = K^2 - K^4 + ..., which must not cancel away.
    assert capacity_rate(1e-4) == pytest.approx(1e-8, rel=1e-6)
    rates = [capacity_rate(factor) for factor in np.geomspace(1e-3, 1e3, 50)]
    assert np.all(np.diff(rates) > 0)


@pytest.mark.parametrize("kind", KINDS)
def test_only_the_ratio_of_radius_to_bandwidth_counts(kind):
    expected = capacity_bound(60, 1.0, 16.0, kind, log=True)
    for sigma in (1e-6, 0.3, 1e6):
        found = capacity_bound(60, sigma, 16.0 * sigma, kind, log=True)
        assert found == pytest.approx(expected, rel=1e-12)
        assert capacity_bound(60, sigma, kind=kind) == pytest.approx(capacity_bound(60, kind=kind))


# Kissing numbers and the icosahedron, for which the bound is sharp; Rankin's simplex and axes;
# regular polygons.
@pytest.mark.parametrize(
    ("dim", "cosine", "count"),
    [(8, 0.5, 240), (24, 0.5, 196_560), (3, 5**-0.5, 12), (7, 1 / 3, 56), (5, -0.2, 6), (4, 0, 8)]
    + [(2, math.cos(2 * math.pi / n), n) for n in (3, 7, 18)],
)
def test_levenshteins_bound_is_sharp_for_known_codes(dim, cosine, count):
    assert math.exp(log_levenshtein(dim, cosine)) == pytest.approx(count, rel=1e-9)


@pytest.mark.parametrize(("dim", "angle"), [(3, 20.0), (4, 36.0), (10, 15.0), (40, 25.0)])
def test_levenshteins_bound_is_below_that_of_disjoint_caps(dim, angle):
    bound = log_levenshtein(dim, math.cos(math.radians(angle)))
    assert bound < -log_cap_fraction(dim, math.radians(angle / 2))


def test_levenshteins_bound_has_its_rate():
    sine = math.sin(2 * math.asin(1 - math.sqrt(0.75)))  # the angle of the dense limit for K = 2
    more, less = (1 + sine) / (2 * sine), (1 - sine) / (2 * sine)
    rate = more * math.log(more) - less * math.log(less)
    found = [capacity_bound(dim, kind="dense", log=True) for dim in (10_000, 20_000)]
    assert (found[1] - found[0]) / 10_000 == pytest.approx(rate, abs=2e-3)
    assert math.exp(rate) == pytest.approx(5.06, abs=0.01)


@pytest.mark.parametrize(("dim", "factor"), [(2, 2.0), (3, 2.0), (10, 1.7), (40, 3.0)])
def test_dense_radius_is_at_rest_under_a_uniform_density(dim, factor):
    norm = factor * math.sqrt(dim - 1)
    radius = dense_radius(dim, 1.0, norm)

    def moment(power):
        return quad(
            lambda t: (
                math.cos(t) ** power
                * math.exp(radius * norm * (math.cos(t) - 1))
                * math.sin(t) ** (dim - 2)
            ),
            0,
            math.pi,
            epsabs=0,
        )[0]

    assert norm * moment(1) / moment(0) == pytest.approx(radius, rel=1e-7)
    assert dense_radius(dim, 3.0, 3 * norm) == pytest.approx(3 * radius)
    assert dense_radius(dim, 1.0, 0.99 * math.sqrt(dim)) == 0


@pytest.mark.parametrize("kind", ["packing", "random", "certified", "half-weight"])
def test_capacity_grows_with_dimension_and_with_radius(kind):
    by_dim = [capacity_bound(dim, kind=kind, log=True) for dim in range(50, 400, 25)]
    by_norm = [capacity_bound(60, 1.0, norm, kind, log=True) for norm in range(16, 40, 2)]
    assert np.all(np.diff(by_dim) > 0)
    assert np.all(np.diff(by_norm) > 0)


def test_logarithm_and_number_agree_until_the_number_overflows():
    for kind in KINDS:
        log_bound = capacity_bound(200, kind=kind, log=True)
        assert capacity_bound(200, kind=kind) == pytest.approx(math.exp(log_bound))
        assert math.isfinite(capacity_bound(10_000, kind=kind, log=True))
        assert capacity_bound(10_000, kind=kind) == math.inf


def test_one_pattern_is_always_stored():
    for norm in (1e-9, 0.5, 1.0):
        assert capacity_bound(5, 1.0, norm, "certified") == 1
        assert capacity_bound(5, 1.0, norm, "packing") == 1
        assert math.isnan(capacity_bound(5, 1.0, norm, "random"))
        assert capacity_bound(5, 1.0, norm, "half-weight") >= 2
    assert random_coding(10, radius=50.0).log_count == 0


def test_no_radius_allows_more_patterns_than_the_best():
    for dim, norm in [(5, 4.0), (10, 6.0), (40, 300.0)]:
        best = random_coding(dim, 1.0, norm)
        for radius in best.radius * np.geomspace(0.1, 10, 31):
            assert random_coding(dim, 1.0, norm, radius).log_count <= best.log_count + 1e-9


def test_half_of_a_random_draw_of_twice_the_count_is_certified():
    dim, radius = 8, random_coding(8).radius
    count = 1 + math.floor(2 * math.exp(random_coding(8).log_count))
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
    log_mean = log_kernel_mean(dim, norm)
    clustered = uniform_on_sphere(300, dim, norm) + 3 * np.eye(dim)[0]
    clustered *= norm / np.linalg.norm(clustered, axis=1, keepdims=True)
    cross = norm * np.concatenate([np.eye(dim), -np.eye(dim)])
    angles = 2 * math.pi * np.arange(40) / 40
    ring = norm * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    arrangements = [clustered, cross, uniform_on_sphere(2000, dim, norm)]
    for points in [*arrangements, ring] if dim == 2 else arrangements:
        inverse_own_weight = np.exp(-0.5 * distances(points) ** 2).sum(1)
        assert inverse_own_weight.mean() >= len(points) * math.exp(log_mean) * (1 - 1e-12)


def test_an_even_ring_attains_the_ceiling():
    angles = 2 * math.pi * np.arange(64) / 64
    ring = 2 * np.stack([np.cos(angles), np.sin(angles)], axis=1)
    mean = np.exp(-0.5 * distances(ring) ** 2).mean()
    assert mean == pytest.approx(math.exp(log_kernel_mean(2, 2.0)), rel=1e-12)


def test_patterns_with_certified_balls_of_their_own_keep_half_their_weight():
    checked = 0
    for seed, dim in enumerate([4, 5, 6, 8, 10, 12] * 10):
        points = uniform_on_sphere(60, dim, 1.6 * math.sqrt(dim - 1), seed)
        distance = distances(points)
        others = distance + np.where(np.eye(60, dtype=bool), math.inf, 0)
        own_weight = 1 / np.exp(-0.5 * distance**2).sum(1)
        for radius in (0.05, 0.1, 0.2, 0.4, 0.8):
            weight = np.exp(-0.5 * distance**2 + radius * distance)
            certified = (distance * weight).sum(1) <= radius
            certified &= others.min(1) >= radius
            checked += certified.sum()
            assert np.all(own_weight[certified] >= 0.5)
    assert checked > 100


def master_inequality(count, square):
    return 2 / count + math.log(2 * count**2 * square)


@pytest.mark.parametrize("dim", [*range(3, 40), 100, 1000, 10_000])
def test_a_cross_polytope_satisfies_the_master_inequality(dim):
    count, square = 2 * dim, 4 * (dim - 1)
    required = required_separation(count, math.sqrt(square))
    assert square >= master_inequality(count, square) >= required
    assert 2 * guaranteed_radius(count, math.sqrt(square)) < math.sqrt(2 * square)


def test_a_square_in_the_plane_does_not():
    assert master_inequality(4, 4) > 4


@pytest.mark.parametrize(
    "arguments",
    [
        {"dim": 1},
        {"dim": 2.5},
        {"dim": math.nan},
        {"dim": "ten"},
        {"dim": 10, "sigma": 0.0},
        {"dim": 10, "sigma": -1.0},
        {"dim": 10, "sigma": math.nan},
        {"dim": 10, "max_norm": 0.0},
        {"dim": 10, "max_norm": math.inf},
        {"dim": 10, "max_norm": 1e20},
        {"dim": 10, "kind": "largest"},
        {"dim": 10, "kind": "random", "failure": 0.0},
        {"dim": 10, "kind": "random", "failure": 1.5},
    ],
)
def test_bad_arguments_are_refused(arguments):
    with pytest.raises(IsthmusError):
        capacity_bound(**arguments)


def test_errors_say_what_to_do():
    with pytest.raises(InvalidInputError, match="must be one of 'claimed', 'packing'"):
        capacity_bound(10, kind="greedy")
    with pytest.raises(InvalidInputError, match="dim must be a whole number of at least 2"):
        capacity_bound(1)
    with pytest.raises(InvalidInputError, match="radius must be a finite number above 0"):
        random_coding(10, radius=0.0)
    with pytest.raises(InvalidInputError, match="K must be"):
        capacity_rate(0.0)


def test_quadrature_is_stable_where_dimension_and_radius_are_extreme():
    for dim in (2, 10, 10_000):
        for radius in (1e-12, 1.0, 1e12):
            assert np.isfinite(SphereQuadrature(dim, radius).log_moments(0.1)).all()


def test_the_claim_passes_the_ceiling_in_all_higher_dimensions():
    # A lower bound on 4^(D-1) A_0 from cosines between 0.87 and 0.89; it grows with D.
    growth = 4 * math.exp(-4 * 0.13) * math.sqrt(1 - 0.89**2)
    assert growth > 1.0843
    assert 0.02 / math.pi * 1.0843**72 > 2
    for dim in range(8, 200):
        log_mean = (dim - 1) * math.log(4) + log_kernel_mean(dim, 2 * math.sqrt(dim - 1))
        assert log_mean > math.log(2)
        assert log_mean > math.log(0.02 / math.pi) + (dim - 1) * math.log(growth)


def test_bounds_on_whole_numbers_are_whole() -> None:
    assert [capacity_bound(dim, kind="packing") for dim in (10, 20)] == [64, 5750]
    assert [capacity_bound(dim, kind="claimed") for dim in (4, 20)] == [4**3, 4**19]
