"""The neighbour search against all pairs measured in float64, and the sums built on it."""

import numpy as np
import pytest
from numpy.testing import assert_allclose
from numpy.typing import NDArray

from isthmus.capacity.contraction import hopfield_terms, kde_terms, nearest_neighbors

Array = NDArray[np.float64]


def scattered(n: int, dim: int) -> Array:
    return np.random.default_rng(n + dim).standard_normal((n, dim))


def wide(n: int, dim: int) -> Array:
    """Lengths from 1e-4 to 1e4."""
    scales = 10.0 ** np.random.default_rng(1).uniform(-4, 4, (n, 1))
    return scattered(n, dim) * scales


def doubled(n: int, dim: int) -> Array:
    return np.repeat(scattered(-(-n // 3), dim), 3, axis=0)[:n]


def tight_pairs(n: int, dim: int) -> Array:
    """Pairs 1e-9 apart, spread over a thousand."""
    base = np.repeat(1e3 * scattered(-(-n // 2), dim), 2, axis=0)[:n]
    return base + 1e-9 * np.random.default_rng(2).standard_normal((n, dim))


KINDS = {
    "scattered": scattered,
    "far from the origin": lambda n, dim: scattered(n, dim) + 1e5,
    "wide scales": wide,
    "duplicates": doubled,
    "tight pairs": tight_pairs,
    "all equal": lambda n, dim: np.full((n, dim), 3.7),
}


def all_distances(X: Array) -> Array:
    """From differences, self left out. (N, N - 1), ascending."""
    found = np.stack([np.sqrt(((X - row) ** 2).sum(1)) for row in X])
    return np.sort(found[~np.eye(len(X), dtype=bool)].reshape(len(X), -1), axis=1)


SIZES = [(40, 1, 5), (300, 5, 17), (700, 6, 1), (700, 6, 60), (1500, 24, 40), (50, 3, 49)]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize(("n", "dim", "k"), SIZES)
def test_neighbours_are_those_of_brute_force(kind: str, n: int, dim: int, k: int) -> None:
    X = KINDS[kind](n, dim)
    exact = all_distances(X)
    found = nearest_neighbors(X, k)
    assert (found.distances >= exact[:, :k] * (1 - 1e-14)).all()
    # Where float32 cannot tell distances apart, another pattern as near may be listed.
    blur = 4 * (dim + 8) * 2.0**-23 * (np.abs(X - X.mean(0)).max() ** 2 * dim)
    assert (found.distances**2 <= exact[:, :k] ** 2 * (1 + 1e-12) + 2 * blur).all()
    # The first distance that is not listed is not below the bound on all of those.
    listed = np.c_[found.distances <= exact[:, :k] * (1 + 1e-12), np.zeros(n, dtype=bool)]
    unlisted = np.c_[exact, np.full(n, np.inf)][np.arange(n), listed.argmin(1)]
    assert (unlisted >= found.beyond * (1 - 1e-12)).all()


def kde_sums(X: Array, sigma: float, power: int, radius: float) -> Array:
    d = all_distances(X)
    return (d**power * np.exp(-(d**2 - 2 * radius * d) / (2 * sigma**2))).sum(1)


def hopfield_sums(X: Array, beta: float, power: int, radius: float) -> Array:
    sums = []
    for n, row in enumerate(X):
        apart = np.delete(X, n, axis=0) - row
        d = np.linalg.norm(apart, axis=1)
        sums.append((d**power * np.exp(beta * (apart @ row + radius * d))).sum())
    return np.array(sums)


@pytest.mark.parametrize("kind", ["scattered", "duplicates"])
@pytest.mark.parametrize("power", [1, 2])
@pytest.mark.parametrize("sigma", [0.3, 1.0, 4.0])
def test_truncated_kde_sums_are_never_below_the_full_ones(
    kind: str, power: int, sigma: float
) -> None:
    X = KINDS[kind](240, 4)
    for radius in (0.0, 0.05, 0.5, 2.0):
        exact = kde_sums(X, sigma, power, radius)
        at = np.full(len(X), radius)
        for k in (1, 3, 20, 100, 239):
            bound = kde_terms(nearest_neighbors(X, k), len(X), 4, sigma).phi(at, power)[0]
            assert (bound >= exact).all()
        assert_allclose(bound, exact, rtol=1e-7)


@pytest.mark.parametrize("length", [1.0, 1e3])
@pytest.mark.parametrize("power", [1, 2])
def test_truncated_hopfield_sums_are_never_below_the_full_ones(power: int, length: float) -> None:
    X, sigma = length * scattered(150, 5), 1.3 * length
    for share in (0.0, 0.1, 0.6):
        exact = hopfield_sums(X, sigma**-2, power, share * length)
        for k in (1, 10, 149):
            terms = hopfield_terms(X, sigma, k)
            bound = terms.phi(np.full(len(X), share * length), power)[0]
            assert (bound >= exact).all()
        assert_allclose(bound, exact, rtol=1e-6)
