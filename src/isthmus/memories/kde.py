"""Gaussian kernel density estimator as an associative memory."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, final

import torch
from torch import Tensor

from isthmus.bandwidth.rules import Bandwidth
from isthmus.bandwidth.search import named
from isthmus.errors import InvalidInputError
from isthmus.index.policy import Setting
from isthmus.memories.shape import Shape
from isthmus.memories.shaped import ShapedMemory, as_spread, root_of
from isthmus.validation import as_positive

if TYPE_CHECKING:
    from isthmus.memories.grid import TabulatedDensity


@final
class GaussianKDE(ShapedMemory):
    r"""Gaussian kernel density estimator: its basins are its memories.

    .. math::
        E(x) = -\log \sum_n w_n f_n^{-D}
        \exp\Bigl(-\frac{(x - x_n)^\top C^{-1} (x - x_n)}{2 f_n^2 \sigma^2}\Bigr)

    with the density :math:`p = e^{-E} / (W (2\pi\sigma^2)^{D/2} |C|^{1/2})`. By default the
    kernels are round: C = I and f = w = 1. The paper prints the normaliser as :math:`1/(Nh)`,
    which is right for D = 1 only (erratum E12).

    :meth:`step` moves to the mean of the memories weighted by responsibility and
    :math:`1/f_n^2`. For round kernels that is mean shift, a gradient step of size
    :math:`\sigma^2`. It equals :class:`ModernHopfield` with :math:`\beta = 1/\sigma^2` only where
    all memories have one norm (erratum E13).

    Parameters
    ----------
    memories : array or Tensor (N, D)
    sigma : float, array or Tensor, {"auto", "scott", "silverman"}, or Bandwidth
        The bandwidth: a number, or (D,) for a width of each column. "auto" has the highest
        leave-one-out likelihood among round, stretched, full and adaptive kernels
        (:func:`isthmus.bandwidth.choose`); if `covariance` is given, of its multiples. "scott" and
        "silverman" are rules for one Gaussian cluster, of the covariance of the memories. A
        bandwidth that has a covariance or factors excludes the argument of that name.
    covariance : array or Tensor (D, D), optional
        C, which sigma squared multiplies.
    factors : array or Tensor (N,), optional
        f, the width of each kernel relative to sigma: wide where memories are sparse.
    log_weights : array or Tensor (N,), optional
        log w; need not be normalised, and ``-inf`` leaves a memory out.
    index : "auto", bool or Index
        Skip memories that change no log-density by more than 1e-6. "auto" builds an index if there
        are at least 30,000 memories and enough queries to pay for it, and uses it where it is
        faster; :meth:`index_report` says what it did. Kernels must not have `factors`.

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
    >>> ist.GaussianKDE(torch.eye(3), sigma=[0.1, 0.2, 0.1], factors=[1.0, 1.0, 2.0])
    GaussianKDE(N=3, D=3, sigma=(3,), factors=(3,), float32)
    """

    translation_invariant = True
    bandwidth: Tensor
    factors: Tensor | None

    def __init__(
        self,
        memories: Any,
        sigma: Any = 1.0,
        *,
        covariance: Any = None,
        factors: Any = None,
        log_weights: Any = None,
        index: Setting = "auto",
    ) -> None:
        super().__init__(memories, log_weights=log_weights, index=index)
        if isinstance(sigma, str):
            rows, weights = self.memories.detach(), self.log_weights
            weights = None if weights is None else weights.detach().cpu().double().numpy()
            chosen = named(sigma, rows.cpu().double().numpy(), weights, covariance, factors)
            sigma, covariance, factors = chosen.sigma, chosen.covariance, chosen.factors
        if isinstance(sigma, Bandwidth):
            covariance = _only("covariance", covariance, sigma.covariance)
            factors = _only("factors", factors, sigma.factors)
            sigma = sigma.sigma
        count, dim = self.memories.shape
        if getattr(sigma, "ndim", isinstance(sigma, list | tuple)):
            if covariance is not None:
                raise InvalidInputError(
                    "sigma (D,) and covariance both describe the shape; give a number for sigma."
                )
            width = as_spread(sigma, "sigma", self.memories, (dim,))
        else:
            width = as_positive(sigma, "sigma", self.memories)
        self._store("bandwidth", width)
        as_positive(self.variance.min(), "sigma squared", self.memories)
        if covariance is not None:
            covariance = as_spread(
                covariance, "covariance", self.memories, (dim, dim), positive=False
            )
            root_of(covariance)
        self._store("covariance", covariance)
        if factors is not None:
            factors = as_spread(factors, "factors", self.memories, (count,))
            self._refuse_index("factors")
        self._store("factors", factors)

    def on_grid(self, cells_per_sigma: int = 8, *, reach: float = 8.0) -> TabulatedDensity:
        """Return the density as a table on a grid, in one or two dimensions.

        With many memories and queries this is hundreds of times faster than :meth:`log_prob`. It
        is an approximation without a certificate: its error is measured, not proved.

        Parameters
        ----------
        cells_per_sigma : int
            Cells of the grid along one bandwidth; the error falls with its fourth power.
        reach : float
            The density beyond this many bandwidths from all memories is zero.

        Examples
        --------
        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), sigma=1.0)
        >>> grid = kde.on_grid()
        >>> grid.log_prob(torch.tensor([[0.0]]))
        tensor([-1.6118])
        >>> grid.error < 1e-3
        True
        """
        from isthmus.memories.grid import grid_density

        return grid_density(self, cells_per_sigma, reach)

    @property
    def sigma(self) -> Tensor:
        """The bandwidth: a scalar tensor, or (D,)."""
        return self.bandwidth

    @property
    def variance(self) -> Tensor:
        """Squared bandwidth sigma^2."""
        return self.bandwidth.square()

    @property
    def is_round(self) -> bool:
        """True if all kernels have one variance in all directions."""
        return self.covariance is None and self.factors is None and self.bandwidth.ndim == 0

    def _make_shape(self) -> Shape:
        if self.covariance is None:
            root = self.bandwidth.expand(self.dim)
        else:
            root = self.bandwidth * root_of(self.covariance)
        precision = None if self.factors is None else self.factors.square().reciprocal()
        return Shape(self.memories, self._keys().centre, root, precision, self.log_weights)

    def _covariances(self) -> Tensor:
        if self.covariance is None:
            return torch.diag(self.variance.expand(self.dim))
        return self.variance * self.covariance

    def _part(self, known: Tensor) -> dict[str, Any]:
        covariance = None if self.covariance is None else self.covariance[known][:, known]
        sigma = self.sigma if self.sigma.ndim == 0 else self.sigma[known]
        settings = {"sigma": sigma, "covariance": covariance, "factors": self.factors}
        return settings | {"log_weights": self.log_weights}


def _only(name: str, given: Any, own: Any) -> Any:
    """Return the one of two settings that is not None."""
    if given is not None and own is not None:
        raise InvalidInputError(f"The bandwidth has {name} of its own; leave out {name}=.")
    return own if given is None else given
