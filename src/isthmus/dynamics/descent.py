"""descend: the loop of retrieval on checked points, by closed-form updates or along the score."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import UnsupportedOperationError

SUFFICIENT_DECREASE = 1e-4
# Length of the first trial step of a descent along the score, relative to that of the point.
FIRST_REACH = 0.02
# An update leaps ahead only if two displacements in a row are nearly parallel and short, in units
# of sigma. A leap covers this share of the estimated remaining way, up to the longest leap.
ALIGNED, SHORT, SHARE, FIRST_LEAP, LONGEST_LEAP = 0.98, 0.1, 0.9, 8.0, 0.1
# Rounding in a row's coordinates keeps it from resting more tightly than this many units of its
# last place. A row rests if its estimated way to the fixed point is within so many tolerances,
# twice in a row or after a move of this part of the tolerance.
ROUNDING_UNITS, TOLERANCES, SURE = 16, 2, 1000


class Descent(NamedTuple):
    """The states at which rows ended, and more for each row (N,)."""

    state: Tensor  # (N, D)
    steps: Tensor
    resting: Tensor
    unresolved: Tensor  # rests only because its updates are as short as rounding errors


@torch.no_grad()
def descend(
    energy: Energy,
    start: Tensor,
    held: Tensor | None = None,
    history: list[Tensor] | None = None,
    *,
    tol: float,
    max_steps: int,
    accelerate: bool | None = None,
) -> Descent:
    """Run the loop of :func:`isthmus.retrieve` on checked points (N, D)."""
    state, curvature = start.clone(), energy._curvature() if energy.has_step else None
    if accelerate and curvature is None:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} has no known bound on its curvature and cannot be "
            "accelerated, as Gaussian memories with round kernels can. Leave accelerate out."
        )
    # Moves some rows at points (R, D), given the held coordinates, the rows' indices and the
    # tolerance. Returns new points, the lengths (R,) of the moves, and the estimated ways left.
    move: _ClosedFormMove | _DownhillMove
    if energy.has_step and (held is None or energy._step_holds):
        move = _ClosedFormMove(energy, state, None if accelerate is False else curvature)
    else:
        move = _DownhillMove(energy, state)
    steps = torch.zeros(len(state), dtype=torch.int64, device=state.device)
    resting = torch.zeros(len(state), dtype=torch.bool, device=state.device)
    unresolved, was_near = resting.clone(), resting.clone()
    active = torch.arange(len(state), device=state.device)
    reach = torch.linalg.vector_norm(state, dim=1).clamp(min=energy._reach())
    for _ in range(max_steps):
        if active.numel() == 0:
            break
        new, length, left = move(state[active], None if held is None else held[active], active, tol)
        reach[active] = torch.maximum(reach[active], torch.linalg.vector_norm(new, dim=1))
        rounding = ROUNDING_UNITS * torch.finfo(state.dtype).eps * reach[active]
        near, known = left <= TOLERANCES * (tol + rounding), ~torch.isnan(left)
        at_rest = (length <= rounding) & (known | (length <= rounding / 8))
        # One estimate of the way left may be wrong, where directions of fast decay still count.
        sure = was_near[active] | (length <= tol / SURE + rounding / 8)
        at_rest |= (length <= tol + rounding) & near & sure
        state[active] = new
        steps[active] += 1
        resting[active] = at_rest
        unresolved[active] = at_rest & known & ~(near & sure)
        was_near[active] = near
        active = active[~at_rest]
        if history is not None:
            history.append(state.clone())
    return Descent(state, steps, resting, unresolved)


class _ClosedFormMove:
    r"""One closed-form update, which may start ahead of the row if the curvature is known.

    Let a plain update go from x to x + m, and a leap to y, farther on that ray, at distance L. As
    :math:`-\beta_E E(x) + \lVert x\rVert^2 / (2 \sigma^2)` is convex, it lies below its chord at
    x + m: the leap ends no higher if :math:`\beta_E (E(x) - E(y)) \ge L |m| / (2 \sigma^2)`.
    """

    def __init__(self, energy: Energy, state: Tensor, curvature: Tensor | None) -> None:
        self.energy = energy
        self.last = torch.zeros_like(state)
        self.leap = state.new_zeros(len(state))
        self.height = state.new_zeros(len(state))
        self.scale = None if curvature is None else 1 / float(curvature)
        if self.scale is not None:
            self.sigma = (self.scale / float(energy.inverse_temperature)) ** 0.5

    def __call__(
        self, x: Tensor, held: Tensor | None, rows: Tensor, tol: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        last, leap = self.last[rows], self.leap[rows]
        before = torch.linalg.vector_norm(last, dim=1)
        if self.scale is None:
            new = self.energy._step(x) if held is None else self.energy._step(x, held)
            self.last[rows] = new - x
            length = torch.linalg.vector_norm(new - x, dim=1)
            return new, length, _left(length, 1 - length / before)
        ahead = x + leap[:, None] * last
        new, energy = self.energy._step_and_energy(ahead, held)
        height = self.scale * energy
        move = new - ahead
        length = torch.linalg.vector_norm(move, dim=1)
        agreement = (move * last).sum(1)
        rounding = 32 * torch.finfo(x.dtype).eps * (self.sigma**2 + height.abs())
        enough = self.height[rows] - height >= 0.5 * (1 + leap) * before.square() - rounding
        undone = (leap > 0) & ~((agreement > 0) & enough)

        # The displacement shrinks along the way at this rate: the slope of the secant.
        slope = (1 - length / before) / (1 + leap)
        next_leap = torch.where(slope > 0, SHARE / slope.clamp(min=1e-12) - 1, torch.inf)
        # A leap is at most twice as long as the last one, if that was kept.
        longest = leap * before * torch.where(undone, 0.25, 2.0)
        longest = torch.maximum(longest, FIRST_LEAP * length).clamp(max=LONGEST_LEAP * self.sigma)
        next_leap = torch.minimum(next_leap, longest / length.clamp(min=1e-300))
        creeps = (agreement > ALIGNED * length * before) & (length <= SHORT * self.sigma)
        self.leap[rows] = torch.where(creeps & (next_leap > 1) & ~undone, next_leap, 0)
        self.last[rows] = torch.where(undone[:, None], 0, move)
        self.height[rows] = height
        left = _left(length, slope)
        undone_length = torch.where(undone, torch.inf, length)
        return torch.where(undone[:, None], x, new), undone_length, left


def _left(length: Tensor, slope: Tensor) -> Tensor:
    """Return the sum of all displacements to come, each 1 - slope times the one before. (R,)

    NaN where there was none before, so that the slope is minus infinity.
    """
    left = torch.where(slope > 0, length * (1 - slope) / slope, torch.inf)
    return torch.where(length == 0, 0.0, torch.where(slope.isneginf(), torch.nan, left))


class _DownhillMove:
    """One trial step along the score, accepted only where it lowers the energy enough.

    Accepted rows choose their next trial length by Barzilai and Borwein's rule, the others
    halve it. The first trials are short and later ones at most twice as long as any before, so
    that a row follows its valley instead of leaping into another.
    """

    def __init__(self, energy: Energy, state: Tensor) -> None:
        self.energy = energy
        self.height = self.energy._energy(state)
        self.force = self.energy._score(state)
        self.longest = FIRST_REACH * (1 + torch.linalg.vector_norm(state, dim=1))
        self.size = self.longest / torch.linalg.vector_norm(self.force, dim=1).clamp(min=1e-12)

    def __call__(
        self, x: Tensor, held: Tensor | None, rows: Tensor, tol: float
    ) -> tuple[Tensor, Tensor, Tensor]:
        force = self.force[rows]
        if held is not None:
            force = force.masked_fill(held, 0)
        height, size = self.height[rows], self.size[rows]
        moved = x + size[:, None] * force
        possible = torch.isfinite(moved).all(1) & torch.isfinite(height)
        trial = torch.where(possible[:, None], moved, x)
        trial_height = self.energy._energy(trial)
        gain = SUFFICIENT_DECREASE * size * force.square().sum(1)
        accepted = possible & (trial_height <= height - gain)
        new = torch.where(accepted[:, None], trial, x)
        new_force = torch.where(accepted[:, None], self.energy._score(new), self.force[rows])

        difference = new - x
        change = (force - new_force) if held is None else (force - new_force).masked_fill(held, 0)
        curvature = (difference * change).sum(1)
        length = torch.linalg.vector_norm(difference, dim=1)
        self.longest[rows] = torch.maximum(self.longest[rows], length)
        limit = 2 * self.longest[rows] / torch.linalg.vector_norm(new_force, dim=1).clamp(min=1e-12)
        guess = torch.where(curvature > 0, length**2 / curvature.clamp(min=1e-30), torch.inf)
        self.size[rows] = torch.where(accepted, torch.minimum(guess, limit), size / 2)
        self.height[rows] = torch.where(accepted, trial_height, height)
        self.force[rows] = new_force
        # A trial shorter than the tolerance means that there is nowhere lower to go.
        too_short = size * torch.linalg.vector_norm(force, dim=1) <= tol
        length = torch.where(length > 0, length, torch.inf)
        length = torch.where(too_short | ~torch.isfinite(height), 0, length)
        return new, length, length
