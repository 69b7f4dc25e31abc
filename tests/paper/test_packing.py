"""Patterns that were spread apart, and how many are stored."""

import mpmath
import numpy as np
import pytest
from numpy.testing import assert_allclose

from isthmus.capacity import certify, dense_radius, measured_capacity, spread_on_sphere


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


def test_what_is_returned_is_stored_and_a_tenth_more_is_not() -> None:
    count = measured_capacity(3, placement="spread")
    stored = [
        certify(2 * np.sqrt(2) * spread_on_sphere(some, 3)).fraction_stored
        for some in (count, int(1.1 * count) + 1)
    ]
    assert stored[0] >= 0.95 > stored[1]
    assert measured_capacity(3, placement="spread", most=10) == 10


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
        assert float(r) == pytest.approx(dense_radius(2), abs=1e-4)
