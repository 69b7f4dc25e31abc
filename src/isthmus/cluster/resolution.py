"""The choice of a partition: modes in few dimensions, separation from a null in more."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from diptest import diptest
from numpy.typing import NDArray
from scipy.cluster.hierarchy import cut_tree
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import rankdata
from scipy.stats import t as student
from sklearn.cluster import kmeans_plusplus
from sklearn.utils.extmath import randomized_svd

from isthmus.bandwidth import leave_one_out
from isthmus.cluster.partition import FloatArray, Graph, IntArray, Path, flux_ratios, merge_tree
from isthmus.cluster.retrieval_graph import (
    DENSITY_NEIGHBOURS,
    LEARNING_ROWS,
    Memories,
    basins,
    nearest,
)
from isthmus.compiled import compiled

# Principal components keep this share of the variance, and are at least and at most so many.
KEPT_VARIANCE, FEWEST_COMPONENTS, MOST_COMPONENTS = 0.9, 3, 50
EXACT_COMPONENTS = 1000
# The resolutions that are compared, finest first; two digits, so that they can be typed.
RESOLUTIONS = np.array([6, 4.2, 3, 2.1, 1.5, 1, 0.72, 0.51, 0.36, 0.25, 0.18, 0.12])
RESOLUTIONS = np.append(RESOLUTIONS, [0.087, 0.061, 0.043, 0.03])
# Partitions have at most this many clusters per memory: six rows show that they belong together.
LARGEST_SHARE = 1 / 6
# Up to this dimension, densities can be estimated, and clusters are their modes. From fewer rows
# than these, they can be in one dimension only.
DENSITY_DIM, FEWEST_ROWS = 3, 30
# In two and three dimensions, fewer rows than four balls of a density show clusters by the modes of
# projections only; more might show those of a bent density with one mode.
DIP_ROWS = 4 * DENSITY_NEIGHBOURS
# Budgets of computation: rows of a density, and starts of each minimisation.
DENSITY_ROWS, STARTS = 10_000, 3
# Columns with fewer values than one for so many rows are discrete, and so are those of the null.
REPEATED = 5
# The share of the distances on one side of a gap that are compared with it; others are outliers'.
OUTLYING = 0.9
# Standard errors between the statistics of this draw and of others, largest first.
REDRAWS = ndtri((np.arange(21) + 0.5) / 21)[::-1]
# Budgets of computation for Gaussians: rows, iterations, and starts beside the clusters.
GAUSSIAN_ROWS, GAUSSIAN_STEPS, GAUSSIAN_STARTS = 5000, 300, 10
KERNEL_ROWS = 1000

# The masses of the clusters of a partition, and the log-flow out of each over its chance.
Cut = tuple[FloatArray, FloatArray]
Remember = Callable[[FloatArray, FloatArray, np.random.RandomState], Memories]


class Choice(NamedTuple):
    """A partition of the memories and the evidence for it; the resolution is NaN if it has none."""

    rotation: FloatArray
    memories: Memories
    labels: IntArray
    resolution: float
    gap: float
    curve: dict[str, FloatArray]
    reason: str
    # The partitions of other draws as likely as this one, whose statistics are a quantile of the
    # normal distribution away.
    redraws: Sequence[IntArray]


def choose(
    table: FloatArray,
    weights: FloatArray,
    remember: Remember,
    generator: np.random.RandomState,
    *,
    alpha: float,
    min_separation: float,
    resolution: float | None = None,
    n_clusters: int | None = None,
    blocks: Sequence[slice] = (),
) -> Choice:
    """Partition centred rows (n, D) by the rule of BasinFlow; `blocks` are indicators."""
    seed = int(generator.randint(2**31))
    given = resolution is not None or n_clusters is not None
    alphas = np.full(1, alpha) if given else ndtr(ndtri(alpha) + REDRAWS)
    middle = len(alphas) // 2  # alpha itself
    groups = apart(table, weights, alphas, seed)
    rotation = components(table, weights, generator, groups[middle])
    points = table @ rotation
    memories = remember(points, weights, np.random.RandomState(seed))
    gammas = RESOLUTIONS
    if resolution is not None:
        gammas = np.append(RESOLUTIONS[resolution < RESOLUTIONS], resolution)
    path = lowest_path(memories.graph, gammas, seed)
    # More for few rows, whose partitions vary more.
    count = 20 if len(points) < 500 else 10 if len(points) < 2000 else 5

    def null(groups: IntArray) -> tuple[FloatArray, list[list[Cut]]]:
        """Return log-energies (count, G) and cuts of draws that are unimodal in each group."""
        draw, graphs = Unimodal(table, weights, groups, blocks), []
        for place in range(count):
            stream = np.random.RandomState((seed + 1 + place) % 2**32)
            rows, masses = draw(stream)
            graphs.append(remember(rows @ rotation, masses, stream).graph)
        paths = [graph.path(gammas, seed) for graph in graphs]
        return np.log([each.energies for each in paths]), list(map(_cuts, graphs, paths))

    energies, null_cuts = null(np.zeros_like(groups[middle]))
    cuts = _cuts(memories.graph, path)
    possible = np.array([len(masses) > 0 for masses, _ in cuts])
    own = np.log(np.maximum(path.energies, 1e-9))
    gaps = energies.mean(0) - own
    sizes = path.sizes.astype(float)
    curve = {"resolution": gammas, "n_clusters": sizes, "gap": np.where(possible, gaps, np.nan)}
    gap = float(gaps[possible].max(initial=0.0))
    if n_clusters is not None:
        labels, gamma = _with_count(memories, path, gammas, n_clusters, seed)
        return Choice(rotation, memories, labels, gamma, gap, curve, "n_clusters", [labels])
    if resolution is not None:
        labels = path.labels[-1]
        return Choice(rotation, memories, labels, resolution, gap, curve, "resolution", [labels])
    owners = nearest(memories.patterns, points, 1)[:, 0]
    if points.shape[1] <= DENSITY_DIM or len(points) < FEWEST_ROWS:
        found: Any = [np.unique(each, return_inverse=True)[1] for each in groups[:, owners]]
        if points.shape[1] > 1 and len(points) >= FEWEST_ROWS:
            found = _modes(table, rotation, memories.patterns, groups, alphas, seed)
        return Choice(rotation, memories, found[middle], np.nan, gap, curve, "modes", found)
    accepted = possible & (_excess(cuts, null_cuts, alphas) > np.log(min_separation))
    errors = energies.std(0, ddof=1) * np.sqrt(1 + 1 / count)
    if groups[middle].any() and accepted.any():  # and it is more than the groups that are apart
        others = null(groups[middle])[0]
        chance = np.outer(student.ppf(1 - alphas, count - 1), others.std(0, ddof=1))
        accepted &= others.mean(0) - own > chance * np.sqrt(1 + 1 / count)
    allowed = np.where(accepted, gaps, -np.inf)
    least = allowed.max(1) - errors[allowed.argmax(1)]
    best = np.argmax(allowed >= least[:, None], 1)  # the finest
    found = np.where(accepted.any(1)[:, None], path.labels[best], groups[:, owners])
    found = [np.unique(each, return_inverse=True)[1] for each in found]
    if not accepted[middle].any():
        reason = "modes" if found[middle].any() else "gap"
        return Choice(rotation, memories, found[middle], np.nan, gap, curve, reason, found)
    place = best[middle]
    return Choice(
        rotation,
        memories,
        found[middle],
        float(gammas[place]),
        float(gaps[place]),
        curve,
        "gap",
        found,
    )


def apart(table: FloatArray, weights: FloatArray, alphas: FloatArray, seed: int) -> IntArray:
    """Return groups of rows that are apart in one dimension, at falling levels. (levels, n)

    Half of the level is for the first principal component of a group, half for its columns; of
    many columns, those with equal values are left out, as the tests are for continuous ones. A
    group is split at the place of the lowest level, and so are its parts.
    """
    if table.shape[1] > DENSITY_DIM:
        table = table[:, [len(np.unique(column)) == len(column) for column in table.T]]
    table = _spread(table, np.random.RandomState(seed))
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
        if own.shape[1] > 1 and not _is_valley(own, weights[rows], beyond, seed):
            continue
        split = np.flatnonzero(alphas >= level)
        groups[np.ix_(split, rows[beyond])] = groups.max() + 1
        waiting += [(rows[beyond], level), (rows[~beyond], level)]
    return groups


def _is_valley(
    table: FloatArray, weights: FloatArray, beyond: NDArray[np.bool_], seed: int
) -> bool:
    """Return True if retrieval passes less between two groups than across any cut inside them.

    A bent density with one mode may have two in a projection; across its bend, much flows.
    """
    kept = np.random.RandomState(seed).permutation(len(table))[:KERNEL_ROWS]
    labels = beyond[kept].astype(np.int64)
    rotation = components(table, weights, np.random.RandomState(seed), beyond.astype(np.int64))
    graph = Memories.of_rows(table[kept] @ rotation, weights[kept]).graph
    between = _passing(graph, labels)
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
                if _passing(inside, halves) <= between:
                    return False
    return True


def _passing(graph: Graph, labels: IntArray) -> float:
    """Return the flow between two groups over its value by chance."""
    return float(flux_ratios(graph.flow(labels))[0, 1])


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


def _spread(table: FloatArray, stream: np.random.RandomState) -> FloatArray:
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


def _repeated(column: FloatArray) -> FloatArray:
    """Return the values of a discrete column; none if it is not."""
    values = np.unique(column)
    return values if REPEATED * len(values) <= len(column) else values[:0]


def components(
    table: FloatArray,
    weights: FloatArray,
    generator: np.random.RandomState,
    groups: IntArray | None = None,
) -> FloatArray:
    """Return the map (D, d) from centred rows to components, in units of deviations in groups."""
    shares = weights / weights.sum()
    groups = np.zeros(len(table), dtype=np.int64) if groups is None else groups
    members = (groups == np.unique(groups)[:, None]) * shares
    means = (members @ table) / members.sum(1, keepdims=True)
    within = table - means[np.unique(groups, return_inverse=True)[1]]
    deviations, total = (np.sqrt(shares @ np.square(each)) for each in (within, table))
    deviations = np.where(deviations > 1e-9 * total, deviations, total)
    varies = np.ptp(table, axis=0) > 0
    scale = np.zeros(table.shape[1])
    scale[varies] = 1 / deviations[varies]
    scaled = table * scale * np.sqrt(shares)[:, None]
    if min(scaled.shape) > EXACT_COMPONENTS:
        seed = generator.randint(2**31)
        _, sizes, directions = randomized_svd(scaled, MOST_COMPONENTS, random_state=seed)
        variances = sizes**2
    elif scaled.shape[1] <= scaled.shape[0]:
        variances, vectors = np.linalg.eigh(scaled.T @ scaled)
        variances, directions = variances[::-1], vectors.T[::-1]
    else:
        variances, vectors = np.linalg.eigh(scaled @ scaled.T)
        variances = np.maximum(variances[::-1], 1e-300)
        directions = (vectors.T[::-1] @ scaled) / np.sqrt(variances)[:, None]
    within *= scale * np.sqrt(shares)[:, None]
    kept = np.cumsum(np.square(within @ directions[:MOST_COMPONENTS].T).sum(0))
    count = int(np.searchsorted(kept, KEPT_VARIANCE * np.square(within).sum())) + 1
    least = min(FEWEST_COMPONENTS, int(np.sum(variances > 1e-12 * variances.sum())))
    rotation: FloatArray = (scale * directions[: min(max(count, least), MOST_COMPONENTS)]).T
    return rotation


def _cuts(graph: Graph, path: Path) -> list[Cut]:
    """Return the cut of each partition; it is empty for one cluster and for too many."""
    cuts = []
    for labels, size in zip(path.labels, path.sizes, strict=True):
        masses = leaving = np.zeros(0)
        if 2 <= size <= LARGEST_SHARE * len(labels):
            flow = graph.flow(labels)
            masses = flow.sum(1)
            # No flow at all counts as half a link.
            leaving = masses - flow.diagonal() + 0.5 / len(graph.weights)
        cuts.append((masses, np.log(leaving / (masses * (1 - masses)))))
    return cuts


def _excess(cuts: list[Cut], null: list[list[Cut]], alphas: FloatArray) -> FloatArray:
    """Return how much more separate each partition is than those of the null at each level.

    The separation is minus the mean log-flow out of the clusters, after that of clusters of the
    same mass in the null is subtracted: a parabola in log m(1 - m), of which the flow is symmetric.
    """
    masses, flows = (
        np.concatenate(each) for each in zip(*[c for d in null for c in d], strict=True)
    )
    usual = np.polyfit(np.log(masses * (1 - masses)), flows, 2) if len(masses) > 3 else [0.0]
    separation = np.array(
        [
            [m @ (np.polyval(usual, np.log(m * (1 - m))) - flow) for m, flow in draw]
            for draw in (cuts, *null)
        ]
    )
    own, others = separation[0], separation[1:]
    spread = others.std(0, ddof=1)
    # The spread is not known at resolutions at which the null has few clusters.
    spread = np.maximum(spread, np.median(spread[spread > 0])) if spread.any() else spread
    error = np.outer(student.ppf(1 - alphas, len(null) - 1), np.sqrt(1 + 1 / len(null)) * spread)
    excess: FloatArray = own - others.mean(0) - error
    return excess


class Unimodal:
    """The null: in each group of rows, unimodal columns with the rank correlations of the data.

    A column has the greatest convex minorant of its distribution function below its mode, the
    middle of the shortest half of its values, and the least concave majorant above: data of any
    unimodal columns, skewed or with heavy tails, are as they were. `blocks` of columns, the
    indicators of one category each, have the values of rows, independent of the other columns.
    """

    def __init__(
        self,
        table: FloatArray,
        weights: FloatArray,
        groups: IntArray,
        blocks: Sequence[slice] = (),
    ) -> None:
        kept = np.random.RandomState(0).permutation(len(table))[:LEARNING_ROWS]
        table, weights, groups = table[kept], weights[kept], groups[kept]
        members = [groups == group for group in np.unique(groups)]
        self.groups = [self._learned(table[own], weights[own]) for own in members]
        self.categories = [[(block, table[own, block]) for block in blocks] for own in members]

    @staticmethod
    def _learned(table: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray, Any]:
        """Return weights, a root of the rank correlations, and the distributions of columns."""
        scores = ndtri((rankdata(table, axis=0) - 0.5) / len(table))
        scores /= np.sqrt(len(table)) * np.maximum(scores.std(0), 1e-12)
        if len(table) > table.shape[1]:
            sizes, vectors = np.linalg.eigh(scores.T @ scores)
            scores = (vectors * np.sqrt(np.maximum(sizes, 0))).T
        columns = zip(_spread(table, np.random.RandomState(0)).T, table.T, strict=True)
        return weights, scores, [(*_unimodal(a, weights), _repeated(b)) for a, b in columns]

    def __call__(self, stream: np.random.RandomState) -> tuple[FloatArray, FloatArray]:
        """Return rows (n, D) of one draw, and their weights."""
        tables, masses = [], []
        for (weights, scores, columns), categories in zip(
            self.groups, self.categories, strict=True
        ):
            drawn = ndtr(stream.normal(size=(len(weights), len(scores))) @ scores)
            for place, (shares, values, distinct) in enumerate(columns):
                column = np.interp(drawn[:, place], shares, values)
                if len(distinct):
                    middles = (distinct[1:] + distinct[:-1]) / 2
                    column = distinct[np.searchsorted(middles, column)]
                drawn[:, place] = column
            for block, values in categories:
                shares = weights / weights.sum()
                drawn[:, block] = values[stream.choice(len(values), len(values), p=shares)]
            tables.append(drawn)
            masses.append(stream.permutation(weights))
        return np.concatenate(tables), np.concatenate(masses)


def _unimodal(column: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return knots (shares, values) of a unimodal distribution function."""
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
    return shares[knots], values[knots]


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


def one_cluster(dim: int, weights: FloatArray) -> Choice:
    """Return the partition of rows that are all equal."""
    loops = Graph.of(diags_array(weights))
    points, rotation = np.zeros((len(weights), 1)), np.zeros((dim, 1))
    memories = Memories(points, weights / weights.mean(), len(points), loops)
    empty = np.zeros(0)
    curve = {"resolution": empty, "n_clusters": empty, "gap": empty}
    labels = np.zeros(len(points), dtype=np.int64)
    return Choice(rotation, memories, labels, np.nan, 0.0, curve, "gap", [labels])


def _modes(
    table: FloatArray,
    rotation: FloatArray,
    patterns: FloatArray,
    groups: IntArray,
    alphas: FloatArray,
    seed: int,
) -> list[IntArray]:
    """Return the mode of the density of its group that each pattern belongs to, at each level."""
    stream = np.random.RandomState(seed)
    owners = groups[:, nearest(patterns, table @ rotation, 1)[:, 0]]
    kept = stream.permutation(len(table))[:DENSITY_ROWS]
    points, spread = table[kept] @ rotation, _spread(table[kept], stream) @ rotation
    found = np.zeros(owners.shape, dtype=np.int64)
    distinct, which = np.unique(groups, axis=0, return_inverse=True)
    for number, grouping in enumerate(distinct):
        levels = np.flatnonzero(which == number)
        for group in np.unique(grouping):
            rows = np.flatnonzero(grouping[kept] == group)
            members = np.flatnonzero(owners[levels[0]] == group)
            modes = [np.zeros(max(len(rows), 1), dtype=np.int64)] * len(levels)
            near = np.zeros(len(members), dtype=np.int64)
            if len(rows) >= FEWEST_ROWS:
                modes = basins(spread[rows], alphas[levels])
                near = nearest(patterns[members], points[rows], 1)[:, 0]
            for level, labels in zip(levels, modes, strict=True):
                found[level, members] = found[level].max() + 1 + labels[near]
    return [np.unique(labels, return_inverse=True)[1] for labels in found]


def _valley(values: FloatArray, weights: FloatArray) -> tuple[float, float]:
    """Return the lowest level at which the dip test tells values apart, and a border between them.

    Neighbouring groups are joined, the most alike first, until one is left.
    """
    if len(values) < 4 or not np.ptp(values):
        return 1.0, 0.0
    order = np.argsort(values)
    values, weights = values[order], weights[order]
    if np.ptp(weights) > 0:  # equal values are spread halfway to the next ones
        middles = (values[1:] + values[:-1]) / 2
        ends = [2 * values[0] - middles[0], *middles, 2 * values[-1] - middles[-1]]
        count = min(max(round(weights.sum()), len(values)), DENSITY_ROWS)
        shares = np.append(0, np.cumsum(weights)) / weights.sum()
        values = np.interp((np.arange(count) + 0.5) / count, shares, ends)
    elif len(values) > DENSITY_ROWS:
        values = np.interp(np.linspace(0, 1, DENSITY_ROWS), np.linspace(0, 1, len(values)), values)
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


def gaussian_logits(points: FloatArray, weights: FloatArray, labels: IntArray) -> FloatArray | None:
    """Return the logits (d + 1, K) of Gaussians, one for each cluster, with one covariance.

    They are fitted by expectation maximisation, from the clusters and from random ones. None, if
    kernels around the rows have the higher density of rows left out: then the clusters are not of
    this form. The last entry of the logits is added to the product of the first with a row.
    """
    size, dim = int(labels.max()) + 1, points.shape[1]
    stream = np.random.RandomState(0)
    order = stream.permutation(len(points))[:GAUSSIAN_ROWS]
    points, shares, labels = points[order], weights[order] / weights[order].sum(), labels[order]
    n_free = size * (dim + 1) - 1 + dim * (dim + 1) // 2
    spare = len(points) - n_free - 1
    if size == 1 or spare <= 0:
        return None
    starts = [labels]
    for _ in range(GAUSSIAN_STARTS):
        seeds, _ = kmeans_plusplus(points, size, sample_weight=shares, random_state=stream)
        starts.append(nearest(points, seeds, 1)[:, 0])
    fits = [_gaussians(points, shares, np.eye(size)[start]) for start in starts]
    logits, log_density = max(fits, key=lambda fit: float(shares @ fit[1]))
    few = points[:KERNEL_ROWS]
    width = leave_one_out(few)
    squares = squareform(pdist(few, "sqeuclidean")) / width**2
    np.fill_diagonal(squares, np.inf)
    kernels = logsumexp(-0.5 * squares, 1).mean() - np.log(len(few) - 1)
    kernels -= dim * np.log(width * np.sqrt(2 * np.pi))
    # Akaike's correction for the rows that the Gaussians were fitted to.
    return logits if log_density[: len(few)].mean() - n_free / spare > kernels else None


def _gaussians(
    points: FloatArray, shares: FloatArray, parts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the logits of Gaussians from these responsibilities on, and their log-density."""
    dim, last = points.shape[1], -np.inf
    total = (points.T * shares) @ points
    for _ in range(GAUSSIAN_STEPS):
        masses = shares @ parts + 1e-300
        means = (parts.T * shares) @ points / masses[:, None]
        within = total - (means.T * masses) @ means
        within += 1e-9 * np.trace(total) / dim * np.eye(dim)
        precision = np.linalg.inv(within)
        logits = np.vstack(
            [
                precision @ means.T,
                np.log(masses) - 0.5 * np.einsum("kd,de,ke->k", means, precision, means),
            ]
        )
        scores = points @ logits[:-1] + logits[-1]
        sums = logsumexp(scores, 1)
        parts = np.exp(scores - sums[:, None])
        log_density = sums - 0.5 * np.einsum("nd,de,ne->n", points, precision, points)
        log_density -= 0.5 * (np.linalg.slogdet(within)[1] + dim * np.log(2 * np.pi))
        gain, last = shares @ log_density - last, shares @ log_density
        if gain < 1e-6:
            break
    return logits, log_density
