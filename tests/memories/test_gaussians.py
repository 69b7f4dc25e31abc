"""Gaussian memories (mixture, modern network, kernel density) against scipy and scikit-learn."""

import mpmath
import numpy as np
import pytest
import torch
from helpers import draw
from scipy.special import logsumexp, softmax

import isthmus as ist

DOUBLE = torch.float64


LOG_WEIGHTS = [None, np.log([0.1, 0.2, 0.3, 0.4]), np.array([5.0, -np.inf, 3.0, 6.0])]


@pytest.mark.parametrize("log_weights", LOG_WEIGHTS, ids=["equal", "normalized", "any"])
def test_energy_as_defined(log_weights):
    means, x, beta = draw(4, 3), draw(7, 3, seed=1), 0.7
    squares = np.square(x.numpy()[:, None] - means.numpy()).sum(-1)
    logits = -beta * squares + (0 if log_weights is None else log_weights)
    mixture = ist.Mixture(means, beta, log_weights)
    np.testing.assert_allclose(mixture.energy(x), -logsumexp(logits, 1) / beta, rtol=1e-10)
    np.testing.assert_allclose(mixture.responsibilities(x), softmax(logits, 1), rtol=1e-9)
    np.testing.assert_allclose(mixture.step(x), softmax(logits, 1) @ means.numpy(), rtol=1e-9)


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
    mixing = softmax(0.5 * beta * np.square(memories.numpy()).sum(1))
    np.testing.assert_allclose(memory.log_mixing_weights.exp(), mixing, rtol=1e-12)


def test_the_normalizer_in_arbitrary_precision():
    memories = 30 * draw(3, 2)
    memory = ist.ModernHopfield(memories, beta=10.0)
    with mpmath.workdps(50):
        squares = [mpmath.fsum(mpmath.mpf(v) ** 2 for v in row) for row in memories.tolist()]
        exact = mpmath.log(mpmath.fsum(mpmath.exp(5 * s) for s in squares))
        exact += mpmath.log(2 * mpmath.pi / 10)
        assert float(abs(memory.log_normalizer().item() / exact - 1)) < 1e-13


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
    for memories, equal in (
        (torch.nn.functional.normalize(draw(8, 3), dim=1), True),
        (draw(8, 3), False),
    ):
        kde = ist.GaussianKDE(memories, sigma)
        modern = ist.ModernHopfield(memories, beta=1 / sigma**2)
        gap = (kde.step(x) - modern.step(x)).norm(dim=1).max()
        assert bool(gap < 1e-10) is equal
        assert equal or gap > 0.1


def test_float32_energies_are_not_blurred_by_the_normalizer():
    # In many dimensions log Z is large; E must not pass through it and back.
    memories = draw(20, 784)
    x = memories[:5] + 0.1 * draw(5, 784, seed=1)
    for kind, setting in ((ist.GaussianKDE, 30.0), (ist.Mixture, 1e-3)):
        exact = kind(memories.float().double(), setting).energy(x.float().double())
        rough = kind(memories.float(), setting).energy(x.float())
        torch.testing.assert_close(rough.double(), exact, rtol=1e-6, atol=0)
