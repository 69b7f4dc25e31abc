"""Energies as ``torch.distributions``, and quantiles of single coordinates."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, ClassVar, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.distributions import Distribution, constraints

from isthmus.errors import InvalidInputError, MissingOperationError
from isthmus.validation import as_numbers

if TYPE_CHECKING:
    from isthmus.energy import Energy

Array = NDArray[np.float64]
# Kernels times points that are evaluated at once.
BLOCK_ENTRIES = 2**22


class Laplace:
    """One coordinate of the kernel exp(-|x|) in D > 1 dimensions: its moments, as scipy.stats."""

    def __init__(self, dim: int) -> None:
        self.dim = dim

    def cdf(self, _: Array) -> Array:
        """Raise, as there is no closed form."""
        raise MissingOperationError(
            "One of several coordinates of a LaplaceKDE has no closed-form distribution function. "
            "Make the energy from that column alone."
        )

    ppf = cdf

    def mean(self) -> float:
        """Return the mean."""
        return 0.0

    def var(self) -> float:
        """Return the variance."""
        return self.dim + 1.0


@dataclass(frozen=True)
class Line:
    """One coordinate of a mixture whose components have one form: all arrays are (N,).

    The form is a symmetric distribution of scipy.stats; its parameters may be (N,).
    """

    weights: Array
    centres: Array
    scales: Array
    kernel: Any

    @classmethod
    def of(cls, log_weights: Tensor, centres: Tensor, scales: Tensor, kernel: Any = None) -> Line:
        """Return the line of tensors, whose weights are normalised; by default of Gaussians."""
        from scipy import stats  # takes long to import

        parts = log_weights.double().exp(), centres, scales.expand(centres.shape)
        weights, places, widths = (part.double().numpy(force=True) for part in parts)
        return cls(weights, places, widths, stats.norm() if kernel is None else kernel)

    def cdf(self, x: Array) -> Array:
        """Return the probability of values up to x. (Q,) -> (Q,)"""
        rows = max(1, BLOCK_ENTRIES // len(self.centres))
        blocks = [x[at : at + rows, None] for at in range(0, len(x), rows)]
        found = [
            self.kernel.cdf((one - self.centres) / self.scales) @ self.weights for one in blocks
        ]
        return np.concatenate([x[:0], *found]).clip(0, 1)

    def ppf(self, q: Array) -> Array:
        """Return the least values with a probability of at least q below them. (Q,) -> (Q,)"""
        # They lie between the least and the largest quantile of the components.
        kept = self.weights > 0
        quantile = np.broadcast_to(self.kernel.ppf(q[:, None]), (len(q), len(kept)))[:, kept]
        ends = self.centres[kept] + self.scales[kept] * quantile
        low, high = ends.min(1), ends.max(1)
        for _ in range(200):
            with np.errstate(invalid="ignore"):
                middle = 0.5 * low + 0.5 * high
            open_ones = (middle > low) & (middle < high)
            if not open_ones.any():
                break
            below = self.cdf(np.where(open_ones, middle, self.centres[0])) < q
            low = np.where(open_ones & below, middle, low)
            high = np.where(open_ones & ~below, middle, high)
        return high

    def moments(self) -> tuple[float, float]:
        """Return the mean and the variance."""
        has_mean = np.isfinite(self.kernel.mean()).all()
        mean = float(self.weights @ self.centres) if has_mean else math.nan
        variances = self.scales**2 * self.kernel.var() + (self.centres - mean) ** 2
        return mean, float(np.where(self.weights > 0, self.weights * variances, 0.0).sum())

    def moved(self, factor: float, shift: float) -> Line:
        """Return the line of a coordinate that is multiplied, then shifted."""
        return Line(
            self.weights, factor * self.centres + shift, abs(factor) * self.scales, self.kernel
        )


def probabilities(q: Any) -> Array:
    """Return probabilities as a float64 array after a check."""
    values = as_numbers(q, "q")
    if not ((values >= 0) & (values <= 1)).all():
        raise InvalidInputError("q must hold probabilities, from 0 to 1.")
    return values


class EnergyDistribution(Distribution):
    """An energy as a distribution of PyTorch; :meth:`isthmus.Energy.as_distribution` makes it.

    Its events are points (D,). As for every distribution of PyTorch, draws are from its global
    random stream, which ``torch.manual_seed`` sets; ``energy.sample(n, seed)`` leaves it alone.
    """

    arg_constraints: ClassVar[dict[str, Any]] = {}
    support = constraints.real_vector

    def __init__(
        self, energy: Energy, batch_shape: Any = (), validate_args: bool | None = None
    ) -> None:
        self.energy = energy
        event_shape = torch.Size([energy._known_dim()])
        super().__init__(torch.Size(batch_shape), event_shape, validate_args)

    def __repr__(self) -> str:
        return f"EnergyDistribution({self.energy!r}, batch_shape={tuple(self.batch_shape)})"

    def _batched(self, values: Tensor) -> Tensor:
        return values.expand(torch.broadcast_shapes(values.shape, self.batch_shape))

    def expand(self, batch_shape: Any, _instance: Any = None) -> Self:
        """Return the same distribution with another batch shape."""
        return type(self)(self.energy, batch_shape, self._validate_args)

    def log_prob(self, value: Tensor) -> Tensor:
        """Return the log-density of points. (..., D) -> (...)"""
        if self._validate_args:
            self._validate_sample(value)
        return self._batched(self.energy.log_prob(value))

    @torch.no_grad()
    def sample(self, sample_shape: Any = ()) -> Tensor:
        """Draw points. -> (*sample_shape, *batch_shape, D)"""
        shape = self._extended_shape(torch.Size(sample_shape))
        seed = int(torch.randint(2**31, ()))
        return torch.as_tensor(self.energy.sample(math.prod(shape[:-1]), seed=seed)).reshape(shape)

    def cdf(self, value: Tensor) -> Tensor:
        """Return the distribution function of an energy of one coordinate. (..., 1) -> (...)"""
        if self._validate_args:
            self._validate_sample(value)
        return self._batched(self.energy.cdf(value[..., 0]))

    def icdf(self, value: Tensor) -> Tensor:
        """Return the quantiles of an energy of one coordinate. (...) -> (..., 1)"""
        return self._batched(self.energy.ppf(value))[..., None]

    def _moments(self, which: int) -> Tensor:
        try:
            lines = [self.energy._line(column) for column in range(self.event_shape[0])]
        except MissingOperationError as error:
            raise NotImplementedError(str(error)) from None
        like = self.energy._template
        values = torch.tensor([line.moments()[which] for line in lines], dtype=torch.float64)
        return (values if like is None else values.to(like)).expand(self._extended_shape())

    @property
    def mean(self) -> Tensor:
        """The mean, where it has a closed form. (*batch_shape, D)"""
        return self._moments(0)

    @property
    def variance(self) -> Tensor:
        """The variance of each coordinate, where it has a closed form. (*batch_shape, D)"""
        return self._moments(1)
