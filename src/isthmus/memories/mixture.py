"""The Gaussian mixture that is ClAM's energy, with round or other components."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.index.policy import Setting
from isthmus.memories.base import ComponentMeans
from isthmus.memories.gaussian import GaussianMemory
from isthmus.memories.shape import Shape, root_of
from isthmus.validation import as_choice, as_entries, as_positive, as_tensor

CovarianceType = Literal["full", "tied", "diag", "spherical"]


@final
class Mixture(ComponentMeans, GaussianMemory):
    r"""ClAM's energy: a finite mixture of Gaussians with beta = 1 / (2 sigma^2).

    Components are round unless a covariance is given.

    .. math:: E(x) = -\frac1\beta \log \sum_k w_k \exp(-\beta \lVert \mu_k - x \rVert^2)

    The components have covariance :math:`I/(2\beta)`, where the paper prints
    :math:`2\beta^{-1} I` (erratum E6). Its dynamics are :math:`-\frac12\nabla E` (erratum E7), so a
    gradient step of 1/2 is one :meth:`step`.

    With covariances :math:`C_k`, beta is the inverse temperature only:

    .. math:: E(x) = -\frac1\beta \log \sum_k w_k\, \mathcal N(x; \mu_k, C_k)

    Parameters
    ----------
    means : array or Tensor (K, D)
    beta : float or scalar Tensor
        1 / (2 sigma^2) of components of width sigma; :class:`ModernHopfield` has 1 / sigma^2.
    log_weights : array or Tensor (K,), optional
        log w; need not be normalised, and ``-inf`` leaves a component out. Without it every
        :math:`w_k` is 1, as printed.
    covariance : array or Tensor, optional
        Shared: variances (D,) or a matrix (D, D). Of each component: (K,), (K, D) or (K, D, D).
    covariance_type : {"full", "tied", "diag", "spherical"}, optional
        As in scikit-learn's ``GaussianMixture``, whose ``covariances_`` it explains; "tied" is
        shared. Needed only if K = D leaves the shape of `covariance` ambiguous.
    index : "auto", bool or Index
        As in :class:`GaussianKDE`. Covariances must not be of each component.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> mixture = ist.Mixture(torch.tensor([[0.0, 0.0], [2.0, 0.0]]), beta=2.0)
    >>> mixture.responsibilities(torch.tensor([1.2, 0.0]))
    tensor([0.1680, 0.8320])
    >>> own = torch.tensor([[[1.0, 0.9], [0.9, 1.0]], [[1.0, 0.0], [0.0, 1.0]]])
    >>> ist.Mixture(mixture.means, covariance=own).log_prob(torch.tensor([1.0, 1.0]))
    tensor(-1.9868)
    """

    translation_invariant = True
    covariance: Tensor | None

    def __init__(
        self,
        means: Any,
        beta: float | Tensor = 1.0,
        log_weights: Any = None,
        *,
        covariance: Any = None,
        covariance_type: CovarianceType | None = None,
        index: Setting = "auto",
    ) -> None:
        super().__init__(means, "means", log_weights, index)
        self._store("beta", as_positive(beta, "beta", self.memories))
        if covariance is not None:
            given, (count, dim) = as_tensor(covariance, "covariance"), self.memories.shape
            shapes: dict[CovarianceType, list[tuple[int, ...]]] = {
                "full": [(count, dim, dim)],
                "tied": [(dim, dim), (dim,)],
                "diag": [(count, dim)],
                "spherical": [(count,)],
            }
            if covariance_type is None:
                fits = [kind for kind, allowed in shapes.items() if given.shape in allowed]
                if len(fits) != 1:
                    words = f"fits {' and '.join(fits)}" if fits else f"fits none of {shapes}"
                    raise ShapeError(
                        f"covariance of shape {tuple(given.shape)} {words}. Pass covariance_type, "
                        "or beta for one variance."
                    )
                covariance_type = fits[0]
            as_choice(covariance_type, "covariance_type", shapes)
            matrix = covariance_type == "full" or (covariance_type == "tied" and given.ndim == 2)
            allowed = shapes[covariance_type]
            covariance = as_entries(
                given, "covariance", self.memories, *allowed, positive=not matrix
            )
            if matrix:
                root_of(covariance)
            if covariance_type != "tied":
                self._refuse_index("covariances of each component")
        self.covariance_type = covariance_type
        self._store("covariance", covariance)

    def _is_per_memory(self, name: str, value: Tensor) -> bool:
        own = name == "covariance" and self.covariance_type != "tied"
        return own or super()._is_per_memory(name, value)

    @property
    def is_round(self) -> bool:
        """True if all kernels have one variance in all directions."""
        return self.covariance is None

    def _energy_of(self, x: Tensor, logsumexp: Tensor) -> Tensor:
        if self.covariance is not None:
            logsumexp = logsumexp - self._log_scale
        return super()._energy_of(x, logsumexp)

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, a scalar tensor; log W if there are covariances."""
        return super().log_normalizer() if self.covariance is None else self.log_total_weight

    def _make_shape(self) -> Shape:
        covariance = self.covariance
        assert covariance is not None
        root, precision = torch.ones_like(self.memories[0]), None
        if self.covariance_type == "tied":
            root = covariance.sqrt() if covariance.ndim == 1 else root_of(covariance)
        elif self.covariance_type == "full":
            precision = torch.cholesky_inverse(root_of(covariance))
        else:
            precision = covariance.reciprocal().reshape(self.n_memories, -1)
        return Shape(self.memories, self._keys().centre, root, precision, self.log_weights)

    def _covariances(self) -> Tensor:
        assert self.covariance is not None
        full = self.covariance_type == "full" or self.covariance.ndim == 2
        return self.covariance if full else torch.diag_embed(self.covariance)

    def _part(self, memories: Tensor, chosen: Tensor, **others: Any) -> Mixture:
        covariance, kind = self.covariance, self.covariance_type
        if covariance is not None and kind != "spherical":
            matrix = kind == "full" or (kind == "tied" and covariance.ndim == 2)
            covariance = covariance[..., chosen]
            covariance = covariance[..., chosen, :] if matrix else covariance
        settings = self._settings() | {"covariance": covariance, "index": "auto"} | others
        return self._alike(Mixture(memories, **settings))
