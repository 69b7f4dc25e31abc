r"""Normalisers of energies: quadrature in one or two dimensions, annealing above.

:math:`\log Z = \log \int \exp(-\beta_E E(x))\, dx` is what :meth:`isthmus.Energy.log_prob` needs.
"""

from __future__ import annotations

import math
import warnings
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Any, Literal

import torch
from torch import Tensor

from isthmus.compose import Affine, WeightedSum, Wrapper
from isthmus.dynamics.sample import sample
from isthmus.dynamics.samplers import HMC
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError, UnknownNormalizerError
from isthmus.validation import (
    as_choice,
    as_count,
    as_entries,
    as_number,
    as_seed,
    require_kind,
)

__all__ = [
    "Grid",
    "LogIntegral",
    "NormalizedEnergy",
    "annealed_log_normalizer",
    "with_normalizer",
]

# Draws that tell where an energy has its mass, and steps of their chains before.
DRAWS, BURN_IN = 400, 150
# Half-width of the first box in standard deviations, and the largest numbers of lines of a grid.
FIRST_WIDTH, MOST_LINES = 6.0, {1: 2**17 + 1, 2: 2**9 + 1}
MOST_DOUBLINGS = 12
NODES_AT_ONCE = 2**16
# The Gaussian from which annealing starts is this much wider than the draws.
WIDER = 1.3
# An estimate with a larger error, in nats, or a smaller share of effective samples, is warned of.
LARGE_ERROR, SMALL_SHARE = 0.1, 0.1


@dataclass(frozen=True, eq=False)
class LogIntegral:
    """The logarithm of an integral, and its error, both (...).

    The error of quadrature is the difference from half the resolution; that of annealing is one
    standard error, which is worthless if `effective_samples`, of its weights, is near 1.
    """

    value: Tensor
    error: Tensor
    effective_samples: Tensor | None = None


@dataclass(frozen=True)
class Grid:
    """The trapezoidal rule on a centred cube, in one or two dimensions.

    For a smooth density that vanishes at the edges its error falls faster than any power of the
    spacing. `resolution`, the lines on each axis, is odd, so that every second one is a grid too.

    Examples
    --------
    >>> import torch
    >>> from isthmus.normalizer import Grid
    >>> grid = Grid(dim=2, half_width=8.0, resolution=41)
    >>> grid.integrate(-grid.nodes.square().sum(-1) / 2).value.exp()
    tensor(6.2832, dtype=torch.float64)
    """

    dim: int
    half_width: float
    resolution: int

    def __post_init__(self) -> None:
        if as_count(self.dim, "dim") > 2:
            raise InvalidInputError(
                f"A grid in {self.dim} dimensions would have too many nodes. Use annealing."
            )
        object.__setattr__(self, "half_width", as_number(self.half_width, "half_width", above=0))
        if as_count(self.resolution, "resolution", at_least=5) % 2 == 0:
            raise InvalidInputError(f"resolution must be odd, not {self.resolution}.")

    @classmethod
    def with_spacing(cls, dim: int, half_width: float, spacing: float) -> Grid:
        """Return the coarsest grid whose lines are at most `spacing` apart."""
        return cls(dim, half_width, max(5, 2 * math.ceil(half_width / spacing) + 1))

    @cached_property
    def nodes(self) -> Tensor:
        """Nodes (G, D) in float64."""
        ends = -self.half_width, self.half_width
        axis = torch.linspace(*ends, self.resolution, dtype=torch.float64)
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


class _Gaussian(Energy):
    """An isotropic Gaussian about the origin, where annealing starts."""

    def __init__(self, scale: float) -> None:
        super().__init__()
        self.scale = scale

    def _energy(self, x: Tensor) -> Tensor:
        return (x / self.scale).square().sum(-1) / 2

    def _score(self, x: Tensor) -> Tensor:
        return -x / self.scale / self.scale


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

    Particles start in :math:`N(0, s^2 I)` and move by Hamiltonian Monte Carlo while the energy
    turns into the given one. The logarithm of their mean weight is slightly too low on average.

    The scale s should cover the density; more particles, temperatures and leapfrogs lower the
    error. `batch` is the number of contexts B of an energy that takes points (B, M, D).

    >>> import torch, isthmus as ist
    >>> from isthmus.normalizer import annealed_log_normalizer
    >>> kde = ist.GaussianKDE(torch.zeros(1, 5), sigma=0.5)
    >>> found = annealed_log_normalizer(kde, scale=1.0)
    >>> bool((found.value - kde.log_normalizer()).abs() < 4 * found.error)
    True
    """
    require_kind(energy, "energy", Energy)
    scale, dim = as_number(scale, "scale", above=0), energy._known_dim()
    particles = as_count(particles, "particles", at_least=2)
    generator = torch.Generator().manual_seed(as_seed(seed))
    shape = (particles, dim) if batch is None else (as_count(batch, "batch"), particles, dim)
    like = torch.empty(()) if energy._template is None else energy._template
    x = (scale * torch.randn(shape, generator=generator)).to(like.device)
    start = _Gaussian(scale)
    bridge = WeightedSum.of([start, energy], [1.0, 0.0], tempered=True)
    log_weights, step = torch.zeros(shape[:-1], dtype=torch.float64, device=x.device), 0.5 * scale
    # Small steps first: the wide Gaussian reaches energies of hundreds.
    shares = torch.linspace(0, 1, as_count(temperatures, "temperatures") + 1) ** 3
    for before, share in pairwise(shares.tolist()):
        target = energy.inverse_temperature * energy._energy(x.to(like.dtype))
        log_weights += (share - before) * (start._energy(x) - target).double()
        bridge.weights.copy_(torch.tensor([1 - share, share]))
        hmc = HMC(step_size=step, n_leapfrog=leapfrogs)
        state, info = hmc.step(bridge, hmc.init(bridge, x), generator)
        x = state.position
        step *= 1.1 if float(info.acceptance.mean()) > 0.8 else 0.8
    value = torch.logsumexp(log_weights, -1) - math.log(particles)
    relative = (log_weights - value[..., None]).exp()
    error = relative.std(-1) / math.sqrt(particles)
    effective = relative.sum(-1) ** 2 / relative.square().sum(-1)
    return LogIntegral(value + dim / 2 * math.log(2 * math.pi * scale**2), error, effective)


def _place(energy: Energy, centre: Any, scale: Any, dim: int, seed: int) -> tuple[Tensor, Tensor]:
    """Return the centre and the width of the mass, given or by draws, in float64. (D,)"""
    exact, shapes = torch.empty((), dtype=torch.float64), ((), (dim,))
    place = width = None
    if centre is not None:
        place = as_entries(centre, "centre", exact, *shapes, positive=False).detach().expand(dim)
    if scale is not None:
        width = as_entries(scale, "scale", exact, *shapes).detach().expand(dim)
    if place is None or width is None:
        if energy.has_exact_draws:
            drawn = energy._sample(DRAWS, as_seed(seed))
        else:
            drawn = sample(energy, DRAWS, burn_in=BURN_IN, seed=seed, progress=False)
        drawn = torch.as_tensor(drawn).detach().double().cpu()
        place = drawn.mean(0) if place is None else place
        if width is None:
            width = (drawn - place).square().mean(0).sqrt().clamp(min=1e-12)
    return place, width


@torch.no_grad()
def _grid_log_normalizer(energy: Energy, dim: int, tol: float) -> LogIntegral:
    """Return the integral over a box that is refined and widened until neither changes it."""

    def on(grid: Grid) -> tuple[LogIntegral, bool]:
        parts = [energy.energy(nodes) for nodes in grid.nodes.split(NODES_AT_ONCE)]
        heights = -(energy.inverse_temperature * torch.cat(parts)).double().cpu()
        edge = (grid.nodes.abs() == grid.half_width).any(-1)
        return grid.integrate(heights), bool(heights[edge].max() >= heights[~edge].max())

    grid = Grid(dim, FIRST_WIDTH, 65)
    found, at_edge = on(grid)
    tail = torch.full_like(found.value, torch.inf)
    for _ in range(MOST_DOUBLINGS):
        while found.error > tol and 2 * grid.resolution - 1 <= MOST_LINES[dim]:
            grid = Grid(dim, grid.half_width, 2 * grid.resolution - 1)
            found, at_edge = on(grid)
        lines = min(2 * grid.resolution - 1, MOST_LINES[dim])
        wider = Grid(dim, 2 * grid.half_width, lines)
        further, at_edge = on(wider)
        tail = (further.value - found.value).abs()
        if tail <= tol or (lines == MOST_LINES[dim] and further.error > tail):
            break  # a wider grid would be too coarse
        grid, found = wider, further
    if at_edge or not bool(torch.isfinite(found.value)):
        raise UnknownNormalizerError(
            "The density does not fall towards the edges of a box, however large, so that it has "
            "no normaliser. Add a term that grows with the distance, such as a GaussianKDE."
        )
    # The mass outside halves with every doubling for the tails of Cauchy's density.
    return LogIntegral(found.value, found.error + 3 * tail)


class NormalizedEnergy(Wrapper):
    """An energy with an estimated log-normaliser, ``normalizer``; it can do all that it could."""

    log_z: Tensor

    def __init__(self, energy: Energy, normalizer: LogIntegral) -> None:
        super().__init__(energy)
        self.normalizer = normalizer
        self.register_buffer("log_z", normalizer.value.detach().double())

    def log_normalizer(self) -> Tensor:
        """Return the estimate of log Z, a scalar tensor."""
        like = self.inner._template
        return self.log_z if like is None else self.log_z.to(like)

    def _log_prob(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        return super()._log_prob(x) if seen is None else self.inner._log_prob(x, seen)

    def _curvature(self) -> Tensor | None:
        return self.inner._curvature()

    def _in_float64(self) -> Energy | None:
        inner = self.inner._in_float64()
        return None if inner is None else NormalizedEnergy(inner, self.normalizer)

    def __repr__(self) -> str:
        value, error = float(self.normalizer.value), float(self.normalizer.error)
        return f"NormalizedEnergy({self.inner!r}, log Z = {value:.6g} ± {error:.1g})"


def with_normalizer(
    energy: Energy,
    *,
    method: Literal["auto", "grid", "annealing"] = "auto",
    centre: Any = None,
    scale: Any = None,
    tol: float = 1e-6,
    particles: int = 512,
    temperatures: int = 300,
    seed: int = 0,
) -> NormalizedEnergy:
    r"""Return the same energy with a ``log_prob``, by its own normaliser or an estimate.

    The ``normalizer`` of the result holds the value, for the parameters as they are now, and its
    error. A warning is given where that is above 0.1 nats, or few samples are effective.

    Parameters
    ----------
    energy : Energy
        With a normalisable density.
    method : {"auto", "grid", "annealing"}
        "auto" is the normaliser that the energy knows, else the trapezoidal rule on a grid in one
        or two dimensions, else annealed importance sampling (Neal 2001).
    centre, scale : array or Tensor (D,), optional
        Where the mass is and how wide. Default: mean and standard deviation of draws by
        :func:`isthmus.sample`. Chains do not cross high barriers: name the place of far modes.
    tol : float
        Of the grid, in nats.
    particles, temperatures : int
        Of annealing; more of each lower the error.
    seed : int

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> well = ist.SparseHopfield(torch.tensor([[1.0], [-1.0]]), beta=4.0)
    >>> density = ist.with_normalizer(well)
    >>> density
    NormalizedEnergy(SparseHopfield(N=2, D=1, beta=4, float32), log Z = 2.90003 ± ...)
    >>> density.log_prob(torch.tensor([[1.0], [0.0]]))
    tensor([-0.9000, -2.5095])
    """
    require_kind(energy, "energy", Energy)
    as_choice(method, "method", ("auto", "grid", "annealing"))
    tol = as_number(tol, "tol", above=0)
    if method == "auto":
        try:
            known = torch.as_tensor(energy.log_normalizer()).detach().double()
            return NormalizedEnergy(energy, LogIntegral(known, torch.zeros_like(known)))
        except UnknownNormalizerError:
            pass
    dim = energy._known_dim()
    place, width = _place(energy, centre, scale, dim, seed)
    # In coordinates about `place`, in units of `width`.
    standard = Affine(energy, scale=1 / width, shift=-place / width)
    if method == "annealing" or (method == "auto" and dim > 2):
        found = annealed_log_normalizer(
            standard, scale=WIDER, particles=particles, temperatures=temperatures, seed=seed
        )
    else:
        found = _grid_log_normalizer(standard, dim, tol)
    few = found.effective_samples is not None and found.effective_samples < SMALL_SHARE * particles
    if few or found.error > LARGE_ERROR:
        warnings.warn(
            f"The log-normaliser is uncertain: its error is {float(found.error):.2g} nats"
            f"{', and the effective sample size is small' if few else ''}. Give centre and scale, "
            "or raise temperatures and particles, which annealing has.",
            UserWarning,
            stacklevel=2,
        )
    value = found.value + width.log().sum()
    return NormalizedEnergy(energy, LogIntegral(value, found.error, found.effective_samples))
