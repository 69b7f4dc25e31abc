"""Student-t kernel density estimator: a memory with heavy tails."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, final

import torch
from torch import Tensor

from isthmus.memories.radial import RadialKDE
from isthmus.special import log_gamma_ratio
from isthmus.validation import as_positive


@final
class StudentKDE(RadialKDE):
    r"""Student-t kernel density estimator, robust against outliers.

    .. math:: E(x) = -\log \sum_n
        \Bigl(1 + \frac{\lVert x - x_n \rVert^2}{\nu h^2}\Bigr)^{-(\nu + D)/2}

    The kernel is convex in the squared distance, so :meth:`step` never raises the energy
    (:class:`~isthmus.memories.RadialKDE` has the proof): it weighs each memory by its
    responsibility divided by :math:`1 + \lVert x - x_n \rVert^2/(\nu h^2)`, as EM does for a
    scale mixture of Gaussians. Far memories count less than under :class:`GaussianKDE`, which is
    the limit of many degrees of freedom.

    One degree of freedom is the Cauchy kernel, the only symmetric Lévy-stable one beside the
    Gaussian with an elementary density. Lévy's own law, one-sided, is not offered.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    bandwidth : float or scalar Tensor
        h, the scale of the kernel.
    dof : float or scalar Tensor
        Degrees of freedom, above zero. A kernel has a mean above 1 and a variance above 2.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.StudentKDE(torch.tensor([[0.0], [4.0]]), bandwidth=1.0, dof=3.0)
    >>> kde
    StudentKDE(N=2, D=1, bandwidth=1, dof=3, float32)
    >>> kde.step(torch.tensor([[3.0]]))
    tensor([[3.8571]])
    >>> kde.log_prob(torch.tensor([[100.0]]))  # under Gaussian kernels: -4610
    tensor([-17.1400])
    """

    dof: Tensor

    def __init__(
        self, memories: Any, bandwidth: float | Tensor = 1.0, dof: float | Tensor = 3.0
    ) -> None:
        super().__init__(memories, bandwidth)
        self._store("dof", as_positive(dof, "dof", self.memories))

    def _log_kernel(self, squares: Tensor, unseen: int | Tensor) -> Tensor:
        # Integrating u coordinates out leaves the kernel of the others.
        dof, bandwidth = self.dof.double(), self.bandwidth.double()
        left = dof + (self.dim - unseen)
        power = 0.5 * left
        constant = 0.5 * unseen * torch.log(2 * math.pi * bandwidth.square() * (dof / left))
        constant = constant - log_gamma_ratio(left, unseen)
        log_ratio = torch.log1p(squares / (self.dof * self.bandwidth.square()))
        return constant.to(squares.dtype) - power.to(squares.dtype) * log_ratio

    def _log_slope(self, squares: Tensor) -> Tensor:
        scale = self.dof * self.bandwidth.square()
        slope = 0.5 * (self.dof + self.dim) / scale
        return self._log_kernel(squares, 0) + slope.log() - torch.log1p(squares / scale)

    def _draw_radii(self, n: int, gamma: Callable[[Any, int], Tensor]) -> Tensor:
        tiny = torch.finfo(torch.float64).tiny
        mixing = gamma(0.5 * self.dof, n).clamp(min=tiny)
        return (self.dof * gamma(0.5 * self.dim, n) / mixing).sqrt()
