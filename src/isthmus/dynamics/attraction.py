r"""Balls about modes in which every point is known to flow to the mode.

At a point m let y_j = x_j - m, let p_j be the responsibilities, let e = f(m) - m be the
displacement by an update f, z_j = R |y_j|/s^2 and :math:`c = e^{R|e|/s^2}`. For |u| <= R, an
update moves m + u to within

.. math::
    \rho\, |u| + c\, |e| , \qquad \rho = \frac{c}{s^2}
        \lambda_{\max}\Bigl(\sum_j p_j \frac{e^{z_j} - 1}{z_j}\, y_j y_j^\top\Bigr) ,

of m, and with :math:`e^{z_j}` in place of the fraction the same expression bounds the Jacobian.
Therefore all points of the ball enter a small one that f contracts. The proof is in
docs/capacity-proofs.md, section 10.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.attend import attend
from isthmus.memories.base import GaussianMemory

# Radii are searched between these, in units of sigma; the smallest ball is the contracted one.
SMALLEST, LARGEST, TRIALS = 0.02, 3.0, 7
# Upper limit on rho; the distance from 1 leaves room for rounding.
CONTRACTS = 0.99
# Radii, in units of sigma, of the balls that prove a fixed point stable, and the share of rho that
# is added for rounding.
STABLE, ROUNDING = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), 1e-9
# This share of the memories about a centre is bounded together; the rest is always evaluated.
CORE = 0.9
# Cores nearer to each other than this many sigma are evaluated together.
NEAR = 3.0


@torch.no_grad()
def centred(memory: GaussianMemory, points: Tensor) -> tuple[GaussianMemory, Tensor, Tensor]:
    """Move the origin to the mean of the memories, if their energy does not depend on it.

    In float32, states near 1e6 are multiples of 1/16. Differences of memories are much finer.
    Returns the memory and the points (N, D) relative to the new origin (D,), in float64.
    """
    if not memory.translation_invariant:
        return memory, points, torch.zeros(memory.dim, dtype=torch.float64)
    memories = memory.memories.detach()
    # Rounded to the dtype of the memories, so that subtracting it from nearby numbers is exact.
    centre = memories.mean(0, dtype=torch.float64).to(memories.dtype)
    return memory.with_memories(memories - centre), points - centre, centre.double()


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Return the distances between points, from differences. (N, D), (M, D) -> (N, M)."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


class Attractors(NamedTuple):
    """Balls, each attracted by one fixed point: centres (B, D) and radii (B,)."""

    centres: Tensor
    radii: Tensor

    def holding(self, x: Tensor) -> Tensor:
        """Return the index of the ball that holds each point, or -1. (N, D) -> (N,)"""
        if not len(self.radii):
            return torch.full((len(x),), -1)
        distance, nearest = distances(x, self.centres).min(1)
        return torch.where(distance <= self.radii[nearest], nearest, -1)

    def placed(self, x: Tensor, home: Tensor) -> Tensor:
        """Return the points, with those that have a home moved to its centre. (N, D), (N,)"""
        state = x.clone()
        state[home >= 0] = self.centres[home[home >= 0]]
        return state


@torch.no_grad()
def attractors(memory: GaussianMemory, points: Tensor) -> Attractors:
    """Return the balls about the points (B, D) that have one."""
    radii = points.new_tensor([attracting_radius(memory, point) for point in points])
    return Attractors(points[radii > 0], radii[radii > 0])


def attracting_radius(memory: GaussianMemory, point: Tensor) -> float:
    """Return the largest radius found for a point (D,) that (nearly) rests, or 0."""
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


@torch.no_grad()
def is_attracting(memory: GaussianMemory, points: Tensor) -> Tensor:
    """Return True for points (B, D) about which some tiny ball is contracted. (B,)

    Such a ball holds one fixed point, which is stable. A point may be so near to instability that
    no ball is found; it then counts as unstable.
    """
    variance = float(memory.variance)
    found = torch.zeros(len(points), dtype=torch.bool)
    residuals = torch.linalg.vector_norm(memory.step(points) - points, dim=1).tolist()
    for row, (point, residual) in enumerate(zip(points, residuals, strict=True)):
        apart = memory.memories - point
        squares = apart.square().sum(1)
        weights = memory.responsibilities(point)
        for radius in (share * variance**0.5 for share in STABLE):
            c = math.exp(radius * residual / variance)
            raised = weights * (radius / variance * squares.sqrt()).exp()
            terms = raised * squares
            # The largest eigenvalue is at most the trace. Far memories count by their trace only.
            far = terms < 1e-9 * terms.max()
            rest = float(terms[far].sum())
            rho = rest + float(terms[~far].sum())
            if c * rho >= CONTRACTS * variance:
                scaled = raised[~far].sqrt()[:, None] * apart[~far]
                rho = rest + float(torch.linalg.matrix_norm(scaled, 2)) ** 2
            rho = c * rho / variance * (1 + ROUNDING) + ROUNDING
            if rho < 1 and c * residual < (1 - rho) * radius:
                found[row] = True
                break
    return found


@torch.no_grad()
def homes_after_one_update(memory: GaussianMemory, x: Tensor, balls: Attractors) -> Tensor:
    """Return the ball that certainly holds each point after one update, or -1. (N, D) -> (N,)

    Memories are grouped by their nearest centre: most in a core about it, the others loose. Each
    point is updated with the loose ones and the cores near it only. The influence of the others is
    bounded by their weight, their least distance from the point and their largest from the result.
    """
    homes = torch.full((len(x),), -1)
    if len(balls.radii) < 2:
        return homes
    centres, beta, weights = balls.centres, 0.5 / memory.variance, memory.log_mixing_weights
    distance, owner = distances(memory.memories, centres).min(1)
    own = owner[:, None] == torch.arange(len(centres))
    radii = torch.where(own, distance[:, None], torch.nan).nanquantile(CORE, dim=0).nan_to_num()
    loose = distance > radii[owner]
    in_core = own & ~loose[:, None]
    core_weights = torch.where(in_core, weights[:, None], -torch.inf).logsumexp(0)
    far = distances(centres, centres) - radii[:, None] - radii > NEAR * memory.sigma
    nearest = distances(x, centres).argmin(1)
    rows = [torch.nonzero(nearest == g)[:, 0] for g in range(len(centres))]
    kept = [torch.nonzero(loose | ~far[g][owner])[:, 0] for g in range(len(centres))]
    cost = sum(len(some) * len(near) for some, near in zip(rows, kept, strict=True))
    if cost > 0.5 * len(x) * memory.n_memories:
        return homes
    for g, (some, near) in enumerate(zip(rows, kept, strict=True)):
        here = x[some]
        found = attend(
            here, memory.memories[near], beta=beta, bias=weights[near], metric="sqeuclidean"
        )
        gap = (distances(here, centres) - radii).clamp(min=0)
        left_out = (core_weights - beta * gap.square() - found.logsumexp[:, None]).exp()
        reach = distances(found.mean, centres) + radii
        shift = (left_out * reach)[:, far[g]].sum(1)
        distance = torch.linalg.vector_norm(found.mean - centres[g], dim=1)
        homes[some[distance + shift <= 0.999 * balls.radii[g]]] = g
    return homes
