"""Densities, normalisers and draws of the mixture, against mpmath, scipy and quadrature."""

import math

import mpmath
import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from isthmus.attention import VMFMixture, vmf_view

DOUBLE = torch.float64
DIMENSIONS = [2, 3, 10, 64, 1000, 10_000]
CONCENTRATIONS = [1e-8, 1e-3, 0.7, 30.0, 1e4, 1e6]


@pytest.fixture(autouse=True)
def _forty_digits():
    with mpmath.workdps(40):
        yield


def on_sphere(draw, *shape: int, centred: bool = False, seed: int = 1) -> torch.Tensor:
    points = draw(*shape, seed=seed)
    points = points - points.mean(-1, keepdim=True) if centred else points
    return nn.functional.normalize(points, dim=-1)


def mixture(directions, kappa, log_weight, queries=None, centred=False, mask=None) -> VMFMixture:
    """One head of one sequence with these components. (T, D), (T,), (T,)."""
    queries = directions if queries is None else queries
    return VMFMixture(
        concentration=torch.as_tensor(kappa, dtype=DOUBLE)[None, None],
        coordinates=directions[None, None],
        log_weight=torch.as_tensor(log_weight, dtype=DOUBLE)[None, None],
        query_direction=queries[None],
        query_radius=queries.new_ones(1, len(queries)),
        centred=centred,
        mask=mask,
    )


def exact_log_constant(dim: int, kappa: float):
    order, kappa = mpmath.mpf(dim) / 2 - 1, mpmath.mpf(kappa)
    log_bessel = mpmath.log(mpmath.besseli(order, kappa))
    return order * mpmath.log(kappa) - (order + 1) * mpmath.log(2 * mpmath.pi) - log_bessel


def log_sum(values):
    largest = max(values)
    return largest + mpmath.log(sum(mpmath.exp(value - largest) for value in values))


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dim", DIMENSIONS)
def test_density_and_normalizer_match_mpmath(draw, dim, centred):
    """From nearly uniform to nearly a point, in 2 to 10,000 dimensions."""
    ambient = dim + centred
    directions = on_sphere(draw, len(CONCENTRATIONS), ambient, centred=centred)
    log_weight = [0.3, -2.0, 5.0, 0.0, 1.0, -4.0]
    constants = [exact_log_constant(dim, kappa) for kappa in CONCENTRATIONS]

    # Each alone, at a point near its own direction, and all of them together.
    near = directions + 1e-3 * on_sphere(draw, *directions.shape, centred=centred, seed=2)
    near = nn.functional.normalize(near, dim=-1)
    cosine = near @ directions.mT
    exponents = [
        [
            mpmath.mpf(kappa) * mpmath.mpf(float(c))
            for kappa, c in zip(CONCENTRATIONS, row, strict=True)
        ]
        for row in cosine
    ]
    for i, kappa in enumerate(CONCENTRATIONS):
        alone = mixture(directions[i : i + 1], [kappa], [7.0], near[i : i + 1], centred)
        # Rounding of the cosine alone moves the exponent by kappa times 1e-16.
        tolerance = 1e-12 * max(1, abs(float(constants[i]))) + 1e-15 * kappa
        expected = float(constants[i] + exponents[i][i])
        assert alone.log_prob().item() == pytest.approx(expected, abs=tolerance)
        log_z = alone.log_normalizer().item()
        assert log_z == pytest.approx(float(7 - constants[i]), abs=tolerance)
    view = mixture(directions, CONCENTRATIONS, log_weight, near, centred)
    assert view.sphere_dim == dim
    masses = [mpmath.mpf(w) - c for w, c in zip(log_weight, constants, strict=True)]
    log_z = log_sum(masses)
    scale = max(1, abs(float(log_z)))
    assert view.log_normalizer().item() == pytest.approx(float(log_z), abs=1e-12 * scale)
    mixing = np.array([float(mass - log_z) for mass in masses])
    np.testing.assert_allclose(view.log_mixing[0, 0], mixing, rtol=1e-12, atol=1e-12 * scale)
    expected = [
        float(log_sum([w + e for w, e in zip(log_weight, row, strict=True)]) - log_z)
        for row in exponents
    ]
    np.testing.assert_allclose(view.log_prob()[0, 0], expected, rtol=1e-12, atol=1e-9)


def test_the_density_of_a_layers_head_integrates_to_one(randomize, draw):
    """LayerNorm of three coordinates leaves a circle, RMSNorm of two another."""
    angle = 2 * math.pi * torch.arange(2000, dtype=DOUBLE) / 2000
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    plane = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=DOUBLE)
    plane = nn.functional.normalize(plane, dim=1)
    for norm, points in ((nn.LayerNorm(3), circle @ plane), (nn.RMSNorm(2), circle)):
        attention = nn.MultiheadAttention(points.shape[1], 1, batch_first=True)
        attention, norm = randomize(attention, 3, scale=0.8), randomize(norm)
        view = vmf_view(norm, attention, draw(1, 5, points.shape[1]))
        total = view.log_prob(points).exp().mean(-1) * 2 * math.pi
        assert total.item() == pytest.approx(1, abs=1e-10)


@pytest.mark.parametrize("kappa", CONCENTRATIONS)
@pytest.mark.parametrize("dim", [2, 3, 64, 10_000])
@pytest.mark.parametrize("centred", [False, True])
def test_draws_have_the_exact_mean_length(draw, dim, kappa, centred):
    count = 300 if dim < 1000 else 60
    direction = on_sphere(draw, 1, dim + centred, centred=centred)
    drawn = mixture(direction, [kappa], [0.0], centred=centred).sample(count, seed=3)[:, 0, 0]
    assert drawn.shape == (count, dim + centred)
    assert_close(torch.linalg.vector_norm(drawn, dim=1), torch.ones(count, dtype=DOUBLE))
    if centred:
        assert drawn.sum(1).abs().max() < 1e-10
    order = mpmath.mpf(dim) / 2 - 1
    length = mpmath.besseli(order + 1, kappa) / mpmath.besseli(order, kappa)
    # The variance of the cosine is 1 - A^2 - (p - 1) A / kappa.
    variance = float(1 - length**2 - (dim - 1) * length / mpmath.mpf(kappa))
    error = (drawn @ direction[0]).mean().item() - float(length)
    assert abs(error) < 5 * math.sqrt(variance / count) + 1e-13


def test_each_position_draws_only_from_what_it_sees(draw):
    directions = torch.eye(4, dtype=DOUBLE)
    hidden = torch.full((4, 4), -torch.inf, dtype=DOUBLE).triu(1)
    view = mixture(directions, [1e5] * 4, [0.0] * 4, mask=hidden[None, None])
    assert not view.is_shared
    drawn = view.sample(200)
    assert drawn.shape == (200, 1, 1, 4, 4)
    nearest = drawn.argmax(-1)[:, 0, 0]
    assert [set(nearest[:, place].tolist()) for place in range(4)] == [
        set(range(place + 1)) for place in range(4)
    ]
    assert (view.sample(0).shape, view.sample(2, seed=1).equal(view.sample(2, seed=1))) == (
        (0, 1, 1, 4, 4),
        True,
    )
