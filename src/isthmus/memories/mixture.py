"""The mixture of round Gaussians that is ClAM's energy."""

from __future__ import annotations

import math
from typing import Any, Self, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.memories.base import GaussianMemory
from isthmus.validation import as_positive, as_tensor, is_transforming

__all__ = ["Mixture"]


@final
class Mixture(GaussianMemory):
    r"""ClAM's energy: a finite mixture of round Gaussians.

    .. math:: E(x) = -\frac1\beta \log \sum_k w_k \exp(-\beta \lVert \mu_k - x \rVert^2)

    The components have covariance :math:`I/(2\beta)`: :attr:`sigma` is
    :math:`(2\beta)^{-1/2}`. The paper prints :math:`2\beta^{-1} I` (erratum E6); ClAM's own
    code uses :math:`\beta_{code} = 2\beta`. The paper's dynamics are :math:`-\frac12\nabla E`
    (erratum E7), so a gradient step of 1/2 is one :meth:`step`.

    Parameters
    ----------
    means : array or Tensor (K, D)
    beta : float or scalar Tensor
    log_weights : array or Tensor (K,), optional
        log w; need not be normalised, and ``-inf`` leaves a component out. Without it every
        :math:`w_k` is 1, as printed.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> mixture = ist.Mixture(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), beta=2.0)
    >>> mixture.responsibilities(torch.tensor([1.2, 0.0]))
    tensor([0.1680, 0.8320])
    >>> mixture.sample(2, seed=1).shape
    torch.Size([2, 2])
    """

    translation_invariant = True

    def __init__(self, means: Any, beta: float | Tensor = 1.0, log_weights: Any = None) -> None:
        super().__init__(means, "means")
        self._store("beta", as_positive(beta, "beta", self.memories))
        if log_weights is None:
            self.register_parameter("log_weights", None)
        else:
            self._store("log_weights", self._checked_weights(log_weights))

    beta: Tensor
    log_weights: Tensor | None

    def _checked_weights(self, value: Any) -> Tensor:
        weights = as_tensor(value, "log_weights")
        if not isinstance(value, Tensor):
            weights = weights.to(self.memories)
        if weights.shape != (self.n_memories,):
            raise ShapeError(
                f"log_weights must be ({self.n_memories},), one per mean, "
                f"not {tuple(weights.shape)}."
            )
        if not is_transforming() and (
            bool(torch.isnan(weights).any())
            or bool((weights == torch.inf).any())
            or bool((weights == -torch.inf).all())
        ):
            raise InvalidInputError(
                "log_weights must be finite or -inf (a component left out), and not all -inf. "
                "They are logarithms: pass weights.log() if you have the weights."
            )
        return weights

    @property
    def means(self) -> Tensor:
        """The memories, by the name that mixtures use. (K, D)"""
        return self.memories

    @property
    def inverse_temperature(self) -> Tensor:
        """beta."""
        return self.beta

    @property
    def variance(self) -> Tensor:
        """1/(2 beta)."""
        return 0.5 / self.beta

    @property
    def log_mixing_weights(self) -> Tensor:
        """log w, normalised. (K,)"""
        if self.log_weights is None:
            return self.memories.new_full((self.n_memories,), -math.log(self.n_memories))
        return torch.log_softmax(self.log_weights, 0)

    def log_normalizer(self) -> Tensor:
        """log Z = log sum_k w_k + (D/2) log(pi / beta)."""
        log_scale = 0.5 * self.dim * torch.log(math.pi / self.beta)
        if self.log_weights is None:
            return math.log(self.n_memories) + log_scale
        return torch.logsumexp(self.log_weights, 0) + log_scale

    def _rebuilt(self, memories: Any, index: Tensor | None) -> Self:
        weights = self.log_weights
        if weights is not None and index is not None:
            weights = weights[index]
        return type(self)(memories, self.beta, weights)

    def _settings(self) -> dict[str, Any]:
        weighted = {} if self.log_weights is None else {"weighted": True}
        return {"beta": self.beta, **weighted}
