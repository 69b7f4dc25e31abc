"""Annealing against the closed flow of a Gaussian, exact draws, and attractors known by hand."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import draw
from scipy.stats import kstest, multivariate_normal, norm

import isthmus as ist
from isthmus.errors import IsthmusError

MEMORIES = torch.tensor([[-3.0], [0.5], [3.0]], dtype=torch.float64)


def covariance_of(seed: int) -> torch.Tensor:
    root = draw(2, 2, seed=seed)
    return root @ root.T + 0.2 * torch.eye(2, dtype=torch.float64)


def test_the_error_of_the_flow_is_of_second_order() -> None:
    energy = ist.GaussianKDE(torch.zeros(1, 1, dtype=torch.float64), sigma=0.7)
    start = torch.tensor([[4.0]], dtype=torch.float64)
    exact = 4.0 * np.sqrt((0.7**2 + 0.1**2) / (0.7**2 + 8.0**2))
    errors = [
        abs(float(ist.anneal(energy, ist.noise_schedule(8.0, 0.1, k), 1, init=start).draws) - exact)
        for k in (41, 81, 161)
    ]
    orders = np.log2(np.array(errors[:-1]) / errors[1:])
    np.testing.assert_allclose(orders, 2.0, atol=0.25)


@pytest.mark.parametrize("method", ["flow", "langevin"])
def test_draws_of_a_density_estimate_are_distributed_as_exact_ones(method: Any) -> None:
    schedule = ist.noise_schedule(12.0, 0.5, 40)
    options = {"method": method, "steps": 20, "step_size": 0.05, "seed": 1}
    found = ist.anneal(lambda sigma: ist.GaussianKDE(MEMORIES, sigma), schedule, 2000, **options)

    def distribution(x: Any) -> Any:
        return norm.cdf(np.asarray(x)[..., None], MEMORIES[:, 0].numpy(), 0.5).mean(-1)

    assert kstest(found.draws[:, 0].numpy(), distribution).pvalue > 0.01
    assert found.sigma == 0.5
    assert isinstance(found.energy, ist.GaussianKDE)


def test_a_mixture_keeps_its_weights() -> None:
    weights = torch.tensor([0.7, 0.2, 0.1]).log()
    mixture = ist.Mixture(MEMORIES, beta=20.0, log_weights=weights)
    found = ist.anneal(mixture, ist.noise_schedule(10.0, 0.05), 3000, seed=2)
    shares = torch.stack([((found.draws - m).abs() < 1).double().mean() for m in MEMORIES])
    error = (weights.exp() * (1 - weights.exp()) / 3000).sqrt()
    assert bool(((shares - weights.exp()).abs() < 4 * error).all())


WIDENED = {
    "kde": lambda m: ist.GaussianKDE(m, sigma=0.4, log_weights=[0.1, -0.5, 0.3]),
    "kde-columns": lambda m: ist.GaussianKDE(m, sigma=[0.4, 0.9]),
    "kde-full": lambda m: ist.GaussianKDE(m, sigma=0.6, covariance=covariance_of(0)),
    "kde-factors": lambda m: ist.GaussianKDE(m, sigma=0.6, factors=[1.0, 2.0, 0.5]),
    "kde-columns-factors": lambda m: ist.GaussianKDE(m, [0.4, 0.9], factors=[1.0, 2.0, 0.5]),
    "kde-full-factors": lambda m: ist.GaussianKDE(
        m, 0.6, covariance=covariance_of(1), factors=[1.0, 2.0, 0.5]
    ),
    "mixture": lambda m: ist.Mixture(m, beta=1.7, log_weights=[0.0, 0.5, -1.0]),
    "mixture-full": lambda m: ist.Mixture(
        m, covariance=torch.stack([covariance_of(seed) for seed in range(3)])
    ),
    "mixture-tied": lambda m: ist.Mixture(m, beta=2.0, covariance=covariance_of(2)),
    "mixture-diag": lambda m: ist.Mixture(m, covariance=[[0.3, 1.0], [0.2, 0.2], [2.0, 1.0]]),
    "mixture-spherical": lambda m: ist.Mixture(m, covariance=[0.3, 1.0, 0.2]),
    "modern-hopfield": lambda m: ist.ModernHopfield(m, beta=1.3),
}


@pytest.mark.parametrize("name", WIDENED)
def test_widening_convolves_with_a_gaussian(name: str) -> None:
    """Against quadrature: the integral of p(x - e) N(e; 0, s^2 I) over a grid of e."""
    memories = torch.tensor([[-1.0, 0.0], [1.0, 0.5], [0.0, 1.5]], dtype=torch.float64)
    energy = WIDENED[name](memories)
    axis = torch.linspace(-5, 5, 201, dtype=torch.float64)
    nodes = torch.cartesian_prod(axis, axis)
    kernel = torch.from_numpy(multivariate_normal(np.zeros(2), 0.64).pdf(nodes.numpy()))
    area = float(axis[1] - axis[0]) ** 2
    points = torch.tensor([[0.3, -0.2], [1.5, 2.0]], dtype=torch.float64)
    expected = [(energy.log_prob(x - nodes).exp() * kernel).sum() * area for x in points]
    found = ist.widen(energy, 0.8).log_prob(points).exp()
    torch.testing.assert_close(found, torch.stack(expected), rtol=1e-6, atol=0)


def test_verdicts_follow_the_number_of_memories_at_the_attractor() -> None:
    cluster = 20 + 0.1 * torch.randn(50, 2, generator=torch.Generator().manual_seed(0))
    memories = torch.cat([torch.zeros(1, 2), torch.tensor([[9.6, 10.0], [10.4, 10.0]]), cluster])
    energy = ist.GaussianKDE(memories, sigma=0.8)
    draws = torch.tensor([[0.5, 0.5], [10.2, 10.3], [20.2, 19.9]])
    found = ist.judge_draws(energy, draws)
    assert found.memorised.tolist() == [True, False, False]
    assert found.spurious.tolist() == [False, True, False]
    assert found.new.tolist() == [False, False, True]
    torch.testing.assert_close(found.participation[:2], torch.tensor([1.0, 2.0]), atol=0.01, rtol=0)
    assert 45 < found.participation[2] <= 50
    assert ist.judge_draws(energy, draws, few=60.0).new.sum() == 0
    assert sum(found.shares.values()) == pytest.approx(1)


def test_an_energy_that_is_no_memory() -> None:
    class Noised(ist.Energy):
        def __init__(self, sigma: float) -> None:
            super().__init__()
            self.register_buffer("variance", torch.tensor(1 + sigma**2, dtype=torch.float64))

        @property
        def dim(self) -> int:
            return 2

        def energy(self, x: Any) -> torch.Tensor:
            return self.as_input(x).square().sum(-1) / (2 * self.variance)

    found = ist.anneal(Noised, ist.noise_schedule(30.0, 0.1), 2000)
    assert kstest(found.draws[:, 0].numpy(), norm(0, np.sqrt(1.01)).cdf).pvalue > 0.01
    with pytest.raises(IsthmusError, match="memories"):
        found.judge()
    assert found.judge(found.draws[:20]).participation.shape == (2000,)
