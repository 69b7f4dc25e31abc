"""Langevin, MALA and HMC against moments, distributions and orders that are known exactly."""

import math

import numpy as np
import pytest
import torch
from helpers import Bowl, Gaussian, draw
from scipy import stats
from torch import Tensor

from isthmus.dynamics.nuts import NUTS
from isthmus.dynamics.samplers import HMC, MALA, Langevin, Sampler
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, OutsideSupportError

DOUBLE = torch.float64
COVARIANCE = torch.tensor([[1.0, 0.6], [0.6, 0.8]], dtype=DOUBLE)
MEAN = torch.tensor([1.0, -2.0], dtype=DOUBLE)
GAUSSIAN = Gaussian(COVARIANCE, MEAN)
SAMPLERS = [Langevin(step_size=0.02), MALA(step_size=0.3), HMC(step_size=0.3, n_leapfrog=4)]
SAMPLERS += [HMC(step_size=0.3, n_leapfrog=4, jitter=0.5), NUTS(0.3, max_depth=3)]
EXACT_SAMPLERS = SAMPLERS[1:]


def name(sampler: object) -> str:
    return type(sampler).__name__ + ("-jitter" if getattr(sampler, "jitter", 0) else "")


class Quartic(Energy):
    def energy(self, x: Tensor) -> Tensor:
        return (x**4 / 4 + x.square() / 2).sum(-1)


class Box(Energy):
    """Uniform on [0, 1]^D: +inf outside, and not even a number beyond 3."""

    def energy(self, x: Tensor) -> Tensor:
        inside = ((x >= 0) & (x <= 1)).all(-1)
        beyond = (x.abs() > 3).any(-1)
        value = torch.where(inside, 0.0, torch.inf).to(x.dtype)
        return torch.where(beyond, torch.nan, value) + 0 * x.sum(-1)


def run(sampler: Sampler, energy: Energy, x: Tensor, steps: int, seed: int = 0) -> Tensor:
    generator = torch.Generator().manual_seed(seed)
    state = sampler.init(energy, x)
    for _ in range(steps):
        state, _ = sampler.step(energy, state, generator)
    return state.position


@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
def test_moments_of_a_correlated_gaussian(sampler: Sampler) -> None:
    steps = 400 if isinstance(sampler, Langevin) else 15 if isinstance(sampler, NUTS) else 60
    draws = run(sampler, GAUSSIAN, torch.zeros(20_000, 2, dtype=DOUBLE), steps)
    torch.testing.assert_close(draws.mean(0), MEAN, atol=0.03, rtol=0)
    # Langevin's own bias at this step, about step / (2 * smallest variance), is within this.
    torch.testing.assert_close(draws.T.cov(), COVARIANCE, atol=0.04, rtol=0)


@pytest.mark.parametrize("temperature", [1.0, 0.25])
@pytest.mark.parametrize("step_size", [0.1, 0.5, 1.0])
def test_langevin_has_the_exact_stationary_variance_of_its_discretisation(
    step_size: float, temperature: float
) -> None:
    langevin = Langevin(step_size, temperature)
    expected = temperature / (1 - step_size / 2)
    draws = run(langevin, Bowl(), torch.zeros(40_000, 1), int(8 / step_size))
    assert float(draws.var()) == pytest.approx(expected, rel=0.03)


@pytest.mark.parametrize(
    "sampler", [MALA(step_size=1.2), HMC(step_size=1.6, n_leapfrog=3)], ids=name
)
def test_rejections_leave_the_target_invariant_at_steps_too_coarse_for_langevin(
    sampler: Sampler,
) -> None:
    start = torch.tensor(np.random.default_rng(0).standard_normal((20_000, 1)))
    draws = run(sampler, Bowl(), start, 20)
    assert stats.kstest(draws[:, 0], "norm").pvalue > 1e-3
    assert not torch.equal(draws, start)
    unadjusted = run(Langevin(step_size=1.2), Bowl(), start, 20)
    assert stats.kstest(unadjusted[:, 0], "norm").pvalue < 1e-6


@pytest.mark.parametrize("sampler", SAMPLERS, ids=name)
@pytest.mark.parametrize("beta", [0.25, 4.0])
def test_the_unit_of_the_energy_does_not_matter(sampler: Sampler, beta: float) -> None:
    start = torch.zeros(50, 2, dtype=DOUBLE)
    expected = run(sampler, GAUSSIAN, start, 20)
    torch.testing.assert_close(run(sampler, Gaussian(COVARIANCE, MEAN, beta), start, 20), expected)


@pytest.mark.parametrize("kind", [MALA, HMC, NUTS])
def test_temperature_scales_the_variance(kind: type) -> None:
    steps = 15 if kind is NUTS else 200
    draws = run(kind(step_size=0.3, temperature=4.0), Bowl(), torch.zeros(20_000, 1), steps)
    assert float(draws.var()) == pytest.approx(4.0, rel=0.04)
    assert stats.kstest(draws[:, 0] / 2, "norm").pvalue > 1e-3


def test_hmc_conserves_the_hamiltonian_to_second_order_in_the_step() -> None:
    x, velocity = draw(2, 200, 3)
    errors, lengths = [], [10, 20, 40, 80]
    for length in lengths:
        hmc = HMC(step_size=1.0 / length, n_leapfrog=length)
        state = hmc.init(Quartic(), x)
        end, end_velocity, possible = hmc.trajectory(Quartic(), state, velocity)
        assert bool(possible.all())
        before = state.energy + velocity.square().sum(-1) / 2
        after = end.energy + end_velocity.square().sum(-1) / 2
        errors.append(float((after - before).square().mean().sqrt()))
    order = -np.polyfit(np.log(lengths), np.log(errors), 1)[0]
    assert order == pytest.approx(2.0, abs=0.1)


def test_hmc_trajectories_run_backwards() -> None:
    x, velocity = draw(2, 50, 3)
    hmc = HMC(step_size=0.1, n_leapfrog=20, temperature=0.7)
    there, end_velocity, _ = hmc.trajectory(Quartic(), hmc.init(Quartic(), x), velocity)
    back, start_velocity, _ = hmc.trajectory(Quartic(), there, -end_velocity)
    torch.testing.assert_close(back.position, x, atol=1e-10, rtol=0)
    torch.testing.assert_close(start_velocity, -velocity, atol=1e-10, rtol=0)


@pytest.mark.parametrize("sampler", EXACT_SAMPLERS, ids=name)
def test_walls_are_never_crossed_and_the_inside_stays_uniform(sampler: Sampler) -> None:
    generator = torch.Generator().manual_seed(0)
    start = torch.rand(5000, 2, generator=generator)
    state = sampler.init(Box(), start)
    for _ in range(20):
        state, info = sampler.step(Box(), state, generator)
        assert bool(torch.isfinite(state.energy).all())
    assert 0 < float(info.acceptance.mean()) < 1
    assert all(stats.kstest(column, "uniform").pvalue > 1e-3 for column in state.position.T)


@pytest.mark.parametrize("kind", [MALA, HMC, NUTS])
@pytest.mark.parametrize("step_size", [50.0, 1e38])
def test_a_divergent_proposal_is_rejected(kind: type, step_size: float) -> None:
    sampler = kind(step_size)
    start = 1 + torch.rand(20, 3, generator=torch.Generator().manual_seed(1))
    generator = torch.Generator().manual_seed(0)
    before = sampler.init(Quartic(), start)
    after, info = sampler.step(Quartic(), before, generator)
    assert not bool(info.accepted.any())
    assert torch.equal(info.acceptance, torch.zeros(20))
    assert all(torch.equal(new, old) for new, old in zip(after, before, strict=True))


def test_mala_proposes_what_langevin_does() -> None:
    settings = {"step_size": 0.2, "temperature": 3.0}
    start = MEAN + draw(100, 2)
    state, info = MALA(**settings).step(
        GAUSSIAN, MALA(**settings).init(GAUSSIAN, start), torch.Generator().manual_seed(0)
    )
    moved = run(Langevin(**settings), GAUSSIAN, start, 1)
    assert 0 < int(info.accepted.sum()) < 100
    torch.testing.assert_close(state.position, torch.where(info.accepted[:, None], moved, start))


@pytest.mark.parametrize("sampler", EXACT_SAMPLERS, ids=name)
def test_a_start_outside_the_support_is_refused(sampler: Sampler) -> None:
    with pytest.raises(OutsideSupportError, match="chains"):
        sampler.init(Box(), torch.tensor([[0.5], [2.0], [9.0]]))


def test_jitter_frees_a_trajectory_that_only_flips() -> None:
    # Leapfrogs of this step size turn a standard normal by exactly an eighth of a period.
    step_size = math.sqrt(2 - 2 * math.cos(math.pi / 4))
    start = torch.full((2000, 1), 3.0)
    flips = run(HMC(step_size, n_leapfrog=4), Bowl(), start, 10)
    free = run(HMC(step_size, n_leapfrog=4, jitter=0.5), Bowl(), start, 30)
    assert bool(((flips.abs() - 3).abs() < 0.1).all())
    assert stats.kstest(free[:, 0], "norm").pvalue > 1e-3
    with pytest.raises(InvalidInputError, match="jitter"):
        HMC(jitter=1.0)
