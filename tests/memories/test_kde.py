"""The Gaussian kernel density estimator: scikit-learn's density, and mean shift."""

import numpy as np
import pytest
import torch
from sklearn.neighbors import KernelDensity
from torch import Tensor

import isthmus as ist

DOUBLE = torch.float64


def draw(count: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=DOUBLE)


def on_sphere(points: Tensor) -> Tensor:
    return points / points.norm(dim=1, keepdim=True)


@pytest.mark.parametrize("dim", [1, 2, 5, 20])
@pytest.mark.parametrize("sigma", [0.2, 1.0, 3.0])
def test_log_prob_equals_that_of_scikit_learn(dim, sigma):
    memories, x = draw(40, dim), draw(9, dim, seed=1)
    peer = KernelDensity(bandwidth=sigma, kernel="gaussian", rtol=1e-12).fit(memories.numpy())
    found = ist.GaussianKDE(memories, sigma).log_prob(x)
    np.testing.assert_allclose(found, peer.score_samples(x.numpy()), rtol=1e-9)


def test_a_step_is_mean_shift_which_is_a_gradient_step_of_sigma_squared():
    # Erratum E13, for memories of any norm.
    memories, x = draw(8, 3), draw(5, 3, seed=1)
    kde = ist.GaussianKDE(memories, sigma=0.6)
    squares = np.square(x.numpy()[:, None] - memories.numpy()).sum(-1)
    weights = np.exp(-squares / 0.72)
    shifted = weights @ memories.numpy() / weights.sum(1, keepdims=True)
    np.testing.assert_allclose(kde.step(x), shifted, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(x + 0.36 * kde.score(x), kde.step(x))


def test_it_is_the_modern_network_on_a_sphere_only():
    # Erratum E13, with beta = 1 / sigma^2.
    x, sigma = draw(5, 3, seed=1), 0.6
    for memories, equal in ((on_sphere(draw(8, 3)), True), (draw(8, 3), False)):
        kde = ist.GaussianKDE(memories, sigma)
        modern = ist.ModernHopfield(memories, beta=1 / sigma**2)
        gap = (kde.step(x) - modern.step(x)).norm(dim=1).max()
        assert bool(gap < 1e-10) is equal
        assert equal or gap > 0.1


def test_samples_have_the_moments_of_the_density():
    memories, sigma = draw(6, 3), 0.5
    drawn = ist.GaussianKDE(memories, sigma).sample(100_000, seed=2)
    np.testing.assert_allclose(drawn.mean(0), memories.mean(0), atol=0.01)
    expected = np.cov(memories.numpy().T, bias=True) + sigma**2 * np.eye(3)
    np.testing.assert_allclose(np.cov(drawn.numpy().T), expected, atol=0.03)


def test_float32_energies_are_not_blurred_by_the_normalizer():
    # In many dimensions log Z is large; E must not pass through it and back.
    memories = draw(20, 784)
    x = memories[:5] + 0.1 * draw(5, 784, seed=1)
    for kind, setting in ((ist.GaussianKDE, 30.0), (ist.Mixture, 1e-3)):
        exact = kind(memories.float().double(), setting).energy(x.float().double())
        rough = kind(memories.float(), setting).energy(x.float())
        torch.testing.assert_close(rough.double(), exact, rtol=1e-6, atol=0)
