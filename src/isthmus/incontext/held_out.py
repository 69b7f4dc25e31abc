"""HeldOut: a quick, exact likelihood on a few fixed datasets, to watch a training run by."""

from __future__ import annotations

import math

import torch

from isthmus.incontext.evaluation import grid_for, held_out_nll
from isthmus.incontext.model import ICLEBM
from isthmus.incontext.priors import Prior

__all__ = ["HeldOut"]

CONTEXTS = (0, 2, 8, 32)
# Apart from the seeds of training, which count from 0 up.
SEED = 2**31
TASKS_AT_ONCE = 4


class HeldOut:
    """Mean negative log-likelihood in nats of fresh points, over tasks and context sizes.

    Exact by quadrature, so known only in one or two dimensions; above, the answer is NaN, and
    :func:`isthmus.incontext.evaluate` is the way.

    Parameters
    ----------
    prior : Prior
    length : int
        Points of a training sequence: contexts are shorter than that.
    tasks, points : int
        Datasets, and points of each to score.
    """

    def __init__(self, prior: Prior, *, length: int, tasks: int = 16, points: int = 64) -> None:
        generator = torch.Generator().manual_seed(SEED)
        drawn = prior.draw(tasks, generator)
        self.prior = prior
        self.sizes = [size for size in CONTEXTS if size < length]
        self.context = drawn.sample(max(self.sizes), generator)
        self.points = drawn.sample(points, generator)

    def __call__(self, model: ICLEBM) -> float:
        """The number for the model as it is now."""
        if self.prior.dim > 2:
            return math.nan
        grid = grid_for(model, self.prior)
        like = model.readout.weight
        parts = [
            held_out_nll(model, context[:, :size].to(like), points.to(like), grid) * len(points)
            for size in self.sizes
            for context, points in zip(
                self.context.split(TASKS_AT_ONCE), self.points.split(TASKS_AT_ONCE), strict=True
            )
        ]
        return sum(parts) / (len(self.points) * len(self.sizes))
