"""Bessel functions and the von Mises-Fisher distribution against mpmath, scipy and closed forms."""

import math

import mpmath
import numpy as np
import pytest
import torch
from scipy import stats

from isthmus.special import (
    log_vmf_normalizer,
    sample_vmf,
    vmf_mean_length,
)

DOUBLE = torch.float64
ARGUMENTS = [1e-8, 1e-3, 0.7, 5.0, 20.0, 22.0, 29.0, 31.0, 300.0, 1e4, 1e6]
# Orders and arguments on both sides of the change of method, at 30.
DIMENSIONS = [1, 2, 3, 4, 10, 43, 59, 61, 62, 64, 1000, 10_000]


@pytest.fixture(autouse=True)
def _forty_digits():
    with mpmath.workdps(40):
        yield


def tensor(*values: float) -> torch.Tensor:
    return torch.tensor(values, dtype=DOUBLE)


def assert_close(found, expected, tolerance: float = 1e-12) -> None:
    expected = np.array([float(value) for value in expected])
    error = np.abs(np.asarray(found) - expected)
    assert (error <= tolerance * np.maximum(1, np.abs(expected))).all(), error.max()


def exact_mean_length(dim: int, kappa: float):
    order, kappa = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
    return mpmath.besseli(order + 1, kappa) / mpmath.besseli(order, kappa)


@pytest.mark.parametrize("dim", DIMENSIONS)
def test_normalizer_and_its_derivatives_match_mpmath(dim):
    kappa = tensor(*ARGUMENTS).requires_grad_()
    value = log_vmf_normalizer(dim, kappa)
    (slope,) = torch.autograd.grad(value.sum(), kappa, create_graph=True)
    (bend,) = torch.autograd.grad(slope.sum(), kappa)

    order = mpmath.mpf(dim) / 2 - 1
    points = [mpmath.mpf(x) for x in ARGUMENTS]
    expected = [
        order * mpmath.log(x)
        - (order + 1) * mpmath.log(2 * mpmath.pi)
        - mpmath.log(mpmath.besseli(order, x))
        for x in points
    ]
    lengths = [exact_mean_length(dim, x) for x in points]
    bends = [a * a + (dim - 1) / x * a - 1 for a, x in zip(lengths, points, strict=True)]
    assert_close(value.detach(), expected)
    np.testing.assert_allclose(-slope.detach(), [float(a) for a in lengths], rtol=4e-15)
    assert_close(bend, bends, 1e-14)
    if dim > 1:
        np.testing.assert_allclose(bend, [float(b) for b in bends], rtol=1e-11)


@pytest.mark.parametrize("dim", [2, 3, 10, 1000])
def test_normalizer_at_zero_is_minus_the_log_of_the_area(dim):
    kappa = torch.zeros((), dtype=DOUBLE, requires_grad=True)
    value = log_vmf_normalizer(dim, kappa)
    log_area = math.log(2) + dim / 2 * math.log(math.pi) - math.lgamma(dim / 2)
    assert value.item() == pytest.approx(-log_area, rel=1e-14)
    (slope,) = torch.autograd.grad(value, kappa, create_graph=True)
    (bend,) = torch.autograd.grad(slope, kappa)
    assert slope.item() == 0
    assert bend.item() == pytest.approx(-1 / dim, rel=1e-13)


def draws(dim: int, kappa, count: int, seed: int = 0):
    """A random direction, and `count` draws about it."""
    generator = torch.Generator().manual_seed(seed)
    pole = torch.randn(dim, generator=generator, dtype=DOUBLE)
    pole = pole / pole.norm()
    return pole, sample_vmf(pole.expand(count, dim), kappa, generator)


@pytest.mark.parametrize("kappa", [0.0, 1e-3, 2.0, 80.0, 1e6])
def test_cosines_on_the_sphere_follow_their_closed_form(kappa):
    pole, points = draws(3, kappa, 20_000)
    drop = 0.5 * (points - pole).square().sum(1).numpy()

    def tail(value):
        """P(1 - mu.x <= value)."""
        if kappa == 0:
            return value / 2
        return np.expm1(-kappa * value) / np.expm1(-2 * kappa)

    assert stats.kstest(drop, tail).pvalue > 1e-3


@pytest.mark.parametrize("kappa", [0.0, 0.7, 30.0])
def test_angles_on_the_circle_are_von_mises(kappa):
    pole, points = draws(2, kappa, 20_000)
    across = torch.stack([-pole[1], pole[0]])
    angle = torch.atan2(points @ across, points @ pole).numpy()
    reference = stats.vonmises(kappa) if kappa else stats.uniform(-np.pi, 2 * np.pi)
    assert stats.kstest(angle, reference.cdf).pvalue > 1e-3


@pytest.mark.parametrize(
    ("dim", "kappa", "count"),
    [(2, 1e6, 5000), (4, 0.0, 5000), (10, 9.0, 20_000), (100, 1e6, 5000), (10_000, 3e3, 300)],
)
def test_draws_are_unit_vectors_with_the_exact_moments(dim, kappa, count):
    pole, points = draws(dim, kappa, count, seed=3)
    torch.testing.assert_close(points.norm(dim=1), torch.ones(count, dtype=DOUBLE))
    leaf = tensor(kappa).requires_grad_()
    length = vmf_mean_length(dim, leaf)
    (variance,) = torch.autograd.grad(length.sum(), leaf)
    cosine = points @ pole
    error = 4.5 * (variance.item() / count) ** 0.5
    assert cosine.mean().item() == pytest.approx(length.item(), abs=error)
    assert cosine.var().item() == pytest.approx(variance.item(), rel=0.5 if count < 1000 else 0.1)
    across = points - cosine[:, None] * pole
    expected = (1 - variance.item() - length.item() ** 2) / count
    assert across.mean(0).square().sum().item() < 12 * expected


def test_sampling_repeats_with_its_generator_and_spares_the_global_stream():
    state = torch.get_rng_state()
    assert (draws(5, 2.0, 10)[1] == draws(5, 2.0, 10)[1]).all()
    assert (draws(5, 2.0, 10)[1] != draws(5, 2.0, 10, seed=1)[1]).any()
    assert (torch.get_rng_state() == state).all()
    assert sample_vmf(torch.zeros(0, 3), 1.0, torch.Generator()).shape == (0, 3)
