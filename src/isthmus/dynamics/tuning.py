r"""Step sizes that chains choose while they burn in.

The step size follows the acceptance rate by dual averaging (Hoffman and Gelman, 2014, The No-U-Turn
Sampler, section 3.2). After tuning it is frozen, so that the draws come from a fixed kernel whose
stationary distribution is the target.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch

from isthmus.dynamics.samplers import HMC, MALA, Langevin
from isthmus.energy import Energy

# Langevin takes the step size at which this share of its proposals would be accepted by MALA,
# which biases its variance by three per cent at most.
LANGEVIN_ACCEPTANCE = 0.998
# The first guess is doubled or halved until the acceptance crosses this rate, at most this often.
CROSSING, MAX_CROSSINGS = 0.5, 100
# Logarithms of step sizes stay within this range, on energies that have no scale.
LARGEST_LOG = 80.0


class DualAveraging:
    """Dual averaging of the logarithm of a step size, towards a target acceptance rate.

    ``step_size`` is for the next step; ``average`` is the estimate, in which late steps count more.
    """

    shrinkage, delay, decay = 0.05, 10.0, 0.75

    def __init__(self, step_size: float, target: float) -> None:
        self.step_size = self.average = step_size
        self._target, self._origin = target, math.log(10 * step_size)
        self._count, self._error, self._log_average = 0, 0.0, 0.0

    def update(self, acceptance: float) -> None:
        """Use the mean acceptance probability of one step."""
        self._count += 1
        share = 1 / (self._count + self.delay)
        self._error += share * (self._target - acceptance - self._error)
        log_step = self._origin - math.sqrt(self._count) / self.shrinkage * self._error
        log_step = min(max(log_step, -LARGEST_LOG), LARGEST_LOG)
        self._log_average += self._count**-self.decay * (log_step - self._log_average)
        self.step_size, self.average = math.exp(log_step), math.exp(self._log_average)


def tune_step_size(
    energy: Energy,
    sampler: Langevin | MALA | HMC,
    position: torch.Tensor,
    steps: int,
    generator: torch.Generator,
    report: Callable[[int], None],
) -> tuple[Langevin | MALA | HMC, Any]:
    """Move chains from `position` (chains, D) for some steps, and tune their common step size.

    Returns the sampler with its step size replaced, and the state of the chains.
    """
    proposal: MALA | HMC
    if isinstance(sampler, Langevin):
        proposal, target = MALA(sampler.step_size, sampler.temperature), LANGEVIN_ACCEPTANCE
    else:
        proposal, target = sampler, sampler.target_acceptance
    state = proposal.init(energy, position)
    averaging = DualAveraging(_first_step_size(energy, proposal, state, generator), target)
    for step in range(1, steps + 1):
        current = replace(proposal, step_size=averaging.step_size)
        state, info = current.step(energy, state, generator)
        averaging.update(float(info.acceptance.mean()))
        report(step)
    tuned = replace(sampler, step_size=averaging.average)
    return tuned, tuned.init(energy, state.position) if isinstance(tuned, Langevin) else state


def _first_step_size(
    energy: Energy, sampler: MALA | HMC, state: Any, generator: torch.Generator
) -> float:
    """Return the power of two times the given step size where the acceptance crosses 0.5."""

    def acceptance(step_size: float) -> float:
        _, info = replace(sampler, step_size=step_size).step(energy, state, generator)
        return float(info.acceptance.mean())

    step_size = sampler.step_size
    grows = acceptance(step_size) > CROSSING
    factor = 2.0 if grows else 0.5
    for _ in range(MAX_CROSSINGS):
        if (acceptance(step_size * factor) > CROSSING) != grows:
            return step_size if grows else step_size * factor
        step_size *= factor
    return step_size
