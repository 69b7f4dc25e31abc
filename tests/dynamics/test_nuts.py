"""NUTS against exact draws, the symmetry of a reversible kernel, and a tree written out."""

import math

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import stats
from torch import Tensor

import isthmus as ist

DOUBLE = torch.float64


class Gumbel(ist.Energy):
    """A skewed density, whose scores come from autograd."""

    def energy(self, x: Tensor) -> Tensor:
        return (x + (-x).exp()).sum(-1)


class Counted(ist.Energy):
    """A standard normal that counts its scores."""

    calls = 0

    def energy(self, x: Tensor) -> Tensor:
        return x.square().sum(-1) / 2

    def score(self, x: Tensor) -> Tensor:
        self.calls += 1
        return -x


def test_one_step_keeps_a_skewed_density_and_is_reversible() -> None:
    start = torch.tensor(stats.gumbel_r.rvs(size=(8000, 1), random_state=0))
    sampler, generator = ist.NUTS(0.7), torch.Generator().manual_seed(0)
    state, _ = sampler.step(Gumbel(), sampler.init(Gumbel(), start), generator)
    end = state.position
    torch.testing.assert_close(state.energy, Gumbel().energy(end))
    torch.testing.assert_close(state.score, Gumbel().score(end))
    assert stats.kstest(end[:, 0].numpy(), stats.gumbel_r.cdf).pvalue > 1e-3
    # Start and end may be exchanged: the mean of an antisymmetric function is zero.
    first, last = start[:, 0].tanh(), end[:, 0].tanh()
    for difference in (first**2 * last - first * last**2, first**3 * last - first * last**3):
        assert abs(float(difference.mean())) < 4 * float(difference.std()) / 8000**0.5


def leapfrog(x: float, v: float, step: float) -> tuple[float, float]:
    v = v - step / 2 * x
    x = x + step * v
    return x, v - step / 2 * x


def tree_turns(points: list[tuple[float, float]]) -> bool:
    """True if any balanced part of a trajectory turns back: the rule, by recursion."""
    if len(points) == 1:
        return False
    (x, v), (y, w) = points[0], points[-1]
    half = len(points) // 2
    turned = (y - x) * v < 0 or (y - x) * w < 0
    return turned or tree_turns(points[:half]) or tree_turns(points[half:])


@pytest.mark.parametrize("depth", [0, 1, 2, 3, 4, 5])
@pytest.mark.parametrize("forward", [True, False])
def test_parts_that_turn_are_found(depth: int, forward: bool) -> None:
    """The bookkeeping by bits against recursion, from many points of phase space."""
    x, v = draw(2, 40, 1, seed=depth)
    energy, sampler = Counted(), ist.NUTS(0.45)
    edge = torch.cat([x, v, -x, energy.energy(x)[:, None]], 1)
    origin = sampler._hamiltonian(energy, edge)
    sign = torch.full((40, 1), 1.0 if forward else -1.0, dtype=DOUBLE)
    found = sampler._grow(energy, edge, sign, depth, origin, torch.Generator())
    for chain in range(40):
        points, point = [], (float(x[chain]), float(v[chain]))
        for _ in range(2**depth):
            point = leapfrog(*point, 0.45 if forward else -0.45)
            points.append(point)
        expected = tree_turns(points if forward else points[::-1])
        assert bool(found.stopped[chain]) == expected
        if not expected:
            assert float(found.end[chain, 0]) == pytest.approx(points[-1][0])
            weights = [-(x * x + v * v) / 2 for x, v in points]
            total = float(origin[chain] + torch.logsumexp(torch.tensor(weights, dtype=DOUBLE), 0))
            assert float(found.log_weight[chain]) == pytest.approx(total)


def test_trajectories_end_where_they_turn() -> None:
    energy = Counted()
    generator = torch.Generator().manual_seed(0)
    sampler = ist.NUTS(0.1, max_depth=10)
    state = sampler.init(energy, torch.ones(1, 1))
    energy.calls = 0
    for _ in range(20):
        state, info = sampler.step(energy, state, generator)
    # Half a period takes pi / 0.1 leapfrogs; a doubling may overshoot by a factor of four.
    assert 10 < energy.calls / 20 < 4 * math.pi / 0.1
    assert float(info.acceptance) > 0.99
    energy.calls = 0
    ist.NUTS(1e-3, max_depth=3).step(energy, state, generator)
    assert energy.calls == 7


# Parallel tempering


def far_modes() -> ist.Mixture:
    means = torch.tensor([[-6.0, 0.0], [6.0, 0.0], [0.0, 8.0]], dtype=DOUBLE)
    return ist.Mixture(means, beta=2.0, log_weights=np.log([0.6, 0.3, 0.1]))


def shares_of(energy: ist.Mixture, draws: Tensor) -> Tensor:
    nearest = torch.cdist(draws, energy.means).argmin(1)
    return torch.bincount(nearest, minlength=3) / len(draws)


def test_tempering_finds_the_shares_of_far_modes_where_hmc_stays() -> None:
    energy, n = far_modes(), 600
    start = energy.means[2].expand(n, 2)
    inner, steps = ist.HMC(0.3, 4, jitter=0.3), 80
    plain = ist.sample(energy, n, inner, init=start, burn_in=steps)
    assert float(shares_of(energy, plain)[2]) == 1.0
    ladder = [0.4**k for k in range(6)]
    draws = ist.sample(energy, n, ist.Tempering(inner, ladder), init=start, burn_in=steps)
    expected = torch.tensor([0.6, 0.3, 0.1], dtype=DOUBLE)
    error = (expected * (1 - expected) / n).sqrt()
    assert bool(((shares_of(energy, draws) - expected).abs() < 4 * error).all())
    # Within the modes, the spread is that of the components.
    nearest = energy.means[torch.cdist(draws, energy.means).argmin(1)]
    assert float((draws - nearest).var()) == pytest.approx(0.25, rel=0.12)


def test_exchanges_keep_the_densities_of_all_temperatures() -> None:
    """Started from exact draws at every temperature, all stay exact."""
    energy, n = ist.GaussianKDE(torch.zeros(1, 1, dtype=DOUBLE), sigma=1.0), 4000
    sampler = ist.Tempering(ist.HMC(0.2, 1), (1.0, 0.5, 0.1))
    generator = torch.Generator().manual_seed(0)
    replicas = tuple(
        sampler.sampler.init(energy, torch.randn(n, 1, generator=generator, dtype=DOUBLE) / b**0.5)
        for b in sampler.inverse_temperatures
    )
    state = sampler.init(energy, replicas[0].position)._replace(replicas=replicas)
    for _ in range(6):
        state, _ = sampler.step(energy, state, generator)
    for replica, b in zip(state.replicas, sampler.inverse_temperatures, strict=True):
        found = replica.position[:, 0].numpy()
        assert stats.kstest(found, stats.norm(0, b**-0.5).cdf).pvalue > 1e-3
        torch.testing.assert_close(replica.energy, energy.energy(replica.position))
    assert state.steps == 6
