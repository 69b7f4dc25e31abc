"""Training objectives of in-context models: small callable classes with one signature."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from isthmus.incontext.config import CheckedFields
from isthmus.incontext.langevin import BranchLangevin
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.proposals import Proposal

__all__ = [
    "ContrastiveDivergence",
    "DenoisingScoreMatching",
    "ImportanceLikelihood",
    "Objective",
    "PersistentContrastiveDivergence",
    "RankingNCE",
    "StatefulObjective",
]


class Objective(Protocol):
    """A loss to train an in-context model with: a function, or an object that is callable.

    It is called as ``objective(model, x, generator)`` with sequences x: (B, S, D) and the generator
    of all its random numbers. It returns a scalar loss with a graph to the model's parameters. A
    frozen dataclass is best: a resumed run compares its ``repr`` to check that the settings are
    the same.
    """

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of one batch."""
        ...


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective with a state that persists between calls and belongs in checkpoints."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state."""
        ...


@dataclass(frozen=True, kw_only=True)
class RankingNCE(CheckedFields):
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
class ImportanceLikelihood(CheckedFields):
    r"""Negative log-likelihood with :math:`Z \approx \frac1C \sum_c e^{-E(x_c)} / q(x_c)`.

    The logarithm of a mean of few terms underestimates :math:`\log Z`, and a model can learn to
    exploit that: the loss then falls while the likelihood does not. Use many candidates, and
    judge by exact likelihood (:func:`isthmus.incontext.evaluate`), never by this loss.

    Parameters are those of :class:`RankingNCE`.
    """

    candidates: int = 16
    proposal: Proposal = field(default_factory=Proposal)

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D)."""
        candidates = self.proposal.sample(x, self.candidates, generator)
        real, branch = model.real_and_branch_energy(x, candidates)
        weight = -branch - self.proposal.log_prob(x, candidates)
        log_normalizer = weight.logsumexp(dim=-1) - math.log(self.candidates)
        return (real + log_normalizer).mean()


def contrast(real: Tensor, branch: Tensor, regularization: float) -> Tensor:
    """Return mean E(real) - mean E(negative) plus a penalty on squared energies."""
    loss = real.mean() - branch.mean()
    if regularization:
        loss = loss + regularization * (real.square().mean() + branch.square().mean())
    return loss


@dataclass(frozen=True, kw_only=True)
class ContrastiveDivergence(CheckedFields):
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

    zero = ("regularization",)

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
class PersistentContrastiveDivergence(CheckedFields):
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

    zero = ("refresh",)

    def __post_init__(self) -> None:
        super().__post_init__()
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


@dataclass(frozen=True, kw_only=True)
class DenoisingScoreMatching(CheckedFields):
    r"""Match :math:`-\nabla E(\tilde x \mid x_{<n})` to :math:`(x_n - \tilde x)/\sigma^2`.

    Here :math:`\tilde x = x_n + \sigma\omega`. It needs no sampler and no proposal, but learns the
    density of data blurred by :math:`\sigma`, and does not learn the relative mass of modes that
    lie far apart (Vincent, 2011).

    Parameters
    ----------
    sigma : float
        Standard deviation of the blur.
    candidates : int
        Blurred copies of each point.
    """

    sigma: float = 0.15
    candidates: int = 1

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D)."""
        batch, length, dim = x.shape
        noise = torch.randn(
            batch, length, self.candidates, dim,
            generator=generator, dtype=x.dtype, device=x.device,
        )  # fmt: skip
        blurred = (x[:, :, None] + self.sigma * noise).requires_grad_()
        energy = model.branch_energy(x, blurred)
        (gradient,) = torch.autograd.grad(energy.sum(), blurred, create_graph=True)
        loss = 0.5 * (self.sigma * gradient - noise).square().sum(dim=-1).mean()
        # Distributed training needs a gradient for every parameter, and the bias has none here.
        return loss + 0 * energy.sum()
