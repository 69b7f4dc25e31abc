"""Modified Bessel functions against mpmath and scipy."""

import math

import mpmath
import numpy as np
import pytest
import scipy.special

from isthmus.special import DEBYE_RADIUS, log_bessel_i

ARGUMENTS = [1e-8, 1e-3, 0.7, 5.0, 29.0, 31.0, 300.0, 1e4, 1e6]


@pytest.mark.parametrize("order", [-0.5, 0.0, 0.5, 3.0, 28.5, 30.0, 77.25, 4999.0, 5000.0])
def test_log_bessel_matches_mpmath(order):
    with mpmath.workdps(40):
        expected = [mpmath.log(mpmath.besseli(order, mpmath.mpf(x))) for x in ARGUMENTS]
    expected = np.array(expected, dtype=np.float64)
    np.testing.assert_allclose(log_bessel_i(order, ARGUMENTS), expected, rtol=1e-12, atol=1e-12)


def test_log_bessel_matches_scipy_across_the_change_of_method():
    order, x = np.meshgrid(np.arange(-0.5, 45, 1.25), np.linspace(0.3, 60, 50), indexing="ij")
    by_series = order**2 + x**2 < DEBYE_RADIUS**2
    assert 0.1 < by_series.mean() < 0.9
    for row_order, row in zip(order[:, 0], x, strict=True):
        expected = np.log(scipy.special.ive(row_order, row)) + row
        np.testing.assert_allclose(log_bessel_i(row_order, row), expected, rtol=2e-13, atol=2e-13)


def test_log_bessel_at_zero_and_in_any_shape():
    assert log_bessel_i(0.0, 0.0) == 0
    assert log_bessel_i(2.5, 0.0) == -math.inf
    assert log_bessel_i(400.0, 0.0) == -math.inf
    assert log_bessel_i(-0.5, 0.0) == math.inf
    found = log_bessel_i(1.0, np.ones((2, 3), dtype=np.float32))
    assert found.shape == (2, 3)
    assert found.dtype == np.float64
