"""ClAMLoss against loops written out, ClAM's own gradient, and the classes of digits."""

import numpy as np
import pytest
import torch
from helpers import draw
from scipy.special import softmax
from torch import Tensor

import isthmus as ist
from isthmus.nn import ClAMLoss


def loss_with(memories: Tensor, **settings: float) -> ClAMLoss:
    clam = ClAMLoss(*memories.shape, **settings).double()
    with torch.no_grad():
        clam.memories.copy_(memories)
    return clam


def test_the_loss_equals_the_dynamics_written_out() -> None:
    memories, z = draw(4, 3), draw(7, 3, seed=1)
    clam = loss_with(memories, beta=1.3, steps=5, rate=0.4)
    total = 0.0
    for start in z.numpy():
        x = start.copy()
        for _ in range(5):
            shares = softmax(-1.3 * ((memories.numpy() - x) ** 2).sum(1))
            x = x + 0.4 * (shares @ memories.numpy() - x)
        total += ((x - start) ** 2).sum()
    np.testing.assert_allclose(float(clam(z).detach()), total / 7)


def test_the_gradient_reaches_the_encoder() -> None:
    clam = loss_with(draw(4, 3), beta=0.8, steps=3)
    assert torch.autograd.gradcheck(clam, (draw(5, 3, seed=1).requires_grad_(),))


def test_start_and_beta_of_separate_groups() -> None:
    centres = 10 * torch.eye(4, dtype=torch.float64)
    z = torch.cat([centre + 0.5 * draw(100, 4, seed=k) for k, centre in enumerate(centres)])
    clam = ClAMLoss(4, 4).double().start_at(z)
    assert isinstance(clam.energy, ist.Mixture)
    labels = clam.predict(z).reshape(4, 100)
    assert bool((labels == labels[:, :1]).all())
    assert len(labels[:, 0].unique()) == 4
    assert 0.9 < clam.log_beta.exp() * 2 * 0.5**2 < 1.1
    assert ClAMLoss(4, 4, beta=3.0).double().start_at(z).log_beta.exp() == pytest.approx(3.0)
