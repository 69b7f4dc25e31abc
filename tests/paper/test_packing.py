"""Patterns that were spread apart, and how many are stored."""

import pickle

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose
from scipy.spatial.distance import cdist
from scipy.special import softmax

from isthmus.capacity import (
    certify,
    measured_capacity,
    spread_on_sphere,
)


def smallest_angle(count: int, dim: int) -> float:
    points = spread_on_sphere(count, dim)
    assert points.shape == (count, dim)
    assert_allclose(np.linalg.norm(points, axis=1), 1)
    products = points @ points.T - 3 * np.eye(count)
    return float(np.degrees(np.arccos(products.max())))


# Regular polygon, tetrahedron, octahedron, icosahedron; Sloane's table for the others.
@pytest.mark.parametrize(
    ("count", "dim", "best"),
    [(5, 2, 72.0), (4, 3, 109.47), (6, 3, 90.0), (12, 3, 63.43), (24, 3, 43.69), (8, 4, 90.0)],
)
def test_spread_points_are_nearly_as_far_apart_as_is_known_to_be_possible(
    count: int, dim: int, best: float
) -> None:
    assert best - 0.2 < smallest_angle(count, dim) < best + 0.01


@pytest.mark.parametrize("placement", ["random", "spread"])
def test_a_measured_capacity_has_the_set_that_was_found_stored(placement: str) -> None:
    found = measured_capacity(3, 0.5, placement, most=6)  # type: ignore[arg-type]
    again = pickle.loads(pickle.dumps(found))
    assert again == found == len(found.patterns)
    assert_allclose(again.patterns, found.patterns)
    assert_allclose(np.linalg.norm(found.patterns, axis=1), 8**0.5)
    assert placement == "random" or certify(found.patterns).fraction_stored >= 0.5


@pytest.mark.slow
def test_the_largest_spread_set_that_is_stored_although_a_smaller_one_is_not() -> None:
    found = measured_capacity(3, placement="spread", most=40)
    # The 32 points that the search finds, with or without symmetry, differ between processors.
    assert found in (24, 32)
    shares = []
    for patterns in (found.patterns, 8**0.5 * spread_on_sphere(26, 3)):
        # Mean shift by hand, from the patterns and from around them.
        count, generator = len(patterns), np.random.default_rng(0)
        away = generator.standard_normal((8, count, 3))
        away *= 0.3 / np.linalg.norm(away, axis=-1, keepdims=True)
        x = np.concatenate([patterns[None], patterns + away]).reshape(-1, 3)
        for _ in range(4000):
            x = softmax(-0.5 * cdist(x, patterns, "sqeuclidean"), 1) @ patterns
        ends = x.reshape(9, count, 3)
        half = 0.5 * np.sort(cdist(patterns, patterns), 1)[:, 1]
        home = np.linalg.norm(ends - ends[0], axis=-1).max(0) < 1e-4
        shares.append(np.mean(home & (np.linalg.norm(ends[0] - patterns, axis=1) < half)))
    assert shares[0] == 1
    assert shares[1] < 0.5


@pytest.mark.parametrize(("count", "stored"), [(13, True), (18, True), (19, False), (24, False)])
def test_a_polygon_is_stored_if_its_fixed_points_are_nearer_than_half_its_side(
    count: int, stored: bool
) -> None:
    # On the ray of a pattern, with sigma = 1; eigenvalues differ from 1 by as little as 1e-8.
    with mpmath.workdps(40):
        angles = [2 * mpmath.pi * j / count for j in range(count)]
        terms = [(mpmath.cos(angle), mpmath.sin(angle)) for angle in angles]

        def moment(r: mpmath.mpf, power: int, axis: int) -> mpmath.mpf:
            weights = [mpmath.exp(2 * r * cosine) for cosine, _ in terms]
            values = [w * (2 * pair[axis]) ** power for w, pair in zip(weights, terms, strict=True)]
            return mpmath.fsum(values) / mpmath.fsum(weights)

        r = mpmath.findroot(lambda r: moment(r, 1, 0) - r, 1.66)
        across, along = moment(r, 2, 1), moment(r, 2, 0) - r**2
        assert 0 < along < 1
        assert across < 1  # stable for every number of patterns, by Proposition 15
        assert (2 - r < 2 * mpmath.sin(mpmath.pi / count)) == stored
