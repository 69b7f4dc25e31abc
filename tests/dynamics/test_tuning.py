"""Tuned chains against exact moments, on energies of very different scales."""

from dataclasses import replace

import pytest
import torch
from helpers import Bowl, Gaussian, draw
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from torch import Tensor

import isthmus as ist
from isthmus.dynamics.samplers import Scales
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError

DOUBLE = torch.float64


@given(scale=st.sampled_from([1e-3, 1.0, 1e3]), dim=st.sampled_from([1, 3, 50]))
@settings(max_examples=9, deadline=None, derandomize=True)
def test_a_bowl_of_any_scale_is_sampled_without_a_sampler(scale: float, dim: int):
    standard = ist.sample(Bowl(dim, scale, scale), 1500).double() / scale - 1
    assert stats.kstest(standard.square().sum(1), stats.chi2(dim).cdf).pvalue > 1e-3
    assert all(stats.kstest(column, "norm").pvalue > 1e-4 for column in standard.T)


@pytest.mark.parametrize(
    ("sampler", "lowest", "highest"),
    [
        (ist.MALA(), 0.45, 0.7),
        (ist.HMC(n_leapfrog=5, jitter=0.2), 0.65, 0.95),
        (ist.NUTS(1e-3), 0.65, 0.95),
    ],
)
def test_the_acceptance_rate_reaches_its_target(sampler, lowest: float, highest: float) -> None:
    found = ist.sample_chains(Bowl(8, 0.01, 0.01), 40, sampler, chains=50, tune=True)
    assert lowest < float(found.acceptance.mean()) < highest
    assert type(found.sampler) is type(sampler)
    assert found.sampler.step_size != sampler.step_size


@pytest.mark.parametrize("dim", [1, 12])
def test_tuned_langevin_has_a_small_bias(dim: int) -> None:
    found = ist.sample_chains(Bowl(dim, 100.0, 100.0), 1, ist.Langevin(), chains=2000, tune=True)
    assert isinstance(found.sampler, ist.Langevin)
    assert found.sampler.step_size < 0.1 * 100.0**2
    assert float((found.flatten() / 100).var(0).mean()) == pytest.approx(1, abs=0.15 / dim**0.5)


def test_the_step_size_is_frozen_after_three_quarters_of_the_burn_in() -> None:
    generator = torch.Generator().manual_seed(0)
    energy, start = Bowl(2), torch.zeros(5, 2)
    first = ist.sample_chains(energy, 30, chains=5, init=start, burn_in=40, seed=generator)
    again = ist.sample_chains(energy, 300, chains=5, init=start, burn_in=40, seed=0)
    assert first.sampler == again.sampler
    assert torch.equal(first.draws, again.draws[:30])


def test_the_default_burn_in_costs_about_a_thousand_scores() -> None:
    class Counted(Bowl):
        scores = 0

        def score(self, x: Tensor) -> Tensor:
            Counted.scores += 1
            return self.centre - x

    for sampler in (None, ist.MALA(), ist.Langevin(), ist.HMC(n_leapfrog=10)):
        Counted.scores = 0
        ist.sample(Counted(2), 10, sampler)
        assert 1000 <= Counted.scores < 1300


@pytest.mark.parametrize("kind", ["batch of 1", "batch of 2", "column", "centred", "random"])
def test_energies_that_are_no_function_of_single_points_are_refused(kind: str) -> None:
    class Wrong(Bowl):
        def energy(self, x: Tensor) -> Tensor:
            if kind.startswith("batch") and len(x) != int(kind[-1]):
                raise ShapeError("Points must begin with the number of contexts.")
            value = super().energy(x - x.mean(0) if kind == "centred" else x)
            if kind == "random":
                value = value + torch.rand(len(x))
            return value[..., None] if kind == "column" else value

    energy, words = Wrong(2), {"column": r"Wrong\.energy returns shape \(1, 1\)"}
    for call in (
        lambda: ist.retrieve(energy, 5 * torch.eye(2)),
        lambda: ist.sample(energy, 2, init=5 * torch.eye(2)),
    ):
        with pytest.raises(InvalidInputError, match=words.get(kind, "batch")):
            call()


SAMPLERS = [None, ist.HMC(n_leapfrog=8, jitter=0.3), ist.NUTS()]


@pytest.mark.parametrize("sampler", SAMPLERS)
@pytest.mark.parametrize("dim", [50, 120])
def test_an_ill_conditioned_gaussian_is_mixed_by_adapted_scales(sampler, dim: int) -> None:
    variances = torch.logspace(0, 4, dim, dtype=DOUBLE)
    energy = Gaussian(variances.diag())
    start = torch.zeros(dim, dtype=DOUBLE)
    found = ist.sample_chains(energy, 300, sampler, init=start, tune=True)
    assert float(found.r_hat.max()) < 1.03
    assert float(found.ess.min()) > 400
    assert found.flatten().var(0).numpy() == pytest.approx(variances.numpy(), rel=0.35)


@pytest.mark.parametrize("sampler", SAMPLERS[1:])
@pytest.mark.parametrize("mean", [0.0, 1e4])
def test_scales_are_those_of_a_gaussian(sampler, mean: float) -> None:
    """The covariance is found from positions and scores, before the chains have seen all of it."""
    root = draw(6, 6, seed=1)
    covariance = root @ root.T + 0.01 * torch.eye(6, dtype=DOUBLE)
    energy = Gaussian(covariance, mean)
    start = torch.full((6,), mean, dtype=DOUBLE)
    found = ist.sample_chains(energy, 1, sampler, chains=30, init=start, tune=True)
    factor = found.sampler.scales.factor
    ratios = torch.linalg.eigvals(torch.linalg.solve(covariance, factor @ factor.T)).real
    assert float(ratios.max() / ratios.min()) < 1.2


@pytest.mark.parametrize("sampler", [ist.HMC(0.4, 6), ist.NUTS(0.4)])
@pytest.mark.parametrize("dense", [False, True])
def test_scales_are_a_change_of_coordinates(sampler, dense: bool) -> None:
    """Steps on x with scales L are those on z, x = L z, without: the definition."""
    factor = torch.tensor([[2.0, 0.0], [1.5, 0.3]], dtype=DOUBLE)
    factor = factor if dense else factor.diagonal()
    matrix = factor if dense else factor.diag()
    covariance = torch.tensor([[3.0, 0.5], [0.5, 1.0]], dtype=DOUBLE)
    inverse = torch.linalg.inv(matrix)
    plain, scaled = Gaussian(inverse @ covariance @ inverse.T), Gaussian(covariance)
    z = draw(50, 2)
    scaled_sampler = replace(sampler, scales=Scales.of(factor))
    draws = [torch.Generator().manual_seed(1) for _ in range(2)]
    state, other = sampler.init(plain, z), scaled_sampler.init(scaled, z @ matrix.T)
    for _ in range(5):
        state, _ = sampler.step(plain, state, draws[0])
        other, _ = scaled_sampler.step(scaled, other, draws[1])
    torch.testing.assert_close(other.position, state.position @ matrix.T)


def test_chains_that_do_not_spread_keep_their_scales() -> None:
    """On a flat energy scores have no spread, and scales cannot be found."""

    class Flat(Energy):
        dim = 2

        def energy(self, x: Tensor) -> Tensor:
            return 0 * x.sum(-1)

    found = ist.sample_chains(Flat(), 5, ist.HMC(), tune=True, burn_in=40)
    assert found.sampler.scales is None
