"""Means over two random points on a sphere, against mpmath and Monte Carlo."""

import math

import mpmath
import numpy as np
import pytest

from isthmus.paper.counts import log_cap_fraction, log_kernel_mean, log_moments

SPHERES = [(2, 2.0), (3, 0.3), (4, 300.0), (10, 6.0), (51, 14.0), (1000, 63.0)]


def mpmath_moment(dim, radius, tilt, power):
    """Log of A_p(R), by integrating over the distance rather than over a transformed angle."""
    with mpmath.workdps(18):
        radius, tilt = mpmath.mpf(radius), mpmath.mpf(tilt)

        def log_integrand(angle):
            distance = 2 * radius * mpmath.sin(angle / 2)
            sine = (dim - 2) * mpmath.log(mpmath.sin(angle)) if dim > 2 else 0
            return power * mpmath.log(distance) - distance * (distance / 2 - tilt) + sine

        grid = [mpmath.pi * mpmath.mpf(2) ** (-k / 2) for k in range(1, 60)]
        grid += [mpmath.pi - angle for angle in grid if angle < mpmath.pi / 2]
        peak = max(grid, key=log_integrand)
        top = log_integrand(peak)
        widths = [mpmath.mpf(2) ** (-k) * peak for k in range(7)]
        breaks = {mpmath.mpf(0), mpmath.pi, peak}
        breaks |= {peak + sign * width for width in widths for sign in (-1, 1)}
        breaks = sorted(b for b in breaks if 0 <= b <= mpmath.pi)
        integral = mpmath.quad(lambda angle: mpmath.exp(log_integrand(angle) - top), breaks)
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


@pytest.mark.parametrize("radius", [300.0, 400.0, 1e6, 1e10])
def test_kernel_mean_keeps_its_digits_on_huge_spheres(radius):
    expected = -math.log(2 * radius**2)  # (1 - exp(-2 M^2)) / (2 M^2) in three dimensions
    assert log_kernel_mean(3, radius) == pytest.approx(expected, abs=1e-10)


@pytest.mark.parametrize("dim", [2, 3, 7, 200, 10_000])
@pytest.mark.parametrize("angle", [1e-6, 0.1, 0.7, 1.5, math.pi / 2, 1.7, 3.0])
def test_cap_fraction_matches_mpmath(dim, angle):
    with mpmath.workdps(60):
        square = mpmath.sin(mpmath.mpf(angle)) ** 2
        half = mpmath.mpf(1) / 2
        share = mpmath.betainc((dim - 1) * half, half, 0, square, regularized=True) / 2
        expected = float(mpmath.log(share if angle <= math.pi / 2 else 1 - share))
    assert log_cap_fraction(dim, angle) == pytest.approx(expected, rel=1e-11, abs=1e-13)
