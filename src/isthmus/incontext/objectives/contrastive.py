"""Contrastive divergence: lower the energy of data and raise it where chains end."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.incontext.fields import check_fields
from isthmus.incontext.langevin import BranchLangevin
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.proposals import Proposal

__all__ = ["ContrastiveDivergence", "PersistentContrastiveDivergence"]


def contrast(real: Tensor, branch: Tensor, regularization: float) -> Tensor:
    """Return mean E(real) - mean E(negative) plus a penalty on squared energies."""
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
        Distribution of the chains' starting points.
    regularization : float
        Weight of the mean squared energy.
    """

    candidates: int = 3
    sampler: BranchLangevin = field(default_factory=BranchLangevin.calibrated)
    proposal: Proposal = field(default_factory=Proposal)
    regularization: float = 1e-3

    def __post_init__(self) -> None:
        check_fields(self, zero=("regularization",))

    @classmethod
    def paper(cls, box: float = 15.0) -> ContrastiveDivergence:
        """Use the paper's sampler and its authors' uniform starts and regulariser."""
        return cls(sampler=BranchLangevin.paper(), proposal=Proposal(box=box, uniform=1.0))

    @classmethod
    def calibrated(cls, box: float = 5.5) -> ContrastiveDivergence:
        """Use chains at temperature 1 that start near the data."""
        return cls(sampler=BranchLangevin.calibrated(box), proposal=Proposal(box=box))

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D)."""
        start = self.proposal.sample(x, self.candidates, generator)
        negative = self.sampler.run(model, x, start, generator)
        return contrast(*model.real_and_branch_energy(x, negative), self.regularization)


@dataclass(kw_only=True)
class PersistentContrastiveDivergence:
    """Contrastive divergence whose chains continue from call to call.

    Chains belong to a dataset, and every call brings new datasets. A replay buffer therefore holds
    some batches with their chains: each call picks one at random and continues its chains, or
    replaces it by the new batch and starts chains there.

    Parameters
    ----------
    chains : ContrastiveDivergence
        Sampler, starting points and penalty.
    pool : int
        Batches in the buffer.
    refresh : float
        Probability that a call replaces the batch that it picked.
    """

    chains: ContrastiveDivergence = field(default_factory=ContrastiveDivergence)
    pool: int = 20
    refresh: float = 0.1

    def __post_init__(self) -> None:
        check_fields(self, zero=("refresh",))
        self._kept: list[tuple[Tensor, Tensor]] = []

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D), or of a batch in the buffer."""
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
        """Return the batches and chains in the buffer."""
        state = {}
        for slot, (x, negative) in enumerate(self._kept):
            state[f"{slot}.x"], state[f"{slot}.n"] = x, negative
        return state

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the buffer of an earlier run."""
        slots = range(len(state) // 2)
        self._kept = [(state[f"{slot}.x"], state[f"{slot}.n"]) for slot in slots]
