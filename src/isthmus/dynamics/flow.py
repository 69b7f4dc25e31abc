"""Letting points flow to rest on a Gaussian memory, without creeping."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.memories.base import GaussianMemory

__all__ = ["Flow", "flow"]

# A point leaps only if two displacements in a row point almost the same way and are short,
# in units of sigma; a leap covers this share of the way that seems left, and no more than that.
ALIGNED, SHORT, SHARE, LONGEST_LEAP = 0.98, 0.1, 0.9, 0.1


class Flow(NamedTuple):
    """Where points came to rest.

    Attributes
    ----------
    state : Tensor (N, D)
    converged : Tensor (N,) of bool
    steps : int
        How many updates the slowest point took.
    """

    state: Tensor
    converged: Tensor
    steps: int


@torch.no_grad()
def flow(memory: GaussianMemory, starts: Tensor, *, tol: float, max_steps: int) -> Flow:
    """Iterate ``memory.step`` until it moves a point by no more than `tol`. starts: (N, D).

    Plain iteration creeps where basins are about to merge: every displacement is nearly the one
    before. There a point leaps ahead along it, as far as the last two displacements say (the
    secant method along the path), never more than a tenth of sigma. A leap that overshoots,
    after which the next displacement points back, is taken back.
    """
    sigma = float(memory.sigma)
    state = memory.as_input(starts).clone()
    steps, floor = 0, 16 * torch.finfo(state.dtype).eps
    resting = torch.zeros(len(state), dtype=torch.bool)
    active = torch.arange(len(state))
    before = torch.zeros_like(state)  # the last displacement,
    leap = state.new_zeros(len(state))  # how many times as far it went on after it,
    refuge = state.clone()  # and where it was before that
    while len(active) and steps < max_steps:
        here, last, leapt = state[active], before[active], leap[active]
        new = memory.step(here)
        move = new - here
        length, old = torch.linalg.vector_norm(move, dim=1), torch.linalg.vector_norm(last, dim=1)
        agreement = (move * last).sum(1)
        overshot = (leapt > 0) & (agreement <= 0)
        at_rest = (length <= tol + floor * torch.linalg.vector_norm(new, dim=1)) & ~overshot
        # What is left of a displacement per unit of the way: the secant's slope.
        slope = (1 - length / old.clamp(min=1e-300)) / (1 + leapt)
        ahead = torch.where(slope > 0, SHARE / slope.clamp(min=1e-12) - 1, torch.inf)
        ahead = torch.minimum(ahead, LONGEST_LEAP * sigma / length.clamp(min=1e-300))
        creeps = (agreement > ALIGNED * length * old) & (length <= SHORT * sigma) & (ahead > 1)
        ahead = torch.where(creeps & ~at_rest, ahead, 0)
        landed = torch.where(overshot[:, None], refuge[active], new + ahead[:, None] * move)
        state[active], refuge[active] = landed, new
        before[active] = torch.where(overshot[:, None], 0, move)
        leap[active] = torch.where(overshot, 0, ahead)
        resting[active] = at_rest
        active = active[~at_rest]
        steps += 1
    state[active] = torch.where(leap[active, None] > 0, refuge[active], state[active])
    return Flow(state, resting, steps)
