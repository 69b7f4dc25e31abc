"""Modern continuous Hopfield network (MCHN)."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.index.policy import Kernel, Setting
from isthmus.kernel.attention import Attention
from isthmus.memories.base import AtBeta, unit_rows
from isthmus.memories.gaussian import GaussianMemory
from isthmus.validation import as_flag, as_points, as_positive, is_transforming

BLOCK_ROWS = 2**14


@final
class ModernHopfield(AtBeta, GaussianMemory):
    r"""Modern continuous Hopfield network: softmax attention, beta = 1 / sigma^2.

    .. math::
        E(x) = -\frac1\beta \log \sum_n \exp(\beta\, x \cdot x_n) + \tfrac12 x \cdot x,
        \qquad x \leftarrow \sum_n \mathrm{softmax}(\beta\, x \cdot x_n)\, x_n .

    :math:`\exp(-\beta E)` is a mixture of Gaussians of covariance :math:`I/\beta` with weights in
    proportion to :math:`\exp(\beta \lVert x_n \rVert^2 / 2)`: hence an exact :meth:`log_prob` and
    :meth:`sample`. Longer memories have larger weights; :class:`GaussianKDE` weighs all alike.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    beta : float or scalar Tensor
        Inverse temperature: components have the variance 1/beta, those of :class:`Mixture` half.
    normalize : bool
        Divide each memory by its length, so that long ones do not attract the others.
    index : "auto", bool or Index
        As in :class:`GaussianKDE`. It helps most where memories have about equal norms.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.ModernHopfield(torch.eye(3), beta=8.0)
    >>> memory.step(torch.tensor([0.9, 0.2, 0.1]))
    tensor([0.9947, 0.0037, 0.0017])
    """

    def __init__(
        self,
        memories: Any,
        beta: float | Tensor = 1.0,
        *,
        normalize: bool = False,
        index: Setting = "auto",
    ) -> None:
        normalize = as_flag(normalize, "normalize")
        super().__init__(_on_sphere(memories) if normalize else memories, index=index)
        self.normalize, self.returns_arrays = normalize, not isinstance(memories, Tensor)
        self._store("beta", as_positive(beta, "beta", self.memories))

    @property
    def variance(self) -> Tensor:
        """Variance 1/beta of each component."""
        return 1 / self.beta

    @property
    def log_mixing_weights(self) -> Tensor:
        """The log-softmax of ``beta |x_n|^2 / 2``, in float64. (N,)."""
        centre = self._keys().centre.double()
        half_squares = []
        for block in self.memories.split(BLOCK_ROWS):
            centred = block.double() - centre
            half_squares.append(0.5 * centred.square().sum(1) + centred @ centre)
        return torch.log_softmax(self.beta.double() * torch.cat(half_squares), 0)

    @property
    def log_total_weight(self) -> Tensor:
        """Log of the sum over n of ``exp(beta |x_n|^2 / 2)``."""
        return torch.logsumexp(0.5 * self.beta * self.memories.square().sum(1), 0)

    def _kernel(self) -> Kernel:
        return self.beta, None, "dot"

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        if seen is not None:
            return super()._attend_density(x, seen)
        # Weights that are normalised in float64 keep digits that the dot products lose.
        found = self._pruning.attend(x, self._keys(), *self._density_kernel())
        return Attention(found.logsumexp - self._log_scale, found.mean)

    def _energy_of(self, x: Tensor, logsumexp: Tensor) -> Tensor:
        energy: Tensor = 0.5 * x.square().sum(-1) - logsumexp / self.beta
        return energy


def _on_sphere(memories: Any) -> Tensor:
    rows = as_points(memories, "memories")
    if not is_transforming() and not bool(rows.detach().any(-1).all()):
        raise InvalidInputError(
            "memories has rows that are all zero and cannot be normalized. Leave them out."
        )
    # Rows that are already at unit length, in the precision of float32, keep their bits.
    away = (torch.linalg.vector_norm(rows.detach(), dim=-1, keepdim=True) - 1).abs()
    return torch.where(away > 1e-6, unit_rows(rows), rows)
