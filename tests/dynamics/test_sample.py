"""sample and sample_chains: shapes, starts, seeds, errors, progress, and the right law."""

import numpy as np
import pytest
import torch
from helpers import Bowl, draw
from scipy import stats
from torch import Tensor

from isthmus.dynamics.sample import sample, sample_chains
from isthmus.dynamics.samplers import HMC, MALA, Info, Langevin, LangevinState
from isthmus.energy import Energy
from isthmus.errors import DivergenceError, InvalidInputError, OutsideSupportError
from isthmus.memories.crp import CRPMixture
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.kernels import EpanechnikovKDE
from isthmus.memories.mixture import Mixture


class Counting:
    """A sampler whose chains count their steps: where draws come from can be read off them."""

    def __init__(self, by: float = 1.0) -> None:
        self.by = by

    def init(self, energy: Energy, x: Tensor) -> LangevinState:
        return LangevinState(x)

    def step(self, energy: Energy, state: LangevinState, generator: torch.Generator) -> tuple:
        ones = torch.ones(state.position.shape[0])
        return LangevinState(state.position + self.by), Info(ones / 4, ones.bool())


def test_draws_are_kept_every_thin_steps_after_burn_in() -> None:
    init = torch.zeros(1, dtype=torch.float64)
    chains = sample_chains(Bowl(1), 3, Counting(), chains=2, init=init, burn_in=100, thin=7)
    expected = torch.tensor([107.0, 114.0, 121.0])
    assert torch.equal(chains.draws[..., 0], expected[:, None].expand(3, 2).double())
    assert torch.equal(chains.acceptance, torch.full((2,), 0.25, dtype=torch.float64))


@pytest.mark.parametrize(("chains", "expected"), [(None, [11] * 5), (2, [11, 11, 12, 12, 13])])
def test_n_draws_come_from_the_chains_in_turn(chains: int | None, expected: list[int]) -> None:
    draws = sample(Bowl(1), 5, Counting(), init=[0.0], burn_in=10, thin=1, chains=chains)
    assert draws[:, 0].tolist() == expected


def test_chains_start_at_heavy_memories_more_often() -> None:
    weights = torch.tensor([0.7, 0.2, 0.1], dtype=torch.float64)
    memory = Mixture(
        torch.tensor([[0.0], [50.0], [100.0]], dtype=torch.float64), 1.0, weights.log()
    )
    for energy in (memory, CRPMixture(memory.means, 10 * weights)):
        draws = sample(energy, 2000, Counting(by=0.0), burn_in=0)
        counts = [int((draws == 50.0 * place).sum()) for place in range(3)]
        assert stats.chisquare(counts, 2000 * weights).pvalue > 1e-3


def test_a_seed_gives_the_same_bits_and_a_generator_goes_on() -> None:
    memory = GaussianKDE(draw(6, 3), sigma=0.5)
    for sampler in (Langevin(), MALA(), HMC()):
        first, again, other = (
            sample(memory, 20, sampler, seed=seed, burn_in=20) for seed in (7, np.int64(7), 8)
        )
        assert torch.equal(first, again)
        assert not torch.equal(first, other)
    generator = torch.Generator().manual_seed(7)
    first = sample(Bowl(2), 5, seed=generator, burn_in=5)
    assert torch.equal(first, sample(Bowl(2), 5, seed=7, burn_in=5))
    assert not torch.equal(first, sample(Bowl(2), 5, seed=generator, burn_in=5))


def test_an_energy_of_any_dimension_needs_a_start() -> None:
    with pytest.raises(InvalidInputError, match="Pass init"):
        sample(Bowl(None), 3)
    assert sample(Bowl(None), 3, init=np.zeros(5), burn_in=0).shape == (3, 5)


def test_divergence_says_when_and_what_to_do() -> None:
    class Steep(Bowl):
        def energy(self, x: Tensor) -> Tensor:
            return x.pow(4).sum(-1)

    with pytest.raises(DivergenceError, match=r"3 of 3 chains .* at step \d+ of 1001. Reduce step"):
        sample(Steep(), 3, Langevin(step_size=1.0), init=[2.0, 2.0])


def test_draws_where_the_density_is_zero_are_refused() -> None:
    walled = EpanechnikovKDE(torch.zeros(1, 2), bandwidth=1.0)
    with pytest.raises(OutsideSupportError, match=r"Use isthmus\.MALA"):
        sample(walled, 50, Langevin(step_size=0.05), burn_in=100)


def test_chains_report_whether_they_mixed() -> None:
    mixed = sample_chains(Bowl(2), 400, MALA(step_size=1.0), burn_in=20, thin=2)
    assert mixed.sampler == MALA(step_size=1.0)
    assert bool((mixed.r_hat < 1.03).all())
    assert bool(((mixed.ess > 200) & (mixed.ess < 3000)).all())
    starts = 30.0 * torch.arange(4)[:, None].expand(4, 2)
    stuck = sample_chains(Bowl(2), 100, Langevin(1e-4), init=starts, burn_in=0, thin=1)
    assert bool((stuck.r_hat > 10).all())


def test_chains_that_never_move_are_not_passed_off_as_draws():
    memory = GaussianKDE(torch.zeros(1, 2), 1.0)
    with pytest.warns(RuntimeWarning, match="smaller step_size"):
        sample(memory, 4, HMC(step_size=1e6), burn_in=5, thin=1)
