"""Certificates: attempts to falsify them, the boundary cases, and what users do with them."""

import math

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from numpy.typing import NDArray
from scipy.optimize import brentq

import isthmus as ist
from isthmus.capacity import basins, certify
from isthmus.errors import InvalidInputError, UnsupportedOperationError

Array = NDArray[np.float64]


def on_sphere(n: int, dim: int, seed: int = 0) -> Array:
    X = np.random.default_rng(seed).standard_normal((n, dim))
    return X / np.linalg.norm(X, axis=1, keepdims=True)


def sphere(n: int, dim: int) -> Array:
    return 2 * np.sqrt(dim) * on_sphere(n, dim, n)


def cloud(n: int, dim: int) -> Array:
    return 3 * np.random.default_rng(n).standard_normal((n, dim))


def clusters(n: int, dim: int) -> Array:
    """Every centre once on its own, then tight groups about some of them."""
    rng = np.random.default_rng(dim)
    centres = 6 * rng.standard_normal((max(n // 3, 2), dim))
    return centres[rng.integers(0, len(centres), n)] + 0.4 * rng.standard_normal((n, dim))


def duplicates(n: int, dim: int) -> Array:
    return np.concatenate([cloud(n - n // 4, dim), cloud(n - n // 4, dim)[: n // 4]])


DATA = {"sphere": sphere, "cloud": cloud, "clusters": clusters, "duplicates": duplicates}


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("sigma", [0.3, 0.9, 1.5])
def test_radii_are_the_largest_that_satisfy_both_inequalities(kind: str, sigma: float) -> None:
    X = DATA[kind](90, 6)
    found = certify(X, sigma, iterate="none")
    held = np.flatnonzero(found.guaranteed_radius > 0)
    apart = np.linalg.norm(X[held][:, None] - X, axis=2)
    apart[np.arange(len(held)), held] = np.nan

    def phi(power: int, radius: Array) -> Array:
        exponents = -(apart**2 - 2 * radius[:, None] * apart) / (2 * sigma**2)
        return np.nansum(apart**power * np.exp(exponents), axis=1)

    radius, error = found.guaranteed_radius[held], found.error_bound[held]
    assert (phi(1, radius) <= radius).all()
    assert (phi(2, radius) < sigma**2).all()
    assert (phi(1, error) <= error).all()
    more = 1.001 * radius
    assert ((phi(1, more) > more) | (phi(2, more) >= sigma**2)).all()
    assert sigma > 0.5 or len(held) > 10


@pytest.mark.parametrize("scale", [1e-100, 1e100])
def test_only_the_ratio_of_patterns_and_bandwidth_counts(scale: float) -> None:
    X = cloud(40, 3)
    plain, scaled = certify(X, 0.8), certify(scale * X, 0.8 * scale)
    assert_array_equal(plain.stored, scaled.stored)
    assert_array_equal(plain.basin, scaled.basin)
    assert_allclose(scaled.guaranteed_radius / scale, plain.guaranteed_radius, rtol=1e-6)


@pytest.mark.parametrize("kind", DATA)
@pytest.mark.parametrize("sigma", [0.5, 1.1])
def test_truth_is_that_of_plain_iteration(kind: str, sigma: float) -> None:
    X = DATA[kind](40, 4)
    found, ends = certify(X, sigma), X
    for _ in range(5000):
        squared = ((ends[:, None] - X) ** 2).sum(2)
        weights = np.exp(-(squared - squared.min(1, keepdims=True)) / (2 * sigma**2))
        ends = weights @ X / weights.sum(1, keepdims=True)
    assert_allclose(found.fixed_point, ends, atol=1e-3 * sigma)
    assert_allclose(found.retrieval_error, np.linalg.norm(ends - X, axis=1), atol=1e-3 * sigma)
    meet = np.linalg.norm(ends[:, None] - ends, axis=2) < 0.01 * sigma
    assert_array_equal(found.basin[:, None] == found.basin, meet)
    distance = np.linalg.norm(X[:, None] - X, axis=2) + np.diag(np.full(len(X), np.inf))
    near = found.retrieval_error < distance.min(1) / 2
    assert_array_equal(found.stored, (meet.sum(1) == 1) & near)


@pytest.mark.parametrize("dim", [1, 2, 7])
@pytest.mark.parametrize(("half", "apart"), [(1.01, True), (0.99, False)])
def test_two_patterns_have_fixed_points_of_their_own_if_half_their_distance_exceeds_sigma(
    dim: int, half: float, apart: bool
) -> None:
    sigma = 0.7
    X = np.zeros((2, dim))
    X[:, 0] = half * sigma, -half * sigma
    found = certify(X, sigma)
    assert len(set(found.basin.tolist())) == (2 if apart else 1)
    assert basins(X, sigma).n_basins == (2 if apart else 1)
    assert_array_equal(found.stored, apart)
    assert_array_equal(found.decided, "iterated")
    # At b on the axis an update goes to a tanh(a b / sigma^2); its fixed point is the oracle.
    a = half * sigma
    exact = brentq(lambda b: a * np.tanh(a * b / sigma**2) - b, 1e-4, a) if apart else 0.0
    assert_allclose(np.abs(found.fixed_point[:, 0]), exact, atol=1e-3 * sigma)
    assert_allclose(found.retrieval_error, a - exact, atol=1e-3 * sigma)


def test_what_is_proved_is_also_found_by_iterating() -> None:
    X = np.concatenate([sphere(150, 10), sphere(50, 10) * 0.4])
    everything = certify(X, 1.6)
    part, nothing = certify(X, 1.6, iterate="undecided"), certify(X, 1.6, iterate="none")
    proved = everything.decided == "proved"
    assert 0 < proved.sum() < len(X)
    assert_array_equal(everything.stored, part.stored)
    assert_array_equal(nothing.stored, proved)
    assert set(nothing.decided) == {"proved", "open"}
    assert np.isnan(part.retrieval_error[proved]).all()
    assert (part.basin[proved] == -1).all()
    assert (everything.retrieval_error[proved] <= everything.error_bound[proved] + 1e-5).all()
    assert np.bincount(everything.basin)[everything.basin[proved]].max() == 1


def test_kde_and_hopfield_certificates_agree_on_a_sphere_and_only_there() -> None:
    X = sphere(60, 9)
    kde, hopfield = certify(X, 1.0), certify(ist.ModernHopfield(X, 1.0))
    assert_allclose(kde.separation, hopfield.separation, rtol=1e-9)
    assert_allclose(kde.guaranteed_radius, hopfield.guaranteed_radius, rtol=1e-6)
    assert_array_equal(kde.stored, hopfield.stored)
    X[::2] *= 0.4
    kde, hopfield = certify(X, 0.5), certify(ist.ModernHopfield(X, 4.0))
    assert kde.stored[::2].sum() > hopfield.stored[::2].sum()


@pytest.mark.parametrize("sigma", [1e4, 1e10])
def test_a_huge_bandwidth_meets_no_condition_emptily(sigma):
    X = np.random.default_rng(0).uniform(-8, 8, (40, 2))
    found = certify(X, sigma)
    assert (found.ramsauer_radius == 0).all()
    assert not found.stored.any()


def test_unequal_weights_are_refused() -> None:
    # With these weights the first pattern flows to the second: an unweighted bound would be wrong.
    X = [[0.0], [4.0], [9.0]]
    with pytest.raises(UnsupportedOperationError, match="weight"):
        certify(ist.GaussianKDE(X, 1.0, log_weights=[-20.0, 0.0, 0.0]))
    equal = certify(ist.GaussianKDE(X, 1.0, log_weights=[2.0, 2.0, 2.0]))
    assert_array_equal(equal.error_bound, certify(ist.GaussianKDE(X, 1.0)).error_bound)


def test_error_bounds_cover_differences_whose_squares_underflow() -> None:
    found = certify([[0.0], [1e-170], [100.0]], 0.1, iterate="none")
    assert (found.error_bound[:2] > 0.5e-170).all()


def test_exponentials_that_overflow_certify_nothing() -> None:
    # Fifty patterns so near that exp(R d / sigma^2) overflows before phi_2 reaches sigma^2.
    sigma, near = 1e10, 1e-145
    X = np.concatenate([np.zeros((1, 50)), near * np.eye(50)])
    radius = certify(X, sigma, iterate="none").guaranteed_radius[0]
    assert radius > 0
    assert math.log(50) + 2 * math.log(near / sigma) + radius * near / sigma**2 < 0


@pytest.mark.parametrize("kind", [ist.GaussianKDE, ist.ModernHopfield, ist.SparseHopfield])
def test_a_bandwidth_beside_a_memory_is_refused(kind: type) -> None:
    with pytest.raises(InvalidInputError, match="sigma"):
        certify(kind([[0.0], [4.0]], 0.5), 1.0)
