"""ClAM's energy: a mixture of round Gaussians of covariance I / (2 beta)."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp, softmax
from torch import Tensor

import isthmus as ist

DOUBLE = torch.float64


def draw(count: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=DOUBLE)


def scipy_log_density(x: Tensor, means: Tensor, variance: float, weights: np.ndarray) -> np.ndarray:
    covariance = variance * np.eye(means.shape[1])
    parts = [stats.multivariate_normal(m, covariance).logpdf(x.numpy()) for m in means.numpy()]
    return logsumexp(np.array(parts), axis=0, b=weights[:, None])


LOG_WEIGHTS = [None, np.log([0.1, 0.2, 0.3, 0.4]), np.array([5.0, -np.inf, 3.0, 6.0])]


@pytest.mark.parametrize("log_weights", LOG_WEIGHTS, ids=["equal", "normalized", "any"])
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
@pytest.mark.parametrize("dim", [1, 2, 5])
def test_the_density_is_a_mixture_with_covariance_one_over_two_beta(dim, beta, log_weights):
    # Erratum E6.
    means, x = draw(4, dim), draw(7, dim, seed=1)
    mixture = ist.Mixture(means, beta, log_weights)
    weights = softmax(np.zeros(4) if log_weights is None else log_weights)
    expected = scipy_log_density(x, means, 1 / (2 * beta), weights)
    np.testing.assert_allclose(mixture.log_prob(x), expected, rtol=1e-9)
    assert float(mixture.sigma) == pytest.approx((2 * beta) ** -0.5)


def test_the_inverse_temperature_of_clams_code_is_twice_ours():
    means, x, beta_code = draw(4, 2), draw(7, 2, seed=1), 3.0
    squares = np.square(x.numpy()[:, None] - means.numpy()).sum(-1)
    expected = softmax(-0.5 * beta_code * squares, 1)
    found = ist.Mixture(means, beta=beta_code / 2).responsibilities(x)
    np.testing.assert_allclose(found, expected, rtol=1e-10)


@pytest.mark.parametrize("log_weights", LOG_WEIGHTS, ids=["equal", "normalized", "any"])
def test_energy_as_defined(log_weights):
    means, x, beta = draw(4, 3), draw(7, 3, seed=1), 0.7
    squares = np.square(x.numpy()[:, None] - means.numpy()).sum(-1)
    logits = -beta * squares + (0 if log_weights is None else log_weights)
    mixture = ist.Mixture(means, beta, log_weights)
    np.testing.assert_allclose(mixture.energy(x), -logsumexp(logits, 1) / beta, rtol=1e-10)
    np.testing.assert_allclose(mixture.responsibilities(x), softmax(logits, 1), rtol=1e-9)
    np.testing.assert_allclose(mixture.step(x), softmax(logits, 1) @ means.numpy(), rtol=1e-9)


def test_the_scale_of_the_weights_moves_the_energy_and_not_the_density():
    means, x, weights = draw(4, 2), draw(7, 2, seed=1), draw(4, 1)[:, 0]
    mixture, scaled = ist.Mixture(means, 2.0, weights), ist.Mixture(means, 2.0, weights + 3)
    torch.testing.assert_close(scaled.log_prob(x), mixture.log_prob(x))
    torch.testing.assert_close(scaled.energy(x), mixture.energy(x) - 1.5)
    torch.testing.assert_close(scaled.log_mixing_weights.exp().sum(), torch.tensor(1.0).double())


def test_a_component_left_out_is_not_there():
    means, x = draw(4, 2), draw(7, 2, seed=1)
    weights = torch.tensor([0.3, -torch.inf, 0.1, -0.4], dtype=DOUBLE)
    mixture = ist.Mixture(means, 2.0, weights)
    few = mixture.subset([0, 2, 3])
    torch.testing.assert_close(mixture.log_prob(x), few.log_prob(x))
    torch.testing.assert_close(mixture.step(x), few.step(x))
    assert (mixture.responsibilities(x)[:, 1] == 0).all()
    far = ist.Mixture(torch.tensor([[0.0], [100.0]]), log_weights=[-np.inf, 0.0])
    assert (far.sample(1000) > 50).all()


def test_samples_have_the_moments_of_the_density():
    means, weights = draw(4, 3), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DOUBLE)
    drawn = ist.Mixture(means, 0.5, weights.log()).sample(100_000, seed=1)
    mean = weights @ means
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.02)
    expected = (weights[:, None] * means).mT @ means - torch.outer(mean, mean)
    expected += torch.eye(3)
    np.testing.assert_allclose(np.cov(drawn.numpy().T), expected, atol=0.05)
