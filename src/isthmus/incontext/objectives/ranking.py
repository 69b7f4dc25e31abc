"""Ranking noise-contrastive estimation: tell the real point from proposals."""

from __future__ import annotations

from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.incontext.model import ICLEBM
from isthmus.incontext.proposals import Proposal

__all__ = ["RankingNCE"]


@dataclass(frozen=True, kw_only=True)
class RankingNCE:
    r"""Which of C + 1 points is the real one? The default objective.

    With :math:`w(x) = -E(x \mid x_{<n}) - \log q(x \mid x_{<n})`, the loss at index n is

    .. math:: \log\Bigl(e^{w(x_n)} + \sum_{c=1}^C e^{w(x_c)}\Bigr) - w(x_n), \quad x_c \sim q,

    the cross-entropy of picking the real point. Its minimum is at the true conditional density,
    up to a factor for each context, for every C (Ma and Collins, 2018): unlike importance
    sampling it does not have to estimate the normaliser, so few candidates will do.

    Parameters
    ----------
    candidates : int
        C, for each index.
    proposal : Proposal
    """

    candidates: int = 4
    proposal: Proposal = field(default_factory=Proposal)

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of sequences x: (B, S, D)."""
        candidates = self.proposal.sample(x, self.candidates, generator)
        everything = torch.cat([x[:, :, None], candidates], dim=2)  # (B, S, 1 + C, D), real first
        log_proposal = self.proposal.log_prob(x, everything)
        real, branch = model.real_and_branch_energy(x, candidates)
        weight = -torch.cat([real[..., None], branch], dim=2) - log_proposal
        # A real point where the proposal has no mass says nothing about the ranking.
        usable = torch.isfinite(log_proposal[..., 0])
        weight = torch.where(usable[..., None], weight, 0.0)
        loss = weight.logsumexp(dim=-1) - weight[..., 0]
        return (loss * usable).sum() / usable.sum().clamp(min=1)
