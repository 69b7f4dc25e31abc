"""Patterns that no bound decides: their fixed points, and whether a ball about each flows there.

Either the update contracts the ball, which is proved, or starts on its surface are followed, which
is enough (docs/capacity-proofs.md, section 10).
"""

from __future__ import annotations

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.dynamics.descent import descend
from isthmus.dynamics.modes import (
    SAME_POINT,
    centred,
    distances,
    is_attracting,
    shared_fixed_points,
)
from isthmus.memories.gaussian import GaussianKDE, GaussianMemory
from isthmus.memories.sparse import SparseHopfield

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
# The ball exceeds the distance to the fixed point by this share, so that it holds the point.
BEYOND = 1e-3
# Radii at which a contraction is tried, in units of the radius of that ball.
RADII = (1.0, 1.5, 2.5, 4.0)
# Starts on the surface go towards this many nearest patterns, away from the fixed point, and to
# both sides along the direction in which an update contracts least.
TOWARDS = 8
# Starts that are on their way after this many updates go on by Newton's method.
PLAIN_STEPS = 100
# A Newton step goes at most this share of sigma, and a row ends when one is shorter than the other
# share, or after this many.
LONGEST, SHORTEST, NEWTON_STEPS = 0.1, 1e-11, 200
# Smallest curvature that a Newton step divides by.
FLATTEST = 1e-12
# A pattern of a network owns a fixed point that others share if it has more of the weight there:
# beyond the half of a certified ball by more than the rounding of a fixed point can change.
LEAD = 0.55
# A slope of the update of a sparse network below this counts as stable.
STABLE_SLOPE = 1 - 1e-9
# Float64 numbers of one block of slopes: 32 MiB.
BLOCK_ENTRIES = 2**22


Memory = GaussianMemory | SparseHopfield


@torch.no_grad()
def iterate_patterns(
    memory: Memory,
    sigma: float,
    nearest: FloatArray,
    chosen: BoolArray,
    proved: BoolArray,
    tol: float,
    max_steps: int,
) -> tuple[FloatArray, FloatArray, NDArray[np.int64], BoolArray]:
    """Iterate the chosen patterns; `nearest` are their distances to the next one. (N,)

    Return fixed points (N, D), errors, basins and True if stored (N,); NaN and -1 if not chosen.
    """
    patterns = memory.memories.detach().double()
    n, dim = patterns.shape
    fixed, error = np.full((n, dim), np.nan), np.full(n, np.nan)
    basin, stored = np.full(n, -1), np.zeros(n, dtype=bool)
    if not chosen.any():
        return fixed, error, basin, stored
    memory = memory._in_float64()
    start = patterns[torch.from_numpy(chosen)]
    moved, centre = memory, torch.zeros(dim, dtype=torch.float64)
    if isinstance(memory, GaussianMemory):
        moved, start, centre = centred(memory, start)
    found = descend(moved, start, tol=tol * sigma, max_steps=max_steps)
    state, resting = found.state, found.resting.numpy()
    half, known, places = 0.5 * nearest[chosen], proved[chosen], np.flatnonzero(chosen)

    def own() -> BoolArray:
        """Set errors and basins, and return patterns that have a near fixed point of their own."""
        ends = state.numpy()
        fixed[chosen] = ends + centre.numpy()
        error[chosen] = np.linalg.norm(ends - start.numpy(), axis=1)
        basin[chosen] = shared_fixed_points(ends, SAME_POINT * sigma)
        near: BoolArray = error[chosen] < half
        alone: BoolArray = np.bincount(basin[chosen])[basin[chosen]] == 1
        # In a network, short patterns flow to the fixed points of long ones.
        led = near & ~alone & ~known & (not isinstance(moved, GaussianKDE))
        for row in np.flatnonzero(led):
            alone[row] = bool(moved._responsibilities(state[row])[places[row]] > LEAD)
        return near & alone

    stable = known.copy()
    rows = np.flatnonzero(own() & resting & ~known)
    stable[rows] = _is_stable(moved, state[rows])
    # A fixed point that is only just stable can be proved so if it is known precisely.
    rows = np.flatnonzero((own() & ~stable) | ~(resting | known))
    state[rows] = _settled_by_newton(moved, state[rows], sigma)
    stable[rows] = _is_stable(moved, state[rows])
    stored[chosen] = own() & stable
    rows = np.flatnonzero(stored[chosen] & ~known)
    radius = torch.from_numpy((1 + BEYOND) * error[chosen][rows])
    ball = torch.minimum(radius, torch.from_numpy(half[rows]))
    flows = _balls_flow(moved, start[rows], state[rows], ball, sigma, tol)
    stored[places[rows]] = flows
    return fixed, error, basin, stored


def _is_stable(memory: Memory, points: Tensor) -> BoolArray:
    """Return True for points (B, D) about which some tiny ball is contracted. (B,)"""
    if isinstance(memory, GaussianMemory):
        return np.asarray(is_attracting(memory, points))
    return np.asarray(torch.linalg.eigvalsh(_slopes(memory, points))[:, -1] < STABLE_SLOPE)


def _balls_flow(
    memory: Memory, patterns: Tensor, fixed: Tensor, radius: Tensor, sigma: float, tol: float
) -> BoolArray:
    """Return True where all starts within `radius` of a pattern reach its fixed point. (B,)"""
    flows = np.zeros(len(patterns), dtype=bool)
    if isinstance(memory, GaussianMemory):
        radii = radius[:, None] * radius.new_tensor(RADII)
        flows = is_attracting(memory, patterns, radii).numpy()
    rows = np.flatnonzero(~flows)
    if not len(rows):
        return flows
    centres, ends = patterns[rows], fixed[rows]
    directions = _directions(memory, centres, ends)
    starts = centres[:, None] + radius[rows, None, None] * directions
    reached = descend(memory, starts.flatten(0, 1), tol=tol * sigma, max_steps=PLAIN_STEPS).state
    goals = ends.repeat_interleave(directions.shape[1], 0)

    def returned() -> Tensor:
        return torch.linalg.vector_norm(reached - goals, dim=1) <= SAME_POINT * sigma

    slow = torch.nonzero(~returned())[:, 0]
    reached[slow] = _settled_by_newton(memory, reached[slow], sigma)
    flows[rows] = returned().reshape(len(rows), -1).all(1).numpy()
    return flows


def _directions(memory: Memory, patterns: Tensor, fixed: Tensor) -> Tensor:
    """Return directions (B, K, D) in which starts are most likely to be lost."""
    others, found = memory.memories.detach(), []
    count = min(TOWARDS, len(others) - 1)
    for x, m in zip(_blocks(memory, patterns), _blocks(memory, fixed), strict=True):
        apart = distances(x, others)
        apart[apart == 0] = torch.inf
        close = others[apart.topk(count, dim=1, largest=False).indices]
        slow, away = torch.linalg.eigh(_slopes(memory, m))[1][:, :, -1], x - m
        found.append(torch.cat([torch.stack([away, -away, slow, -slow], 1), close - x[:, None]], 1))
    return torch.nn.functional.normalize(torch.cat(found), dim=2, eps=1e-300)


def _settled_by_newton(memory: Memory, points: Tensor, sigma: float) -> Tensor:
    """Move points (B, D) on to their fixed points, where plain updates have become slow.

    A step divides the displacement of an update by the absolute curvature in each direction; where
    the energy would rise, the plain update is taken and the next step is half as long at most.
    """
    points, active = points.clone(), torch.arange(len(points))
    longest = points.new_full((len(points),), LONGEST * sigma)
    for _ in range(NEWTON_STEPS):
        if not len(active):
            break
        x = points[active]
        plain = memory._step(x)
        slopes = torch.cat([_slopes(memory, block) for block in _blocks(memory, x)])
        curvature, axes = torch.linalg.eigh(torch.eye(x.shape[1], dtype=x.dtype) - slopes)
        turned = axes.mT @ (plain - x)[:, :, None]
        move = (axes @ (turned / curvature.abs().clamp(min=FLATTEST)[:, :, None]))[:, :, 0]
        length = torch.linalg.vector_norm(move, dim=1)
        new = x + move * (longest[active] / length).clamp(max=1)[:, None]
        height = memory._energy(x)
        slack = 8 * torch.finfo(x.dtype).eps * height.abs()
        uphill = memory._energy(new) > height + slack
        points[active] = torch.where(uphill[:, None], plain, new)
        allowed = longest[active] * torch.where(uphill, 0.5, 2.0)
        longest[active] = allowed.clamp(max=LONGEST * sigma)
        active = active[length > SHORTEST * sigma]
    return points


def _blocks(memory: Memory, points: Tensor) -> tuple[Tensor, ...]:
    return points.split(max(1, BLOCK_ENTRIES // memory.memories.numel()))


def _slopes(memory: Memory, points: Tensor) -> Tensor:
    """Return the symmetric Jacobians of an update at points, in float64. (B, D) -> (B, D, D)"""
    if isinstance(memory, SparseHopfield):
        found = [torch.func.jacrev(memory._step)(point) for point in points]
        slopes = torch.stack(found) if found else points.new_zeros(0, memory.dim, memory.dim)
        return 0.5 * (slopes + slopes.mT)
    weights, memories = memory._responsibilities(points), memory.memories.detach()
    apart = memories - (weights @ memories)[:, None]
    return (apart * weights[:, :, None]).mT @ apart / float(memory.variance)
