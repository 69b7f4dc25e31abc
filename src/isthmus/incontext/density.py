"""Densities of in-context energies: likelihoods, divergences, descents."""

from __future__ import annotations

import math
from copy import deepcopy
from statistics import fmean
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.priors import GaussianMixtures, Prior, Tasks
from isthmus.normalizer import Grid, annealed_log_normalizer

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
    """Return the mean negative log-likelihood in nats of points (B, M, D), given (B, n, D).

    In one or two dimensions. The grid must cover the model's density.

    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
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
    """
    mine, true = starts.clone(), starts.clone()
    highest = (-tasks.log_prob(starts)).amax(1)[:, None, None]
    slope = torch.func.grad(lambda x: tasks.log_prob(x).sum())
    for _ in range(steps):
        mine = (mine + step_size * energy.score(mine).to(mine.dtype)).clamp(-box, box)
        true = (true + step_size / highest * slope(true)).clamp(-box, box)
    error = (mine - true).square().sum(-1).mean(-1)
    return torch.where(torch.isfinite(highest[:, 0, 0]), error, torch.nan)
