"""Objectives that compare the real point with candidates drawn from a proposal."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.incontext.fields import check_fields
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.proposals import Proposal

__all__ = ["ImportanceLikelihood", "RankingNCE"]


@dataclass(frozen=True, kw_only=True)
class RankingNCE:
    r"""Ranking noise-contrastive estimation, the default objective.

    With :math:`w(x) = -E(x \mid x_{<n}) - \log q(x \mid x_{<n})`, the loss at index n is

    .. math:: \log\Bigl(e^{w(x_n)} + \sum_{c=1}^C e^{w(x_c)}\Bigr) - w(x_n), \quad x_c \sim q,

    the cross-entropy of picking the real point among C + 1. Its minimum is at the true conditional
    density, up to a factor for each context, for every C (Ma and Collins, 2018). Unlike importance
    sampling it does not estimate the normaliser, so few candidates suffice.

    Parameters
    ----------
    candidates : int
        C, for each index.
    proposal : Proposal
    """

    candidates: int = 4
    proposal: Proposal = field(default_factory=Proposal)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D)."""
        candidates = self.proposal.sample(x, self.candidates, generator)
        everything = torch.cat([x[:, :, None], candidates], dim=2)  # (B, S, 1 + C, D), real first
        log_proposal = self.proposal.log_prob(x, everything)
        real, branch = model.real_and_branch_energy(x, candidates)
        weight = -torch.cat([real[..., None], branch], dim=2) - log_proposal
        # A real point where the proposal has no mass carries no information about the ranking.
        usable = torch.isfinite(log_proposal[..., 0])
        weight = torch.where(usable[..., None], weight, 0.0)
        loss = weight.logsumexp(dim=-1) - weight[..., 0]
        return (loss * usable).sum() / usable.sum().clamp(min=1)


@dataclass(frozen=True, kw_only=True)
class ImportanceLikelihood:
    r"""Negative log-likelihood with :math:`Z \approx \frac1C \sum_c e^{-E(x_c)} / q(x_c)`.

    The logarithm of a mean of few terms underestimates :math:`\log Z`, and a model can learn to
    exploit that: the loss then falls while the likelihood does not. Use many candidates, and
    judge by exact likelihood (:func:`isthmus.incontext.evaluate`), never by this loss.

    Parameters
    ----------
    candidates : int
        C, for each index.
    proposal : Proposal
    """

    candidates: int = 16
    proposal: Proposal = field(default_factory=Proposal)

    def __post_init__(self) -> None:
        check_fields(self)

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D)."""
        candidates = self.proposal.sample(x, self.candidates, generator)
        real, branch = model.real_and_branch_energy(x, candidates)
        weight = -branch - self.proposal.log_prob(x, candidates)
        log_normalizer = weight.logsumexp(dim=-1) - math.log(self.candidates)
        return (real + log_normalizer).mean()
