"""The choice of a partition: modes in few dimensions, the gap to unimodal columns in more."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from typing import NamedTuple

import numpy as np
from diptest import diptest
from scipy.cluster.hierarchy import cut_tree
from scipy.sparse import diags_array
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata
from scipy.stats import t as student

from isthmus.cluster.partition import FloatArray, Graph, IntArray, Path, merge_tree
from isthmus.cluster.retrieval_graph import LEARNING_ROWS, Memories, basins, nearest
from isthmus.compiled import compiled

# The resolutions that are compared, finest first; two digits, so that they can be typed.
RESOLUTIONS = np.array([6, 4.2, 3, 2.1, 1.5, 1, 0.72, 0.51, 0.36, 0.25, 0.18, 0.12])
RESOLUTIONS = np.append(RESOLUTIONS, [0.087, 0.061, 0.043, 0.03])
# Unimodal densities of other shapes than the null, such as uniform balls, have gaps up to this.
LEAST_GAP = 0.07
# Among resolutions whose gaps differ less than this, the finest is chosen.
NEAR_TIE = 0.02
# Partitions have at most this many clusters per memory: six rows show that they belong together.
LARGEST_SHARE = 1 / 6
# Up to this dimension, densities can be estimated, and clusters are their modes.
DENSITY_DIM = 3
# Budgets of computation: rows of a density, and starts of each minimisation.
DENSITY_ROWS, STARTS = 10_000, 3
# Columns with fewer values than one for so many rows are discrete, and so are those of the null.
REPEATED = 5

Remember = Callable[[FloatArray, FloatArray, np.random.RandomState], Memories]


class Choice(NamedTuple):
    """A partition of the memories and the evidence for it; the resolution is NaN if it has none."""

    memories: Memories
    labels: IntArray
    resolution: float
    gap: float
    curve: dict[str, FloatArray]
    reason: str


def choose(
    table: FloatArray,
    rotation: FloatArray,
    weights: FloatArray,
    remember: Remember,
    generator: np.random.RandomState,
    *,
    alpha: float = 0.01,
    resolution: float | None = None,
    n_clusters: int | None = None,
) -> Choice:
    """Partition rows (n, D), seen through `rotation` (D, d), by the rule of BasinFlow."""
    seed = int(generator.randint(2**31))
    points = table @ rotation
    memories = remember(points, weights, np.random.RandomState(seed))
    graph, components = memories.graph, memories.graph.components()
    owners = components
    if len(components) < len(points) or not np.array_equal(memories.patterns, points):
        owners = components[nearest(points, memories.patterns, 1)[:, 0]]
    gammas = RESOLUTIONS
    if resolution is not None:
        gammas = np.append(RESOLUTIONS[resolution < RESOLUTIONS], resolution)
    path = lowest_path(graph, gammas, seed)
    draw = Unimodal(table, weights, owners)
    null = []
    # More for few rows, whose energies vary more.
    for number in range(20 if len(points) < 500 else 10 if len(points) < 2000 else 5):
        stream = np.random.RandomState((seed + 1 + number) % 2**32)
        rows, masses = draw(stream)
        other = remember(rows @ rotation, masses, stream).graph
        null.append(np.log(other.path(gammas, seed).energies))
    levels = np.array(null)
    gaps = levels.mean(0) - np.log(np.maximum(path.energies, 1e-9))
    possible = (path.sizes >= 2) & (path.sizes <= LARGEST_SHARE * len(memories.patterns))
    gaps[~possible] = -np.inf
    best = int(np.argmax(gaps >= gaps.max() - NEAR_TIE))  # the finest
    gap = float(gaps[best]) if possible.any() else 0.0
    curve = {
        "resolution": gammas,
        "n_clusters": path.sizes.astype(float),
        "gap": np.where(possible, gaps, np.nan),
    }
    if n_clusters is not None:
        labels, gamma = _with_count(memories, path, gammas, n_clusters, seed)
        return Choice(memories, labels, gamma, gap, curve, "n_clusters")
    if resolution is not None:
        return Choice(memories, path.labels[-1], resolution, gap, curve, "resolution")
    if points.shape[1] <= DENSITY_DIM:
        labels = _modes(points, weights, memories.patterns, alpha, seed)
        return Choice(memories, labels, np.nan, gap, curve, "modes")
    count = len(levels)
    spread = levels[:, best].std(ddof=1) * np.sqrt(1 + 1 / count)
    if possible.any() and gap - LEAST_GAP > student.ppf(1 - alpha, count - 1) * spread:
        return Choice(memories, path.labels[best], float(gammas[best]), gap, curve, "gap")
    return Choice(memories, components, np.nan, gap, curve, "components")


class Unimodal:
    """The null: in each component, unimodal columns with the rank correlations of the data.

    A column has the greatest convex minorant of its distribution function below its mode, the
    middle of the shortest half of its values, and the least concave majorant above: data of any
    unimodal columns, skewed or with heavy tails, are as they were.
    """

    def __init__(self, table: FloatArray, weights: FloatArray, components: IntArray) -> None:
        if len(table) > LEARNING_ROWS:
            kept = np.random.RandomState(0).permutation(len(table))[:LEARNING_ROWS]
            table, weights, components = table[kept], weights[kept], components[kept]
        self.weights = weights
        self.parts = []
        for number in range(components.max() + 1):
            rows = np.flatnonzero(components == number)
            part = table[rows]
            ranks = (rankdata(part, axis=0) - 0.5) / len(rows)
            scores = ndtri(ranks)
            scores /= np.sqrt(len(rows)) * np.maximum(scores.std(0), 1e-12)
            if len(rows) > part.shape[1]:
                sizes, vectors = np.linalg.eigh(scores.T @ scores)
                scores = (vectors * np.sqrt(np.maximum(sizes, 0))).T
            columns = [_unimodal(part[:, place], weights[rows]) for place in range(part.shape[1])]
            self.parts.append((rows, scores, columns))

    def __call__(self, stream: np.random.RandomState) -> tuple[FloatArray, FloatArray]:
        """Return rows (n, D) of one draw, and their weights."""
        drawn = np.empty((len(self.weights), len(self.parts[0][2])))
        for rows, factor, columns in self.parts:
            levels = ndtr(stream.normal(size=(len(rows), len(factor))) @ factor)
            for place, (shares, values, distinct) in enumerate(columns):
                column = np.interp(levels[:, place], shares, values)
                if len(distinct):
                    column = distinct[np.searchsorted((distinct[1:] + distinct[:-1]) / 2, column)]
                drawn[rows, place] = column
        return drawn, stream.permutation(self.weights)


def _unimodal(column: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return knots (shares, values) of a unimodal distribution function, and discrete values."""
    order = np.argsort(column, kind="stable")
    values, masses = column[order], weights[order]
    shares = (np.cumsum(masses) - masses / 2) / masses.sum()
    ends = np.minimum(np.searchsorted(shares, shares + 0.5), len(values) - 1)
    halves = np.where(shares + 0.5 <= shares[-1], values[ends] - values, np.inf)
    first = int(halves.argmin())
    mode = (first + int(ends[first])) // 2
    knots = np.concatenate(
        [
            _hull(values[: mode + 1], shares[: mode + 1], 1),
            mode + _hull(values[mode:], shares[mode:], -1),
        ]
    )
    distinct = np.unique(values)
    if REPEATED * len(distinct) > len(values):
        distinct = distinct[:0]
    return shares[knots], values[knots], distinct


@compiled
def _hull(x, y, sign):
    """Return the places of the convex (sign 1) or concave (-1) hull of points sorted by x."""
    kept, count = np.empty(len(x), dtype=np.int64), 0
    for i in range(len(x)):
        while count > 1:
            a, b = kept[count - 2], kept[count - 1]
            if sign * ((x[b] - x[a]) * (y[i] - y[a]) - (y[b] - y[a]) * (x[i] - x[a])) > 0:
                break
            count -= 1
        kept[count] = i
        count += 1
    return kept[:count].copy()


def lowest_path(graph: Graph, gammas: FloatArray, seed: int) -> Path:
    """Return the partition of the lowest energy among several starts at each resolution."""
    starts = [(seed + start * len(RESOLUTIONS)) % 2**31 for start in range(STARTS)]
    paths = [graph.path(gammas, start) for start in starts]
    best = enumerate(np.argmin([path.energies for path in paths], 0))
    chosen = [[field[place] for field in paths[start]] for place, start in best]
    return Path(*map(np.array, zip(*chosen, strict=True)))


def one_cluster(points: FloatArray, weights: FloatArray) -> Choice:
    """Return the partition of rows that are all equal."""
    loops = Graph.of(diags_array(weights))
    memories = Memories(points, weights / weights.mean(), len(points), loops)
    empty = np.zeros(0)
    curve = {"resolution": empty, "n_clusters": empty, "gap": empty}
    labels = np.zeros(len(points), dtype=np.int64)
    return Choice(memories, labels, np.nan, 0.0, curve, "components")


def _modes(
    points: FloatArray, weights: FloatArray, patterns: FloatArray, alpha: float, seed: int
) -> IntArray:
    """Return the mode of the density that each pattern belongs to."""
    if points.shape[1] == 1:
        return np.searchsorted(_valleys(points[:, 0], weights, alpha), patterns[:, 0])
    if len(points) > DENSITY_ROWS:
        points = points[np.random.RandomState(seed).permutation(len(points))[:DENSITY_ROWS]]
    owners = nearest(patterns, points, 1)[:, 0]
    labels: IntArray = np.unique(basins(points, alpha)[owners], return_inverse=True)[1]
    return labels


def _valleys(values: FloatArray, weights: FloatArray, alpha: float) -> FloatArray:
    """Return the borders between modes of one column, by Hartigan's dip test.

    Neighbouring groups are joined, the most alike first, while their union passes for unimodal.
    """
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    if np.ptp(weights) > 0:  # equal values are spread halfway to the next ones
        middles = (values[1:] + values[:-1]) / 2
        ends = [2 * values[0] - middles[0], *middles, 2 * values[-1] - middles[-1]]
        count = min(max(round(weights.sum()), len(values)), DENSITY_ROWS)
        shares = np.append(0, np.cumsum(weights)) / weights.sum()
        values = np.interp((np.arange(count) + 0.5) / count, shares, ends)
    labels = basins(values[:, None], 0.5)
    centres = [np.median(values[labels == number]) for number in range(labels.max() + 1)]
    ranks = np.argsort(np.argsort(centres))[labels]
    # A border has the most values of lower groups below it, and of higher ones above.
    sides = [np.where(ranks < border, -1, 1).cumsum() for border in range(1, len(centres))]
    groups = np.split(values, np.unique([int(side.argmin()) + 1 for side in sides]).astype(int))
    while len(groups) > 1:
        levels = [_level(left, right) for left, right in pairwise(groups)]
        place = int(np.argmax(levels))
        if levels[place] <= alpha:
            break
        groups[place : place + 2] = [np.append(groups[place], groups[place + 1])]
    return np.array([(left[-1] + right[0]) / 2 for left, right in pairwise(groups)])


def _level(left: FloatArray, right: FloatArray) -> float:
    """Return the level at which the dip test tells two groups apart."""
    size = 2 * min(len(left), len(right))  # of a large group, the part beside the small one
    both = np.append(left[-size:], right[:size])
    return float(diptest(both)[1]) if len(both) > 3 else 1.0


def _with_count(
    memories: Memories, path: Path, gammas: FloatArray, n_clusters: int, seed: int
) -> tuple[IntArray, float]:
    """Return a partition with this many clusters, and its resolution."""
    graph = memories.graph
    if path.sizes[0] < n_clusters:
        gammas = np.geomspace(6.0, 6.0 * 4**15, 16)[::-1]
        path = graph.path(gammas, seed)
    place = int(np.flatnonzero(path.sizes >= n_clusters)[-1])
    labels, chosen = path.labels[place], float(gammas[place])
    if path.sizes[place] > n_clusters:
        tree = merge_tree(graph.flow(labels), chosen)
        groups = cut_tree(tree, n_clusters=n_clusters)[:, 0]
        labels = groups[labels].astype(np.int64)
    return labels, chosen
