"""HeldOut: a quick, exact likelihood on a few fixed datasets, to watch a training run by."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.incontext.model import ICLEBM
from isthmus.incontext.priors import Prior

__all__ = ["HeldOut"]

CONTEXTS = (0, 2, 8, 32)
# Apart from the seeds of training, which count from 0 up.
SEED = 2**31


class HeldOut:
    """Mean negative log-likelihood in nats of fresh points, over tasks and context sizes.

    The normaliser is a sum over a grid, so it is exact up to the grid, and known only in one or
    two dimensions; above, the answer is NaN, and :func:`isthmus.incontext.evaluate` is the way.

    Parameters
    ----------
    prior : Prior
    length : int
        Points of a training sequence: contexts are shorter than that.
    tasks, points : int
        Datasets, and points of each to score.
    spacing : float
        Distance of the grid's lines, a little less than the sharpest feature.
    """

    def __init__(
        self, prior: Prior, *, length: int, tasks: int = 16, points: int = 64, spacing: float = 0.2
    ) -> None:
        generator = torch.Generator().manual_seed(SEED)
        drawn = prior.draw(tasks, generator)
        self.contexts = [size for size in CONTEXTS if size < length]
        self.context = drawn.sample(max(self.contexts), generator)
        self.points = drawn.sample(points, generator)
        count = math.ceil(2 * prior.box / spacing) + 1
        self.axis = torch.linspace(-prior.box, prior.box, count)

    @torch.no_grad()
    def __call__(self, model: ICLEBM) -> float:
        """The number for the model as it is now."""
        tasks, _, dim = self.points.shape
        if dim > 2:
            return math.nan
        mesh = torch.meshgrid(*[self.axis] * dim, indexing="ij")
        grid = torch.stack(mesh, dim=-1).view(-1, dim)
        cell = dim * math.log(float(self.axis[1] - self.axis[0]))
        total = 0.0
        for size in self.contexts:
            for context, points in zip(self.context[:, :size], self.points, strict=True):
                energy = model.condition(self._like(model, context))
                log_normalizer = (-energy.energy(self._like(model, grid))).logsumexp(0) + cell
                total += float(energy.energy(self._like(model, points)).mean() + log_normalizer)
        return total / (tasks * len(self.contexts))

    def _like(self, model: ICLEBM, points: Tensor) -> Tensor:
        return points.to(model.readout.weight)
