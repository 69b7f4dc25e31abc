"""ClAM's loss and its exact gradient through T steps of the dynamics, by hand.

Autograd would give the same (a test says so); writing the two passes out needs a third of
the time, since every step is then four matrix products and one fused softmax derivative.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.cluster.data import Rows
from isthmus.cluster.statistics import Parameters

__all__ = ["Gradient", "Task", "reconstruct", "reconstruction_gradient"]


class Task(NamedTuple):
    """What the dynamics are given and what they are judged by.

    Attributes
    ----------
    start : Tensor (n, D)
        Where they begin.
    target : Tensor (n, D)
    moving : Tensor (n, D) or None
        One for coordinates that may move; None if all may.
    scored : Tensor (n, D) or None
        Weight of each coordinate in the loss; None if each counts once.
    weights : Tensor (n,)
    """

    start: Tensor
    target: Tensor
    moving: Tensor | None
    scored: Tensor | None
    weights: Tensor

    @classmethod
    def reconstruction(cls, rows: Rows) -> Task:
        """The paper's: start at the row, come back to it. Unknown coordinates are not judged."""
        return cls(rows.values, rows.values, None, rows.observed, rows.weights)

    @classmethod
    def masked(cls, rows: Rows, hidden: Tensor) -> Task:
        """The original's: hidden coordinates start at their mean, move alone and are judged."""
        judged = hidden if rows.observed is None else hidden * rows.observed
        moving = hidden if rows.observed is None else torch.maximum(hidden, 1 - rows.observed)
        return cls(rows.values * (1 - hidden), rows.values, moving, judged, rows.weights)


class Gradient(NamedTuple):
    """The summed loss and its derivatives."""

    loss: float
    means: Tensor
    beta: Tensor
    log_weights: Tensor


def reconstruct(task: Task, parameters: Parameters, steps: int, rate: float) -> Tensor:
    """x(T) of x <- x + rate * moving * (sum_k r_k mu_k - x). (n, D)"""
    x = task.start
    offset, scaled = _logit_terms(parameters)
    for _ in range(steps):
        shares = torch.softmax(torch.addmm(offset, x, scaled.T), 1)
        x = _moved(x, shares @ parameters.means, task.moving, rate)
    return x


def squared_loss(task: Task, x: Tensor) -> float:
    """Weighted sum over rows of the squared distance to the target."""
    return float(task.weights @ _residual(task, x).mul(x - task.target).sum(1))


def reconstruction_gradient(
    task: Task, parameters: Parameters, steps: int, rate: float
) -> Gradient:
    """The loss of :func:`reconstruct` and its gradient by means, beta and log-weights."""
    means, beta = parameters.means, parameters.beta
    offset, scaled = _logit_terms(parameters)
    x = task.start
    states, all_shares = [], []
    for _ in range(steps):
        shares = torch.softmax(torch.addmm(offset, x, scaled.T), 1)
        states.append(x)
        all_shares.append(shares)
        x = _moved(x, shares @ means, task.moving, rate)
    loss = squared_loss(task, x)

    upstream = 2 * _residual(task, x) * task.weights[:, None]
    by_means = torch.zeros_like(means)
    by_offset = means.new_zeros(len(means))
    by_scaled = torch.zeros_like(means)
    for x, shares in zip(reversed(states), reversed(all_shares), strict=True):
        pull = upstream if task.moving is None else upstream * task.moving
        by_means.addmm_(shares.T, pull, alpha=rate)
        by_shares = pull @ means.T
        by_logits = torch._softmax_backward_data(by_shares, shares, 1, shares.dtype).mul_(rate)
        by_offset += by_logits.sum(0)
        by_scaled.addmm_(by_logits.T, x)
        kept = upstream - rate * pull if task.moving is not None else (1 - rate) * upstream
        upstream = torch.addmm(kept, by_logits, scaled)
    squares = means.square().sum(1)
    return Gradient(
        loss,
        by_means + 2 * beta * by_scaled - 2 * beta * by_offset[:, None] * means,
        2 * (by_scaled * means).sum() - by_offset @ squares,
        by_offset,
    )


def _logit_terms(parameters: Parameters) -> tuple[Tensor, Tensor]:
    """Logits are offset + x . scaled, up to a term per row."""
    means, beta = parameters.means, parameters.beta
    return parameters.log_weights - beta * means.square().sum(1), 2 * beta * means


def _moved(x: Tensor, pull: Tensor, moving: Tensor | None, rate: float) -> Tensor:
    if moving is None:
        return torch.lerp(x, pull, rate)
    return x + rate * moving * (pull - x)


def _residual(task: Task, x: Tensor) -> Tensor:
    away = x - task.target
    return away if task.scored is None else away * task.scored
