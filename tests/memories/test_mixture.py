"""ClAM's energy: a mixture of round Gaussians of covariance I / (2 beta)."""

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import logsumexp, softmax
from torch import Tensor

import isthmus as ist
from isthmus.errors import InvalidInputError

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


@pytest.mark.parametrize("wrong_variance", [lambda b: 2 / b, lambda b: 1 / b])
def test_the_printed_covariance_would_be_another_density(wrong_variance):
    # Erratum E6 again: neither the print's 2 / beta nor ClAM's 1 / beta for the same beta.
    means, x = draw(4, 2), draw(7, 2, seed=1)
    wrong = scipy_log_density(x, means, wrong_variance(1.5), np.full(4, 0.25))
    assert np.ptp(ist.Mixture(means, 1.5).log_prob(x).numpy() - wrong) > 0.1


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


def test_the_pull_of_the_memories_is_half_the_force():
    # Erratum E7: sum_k r_k (mu_k - x) = -1/2 grad E, so that a gradient step of 1/2 is a step.
    means, x = draw(4, 3), draw(7, 3, seed=1)
    mixture = ist.Mixture(means, beta=1.7)
    shares = mixture.responsibilities(x)
    pull = (shares[..., None] * (means - x[:, None])).sum(1)
    leaf = x.clone().requires_grad_()
    (gradient,) = torch.autograd.grad(mixture.energy(leaf).sum(), leaf)
    torch.testing.assert_close(pull, -0.5 * gradient)
    torch.testing.assert_close(x + 0.5 * mixture.score(x), mixture.step(x))


def test_density_and_energy_meet_through_beta():
    # Erratum E28.
    mixture = ist.Mixture(draw(4, 2), beta=3.0, log_weights=draw(4, 1)[:, 0])
    x = draw(9, 2, seed=1)
    offset = mixture.log_prob(x) + 3.0 * mixture.energy(x)
    torch.testing.assert_close(offset, -mixture.log_normalizer().expand(9))
    assert (mixture.log_prob(x) + mixture.energy(x)).std() > 0.1


@pytest.mark.parametrize("dim", [1, 2])
def test_the_density_integrates_to_one(dim):
    mixture = ist.Mixture(draw(4, dim), beta=2.0, log_weights=draw(4, 1)[:, 0])
    axis = torch.linspace(-7, 7, 400, dtype=DOUBLE)
    grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    mass = mixture.log_prob(grid).exp().sum() * (axis[1] - axis[0]) ** dim
    assert float(mass) == pytest.approx(1, abs=1e-6)


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


def test_the_first_step_is_not_a_fixed_point():
    # Erratum E29.
    mixture = ist.Mixture(draw(5, 2), beta=1.0)
    x = draw(6, 2, seed=1)
    first = mixture.step(x)
    assert (mixture.step(first) - first).norm(dim=1).max() > 0.05
    fixed = ist.retrieve(mixture, x, tol=1e-12).state
    torch.testing.assert_close(mixture.responsibilities(fixed) @ mixture.means, fixed)


def test_samples_follow_the_density():
    means, weights = np.array([0.0, 2.0, -3.0]), np.array([0.2, 0.5, 0.3])
    mixture = ist.Mixture(means[:, None], beta=2.0, log_weights=np.log(weights))

    def cumulative(x: np.ndarray) -> np.ndarray:
        return stats.norm(means, 0.5).cdf(x[:, None]) @ weights

    drawn = mixture.sample(20_000, seed=1)[:, 0]
    assert stats.kstest(drawn, cumulative).pvalue > 0.01
    assert stats.kstest(drawn + 0.05, cumulative).pvalue < 1e-3


def test_samples_have_the_moments_of_the_density():
    means, weights = draw(4, 3), torch.tensor([0.1, 0.2, 0.3, 0.4], dtype=DOUBLE)
    drawn = ist.Mixture(means, 0.5, weights.log()).sample(100_000, seed=1)
    mean = weights @ means
    np.testing.assert_allclose(drawn.mean(0), mean, atol=0.02)
    expected = (weights[:, None] * means).mT @ means - torch.outer(mean, mean)
    expected += torch.eye(3)
    np.testing.assert_allclose(np.cov(drawn.numpy().T), expected, atol=0.05)


def test_weights_that_are_not_logarithms_are_caught():
    with pytest.raises(InvalidInputError, match=r"weights\.log\(\)"):
        ist.Mixture(draw(2, 2), log_weights=[0.0, np.nan])
    with pytest.raises(InvalidInputError, match="not all -inf"):
        ist.Mixture(draw(2, 2), log_weights=[-np.inf, -np.inf])
