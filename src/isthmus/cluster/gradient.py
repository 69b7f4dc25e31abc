"""ClAM's loss and its exact gradient through T steps of the dynamics, by hand.

Autograd would give the same (a test says so). Where all coordinates move, the steps need not
visit them: the state is what is left of the row plus a mixture of memories, so its K logits
follow from one another, and the D coordinates are needed at both ends only.
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
    if _logits_suffice(task, parameters):
        return _flow(task, parameters, steps, rate)[0]
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
    if _logits_suffice(task, parameters):
        return _gradient_by_logits(task, parameters, steps, rate)
    means = parameters.means
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
    return _collected(parameters, loss, by_means, by_scaled, by_offset)


def _collected(
    parameters: Parameters, loss: float, by_means: Tensor, by_scaled: Tensor, by_offset: Tensor
) -> Gradient:
    """From derivatives by the two terms of the logits to those by the parameters in them."""
    means, beta = parameters.means, parameters.beta
    return Gradient(
        loss,
        by_means + 2 * beta * by_scaled - 2 * beta * by_offset[:, None] * means,
        2 * (by_scaled * means).sum() - by_offset @ means.square().sum(1),
        by_offset,
    )


def _logits_suffice(task: Task, parameters: Parameters) -> bool:
    n_memories, dim = parameters.means.shape
    return task.moving is None and n_memories <= 2 * dim


def _flow(
    task: Task, parameters: Parameters, steps: int, rate: float
) -> tuple[Tensor, list[Tensor], Tensor]:
    """The end of the dynamics, followed in the logits alone.

    Returns
    -------
    x : Tensor (n, D)
    shares : list of T Tensors (n, K)
        Posteriors at each step.
    blend : Tensor (n, K)
        x(T) = (1 - rate)^T x(0) + blend @ means.
    """
    offset, scaled = _logit_terms(parameters)
    means = parameters.means
    logits = torch.addmm(offset, task.start, scaled.T)
    between = torch.addmm(offset, means, scaled.T)
    blend = torch.zeros_like(logits)
    shares: list[Tensor] = []
    for step in range(steps):
        if step:
            logits.addmm_(shares[-1], between, beta=1 - rate, alpha=rate)
        shares.append(torch.softmax(logits, 1))
        blend.lerp_(shares[-1], rate)
    return torch.addmm(task.start, blend, means, beta=(1 - rate) ** steps), shares, blend


def _gradient_by_logits(task: Task, parameters: Parameters, steps: int, rate: float) -> Gradient:
    """:func:`reconstruction_gradient` where all coordinates move."""
    means = parameters.means
    _, scaled = _logit_terms(parameters)
    x, shares, blend = _flow(task, parameters, steps, rate)
    upstream = 2 * _residual(task, x) * task.weights[:, None]
    by_shares = rate * upstream @ means.T
    between = scaled @ means.T
    by_offset = means.new_zeros(len(means))
    crossed = torch.zeros_like(between)
    # Derivatives by the logits of all later steps, discounted to the present one.
    later = torch.zeros_like(blend)
    for step in reversed(range(steps)):
        crossed.addmm_(later.T, shares[step], alpha=rate)
        by_logits = torch._softmax_backward_data(by_shares, shares[step], 1, blend.dtype)
        by_offset += by_logits.sum(0)
        later = torch.add(by_logits, later, alpha=1 - rate)
        if step:
            by_shares.addmm_(by_logits, between, beta=1 - rate, alpha=rate)
    by_means = torch.addmm(blend.T @ upstream, crossed.T, scaled)
    by_scaled = torch.addmm(later.T @ task.start, crossed, means)
    return _collected(parameters, squared_loss(task, x), by_means, by_scaled, by_offset)


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
