"""Maximum likelihood with a normaliser by importance sampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from isthmus.incontext.model import ICLEBM
from isthmus.incontext.proposals import Proposal

__all__ = ["ImportanceLikelihood"]


@dataclass(frozen=True, kw_only=True)
class ImportanceLikelihood:
    r"""Negative log-likelihood with :math:`Z \approx \frac1C \sum_c e^{-E(x_c)} / q(x_c)`.

    The logarithm of a mean of few terms underestimates :math:`\log Z`, and a model can learn to
    exploit that: the loss then promises more than the model holds. Take many candidates, and
    judge by exact likelihood (:func:`isthmus.incontext.evaluate`), never by this loss.

    Parameters
    ----------
    candidates : int
        C, for each index.
    proposal : Proposal
    """

    candidates: int = 16
    proposal: Proposal = field(default_factory=Proposal)

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of sequences x: (B, S, D)."""
        candidates = self.proposal.sample(x, self.candidates, generator)
        real, branch = model.real_and_branch_energy(x, candidates)
        weight = -branch - self.proposal.log_prob(x, candidates)
        log_normalizer = weight.logsumexp(dim=-1) - math.log(self.candidates)
        return (real + log_normalizer).mean()
