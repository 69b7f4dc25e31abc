r"""Tuning of samplers: step sizes by dual averaging, and scales from positions and scores.

Step sizes follow the acceptance rate (Hoffman and Gelman, 2014, The No-U-Turn Sampler, section
3.2).
Scales L are those in whose coordinates positions and scores have the same covariance, so that
:math:`L L^T` is the geometric mean of the covariance of positions and the inverse of that of scores
(Seyboldt, Carlson and Carpenter, 2024, Preconditioning Hamiltonian Monte Carlo by minimizing Fisher
divergence). On a Gaussian, that is its covariance wherever the chains have been.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from isthmus.dynamics.nuts import NUTS
from isthmus.dynamics.samplers import HMC, MALA, Langevin, MetropolisState, Scales
from isthmus.energy import Energy

Tunable = Langevin | MALA | HMC | NUTS

# Langevin takes the step size at which this share of its proposals would be accepted by MALA,
# which biases its variance by three per cent at most.
LANGEVIN_ACCEPTANCE = 0.998
# The first guess is doubled or halved until the acceptance crosses this rate, at most this often.
CROSSING, MAX_CROSSINGS = 0.5, 100
# Logarithms of step sizes stay within this range, on energies that have no scale.
LARGEST_LOG = 80.0
# Shares of the tuning after which scales are computed, each from the steps since the last.
WINDOWS = (0.1, 0.25, 0.6)
# Scales are matrices up to this dimension, whose products cost little beside an energy.
MOST_DENSE = 100
# Fewer points (steps times chains) leave the scales as they are.
FEWEST_POINTS = 16


class DualAveraging:
    """Dual averaging of the logarithm of a step size, towards a target acceptance rate."""

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


class Spread:
    """Second moments of positions and scores (chains, D) about the mean of each chain."""

    def __init__(self, state: MetropolisState, scales: Scales | None) -> None:
        self._scales = scales
        self._start = torch.stack([state.position, state.score]).double()
        self.dense = self._start.shape[-1] <= MOST_DENSE
        self._sums, self._steps = torch.zeros_like(self._start), 0
        self._squares = torch.zeros_like(self._product(self._start))

    def add(self, state: MetropolisState) -> None:
        """Add the state after one more step."""
        self._steps += 1
        apart = torch.stack([state.position, state.score]).double() - self._start
        if self._scales:
            apart = torch.stack([self._scales.shrunk(apart[0]), self._scales.pulled(apart[1])])
        self._sums += apart
        self._squares += self._product(apart)

    def _product(self, apart: Tensor) -> Tensor:
        return apart.mT @ apart if self.dense else apart.square().sum(1)

    def scales(self) -> Scales | None:
        """Return the scales, in float64, in which positions and scores spread alike, if both do."""
        freedom = self._start.shape[1] * (self._steps - 1)
        if freedom < FEWEST_POINTS:
            return None
        moments = (self._squares - self._product(self._sums) / self._steps) / freedom
        diagonals = moments.diagonal(0, 1, 2) if self.dense else moments
        widths = (diagonals[0] / diagonals[1]).pow(0.25)
        if not bool(torch.isfinite(widths).all() & (widths > 0).all()):
            return None
        if not self.dense or freedom < 2 * len(widths):
            return self._after(widths.diag() if self.dense else widths)
        # Correlations are reduced, the more the fewer points.
        share = freedom / (freedom + len(widths))
        rest = (1 - share) * torch.eye(len(widths)).to(widths)
        roots = diagonals.sqrt()
        positions, scores = share * moments / roots[:, :, None] / roots[:, None] + rest
        # The geometric mean of the covariance of positions and the inverse of that of scores.
        root, inverse_root = _root(scores, 0.5), _root(scores, -0.5)
        mean = inverse_root @ _root(root @ positions @ root, 0.5) @ inverse_root
        factor, failed = torch.linalg.cholesky_ex(mean)
        return self._after(widths.diag() if failed else widths[:, None] * factor)

    def _after(self, factor: Tensor) -> Scales:
        """Return the current scales times new ones, (D,) or (D, D)."""
        if self._scales is None:
            return Scales.of(factor)
        return Scales.of(
            self._scales.factor @ factor if self.dense else self._scales.factor * factor
        )


def _root(matrix: Tensor, power: float) -> Tensor:
    """Return a power of a positive matrix (D, D)."""
    values, vectors = torch.linalg.eigh(matrix)
    return (vectors * values.clamp(min=torch.finfo(matrix.dtype).tiny) ** power) @ vectors.mT


def tuned(
    energy: Energy,
    sampler: Tunable,
    position: Tensor,
    steps: int,
    generator: torch.Generator,
    report: Callable[[int], None],
) -> tuple[Tunable, Any]:
    """Move chains (chains, D) for some steps; return their tuned sampler, and their state."""
    moving: MALA | HMC | NUTS
    if isinstance(sampler, Langevin):
        moving, target = MALA(sampler.step_size, sampler.temperature), LANGEVIN_ACCEPTANCE
    else:
        moving, target = sampler, sampler.target_acceptance
    state = moving.init(energy, position)
    averaging = DualAveraging(_first_step_size(energy, moving, state, generator), target)
    rescaled = () if isinstance(moving, MALA) else tuple(int(share * steps) for share in WINDOWS)
    scales, spread = None, Spread(state, None)
    for step in range(1, steps + 1):
        moving = replace(moving, step_size=averaging.step_size)
        state, info = moving.step(energy, state, generator)
        averaging.update(float(info.acceptance.mean()))
        if step <= max(rescaled, default=0):
            spread.add(state)
        if step in rescaled:
            new = spread.scales()
            if new is not None and not isinstance(moving, MALA):
                scales = new
                here = Scales(*(part.to(state.position) for part in scales))
                moving = replace(moving, step_size=averaging.average, scales=here)
                first = _first_step_size(energy, moving, state, generator)
                averaging = DualAveraging(first, target)
            spread = Spread(state, scales)
        report(step)
    if isinstance(sampler, Langevin):
        frozen = replace(sampler, step_size=averaging.average)
        return frozen, frozen.init(energy, state.position)
    return replace(moving, step_size=averaging.average), state


def _first_step_size(
    energy: Energy, sampler: MALA | HMC | NUTS, state: Any, generator: torch.Generator
) -> float:
    """Return the power of two times the given step size where the acceptance crosses 0.5."""

    def grows(step_size: float) -> bool:
        _, info = replace(sampler, step_size=step_size).step(energy, state, generator)
        return float(info.acceptance.mean()) > CROSSING

    step_size = sampler.step_size
    factor = 2.0 if (first := grows(step_size)) else 0.5
    for _ in range(MAX_CROSSINGS):
        if grows(step_size * factor) != first:
            return step_size if first else step_size * factor
        step_size *= factor
    return step_size
