"""The von Mises-Fisher mixture against quadrature, scipy and brute force on the sphere."""

import math

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import stats

import isthmus as ist
from isthmus.errors import OutsideSupportError
from isthmus.memories.vmf import VonMisesFisherMixture

DOUBLE = torch.float64


def unit(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.nn.functional.normalize(draw(*shape, seed=seed), dim=-1)


def mixture(count: int, dim: int, beta: float = 4.0):
    return VonMisesFisherMixture(unit(count, dim), beta, draw(count, seed=7))


def circle(count: int) -> torch.Tensor:
    """Evenly spaced unit vectors in the plane. (count, 2)."""
    angle = 2 * math.pi * torch.arange(count, dtype=DOUBLE) / count
    return torch.stack([angle.cos(), angle.sin()], 1)


def sphere(count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Points on the sphere, and the area that each stands for. (2 count^2, 3), (2 count^2,)."""
    height, share = np.polynomial.legendre.leggauss(count)
    height, share = torch.from_numpy(height), torch.from_numpy(share)
    around = circle(2 * count)
    level = (1 - height**2).sqrt()[:, None, None] * around
    points = torch.cat([level, height[:, None, None].expand(count, 2 * count, 1)], 2)
    area = (share * math.pi / count)[:, None].expand(count, 2 * count)
    return points.reshape(-1, 3), area.reshape(-1)


@pytest.mark.parametrize("dim", [2, 3, 5])
def test_density_matches_scipy(dim):
    energy = mixture(4, dim, beta=6.0)
    points = unit(20, dim, seed=1)
    parts = [stats.vonmises_fisher(mu, 6.0).logpdf(points.numpy()) for mu in energy.directions]
    weights = torch.softmax(energy.log_weights, 0).log().numpy()
    expected = np.logaddexp.reduce(np.stack(parts, 1) + weights, axis=1)
    np.testing.assert_allclose(energy.log_prob(points), expected, rtol=1e-9)
    posterior = np.exp(np.stack(parts, 1) + weights - expected[:, None])
    np.testing.assert_allclose(energy.responsibilities(points), posterior, rtol=1e-8)


def test_responsibilities_of_some_coordinates_leave_the_others_out():
    energy, x = mixture(4, 3, beta=3.0), unit(5, 3, seed=1)
    radius = (1 - x[:, :1].square()).sqrt()
    ring = torch.cat([x[:, None, :1].expand(5, 200, 1), radius[..., None] * circle(200)], 2)
    heights = (3.0 * ring @ energy.directions.mT).logsumexp(1) + energy.log_weights
    for rows in (x, torch.cat([x[:, :1], torch.full((5, 2), torch.nan, dtype=DOUBLE)], 1)):
        found = energy.responsibilities(rows, torch.tensor([True, False, False]))
        torch.testing.assert_close(found, heights.softmax(1))
    nothing = energy.responsibilities(x, torch.zeros(3, dtype=torch.bool))
    torch.testing.assert_close(nothing, energy.log_weights.softmax(0).expand(5, 4))
    everything = energy.responsibilities(x, torch.ones(3, dtype=torch.bool))
    torch.testing.assert_close(everything, energy.responsibilities(x))


@pytest.mark.parametrize("beta", [0.1, 3.0, 1e3])
def test_step_descends_on_the_sphere_and_retrieve_rests_at_a_minimum(beta):
    energy, held = mixture(7, 3, beta), torch.tensor([False, True, False])
    for mask in (held, None):
        state = unit(50, 3, seed=3)
        for _ in range(10):
            new = energy.step(state, mask)
            assert mask is None or (new[:, held] == state[:, held]).all()
            torch.testing.assert_close(new.norm(dim=1), torch.ones(50, dtype=DOUBLE))
            assert (energy.energy(new) <= energy.energy(state) + 1e-12).all()
            state = new
    found = ist.retrieve(energy, state, tol=1e-9, max_steps=100_000)
    assert found.converged.all()
    force = energy.score(found.state)
    across = force - (force * found.state).sum(1, keepdim=True) * found.state
    assert across.norm(dim=1).max() < 1e-6


def test_step_beyond_the_sphere_leaves_nothing_for_the_free_coordinates():
    energy = mixture(3, 3)
    x = torch.tensor([[2.0, 0.5, -0.5]], dtype=DOUBLE, requires_grad=True)
    new = energy.step(x, torch.tensor([True, False, False]))
    assert new.tolist() == [[2.0, 0.0, 0.0]]
    (gradient,) = torch.autograd.grad(new.sum(), x)
    assert torch.isfinite(gradient).all()


def test_conditional_mean_matches_quadrature():
    energy = mixture(4, 3, beta=5.0)
    nan = math.nan
    x = torch.tensor([[0.3, nan, nan], [nan, nan, -0.8], [0.3, nan, 0.5]], dtype=DOUBLE)
    found = energy.conditional_mean(x, ~torch.isnan(x))
    for row, (given, mean) in enumerate(zip(x, found, strict=True)):
        seen = ~torch.isnan(given)
        left = (1 - given[seen].square().sum()).sqrt()
        # With one coordinate free, the circle is the pair of points -1 and 1.
        around = circle(400) if row < 2 else torch.tensor([[1.0], [-1.0]], dtype=DOUBLE)
        points = torch.empty(len(around), 3, dtype=DOUBLE)
        points[:, seen], points[:, ~seen] = given[seen], left * around
        weight = torch.softmax(energy.log_prob(points), 0)
        torch.testing.assert_close(mean, weight @ points)


def test_conditional_mean_refuses_coordinates_that_no_unit_vector_has():
    x, seen = torch.tensor([[1.5, math.nan]]), torch.tensor([[True, False]])
    with pytest.raises(OutsideSupportError, match="1 of 1 rows"):
        mixture(3, 2).conditional_mean(x, seen)


def test_samples_have_the_moments_of_the_density():
    energy = mixture(4, 3, beta=3.0)
    points, area = sphere(40)
    mass = energy.log_prob(points).exp() * area
    drawn = energy.sample(40_000, seed=1)
    torch.testing.assert_close(drawn.norm(dim=1), torch.ones(40_000, dtype=DOUBLE))
    torch.testing.assert_close(drawn.mean(0), mass @ points, atol=0.015, rtol=0)
    second = (points * mass[:, None]).T @ points
    torch.testing.assert_close(drawn.T @ drawn / len(drawn), second, atol=0.015, rtol=0)
    assert (energy.sample(5, seed=2) == energy.sample(5, seed=2)).all()


def test_rows_are_normalised_on_entry_and_while_they_are_learned():
    rows = torch.tensor([[3e-30, 4e-30], [0.0, -2e30]])
    torch.testing.assert_close(
        VonMisesFisherMixture(rows).memories, torch.tensor([[0.6, 0.8], [0.0, -1.0]])
    )
    learned = torch.nn.Parameter(unit(3, 4) * 2)
    energy = VonMisesFisherMixture(learned, beta=5.0)
    assert energy.memories is learned
    x = unit(7, 4, seed=1)
    torch.testing.assert_close(
        energy.log_prob(x), VonMisesFisherMixture(unit(3, 4), 5.0).log_prob(x)
    )
    energy.log_prob(x).sum().backward()
    assert (learned.grad * learned).sum(1).abs().max() < 1e-12
