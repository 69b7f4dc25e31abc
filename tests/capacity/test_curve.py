"""Choosing a bandwidth."""

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from isthmus.capacity import capacity_curve, certify, choose_sigma


@pytest.mark.parametrize("fraction", [0.5, 0.9])
@pytest.mark.parametrize(("n", "dim"), [(20, 1), (20, 2), (20, 8), (200, 3), (200, 10)])
def test_the_chosen_bandwidth_is_the_largest_that_stores_enough(
    n: int, dim: int, fraction: float
) -> None:
    X = np.random.default_rng(dim).normal(size=(n, dim))
    choice = choose_sigma(X, fraction)
    assert choice.stored >= fraction
    assert certify(X, choice.sigma).fraction_stored == choice.stored
    assert certify(X, 1.03 * choice.sigma).fraction_stored < fraction
    assert float(choice) == choice.sigma
    assert choice.sigma in choice.curve.sigmas


def test_a_curve_falls_from_all_to_none() -> None:
    X = np.random.default_rng(0).normal(size=(20, 6))
    curve = capacity_curve(X, [3.0, 0.1, 0.5, 1.0, 0.1])
    assert_array_equal(curve.sigmas, [0.1, 0.5, 1.0, 3.0])
    assert curve.stored[0] == 1
    assert curve.stored[-1] == 0
    assert (curve.proved <= curve.stored).all()
    assert (np.diff(curve.stored) <= 0).all()
    assert len(str(curve).splitlines()) == 5
