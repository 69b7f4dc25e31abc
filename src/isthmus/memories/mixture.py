"""The mixture of round Gaussians that is ClAM's energy."""

from __future__ import annotations

from typing import Any, final

from torch import Tensor

from isthmus.memories.base import ComponentMeans, GaussianMemory
from isthmus.validation import as_positive


@final
class Mixture(ComponentMeans, GaussianMemory):
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
        super().__init__(means, "means", log_weights)
        self._store("beta", as_positive(beta, "beta", self.memories))
