"""Densities of energies: normalisers by quadrature or annealing, likelihoods, divergences."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from functools import cached_property
from statistics import fmean
from typing import Any, Protocol, final

import torch
from torch import Tensor

from isthmus.dynamics.samplers import HMC
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.priors import GaussianMixtures, Prior, Tasks
from isthmus.validation import as_count, as_number


@dataclass(frozen=True)
class LogIntegral:
    """The logarithm of an integral, and its error, both (...).

    The error of quadrature is the difference from half the resolution, far above the actual one;
    that of annealing is one standard error.
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

    Particles start in :math:`N(0, s^2 I)` and move by Hamiltonian Monte Carlo while the energy
    turns into the given one. The logarithm of their mean weight is slightly too low on average.

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


# A finer search than a likelihood of a hundred tasks can resolve.
TEMPERATURES = tuple(10 ** (i / 40) for i in range(-60, 61))
# Context sizes of HeldOut, and its seed, which differs from those of training.
CONTEXTS = (0, 2, 8, 32)
HELD_OUT_SEED = 2**31


class InContextModel(Protocol):
    """Anything that turns a dataset into an energy."""

    @property
    def config(self) -> Any:
        """Settings, of which ``dim`` and ``box`` (a half-width or None) are read."""
        ...

    def condition(self, context: Any) -> Energy:
        """Return the energy of a dataset (n, D), or of a batch of datasets (B, n, D)."""
        ...


def grid_for(model: InContextModel, prior: Prior) -> Grid:
    """Return a grid that holds the model's density, walls included, and resolves the prior's."""
    # Lines are 0.8 standard deviations of the sharpest component apart; for other priors, whose
    # details a model trained on mixtures does not have, 1/45 of the box.
    box = max(model.config.box or 0.0, prior.box)
    wall = getattr(model.config, "wall", box / 10)
    spacing = 0.8 * prior.std_low if isinstance(prior, GaussianMixtures) else prior.box / 45
    return Grid.with_spacing(prior.dim, box + 5 * wall, spacing)


class GridDensity:
    """The density of a model for contexts (B, n, D), normalised exactly on a grid."""

    def __init__(self, model: InContextModel, context: Tensor, grid: Grid) -> None:
        self.grid = grid
        self.energy = model.condition(context)
        self.log_values = -_scaled(self.energy, grid.nodes.expand(len(context), -1, -1))  # (B, G)
        self.log_normalizer = grid.integrate(self.log_values)
        self.log_prob = self.log_values - self.log_normalizer.value[:, None]

    def scores(self, points: Tensor) -> dict[str, Tensor]:
        """Return scores of points (B, M, D), at temperature 1 and at :data:`TEMPERATURES`."""
        mean = _scaled(self.energy, points).mean(1)
        tempered = [
            mean / T + torch.logsumexp(self.log_values / T + self.grid.log_weights, dim=-1)
            for T in TEMPERATURES
        ]
        return {
            "nll": mean + self.log_normalizer.value,
            "tempered": torch.stack(tempered, dim=1),
            "normalizer_error": self.log_normalizer.error,
        }

    def kl_from(self, log_prob: Tensor) -> Tensor:
        """Return the divergence of this density from another, given at the nodes (B, G): (B,)."""
        mass = (log_prob + self.grid.log_weights).softmax(-1)
        gap = torch.where(mass > 0, log_prob - self.log_prob, 0.0)  # no 0 times infinity
        return (mass * gap).sum(-1)


def annealed_scores(
    model: InContextModel, context: Tensor, points: Tensor, *, scale: float, seed: int
) -> dict[str, Tensor]:
    """Return the scores of :class:`GridDensity` by annealing; NaN for temperatures but 1."""
    energy = model.condition(context)
    normalizer = annealed_log_normalizer(energy, scale=scale, batch=len(context), seed=seed)
    unknown = torch.full((len(context), len(TEMPERATURES)), torch.nan, dtype=torch.float64)
    nll = _scaled(energy, points).mean(1) + normalizer.value
    return {"nll": nll, "tempered": unknown, "normalizer_error": normalizer.error}


def _scaled(energy: Energy, x: Tensor) -> Tensor:
    """Return energy times inverse temperature in float64. (B, M, D) -> (B, M)."""
    return (energy.inverse_temperature * energy.energy(x)).double()


@torch.no_grad()
def held_out_nll(model: InContextModel, context: Tensor, points: Tensor, grid: Grid) -> float:
    """Return the mean negative log-likelihood in nats, in one or two dimensions.

    Parameters
    ----------
    model : InContextModel
    context : (B, n, D)
    points : (B, M, D)
    grid : Grid
        Its width must cover the model's density. The cost grows with its nodes.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> from isthmus.incontext.evaluation import Grid, held_out_nll
    >>> model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, box=5.5))
    >>> nll = held_out_nll(model, torch.zeros(2, 5, 2), torch.zeros(2, 3, 2), Grid(2, 8.0, 65))
    >>> 0 < nll < 10
    True
    """
    density = GridDensity(model, context, grid)
    nll = _scaled(density.energy, points).mean(1) + density.log_normalizer.value
    return float(nll.mean())


class HeldOut:
    """Mean negative log-likelihood on a few fixed datasets of a prior, to follow training.

    Contexts are shorter than `length`. The score is exact by quadrature, so it is NaN in more than
    two dimensions; use :func:`isthmus.incontext.evaluate` there.
    """

    def __init__(self, prior: Prior, *, length: int, tasks: int = 16, points: int = 64) -> None:
        generator = torch.Generator().manual_seed(HELD_OUT_SEED)
        drawn = prior.draw(tasks, generator)
        self.prior = prior
        self.sizes = [size for size in CONTEXTS if size < length]
        self.context = drawn.sample(max(self.sizes), generator)
        self.points = drawn.sample(points, generator)

    def __call__(self, model: ICLEBM) -> float:
        """Return the score of a model, in nats."""
        if self.prior.dim > 2:
            return math.nan
        if model.readout.weight.device.type != "cpu":
            model = deepcopy(model).cpu()
        grid = grid_for(model, self.prior)
        return fmean(
            held_out_nll(model, self.context[:, :size], self.points, grid) for size in self.sizes
        )


@torch.no_grad()
def descent_error(
    energy: Energy,
    tasks: Tasks,
    starts: Tensor,
    *,
    box: float,
    step_size: float = 3.16,
    steps: int = 15,
) -> Tensor:
    r"""Return squared distances between end points of descent on a model and on the truth.

    As in the authors' evaluation, both descend without noise from the same starts; the true
    energy, :math:`-\log p`, is scaled to a maximum of 10 over the starts, and its step is a tenth
    of the model's. Unlike theirs, descents stay in the box: their step is mostly unstable.

    Parameters
    ----------
    energy : Energy
        Of a batch of B contexts.
    tasks : Tasks
        The B densities.
    starts : Tensor (B, S, D)
    box : float
        Half-width of the cube that descents are clamped to.
    step_size, steps
        Default: the authors'.

    Returns
    -------
    Tensor (B,)
        Mean over the starts; NaN where the true energy is infinite.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> from isthmus.incontext.evaluation import descent_error
    >>> from isthmus.incontext.priors import prior
    >>> generator = torch.Generator().manual_seed(0)
    >>> tasks = prior("paper").draw(3, generator)
    >>> model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, box=20.0))
    >>> energy = model.condition(tasks.sample(5, generator))
    >>> descent_error(energy, tasks, torch.zeros(3, 2, 2), box=20.0).shape
    torch.Size([3])
    """
    mine, true = starts.clone(), starts.clone()
    highest = (-tasks.log_prob(starts)).amax(1)[:, None, None]
    slope = torch.func.grad(lambda x: tasks.log_prob(x).sum())
    for _ in range(steps):
        mine = (mine + step_size * energy.score(mine).to(mine.dtype)).clamp(-box, box)
        true = (true + step_size / highest * slope(true)).clamp(-box, box)
    error = (mine - true).square().sum(-1).mean(-1)
    return torch.where(torch.isfinite(highest[:, 0, 0]), error, torch.nan)
