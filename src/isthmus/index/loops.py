"""Compiled loops: lower bounds and gathered cells of an index, and sampled attention.

Coordinates that bounds depend on are summed in float64, and lowered by the largest error of it.
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from isthmus.compiled import compiled, compiled_sums

FLOAT32_UNIT, FLOAT64_UNIT = 2.0**-24, 2.0**-53
# Memories of its own cell that enter the lower bound of a query.
OWN_ROWS = 64
# Memories of a group, neighbours in the order of the index.
GROUP = 8
# The mantissa of 2^f is about f + f (1 - f) (BEND + SLOPE f), with the least largest error.
BEND, SLOPE, EXP_ERROR = np.float32(-0.30457565), np.float32(-0.07826797), 1.2e-4


class Memories(NamedTuple):
    """Memories in the order of an index, their biases (N,), and their codes."""

    points: NDArray[np.floating]  # (N, D)
    bias: NDArray[np.float64]
    beta: float
    codes: NDArray[np.int8]  # (N, D)
    scales: NDArray[np.float32]  # (N,)
    offset: NDArray[np.float32]  # (N,)


class Heads(NamedTuple):
    """Codes of queries; the logit of codes is factor * scale * product + offset + shift."""

    codes: NDArray[np.int8]  # (Q, D)
    factors: NDArray[np.float32]  # (Q,)
    shifts: NDArray[np.float32]  # (Q,)


@compiled_sums
def weigh_codes(products, heads, scales, offset, out, sums):
    """Write weights of codes from their products (Q, N), and `sums` over groups of them.

    Weights are right up to a factor exp(EXP_ERROR): they are written as the bits of a float32.
    Those below 2^-126 are zero, and those from 2^128 on are infinite.
    """
    bits, one, infinite = out.view(np.int32), np.float32(1), np.float32(255)
    to_base_two, bias, unit = np.float32(1 / math.log(2)), np.float32(127), np.float32(2**23)
    for q in range(products.shape[0]):
        factor, shift = heads.factors[q], heads.shifts[q]
        for n in range(products.shape[1]):
            logit = factor * scales[n] * np.float32(products[q, n]) + (offset[n] + shift)
            exponent = logit * to_base_two + bias
            exponent = min(exponent, infinite) if exponent >= one else np.float32(0)
            whole = np.floor(exponent)
            part = exponent - whole
            mantissa = part + part * (one - part) * (BEND + SLOPE * part)
            bits[q, n] = np.int32((whole + mantissa) * unit)
        for group in range(sums.shape[1]):
            total = np.float32(0)
            for n in range(group * GROUP, min(group * GROUP + GROUP, products.shape[1])):
                total += out[q, n]
            sums[q, group] = total


@compiled
def _uniform(state):
    """Return a number in (0, 1) and the next state of the generator (SplitMix64)."""
    state += np.uint64(0x9E3779B97F4A7C15)
    mixed = (state ^ (state >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed = mixed ^ (mixed >> np.uint64(31))
    return (np.float64(mixed >> np.uint64(11)) + 0.5) * 2.0**-53, state


@compiled_sums
def draw_ratios(query, heads, memories, shift, ends, about, count, seed):
    """Draw memories in proportion to the weights of their codes, and return what they weigh.

    `heads` has one query, and `ends` are the cumulative sums over groups. Returns the ratios X of
    weights (count,), the mean of X (m - about), and that of its square norm.
    """
    dim, state = len(query), seed
    ratios, pull, square = np.empty(count), np.zeros(dim), 0.0
    products, out = np.empty((1, GROUP), np.int32), np.empty((1, GROUP), np.float32)
    sums = np.empty((1, 1), np.float32)
    for i in range(count):
        uniform, state = _uniform(state)
        target = uniform * ends[-1]
        group = min(np.searchsorted(ends, target, side="right"), len(ends) - 1)
        left = target - (ends[group - 1] if group else 0.0)
        first, last = group * GROUP, min(group * GROUP + GROUP, len(memories.points))
        for n in range(first, last):
            product = np.int32(0)
            for d in range(dim):
                product += np.int32(memories.codes[n, d]) * np.int32(heads.codes[0, d])
            products[0, n - first] = product
        scales, offset = memories.scales[first:last], memories.offset[first:last]
        weigh_codes(products[:, : last - first], heads, scales, offset, out, sums)
        # Sums are rounded differently: the last memory with a weight takes what is left.
        chosen = 0
        for n in range(last - first):
            if out[0, n] > 0:
                chosen = n
                left -= out[0, n]
                if left < 0:
                    break
        n, apart_squares = first + chosen, 0.0
        for d in range(dim):
            apart = np.float64(memories.points[n, d]) - query[d]
            apart_squares += apart * apart
        logit = memories.bias[n] - memories.beta * apart_squares - shift
        ratio = ratios[i] = math.exp(logit) / out[0, chosen]
        own = 0.0
        for d in range(dim):
            apart = memories.points[n, d] - about[d]
            pull[d] += ratio * apart
            own += apart * apart
        square += ratio * ratio * own
    return ratios, pull / count, square / count


@compiled_sums
def _square_apart(x, i, y, j):
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

    Each term is lowered by its rounding error.
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
            own = bias[start + i]
            term = own - slack * abs(own) - beta * square * (1 + slack)
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
def near_balls(queries, squares, balls, raised, chosen):
    """Return those of the chosen balls that reach into the radius of a query, which is raised."""
    # What is left of a square after the largest error of its sum.
    shrunk = 1 - 4 * (queries.shape[1] + 4) * FLOAT64_UNIT - 1e-12
    if queries.itemsize == 4:
        shrunk = 1 - 2 * (queries.shape[1] + 4) * FLOAT32_UNIT - 1e-12
    found, out, last = 0, np.empty_like(chosen), 0
    for ball in chosen:
        for place in range(len(queries)):
            q = (last + place) % len(queries)
            room = squares[q] + raised[ball]
            reach = math.sqrt(max(room, 0.0)) + balls.radii[ball]
            apart = _square_apart(queries, q, balls.centres, ball)
            if room >= 0 and apart * shrunk <= reach * reach:
                out[found], last = ball, q
                found += 1
                break
    return out[:found]


@compiled_sums
def gather(points, bias, scale, is_dot, centre, rows, buffer):
    """Write rows [x - c, b / scale - |x - c|^2 / 2, |x - c|^2, 0...]; without a square for dots."""
    for i, n in enumerate(rows):
        square = 0.0
        for d in range(len(centre)):
            apart = np.float64(points[n, d]) - np.float64(centre[d])
            buffer[i, d] = apart
            square += apart * apart
        own = bias[n] / scale
        buffer[i, len(centre)] = own if is_dot else own - 0.5 * square
        buffer[i, len(centre) + 1] = square
