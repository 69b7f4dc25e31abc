"""Tuned chains against exact moments, on energies of very different scales."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import isthmus as ist
from isthmus.energy import Energy
from isthmus.errors import ShapeError

DOUBLE = torch.float64


class Bowl(Energy):
    """N(scale, scale^2 I), by its energy alone: scores come from autograd."""

    def __init__(self, scale: float, dim: int) -> None:
        super().__init__()
        self.scale, self._dim = scale, dim

    @property
    def dim(self) -> int:
        return self._dim

    def energy(self, x: Tensor) -> Tensor:
        return 0.5 * (x / self.scale - 1).square().sum(-1)


class OfABatch(Energy):
    """An energy for each of several contexts: its points begin with their number."""

    dim = 2

    def __init__(self, contexts: int) -> None:
        super().__init__()
        self.contexts = contexts

    def energy(self, x: Tensor) -> Tensor:
        if x.shape[0] != self.contexts:
            raise ShapeError(f"x must begin with {self.contexts}.")
        return x.square().sum(-1)


def agree(draws: Tensor, mean: Tensor, variance: Tensor) -> None:
    """Check means and variances of independent draws within 4.5 of their standard errors."""
    draws, n = draws.double(), len(draws)
    error = (variance / n).sqrt()
    assert ((draws.mean(0) - mean).abs() < 4.5 * error).all()
    fourth = (draws - mean).pow(4).mean(0)
    spread = ((fourth - variance**2).clamp(min=0) / n).sqrt()
    assert ((draws.var(0) - variance).abs() < 4.5 * spread).all()


@given(scale=st.sampled_from([1e-3, 1.0, 1e3]), dim=st.sampled_from([1, 3, 50]))
@settings(max_examples=9, deadline=None, derandomize=True)
def test_a_bowl_of_any_scale_is_sampled_without_a_sampler(scale: float, dim: int):
    draws = ist.sample(Bowl(scale, dim), 1500)
    ones = torch.ones(dim, dtype=DOUBLE)
    agree(draws / scale, ones, ones)
    whole = (draws.double() / scale - 1).square().sum(1)
    assert stats.kstest(whole, stats.chi2(dim).cdf).pvalue > 1e-3


@pytest.mark.parametrize(("sigma", "dim"), [(1e-3, 2), (0.3, 20), (1e3, 3)])
@pytest.mark.parametrize("kind", ["kde", "mixture", "hopfield"])
def test_memories_of_any_bandwidth_are_sampled_without_a_sampler(
    kind: str, sigma: float, dim: int
) -> None:
    rng = np.random.default_rng(dim)
    points = torch.from_numpy(rng.normal(size=(6, dim)))
    if kind == "kde":
        memory = ist.GaussianKDE(points, sigma)
    elif kind == "mixture":
        memory = ist.Mixture(points, 0.5 / sigma**2, torch.linspace(-2, 1, 6, dtype=DOUBLE))
    else:
        memory = ist.ModernHopfield(points / points.norm(dim=1, keepdim=True), sigma**-2)
    weights, means = memory.log_mixing_weights.exp(), memory.memories
    mean = weights @ means
    variance = weights @ (means - mean).square() + sigma**2
    agree(ist.sample(memory, 2000, seed=1), mean, variance)


@pytest.mark.parametrize(
    ("sampler", "lowest", "highest"),
    [(ist.MALA(), 0.45, 0.7), (ist.HMC(n_leapfrog=5, jitter=0.2), 0.65, 0.95)],
)
def test_the_acceptance_rate_reaches_its_target(sampler, lowest: float, highest: float) -> None:
    found = ist.sample_chains(Bowl(0.01, 8), 40, sampler, chains=50, tune=True)
    assert lowest < float(found.acceptance.mean()) < highest
    assert type(found.sampler) is type(sampler)
    assert found.sampler.step_size != sampler.step_size


@pytest.mark.parametrize("dim", [1, 12])
def test_tuned_langevin_has_a_small_bias(dim: int) -> None:
    found = ist.sample_chains(Bowl(100.0, dim), 1, ist.Langevin(), chains=2000, tune=True)
    assert isinstance(found.sampler, ist.Langevin)
    assert found.sampler.step_size < 0.1 * 100.0**2
    assert float((found.flatten() / 100).var(0).mean()) == pytest.approx(1, abs=0.15 / dim**0.5)


def test_the_step_size_is_frozen_after_three_quarters_of_the_burn_in() -> None:
    generator = torch.Generator().manual_seed(0)
    energy, start = Bowl(1.0, 2), torch.zeros(5, 2)
    first = ist.sample_chains(energy, 30, chains=5, init=start, burn_in=40, seed=generator)
    again = ist.sample_chains(energy, 300, chains=5, init=start, burn_in=40, seed=0)
    assert first.sampler == again.sampler
    assert torch.equal(first.draws, again.draws[:30])


def test_the_default_burn_in_costs_about_a_thousand_scores() -> None:
    class Counted(Bowl):
        scores = 0

        def score(self, x: Tensor) -> Tensor:
            Counted.scores += 1
            return -(x / self.scale - 1) / self.scale

    for sampler in (None, ist.MALA(), ist.Langevin(), ist.HMC(n_leapfrog=10)):
        Counted.scores = 0
        ist.sample(Counted(1.0, 2), 10, sampler)
        assert 1000 <= Counted.scores < 1300


@pytest.mark.parametrize("contexts", [1, 2, 3])
def test_an_energy_of_a_batch_of_contexts_is_refused(contexts: int) -> None:
    energy = OfABatch(contexts)
    with pytest.raises(ShapeError, match="one context at a time"):
        ist.sample(energy, contexts)
    with pytest.raises(ShapeError, match=rf"one context at a time\. .*begin with {contexts}"):
        ist.retrieve(energy, torch.zeros(contexts, 2))


def test_energies_of_the_wrong_shape_are_named() -> None:
    class Column(Bowl):
        def energy(self, x: Tensor) -> Tensor:
            return super().energy(x)[..., None]

    with pytest.raises(ShapeError, match=r"Column\.energy returns shape \(1, 1\)"):
        ist.retrieve(Column(1.0, 2), torch.zeros(4, 2))
    with pytest.raises(ShapeError, match=r"Column\.energy returns shape \(1, 1\)"):
        ist.sample(Column(1.0, 2), 4)
