"""Gaussian kernel density estimator as an associative memory."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from isthmus.memories.base import GaussianMemory
from isthmus.validation import as_positive


@final
class GaussianKDE(GaussianMemory):
    r"""Gaussian kernel density estimator: its basins are its memories.

    .. math:: E(x) = -\log \sum_n \exp\bigl(-\lVert x - x_n\rVert^2 / (2\sigma^2)\bigr)

    with the density :math:`p = e^{-E} / (N (2\pi\sigma^2)^{D/2})`. The paper prints the
    normaliser as :math:`1/(Nh)`, which is right for D = 1 only (erratum E12).

    :meth:`step` is mean shift, a gradient step of size :math:`\sigma^2`, for any memories.
    It equals :class:`ModernHopfield` with :math:`\beta = 1/\sigma^2` only where all memories
    have one norm (erratum E13).

    Parameters
    ----------
    memories : array or Tensor (N, D)
    sigma : float or scalar Tensor
        The bandwidth.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> kde = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), sigma=1.0)
    >>> kde
    GaussianKDE(N=2, D=1, sigma=1, float32)
    >>> kde.step(torch.tensor([[3.0]]))
    tensor([[3.9281]])
    >>> kde.log_prob(torch.tensor([[0.0]]))
    tensor([-1.6118])
    """

    translation_invariant = True

    def __init__(self, memories: Any, sigma: float | Tensor = 1.0) -> None:
        super().__init__(memories)
        self._store("bandwidth", as_positive(sigma, "sigma", self.memories))
        as_positive(self.variance, "sigma squared", self.memories)

    bandwidth: Tensor

    @property
    def sigma(self) -> Tensor:
        """The bandwidth."""
        return self.bandwidth

    @property
    def variance(self) -> Tensor:
        """Squared bandwidth sigma^2."""
        return self.bandwidth.square()
