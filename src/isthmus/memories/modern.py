"""Modern continuous Hopfield network (MCHN)."""

from __future__ import annotations

import math
from typing import Any, Self, final

import torch
from torch import Tensor

from isthmus.attend import attend
from isthmus.memories.base import GaussianMemory, Kernel
from isthmus.validation import as_positive

__all__ = ["ModernHopfield"]

BLOCK_ROWS = 2**14


@final
class ModernHopfield(GaussianMemory):
    r"""Modern continuous Hopfield network: retrieval is softmax attention.

    .. math::
        E(x) = -\frac1\beta \log \sum_n \exp(\beta\, x \cdot x_n) + \tfrac12 x \cdot x,
        \qquad x \leftarrow \sum_n \mathrm{softmax}(\beta\, x \cdot x_n)\, x_n .

    Completing the square shows that :math:`\exp(-\beta E)` is a mixture of Gaussians of
    covariance :math:`I/\beta` with weights in proportion to
    :math:`\exp(\beta \lVert x_n \rVert^2 / 2)`: hence an exact :meth:`log_prob` and
    :meth:`sample`. Long memories weigh more; :class:`GaussianKDE` weighs all alike.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    beta : float or scalar Tensor
        Inverse temperature.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.ModernHopfield(torch.eye(3), beta=8.0)
    >>> memory.step(torch.tensor([0.9, 0.2, 0.1]))
    tensor([0.9947, 0.0037, 0.0017])
    """

    def __init__(self, memories: Any, beta: float | Tensor = 1.0) -> None:
        super().__init__(memories)
        self._store("beta", as_positive(beta, "beta", self.memories))

    beta: Tensor

    @property
    def inverse_temperature(self) -> Tensor:
        """beta."""
        return self.beta

    @property
    def variance(self) -> Tensor:
        """1/beta."""
        return 1 / self.beta

    @property
    def log_mixing_weights(self) -> Tensor:
        """log softmax(beta |x_n|^2 / 2), in float64 since it decides between far-off memories."""
        centre = self.memories.detach().mean(0, dtype=torch.float64)
        half_squares = []
        for block in self.memories.split(BLOCK_ROWS):
            centred = block.double() - centre
            half_squares.append(0.5 * centred.square().sum(1) + centred @ centre)
        return torch.log_softmax(self.beta.double() * torch.cat(half_squares), 0)

    def log_normalizer(self) -> Tensor:
        """log Z = log sum_n exp(beta |x_n|^2 / 2) + (D/2) log(2 pi / beta)."""
        half_squares = 0.5 * self.memories.square().sum(1)
        log_scale = 0.5 * self.dim * torch.log(2 * math.pi * self.variance)
        return torch.logsumexp(self.beta * half_squares, 0) + log_scale

    def _kernel(self) -> Kernel:
        return Kernel(self.beta, None, "dot")

    def energy(self, x: Any) -> Tensor:
        """Energy of each point. x: (..., D) -> (...)."""
        x = self.as_input(x)
        attention = attend(x, self.memories, beta=self.beta)
        return 0.5 * x.square().sum(-1) - attention.logsumexp / self.beta

    def _rebuilt(self, memories: Any, index: Tensor | None) -> Self:
        return type(self)(memories, self.beta)

    def _settings(self) -> dict[str, Any]:
        return {"beta": self.beta}
