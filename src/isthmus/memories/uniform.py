"""Uniform kernel density estimator: a memory that counts the patterns in reach."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from isthmus.memories.radial import BallKDE


@final
class UniformKDE(BallKDE):
    r"""Uniform kernel density estimator.

    .. math:: E(x) = -\log \#\{n : \lVert x - x_n \rVert < h\}

    with the density :math:`p = e^{-E} / (N V_D h^D)`, where :math:`V_D` is the volume of the unit
    ball. Where no memory is in reach, the density is zero and **the energy is +inf**.

    Between the edges of the balls the energy is constant and the score zero. :meth:`step` moves to
    the mean of the memories in reach if no fewer are in reach there, and else stays, so that it
    never raises the energy. A move strictly lowers the energy of :class:`EpanechnikovKDE` with the
    same bandwidth, whose step is this mean; the means are finitely many, so retrieval ends.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    bandwidth : float or scalar Tensor
        h, the radius of the balls.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.UniformKDE(torch.tensor([[0.0], [1.0], [9.0]]), bandwidth=2.0)
    >>> kde.energy(torch.tensor([[0.1], [5.0]]))
    tensor([-0.6931,     inf])
    >>> kde.step(torch.tensor([[0.1], [5.0]]))
    tensor([[0.5000],
            [5.0000]])
    """

    power = 0.0

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx, which is zero wherever it exists. x: (..., D) -> (..., D)."""
        return 0.0 * self.as_input(x)

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Move to the mean of the memories in reach if no fewer are in reach there. (..., D)."""
        x = self.as_input(x)
        moved = super().step(x, observed)
        return torch.where((self.energy(moved) <= self.energy(x))[..., None], moved, x)
