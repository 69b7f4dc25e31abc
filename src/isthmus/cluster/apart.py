"""Groups of rows that one dimension shows to be apart, by the dip test or by an empty gap."""

from __future__ import annotations

import math
from itertools import pairwise

import numpy as np
from diptest import diptest
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree
from scipy.sparse import csr_array, eye_array
from sklearn.neighbors import NearestNeighbors

from isthmus.cluster.partition import (
    RESOLUTIONS,
    FloatArray,
    Graph,
    IntArray,
    flux_ratios,
    merge_tree,
)
from isthmus.cluster.retrieval_graph import DENSITY_NEIGHBOURS, Memories, basins, components

# Up to this dimension, densities can be estimated, and clusters are their modes. From fewer rows
# than these, they can be in one dimension only.
DENSITY_DIM, FEWEST_ROWS = 3, 30
# In two and three dimensions, fewer rows than four balls of a density show clusters by the modes of
# projections only; more might show those of a bent density with one mode.
DIP_ROWS = 4 * DENSITY_NEIGHBOURS
# The share of the distances on one side of a gap that are compared with it; others are outliers'.
OUTLYING = 0.9
# Budgets of computation: rows of a density, and rows whose graph shows whether a valley in one
# dimension is one in all.
DENSITY_ROWS, VALLEY_ROWS = 10_000, 1000


def apart(table: FloatArray, weights: FloatArray, alphas: FloatArray, seed: int) -> IntArray:
    """Return groups of rows that are apart in one dimension, at falling levels. (levels, n)

    Half of the level is for the first principal component of a group, half for its columns; of
    many columns, those with equal values are left out, as the tests are for continuous ones. A
    group is split at the place of the lowest level, and so are its parts.
    """
    if table.shape[1] > DENSITY_DIM:
        table = table[:, [len(np.unique(column)) == len(column) for column in table.T]]
    table = spread_out(table, np.random.RandomState(seed))
    groups = np.zeros((len(alphas), len(table)), dtype=np.int64)
    waiting = [(np.arange(len(table)), 0.0)] if table.size else []
    while waiting:
        rows, above = waiting.pop()
        own = table[rows] - np.average(table[rows], 0, weights[rows])
        rotation = components(own, weights[rows], np.random.RandomState(seed))
        first = own @ rotation[:, 0]
        share = 2.0 if len(own.T) > 1 else 1.0
        views = [(share, first), *((share * len(own.T), column) for column in own.T)]
        tests = [(*_emptiest(view), factor, view) for factor, view in views]
        if not 1 < len(own.T) <= DENSITY_DIM or len(table) < DIP_ROWS:
            tests += [(*_valley(view, weights[rows]), factor, view) for factor, view in views]
        level, border, factor, values = min(tests, key=lambda test: test[0] * test[2])
        level = max(level * factor, above)
        beyond = values > border
        if level > alphas[0] or beyond.all() or not beyond.any():
            continue
        sure = own.shape[1] == 1 or _is_far(own, beyond)
        if not (sure or _is_valley(own, weights[rows], beyond, seed)):
            continue
        split = np.flatnonzero(alphas >= level)
        groups[np.ix_(split, rows[beyond])] = groups.max() + 1
        waiting += [(rows[beyond], level), (rows[~beyond], level)]
    return groups


def _is_far(table: FloatArray, beyond: NDArray[np.bool_]) -> bool:
    """Return True if the smaller group is farther from the other than it is wide.

    It may have fewer rows than a row recalls, and then retrieval leaves it in any case.
    """
    small, large = sorted((table[beyond], table[~beyond]), key=len)
    radius = np.linalg.norm(small - small.mean(0), axis=1).max()
    distances = NearestNeighbors(n_neighbors=1).fit(large).kneighbors(small)[0]
    return bool(distances.min() > 2 * radius)


def _is_valley(
    table: FloatArray, weights: FloatArray, beyond: NDArray[np.bool_], seed: int
) -> bool:
    """Return True if retrieval passes less between two groups than across any cut inside them.

    A bent density with one mode may have two in a projection; across its bend, much flows.
    """
    kept = np.random.RandomState(seed).permutation(len(table))[:VALLEY_ROWS]
    labels = beyond[kept].astype(np.int64)
    rotation = components(table, weights, np.random.RandomState(seed), beyond.astype(np.int64))
    graph = Memories.of_rows(table[kept] @ rotation, weights[kept]).graph
    between = flux_ratios(graph.flow(labels))[0, 1]
    matrix = csr_array((graph.weights, graph.indices, graph.indptr))
    for side in (0, 1):
        rows = np.flatnonzero(labels == side)
        # Loops, for rows that recall none of their own side.
        inside = Graph.of(matrix[rows][:, rows] + 1e-12 * eye_array(len(rows)))
        path = inside.path(RESOLUTIONS, seed)
        for each, size in zip(path.labels, path.sizes, strict=True):
            if size > 1:
                tree = merge_tree(inside.flow(each), 1.0)
                halves = cut_tree(tree, n_clusters=2)[:, 0][each].astype(np.int64)
                if flux_ratios(inside.flow(halves))[0, 1] <= between:
                    return False
    return True


def _emptiest(column: FloatArray) -> tuple[float, float]:
    r"""Return the level of the largest gap with five values on each side, and its middle.

    Outward from the mode of one column, the distances of neighbouring values grow. So if it has
    one mode, a gap is c times the sum of the k smallest of the m distances on its outer side with
    a probability of at most that for equal exponential distances,
    :math:`\prod_{j<k} (m - j) / (m - j + c (k - j))`. The level is the larger one of the two
    sides, times the number of gaps that were looked at.
    """
    values = np.unique(column)
    gaps = np.diff(values)
    if len(gaps) < 9:
        return 1.0, 0.0
    place = 4 + int(gaps[4:-4].argmax())
    levels = []
    for side in (gaps[:place], gaps[place + 1 :]):
        count = math.ceil(OUTLYING * len(side))
        left, terms = len(side) - np.arange(count), count - np.arange(count)
        ratio = gaps[place] / np.partition(side, count - 1)[:count].sum()
        levels.append(float(np.prod(left / (left + ratio * terms))))
    return max(levels) * len(gaps), float(values[place : place + 2].mean())


def spread_out(table: FloatArray, stream: np.random.RandomState) -> FloatArray:
    """Return columns in which equal values are spread, halfway to the nearest other value."""
    table = table.copy()
    for column in table.T:
        # Values that differ by rounding errors are equal.
        steps = np.round(column / max(np.abs(column).max(), 1e-300), 9)
        values, first, place = np.unique(steps, return_index=True, return_inverse=True)
        if 1 < len(values) < len(column):
            gaps = np.diff(column[first])
            nearest_value = np.minimum(np.append(gaps, np.inf), np.append(np.inf, gaps))
            column += nearest_value[place] * stream.uniform(-0.5, 0.5, len(column))
    return table


def _valley(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Return the lowest level at which the dip test tells values apart, and a border between them.

    Neighbouring groups are joined, the most alike first, until one is left.
    """
    if len(values) < 4 or not np.ptp(values):
        return 1.0, 0.0
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    if np.ptp(weights) > 0 or len(values) > DENSITY_ROWS:  # spread halfway to the next ones
        middles = (values[1:] + values[:-1]) / 2
        ends = [2 * values[0] - middles[0], *middles, 2 * values[-1] - middles[-1]]
        count = min(max(round(weights.sum()), len(values)), DENSITY_ROWS)
        shares = np.append(0, np.cumsum(weights)) / weights.sum()
        values = np.interp((np.arange(count) + 0.5) / count, shares, ends)
    labels = basins(values[:, None], [0.5])[0]
    centres = [np.median(values[labels == number]) for number in range(labels.max() + 1)]
    ranks = np.argsort(np.argsort(centres))[labels]
    # A border has the most values of lower groups below it, and of higher ones above.
    sides = [np.where(ranks < border, -1, 1).cumsum() for border in range(1, len(centres))]
    groups = np.split(values, np.unique([int(side.argmin()) + 1 for side in sides]).astype(int))
    lowest, border, count = 1.0, 0.0, len(groups) - 1
    while len(groups) > 1:
        levels = [_level(left, right) for left, right in pairwise(groups)]
        place, least = int(np.argmax(levels)), int(np.argmin(levels))
        if levels[place] < lowest:
            lowest, border = levels[place], (groups[least][-1] + groups[least + 1][0]) / 2
        groups[place : place + 2] = [np.append(groups[place], groups[place + 1])]
    return lowest * max(count, 1), float(border)  # any of the borders may be the lowest


def _level(left: FloatArray, right: FloatArray) -> float:
    """Return the level at which the dip test tells two groups apart."""
    size = 2 * min(len(left), len(right))  # of a large group, the part beside the small one
    both = np.append(left[-size:], right[:size])
    if len(both) < 4:
        return 1.0
    return float(diptest(both)[1]) * (len(left) + len(right)) / len(both)  # any part of this size
