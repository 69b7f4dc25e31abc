r"""Langevin, MALA and HMC: settings, and pure steps on many chains at once.

All of them move on :math:`p(x)^{1/T}` with :math:`p(x) \propto \exp(-\beta_E E(x))`, where
:math:`\beta_E` is the energy's own inverse temperature and T the sampler's temperature.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, ClassVar, NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import OutsideSupportError
from isthmus.validation import as_count, as_number, require_kind


class LangevinState(NamedTuple):
    """Positions (..., D) of chains whose steps are not adjusted."""

    position: Tensor


class MetropolisState(NamedTuple):
    """Positions (..., D) of chains, with the energies (...) and scores (..., D) there."""

    position: Tensor
    energy: Tensor
    score: Tensor


class Info(NamedTuple):
    """The outcome of one step: the probability (...) of each proposal, and if it was accepted."""

    acceptance: Tensor
    accepted: Tensor


StateT = TypeVar("StateT", bound=Any)


@runtime_checkable
class Sampler(Protocol[StateT]):
    """Two pure functions; a state has the positions (..., D) of the chains in its ``position``."""

    def init(self, energy: Energy, x: Tensor) -> StateT:
        """Return the state of chains that start at x: (..., D)."""
        ...

    def step(
        self, energy: Energy, state: StateT, generator: torch.Generator
    ) -> tuple[StateT, Info]:
        """Return the state after one step, and its outcome. All noise is from `generator`."""
        ...


def noise(
    like: Tensor, generator: torch.Generator, draw: Callable[..., Tensor] = torch.randn
) -> Tensor:
    """Return noise of the shape, dtype and device of `like`, standard normal by default."""
    return draw(like.shape, generator=generator, dtype=like.dtype, device=generator.device).to(
        like.device
    )


def choose(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` where the mask (...) is True, else `old`; both are (...) or (..., D)."""
    return torch.where(mask if new.ndim == mask.ndim else mask[..., None], new, old)


class Tempered:
    """A frozen dataclass whose step size and temperature are checked."""

    def __post_init__(self) -> None:
        for name in ("step_size", "temperature"):
            object.__setattr__(self, name, as_number(getattr(self, name), name, above=0))


class Adjusted(Tempered):
    """A sampler whose proposals are accepted or rejected."""

    @torch.no_grad()
    def init(self, energy: Energy, x: Tensor) -> MetropolisState:
        """Return the state of chains that start at x: (..., D), with finite energy and score."""
        x = energy.as_input(x).detach()
        value = energy._energy(x)
        finite = torch.isfinite(value)
        # The score may not exist outside the support.
        score = energy._score(x) if finite.all() else torch.zeros_like(x)
        if bad := int((~(finite & torch.isfinite(score).all(-1))).sum()):
            raise OutsideSupportError(
                f"{bad} of {finite.numel()} chains start where the energy or its score is not "
                "finite. Pass an init inside the support, for example the memories."
            )
        return MetropolisState(x, value, score)


@dataclass(frozen=True)
class Langevin(Tempered):
    r"""Unadjusted Langevin dynamics.

    .. math:: x' = x + \epsilon \nabla \log p(x) + \sqrt{2 \epsilon T}\, \xi

    It never rejects, at the price of a bias that is linear in the step: on :math:`E = x^2/2` the
    variance is :math:`T / (1 - \epsilon/2)` instead of T. It steps across walls where an energy is
    infinite; :class:`MALA` and :class:`HMC` do not.

    Parameters
    ----------
    step_size : float
        :math:`\epsilon`. Stable only while it is below 2 / (largest curvature of -log p).
    temperature : float
        T: at 1 the chain samples p; lower, it settles nearer to the modes.
    """

    step_size: float = 0.01
    temperature: float = 1.0

    @classmethod
    def paper(cls) -> Langevin:
        """Return the paper's setting, step 3.16 with noise 0.01: descent with jitter (E22)."""
        return cls(step_size=3.16, temperature=0.01**2 / (2 * 3.16))

    @property
    def noise_scale(self) -> float:
        r"""The standard deviation of a step's noise, :math:`\sqrt{2 \epsilon T}`."""
        return math.sqrt(2 * self.step_size * self.temperature)

    def init(self, energy: Energy, x: Tensor) -> LangevinState:
        """Return the state of chains that start at x: (..., D)."""
        return LangevinState(energy.as_input(x).detach())

    @torch.no_grad()
    def step(
        self, energy: Energy, state: LangevinState, generator: torch.Generator
    ) -> tuple[LangevinState, Info]:
        """Move every chain."""
        x = state.position
        drift = self.step_size * energy.inverse_temperature * energy._score(x)
        position = x + drift + self.noise_scale * noise(x, generator)
        acceptance = x.new_ones(x.shape[:-1])
        return LangevinState(position), Info(acceptance, acceptance.bool())


@dataclass(frozen=True)
class MALA(Adjusted):
    r"""Metropolis-adjusted Langevin: Langevin's step as a proposal, accepted or rejected.

    The proposal y is accepted with probability

    .. math:: \min\Bigl(1, \frac{p(y)^{1/T}\, q(x \mid y)}{p(x)^{1/T}\, q(y \mid x)}\Bigr),
        \quad q(\cdot \mid x) = \mathcal N(x + \epsilon \nabla \log p(x), 2 \epsilon T I) ,

    which leaves :math:`p^{1/T}` invariant at any step size. It is one leapfrog of :class:`HMC`
    with step :math:`\sqrt{2 \epsilon T}`.

    Parameters
    ----------
    step_size, temperature : float
        As in :class:`Langevin`. ``sample(..., tune=True)`` finds the step size for the best
        acceptance rate, about 0.57.
    """

    step_size: float = 0.1
    temperature: float = 1.0

    target_acceptance: ClassVar[float] = 0.574

    @torch.no_grad()
    def step(
        self, energy: Energy, state: MetropolisState, generator: torch.Generator
    ) -> tuple[MetropolisState, Info]:
        """Move the chains whose proposal is accepted."""
        leapfrog = HMC(math.sqrt(2 * self.step_size * self.temperature), 1, self.temperature)
        return leapfrog.step(energy, state, generator)


class Scales(NamedTuple):
    """A map L, diagonal (D,) or lower triangular (D, D): HMC and NUTS move in z, where x = L z."""

    factor: Tensor
    inverse: Tensor

    @classmethod
    def of(cls, factor: Tensor) -> Scales:
        """Return the map with its inverse."""
        if factor.ndim == 1:
            return cls(factor, 1 / factor)
        unit = torch.eye(len(factor), dtype=factor.dtype, device=factor.device)
        return cls(factor, torch.linalg.solve_triangular(factor, unit, upper=False))

    def spread(self, z: Tensor) -> Tensor:
        """Return L z for z (..., D)."""
        return z * self.factor if self.factor.ndim == 1 else z @ self.factor.mT

    def pulled(self, score: Tensor) -> Tensor:
        """Return the score in the coordinates z, of a score (..., D)."""
        return score * self.factor if self.factor.ndim == 1 else score @ self.factor

    def shrunk(self, x: Tensor) -> Tensor:
        """Return z for x = L z (..., D)."""
        return x * self.inverse if self.factor.ndim == 1 else x @ self.inverse.mT


class Phase(NamedTuple):
    """Positions, velocities and scores (..., D) on trajectories."""

    position: Tensor
    velocity: Tensor
    score: Tensor


class Hamiltonian(Adjusted):
    """A sampler that moves by leapfrogs, in the units of its scales if it has any."""

    step_size: float
    temperature: float
    scales: Scales | None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.scales is not None:
            require_kind(self.scales, "scales", Scales)

    def _leapfrog(
        self, energy: Energy, start: Phase, step_size: float | Tensor
    ) -> tuple[Phase, Tensor]:
        """Return the phase one leapfrog ahead, and where it is finite."""
        push, scales = step_size * energy.inverse_temperature / self.temperature, self.scales
        velocity = start.velocity + push / 2 * (
            scales.pulled(start.score) if scales else start.score
        )
        position = start.position + step_size * (scales.spread(velocity) if scales else velocity)
        # Energies may refuse points that are not finite: a lost trajectory stays where it is.
        finite = torch.isfinite(position).all(-1)
        position = choose(finite, position, start.position)
        score = energy._score(position)
        velocity = velocity + push / 2 * (scales.pulled(score) if scales else score)
        return Phase(position, velocity, score), finite & torch.isfinite(score).all(-1)

    def _potential(self, energy: Energy, value: Tensor) -> Tensor:
        """Return energies (...) in nats at the temperature."""
        return energy.inverse_temperature * value / self.temperature


@dataclass(frozen=True)
class HMC(Hamiltonian):
    r"""Hamiltonian Monte Carlo: fresh momenta, a leapfrog trajectory, accept or reject.

    The trajectory follows :math:`H(x, v) = \beta_E E(x) / T + |v|^2 / 2` and is accepted with
    probability :math:`\min(1, e^{H - H'})`. A trajectory that diverges is rejected.

    Parameters
    ----------
    step_size : float
        :math:`\epsilon`, the time of one leapfrog. H is kept up to order :math:`\epsilon^2`.
    n_leapfrog : int
        Number of leapfrogs in a trajectory. Each costs one score.
    temperature : float
    jitter : float in [0, 1)
        Each trajectory draws its step size uniformly from
        :math:`(1 \pm \mathrm{jitter})\,\epsilon`, lest one of half a period only flip a direction.
    scales : Scales, optional
        The units of the velocity, found by ``sample(..., tune=True)``. Default: those of x.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.GaussianKDE(torch.zeros(1, 2), 1.0)
    >>> ist.sample(memory, 5, ist.HMC(step_size=0.3, n_leapfrog=5), burn_in=10).shape
    torch.Size([5, 2])
    """

    step_size: float = 0.1
    n_leapfrog: int = 10
    temperature: float = 1.0
    jitter: float = 0.0
    scales: Scales | None = field(default=None, repr=False, compare=False)

    target_acceptance: ClassVar[float] = 0.8

    def __post_init__(self) -> None:
        super().__post_init__()
        object.__setattr__(self, "n_leapfrog", as_count(self.n_leapfrog, "n_leapfrog"))
        object.__setattr__(self, "jitter", as_number(self.jitter, "jitter", at_least=0, below=1))

    @torch.no_grad()
    def trajectory(
        self,
        energy: Energy,
        state: MetropolisState,
        velocity: Tensor,
        step_size: float | Tensor | None = None,
    ) -> tuple[MetropolisState, Tensor, Tensor]:
        """Follow the leapfrogs: state, velocity (..., D), and True where it is finite (...).

        `step_size`, a number or (..., 1), replaces that of the sampler.
        """
        step_size = self.step_size if step_size is None else step_size
        phase = Phase(state.position, velocity, state.score)
        possible = torch.ones_like(state.energy, dtype=torch.bool)
        for _ in range(self.n_leapfrog):
            phase, finite = self._leapfrog(energy, phase, step_size)
            possible = possible & finite
        end = MetropolisState(phase.position, energy._energy(phase.position), phase.score)
        return end, phase.velocity, possible & torch.isfinite(end.energy)

    @torch.no_grad()
    def step(
        self, energy: Energy, state: MetropolisState, generator: torch.Generator
    ) -> tuple[MetropolisState, Info]:
        """Move the chains whose trajectory is accepted."""
        velocity, step_size = noise(state.position, generator), None
        if self.jitter:
            uniform = noise(state.energy, generator, torch.rand)[..., None]
            step_size = self.step_size * (1 + self.jitter * (2 * uniform - 1))
        proposal, end_velocity, possible = self.trajectory(energy, state, velocity, step_size)
        kinetic = (velocity.square() - end_velocity.square()).sum(-1) / 2
        log_ratio = self._potential(energy, state.energy - proposal.energy) + kinetic
        # A NaN ratio, such as that of two infinities, is a rejection.
        possible = possible & ~torch.isnan(log_ratio)
        acceptance = torch.where(possible, log_ratio.clamp(max=0).exp(), 0.0)
        # The uniform is below one and may be zero: strictly below, 1 always accepts and 0 never.
        accepted = noise(acceptance, generator, torch.rand) < acceptance
        chosen = (choose(accepted, new, old) for new, old in zip(proposal, state, strict=True))
        return MetropolisState(*chosen), Info(acceptance, accepted)
