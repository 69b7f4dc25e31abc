"""Laplace kernel density estimator: a memory with a cusp at every pattern."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor
from torch.special import scaled_modified_bessel_k0, scaled_modified_bessel_k1

from isthmus.memories.base import keep_observed
from isthmus.memories.radial import RadialKDE
from isthmus.validation import as_mask


@final
class LaplaceKDE(RadialKDE):
    r"""Laplace kernel density estimator, in the Euclidean norm.

    .. math:: E(x) = -\log \sum_n e^{-\lVert x - x_n \rVert / h}

    with the density :math:`p = e^{-E}\, \Gamma(D/2) / (2 N \pi^{D/2}\, \Gamma(D)\, h^D)`.
    The energy has a cusp at every memory, so that a memory can be a minimum exactly; the score
    there is that of the other memories.

    :meth:`step` is Weiszfeld's: the mean of the memories, weighted by responsibility over
    distance. The kernel is convex in the squared distance, so it never raises the energy
    (:class:`~isthmus.memories.RadialKDE` has the proof). Memories at x itself, with the
    responsibilities :math:`\eta`, keep their cusp in the bound (Vardi and Zhang, 2000): with the
    pull R of the others, the sum of responsibilities times unit vectors, the bound is least after
    the share :math:`\max(0, 1 - \eta/\lVert R \rVert)` of the step.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    bandwidth : float or scalar Tensor
        h, the scale of the kernel.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.LaplaceKDE(torch.tensor([[0.0], [4.0]]), bandwidth=1.0)
    >>> kde.step(torch.tensor([[3.0], [4.0]]))  # a memory that is a minimum stays
    tensor([[3.8273],
            [4.0000]])
    >>> kde.log_prob(torch.tensor([[0.0]]))
    tensor([-1.3681])
    """

    def _squares(self, x: Tensor, memories: Tensor, observed: Tensor | None = None) -> Tensor:
        # From differences, since rounding of products would show in the root near a memory.
        squares = x.new_zeros(len(x), len(memories))
        for d in range(self.dim):
            apart = x[:, d, None] - memories[:, d]
            squares = (
                squares + (apart if observed is None else apart * observed[:, d, None]).square()
            )
        return squares

    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        distances = _root(squares) / self.bandwidth
        if isinstance(unseen, int) and unseen == 0:
            return -distances
        counts = torch.as_tensor(unseen, dtype=squares.dtype, device=squares.device)
        constant = 0.5 * (counts - 1) * math.log(2 * math.pi) + counts * self.bandwidth.log()
        found = torch.zeros_like(distances)
        for count in set(counts.flatten().tolist()):
            found = torch.where(counts == count, _log_bessel(0.5 * (count + 1), distances), found)
        return math.log(2) + constant + found

    def _log_slope(self, squares: Tensor) -> Tensor:
        slope = (
            self._log_kernel(squares, 0) - _root(squares, 1.0).log() - (2 * self.bandwidth).log()
        )
        return torch.where(squares > 0, slope, -torch.inf)

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Move to the weighted mean of the memories; less far, or not, from a memory. (..., D)."""
        x = self.as_input(x)
        pull = self.bandwidth * self.score(x)
        if observed is not None:
            pull = pull.masked_fill(as_mask(observed, "observed", x), 0)
        here = self._attend(x, lambda s: torch.zeros_like(s).masked_fill(s > 0, -torch.inf))
        own = (here.logsumexp + self.energy(x)).exp()
        share = (1 - own / torch.linalg.vector_norm(pull, dim=-1)).clamp(min=0)
        share = torch.where(own > 0, share, 1.0)[..., None]
        return keep_observed(torch.lerp(x, super().step(x), share), x, observed)

    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        return gamma(self.dim, n)


def _root(squares: Tensor, at_zero: float = 0.0) -> Tensor:
    """Return the square root, with derivative zero at zero."""
    positive = squares > 0
    return torch.where(positive, torch.where(positive, squares, 1.0).sqrt(), at_zero)


def _log_bessel(order: float, z: Tensor) -> Tensor:
    r"""Return :math:`\log f_\nu` of :math:`f_\nu(z) = z^\nu K_\nu(z)`, for orders 1/2, 1, 3/2, ...

    The orders rise by :math:`f_{\nu+1} = z^2 f_{\nu-1} + 2 \nu f_\nu`, in which nothing cancels.
    The first derivative is exact, by :math:`f_\nu' = -z f_{\nu-1}`; there is no second.
    """
    with torch.no_grad():
        here = z.double().clamp(min=torch.finfo(torch.float64).tiny ** 0.5)
        if order % 1:
            at, current = 0.5, 0.5 * math.log(math.pi / 2) - here
            before = current - here.log()
        else:
            at, current = 1.0, (here * scaled_modified_bessel_k1(here)).log() - here
            before = scaled_modified_bessel_k0(here).log() - here
        while at < order:
            following = torch.logaddexp(2 * here.log() + before, math.log(2 * at) + current)
            before, current, at = current, following, at + 1
        slope = (-here * (before - current).exp()).to(z.dtype)
    return current.to(z.dtype) + slope * (z - z.detach())
