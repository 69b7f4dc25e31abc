"""Epanechnikov kernel density estimator: a memory with a hard edge."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor

from isthmus.errors import OutsideSupportError
from isthmus.logits import distance_logits, needs_float64
from isthmus.memories.base import Memory, draw_index, generator_for, keep_observed
from isthmus.validation import as_positive, is_transforming

BLOCK_ENTRIES = 2**22


@final
class EpanechnikovKDE(Memory):
    r"""Epanechnikov kernel density estimator.

    .. math:: E(x) = -\log \sum_n \max\bigl(0,\, 1 - \lVert x - x_n \rVert^2 / h^2\bigr)

    with the density :math:`p = e^{-E}\, (D+2) / (2 N V_D h^D)`, where :math:`V_D` is the
    volume of the unit ball.

    The kernel ends at distance h. Farther than that from every memory, the density is zero
    and **the energy is +inf**; there the score is zero, :meth:`step` does not move the point,
    and :meth:`responsibilities` are all zero. :func:`isthmus.retrieve` returns such a
    row unchanged with energy +inf and ``converged=False``.
    :func:`isthmus.complete` raises :class:`~isthmus.errors.OutsideSupportError` where no memory
    is in reach of the observed coordinates; where the mean of the unknown ones lies in a gap
    between memories, it returns that mean.

    :meth:`step` is flat-kernel mean shift, the plain mean of all memories within h. It never
    raises the energy and converges after finitely many steps.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    bandwidth : float or scalar Tensor
        h, the radius of the kernel.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.EpanechnikovKDE(torch.tensor([[0.0], [1.0], [9.0]]), bandwidth=2.0)
    >>> kde.energy(torch.tensor([[0.5], [5.0]]))
    tensor([-0.6286,     inf])
    >>> kde.step(torch.tensor([[0.1], [5.0]]))
    tensor([[0.5000],
            [5.0000]])
    """

    translation_invariant = True

    def __init__(self, memories: Any, bandwidth: float | Tensor = 1.0) -> None:
        super().__init__(memories)
        self._store("bandwidth", as_positive(bandwidth, "bandwidth", self.memories))
        as_positive(self.bandwidth.square(), "bandwidth squared", self.memories)

    bandwidth: Tensor

    def _closeness(self, x: Tensor, memories: Tensor, observed: Tensor | None = None) -> Tensor:
        """Return 1 - |x - x_n|^2 / h^2, over observed coordinates if given. (Q, D) -> (Q, n)."""
        keys = self._keys()
        if needs_float64(x - keys.centre, keys, None, 1 / self.bandwidth.square(), "sqeuclidean"):
            x, memories = x.double(), memories.double()
        x, memories, mask = x - keys.centre, memories - keys.centre, None
        if observed is not None:
            x, mask = x.masked_fill(~observed, 0), observed.to(x.dtype)
        cross = distance_logits(x, memories, 0.0, 1.0, mask)
        squared = (x.square().sum(1, keepdim=True) - cross).clamp(min=0)
        return 1 - squared / self.bandwidth.square()

    def _kernel_sums(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Return the sum of kernels, the number of memories in reach, and their mean.

        (Q, D) -> (Q,), (Q, 1), (Q, D); the mean is relative to the centre of all memories.
        """
        rows = max(BLOCK_ENTRIES // max(x.shape[0], 1), 256)
        centre = self._keys().centre
        height: Tensor = x.new_zeros(x.shape[0])
        count, total = height[:, None], torch.zeros_like(x)
        for block in self.memories.split(rows):
            closeness = self._closeness(x, block)
            near = (closeness > 0).to(x.dtype)
            height = height + closeness.clamp(min=0).sum(1).to(x.dtype)
            count = count + near.sum(1, keepdim=True)
            total = total + near @ (block - centre)
        return height, count, total / count.clamp(min=1)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point, +inf where no memory is in reach. (..., D) -> (...)."""
        x = self.as_input(x)
        height = self._kernel_sums(x.reshape(-1, self.dim))[0]
        inside = height > 0
        energy = torch.where(inside, -torch.where(inside, height, 1.0).log(), torch.inf)
        return energy.reshape(x.shape[:-1])

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z = log(2 N V_D h^D / (D + 2))."""
        log_volume = 0.5 * self.dim * math.log(math.pi) - math.lgamma(0.5 * self.dim + 1)
        constant = math.log(2 * self.n_memories / (self.dim + 2)) + log_volume
        return constant + self.dim * self.bandwidth.log()

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx, zero where no memory is in reach. x: (..., D) -> (..., D)."""
        x = self.as_input(x)
        flat = x.reshape(-1, self.dim)
        height, count, mean = self._kernel_sums(flat)
        height = torch.where(height > 0, height, 1.0)[:, None]
        displacement = mean - (flat - self._keys().centre)
        force: Tensor = 2 * count * displacement / (self.bandwidth.square() * height)
        return force.reshape(x.shape)

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Move to the mean of the memories in reach, or stay if there is none. (..., D)."""
        x = self.as_input(x)
        flat = x.reshape(-1, self.dim)
        _, count, mean = self._kernel_sums(flat)
        moved = torch.where(count > 0, mean + self._keys().centre, flat)
        return keep_observed(moved.reshape(x.shape), x, observed)

    def responsibilities(self, x: Any) -> Tensor:
        """Return the posterior of each memory, zero where none is in reach. (..., N)."""
        x = self.as_input(x)
        kernels = self._closeness(x.reshape(-1, self.dim), self.memories).clamp(min=0)
        shares = kernels / kernels.sum(1, keepdim=True).clamp(min=torch.finfo(x.dtype).tiny)
        return shares.to(x.dtype).reshape(*x.shape[:-1], self.n_memories)

    def conditional_mean(self, x: Any, observed: Any) -> Tensor:
        """Put the unobserved coordinates of x at their exact mean given the observed ones.

        With u of D coordinates unknown, integrating them out of the kernel leaves
        ``max(0, 1 - |x - x_n|^2 / h^2)^(1 + u/2)`` over the known ones.
        """
        x, seen = self._partial(x, observed)
        flat, seen_flat = x.reshape(-1, self.dim), seen.reshape(-1, self.dim)
        closeness = self._closeness(flat, self.memories, seen_flat)
        rows = 0 if is_transforming() else int((~(closeness > 0)).all(1).sum())
        if rows:
            raise OutsideSupportError(
                f"{rows} of {len(flat)} rows have no memory within the bandwidth "
                f"{float(self.bandwidth):g} of their observed coordinates. Raise the bandwidth, "
                "or use GaussianKDE, whose kernel reaches everywhere."
            )
        power = 1 + 0.5 * (~seen_flat).sum(1, keepdim=True)
        logits = power * torch.where(closeness > 0, closeness, 1.0).log()
        logits = logits.masked_fill(closeness <= 0, -torch.inf)
        shares = torch.softmax(logits, 1).to(x.dtype)
        centre = self._keys().centre
        mean = shares @ (self.memories - centre) + centre
        return torch.where(seen, x, mean.reshape(x.shape))

    @torch.no_grad()
    def sample(self, n: int, seed: int | torch.Generator = 0) -> Tensor:
        """Draw exact samples: a memory, a direction, and r^2 ~ Beta(D/2, 2). -> (n, D)."""
        generator = generator_for(seed, self.memories.device)
        weights = self.memories.new_ones(self.n_memories)
        centres = self.memories[draw_index(weights, n, generator)]
        direction = torch.empty_like(centres).normal_(generator=generator)
        direction = direction / torch.linalg.vector_norm(direction, dim=1, keepdim=True)
        # A chi-square with D degrees of freedom against one with 4 is that Beta.
        inner = torch.empty_like(centres).normal_(generator=generator).square().sum(1)
        outer = centres.new_empty(n, 4).normal_(generator=generator).square().sum(1)
        radius = (inner / (inner + outer)).sqrt()
        offsets: Tensor = self.bandwidth * radius[:, None] * direction
        return centres + offsets
