"""Tempering: chains at several temperatures that exchange their states."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from isthmus.dynamics.nuts import NUTS
from isthmus.dynamics.samplers import HMC, MALA, Info, MetropolisState, choose, noise
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.validation import as_array


class TemperedState(NamedTuple):
    """The chains at every temperature, the coldest first, and the number of steps so far."""

    replicas: tuple[MetropolisState, ...]
    steps: int

    @property
    def position(self) -> Tensor:
        """The positions (..., D) of the chains at temperature 1."""
        return self.replicas[0].position


@dataclass(frozen=True)
class Tempering:
    r"""Parallel tempering: hot chains cross barriers, and exchange states with colder ones.

    Every chain has a replica at each inverse temperature :math:`b_i`, which samples
    :math:`p^{b_i}`. After each step neighbours propose to exchange their states, which is accepted
    with probability

    .. math:: \min\bigl(1, e^{(b_i - b_j)\, \beta_E (E(x_i) - E(x_j))}\bigr) ,

    and leaves every :math:`p^{b_i}` invariant (Geyer, 1991). Even and odd pairs take turns. The
    draws are those at :math:`b = 1`. Exchanges are accepted often enough if neighbours overlap: in
    D dimensions take ratios of about :math:`1 + \sqrt{2/D}`, down to a :math:`b` at which the
    barriers are about one nat high.

    Parameters
    ----------
    sampler : HMC, MALA or NUTS
        Its step size is for :math:`b = 1` and grows with :math:`1/\sqrt b` (not MALA's).
    inverse_temperatures : sequence of float
        The ladder: 1, then falling numbers above zero.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.GaussianKDE(torch.tensor([[-6.0], [6.0]]), sigma=0.5)
    >>> start, hmc = torch.full((200, 1), 6.0), ist.HMC(step_size=0.3, n_leapfrog=4)
    >>> draws = ist.sample(memory, 200, ist.Tempering(hmc), init=start, burn_in=60)
    >>> bool(0.35 < (draws < 0).float().mean() < 0.65)
    True
    """

    sampler: HMC | MALA | NUTS = field(default_factory=HMC)
    inverse_temperatures: Sequence[float] = (1.0, 0.4, 0.16, 0.064, 0.0256, 0.01024)

    def __post_init__(self) -> None:
        if not isinstance(self.sampler, HMC | MALA | NUTS):
            raise InvalidInputError(f"sampler must be HMC, MALA or NUTS, not {self.sampler!r}.")
        given: Any = self.inverse_temperatures
        ladder = as_array(given, "inverse_temperatures")
        falls = ladder.ndim == 1 and ladder.size > 1 and ladder[0] == 1 and ladder[-1] > 0
        if not falls or not (np.diff(ladder) < 0).all():
            raise InvalidInputError(
                "inverse_temperatures must be two or more numbers that begin with 1 and fall from "
                f"there, above zero, not {given!r}."
            )
        object.__setattr__(self, "inverse_temperatures", tuple(ladder.tolist()))

    @property
    def n_leapfrog(self) -> int:
        """The scores of one step of one chain; the default burn-in counts them."""
        return getattr(self.sampler, "n_leapfrog", 1)

    def init(self, energy: Energy, x: Tensor) -> TemperedState:
        """Return the state of chains that start at x: (..., D), at every temperature."""
        start = self.sampler.init(energy, x)
        return TemperedState((start,) * len(self.inverse_temperatures), 0)

    @torch.no_grad()
    def step(
        self, energy: Energy, state: TemperedState, generator: torch.Generator
    ) -> tuple[TemperedState, Info]:
        """Move the chains at every temperature, then exchange neighbours."""
        moved, infos, ladder, own = [], [], self.inverse_temperatures, self.sampler
        for b, replica in zip(ladder, state.replicas, strict=True):
            step_size = own.step_size if isinstance(own, MALA) else own.step_size / math.sqrt(b)
            sampler = replace(own, temperature=own.temperature / b, step_size=step_size)
            new, info = sampler.step(energy, replica, generator)
            moved.append(new)
            infos.append(info)
        for place in range(state.steps % 2, len(ladder) - 1, 2):
            cold, hot = moved[place : place + 2]
            difference = (ladder[place] - ladder[place + 1]) / own.temperature
            log_ratio: Any = difference * energy.inverse_temperature * (cold.energy - hot.energy)
            swap = noise(cold.energy, generator, torch.rand) < log_ratio.clamp(max=0).exp()
            both = list(zip(cold, hot, strict=True))
            moved[place] = MetropolisState(*(choose(swap, b, a) for a, b in both))
            moved[place + 1] = MetropolisState(*(choose(swap, a, b) for a, b in both))
        return TemperedState(tuple(moved), state.steps + 1), infos[0]
