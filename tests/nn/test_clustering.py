"""ClAMLoss against loops written out, ClAM's own gradient, and the classes of digits."""

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.datasets import load_digits
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import normalized_mutual_info_score
from torch import Tensor, nn

import isthmus as ist
from isthmus.cluster.clam import Reconstruction, reconstruction_gradient
from isthmus.cluster.data import MixtureParameters
from isthmus.errors import IsthmusError
from isthmus.nn import ClAMLoss


def points(*shape: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def loss_with(memories: Tensor, **settings: float) -> ClAMLoss:
    clam = ClAMLoss(*memories.shape, **settings).double()
    with torch.no_grad():
        clam.memories.copy_(memories)
    return clam


def test_the_loss_equals_the_dynamics_written_out() -> None:
    memories, z = points(4, 3), points(7, 3, seed=1)
    clam = loss_with(memories, beta=1.3, steps=5, rate=0.4)
    total = 0.0
    for start in z.numpy():
        x = start.copy()
        for _ in range(5):
            shares = softmax(-1.3 * ((memories.numpy() - x) ** 2).sum(1))
            x = x + 0.4 * (shares @ memories.numpy() - x)
        total += ((x - start) ** 2).sum()
    np.testing.assert_allclose(float(clam(z).detach()), total / 7)


def test_the_gradient_is_that_of_the_estimator() -> None:
    memories, z = points(4, 3), points(7, 3, seed=1)
    clam = loss_with(memories, beta=1.3, steps=5, rate=0.4, learn_beta=True)
    clam(z).backward()
    parameters = MixtureParameters(memories, torch.tensor(1.3).double(), torch.zeros(4).double())
    problem = Reconstruction(z, z, None, None, torch.full((7,), 1 / 7).double())
    expected = reconstruction_gradient(problem, parameters, 5, 0.4)
    torch.testing.assert_close(clam.memories.grad, expected.means)
    torch.testing.assert_close(clam.log_beta.grad, 1.3 * expected.beta)


def test_the_gradient_reaches_the_encoder() -> None:
    clam = loss_with(points(4, 3), beta=0.8, steps=3)
    assert torch.autograd.gradcheck(clam, (points(5, 3, seed=1).requires_grad_(),))


def test_with_a_decoder_inputs_are_compared() -> None:
    clam, decoder = loss_with(points(4, 3), steps=4), nn.Linear(3, 6).double()
    z, x = points(5, 3, seed=1), points(5, 6, seed=2)
    expected = (decoder(clam.retrieve(z)) - x).square().sum() / 5
    torch.testing.assert_close(clam(z, x, decoder), expected)


def test_start_and_beta_of_separate_groups() -> None:
    centres = 10 * torch.eye(4, dtype=torch.float64)
    z = torch.cat([centre + 0.5 * points(100, 4, seed=k) for k, centre in enumerate(centres)])
    clam = ClAMLoss(4, 4).double().start_at(z)
    assert isinstance(clam.energy, ist.Mixture)
    labels = clam.predict(z).reshape(4, 100)
    assert bool((labels == labels[:, :1]).all())
    assert len(labels[:, 0].unique()) == 4
    assert 0.9 < clam.log_beta.exp() * 2 * 0.5**2 < 1.1
    assert ClAMLoss(4, 4, beta=3.0).double().start_at(z).log_beta.exp() == pytest.approx(3.0)


@pytest.mark.slow
def test_deep_clusters_of_digits_agree_with_the_classes() -> None:
    digits, labels = load_digits(return_X_y=True)
    x = torch.from_numpy(digits / 16).float()
    torch.manual_seed(0)
    encoder = nn.Sequential(nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 10))
    decoder = nn.Sequential(nn.Linear(10, 128), nn.ReLU(), nn.Linear(128, 64))
    clam = ClAMLoss(10, 10)
    networks = [*encoder.parameters(), *decoder.parameters()]
    optimizer = torch.optim.Adam(networks, 1e-2)
    for _ in range(200):
        optimizer.zero_grad()
        (decoder(encoder(x)) - x).square().sum(-1).mean().backward()
        optimizer.step()
    clam.start_at(encoder(x).detach())
    before = normalized_mutual_info_score(labels, clam.predict(encoder(x)))
    optimizer = torch.optim.Adam([*networks, *clam.parameters()], 2e-4)
    losses = []
    for _ in range(100):
        optimizer.zero_grad()
        z = encoder(x)
        loss = clam(z, x, decoder) + (decoder(z) - x).square().sum(-1).mean()
        loss.backward()
        losses.append(loss.item())
        optimizer.step()
    after = normalized_mutual_info_score(labels, clam.predict(encoder(x)))
    assert losses[-1] < 0.98 * losses[0]
    assert after > before - 0.02
    assert after > 0.65


def test_bad_input() -> None:
    clam = ClAMLoss(4, 3)
    z = torch.zeros(5, 3)
    with pytest.raises(IsthmusError, match="Pass x and decoder together"):
        clam(z, z)
    with pytest.raises(IsthmusError, match="decoder returns"):
        clam(z, torch.zeros(5, 2), nn.Identity())
    with pytest.raises(IsthmusError, match="at least 4 rows"):
        clam.start_at(z[:3])
    with pytest.raises(IsthmusError, match="NaN"):
        clam.start_at(z * torch.nan)
    with pytest.raises(IsthmusError, match="coordinates in its last axis"):
        clam(torch.zeros(5, 2))
    for settings in ({"beta": 0.0}, {"steps": 0}, {"rate": 1.5}, {"n_clusters": 0}):
        with pytest.raises(IsthmusError, match=next(iter(settings))):
            ClAMLoss(**({"n_clusters": 4, "dim": 3} | settings))
    with pytest.warns(ConvergenceWarning):
        clam.start_at(torch.ones(5, 3))
    assert bool(torch.isfinite(clam(torch.ones(5, 3))))
