"""Mixtures of Gaussians on one kernel: round, or stretched, turned, and of different widths."""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self, final

import numpy as np
import torch
from torch import Tensor

from isthmus.bandwidth.rules import Bandwidth
from isthmus.bandwidth.search import named
from isthmus.compose import held_move
from isthmus.distribution import Line
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.index.index import Index
from isthmus.index.policy import IndexReport, Kernel, Pruning, Setting
from isthmus.kernel.attention import Attention, attend_centred
from isthmus.kernel.logits import Keys, attention_logits
from isthmus.memories.base import MarginalMemory, keep_observed
from isthmus.memories.shape import Pull, Shape, root_of
from isthmus.validation import as_entries, as_positive, is_transforming, require_squarable

if TYPE_CHECKING:
    from isthmus.memories.grid import TabulatedDensity


class GaussianMemory(MarginalMemory):
    r"""A memory whose density is a mixture of Gaussians, by default with one round covariance.

    .. math::
        p(x) = \frac{1}{W} \sum_n w_n\, \mathcal{N}(x; m_n, s^2 I), \qquad
        E(x) = -\frac{1}{\beta_E} \log \sum_n w_n\, e^{-\lVert x - m_n \rVert^2 / (2 s^2)} ,

    with :math:`W = \sum_n w_n`. A subclass defines :math:`s^2` (:attr:`variance`),
    :math:`\log w` (`log_weights`) and :math:`\beta_E` (:attr:`inverse_temperature`). Kernels that
    are not round (:attr:`is_round`) have a :class:`Shape`.
    """

    def __init__(
        self,
        memories: Any,
        name: str = "memories",
        log_weights: Any = None,
        index: Setting = "auto",
    ) -> None:
        super().__init__(memories, name, log_weights)
        require_squarable(self.memories, name)
        self._pruning = Pruning(index)
        if isinstance(index, Index):
            index.require(self.memories)

    @property
    def index(self) -> Setting:
        """The argument of this name: "auto", True, False or an index."""
        return self._pruning.setting

    def index_report(self) -> IndexReport:
        """Return what was done with the last points: an index or all memories, and why.

        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.randn(100, 2), sigma=0.1)
        >>> energies = kde.energy(torch.zeros(3, 2))
        >>> print(kde.index_report())
        all memories: fewer than 30,000 memories
        """
        shape = self._shape()
        pruning = self._pruning if shape is None else shape.pruning
        if pruning is None:
            return IndexReport(repr(self.index), False, "each kernel has a width of its own")
        return pruning.report

    def moved(self, memories: Tensor) -> Self:
        """Return :meth:`with_memories` of these after a shift or a linear map of all of them.

        An index that was built keeps its cells.
        """
        other = self.with_memories(memories)
        other._pruning = self._pruning.moved(other.index, other.memories)
        return other

    def _refuse_index(self, what: str) -> None:
        """Raise if an index was asked for that cannot serve kernels with `what`."""
        if self.index is not False and self.index != "auto":
            raise UnsupportedOperationError(
                f"An index needs kernels of one shape, but these have {what}. Pass index=False."
            )

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of this energy's dtype, and arrays on its device."""
        points = super().as_input(x, allow_nan=allow_nan)
        require_squarable(points, "x")
        return points

    @property
    def is_round(self) -> bool:
        """True if all kernels have one variance in all directions."""
        return True

    @property
    @abstractmethod
    def variance(self) -> Tensor:
        """The variance s^2 of each component along each axis: a scalar tensor."""

    @property
    def sigma(self) -> Tensor:
        """The standard deviation s of each component along each axis."""
        return self.variance.sqrt()

    def _make_shape(self) -> Shape:
        """Return the shape of kernels that are not round, of parameters as they are now."""
        raise NotImplementedError  # defined by kinds whose `is_round` may be False

    def _shape(self) -> Shape | None:
        """Return the shape, kept until a parameter changes; None for round kernels."""
        return None if self.is_round else self._kept("shape", self._indexed_shape)

    def _indexed_shape(self) -> Shape:
        shape = self._make_shape()
        if shape.precision is None:
            # The index is of the memories in the coordinates of the kernels.
            setting = True if isinstance(self.index, Index) else self.index
            shape.pruning = self._pruning.moved(setting, shape.mapped)
        return shape

    @property
    def _log_scale(self) -> Tensor:
        if (shape := self._shape()) is not None:
            return shape.log_scale.to(self.memories)
        return 0.5 * self.dim * torch.log(2 * math.pi * self.variance)

    def log_normalizer(self) -> Tensor:
        """Return log Z, a scalar tensor; log W + (D/2) log(2 pi s^2) if kernels are round."""
        return self.log_total_weight + self._log_scale

    def _kernel(self) -> Kernel:
        """Return the logits of energy and step, up to a term per query."""
        beta = self._kept("beta", lambda: 0.5 / self.variance)
        return beta, self.log_weights, "sqeuclidean"

    def _density_kernel(self) -> Kernel:
        """Return the logits of the normalised mixture."""
        return 0.5 / self.variance, self.log_mixing_weights, "sqeuclidean"

    def _attend(self, x: Tensor) -> Attention:
        """Return the log-sum-exp, and the mean relative to the centre of the memories."""
        return self._pruning.attend(x, self._keys(), *self._kernel())

    def _attend_density(self, x: Tensor, seen: Tensor | None) -> Attention:
        shape = self._shape()
        if shape is not None:
            if seen is None:
                found = Attention(shape.pull(x).logsumexp - self._log_scale, x)
            else:
                found = (self._attend_patterns if shape.is_full else shape.marginal)(x, seen)
            return Attention(found.logsumexp - self.log_total_weight, found.mean)
        if seen is None and (self.log_weights is None or self._pruning.may_prune(self.n_memories)):
            found = self._attend(x)
            log_mass = self._kept("log_mass", lambda: self.log_total_weight + self._log_scale)
            return Attention(found.logsumexp - log_mass, found.mean)
        found = attend_centred(x, self._keys(), *self._density_kernel(), seen)
        coordinates = self.dim if seen is None else seen.sum(-1)
        return Attention(found.logsumexp - coordinates * (self._log_scale / self.dim), found.mean)

    def _logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        shape = self._shape()
        if shape is None:
            beta, bias, metric = self._kernel() if seen is None else self._density_kernel()
            return attention_logits(x, self._keys(), bias, beta, metric, seen)
        if seen is None or not shape.is_full:
            return shape.logits(x, seen)
        logits = x.new_zeros(*x.shape[:-1], self.n_memories)
        for rows, known in patterns(seen):
            if known.any():
                logits[rows] = self.marginal(known)._logits(x[rows][:, known], None).to(x.dtype)
            elif self.log_weights is not None:
                logits[rows] = self.log_weights
        return logits

    def _attend_patterns(self, x: Tensor, seen: Tensor) -> Attention:
        """Return :meth:`Shape.marginal` for full covariances: rows grouped by what is known."""
        total, means = x.new_zeros(x.shape[:-1]), x.clone()
        for rows, known in patterns(seen):
            points, given = x[rows], x[rows][:, known]
            if not known.any():
                total[rows] = self.log_total_weight
                means[rows] = self.log_mixing_weights.exp().to(self.memories) @ self.memories
                continue
            shape, (slopes, _) = self.marginal(known)._make_shape(), self._regression(known)
            # Values at x are those at zero plus slopes, both of each memory, times x.
            at_zero = self._predicted(known, slopes, given.new_zeros(given.shape[1]))
            own = slopes.flatten(1) if slopes.ndim == 3 else at_zero[:, :0]
            values = torch.cat([at_zero, own], 1)
            sums, both = shape.attend(shape.to_round(given), values=values)
            mean, pooled = both.to(x.dtype).split([at_zero.shape[1], own.shape[1]], 1)
            slopes = pooled.unflatten(1, slopes.shape[1:]) if slopes.ndim == 3 else slopes
            total[rows] = (sums - shape.log_scale).to(x.dtype)
            points[:, ~known] = mean + (slopes @ given[..., None])[..., 0]
            means[rows] = points
        return Attention(total, means - self._keys().centre)

    def _covariances(self) -> Tensor:
        """Return the covariance (D, D) that the kernels share, up to factors, or own (N, D, D)."""
        raise NotImplementedError  # defined by kinds whose `is_round` may be False

    def _regression(self, known: Tensor) -> tuple[Tensor, Tensor]:
        """Return slopes of unknown coordinates on known ones, and their covariance given these."""
        covariance = self._covariances()
        part = covariance[..., known, :][..., known]
        across = covariance[..., known, :][..., ~known]
        solved = torch.linalg.solve(part, across)
        rest = covariance[..., ~known, :][..., ~known] - solved.mT @ across
        return solved.mT, rest

    def _predicted(self, known: Tensor, slopes: Tensor, values: Tensor) -> Tensor:
        """Return the mean of the unknown coordinates for each memory. (N, U)"""
        apart = values - self.memories[:, known]
        return self.memories[:, ~known] + (slopes @ apart[..., None])[..., 0]

    def _part(self, memories: Tensor, chosen: Tensor, **others: Any) -> GaussianMemory:
        """Return these kernels in some coordinates, a mask or indices, about other memories."""
        from isthmus.memories.mixture import Mixture

        weights = {"log_weights": self.log_mixing_weights.to(self.memories)}
        return self._alike(Mixture(memories, 0.5 / self.variance, **weights | others))

    def marginal(self, columns: Any) -> GaussianMemory:
        """Return the energy of some coordinates alone, in the given order: a memory of its kind.

        That of a :class:`ModernHopfield` is a :class:`Mixture`. `columns` is a boolean mask (D,) or
        indices.

        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.randn(5, 3), covariance=torch.eye(3))
        >>> kde.marginal([2, 0])
        GaussianKDE(N=5, D=2, sigma=1, covariance=(2, 2), float32)
        """
        chosen = torch.tensor(as_columns(columns, self.dim), device=self.memories.device)
        return self._part(self.memories[:, chosen], chosen)

    def condition(self, x: Any, observed: Any = None) -> GaussianMemory:
        """Return the energy of the unknown coordinates of one point (D,), given the others.

        It is a memory of the same kind, or a :class:`Mixture` of a :class:`ModernHopfield`, whose
        weights are the responsibilities for what is known: the coordinates marked in `observed`,
        by default those that are not NaN. ``conditional`` is another name of it.

        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.tensor([[0.0, 0.0], [4.0, 9.0]]), sigma=1.0)
        >>> kde.condition(torch.tensor([3.9, float("nan")])).sample(2).shape
        torch.Size([2, 1])
        """
        point = self.as_input(x, allow_nan=True)
        if point.ndim != 1:
            raise ShapeError(f"x must be one point (D,), not {tuple(point.shape)}.")
        point, known = self._partial(point, ~torch.isnan(point) if observed is None else observed)
        if known.all():
            raise InvalidInputError("Every coordinate is known; there is nothing to condition.")
        weights = torch.log_softmax(self._logits(point, known), -1).to(point.dtype)
        shape = self._shape()
        if shape is None or not shape.is_full or not known.any():
            return self._part(self.memories[:, ~known], ~known, log_weights=weights)
        slopes, rest = self._regression(known)
        means = self._predicted(known, slopes, point[known])
        covariance = 0.5 * (rest + rest.mT)
        return self._part(means, ~known, log_weights=weights, covariance=covariance)

    conditional = condition

    def _line(self, column: int) -> Line:
        one = self.marginal([column])
        shape, scales = one._shape(), one.sigma.reshape(-1)
        if shape is not None:
            scales = shape.root.reshape(-1)
            if shape.precision is not None:
                scales = scales / shape.precision.reshape(-1).sqrt()
        return Line.of(self.log_mixing_weights, one.memories[:, 0], scales)

    def _pull(self, x: Tensor) -> Pull:
        if (shape := self._shape()) is not None:
            return shape.pull(x)
        found, centre = self._attend(x), self._keys().centre
        # Both terms are relative to the centre, which keeps their digits far from the origin.
        return Pull(found.logsumexp, found.mean - (x - centre), found.mean + centre)

    def _force_unit(self) -> Tensor:
        """Return what the force of a pull is to be divided by."""
        beta = self.inverse_temperature
        return self.variance * beta if self.is_round else beta

    def _energy(self, x: Tensor) -> Tensor:
        return self._energy_of(x, self._pull(x).logsumexp)

    def _curvature(self) -> Tensor | None:
        return 1 / (self.variance * self.inverse_temperature) if self.is_round else None

    def _log_product_normalizer(self, other: Energy) -> Tensor | None:
        """Return log Z of the product with another round mixture, from overlaps of all pairs."""
        # The integral of two Gaussians is one of the sum of their variances between their means.
        if not (isinstance(other, GaussianMemory) and self.is_round and other.is_round):
            return None
        variance = self.variance + other.variance.to(self.memories)
        theirs, bias = other.memories.to(self.memories), other.log_mixing_weights
        found = attend_centred(self.memories, Keys(theirs), 0.5 / variance, bias.to(theirs))
        overlap = torch.logsumexp(self.log_mixing_weights.to(theirs) + found.logsumexp, 0)
        scale = 0.5 * self.dim * torch.log(2 * math.pi * variance)
        both: Tensor = self.log_normalizer() + other.log_normalizer().to(theirs)
        return both + overlap - scale

    def _energy_of(self, x: Tensor, logsumexp: Tensor) -> Tensor:
        """Return the energy of points (..., D), given the log-sum-exp of their logits (...)."""
        return -logsumexp / self.inverse_temperature

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        return self._step_and_energy(x, held)[0]

    def _step_and_energy(self, x: Tensor, held: Tensor | None = None) -> tuple[Tensor, Tensor]:
        pull = self._pull(x)
        moved, energy = pull.target, self._energy_of(x, pull.logsumexp)
        if held is not None and pull.precision is not None:
            moved = x + held_move(pull.precision, moved - x, ~held)
        return keep_observed(moved, x, held), energy

    def _score(self, x: Tensor) -> Tensor:
        return self._pull(x).force / self._force_unit()

    def _draw_about(self, chosen: Tensor, generator: torch.Generator) -> Tensor:
        centres = self.memories[chosen]
        noise = torch.empty_like(centres).normal_(generator=generator)
        shape = self._shape()
        return centres + (self.sigma * noise if shape is None else shape.spread(noise, chosen))


@final
class GaussianKDE(GaussianMemory):
    r"""Gaussian kernel density estimator of width sigma; beta = 1 / sigma^2 of Hopfield networks.

    .. math::
        E(x) = -\log \sum_n w_n f_n^{-D}
        \exp\Bigl(-\frac{(x - x_n)^\top C^{-1} (x - x_n)}{2 f_n^2 \sigma^2}\Bigr)

    with the density :math:`p = e^{-E} / (W (2\pi\sigma^2)^{D/2} |C|^{1/2})` (erratum E12). By
    default the kernels are round: C = I and f = w = 1. :meth:`step` moves to the mean of the
    memories weighted by responsibility and :math:`1/f_n^2`: mean shift. It equals
    :class:`ModernHopfield` with :math:`\beta = 1/\sigma^2` where all memories have one norm (E13).

    Parameters
    ----------
    memories : array or Tensor (N, D)
    sigma : float, array or Tensor, {"auto", "scott", "silverman"}, or Bandwidth, optional
        The bandwidth: a number, or (D,) for a width of each column. The default is 1 if a
        `covariance` is given, and else "auto": the highest leave-one-out likelihood among round,
        stretched, full and adaptive kernels (:func:`isthmus.bandwidth.choose`). "scott" and
        "silverman" are rules for one Gaussian cluster.
    covariance : array or Tensor (D, D), optional
        C, which sigma squared multiplies. With a number for sigma, as `factors`.
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
    >>> ist.GaussianKDE([[0.0], [1.0], [2.0], [5.0]])
    GaussianKDE(N=4, D=1, sigma=2.69, factors=(4,), float64, chosen by 'auto')
    """

    translation_invariant = True
    bandwidth: Tensor
    covariance: Tensor | None
    factors: Tensor | None
    # The rule that chose sigma, such as "auto".
    _sigma_rule: str | None = None

    def __init__(
        self,
        memories: Any,
        sigma: Any = None,
        *,
        covariance: Any = None,
        factors: Any = None,
        log_weights: Any = None,
        index: Setting = "auto",
    ) -> None:
        super().__init__(memories, log_weights=log_weights, index=index)
        count, dim = self.memories.shape
        if sigma is None:
            sigma = "auto" if covariance is None else 1.0
        if isinstance(sigma, str | Bandwidth):
            if not (covariance is None and factors is None):
                raise InvalidInputError(
                    "A rule or a Bandwidth for sigma describes the whole kernel. Leave out "
                    "covariance and factors, or pass a number for sigma."
                )
            if isinstance(sigma, str):
                self._sigma_rule, rule = sigma, sigma
                if is_transforming():
                    raise InvalidInputError("Pass a number for sigma: its rule cannot be traced.")
                sigma = named(rule, self.memories, self.log_weights)
            sigma, covariance, factors = sigma.sigma, sigma.covariance, sigma.factors
        if getattr(sigma, "ndim", isinstance(sigma, list | tuple)):
            if covariance is not None:
                raise InvalidInputError(
                    "sigma (D,) and covariance both describe the shape; give a number for sigma."
                )
            width = as_entries(sigma, "sigma", self.memories, (dim,))
        else:
            width = as_positive(sigma, "sigma", self.memories)
        self._store("bandwidth", width)
        as_positive(self.variance.min(), "sigma squared", self.memories)
        if covariance is not None:
            shape = (dim, dim)
            covariance = as_entries(covariance, "covariance", self.memories, shape, positive=False)
            root_of(covariance)
        self._store("covariance", covariance)
        if factors is not None:
            factors = as_entries(factors, "factors", self.memories, (count,))
            self._refuse_index("factors")
        self._store("factors", factors)

    def on_grid(self, cells_per_sigma: int = 8, *, reach: float = 8.0) -> TabulatedDensity:
        """Return the density as a table on a grid, in one or two dimensions.

        With many memories and queries this is hundreds of times faster than :meth:`log_prob`. Its
        ``error`` is measured, not proved, and falls with the fourth power of `cells_per_sigma`. The
        density beyond `reach` bandwidths from all memories is zero.

        >>> import torch, isthmus as ist
        >>> kde = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), sigma=1.0)
        >>> grid = kde.on_grid()
        >>> grid.log_prob(torch.tensor([[0.0]]))
        tensor([-1.6118])
        """
        from isthmus.memories.grid import grid_density

        return grid_density(self, cells_per_sigma, reach)

    def whitened(self) -> tuple[GaussianKDE, Shape]:
        """Return a round memory of the same basins, and the map to it; for kernels all alike."""
        shape = self._shape()
        if shape is None or shape.precision is not None or self.log_weights is not None:
            raise UnsupportedOperationError(
                "This needs kernels of one covariance, without factors or weights."
            )
        return GaussianKDE(shape.mapped, 1.0), shape

    def __repr__(self) -> str:
        text = super().__repr__()
        return text if self._sigma_rule is None else f"{text[:-1]}, chosen by {self._sigma_rule!r})"

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
        precision = None if self.factors is None else self.factors[:, None] ** -2
        return Shape(self.memories, self._keys().centre, root, precision, self.log_weights)

    def _covariances(self) -> Tensor:
        if self.covariance is None:
            return torch.diag(self.variance.expand(self.dim))
        return self.variance * self.covariance

    def _part(self, memories: Tensor, chosen: Tensor, **others: Any) -> GaussianKDE:
        covariance = None if self.covariance is None else self.covariance[chosen][:, chosen]
        sigma = self.sigma if self.sigma.ndim == 0 else self.sigma[chosen]
        settings = self._settings() | {"sigma": sigma, "covariance": covariance} | others
        if "covariance" in others:
            settings["sigma"] = 1.0
        settings["index"] = "auto"
        return self._alike(GaussianKDE(memories, **settings))


def patterns(seen: Tensor) -> list[tuple[Tensor, Tensor]]:
    """Return each distinct row (D,) of a mask (..., D), after where it is (...)."""
    found = torch.unique(seen.reshape(-1, seen.shape[-1]), dim=0)
    return [((seen == known).all(-1), known) for known in found]


def as_columns(columns: Any, dim: int) -> list[int]:
    """Return the indices of distinct coordinates, in their order, from a mask (D,) or indices."""
    try:
        chosen = np.asarray(columns.cpu() if isinstance(columns, Tensor) else columns)
        if chosen.dtype == bool and chosen.shape == (dim,):
            chosen = np.flatnonzero(chosen)
        if chosen.ndim == 1 and chosen.size and np.issubdtype(chosen.dtype, np.integer):
            places: list[int] = np.arange(dim)[chosen].tolist()
            if len(set(places)) == len(places):
                return places
    except (IndexError, ValueError, TypeError, RuntimeError):
        pass
    raise InvalidInputError(
        f"columns must name at least one of the coordinates 0 to {dim - 1}, each once, or be a "
        f"mask of them, not {columns!r}."
    )
