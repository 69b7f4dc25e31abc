"""The modern network: its energy, and the mixture of Gaussians that it is."""

import mpmath
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


def mixture_weights(memories: np.ndarray, beta: float) -> np.ndarray:
    return softmax(0.5 * beta * np.square(memories).sum(1))


@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_energy_step_and_responsibilities_as_defined(beta):
    memories, x = draw(6, 4), draw(5, 4, seed=1)
    memory = ist.ModernHopfield(memories, beta)
    logits = beta * x.numpy() @ memories.numpy().T
    expected = 0.5 * np.square(x.numpy()).sum(1) - logsumexp(logits, 1) / beta
    np.testing.assert_allclose(memory.energy(x), expected, rtol=1e-11)
    weights = softmax(logits, 1)
    np.testing.assert_allclose(memory.responsibilities(x), weights, rtol=1e-11)
    np.testing.assert_allclose(memory.step(x), weights @ memories.numpy(), rtol=1e-10, atol=1e-12)
    torch.testing.assert_close(memory.score(x), memory.step(x) - x)
    assert memory.inverse_temperature == pytest.approx(beta)


@pytest.mark.parametrize("dim", [1, 2, 5])
@pytest.mark.parametrize("beta", [0.3, 1.0, 4.0])
def test_the_density_is_a_mixture_with_covariance_one_over_beta(dim, beta):
    memories, x = draw(6, dim), draw(9, dim, seed=1)
    memory = ist.ModernHopfield(memories, beta)
    parts = [stats.multivariate_normal(m, np.eye(dim) / beta).pdf(x) for m in memories.numpy()]
    expected = np.log(mixture_weights(memories.numpy(), beta) @ np.array(parts))
    np.testing.assert_allclose(memory.log_prob(x), expected, rtol=1e-10)
    np.testing.assert_allclose(
        memory.log_mixing_weights.exp(), mixture_weights(memories.numpy(), beta), rtol=1e-12
    )


def test_the_normalizer_in_arbitrary_precision():
    memories = 30 * draw(3, 2)
    memory = ist.ModernHopfield(memories, beta=10.0)
    with mpmath.workdps(50):
        squares = [mpmath.fsum(mpmath.mpf(v) ** 2 for v in row) for row in memories.tolist()]
        exact = mpmath.log(mpmath.fsum(mpmath.exp(5 * s) for s in squares))
        exact += mpmath.log(2 * mpmath.pi / 10)
        assert float(abs(memory.log_normalizer().item() / exact - 1)) < 1e-13


def test_samples_follow_the_density():
    memory = ist.ModernHopfield(torch.tensor([[1.0], [-1.5], [0.2]], dtype=DOUBLE), beta=2.0)
    weights = mixture_weights(memory.memories.numpy(), 2.0)

    def cumulative(x: np.ndarray) -> np.ndarray:
        parts = stats.norm(memory.memories.numpy()[:, 0], np.sqrt(0.5)).cdf(x[:, None])
        return parts @ weights

    drawn = memory.sample(20_000, seed=1).numpy()[:, 0]
    assert stats.kstest(drawn, cumulative).pvalue > 0.01
    assert stats.kstest(drawn + 0.05, cumulative).pvalue < 1e-3  # the test can tell
