"""Kernel density estimators whose kernels depend on the distance alone."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isthmus.attend import Attention
from isthmus.logits import distance_logits, needs_float64
from isthmus.memories.base import MarginalMemory, WeightedMemory, keep_observed
from isthmus.validation import as_positive

BLOCK_ENTRIES = 2**22


class RadialKDE(WeightedMemory, MarginalMemory):
    r"""A kernel density estimator with a kernel g of the squared distance.

    .. math:: E(x) = -\log \sum_n g(s_n), \qquad s_n = \lVert x - x_n \rVert^2, \qquad
        x \leftarrow \frac{\sum_n g'(s_n)\, x_n}{\sum_n g'(s_n)} .

    If g is convex and never increases, this :meth:`step` never raises the energy (Comaniciu and
    Meer, 2002): :math:`\sum_n g(s_n)` lies above its tangent in the squared distances,
    :math:`\sum_n g(s_n) + g'(s_n) (s_n' - s_n)`, which is largest where the weighted mean is.
    The force :math:`-\nabla E` points there as well.

    Where every kernel is zero, the density is zero and the energy is +inf; the score is zero and
    a step does not move.
    """

    translation_invariant = True
    bandwidth: Tensor

    def __init__(self, memories: Any, bandwidth: float | Tensor = 1.0) -> None:
        super().__init__(memories)
        self._store("bandwidth", as_positive(bandwidth, "bandwidth", self.memories))
        as_positive(self.bandwidth.square(), "bandwidth squared", self.memories)

    @abstractmethod
    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        """Return log g of squared distances, with `unseen` further coordinates integrated out."""

    @abstractmethod
    def _log_slope(self, squares: Tensor) -> Tensor:
        """Return log(-g') of squared distances."""

    @abstractmethod
    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        """Draw distances in units of the bandwidth from gamma variables of a shape. (n,)."""

    def _squares(self, x: Tensor, memories: Tensor, observed: Tensor | None = None) -> Tensor:
        """Return squared distances over observed coordinates. (Q, D), (n, D) -> (Q, n)."""
        keys = self._keys()
        if needs_float64(x - keys.centre, keys, None, 1 / self.bandwidth.square(), "sqeuclidean"):
            x, memories = x.double(), memories.double()
        x, memories, mask = x - keys.centre, memories - keys.centre, None
        if observed is not None:
            x, mask = x.masked_fill(~observed, 0), observed.to(x.dtype)
        squares = x.square().sum(1, keepdim=True) - distance_logits(x, memories, 0.0, 1.0, mask)
        # Derivatives are those of the formula, also where rounding made it negative.
        squares = squares + (squares.clamp(min=0) - squares).detach()
        return torch.where(squares.isnan(), torch.inf, squares)  # which is where squares overflow

    def _attend(
        self, x: Tensor, weight: Callable[[Tensor], Tensor], observed: Tensor | None = None
    ) -> Attention:
        """Return the log-sum-exp of a weight of the squared distances, and the weighted mean.

        The mean is relative to the centre, and zero where there are no weights.
        """
        flat, found = x.reshape(-1, self.dim), []
        seen = None if observed is None else observed.reshape(flat.shape)
        for block in self.memories.split(max(BLOCK_ENTRIES // max(len(flat), 1), 256)):
            logits = weight(self._squares(flat, block, seen))
            total = torch.logsumexp(logits, 1)
            shares = (logits - _finite(total)[:, None]).exp()
            mean = shares @ (block.to(shares.dtype) - self._keys().centre)
            found.append((total.to(x.dtype), mean.to(x.dtype)))
        sums, means = map(torch.stack, zip(*found, strict=True))
        total = torch.logsumexp(sums, 0)
        mean = ((sums - _finite(total)).exp()[..., None] * means).sum(0)
        return Attention(total.reshape(x.shape[:-1]), mean.reshape(x.shape))

    def _kernel_of(self, seen: Tensor | None) -> Callable[[Tensor], Tensor]:
        """Return log g of squared distances (Q, n) over observed coordinates."""
        unseen: int | Tensor = 0
        if seen is not None:
            unseen = (~seen).reshape(-1, self.dim).sum(1, keepdim=True).double()
        return lambda squares: self._log_kernel(squares, unseen)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point, +inf outside the support. x: (..., D) -> (...)."""
        return -self._attend(self.as_input(x), self._kernel_of(None)).logsumexp

    def log_normalizer(self) -> Tensor:
        """Return log Z, the logarithm of N times the integral of one kernel."""
        return self.log_total_weight + self._log_kernel(self.memories.new_zeros(()), self.dim)

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        found = self._attend(x, self._kernel_of(seen), seen)
        return Attention(found.logsumexp - self.log_normalizer(), found.mean)

    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        flat = x.reshape(-1, self.dim)
        observed = None if seen is None else seen.reshape(flat.shape)
        logits = self._kernel_of(seen)(self._squares(flat, self.memories, observed))
        return logits.reshape(*x.shape[:-1], self.n_memories)

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx, zero outside the support. x: (..., D) -> (..., D)."""
        x = self.as_input(x)
        slope, energy = self._attend(x, self._log_slope), self.energy(x)
        size = 2 * (slope.logsumexp + torch.where(energy < torch.inf, energy, 0.0)).exp()
        force: Tensor = size[..., None] * (slope.mean - (x - self._keys().centre))
        return force

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Move to the weighted mean of the memories, or stay outside the support. (..., D)."""
        x = self.as_input(x)
        slope = self._attend(x, self._log_slope)
        somewhere = (slope.logsumexp > -torch.inf)[..., None]
        return keep_observed(
            torch.where(somewhere, slope.mean + self._keys().centre, x), x, observed
        )

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        """Draw a direction and a distance."""
        centres = self.memories[chosen]

        def gamma(shape: Any, n: int) -> Tensor:
            shapes = torch.as_tensor(shape, dtype=torch.float64, device=centres.device).expand(n)
            return torch._standard_gamma(shapes, generator=generator)

        direction = torch.empty_like(centres).normal_(generator=generator)
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        radii = self._draw_radii(len(centres), gamma).to(centres.dtype)
        return centres + self.bandwidth * radii[:, None] * direction


class BallKDE(RadialKDE):
    r"""A radial estimator with the kernel :math:`g(s) = \max(0, 1 - s/h^2)^p`."""

    power: float

    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        # Integrating u coordinates out raises the power by u/2.
        unseen = torch.as_tensor(unseen, dtype=squares.dtype, device=squares.device)
        closeness = 1 - squares / self.bandwidth.square()
        power = self.power + 0.5 * unseen
        constant = math.lgamma(self.power + 1) - torch.lgamma(power + 1)
        constant = constant + unseen * (self.bandwidth.log() + 0.5 * math.log(math.pi))
        inside = closeness > 0
        log_kernel = power * torch.where(inside, closeness, 1.0).log() + constant
        return torch.where(inside, log_kernel, -torch.inf)

    def _log_slope(self, squares: Tensor) -> Tensor:
        # That of the power 1, whose weights are all equal.
        inside = squares < self.bandwidth.square()
        return torch.where(inside, -2 * self.bandwidth.log(), -torch.inf).to(squares.dtype)

    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        inner, outer = gamma(0.5 * self.dim, n), gamma(self.power + 1, n)
        return (inner / (inner + outer)).sqrt()


def _finite(total: Tensor) -> Tensor:
    """Return `total` with zeros in place of -inf."""
    return torch.where(total > -torch.inf, total, 0.0)
