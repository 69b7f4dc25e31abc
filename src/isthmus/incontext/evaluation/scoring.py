"""The density of an in-context model: normalised, tempered, and compared with the truth."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.incontext.evaluation.normalizer import Grid, LogIntegral, annealed_log_normalizer

__all__ = ["TEMPERATURES", "InContextModel", "OnGrid", "Scores", "held_out_nll", "score_annealed"]

# A finer search than a likelihood of a hundred tasks could tell apart.
TEMPERATURES = tuple(10 ** (i / 40) for i in range(-60, 61))


class InContextModel(Protocol):
    """Anything that makes an energy of a dataset."""

    @property
    def config(self) -> Any:
        """Settings, of which ``dim`` and ``box`` (a half-width or None) are read."""
        ...

    def condition(self, context: Any) -> Energy:
        """The energy of a dataset (n, D), or of a batch of datasets (B, n, D)."""
        ...


@dataclass(frozen=True)
class Scores:
    """What is known of a batch of B contexts.

    Attributes
    ----------
    nll : Tensor (B,)
    tempered : Tensor (B, T)
        At each of :data:`TEMPERATURES`; NaN if only one normaliser is known.
    error : Tensor (B,)
        Of the log-normaliser.
    """

    nll: Tensor
    tempered: Tensor
    error: Tensor


class OnGrid:
    """The density of a model for a batch of B contexts, exactly normalised on a grid.

    Parameters
    ----------
    model : InContextModel
    context : (B, n, D)
    grid : Grid
    """

    def __init__(self, model: InContextModel, context: Tensor, grid: Grid) -> None:
        self.grid = grid
        self.energy = model.condition(context)
        nodes = grid.nodes.expand(len(context), -1, -1)
        self.log_values = -self.scaled_energy(nodes)  # (B, G)
        self.log_normalizer: LogIntegral = grid.integrate(self.log_values)

    def scaled_energy(self, x: Tensor) -> Tensor:
        """Energy times inverse temperature, in float64. (B, M, D) -> (B, M)."""
        return (self.energy.inverse_temperature * self.energy.energy(x)).double()

    @property
    def log_prob(self) -> Tensor:
        """Log-density at the nodes. (B, G)."""
        return self.log_values - self.log_normalizer.value[:, None]

    def nll(self, points: Tensor) -> Tensor:
        """Mean negative log-likelihood of points (B, M, D): (B,)."""
        return self.scaled_energy(points).mean(1) + self.log_normalizer.value

    def scores(self, points: Tensor, temperatures: Sequence[float] = TEMPERATURES) -> Scores:
        """How the points (B, M, D) fare at temperature 1 and at others."""
        mean = self.scaled_energy(points).mean(1)
        tempered = [
            mean / T + torch.logsumexp(self.log_values / T + self.grid.log_weights, dim=-1)
            for T in temperatures
        ]
        error = self.log_normalizer.error
        return Scores(mean + self.log_normalizer.value, torch.stack(tempered, dim=1), error)

    def kl_from(self, log_prob: Tensor) -> Tensor:
        """Divergence of this density from another, given at the nodes (B, G): (B,)."""
        mass = (log_prob + self.grid.log_weights).softmax(-1)
        # A log-density of -inf has no mass there, and zero times infinity is nothing here.
        gap = torch.where(mass > 0, log_prob - self.log_prob, 0.0)
        return (mass * gap).sum(-1)


def score_annealed(
    model: InContextModel, context: Tensor, points: Tensor, *, scale: float, seed: int
) -> Scores:
    """The same where no grid can reach: only temperature 1, and with a Monte Carlo error."""
    energy = model.condition(context)
    normalizer = annealed_log_normalizer(energy, scale=scale, batch=len(context), seed=seed)
    mean = (energy.inverse_temperature * energy.energy(points)).double().mean(1)
    unknown = torch.full((len(context), len(TEMPERATURES)), torch.nan, dtype=torch.float64)
    return Scores(mean + normalizer.value, unknown, normalizer.error)


@torch.no_grad()
def held_out_nll(model: InContextModel, context: Tensor, points: Tensor, grid: Grid) -> float:
    """Mean negative log-likelihood in nats, in one or two dimensions: a number to train by.

    Parameters
    ----------
    model : InContextModel
    context : (B, n, D)
    points : (B, M, D)
    grid : Grid
        Its width must cover the model's density; its nodes are the cost.

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
    return float(OnGrid(model, context, grid).nll(points).mean())
