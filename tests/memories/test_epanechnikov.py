"""The Epanechnikov estimator: scikit-learn's density, flat-kernel mean shift, a hard edge."""

import copy

import numpy as np
import pytest
import torch
from scipy import integrate, stats
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


@pytest.mark.parametrize("dim", [1, 2, 3])
def test_the_density_integrates_to_one(dim):
    kde = ist.EpanechnikovKDE(0.7 * draw(3, dim), bandwidth=1.2)
    axis = torch.linspace(-4, 4, {1: 20_000, 2: 500, 3: 90}[dim], dtype=DOUBLE)
    grid = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    mass = kde.log_prob(grid).exp().sum() * (axis[1] - axis[0]) ** dim
    assert float(mass) == pytest.approx(1, abs=[0, 1e-6, 1e-4, 1e-3][dim])


def test_energy_as_defined_and_infinite_outside_the_support():
    memories, x = draw(6, 3), 1.5 * draw(40, 3, seed=1)
    kde = ist.EpanechnikovKDE(memories, bandwidth=1.3)
    squares = np.square(x.numpy()[:, None] - memories.numpy()).sum(-1)
    with np.errstate(divide="ignore"):
        expected = -np.log(np.maximum(0, 1 - squares / 1.69).sum(1))
    assert np.isinf(expected).any()
    assert np.isfinite(expected).any()
    np.testing.assert_allclose(kde.energy(x), expected, rtol=1e-9, atol=1e-12)


def test_outside_the_support_nothing_pulls():
    kde = ist.EpanechnikovKDE(draw(6, 3), bandwidth=1.0)
    far = torch.full((2, 3), 50.0, dtype=DOUBLE, requires_grad=True)
    assert (kde.energy(far) == torch.inf).all()
    assert (kde.log_prob(far) == -torch.inf).all()
    assert (kde.score(far) == 0).all()
    assert torch.equal(kde.step(far), far)
    assert (kde.responsibilities(far) == 0).all()
    (gradient,) = torch.autograd.grad(kde.energy(far).sum(), far)
    assert (gradient == 0).all()


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


def test_completing_into_a_gap_returns_the_mean():
    kde = ist.EpanechnikovKDE(torch.tensor([[0.0, -5.0], [0.0, 5.0]]), bandwidth=1.0)
    found = ist.complete(kde, torch.tensor([0.1, torch.nan]))
    torch.testing.assert_close(found, torch.tensor([0.1, 0.0]))
    assert kde.energy(found) == torch.inf


def test_a_step_is_the_plain_mean_of_the_memories_in_reach():
    memories, x = draw(12, 2), draw(8, 2, seed=1)
    near = np.square(x.numpy()[:, None] - memories.numpy()).sum(-1) < 1.44
    expected = [memories.numpy()[row].mean(0) for row in near]
    np.testing.assert_allclose(ist.EpanechnikovKDE(memories, 1.2).step(x), expected, rtol=1e-11)


@pytest.mark.parametrize("held", [None, [True, False]])
def test_steps_never_raise_the_energy_and_arrive_exactly(held):
    kde = ist.EpanechnikovKDE(2 * draw(60, 2), bandwidth=1.5)
    x = 2 * draw(40, 2, seed=1)
    x = x[torch.isfinite(kde.energy(x))]
    found = ist.retrieve(kde, x, held, tol=0.0, trace=True)
    heights = kde.energy(found.trace)
    assert (heights[1:] <= heights[:-1] + 1e-12).all()
    assert found.converged.all()
    assert torch.equal(kde.step(found.state, held), found.state)


def test_responsibilities_are_kernels_over_their_sum():
    memories, x = draw(6, 2), 0.5 * draw(5, 2, seed=1)
    kernels = np.maximum(0, 1 - np.square(x.numpy()[:, None] - memories.numpy()).sum(-1) / 4)
    found = ist.EpanechnikovKDE(memories, 2.0).responsibilities(x)
    np.testing.assert_allclose(found, kernels / kernels.sum(1, keepdims=True), rtol=1e-10)


@pytest.mark.parametrize("dim", [2, 3])
def test_the_conditional_mean_against_numerical_integration(dim):
    kde = ist.EpanechnikovKDE(0.8 * draw(4, dim), bandwidth=1.7)
    seen = torch.tensor([True] + [False] * (dim - 1))
    x = torch.tensor([0.3] + [torch.nan] * (dim - 1), dtype=DOUBLE)
    axis = torch.linspace(-5, 5, {2: 20_001, 3: 501}[dim], dtype=DOUBLE)
    hidden = torch.cartesian_prod(*[axis] * (dim - 1)).reshape(-1, dim - 1)
    grid = torch.cat([torch.full_like(hidden[:, :1], 0.3), hidden], 1)
    density = kde.log_prob(grid).exp()
    expected = density @ hidden / density.sum()
    found = kde.conditional_mean(x, seen)
    assert found[0] == 0.3
    torch.testing.assert_close(found[1:], expected, atol=1e-4, rtol=0)


def test_samples_follow_the_density_on_the_line():
    kde = ist.EpanechnikovKDE(torch.tensor([[0.0], [1.0], [4.0]], dtype=DOUBLE), bandwidth=1.5)
    axis = np.linspace(-2, 6, 4001)
    density = np.exp(kde.log_prob(axis[:, None]))
    table = integrate.cumulative_trapezoid(density, axis, initial=0)
    drawn = kde.sample(20_000, seed=1).numpy()[:, 0]
    assert stats.kstest(drawn, lambda x: np.interp(x, axis, table)).pvalue > 0.01
    assert stats.kstest(drawn + 0.05, lambda x: np.interp(x, axis, table)).pvalue < 1e-3


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
