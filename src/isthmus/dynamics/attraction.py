r"""Balls about modes from within which every point is known to flow to the mode.

Take a point m, and put y_j = x_j - m, p_j for the responsibilities at m, e = f(m) - m for what
an update f moves it by, z_j = R |y_j|/s^2 and :math:`c = e^{R|e|/s^2}`. Within R of m, an update
brings m + u to within

.. math::
    \rho\, |u| + c\, |e| , \qquad \rho = \frac{c}{s^2}
        \lambda_{\max}\Bigl(\sum_j p_j \frac{e^{z_j} - 1}{z_j}\, y_j y_j^\top\Bigr) ,

of m, and with :math:`e^{z_j}` in place of the fraction the same expression bounds the Jacobian.
So all points of the ball come into a small one that f contracts. docs/capacity-proofs.md,
section 10, has the proof.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.attend import attend
from isthmus.memories.base import GaussianMemory

__all__ = ["Attractors", "attracting_radius", "attractors", "homes_after_one_update"]

# Radii are looked for between these, in units of sigma; the smallest ball is the contracted one.
SMALLEST, LARGEST, TRIALS = 0.02, 3.0, 7
# rho must be below this, not below 1, which leaves room for rounding.
CONTRACTS = 0.99
# Of the memories about a centre, this share is bounded together; the rest is always looked at.
CORE = 0.9
# Cores nearer to each other than this many sigma are looked at together.
NEAR = 3.0


class Attractors(NamedTuple):
    """Balls, each of which one fixed point attracts.

    Attributes
    ----------
    centres : Tensor (B, D)
    radii : Tensor (B,)
    """

    centres: Tensor
    radii: Tensor

    def holding(self, x: Tensor) -> Tensor:
        """Which ball each point lies in; -1 where it is in none. (N, D) -> (N,)"""
        if not len(self.radii):
            return torch.full((len(x),), -1)
        distance, nearest = torch.cdist(x, self.centres).min(1)
        return torch.where(distance <= self.radii[nearest], nearest, -1)

    def placed(self, x: Tensor, home: Tensor) -> Tensor:
        """A copy of points, those that have a home at its centre. (N, D), (N,) -> (N, D)"""
        state = x.clone()
        state[home >= 0] = self.centres[home[home >= 0]]
        return state


@torch.no_grad()
def attractors(memory: GaussianMemory, points: Tensor) -> Attractors:
    """The balls about those of some points that have one. points: (B, D)"""
    radii = points.new_tensor([attracting_radius(memory, point) for point in points])
    return Attractors(points[radii > 0], radii[radii > 0])


def attracting_radius(memory: GaussianMemory, point: Tensor) -> float:
    """The largest radius found for a point (D,) that (nearly) rests; 0 if there is none."""
    variance = float(memory.variance)
    smallest = SMALLEST * variance**0.5
    apart = memory.memories - point
    weights = memory.responsibilities(point).log()
    pull = torch.linalg.vector_norm(apart, dim=1) / variance
    residual = float(torch.linalg.vector_norm(memory.step(point) - point))

    def contracts(radius: float, log_factor: Tensor) -> bool:
        raised = (weights + log_factor).exp()
        spread = torch.linalg.eigvalsh((apart * raised[:, None]).T @ apart)[-1]
        c = math.exp(radius * residual / variance)
        rho = c * float(spread) / variance
        return rho < CONTRACTS and c * residual < (1 - rho) * smallest

    low, high = smallest, LARGEST * variance**0.5
    if not contracts(low, low * pull):
        return 0.0
    for _ in range(TRIALS):
        middle = math.sqrt(low * high)
        z = (middle * pull).clamp(min=1e-12)
        good = contracts(middle, z + torch.log(-torch.expm1(-z) / z))
        low, high = (middle, high) if good else (low, middle)
    return low


class _Cores:
    """Memories by their nearest centre: most of them in a core about it, the others loose.

    Attributes
    ----------
    radii, log_weights : Tensor (B,)
        How far the core of each centre reaches, and the log of its total weight.
    far : Tensor (B, B) of bool
        Which pairs of cores are far from each other.
    """

    def __init__(self, memory: GaussianMemory, centres: Tensor) -> None:
        distance, self._owner = torch.cdist(memory.memories, centres).min(1)
        own = self._owner[:, None] == torch.arange(len(centres))
        of_each = torch.where(own, distance[:, None], torch.nan)
        self.radii = of_each.nanquantile(CORE, dim=0).nan_to_num()
        self._loose = distance > self.radii[self._owner]
        core = own & ~self._loose[:, None]
        weights = memory.log_mixing_weights[:, None]
        self.log_weights = torch.where(core, weights, -torch.inf).logsumexp(0)
        gap = torch.cdist(centres, centres) - self.radii[:, None] - self.radii
        self.far = gap > NEAR * memory.sigma

    def near(self, centre: int) -> Tensor:
        """Which memories are loose or in a core that is not far from that of `centre`."""
        return torch.nonzero(self._loose | ~self.far[centre][self._owner])[:, 0]


@torch.no_grad()
def homes_after_one_update(memory: GaussianMemory, x: Tensor, balls: Attractors) -> Tensor:
    """In which ball each point is sure to be after one update; -1 if that is not sure.

    (N, D) -> (N,). Each point is updated with the memories near it only. What the others could
    change follows from their weight, their least distance from the point and their largest from
    the result.
    """
    homes = torch.full((len(x),), -1)
    if len(balls.radii) < 2:
        return homes
    centres, beta, weights = balls.centres, 0.5 / memory.variance, memory.log_mixing_weights
    cores = _Cores(memory, centres)
    nearest = torch.cdist(x, centres).argmin(1)
    rows = [torch.nonzero(nearest == g)[:, 0] for g in range(len(centres))]
    kept = [cores.near(g) for g in range(len(centres))]
    cost = sum(len(some) * len(near) for some, near in zip(rows, kept, strict=True))
    if cost > 0.5 * len(x) * memory.n_memories:
        return homes
    for g, (some, near) in enumerate(zip(rows, kept, strict=True)):
        here = x[some]
        found = attend(
            here, memory.memories[near], beta=beta, bias=weights[near], metric="sqeuclidean"
        )
        gap = (torch.cdist(here, centres) - cores.radii).clamp(min=0)
        left_out = (cores.log_weights - beta * gap.square() - found.logsumexp[:, None]).exp()
        reach = torch.cdist(found.mean, centres) + cores.radii
        shift = (left_out * reach)[:, cores.far[g]].sum(1)
        distance = torch.linalg.vector_norm(found.mean - centres[g], dim=1)
        homes[some[distance + shift <= 0.999 * balls.radii[g]]] = g
    return homes
