"""Training objectives: losses, and the proposals and Langevin chains that make candidates.

A plain energy is trained as an in-context model whose context is empty (`model.unconditional`): its
batch is (B, 1, D), and every row may be compared with the candidates of all.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass, field
from typing import Any, Protocol, runtime_checkable

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import DivergenceError, UnsupportedOperationError
from isthmus.incontext.config import CheckedFields
from isthmus.validation import as_number

# An in-context model, or an energy as one: `unconditional`, `real_and_branch_energy`,
# `branch_energy` and `branch_gradient`.
Model = Any
# A chain that left its start by more than this many units of the rows has no energy to hold it.
FARTHEST = 1e3


@dataclass(frozen=True, kw_only=True)
class Proposal(CheckedFields):
    r"""The density :math:`q(x \mid x_{<n}) = u\,U(\text{box}) + (1-u)\,\mathrm{KDE}_h(x_{<n})`.

    At n = 0 it is uniform on the cube [-box, box]^D. Candidates for all indices are drawn at once.

    Parameters
    ----------
    box, uniform, bandwidth : float
        Half-width of the cube, weight u of the uniform part, in (0, 1], and standard deviation h of
        the kernel at each earlier point.
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


@dataclass(frozen=True, eq=False)
class EnergyProposal:
    """A density to draw candidates from, whatever the context.

    Parameters
    ----------
    energy : Energy
        With exact draws and a known normaliser.
    """

    energy: Energy

    def sample(self, x: Tensor, count: int, generator: torch.Generator) -> Tensor:
        """Draw `count` candidates for each index. x: (B, S, D) -> (B, S, count, D)."""
        drawn = self.energy._sample(x.shape[:-1].numel() * count, generator)
        return drawn.to(x).view(*x.shape[:2], count, x.shape[2])

    @torch.no_grad()
    def log_prob(self, x: Tensor, candidates: Tensor) -> Tensor:
        """Return log q of candidates (B, S, C, D): (B, S, C)."""
        return self.energy._log_prob(candidates)


@dataclass(frozen=True, kw_only=True)
class BranchLangevin(CheckedFields):
    r"""Move the candidates of every index n, each on its own energy.

    .. math:: x \leftarrow x + s\,\omega, \qquad x \leftarrow x - \alpha\,\nabla E(x \mid x_{<n})

    Noise comes first, as in the authors' code. The temperature is :math:`s^2 / (2\alpha)`: 1 with
    :meth:`calibrated`, which samples; 1.6e-5 with :meth:`paper`, which descends (erratum E22).

    Parameters
    ----------
    steps : int
    step_size, noise : float
        The step :math:`\alpha`, and the standard deviation s of the noise of one step.
    clip, box : float, optional
        Bound on each coordinate of the gradient, and half-width of the cube that candidates are
        clamped to. Default: none.
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
        self, model: Model, x: Tensor, candidates: Tensor, generator: torch.Generator
    ) -> Tensor:
        """Return candidates (B, S, C, D) moved given the real sequences x (B, S, D)."""
        options: Any = {"generator": generator, "dtype": x.dtype, "device": x.device}
        gradient_of = model.branch_gradient(x, candidates.shape[2])
        state = candidates.detach().flatten(1, 2).clone()  # (B, S C, D)
        for step in range(self.steps):
            if self.noise:
                state += self.noise * torch.randn(state.shape, **options)
            gradient = gradient_of(state)
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
        if model.unconditional and float(state.abs().amax()) > FARTHEST:
            raise DivergenceError(
                "Chains left the data: the energy has no lower bound. Add a term that grows with "
                "the distance, as isthmus.NeuralEnergy has, or set box of the sampler."
            )
        return state.view(candidates.shape)


class Objective(Protocol):
    """A loss of sequences x (B, S, D), whose random numbers come from the generator.

    A frozen dataclass is best: a resumed run compares its ``repr`` with that of the settings.
    """

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss."""
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
class _NoiseContrastive(CheckedFields):
    """Classification of real points against candidates of a proposal."""

    candidates: int = 4
    proposal: Proposal | EnergyProposal = field(default_factory=Proposal)

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        candidates = self.proposal.sample(x, self.candidates, generator)
        everything = torch.cat([x[:, :, None], candidates], dim=2)  # (B, S, 1 + C, D), real first
        log_proposal = self.proposal.log_prob(x, everything)
        real, branch = model.real_and_branch_energy(x, candidates)
        weight = -torch.cat([real[..., None], branch], dim=2) - log_proposal
        # A real point where the proposal has no mass carries no information.
        usable = torch.isfinite(log_proposal[..., 0])
        weight = torch.where(usable[..., None], weight, 0.0)
        loss = self._loss(weight, shared=model.unconditional)
        return (loss * usable).sum() / usable.sum().clamp(min=1)

    @abstractmethod
    def _loss(self, weight: Tensor, shared: bool) -> Tensor:
        """Return losses (B, S) from -E - log q of real points and candidates (B, S, 1 + C)."""


@dataclass(frozen=True, kw_only=True)
class RankingNCE(_NoiseContrastive):
    r"""Ranking noise-contrastive estimation, the default objective.

    With :math:`w(x) = -E(x \mid x_{<n}) - \log q(x \mid x_{<n})`, the loss at index n is

    .. math:: \log\Bigl(e^{w(x_n)} + \sum_{c=1}^C e^{w(x_c)}\Bigr) - w(x_n), \quad x_c \sim q,

    the cross-entropy of picking the real point among C + 1. For every C its minimum is the true
    conditional density, up to a factor for each context (Ma and Collins, 2018). Rows without a
    context share their candidates.

    Parameters
    ----------
    candidates : int
        C, for each index.
    proposal : Proposal or EnergyProposal
    """

    def _loss(self, weight: Tensor, shared: bool) -> Tensor:
        if shared:
            together = weight[..., 1:].flatten().logsumexp(0)
            return torch.logaddexp(weight[..., 0], together) - weight[..., 0]
        return weight.logsumexp(dim=-1) - weight[..., 0]


@dataclass(frozen=True, kw_only=True)
class BinaryNCE(_NoiseContrastive):
    r"""Noise-contrastive estimation: tell a real point from C candidates one by one.

    .. math:: -\log \varsigma(v(x_n)) - \sum_{c=1}^C \log \varsigma(-v(x_c)), \qquad
        v(x) = -E(x) - \log q(x) - \log C

    At its minimum the energy is the negative log-density itself, normaliser included (Gutmann and
    Hyvärinen, 2012). Parameters as of :class:`RankingNCE`.
    """

    def _loss(self, weight: Tensor, shared: bool) -> Tensor:
        weight = weight - math.log(self.candidates)
        return F.softplus(-weight[..., 0]) + F.softplus(weight[..., 1:]).sum(dim=-1)


@dataclass(frozen=True)
class MaximumLikelihood:
    """The mean negative log-density, of energies whose normaliser is known."""

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        if not model.unconditional:
            raise UnsupportedOperationError(
                "The normaliser of an in-context energy is not known. Use RankingNCE."
            )
        loss: Tensor = -model.log_prob(x).mean()
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
    proposal : Proposal or EnergyProposal
        Distribution of the chains' starting points.
    regularization : float
        Weight of the mean squared energy.
    """

    candidates: int = 3
    sampler: BranchLangevin = field(default_factory=BranchLangevin.calibrated)
    proposal: Proposal | EnergyProposal = field(default_factory=Proposal)
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

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        start = self.proposal.sample(x, self.candidates, generator)
        return self._contrast(model, x, self.sampler.run(model, x, start, generator))

    def _contrast(self, model: Model, x: Tensor, negative: Tensor) -> Tensor:
        real, branch = model.real_and_branch_energy(x, negative)
        loss: Tensor = real.mean() - branch.mean()
        if self.regularization:
            loss = loss + self.regularization * (real.square().mean() + branch.square().mean())
        return loss


@dataclass(kw_only=True)
class PersistentContrastiveDivergence(CheckedFields):
    """Contrastive divergence whose chains continue from call to call.

    Chains belong to a dataset, so a buffer holds batches with their chains: each call picks one at
    random and continues its chains, or replaces it by the new batch and starts chains there. Chains
    of a plain energy belong to none: the batch is always the new one.

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

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        place, chance = torch.rand(2, generator=generator, device=generator.device).tolist()
        slot = min(int(place * self.pool), len(self._kept))
        if slot == len(self._kept) or chance < self.refresh:
            negative = self.chains.proposal.sample(x, self.chains.candidates, generator)
            self._kept[slot : slot + 1] = [(x, negative)]
        kept, negative = self._kept[slot]
        x = x if model.unconditional else kept
        negative = self.chains.sampler.run(model, x, negative, generator)
        self._kept[slot] = (x, negative)
        return self.chains._contrast(model, x, negative)

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

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        noise = _normal(x, self.candidates, generator)
        nothing, gradient = _slope(model, x, x[:, :, None] + self.sigma * noise)
        return 0.5 * (self.sigma * gradient - noise).square().sum(dim=-1).mean() + nothing


@dataclass(frozen=True, kw_only=True)
class SlicedScoreMatching(CheckedFields):
    r"""Fit the score along random directions v, without noise and without a sampler.

    .. math:: \tfrac12 \lVert \nabla E(x_n) \rVert^2 - v^\top \nabla^2 E(x_n)\, v,
        \qquad v \sim N(0, I)

    Its mean is that of score matching (Song et al., 2019).

    Parameters
    ----------
    candidates : int
        Directions for each point.
    """

    candidates: int = 1

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        direction = _normal(x, self.candidates, generator)
        points = x[:, :, None].expand(direction.shape).clone().requires_grad_()
        nothing, gradient = _slope(model, x, points)
        (curved,) = torch.autograd.grad(
            (gradient * direction).sum(), points, create_graph=True, materialize_grads=True
        )
        loss = 0.5 * gradient.square().sum(dim=-1) - (curved * direction).sum(dim=-1)
        return loss.mean() + nothing


def _normal(x: Tensor, count: int, generator: torch.Generator) -> Tensor:
    """Draw `count` standard normal vectors for each point. x: (B, S, D) -> (B, S, count, D)."""
    shape = (*x.shape[:2], count, x.shape[2])
    return torch.randn(shape, generator=generator, dtype=x.dtype, device=x.device)


def _slope(model: Model, x: Tensor, points: Tensor) -> tuple[Tensor, Tensor]:
    """Return 0, with a graph too, and the gradient of the energy at points (B, S, C, D)."""
    if model.unconditional:
        return points.new_zeros(()), model.branch_gradient(x, points.shape[2])(points)
    points = points.requires_grad_()
    energy = model.branch_energy(x, points).sum()
    (gradient,) = torch.autograd.grad(energy, points, create_graph=True)
    return 0 * energy, gradient


@dataclass(frozen=True, kw_only=True)
class Completion(CheckedFields):
    """The squared error of hidden coordinates after some steps of retrieval, the others held.

    For plain energies with a ``step``. Hidden coordinates start at their means, and the error is in
    the units of the data. Half of the rows lose coordinates at random, and half a run of
    neighbours, as a part of an image.

    Parameters
    ----------
    steps : int
        Through which the gradient passes.
    hidden : float
        Share of the coordinates that is hidden.
    """

    steps: int = 4
    hidden: float = 0.5

    def __call__(self, model: Model, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of x: (B, S, D)."""
        if not model.unconditional:
            raise UnsupportedOperationError("In-context energies have no step to complete with.")
        options: Any = {"generator": generator, "device": x.device}
        batch, _, dim = x.shape
        start = torch.rand(batch, 1, 1, **options)
        along = (torch.arange(dim, device=x.device) / dim - start).remainder(1)
        anywhere = torch.rand(x.shape, **options)
        is_even = torch.arange(batch, device=x.device)[:, None, None] % 2 == 0
        held = torch.where(is_even, along, anywhere) >= self.hidden
        state = torch.where(held, x, 0.0)
        for _ in range(self.steps):
            state = model.step(state, held)
        return ((state - x) * model.scale)[~held].square().mean()
