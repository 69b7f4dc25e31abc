"""Contrastive divergence: lower the energy of data, raise it where chains lead."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.incontext.langevin import BranchLangevin
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.proposals import Proposal

__all__ = ["ContrastiveDivergence", "PersistentContrastiveDivergence"]


def contrast(real: Tensor, branch: Tensor, regularization: float) -> Tensor:
    """mean E(real) - mean E(negative), plus a penalty on large energies of either."""
    loss = real.mean() - branch.mean()
    if regularization:
        loss = loss + regularization * (real.square().mean() + branch.square().mean())
    return loss


@dataclass(frozen=True, kw_only=True)
class ContrastiveDivergence:
    r"""The paper's objective, with negatives :math:`x^-_n` by Langevin dynamics.

    .. math:: E(x_n \mid x_{<n}) - E(x^-_n \mid x_{<n}), \quad \text{averaged over n}

    The gradient does not pass through the sampler. The real and the negative point share the
    context :math:`x_{<n}` (errata E23 and E24); index 0 is trained too.

    Parameters
    ----------
    candidates : int
        Negatives for each index.
    sampler : BranchLangevin
    proposal : Proposal
        Where negatives start.
    regularization : float
        Weight of the mean squared energy.
    """

    candidates: int = 3
    sampler: BranchLangevin = field(default_factory=BranchLangevin.calibrated)
    proposal: Proposal = field(default_factory=Proposal)
    regularization: float = 1e-3

    @classmethod
    def paper(cls, box: float = 15.0) -> ContrastiveDivergence:
        """The paper's sampler, and the authors' uniform starts and regulariser."""
        return cls(sampler=BranchLangevin.paper(), proposal=Proposal(box=box, uniform=1.0))

    @classmethod
    def calibrated(cls, box: float = 5.5) -> ContrastiveDivergence:
        """Chains at temperature 1 that start near the data."""
        return cls(sampler=BranchLangevin.calibrated(box), proposal=Proposal(box=box))

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of sequences x: (B, S, D)."""
        start = self.proposal.sample(x, self.candidates, generator)
        negative = self.sampler.run(model, x, start, generator)
        return contrast(*model.real_and_branch_energy(x, negative), self.regularization)


@dataclass(kw_only=True)
class PersistentContrastiveDivergence:
    """Contrastive divergence whose chains go on from call to call.

    Chains belong to a dataset, and every step brings new ones. So a replay buffer keeps the last
    few batches with their chains: each call takes one of them at random and moves its chains on,
    or puts the new batch in its place and starts chains there.

    Parameters
    ----------
    chains : ContrastiveDivergence
        The sampler, the starts and the penalty.
    pool : int
        Batches in the buffer.
    refresh : float
        Probability that a call replaces a batch of the full buffer.
    """

    chains: ContrastiveDivergence = field(default_factory=ContrastiveDivergence)
    pool: int = 20
    refresh: float = 0.1

    def __post_init__(self) -> None:
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of x: (B, S, D), or of a batch in the buffer."""
        place, chance = torch.rand(2, generator=generator, device=generator.device).tolist()
        slot, renew = int(place * self.pool), chance < self.refresh
        if slot >= len(self._kept) or renew:
            slot = min(slot, len(self._kept))
            negative = self.chains.proposal.sample(x, self.chains.candidates, generator)
            self._kept[slot : slot + 1] = [(x, negative)]
        x, negative = self._kept[slot]
        negative = self.chains.sampler.run(model, x, negative, generator)
        self._kept[slot] = (x, negative)
        return contrast(*model.real_and_branch_energy(x, negative), self.chains.regularization)

    def state_dict(self) -> dict[str, Tensor]:
        """The batches and chains in the buffer."""
        state = {}
        for slot, (x, negative) in enumerate(self._kept):
            state[f"{slot}.x"], state[f"{slot}.n"] = x, negative
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up the buffer of an earlier run."""
        slots = range(len(state) // 2)
        self._kept = [(state[f"{slot}.x"], state[f"{slot}.n"]) for slot in slots]
