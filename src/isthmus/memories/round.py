"""Mixtures of Gaussians of one round covariance, on one kernel, with an index where it pays."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import Any, NamedTuple, Self

import torch
from torch import Tensor

from isthmus.compose import held_move
from isthmus.energy import Energy
from isthmus.index.index import Index
from isthmus.index.policy import IndexReport, Kernel, Pruning, Setting
from isthmus.kernel.attention import Attention, attend_centred
from isthmus.kernel.logits import Keys, attention_logits
from isthmus.memories.base import MarginalMemory, WeightedMemory, keep_observed
from isthmus.validation import require_squarable


class Pull(NamedTuple):
    """What the memories do to points: the log-sum-exp of their kernels, the force and a step."""

    logsumexp: Tensor  # (...)
    force: Tensor  # minus the gradient of the energy, in a unit of the memory's. (..., D)
    target: Tensor  # where a step leads. (..., D)
    precision: Tensor | None = None  # mean of the kernels', up to a factor, if full. (..., D, D)


class GaussianMemory(WeightedMemory, MarginalMemory):
    r"""A memory whose density is a mixture of Gaussians with one round covariance.

    .. math::
        p(x) = \frac{1}{W} \sum_n w_n\, \mathcal{N}(x; m_n, s^2 I), \qquad
        E(x) = -\frac{1}{\beta_E} \log \sum_n w_n\, e^{-\lVert x - m_n \rVert^2 / (2 s^2)} ,

    with :math:`W = \sum_n w_n`. A subclass defines :math:`s^2` (:attr:`variance`),
    :math:`\log w` (`log_weights`) and :math:`\beta_E` (:attr:`inverse_temperature`).
    """

    def __init__(
        self,
        memories: Any,
        name: str = "memories",
        log_weights: Any = None,
        index: Setting = "auto",
    ) -> None:
        super().__init__(memories, name, log_weights)
        require_squarable(self.memories, name)
        self._pruning = Pruning(index)
        if isinstance(index, Index):
            index.require(self.memories)

    @property
    def index(self) -> Setting:
        """The argument of this name: "auto", True, False or an index."""
        return self._pruning.setting

    def index_report(self) -> IndexReport:
        """Return what was done with the last points: an index or all memories, and why.

        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.randn(100, 2), sigma=0.1)
        >>> energies = kde.energy(torch.zeros(3, 2))
        >>> print(kde.index_report())
        all memories: fewer than 30,000 memories
        """
        return self._pruning.report

    def moved(self, memories: Tensor) -> Self:
        """Return :meth:`with_memories` of these after a shift or a linear map of all of them.

        An index that was built keeps its cells.
        """
        other = self.with_memories(memories)
        other._pruning = self._pruning.moved(other.index, other.memories)
        return other

    def uses_index(self, x: Tensor) -> bool:
        """Return True if points (n, D) would go through an index, which is built if need be."""
        return self._pruning.uses(x, self._keys(), self._kernel())

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of this energy's dtype, and arrays on its device."""
        points = super().as_input(x, allow_nan=allow_nan)
        require_squarable(points, "x")
        return points

    @property
    def is_round(self) -> bool:
        """True if all kernels have one variance in all directions."""
        return True

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance s^2 of each component along each axis: a scalar tensor."""

    @property
    def sigma(self) -> Tensor:
        """The standard deviation s of each component along each axis."""
        return self.variance.sqrt()

    @property
    def _log_scale(self) -> Tensor:
        return 0.5 * self.dim * torch.log(2 * math.pi * self.variance)

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z = log W + (D/2) log(2 pi s^2), a scalar tensor."""
        return self.log_total_weight + self._log_scale

    def _kernel(self) -> Kernel:
        """Return the logits of energy and step, up to a term per query."""
        beta = self._kept("beta", lambda: 0.5 / self.variance)
        return beta, self.log_weights, "sqeuclidean"

    def _density_kernel(self) -> Kernel:
        """Return the logits of the normalised mixture."""
        return 0.5 / self.variance, self.log_mixing_weights, "sqeuclidean"

    def _attend(self, x: Tensor) -> Attention:
        """Return the log-sum-exp, and the mean relative to the centre of the memories."""
        keys, kernel = self._keys(), self._kernel()
        found = self._pruning.attention(x, keys, kernel)
        return attend_centred(x, keys, *kernel) if found is None else found

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        if seen is None and (self.log_weights is None or self._pruning.may_prune(self.n_memories)):
            found = self._attend(x)
            log_mass = self._kept("log_mass", lambda: self.log_total_weight + self._log_scale)
            return Attention(found.logsumexp - log_mass, found.mean)
        found = attend_centred(x, self._keys(), *self._density_kernel(), seen)
        coordinates = self.dim if seen is None else seen.sum(-1)
        log_prob = found.logsumexp - coordinates * (self._log_scale / self.dim)
        return Attention(log_prob, found.mean)

    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        beta, bias, metric = self._kernel() if seen is None else self._density_kernel()
        return attention_logits(x, self._keys(), bias, beta, metric, seen)

    def _pull(self, x: Tensor) -> Pull:
        found, centre = self._attend(x), self._keys().centre
        # Both terms are relative to the centre, which keeps their digits far from the origin.
        return Pull(found.logsumexp, found.mean - (x - centre), found.mean + centre)

    def _force_unit(self) -> Tensor:
        """Return what the force of a pull is to be divided by."""
        return self.variance * self.inverse_temperature

    def _energy(self, x: Tensor) -> Tensor:
        return self._energy_of(x, self._pull(x).logsumexp)

    def _curvature(self) -> Tensor | None:
        return 1 / (self.variance * self.inverse_temperature) if self.is_round else None

    def _log_product_normalizer(self, other: Energy) -> Tensor | None:
        """Return log Z of the product with another round mixture, from overlaps of all pairs."""
        # The integral of two Gaussians is one of the sum of their variances between their means.
        if not (isinstance(other, GaussianMemory) and self.is_round and other.is_round):
            return None
        variance = self.variance + other.variance.to(self.memories)
        theirs, bias = other.memories.to(self.memories), other.log_mixing_weights
        found = attend_centred(self.memories, Keys(theirs), 0.5 / variance, bias.to(theirs))
        overlap = torch.logsumexp(self.log_mixing_weights.to(theirs) + found.logsumexp, 0)
        scale = 0.5 * self.dim * torch.log(2 * math.pi * variance)
        both: Tensor = self.log_normalizer() + other.log_normalizer().to(theirs)
        return both + overlap - scale

    def _energy_of(self, x: Tensor, logsumexp: Tensor) -> Tensor:
        """Return the energy of points (..., D), given the log-sum-exp of their logits (...)."""
        return -logsumexp / self.inverse_temperature

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        """Move to the mean of the memories, weighted by responsibility and precision."""
        return self._step_and_energy(x, held)[0]

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        pull = self._pull(x)
        moved, energy = pull.target, self._energy_of(x, pull.logsumexp)
        if held is not None and pull.precision is not None:
            moved = x + held_move(pull.precision, moved - x, ~held)
        return keep_observed(moved, x, held), energy

    def _score(self, x: Tensor) -> Tensor:
        return self._pull(x).force / self._force_unit()

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        centres = self.memories[chosen]
        return centres + self.sigma * torch.empty_like(centres).normal_(generator=generator)
