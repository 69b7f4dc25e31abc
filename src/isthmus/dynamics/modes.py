r"""Modes of Gaussian memories, and balls in which every point is known to flow to the mode.

At a point m let y_j = x_j - m, let p_j be the responsibilities, let e = f(m) - m be the
displacement by an update f, and :math:`c = e^{R|e|/s^2}`. In the ball of radius R about m, the
Jacobian of f is at most

.. math:: \rho = \frac{c}{s^2}
        \lambda_{\max}\Bigl(\sum_j p_j\, e^{R |y_j|/s^2}\, y_j y_j^\top\Bigr) ,

and f maps the ball into itself, as a contraction, if :math:`\rho < 1` and
:math:`c\, |e| < (1 - \rho) R`. The proof is in docs/capacity-proofs.md, section 10.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components
from scipy.spatial import cKDTree
from torch import Tensor

from isthmus.dynamics.descent import descend
from isthmus.errors import InvalidInputError
from isthmus.memories.gaussian import GaussianMemory

FloatArray = NDArray[np.float64]
# Fixed points closer than this share of sigma count as one.
SAME_POINT = 0.02
# Starts closer than this share of sigma are moved together.
JOINED = 1e-3
# The trace decides alone below this rho; the distance from 1 leaves room for rounding.
CONTRACTS = 0.99
# Radii, in units of sigma, of the balls that prove a fixed point stable, and the share of rho that
# is added for rounding.
STABLE, ROUNDING = (1e-2, 1e-3, 1e-4, 1e-5, 1e-6, 1e-7), 1e-9


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
    return memory.moved(memories - centre), points - centre, centre.double()


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Return the distances between points, from differences. (N, D), (M, D) -> (N, M)."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")


@torch.no_grad()
def is_attracting(memory: GaussianMemory, points: Tensor, radii: Tensor | None = None) -> Tensor:
    """Return True for points (B, D) about which a ball of one of the radii is contracted. (B,)

    Such a ball holds one fixed point, which is stable. Without radii (B, T), tiny balls are tried;
    a point may be so near to instability that none is found, and then counts as unstable.
    """
    if radii is None:
        radii = float(memory.sigma) * torch.tensor(STABLE, dtype=torch.float64)
    radii, variance = radii.expand(len(points), -1), float(memory.variance)
    found = torch.zeros(len(points), dtype=torch.bool)
    memories, bias = memory.memories.double(), memory.log_mixing_weights.double()
    for row, point in enumerate(points.double()):
        apart = memories - point
        squares = apart.square().sum(1)
        weights, residual = _weights_and_residual(apart, squares / (2 * variance), bias)
        for radius in radii[row].tolist():
            c = math.exp(min(radius * residual / variance, 700.0))
            raised = weights * (radius / variance * squares.sqrt()).exp()
            terms = raised * squares
            # The largest eigenvalue is at most the trace. Far memories count by their trace only.
            far = terms < 1e-9 * terms.max()
            rest = float(terms[far].sum())
            rho = rest + float(terms[~far].sum())
            if c * rho >= CONTRACTS * variance:
                scaled = raised[~far].sqrt()[:, None] * apart[~far]
                rho = rest + float(torch.linalg.eigvalsh(scaled.mT @ scaled)[-1])
            rho = c * rho / variance * (1 + ROUNDING) + ROUNDING
            if rho < 1 and c * residual < (1 - rho) * radius:
                found[row] = True
                break
    return found


def _weights_and_residual(apart: Tensor, exponents: Tensor, bias: Tensor) -> tuple[Tensor, float]:
    """Return upper bounds on the weights at a point and on the length of its update, in float64."""
    count, dim = apart.shape
    used = bias > -torch.inf
    apart, unit = apart[used], torch.finfo(torch.float64).eps
    logits, error = (bias - exponents)[used], (dim + 8) * unit * (bias.abs() + exponents)[used]
    weights = torch.softmax(logits, 0)
    raised = (logits + error - torch.logsumexp(logits - error, 0)).exp() * (1 + count * unit)
    lengths = torch.linalg.vector_norm(apart, dim=1)
    rounding = 2 * ((raised - weights) * lengths).sum() + count * unit * (weights * lengths).sum()
    full = torch.zeros(count, dtype=torch.float64)
    full[used] = raised
    return full, float(torch.linalg.vector_norm(weights @ apart) + rounding)


class Modes(NamedTuple):
    """Fixed points in descending order of the number of starts that reach them."""

    fixed_points: FloatArray  # (B, D)
    labels: NDArray[np.int64]  # (N,): the fixed point that each start reaches
    converged: NDArray[np.bool_]  # (N,)
    steps: int  # updates of the slowest start


def find_modes(
    memory: GaussianMemory, starts: Tensor, *, tol: float = 1e-4, max_steps: int = 5000
) -> Modes:
    """Find the modes that starts (N, D) flow to on a memory.

    A start rests when an update moves it by no more than the share `tol` of sigma. Starts within a
    thousandth of sigma of each other continue as one. All of this happens in coordinates centred
    on the memories.
    """
    starts, sigma = memory.as_input(starts), float(memory.sigma)
    require_squares(starts if memory._in_shards else memory.memories)
    centre = starts.new_zeros(memory.dim).double()
    if not memory._in_shards:  # which hold no single memories to centre on
        memory, starts, centre = centred(memory, starts)
    state, rests = starts.clone(), np.zeros(len(starts), dtype=bool)
    follows, steps, leg = np.arange(len(starts)), 0, 1
    while not rests.all() and steps < max_steps:
        moving = torch.from_numpy(~rests)
        limit = min(leg, max_steps - steps)
        found = descend(memory, state[moving], tol=tol * sigma, max_steps=limit)
        state[moving] = found.state
        rests[~rests] = found.resting.numpy()
        # Starts in one cell of a fine grid go on as one row; `follows` maps each start to its row.
        cells = np.round(state.double().numpy() / (JOINED * sigma))
        _, first, row = np.unique(cells, axis=0, return_index=True, return_inverse=True)
        state, rests = state[torch.from_numpy(first)], rests[first]
        follows = row.reshape(-1)[follows]
        steps, leg = steps + int(found.steps.max()), 2 * leg
    labels, points = ranked_fixed_points(state.double().numpy()[follows], SAME_POINT * sigma)
    return Modes(points + centre.numpy(), labels, rests[follows], steps)


def ranked_fixed_points(ends: FloatArray, radius: float) -> tuple[NDArray[np.int64], FloatArray]:
    """Return labels (N,) of fixed points, largest basin first, and the points (B, D)."""
    labels = shared_fixed_points(ends, radius)
    order = np.argsort(-np.bincount(labels), kind="stable")
    rank = np.empty_like(order)
    rank[order] = np.arange(len(order))
    labels = rank[labels]
    points = np.zeros((len(order), ends.shape[1]))
    np.add.at(points, labels, ends)
    return labels, points / np.bincount(labels)[:, None]


def require_squares(points: Tensor) -> None:
    """Raise if squared distances of points (N, D) overflow or underflow in their dtype."""
    if points.numel() == 0:
        raise InvalidInputError(
            f"X is empty (shape {tuple(points.shape)}); pass at least one pattern."
        )
    limits = torch.finfo(points.dtype)
    largest = float(points.abs().max())
    spread = float((points - points[0]).abs().max())
    too_large = not largest < 0.25 * (limits.max / points.shape[1]) ** 0.5
    if too_large or 0 < spread < limits.tiny**0.5:
        size = f"Coordinates of {largest:.3g}" if too_large else f"Differences of {spread:.3g}"
        raise InvalidInputError(
            f"{size} cannot be squared in {points.dtype}. Rescale the patterns and sigma alike."
        )


def shared_fixed_points(points: FloatArray, radius: float) -> NDArray[np.int64]:
    """Give one label to points linked by a chain of distances up to `radius`. (N, D) -> (N,)"""
    cells = np.round(points / radius)
    _, first, cell = np.unique(cells, axis=0, return_index=True, return_inverse=True)
    pairs = cKDTree(points[first]).query_pairs(2 * radius, output_type="ndarray")
    graph = coo_matrix((np.ones(len(pairs)), pairs.T), shape=(len(first), len(first)))
    _, labels = connected_components(graph, directed=False)
    return labels[cell.reshape(-1)].astype(np.int64)
