"""The normaliser of any energy: by quadrature in one or two dimensions, by annealing in more."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property
from typing import Any, final

import torch
from torch import Tensor

from isthmus.dynamics.samplers import HMC
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_count, as_number


@dataclass(frozen=True)
class LogIntegral:
    """The logarithm of an integral, and its error, both (...).

    The error of quadrature is the difference from half the resolution, far above the actual error
    once the integrand is resolved. That of annealing is one standard error.
    """

    value: Tensor
    error: Tensor


@dataclass(frozen=True)
class Grid:
    """The trapezoidal rule on a centred cube, in one or two dimensions.

    For a smooth density that vanishes at the edges its error falls faster than any power of
    the spacing: with a spacing of 0.8 standard deviations of the sharpest Gaussian it is 1e-13.

    Parameters
    ----------
    dim : int
    half_width : float
    resolution : int
        Lines on each axis; odd, so that every second one is a grid too.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.evaluation import Grid
    >>> grid = Grid(dim=2, half_width=8.0, resolution=41)
    >>> grid.integrate(-grid.nodes.square().sum(-1) / 2).value.exp()
    tensor(6.2832, dtype=torch.float64)
    """

    dim: int
    half_width: float
    resolution: int

    def __post_init__(self) -> None:
        if self.dim not in (1, 2):
            raise InvalidInputError(
                f"A grid in {self.dim} dimensions would have too many nodes. "
                "Use annealed_log_normalizer."
            )
        as_number(self.half_width, "half_width", above=0)
        if as_count(self.resolution, "resolution", at_least=5) % 2 == 0:
            raise InvalidInputError(f"resolution must be odd, not {self.resolution}.")

    @classmethod
    def with_spacing(cls, dim: int, half_width: float, spacing: float) -> Grid:
        """Return the coarsest grid whose lines are at most `spacing` apart."""
        return cls(dim, half_width, max(5, 2 * math.ceil(half_width / spacing) + 1))

    @cached_property
    def nodes(self) -> Tensor:
        """Nodes (G, D) in float64."""
        axis = torch.linspace(
            -self.half_width, self.half_width, self.resolution, dtype=torch.float64
        )
        return torch.cartesian_prod(*[axis] * self.dim).view(-1, self.dim)

    @cached_property
    def log_weights(self) -> Tensor:
        """Logarithms of the nodes' weights. (G,)."""
        return self._log_weights(step=1)

    def _log_weights(self, step: int) -> Tensor:
        """Return log-weights of the grid of every `step`-th line, -inf on the others."""
        axis = torch.zeros(self.resolution, dtype=torch.float64)
        axis[::step] = 2 * self.half_width / (self.resolution - 1) * step
        axis[0] /= 2
        axis[axis.nonzero()[-1, 0]] /= 2
        products = axis if self.dim == 1 else torch.outer(axis, axis)
        return products.flatten().log()

    def integrate(self, log_values: Tensor) -> LogIntegral:
        """Integrate the exponential of values at the nodes. (..., G) -> (...)."""
        if log_values.shape[-1:] != self.log_weights.shape:
            raise ShapeError(
                f"log_values has shape {tuple(log_values.shape)}, but the grid has "
                f"{len(self.log_weights)} nodes."
            )
        value = torch.logsumexp(log_values + self.log_weights, dim=-1)
        coarse = torch.logsumexp(log_values + self._log_weights(step=2), dim=-1)
        return LogIntegral(value, (value - coarse).abs())


@torch.no_grad()
def log_normalizer(energy: Energy, *, half_width: float, resolution: int = 257) -> LogIntegral:
    r"""Return log :math:`Z = \int \exp(-\beta_E E(x))\, dx` over a cube, for D of 1 or 2.

    Parameters
    ----------
    energy : Energy
    half_width : float
        Of the centred cube, outside of which the density must be negligible.
    resolution : int
        Lines on each axis, odd.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.incontext.evaluation import log_normalizer
    >>> kde = ist.GaussianKDE(torch.zeros(1, 2, dtype=torch.float64), sigma=0.5)
    >>> log_normalizer(kde, half_width=5.0).value.exp() / torch.pi
    tensor(0.5000, dtype=torch.float64)
    """
    grid = Grid(_dim(energy), half_width, resolution)
    return grid.integrate(-energy.inverse_temperature * energy.energy(grid.nodes).double())


def _dim(energy: Energy) -> int:
    if energy.dim is None:
        raise InvalidInputError(
            f"{type(energy).__name__} has no number of coordinates. Give the class a property dim."
        )
    return energy.dim


@final
class _Bridge(Energy):
    """Interpolation between a Gaussian, at share 0, and another energy, at share 1."""

    def __init__(self, target: Energy, scale: float) -> None:
        super().__init__()
        self.target, self.scale, self.share = target, scale, 0.0

    def parts(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the energies of the two densities at temperature 1. (..., D) -> two (...)."""
        target = self.target.inverse_temperature * self.target.energy(x)
        return x.square().sum(-1) / (2 * self.scale**2), target.to(x.dtype)

    def energy(self, x: Any) -> Tensor:
        base, target = self.parts(x)
        return (1 - self.share) * base + self.share * target

    def score(self, x: Any) -> Tensor:
        target = self.target.inverse_temperature * self.target.score(x)
        return self.share * target.to(x.dtype) - (1 - self.share) * x / self.scale**2


@torch.no_grad()
def annealed_log_normalizer(
    energy: Energy,
    *,
    scale: float,
    batch: int | None = None,
    particles: int = 256,
    temperatures: int = 200,
    leapfrogs: int = 3,
    seed: int = 0,
) -> LogIntegral:
    r"""Return the log-normaliser by annealed importance sampling (Neal 2001), for any D.

    Particles start in :math:`N(0, s^2 I)`, whose normaliser is known, and are moved by
    Hamiltonian Monte Carlo while the energy turns into the given one. The mean weight is an
    unbiased estimate of Z, so its logarithm is slightly too low on average.

    Parameters
    ----------
    energy : Energy
    scale : float
        s, wide enough to cover the density.
    batch : int, optional
        Number of contexts B, if the energy has a batch of them: points (B, M, D).
    particles, temperatures, leapfrogs : int
        More of each lower the error. The step size adapts to accept about 0.8.
    seed : int

    Returns
    -------
    LogIntegral
        Scalars, or (B,) for a batch.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> from isthmus.incontext.evaluation import annealed_log_normalizer
    >>> kde = ist.GaussianKDE(torch.zeros(1, 5), sigma=0.5)
    >>> found = annealed_log_normalizer(kde, scale=1.0)
    >>> bool((found.value - kde.log_normalizer()).abs() < 4 * found.error)
    True
    """
    scale = as_number(scale, "scale", above=0)
    dim, particles = _dim(energy), as_count(particles, "particles", at_least=2)
    generator = torch.Generator().manual_seed(as_count(seed, "seed", at_least=0))
    shape = (particles, dim) if batch is None else (as_count(batch, "batch"), particles, dim)
    x = scale * torch.randn(shape, generator=generator)
    bridge, step = _Bridge(energy, scale), 0.5 * scale
    log_weights = torch.zeros(shape[:-1], dtype=torch.float64)
    # Small steps first: the wide Gaussian reaches energies of hundreds.
    shares = torch.linspace(0, 1, as_count(temperatures, "temperatures") + 1) ** 3
    for share in shares[1:].tolist():
        base, target = bridge.parts(x)
        log_weights += (share - bridge.share) * (base - target).double()
        bridge.share = share
        hmc = HMC(step_size=step, n_leapfrog=leapfrogs)
        state, info = hmc.step(bridge, hmc.init(bridge, x), generator)
        x = state.position
        step *= 1.1 if float(info.acceptance.mean()) > 0.8 else 0.8
    value = torch.logsumexp(log_weights, -1) - math.log(particles)
    relative = (log_weights - value[..., None]).exp()
    error = relative.std(-1) / math.sqrt(particles)
    return LogIntegral(value + dim / 2 * math.log(2 * math.pi * scale**2), error)
