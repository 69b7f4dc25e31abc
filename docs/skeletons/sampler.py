r"""Skeleton of a sampler: random-walk Metropolis.

A sampler is a frozen dataclass of settings with two methods that work on all chains at once:
``init`` makes a state from positions (chains, D), and ``step`` returns the next state and an
``Info`` with the acceptance of each chain. :func:`isthmus.sample` has the loop, burn-in, thinning,
progress and diagnostics.

Copy the class to ``src/isthmus/dynamics/samplers.py``, export it in ``isthmus/__init__.py``, and
add it to the samplers in ``tests/dynamics/test_samplers.py``.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.dynamics.samplers import Info
from isthmus.energy import Energy
from isthmus.validation import as_number

__all__ = ["RandomWalk", "RandomWalkState"]


class RandomWalkState(NamedTuple):
    """Positions (chains, D) and their log-densities (chains,), up to a constant."""

    position: Tensor
    log_density: Tensor


@dataclass(frozen=True)
class RandomWalk:
    r"""Random-walk Metropolis: propose :math:`x + \epsilon \xi`, accept by the ratio of densities.

    Parameters
    ----------
    step_size : float
        :math:`\epsilon`, above zero.

    Examples
    --------
    >>> import isthmus as ist
    >>> energy = ist.GaussianKDE([[0.0, 0.0], [1.0, 1.0]], sigma=1.0)
    >>> ist.sample(energy, 100, RandomWalk(1.0), seed=0).shape
    (100, 2)
    """

    step_size: float = 1.0

    def __post_init__(self) -> None:
        as_number(self.step_size, "step_size", above=0)

    def init(self, energy: Energy, position: Tensor) -> RandomWalkState:
        """Return the state of chains at `position` (chains, D)."""
        return RandomWalkState(position, _log_density(energy, position))

    def step(
        self, energy: Energy, state: RandomWalkState, generator: torch.Generator
    ) -> tuple[RandomWalkState, Info]:
        """Return the next state, and which chains moved."""
        noise = torch.empty_like(state.position).normal_(generator=generator)
        proposed = state.position + self.step_size * noise
        log_density = _log_density(energy, proposed)
        acceptance = (log_density - state.log_density).exp().clamp(max=1)
        uniform = torch.empty_like(log_density).uniform_(generator=generator)
        accepted = uniform < acceptance
        new = RandomWalkState(
            torch.where(accepted[:, None], proposed, state.position),
            torch.where(accepted, log_density, state.log_density),
        )
        return new, Info(acceptance, accepted)


def _log_density(energy: Energy, position: Tensor) -> Tensor:
    log_density = -energy.inverse_temperature * energy.energy(position)
    return log_density.nan_to_num(nan=-math.inf)
