"""Compiled loops of the index: statistics of cells, lower bounds, the choice of cells, gathering.

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
# Up to this dimension, planes between queries and cells are not tried.
PLANE_DIM = 3


class Balls(NamedTuple):
    """Bounds of cells: centres and radii of balls, and boxes in rotated coordinates."""

    centres: NDArray[np.floating]  # (C, D)
    radii: NDArray[np.floating]  # (C,)
    low: NDArray[np.floating]  # (C, D)
    high: NDArray[np.floating]  # (C, D)
    first: NDArray[np.int64]  # (C + 1,): rows of leaves, leaves of tops


@compiled
def _select_median(points, order, axis, start, stop, middle):
    """Arrange order[start:stop] so that those before `middle` are no larger along an axis."""
    low, high = start, stop - 1
    while low < high:
        pivot = points[order[(low + high) // 2], axis]
        i, j = low, high
        while i <= j:
            while points[order[i], axis] < pivot:
                i += 1
            while points[order[j], axis] > pivot:
                j -= 1
            if i <= j:
                order[i], order[j] = order[j], order[i]
                i += 1
                j -= 1
        if middle <= j:
            high = j
        elif middle >= i:
            low = i
        else:
            return


@compiled
def median_order(points, size):
    """Split points at medians of their widest axes into cells of at most `size`.

    Returns the points in the order of the cells, and the first position of each cell.
    """
    count, dim = points.shape
    order = np.arange(count)
    starts = np.empty(2 * (count // max(size // 2, 1)) + 2, dtype=np.int64)
    stack = np.empty((128, 2), dtype=np.int64)
    stack[0, 0], stack[0, 1] = 0, count
    depth, cells = 1, 0
    while depth > 0:
        depth -= 1
        start, stop = stack[depth, 0], stack[depth, 1]
        if stop - start <= size:
            starts[cells] = start
            cells += 1
            continue
        axis, widest = 0, -1.0
        for d in range(dim):
            low = high = points[order[start], d]
            for i in range(start + 1, stop):
                value = points[order[i], d]
                low, high = min(low, value), max(high, value)
            if high - low > widest:
                axis, widest = d, high - low
        middle = (start + stop) // 2
        _select_median(points, order, axis, start, stop, middle)
        stack[depth, 0], stack[depth, 1] = middle, stop
        stack[depth + 1, 0], stack[depth + 1, 1] = start, middle
        depth += 2
    starts[cells] = count
    return order, starts[: cells + 1]


@compiled_sums
def fill_bounds(points, rotated, first, slack, unit, centres, radii, low, high):
    """Fill in the bounds of cells of the rows of `points`; `rotated` are in float64.

    Radii are rounded up and boxes outwards, which also covers the error `slack` of a rotation.
    """
    dim = points.shape[1]
    sums = np.empty(dim)
    raised = 1 + (dim + 8) * 2 * FLOAT64_UNIT + 4 * unit
    for cell in range(len(first) - 1):
        start, stop = first[cell], first[cell + 1]
        sums[:] = 0.0
        for row in range(start, stop):
            for d in range(dim):
                sums[d] += points[row, d] - points[start, d]
        for d in range(dim):
            centres[cell, d] = points[start, d] + sums[d] / (stop - start)
        largest = 0.0
        for row in range(start, stop):
            square = 0.0
            for d in range(dim):
                apart = np.float64(points[row, d]) - np.float64(centres[cell, d])
                square += apart * apart
            largest = max(largest, square)
        radii[cell] = math.sqrt(largest) * raised
        for d in range(dim):
            least = most = rotated[start, d]
            for row in range(start + 1, stop):
                least, most = min(least, rotated[row, d]), max(most, rotated[row, d])
            low[cell, d] = least - slack - 2 * unit * abs(least)
            high[cell, d] = most + slack + 2 * unit * abs(most)


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


@compiled
def tile_centre(queries, squares, centre):
    """Set the mean (1, D) of queries, and return their spread relative to their mean radius."""
    count, dim = queries.shape
    mean = np.zeros(dim)
    reach = widest = 0.0
    for q in range(count):
        reach += math.sqrt(max(squares[q], 0.0)) / count
        for d in range(dim):
            mean[d] += (queries[q, d] - queries[0, d]) / count
    for d in range(dim):
        centre[0, d] = queries[0, d] + mean[d]
    for q in range(count):
        square = 0.0
        for d in range(dim):
            square += (queries[q, d] - centre[0, d]) ** 2
        widest = max(widest, square)
    return math.sqrt(widest) / reach if reach > 0 else 0.0


@compiled
def cell_maxima(values, first):
    """Return the maximum of the values in each cell."""
    found = np.empty(len(first) - 1)
    for cell in range(len(found)):
        found[cell] = values[first[cell] : first[cell + 1]].max()
    return found


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
def _along(points, row, centre, direction):
    """Return the product of a direction with a row about a centre."""
    product = direction[0] * (points[row, 0] - centre[0, 0])
    for d in range(1, len(direction)):
        product += direction[d] * (points[row, d] - centre[0, d])
    return product


@compiled_sums
def _needed(
    queries, rotated, squares, radii, slack, order, centres, cell_radius, low, high, cell, shrunk,
    raised, points, start, stop, centre, far, away, direction, unit,
):  # fmt: skip
    """Return True if a query of the tile needs a cell, and move it to the front.

    Three tests may show that it does not: a ball and a box about the cell, and, if it has rows
    from `start` to `stop`, a plane across the line from the centre of the tile to the cell.
    """
    least = np.inf
    dim = len(direction)
    rounding = 2 * (dim + 4) * unit
    for place in range(len(order)):
        q = order[place]
        radius = radii[q]
        if raised != 0.0:
            if squares[q] + raised < 0:
                continue
            radius = math.sqrt(squares[q] + raised)
        bound = radius + cell_radius
        if _square_apart(queries, q, centres, cell) * shrunk > bound * bound:
            continue
        bound = radius + slack[q]
        if _outside_box(rotated, q, low, high, cell) * shrunk > bound * bound:
            continue
        if stop > start and far > 0:
            if least == np.inf:
                for d in range(dim):
                    direction[d] = (centres[cell, d] - centre[0, d]) / far
                for row in range(start, stop):
                    least = min(least, _along(points, row, centre, direction))
                least -= rounding * (2 * far + cell_radius)
            apart = least - _along(queries, q, centre, direction) - rounding * away[q]
            if apart * shrunk > radius:
                continue
        order[place], order[0] = order[0], q
        return True
    return False


@compiled_sums
def select_leaves(
    queries, rotated, squares, slack, centre, tops, leaves, points, top_raise, leaf_raise, unit, out
):
    """Write the leaves that a tile of queries needs, and return their number and their rows.

    A query needs a cell unless all points of it are farther than the radius of the query, whose
    square is `squares` (m,), raised by `top_raise` or `leaf_raise` for the bias of a cell, if any.
    `slack` (m,) is the error of the rotated queries, `centre` (1, D) their mean.
    """
    count, dim = queries.shape
    relative = 2 * (dim + 4) * unit + 1e-12
    shrunk = 1 - relative
    away, radii, order = np.empty(count), np.empty(count), np.arange(count)
    farthest = largest = 0.0
    for q in range(count):
        away[q] = math.sqrt(_square_apart(queries, q, centre, 0)) * (1 + relative)
        radii[q] = math.sqrt(max(squares[q], 0.0))
        farthest, largest = max(farthest, away[q] + radii[q]), max(largest, squares[q])
    widest = away.max()
    direction = np.empty_like(centre[0])
    box_low, box_high = rotated[0].copy(), rotated[0].copy()
    for q in range(1, count):
        for d in range(dim):
            box_low[d] = min(box_low[d], rotated[q, d])
            box_high[d] = max(box_high[d], rotated[q, d])
    box_slack = slack.max()
    box_bound, reach, raised = radii.max() + box_slack, farthest, 0.0
    has_bias = len(top_raise) > 0
    # Box tests decide in few dimensions, where the plane's would not pay.
    with_plane = dim > PLANE_DIM
    found = rows = 0
    for top in range(len(tops.radii)):
        if has_bias:
            raised = top_raise[top]
            reach = widest + math.sqrt(max(largest + raised, 0.0))
            box_bound = reach - widest + box_slack
        bound = reach + tops.radii[top]
        if _square_apart(centre, 0, tops.centres, top) * shrunk > bound * bound:
            continue
        between = _between_boxes(box_low, box_high, tops.low, tops.high, top)
        if between * shrunk > box_bound * box_bound:
            continue
        if not _needed(
            queries, rotated, squares, radii, slack, order, tops.centres, tops.radii[top],
            tops.low, tops.high, top, shrunk, raised, points, 0, 0, centre, 0.0, away, direction,
            unit,
        ):  # fmt: skip
            continue
        for leaf in range(tops.first[top], tops.first[top + 1]):
            if has_bias:
                raised = leaf_raise[leaf]
                reach = widest + math.sqrt(max(largest + raised, 0.0))
                box_bound = reach - widest + box_slack
            bound = reach + leaves.radii[leaf]
            square = _square_apart(centre, 0, leaves.centres, leaf)
            if square * shrunk > bound * bound:
                continue
            between = _between_boxes(box_low, box_high, leaves.low, leaves.high, leaf)
            if between * shrunk > box_bound * box_bound:
                continue
            start, stop = leaves.first[leaf], leaves.first[leaf + 1]
            if _needed(
                queries, rotated, squares, radii, slack, order, leaves.centres, leaves.radii[leaf],
                leaves.low, leaves.high, leaf, shrunk, raised, points, start,
                stop if with_plane else start, centre, math.sqrt(square), away, direction, unit,
            ):  # fmt: skip
                out[found] = leaf
                found += 1
                rows += stop - start
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
