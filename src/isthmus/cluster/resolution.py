"""The choice of a partition: modes in few dimensions, separation from a null in more."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np
from diptest import diptest
from scipy.cluster.hierarchy import cut_tree
from scipy.sparse import diags_array
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp, ndtr, ndtri
from scipy.stats import rankdata
from scipy.stats import t as student
from sklearn.cluster import kmeans_plusplus

from isthmus.bandwidth import leave_one_out
from isthmus.cluster.partition import FloatArray, Graph, IntArray, Path, merge_tree
from isthmus.cluster.retrieval_graph import LEARNING_ROWS, Memories, basins, nearest
from isthmus.compiled import compiled

# The resolutions that are compared, finest first; two digits, so that they can be typed.
RESOLUTIONS = np.array([6, 4.2, 3, 2.1, 1.5, 1, 0.72, 0.51, 0.36, 0.25, 0.18, 0.12])
RESOLUTIONS = np.append(RESOLUTIONS, [0.087, 0.061, 0.043, 0.03])
# Partitions have at most this many clusters per memory: six rows show that they belong together.
LARGEST_SHARE = 1 / 6
# Up to this dimension, densities can be estimated, and clusters are their modes. From fewer rows
# than these, they can be in one dimension only.
DENSITY_DIM, FEWEST_ROWS = 3, 30
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

Remember = Callable[[FloatArray, FloatArray, np.random.RandomState], Memories]


class Choice(NamedTuple):
    """A partition of the memories and the evidence for it; the resolution is NaN if it has none."""

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
    rotation: FloatArray,
    weights: FloatArray,
    remember: Remember,
    generator: np.random.RandomState,
    *,
    alpha: float,
    min_separation: float,
    resolution: float | None = None,
    n_clusters: int | None = None,
) -> Choice:
    """Partition rows (n, D), seen through `rotation` (D, d), by the rule of BasinFlow."""
    seed = int(generator.randint(2**31))
    points = table @ rotation
    memories = remember(points, weights, np.random.RandomState(seed))
    gammas = RESOLUTIONS
    if resolution is not None:
        gammas = np.append(RESOLUTIONS[resolution < RESOLUTIONS], resolution)
    path = lowest_path(memories.graph, gammas, seed)
    draw = Unimodal(table, weights)
    energies, null = [], []
    # More for few rows, whose partitions vary more.
    for number in range(20 if len(points) < 500 else 10 if len(points) < 2000 else 5):
        stream = np.random.RandomState((seed + 1 + number) % 2**32)
        rows, masses = draw(stream)
        graph = remember(rows @ rotation, masses, stream).graph
        other = graph.path(gammas, seed)
        energies.append(np.log(other.energies))
        null.append(_cuts(graph, other))
    cuts = _cuts(memories.graph, path)
    possible = np.array([len(masses) > 0 for masses, _ in cuts])
    gaps = np.mean(energies, 0) - np.log(np.maximum(path.energies, 1e-9))
    sizes = path.sizes.astype(float)
    curve = {"resolution": gammas, "n_clusters": sizes, "gap": np.where(possible, gaps, np.nan)}
    gap = float(gaps[possible].max(initial=0.0))
    if n_clusters is not None:
        labels, gamma = _with_count(memories, path, gammas, n_clusters, seed)
        return Choice(memories, labels, gamma, gap, curve, "n_clusters", [labels])
    if resolution is not None:
        labels = path.labels[-1]
        return Choice(memories, labels, resolution, gap, curve, "resolution", [labels])
    apart = _apart(table, rotation, alpha, seed)[nearest(memories.patterns, points, 1)[:, 0]]
    alphas = ndtr(ndtri(alpha) + REDRAWS)
    middle = len(alphas) // 2  # alpha itself
    if points.shape[1] <= DENSITY_DIM or len(points) < FEWEST_ROWS:
        found: Any = _modes(table, rotation, weights, memories.patterns, alphas, seed)
        found = [_refined(labels, apart) for labels in found]
        return Choice(memories, found[middle], np.nan, gap, curve, "modes", found)
    accepted = possible & (_excess(cuts, null, alphas) > np.log(min_separation))
    errors = np.std(energies, 0, ddof=1) * np.sqrt(1 + 1 / len(energies))
    allowed = np.where(accepted, gaps, -np.inf)
    least = allowed.max(1) - errors[allowed.argmax(1)]
    best = np.argmax(allowed >= least[:, None], 1)  # the finest
    found = np.where(accepted.any(1)[:, None], path.labels[best], 0)
    found = [_refined(labels, apart) for labels in found]
    gamma = np.nan
    if accepted[middle].any():
        gamma, gap = float(gammas[best[middle]]), float(gaps[best[middle]])
    return Choice(memories, found[middle], gamma, gap, curve, "gap", found)


def _refined(labels: IntArray, apart: IntArray) -> IntArray:
    """Return clusters split into groups that are apart."""
    return np.unique(labels * (apart.max() + 1) + apart, return_inverse=True)[1]


def _apart(table: FloatArray, rotation: FloatArray, alpha: float, seed: int) -> IntArray:
    r"""Return groups of rows with an empty gap between them in a column or component. (n,)

    Outward from the mode of one column, the distances of neighbouring values grow. So if it has
    one mode, a gap is c times as large as the k-th smallest of the m distances on its outer side
    with a probability of at most that for equal exponential distances,
    :math:`\prod_{j<k} (m - j) / (m - j + c)`. Groups are split while the larger of the two sides'
    probabilities, times the number of gaps that were looked at, is at most `alpha`.
    """
    views = _spread(table, np.random.RandomState(seed))
    views = np.concatenate([views, views @ rotation], 1)
    groups, waiting = np.zeros(len(table), dtype=np.int64), [np.arange(len(table))]
    while waiting:
        rows = waiting.pop()
        levels, borders = zip(*map(_emptiest, views[rows].T), strict=True)
        best = int(np.argmin(levels))
        if levels[best] * len(rows) * len(levels) <= alpha:
            beyond = views[rows, best] > borders[best]
            groups[rows[beyond]] = groups.max() + 1
            waiting += [rows[beyond], rows[~beyond]]
    return groups


def _emptiest(column: FloatArray) -> tuple[float, float]:
    """Return the level of the largest gap with five values on each side, and its middle."""
    values = np.unique(column)
    gaps = np.diff(values)
    if len(gaps) < 9:
        return 1.0, 0.0
    place = 4 + int(gaps[4:-4].argmax())
    levels = []
    for side in (gaps[:place], gaps[place + 1 :]):
        left = len(side) - np.arange(math.ceil(OUTLYING * len(side)))
        ratio = gaps[place] / np.partition(side, len(left) - 1)[len(left) - 1]
        levels.append(float(np.prod(left / (left + ratio))))
    return max(levels), float(values[place : place + 2].mean())


def _spread(table: FloatArray, stream: np.random.RandomState) -> FloatArray:
    """Return columns whose discrete values are what was rounded to them."""
    table = table.copy()
    for column in table.T:
        values = _repeated(column)
        if len(values) > 1:
            column += np.diff(values).min() * stream.uniform(-0.5, 0.5, len(column))
    return table


def _repeated(column: FloatArray) -> FloatArray:
    """Return the values of a discrete column; none if it is not."""
    values = np.unique(column)
    return values if REPEATED * len(values) <= len(column) else values[:0]


def _cuts(graph: Graph, path: Path) -> list[tuple[FloatArray, FloatArray]]:
    """Return, for each partition, the masses of clusters and the log-flow out over its chance.

    Both are empty for one cluster and for too many.
    """
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


def _excess(
    cuts: list[tuple[FloatArray, FloatArray]],
    null: list[list[tuple[FloatArray, FloatArray]]],
    alphas: FloatArray,
) -> FloatArray:
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
            [np.sum(m * (np.polyval(usual, np.log(m * (1 - m))) - flow)) for m, flow in draw]
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
    """The null: unimodal columns with the rank correlations of the data.

    A column has the greatest convex minorant of its distribution function below its mode, the
    middle of the shortest half of its values, and the least concave majorant above: data of any
    unimodal columns, skewed or with heavy tails, are as they were.
    """

    def __init__(self, table: FloatArray, weights: FloatArray) -> None:
        if len(table) > LEARNING_ROWS:
            kept = np.random.RandomState(0).permutation(len(table))[:LEARNING_ROWS]
            table, weights = table[kept], weights[kept]
        self.weights = weights
        scores = ndtri((rankdata(table, axis=0) - 0.5) / len(table))
        scores /= np.sqrt(len(table)) * np.maximum(scores.std(0), 1e-12)
        if len(table) > table.shape[1]:
            sizes, vectors = np.linalg.eigh(scores.T @ scores)
            scores = (vectors * np.sqrt(np.maximum(sizes, 0))).T
        self.scores = scores
        columns = zip(_spread(table, np.random.RandomState(0)).T, table.T, strict=True)
        self.columns = [(*_unimodal(spread, weights), _repeated(own)) for spread, own in columns]

    def __call__(self, stream: np.random.RandomState) -> tuple[FloatArray, FloatArray]:
        """Return rows (n, D) of one draw, and their weights."""
        normal = stream.normal(size=(len(self.weights), len(self.scores)))
        drawn: FloatArray = ndtr(normal @ self.scores)
        for place, (shares, values, distinct) in enumerate(self.columns):
            column = np.interp(drawn[:, place], shares, values)
            if len(distinct):
                column = distinct[np.searchsorted((distinct[1:] + distinct[:-1]) / 2, column)]
            drawn[:, place] = column
        return drawn, stream.permutation(self.weights)


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


def one_cluster(points: FloatArray, weights: FloatArray) -> Choice:
    """Return the partition of rows that are all equal."""
    loops = Graph.of(diags_array(weights))
    memories = Memories(points, weights / weights.mean(), len(points), loops)
    empty = np.zeros(0)
    curve = {"resolution": empty, "n_clusters": empty, "gap": empty}
    labels = np.zeros(len(points), dtype=np.int64)
    return Choice(memories, labels, np.nan, 0.0, curve, "gap", [labels])


def _modes(
    table: FloatArray,
    rotation: FloatArray,
    weights: FloatArray,
    patterns: FloatArray,
    alphas: FloatArray,
    seed: int,
) -> list[IntArray]:
    """Return the mode of the density that each pattern belongs to, at each level."""
    points = table @ rotation
    if points.shape[1] == 1 or len(points) < FEWEST_ROWS:
        borders = _valleys(points[:, 0], weights, alphas)
        return [np.searchsorted(each, patterns[:, 0]) for each in borders]
    stream = np.random.RandomState(seed)
    table = table[stream.permutation(len(table))[:DENSITY_ROWS]]
    points = table @ rotation
    owners = nearest(patterns, points, 1)[:, 0]
    found = basins(_spread(table, stream) @ rotation, alphas)
    return [np.unique(labels[owners], return_inverse=True)[1] for labels in found]


def _valleys(values: FloatArray, weights: FloatArray, alphas: FloatArray) -> list[FloatArray]:
    """Return the borders between modes of one column at falling levels of Hartigan's dip test.

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
    labels = basins(values[:, None], [0.5])[0]
    centres = [np.median(values[labels == number]) for number in range(labels.max() + 1)]
    ranks = np.argsort(np.argsort(centres))[labels]
    # A border has the most values of lower groups below it, and of higher ones above.
    sides = [np.where(ranks < border, -1, 1).cumsum() for border in range(1, len(centres))]
    groups = np.split(values, np.unique([int(side.argmin()) + 1 for side in sides]).astype(int))
    borders = []
    for alpha in alphas:
        while len(groups) > 1:
            levels = [_level(left, right) for left, right in pairwise(groups)]
            place = int(np.argmax(levels))
            if levels[place] <= alpha:
                break
            groups[place : place + 2] = [np.append(groups[place], groups[place + 1])]
        borders.append(np.array([(left[-1] + right[0]) / 2 for left, right in pairwise(groups)]))
    return borders


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
