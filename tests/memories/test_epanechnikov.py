"""The Epanechnikov estimator: scikit-learn's density, flat-kernel mean shift, a hard edge."""

import copy

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.neighbors import KernelDensity
from torch import Tensor

import isthmus as ist
from isthmus.errors import OutsideSupportError

DOUBLE = torch.float64


def draw(count: int, dim: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(count, dim, generator=generator, dtype=DOUBLE)


@pytest.mark.parametrize("dim", [1, 2, 3, 6])
@pytest.mark.parametrize("bandwidth", [1.5, 4.0])
def test_log_prob_equals_that_of_scikit_learn(dim, bandwidth):
    memories, x = draw(40, dim), draw(30, dim, seed=1)
    peer = KernelDensity(bandwidth=bandwidth, kernel="epanechnikov", rtol=1e-12)
    with np.errstate(divide="ignore"):
        expected = peer.fit(memories.numpy()).score_samples(x.numpy())
    inside = np.isfinite(expected)
    found = ist.EpanechnikovKDE(memories, bandwidth).log_prob(x).numpy()
    np.testing.assert_allclose(found[inside], expected[inside], rtol=1e-9)
    assert (found[~inside] == -np.inf).all()


def test_retrieval_from_outside_stays_and_says_so():
    kde = ist.EpanechnikovKDE(torch.tensor([[0.0], [1.0]]), bandwidth=2.0)
    found = ist.retrieve(kde, torch.tensor([[50.0], [0.3]]))
    assert found.state[0] == 50
    assert found.energy[0] == torch.inf
    assert found.converged.tolist() == [False, True]
    assert "1 outside the support" in repr(found)


def test_completing_out_of_reach_of_every_memory_is_a_named_error():
    kde = ist.EpanechnikovKDE(draw(6, 2), bandwidth=1.0)
    x = torch.tensor([[50.0, torch.nan], [0.1, torch.nan]])
    with pytest.raises(OutsideSupportError, match=r"1 of 2 rows.*Raise the bandwidth"):
        ist.complete(kde, x)


def test_a_step_is_the_plain_mean_of_the_memories_in_reach():
    memories, x = draw(12, 2), draw(8, 2, seed=1)
    near = np.square(x.numpy()[:, None] - memories.numpy()).sum(-1) < 1.44
    expected = [memories.numpy()[row].mean(0) for row in near]
    np.testing.assert_allclose(ist.EpanechnikovKDE(memories, 1.2).step(x), expected, rtol=1e-11)


@pytest.mark.parametrize("dim", [2, 3, 7])
def test_samples_around_one_memory_have_beta_distributed_radii(dim):
    kde = ist.EpanechnikovKDE(torch.zeros(1, dim, dtype=DOUBLE), bandwidth=2.0)
    drawn = kde.sample(20_000, seed=1)
    squares = drawn.square().sum(1).numpy() / 4
    assert stats.kstest(squares, stats.beta(dim / 2, 2).cdf).pvalue > 0.01
    expected = 4 / (dim + 4) * np.eye(dim)
    np.testing.assert_allclose(np.cov(drawn.numpy().T), expected, atol=0.02)


def test_float32_resolves_the_kernel_in_a_wide_cloud():
    memories = torch.cat([draw(200, 3) + 5e3, draw(200, 3, seed=2) - 5e3]).float()
    x = torch.cat([draw(20, 3, seed=3) + 5e3, draw(20, 3, seed=4) - 5e3]).float()
    single = ist.EpanechnikovKDE(memories, bandwidth=2.0)
    double = copy.deepcopy(single).double()
    torch.testing.assert_close(single.energy(x).double(), double.energy(x), atol=1e-3, rtol=0)
    torch.testing.assert_close(single.step(x).double(), double.step(x), atol=2e-3, rtol=0)
    shares = single.responsibilities(x).double()
    torch.testing.assert_close(shares, double.responsibilities(x), atol=1e-3, rtol=0)


def test_blocks_of_memories_add_up(monkeypatch):
    memories, x = draw(700, 2), draw(9, 2, seed=1)
    kde = ist.EpanechnikovKDE(memories, bandwidth=1.0)
    whole = kde.energy(x), kde.score(x), kde.step(x)
    monkeypatch.setattr("isthmus.memories.kernels.BLOCK_ENTRIES", 1)
    torch.testing.assert_close((kde.energy(x), kde.score(x), kde.step(x)), whole)
