"""Rows that a low dimension shows to be apart: the dip test, and modes of densities."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
from diptest import diptest
from numpy.typing import NDArray
from scipy.spatial import cKDTree
from scipy.special import ndtri

from isthmus.cluster.retrieval_graph import (
    LEARNING_ROWS,
    FloatArray,
    IntArray,
    Memories,
    components,
    relative_cut,
)

# Up to this dimension, densities can be estimated, and clusters are their modes. From fewer rows
# than these, they can be in one dimension only.
DENSITY_DIM, FEWEST_ROWS = 3, 30
# A density is judged by the rows in balls of this many: smaller modes are not found, and those of
# much fewer would not be significant. Modes are joined along the links to so many neighbours.
DENSITY_NEIGHBOURS, MODE_LINKS = 25, 10
# A gap has so many values on each side, if there are as many: fewer may be outliers.
FEWEST_VALUES = 5
# Rows whose graph shows whether a valley in one dimension is one in all: a budget of computation.
# A group must be so many times easier to cut than to leave: so are 2 in 100 half rings, by chance.
VALLEY_ROWS, VALLEY_CUT = 1000, 2.0

# The level at which rows are apart from the others of their group, and the places of these rows.
Split = tuple[float, IntArray]


def continuous(table: FloatArray, weights: FloatArray, seed: int) -> tuple[FloatArray, IntArray]:
    """Return rows without equal values, and the row of the table that each stands for.

    Rows are repeated by their weights if all columns have repeated values, so that they are not
    copies. Equal values of a column are then spread halfway to the nearest other value.
    """
    places, stream = np.arange(len(table)), np.random.RandomState(seed)
    if not any(_distinct(table)):
        most = min(max(weights.sum(), len(table)), LEARNING_ROWS)
        places = places.repeat(np.maximum(np.rint(weights * most / weights.sum()), 1).astype(int))
    table = table[places]
    for column in table.T:
        # Values that differ by rounding errors are equal.
        steps = np.round(column / max(np.abs(column).max(), 1e-300), 9)
        values, first, place = np.unique(steps, return_index=True, return_inverse=True)
        if 1 < len(values) < len(column):
            gaps = np.diff(column[first])
            nearest_value = np.minimum(np.append(gaps, np.inf), np.append(np.inf, gaps))
            column += nearest_value[place] * stream.uniform(-0.5, 0.5, len(column))
    return table, places


def _distinct(table: FloatArray) -> list[bool]:
    return [len(np.unique(column)) == len(column) for column in table.T]


def splits(table: FloatArray, spread: FloatArray, most: float, seed: int) -> list[Split]:
    """Split rows that one dimension shows to be apart, and the parts again, at levels to `most`.

    `spread` are the :func:`continuous` rows of a table. Half of the level is for the first
    principal component of a group, half for its columns, and groups have shares in proportion to
    their rows. Of many columns, those with equal values are left out, as they are not continuous.
    """
    dim = table.shape[1]
    if dim > DENSITY_DIM:
        spread = spread[:, _distinct(table)]
    found: list[Split] = []
    waiting = [(np.arange(len(spread)), 0.0)] if spread.size else []
    while waiting:
        rows, above = waiting.pop()
        own = spread[rows] - spread[rows].mean(0)
        views = [*own.T]
        if len(views) > 1:  # first, as it is the best of views at equal levels
            views.insert(0, own @ components(own, np.random.RandomState(seed))[:, 0])
        tests = []
        for place, view in enumerate(views):
            count = 1 if len(views) == 1 else 2 if place == 0 else 2 * own.shape[1]
            level, border = _valley(view)
            tests.append((level * count * len(spread) / len(own), place, border))
        for level, place, border in sorted(tests):
            beyond = views[place] > border
            if level > most:
                break
            if 0 < beyond.sum() < len(own) and (
                _is_far(own, beyond) or _is_valley(own, beyond, seed)
            ):
                found.append((max(level, above), rows[beyond]))
                waiting += [(side, found[-1][0]) for side in (rows[beyond], rows[~beyond])]
                break
    return found


def grouped(found: list[Split], level: float, groups: IntArray) -> IntArray:
    """Return the groups, of which those are split that are apart at this level."""
    groups = groups.copy()
    for own, rows in found:
        if own <= level:
            groups[rows] = groups.max() + 1
    return np.unique(groups, return_inverse=True)[1]


def _is_valley(table: FloatArray, beyond: NDArray[np.bool_], seed: int) -> bool:
    """Return True if retrieval leaves one of two groups less than it passes any cut inside.

    A bent density with one mode may have two in a projection; across its bend, much flows.
    """
    if table.shape[1] == 1:
        return True
    kept = np.random.RandomState(seed).permutation(len(table))[:VALLEY_ROWS]
    labels = beyond[kept].astype(np.int64)
    rotation = components(table, np.random.RandomState(seed), groups=beyond.astype(np.int64))
    memories = Memories.of(table[kept] @ rotation, np.ones(len(kept)))
    return len(set(labels)) > 1 and relative_cut(memories, labels, seed) > VALLEY_CUT


def _is_far(table: FloatArray, beyond: NDArray[np.bool_]) -> bool:
    """Return True if the smaller group is farther from the other than it is wide."""
    small, large = sorted((table[beyond], table[~beyond]), key=len)
    radius = np.linalg.norm(small - small.mean(0), axis=1).max()
    return bool(cKDTree(large).query(small)[0].min() > 2 * radius)


def _valley(values: FloatArray) -> tuple[float, float]:
    """Return the lowest level at which the dip test tells values apart, and a border between them.

    Values are cut where their density is low, and at the largest gap with five of them on each
    side. Neighbouring groups are joined, the most alike first, until one is left.
    """
    if len(values) < 4 or not np.ptp(values):
        return 1.0, 0.0
    values = np.sort(values)
    labels = density_basins(values[:, None], 0.5)
    centres = [np.median(values[labels == number]) for number in range(labels.max() + 1)]
    ranks = np.argsort(np.argsort(centres))[labels]
    # A border has the most values of lower groups below it, and of higher ones above.
    sides = [np.where(ranks < border, -1, 1).cumsum() for border in range(1, len(centres))]
    least = min(FEWEST_VALUES, len(values) // 2)
    gap = least + int(np.diff(values)[least - 1 : len(values) - least].argmax())
    groups = np.split(values, np.unique([gap, *(int(side.argmin()) + 1 for side in sides)]))
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
    size = min(len(left), len(right))  # of the larger group, the part beside the other
    both = np.append(left[-size:], right[:size])
    if len(both) < 4:
        return 1.0
    parts = 2 * (len(left) + len(right)) / len(both) - 1  # of this size, which overlap by half
    return float(diptest(both)[1]) * parts


def density_basins(points: FloatArray, level: float) -> IntArray:
    """Return the basin of each point in a nearest-neighbour density.

    Basins are joined as in ToMATo (Chazal et al. 2013), unless the saddle has fewer points than
    the peak by more than chance allows: the square root of a Poisson count has the standard error
    1/2 in any dimension, the difference of two that of 2^-1/2, and any of n/k balls may be a peak.
    """
    from isthmus.cluster.loops import climbed

    n = len(points)
    k = min(DENSITY_NEIGHBOURS, max(n // 3, 1))
    distances, neighbours = cKDTree(points).query(points, k + 1)
    squares = np.square(distances[:, 1:])
    order = np.argsort(squares.mean(1), kind="stable")
    links, reach = neighbours[:, 1 : MODE_LINKS + 1], squares[:, -1] * (1 + 1e-9)
    least = -ndtri(level * k / n) / np.sqrt(2)
    roots = climbed(order, points, links, reach, k + 1, least)
    return np.unique(roots, return_inverse=True)[1]


def modes(points: FloatArray, groups: IntArray, level: float) -> IntArray:
    """Return the mode of each point in its group."""
    labels = groups.copy()
    for group in np.unique(groups):
        rows = np.flatnonzero(groups == group)
        if len(rows) >= FEWEST_ROWS:
            labels[rows] = labels.max() + 1 + density_basins(points[rows], level)
    return labels
