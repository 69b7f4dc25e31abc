"""ClAM's loss and its exact gradient through T steps of the dynamics, by hand.

A test compares it with autograd. If all coordinates move, the steps need not visit them: the
state is a share of the row plus a mixture of memories, so its K logits follow from one another,
and the D coordinates are needed at both ends only.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.cluster.data import MixtureParameters, Rows
from isthmus.logits import distance_logits


class Reconstruction(NamedTuple):
    """A problem for the dynamics: where rows (n, D) start and where they should arrive.

    `moving` is one for coordinates that may move (None: all), `scored` the weight of each in the
    loss (None: one).
    """

    start: Tensor
    target: Tensor
    moving: Tensor | None
    scored: Tensor | None
    weights: Tensor

    @classmethod
    def of(cls, rows: Rows, hidden: Tensor | None) -> Reconstruction:
        """Return the paper's problem: rows move and should return to where they began.

        With hidden coordinates (n, D), return that of ClAM's code: those start at their mean, and
        only they move and count. Unknown coordinates never count.
        """
        if hidden is None:
            return cls(rows.values, rows.values, None, rows.observed, rows.weights)
        scored = hidden if rows.observed is None else hidden * rows.observed
        moving = hidden if rows.observed is None else torch.maximum(hidden, 1 - rows.observed)
        return cls(rows.values * (1 - hidden), rows.values, moving, scored, rows.weights)

    def residual(self, x: Tensor) -> Tensor:
        """Return the scored differences from the target. (n, D)"""
        away = x - self.target
        return away if self.scored is None else away * self.scored

    def loss(self, x: Tensor) -> float:
        """Return the weighted sum over rows of the squared distance to the target."""
        return float(self.weights @ self.residual(x).mul(x - self.target).sum(1))


class Gradient(NamedTuple):
    """The derivatives of the summed loss."""

    means: Tensor
    beta: Tensor
    log_weights: Tensor


def reconstruct(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> Tensor:
    """Return x(T) of x <- x + rate * moving * (sum_k r_k mu_k - x). (n, D)"""
    if _logits_suffice(problem, parameters):
        return _flow_of_logits(problem, parameters, steps, rate)[0]
    last = deque(_flow(problem, parameters, steps, rate), maxlen=1)
    return last[0][2]


def reconstruction_gradient(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> Gradient:
    """Return the gradient of the loss of :func:`reconstruct`."""
    backward = _back_by_logits if _logits_suffice(problem, parameters) else _back
    by_means, by_scaled, by_offset = backward(problem, parameters, steps, rate)
    means, beta = parameters.means, parameters.beta
    return Gradient(
        by_means + 2 * beta * by_scaled - 2 * beta * by_offset[:, None] * means,
        2 * (by_scaled * means).sum() - by_offset @ means.square().sum(1),
        by_offset,
    )


def _logits_suffice(problem: Reconstruction, parameters: MixtureParameters) -> bool:
    n_memories, dim = parameters.means.shape
    return problem.moving is None and n_memories <= 2 * dim


def _logits(x: Tensor, parameters: MixtureParameters) -> Tensor:
    return distance_logits(x, parameters.means, parameters.log_weights, parameters.beta)


def _flow(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield x, its posteriors (n, K) and the next x, for each step."""
    x = problem.start
    for _ in range(steps):
        shares = torch.softmax(_logits(x, parameters), 1)
        mean = shares @ parameters.means
        if problem.moving is None:
            moved = torch.lerp(x, mean, rate)
        else:
            moved = x + rate * problem.moving * (mean - x)
        yield x, shares, moved
        x = moved


def _back(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return derivatives by the means, and by `scaled` and offset of logits offset + x . scaled."""
    means, scaled, moving = parameters.means, 2 * parameters.beta * parameters.means, problem.moving
    path = list(_flow(problem, parameters, steps, rate))
    upstream = 2 * problem.residual(path[-1][2]) * problem.weights[:, None]
    by_means = torch.zeros_like(means)
    by_offset = means.new_zeros(len(means))
    by_scaled = torch.zeros_like(means)
    for x, shares, _ in reversed(path):
        pull = upstream if moving is None else upstream * moving
        by_means.addmm_(shares.T, pull, alpha=rate)
        by_shares = pull @ means.T
        by_logits = torch._softmax_backward_data(by_shares, shares, 1, shares.dtype).mul_(rate)
        by_offset += by_logits.sum(0)
        by_scaled.addmm_(by_logits.T, x)
        kept = (1 - rate) * upstream if moving is None else upstream - rate * pull
        upstream = torch.addmm(kept, by_logits, scaled)
    return by_means, by_scaled, by_offset


def _flow_of_logits(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return x(T), the posteriors (n, K) of each step, and the blend (n, K) of memories.

    x(T) = (1 - rate)^T x(0) + blend @ means, so that only logits need to be followed.
    """
    logits = _logits(problem.start, parameters)
    between = _logits(parameters.means, parameters)
    blend = torch.zeros_like(logits)
    shares: list[Tensor] = []
    for step in range(steps):
        if step:
            logits.addmm_(shares[-1], between, beta=1 - rate, alpha=rate)
        shares.append(torch.softmax(logits, 1))
        blend.lerp_(shares[-1], rate)
    x = torch.addmm(problem.start, blend, parameters.means, beta=(1 - rate) ** steps)
    return x, shares, blend


def _back_by_logits(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as :func:`_back` if all coordinates move."""
    means, scaled = parameters.means, 2 * parameters.beta * parameters.means
    x, shares, blend = _flow_of_logits(problem, parameters, steps, rate)
    upstream = 2 * problem.residual(x) * problem.weights[:, None]
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
    by_scaled = torch.addmm(later.T @ problem.start, crossed, means)
    return by_means, by_scaled, by_offset
