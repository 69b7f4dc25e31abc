"""Epanechnikov kernel density estimator: a memory with a hard edge."""

from __future__ import annotations

from typing import final

from isthmus.memories.radial import BallKDE


@final
class EpanechnikovKDE(BallKDE):
    r"""Epanechnikov kernel density estimator.

    .. math:: E(x) = -\log \sum_n \max\bigl(0,\, 1 - \lVert x - x_n \rVert^2 / h^2\bigr)

    with the density :math:`p = e^{-E}\, (D+2) / (2 N V_D h^D)`, where :math:`V_D` is the
    volume of the unit ball.

    The kernel ends at distance h. Farther than that from every memory, **the energy is +inf**,
    the score and all responsibilities are zero, and :meth:`step` does not move. Where no memory is
    in reach of the observed coordinates, :func:`isthmus.complete` raises
    :class:`~isthmus.errors.OutsideSupportError`; where the mean of the unknown ones lies in a gap
    between memories, it returns that mean.

    :meth:`step` is the plain mean of all memories within h. It never raises the energy and
    converges after finitely many steps.

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

    power = 1.0
