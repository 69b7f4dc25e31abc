"""The sampler protocol, and the accept-or-reject step that MALA and HMC share."""

from __future__ import annotations

from typing import NamedTuple, Protocol, TypeVar, runtime_checkable

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import OutsideSupportError

__all__ = [
    "Info",
    "LangevinState",
    "MetropolisState",
    "Sampler",
    "accept_or_reject",
    "all_finite",
    "choose",
    "evaluate",
    "standard_normal",
    "standard_uniform",
    "start",
]


class LangevinState(NamedTuple):
    """Positions of chains whose steps are not adjusted."""

    position: Tensor
    """(..., D)"""


class MetropolisState(NamedTuple):
    """Positions of chains, and the energy and score there, which the next proposal needs."""

    position: Tensor
    """(..., D)"""
    energy: Tensor
    """(...)"""
    score: Tensor
    """(..., D)"""


class Info(NamedTuple):
    """The outcome of one step of each chain."""

    acceptance: Tensor
    """Probability of accepting the proposal. (...)"""
    accepted: Tensor
    """True where the proposal was accepted. (...) bool"""


class ChainState(Protocol):
    """An object with the positions of chains: (..., D)."""

    @property
    def position(self) -> Tensor:
        """Positions of the chains: (..., D)."""
        ...


StateT = TypeVar("StateT", bound=ChainState)


@runtime_checkable
class Sampler(Protocol[StateT]):
    """Two pure functions; any object with both is a sampler for :func:`isthmus.sample`."""

    def init(self, energy: Energy, x: Tensor) -> StateT:
        """Return the state of chains that start at x: (..., D)."""
        ...

    def step(
        self, energy: Energy, state: StateT, generator: torch.Generator
    ) -> tuple[StateT, Info]:
        """Return the state after one step, and its outcome. All noise is from `generator`."""
        ...


def standard_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return standard normal noise of the shape, dtype and device of `like`."""
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return noise.to(like.device)


def standard_uniform(like: Tensor, generator: torch.Generator) -> Tensor:
    """Return uniform noise from [0, 1) of the shape, dtype and device of `like`."""
    noise = torch.rand(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return noise.to(like.device)


def start(energy: Energy, x: Tensor) -> MetropolisState:
    """Return the state of chains at x: (..., D). The energy and score there must be finite."""
    x = x.detach()
    value = energy.energy(x)
    _require_finite_start(torch.isfinite(value))
    score = energy.score(x)
    _require_finite_start(all_finite(score))
    return MetropolisState(x, value, score)


def _require_finite_start(finite: Tensor) -> None:
    bad = int((~finite).sum())
    if bad:
        raise OutsideSupportError(
            f"{bad} of {finite.numel()} chains start where the energy or its score is not finite. "
            "Pass an init inside the support, for example the memories."
        )


def evaluate(
    energy: Energy, proposal: Tensor, state: MetropolisState
) -> tuple[MetropolisState, Tensor]:
    """Return the state at the proposals, and a mask of those that are possible: (...) bool.

    Energies may refuse points that are not finite, and scores may not exist outside the support.
    Impossible proposals are therefore replaced by the old position before each evaluation.
    """
    possible = all_finite(proposal)
    proposal = choose(possible, proposal, state.position)
    value = energy.energy(proposal)
    possible = possible & torch.isfinite(value)
    proposal = choose(possible, proposal, state.position)
    score = energy.score(proposal)
    return MetropolisState(proposal, value, score), possible & all_finite(score)


def accept_or_reject(
    state: MetropolisState,
    proposal: MetropolisState,
    log_ratio: Tensor,
    possible: Tensor,
    generator: torch.Generator,
) -> tuple[MetropolisState, Info]:
    """Accept the proposal of each chain with probability min(1, exp(log_ratio)).

    A NaN ratio, such as that of two infinities, is a rejection.
    """
    possible = possible & ~torch.isnan(log_ratio)
    acceptance = torch.where(possible, log_ratio.clamp(max=0).exp(), 0.0)
    # The uniform is below one and may be zero: strictly below, 1 always accepts and 0 never.
    accepted = standard_uniform(acceptance, generator) < acceptance
    chosen = (choose(accepted, new, old) for new, old in zip(proposal, state, strict=True))
    return MetropolisState(*chosen), Info(acceptance, accepted)


def all_finite(x: Tensor) -> Tensor:
    """Return True for points whose coordinates are all finite. x: (..., D) -> (...)."""
    return torch.isfinite(x).all(-1)


def choose(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """Return `new` where the mask (...) is True, else `old`; both are (...) or (..., D)."""
    return torch.where(mask if new.ndim == mask.ndim else mask[..., None], new, old)
