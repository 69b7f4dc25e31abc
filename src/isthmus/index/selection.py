"""Compiled loops of the index: lower bounds, the choice of cells, gathering.

Floating-point results are rounded so that no cell is left out that matters: `unit` is the unit
roundoff of the coordinates, and every test allows for the largest error of its own sums.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isthmus.compiled import compiled, compiled_sums

FLOAT64_UNIT = 2.0**-53
# Memories of its own cell that enter the lower bound of a query.
OWN_ROWS = 64


class Balls(NamedTuple):
    """Bounds of cells: centres and radii of balls, and boxes in rotated coordinates."""

    centres: NDArray[np.floating]  # (C, D)
    radii: NDArray[np.floating]  # (C,)
    low: NDArray[np.floating]  # (C, D)
    high: NDArray[np.floating]  # (C, D)
    first: NDArray[np.int64]  # (C + 1,): rows of leaves, leaves of tops


class Tile(NamedTuple):
    """Neighbouring queries, and the squares of the radii beyond which memories do not matter."""

    queries: NDArray[np.floating]  # (m, D)
    rotated: NDArray[np.floating]  # (m, D)
    squares: NDArray[np.float64]  # (m,)
    slack: NDArray[np.float64]  # (m,): errors of the rotated queries
    centre: NDArray[np.floating]  # (1, D): their mean
    unit: float


class Surroundings(NamedTuple):
    """The ball and the box of a tile."""

    radii: NDArray[np.float64]  # (m,)
    order: NDArray[np.int64]  # (m,): in which queries are tried
    low: NDArray[np.floating]  # (D,)
    high: NDArray[np.floating]  # (D,)
    widest: float
    largest: float
    slack: float


@compiled_sums
def _square_apart(x, i, y, j):
    """Return the squared distance of two rows, in their dtype."""
    total = x[i, 0] - x[i, 0]
    for d in range(x.shape[1]):
        apart = x[i, d] - y[j, d]
        total += apart * apart
    return total


@compiled_sums
def nearest_leaves(queries, tops, top_first, leaf_centres, leaves):
    """Set the leaf whose centre is nearest to each query, in the given top cells (Q, k)."""
    for q in range(len(queries)):
        best, nearest = np.inf, top_first[tops[q, 0]]
        for top in tops[q]:
            for leaf in range(top_first[top], top_first[top + 1]):
                square = _square_apart(queries, q, leaf_centres, leaf)
                if square < best:
                    best, nearest = square, leaf
        leaves[q] = nearest


@compiled
def lower_bounds(queries, leaves, first, points, bias, beta, bounds):
    """Set lower bounds on the log-sum-exp of each query, from memories of its own leaf.

    `bias` (N,) is in float64, or empty. Each term is lowered by its rounding error.
    """
    dim = queries.shape[1]
    slack = 2 * (dim + 8) * FLOAT64_UNIT
    terms = np.empty(OWN_ROWS)
    for q in range(len(queries)):
        start = first[leaves[q]]
        count = min(first[leaves[q] + 1] - start, OWN_ROWS)
        most = -np.inf
        for i in range(count):
            square = 0.0
            for d in range(dim):
                apart = np.float64(queries[q, d]) - np.float64(points[start + i, d])
                square += apart * apart
            term = -beta * square * (1 + slack)
            if len(bias):
                term += bias[start + i] - slack * abs(bias[start + i])
            terms[i] = term
            most = max(most, term)
        total = 0.0
        if most > -np.inf:
            for i in range(count):
                total += math.exp(terms[i] - most)
            bounds[q] = most + math.log(total) - 1e-13
        else:
            bounds[q] = -np.inf


@compiled_sums
def _outside_box(points, i, low, high, cell):
    """Return the squared distance of a row from a box, in its dtype."""
    zero = points[i, 0] - points[i, 0]
    total = zero
    for d in range(points.shape[1]):
        apart = max(max(low[cell, d] - points[i, d], points[i, d] - high[cell, d]), zero)
        total += apart * apart
    return total


@compiled_sums
def _between_boxes(low, high, other_low, other_high, cell):
    """Return the squared distance of a box from that of a cell."""
    zero = low[0] - low[0]
    total = zero
    for d in range(len(low)):
        apart = max(max(low[d] - other_high[cell, d], other_low[cell, d] - high[d]), zero)
        total += apart * apart
    return total


@compiled_sums
def _needed(tile, about, balls, cell, raised):
    """Return True if a query of the tile needs a cell, and move it to the front of the order."""
    centre, dim = tile.centre, tile.queries.shape[1]
    rounding = 2 * (dim + 4) * tile.unit
    shrunk = 1 - rounding - 1e-12
    reach = math.sqrt(max(about.largest + raised, 0.0))
    bound = about.widest + reach + balls.radii[cell]
    square = _square_apart(centre, 0, balls.centres, cell)
    if square * shrunk > bound * bound:
        return False
    bound = reach + about.slack
    if _between_boxes(about.low, about.high, balls.low, balls.high, cell) * shrunk > bound * bound:
        return False
    for place in range(len(about.order)):
        q = about.order[place]
        radius = about.radii[q]
        if raised != 0.0:
            if tile.squares[q] + raised < 0:
                continue
            radius = math.sqrt(tile.squares[q] + raised)
        bound = radius + balls.radii[cell]
        if _square_apart(tile.queries, q, balls.centres, cell) * shrunk > bound * bound:
            continue
        bound = radius + tile.slack[q]
        if _outside_box(tile.rotated, q, balls.low, balls.high, cell) * shrunk > bound * bound:
            continue
        about.order[place], about.order[0] = about.order[0], q
        return True
    return False


@compiled_sums
def select_leaves(tile, tops, leaves, top_raise, leaf_raise, out):
    """Write the leaves that a tile of queries needs, and return their number and their rows.

    Squares of radii are raised by `top_raise` or `leaf_raise` for the bias of a cell, if any.
    """
    count, dim = tile.queries.shape
    away = np.empty(count)
    low, high = tile.rotated[0].copy(), tile.rotated[0].copy()
    for q in range(count):
        away[q] = math.sqrt(_square_apart(tile.queries, q, tile.centre, 0))
        away[q] *= 1 + 2 * (dim + 4) * tile.unit + 1e-12
        for d in range(dim):
            low[d], high[d] = min(low[d], tile.rotated[q, d]), max(high[d], tile.rotated[q, d])
    order = np.arange(count)
    widest, largest, slack = away.max(), tile.squares.max(), tile.slack.max()
    radii = np.sqrt(np.maximum(tile.squares, 0.0))
    about = Surroundings(radii, order, low, high, widest, largest, slack)
    has_bias = len(top_raise) > 0
    found = rows = 0
    for top in range(len(tops.radii)):
        raised = top_raise[top] if has_bias else 0.0
        if not _needed(tile, about, tops, top, raised):
            continue
        for leaf in range(tops.first[top], tops.first[top + 1]):
            raised = leaf_raise[leaf] if has_bias else 0.0
            if _needed(tile, about, leaves, leaf, raised):
                out[found] = leaf
                found += 1
                rows += leaves.first[leaf + 1] - leaves.first[leaf]
    return found, rows


@compiled_sums
def gather(points, bias, first, leaves, centre, scale, is_dot, buffer):
    """Write rows [x - c, offset, |x - c|^2, 0...] of some leaves, and return their number.

    The offset is -|x - c|^2 / 2 for distances, plus bias / scale. Memories of weight zero are
    left out.
    """
    dim = points.shape[1]
    row = 0
    for leaf in leaves:
        for i in range(first[leaf], first[leaf + 1]):
            if len(bias) and bias[i] == -np.inf:
                continue
            square = 0.0
            for d in range(dim):
                apart = np.float64(points[i, d]) - np.float64(centre[d])
                buffer[row, d] = apart
                square += apart * apart
            offset = 0.0 if is_dot else -0.5 * square
            if len(bias):
                offset += bias[i] / scale
            buffer[row, dim] = offset
            buffer[row, dim + 1] = square
            row += 1
    return row
