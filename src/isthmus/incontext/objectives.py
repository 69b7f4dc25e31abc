"""Training objectives: losses, and the proposals and Langevin chains that make candidates."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor

from isthmus.errors import DivergenceError
from isthmus.incontext.config import CheckedFields
from isthmus.incontext.model import ICLEBM
from isthmus.validation import as_number

__all__ = [
    "BranchLangevin",
    "ContrastiveDivergence",
    "DenoisingScoreMatching",
    "Objective",
    "PersistentContrastiveDivergence",
    "Proposal",
    "RankingNCE",
    "StatefulObjective",
]


@dataclass(frozen=True, kw_only=True)
class Proposal(CheckedFields):
    r"""The density :math:`q(x \mid x_{<n}) = u\,U(\text{box}) + (1-u)\,\mathrm{KDE}_h(x_{<n})`.

    At n = 0 it is uniform on the cube [-box, box]^D. Candidates for all indices are drawn at once.

    Parameters
    ----------
    box : float
        Half-width of the cube.
    uniform : float
        Weight u of the uniform part, in (0, 1].
    bandwidth : float
        Standard deviation h of the kernel at each earlier point.
    """

    box: float = 5.5
    uniform: float = 0.3
    bandwidth: float = 0.6

    def __post_init__(self) -> None:
        super().__post_init__()
        as_number(self.uniform, "uniform", above=0, at_most=1)

    def sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` candidates for each index. x: (B, S, D) -> (B, S, count, D)."""
        batch, length, dim = x.shape
        shape = (batch, length, count)
        options: Any = {"generator": generator, "dtype": x.dtype, "device": x.device}
        spread = (2 * torch.rand(*shape, dim, **options) - 1) * self.box
        if self.uniform == 1:
            return spread
        index = torch.arange(length, device=x.device)[:, None]
        which = (torch.rand(shape, **options) * index).long()  # an earlier index, or 0
        center = x.gather(1, which.view(batch, -1, 1).expand(-1, -1, dim)).view(*shape, dim)
        near = center + self.bandwidth * torch.randn(*shape, dim, **options)
        far = (torch.rand(shape, **options) < self.uniform) | (index == 0)
        return torch.where(far[..., None], spread, near)

    def log_prob(self, x: Tensor, candidates: Tensor) -> Tensor:
        """Return log q of candidates (B, S, C, D) given sequences x (B, S, D): (B, S, C)."""
        length, dim = x.shape[1:]
        inside = (candidates.abs() <= self.box).all(dim=-1)
        flat = candidates.new_full((), -dim * math.log(2 * self.box))
        flat = torch.where(inside, flat, -math.inf)  # (B, S, C)
        if self.uniform == 1 or length == 0:
            return flat
        index = torch.arange(length, device=x.device)
        direct = "donot_use_mm_for_euclid_dist"  # exact also for a candidate at a context point
        distance = torch.cdist(candidates.flatten(1, 2), x, compute_mode=direct)
        exponent = -0.5 * (distance / self.bandwidth).square().view(*flat.shape, length)
        exponent = exponent.masked_fill(index >= index[:, None, None], -math.inf)
        constant = dim / 2 * math.log(2 * math.pi) + dim * math.log(self.bandwidth)
        near = exponent.logsumexp(dim=-1) - constant - index.clamp(min=1).log()[:, None]
        mixed = torch.logaddexp(flat + math.log(self.uniform), near + math.log1p(-self.uniform))
        return torch.where(index[:, None] == 0, flat, mixed)


@dataclass(frozen=True, kw_only=True)
class BranchLangevin(CheckedFields):
    r"""Move the candidates of every index n, each on its own energy.

    .. math:: x \leftarrow x + s\,\omega, \qquad x \leftarrow x - \alpha\,\nabla E(x \mid x_{<n})

    Noise comes first, as in the authors' code. The temperature is :math:`s^2 / (2\alpha)`: 1 with
    :meth:`calibrated`, which samples; 1.6e-5 with :meth:`paper`, which descends (erratum E22).

    Parameters
    ----------
    steps : int
    step_size : float
        The step :math:`\alpha`.
    noise : float
        The standard deviation s of the noise of one step.
    clip : float, optional
        Bound on each coordinate of the gradient. Default: none.
    box : float, optional
        Half-width of the cube that candidates are clamped to. Default: none.
    """

    steps: int = 15
    step_size: float = 0.045
    noise: float = 0.3
    clip: float | None = None
    box: float | None = None

    zero = ("steps", "noise")

    @classmethod
    def paper(cls) -> BranchLangevin:
        """Use the paper's settings: 15 steps of size 3.16 with noise 0.01."""
        return cls(steps=15, step_size=3.16, noise=0.01)

    @classmethod
    def calibrated(cls, box: float | None = None) -> BranchLangevin:
        """Use temperature 1: noise eps = 0.3, step eps^2 / 2, gradient clipped at 10."""
        return cls(steps=15, step_size=0.045, noise=0.3, clip=10.0, box=box)

    @property
    def temperature(self) -> float:
        """Temperature that these settings sample at, in the limit of small steps."""
        return self.noise**2 / (2 * self.step_size)

    @torch.no_grad()
    def run(
        self, model: ICLEBM, x: Tensor, candidates: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return candidates (B, S, C, D) moved given the real sequences x (B, S, D)."""
        length, count = candidates.shape[1:3]
        options: Any = {"generator": generator, "dtype": x.dtype, "device": x.device}
        index = torch.arange(length, device=x.device).repeat_interleave(count)
        cache, mask = model.encode(x), model.mask(index, length)
        state = candidates.detach().flatten(1, 2).clone()  # (B, S C, D)
        for step in range(self.steps):
            if self.noise:
                state += self.noise * torch.randn(state.shape, **options)
            gradient = model.candidate_gradient(state, cache, index, mask)
            if self.clip is not None:
                gradient.clamp_(-self.clip, self.clip)
            state -= self.step_size * gradient
            if self.box is not None:
                state.clamp_(-self.box, self.box)
            if not bool(torch.isfinite(state).all()):
                raise DivergenceError(
                    f"Candidates overflowed at step {step + 1} of {self.steps} with "
                    f"step_size={self.step_size:g}. Use a smaller one, or set clip or box."
                )
        return state.view(candidates.shape)


class Objective(Protocol):
    """A loss to train an in-context model with.

    A frozen dataclass is best: a resumed run compares its ``repr`` with that of the settings.
    """

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of sequences x: (B, S, D); random numbers come from the generator."""
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

    the cross-entropy of picking the real point among C + 1. For every C its minimum is the true
    conditional density, up to a factor for each context (Ma and Collins, 2018).

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

    Real and negative points share the context :math:`x_{<n}` (errata E23 and E24); index 0 is
    trained too. The gradient does not pass through the sampler.

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

    Chains belong to a dataset, so a buffer holds batches with their chains: each call picks one at
    random and continues its chains, or replaces it by the new batch and starts chains there.

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
        state = {f"{slot}.x": x for slot, (x, _) in enumerate(self._kept)}
        return state | {f"{slot}.n": negative for slot, (_, negative) in enumerate(self._kept)}

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore the buffer of an earlier run."""
        slots = range(len(state) // 2)
        self._kept = [(state[f"{slot}.x"], state[f"{slot}.n"]) for slot in slots]


@dataclass(frozen=True, kw_only=True)
class DenoisingScoreMatching(CheckedFields):
    r"""Match :math:`-\nabla E(\tilde x \mid x_{<n})` to :math:`(x_n - \tilde x)/\sigma^2`.

    Here :math:`\tilde x = x_n + \sigma\omega`. It needs no sampler, but learns the density of data
    blurred by :math:`\sigma`, and not the relative mass of modes far apart (Vincent, 2011).

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
        shape = (*x.shape[:2], self.candidates, x.shape[2])
        noise = torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)
        blurred = (x[:, :, None] + self.sigma * noise).requires_grad_()
        energy = model.branch_energy(x, blurred)
        (gradient,) = torch.autograd.grad(energy.sum(), blurred, create_graph=True)
        loss = 0.5 * (self.sigma * gradient - noise).square().sum(dim=-1).mean()
        # Distributed training needs a gradient for every parameter, and the bias has none here.
        return loss + 0 * energy.sum()
