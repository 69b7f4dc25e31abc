"""What a sampler is, and the accept-or-reject step that MALA and HMC share."""

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
    "start",
]


class LangevinState(NamedTuple):
    """Where the chains stand; unadjusted steps need to remember nothing else."""

    position: Tensor
    """(..., D)"""


class MetropolisState(NamedTuple):
    """Where the chains stand, with what the next proposal will need of the energy there."""

    position: Tensor
    """(..., D)"""
    energy: Tensor
    """(...)"""
    score: Tensor
    """(..., D)"""


class Info(NamedTuple):
    """What one step did to each chain."""

    acceptance: Tensor
    """The probability with which the proposal was to be accepted. (...)"""
    accepted: Tensor
    """Whether it was. (...) bool"""


class State(Protocol):
    """Anything with a position: (..., D)."""

    @property
    def position(self) -> Tensor:
        """Where the chains stand: (..., D)."""
        ...


StateT = TypeVar("StateT", bound=State)


@runtime_checkable
class Sampler(Protocol[StateT]):
    """Two pure functions. Write them, and :func:`isthmus.sample` runs on your sampler too."""

    def init(self, energy: Energy, x: Tensor) -> StateT:
        """The state of chains that start at x: (..., D)."""
        ...

    def step(
        self, energy: Energy, state: StateT, generator: torch.Generator
    ) -> tuple[StateT, Info]:
        """The state after one step, and how the step went. All noise is from `generator`."""
        ...


def standard_normal(like: Tensor, generator: torch.Generator) -> Tensor:
    """Standard normal noise of the shape, dtype and device of `like`."""
    noise = torch.randn(like.shape, generator=generator, dtype=like.dtype, device=generator.device)
    return noise.to(like.device)


def start(energy: Energy, x: Tensor) -> MetropolisState:
    """The state of chains at x: (..., D), where the energy and its score must be finite."""
    x = x.detach()
    value = energy.energy(x)
    _require_a_way_out(torch.isfinite(value))
    score = energy.score(x)
    _require_a_way_out(all_finite(score))
    return MetropolisState(x, value, score)


def _require_a_way_out(finite: Tensor) -> None:
    bad = int((~finite).sum())
    if bad:
        raise OutsideSupportError(
            f"{bad} of {finite.numel()} chains start where the energy or its score is not finite, "
            "so that no step could be proposed or compared. Pass an init inside the support, "
            "for example the memories themselves."
        )


def evaluate(
    energy: Energy, proposal: Tensor, state: MetropolisState
) -> tuple[MetropolisState, Tensor]:
    """The state at the proposals, and which of them are possible: (...) bool.

    Energies may refuse points that are not finite, and scores may not exist outside the support,
    so the impossible proposals are replaced by the old position before asking on.
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
    """Metropolis: each chain takes its proposal with probability min(1, exp(log_ratio)).

    A ratio that is NaN, as that of two infinities, is a rejection.
    """
    possible = possible & ~torch.isnan(log_ratio)
    acceptance = torch.where(possible, log_ratio.clamp(max=0).exp(), 0.0)
    uniform = torch.rand(
        acceptance.shape, generator=generator, dtype=acceptance.dtype, device=generator.device
    )
    # The uniform is below one and may be zero: strictly below, 1 always accepts and 0 never.
    accepted = uniform.to(acceptance.device) < acceptance
    chosen = (choose(accepted, new, old) for new, old in zip(proposal, state, strict=True))
    return MetropolisState(*chosen), Info(acceptance, accepted)


def all_finite(x: Tensor) -> Tensor:
    """Whether all coordinates of each point are finite. x: (..., D) -> (...)."""
    return torch.isfinite(x).all(-1)


def choose(mask: Tensor, new: Tensor, old: Tensor) -> Tensor:
    """`new` where the chain is marked, `old` elsewhere. mask: (...); both: (...) or (..., D)."""
    return torch.where(mask if new.ndim == mask.ndim else mask[..., None], new, old)
