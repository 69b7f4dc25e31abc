"""The choice of a partition: modes in few dimensions, separation from a null in more."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
from scipy.cluster.hierarchy import cut_tree
from scipy.optimize import isotonic_regression
from scipy.sparse import diags_array
from scipy.special import ndtr, ndtri
from scipy.stats import chi2_contingency, kruskal, rankdata
from scipy.stats import t as student
from scipy.stats.contingency import crosstab

from isthmus.cluster.apart import (
    DENSITY_DIM,
    FEWEST_ROWS,
    continuous,
    grouped,
    modes,
    splits,
)
from isthmus.cluster.retrieval_graph import (
    RESOLUTIONS,
    FloatArray,
    Graph,
    IntArray,
    Memories,
    Path,
    components,
    merge_tree,
    nearest,
)

if TYPE_CHECKING:
    from isthmus.cluster.basin_flow import BasinFlow

# Starts of each minimisation: a budget of computation.
STARTS = 3
# Partitions have at most this many clusters per memory: six rows show that they belong together.
LARGEST_SHARE = 1 / 6
# Columns with fewer values than one for so many rows are discrete, and so are those of the null.
REPEATED = 5
# Standard errors between the statistics of this draw and of others that are as likely.
REDRAWS = ndtri((np.arange(21) + 0.5) / 21)


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
    model: BasinFlow, table: FloatArray, weights: FloatArray, generator: np.random.RandomState
) -> Choice:
    """Partition centred rows (n, D) by the rule of BasinFlow."""
    table = without_independent(table, model._categories, model.alpha)
    if not np.ptp(table, axis=0).any():
        return one_cluster(table, weights)
    seed = int(generator.randint(2**31))
    alpha, alphas = model.alpha, ndtr(ndtri(model.alpha) + REDRAWS)
    spread, places = continuous(table, weights, seed)
    first = np.unique(places, return_index=True)[1]
    whole = np.zeros(len(spread), dtype=np.int64)
    found = splits(table, spread, alphas.max(), seed)
    groups = grouped(found, alpha, whole)[first]
    rotation = components(table, generator, weights, groups)
    points = table @ rotation
    stream = np.random.RandomState(seed)
    memories = Memories.of(points, weights, model.n_memories, stream)
    gammas = RESOLUTIONS
    if model.resolution is not None:
        gammas = np.append(RESOLUTIONS[model.resolution < RESOLUTIONS], float(model.resolution))
    path = lowest_path(memories.graph, gammas, seed)
    possible = (path.sizes > 1) & (path.sizes <= LARGEST_SHARE * len(memories.patterns))
    is_given = model.n_clusters is not None or model.resolution is not None
    is_low, count = points.shape[1] <= DENSITY_DIM, 5
    if not (is_given or is_low):  # the gap decides, and partitions of few rows vary more
        count = 20 if len(table) < 500 else 10 if len(table) < 2000 else 5
    energies = np.empty((count, len(gammas)))
    draw = unimodal(table, weights, groups, model._categories)
    for number in range(count):
        draws = np.random.RandomState((seed + 1 + number) % 2**32)
        rows, masses = draw(draws)
        graph = Memories.of(rows @ rotation, masses, model.n_memories, draws).graph
        energies[number] = np.log(graph.path(gammas, seed).energies)
    gaps = energies.mean(0) - np.log(np.maximum(path.energies, 1e-9))
    curve = {
        "resolution": gammas,
        "n_clusters": path.sizes.astype(float),
        "gap": np.where(possible, gaps, np.nan),
    }
    largest = float(gaps[possible].max(initial=0.0))
    if is_given:
        reason, gamma, labels = "resolution", gammas[-1], path.labels[-1]
        if model.n_clusters is not None:
            labels, gamma = _with_count(memories.graph, path, gammas, model.n_clusters, seed)
            reason = "n_clusters"
        return Choice(
            rotation, memories, labels, float(gamma), largest, curve, reason, labels[None]
        )
    owners = first[nearest(memories.patterns, points, 1)[:, 0]]
    errors = energies.std(0, ddof=1) * np.sqrt(1 + 1 / len(energies))
    is_few = points.shape[1] == 1 or len(spread) < FEWEST_ROWS

    def decided(level: float) -> tuple[IntArray, int | None]:
        """Return the partition at this level, and its place among the resolutions if it has one."""
        groups, place = grouped(found, level, whole), None
        if is_low and not is_few:
            groups = modes(spread @ rotation, groups, level)
        elif not is_few:
            chance = student.ppf(1 - level, len(energies) - 1) * errors
            accepted = possible & (gaps > np.maximum(chance, np.log(model.min_separation)))
            if accepted.any():
                allowed = np.where(accepted, gaps, -np.inf)
                best = int(allowed.argmax())
                place = int(np.argmax(allowed >= allowed[best] - errors[best]))  # the finest
        if place is not None:
            return path.labels[place], place
        return np.unique(groups[owners], return_inverse=True)[1], None

    labels, place = decided(alpha)
    redraws = [decided(each)[0] for each in alphas]
    reason = "modes" if place is None and (is_low or labels.any()) else "gap"
    gamma, gap = (np.nan, largest) if place is None else (float(gammas[place]), float(gaps[place]))
    return Choice(rotation, memories, labels, gamma, gap, curve, reason, redraws)


def without_independent(table: FloatArray, blocks: Sequence[slice], level: float) -> FloatArray:
    """Return rows whose categories are 0 if, at this level, they depend on no other column.

    They say nothing about clusters. `blocks` are the columns of each category. The tests are those
    of Kruskal and Wallis beside a column, and of chi-square beside another category.
    """
    table = table.copy()
    codes = [np.unique(table[:, block], axis=0, return_inverse=True)[1] for block in blocks]
    others = np.delete(table, [place for block in blocks for place in np.r_[block]], axis=1).T
    numbers = [column for column in others if np.ptp(column)]
    for place, (block, code) in enumerate(zip(blocks, codes, strict=True)):
        order, ends = np.argsort(code, kind="stable"), np.bincount(code).cumsum()[:-1]
        beside = [each for each in codes[:place] + codes[place + 1 :] if each.any()]
        if code.any() and (numbers or beside):
            levels = [kruskal(*np.split(column[order], ends)).pvalue for column in numbers]
            levels += [chi2_contingency(crosstab(code, each).count).pvalue for each in beside]
            if min(levels) * len(levels) > level:
                table[:, block] = 0
    return table


def unimodal(
    table: FloatArray, weights: FloatArray, groups: IntArray, blocks: Sequence[slice] = ()
) -> Callable[[np.random.RandomState], tuple[FloatArray, FloatArray]]:
    """Return the null: a function that draws rows (n, D) and their weights.

    In each group, columns are unimodal and have the rank correlations of the data. A column has the
    greatest convex minorant of its distribution function below its mode, the middle of the
    shortest half of its values, and the least concave majorant above: data of any unimodal columns,
    skewed or with heavy tails, are as they were. `blocks` of columns, the indicators of one
    category each, have the values of rows, independent of the other columns.
    """
    learned = []
    for group in np.unique(groups):
        own, masses = table[groups == group], weights[groups == group]
        scores = ndtri((rankdata(own, axis=0) - 0.5) / len(own))
        scores /= np.sqrt(len(own)) * np.maximum(scores.std(0), 1e-12)
        if len(own) > own.shape[1]:
            sizes, vectors = np.linalg.eigh(scores.T @ scores)
            scores = (vectors * np.sqrt(np.maximum(sizes, 0))).T
        spread, places = continuous(own, masses, 0)
        copied = (masses / np.bincount(places))[places]
        shapes = [_shape(column, copied) for column in spread.T]
        learned.append((own, masses, scores, shapes))

    def draw(stream: np.random.RandomState) -> tuple[FloatArray, FloatArray]:
        tables, masses = [], []
        for own, given, scores, shapes in learned:
            drawn = ndtr(stream.normal(size=(len(own), len(scores))) @ scores)
            for place, shape in enumerate(shapes):
                drawn[:, place] = np.interp(drawn[:, place], *shape)
                values = np.unique(own[:, place])
                if REPEATED * len(values) <= len(own):
                    middles = (values[1:] + values[:-1]) / 2
                    drawn[:, place] = values[np.searchsorted(middles, drawn[:, place])]
            for block in blocks:
                chosen = stream.choice(len(own), len(own), p=given / given.sum())
                drawn[:, block] = own[chosen, block]
            tables.append(drawn)
            masses.append(stream.permutation(given))
        return np.concatenate(tables), np.concatenate(masses)

    return draw


def _shape(column: FloatArray, weights: FloatArray) -> tuple[FloatArray, FloatArray]:
    """Return knots (shares, values) of a unimodal distribution function."""
    order = np.argsort(column, kind="stable")
    values, masses = column[order], weights[order]
    shares = (np.cumsum(masses) - masses / 2) / masses.sum()
    ends = np.minimum(np.searchsorted(shares, shares + 0.5), len(values) - 1)
    halves = np.where(shares + 0.5 <= shares[-1], values[ends] - values, np.inf)
    first = int(halves.argmin())
    mode = (first + int(ends[first])) // 2
    steps = np.maximum(np.diff(values), 1e-300)
    slopes = np.diff(shares) / steps
    for side, rising in ((slice(0, mode), True), (slice(mode, None), False)):
        if len(slopes[side]):
            fitted = isotonic_regression(slopes[side], weights=steps[side], increasing=rising)
            slopes[side] = fitted.x
    return np.append(shares[0], shares[0] + np.cumsum(slopes * steps)), values


def lowest_path(graph: Graph, gammas: FloatArray, seed: int) -> Path:
    """Return the partition of the lowest energy among several starts at each resolution."""
    starts = [(seed + start * len(RESOLUTIONS)) % 2**31 for start in range(STARTS)]
    paths = [graph.path(gammas, start) for start in starts]
    best = enumerate(np.argmin([path.energies for path in paths], 0))
    chosen = [[field[place] for field in paths[start]] for place, start in best]
    return Path(*map(np.array, zip(*chosen, strict=True)))


def one_cluster(table: FloatArray, weights: FloatArray) -> Choice:
    """Return the partition of rows that are all equal."""
    points, rotation, empty = table[:, :1] * 0, np.zeros((table.shape[1], 1)), np.zeros(0)
    loops = Graph.of(diags_array(weights))
    memories = Memories(points, weights / weights.mean(), len(points), loops)
    curve = dict.fromkeys(("resolution", "n_clusters", "gap"), empty)
    labels = np.zeros(len(points), dtype=np.int64)
    return Choice(rotation, memories, labels, np.nan, 0.0, curve, "gap", [labels])


def _with_count(
    graph: Graph, path: Path, gammas: FloatArray, n_clusters: int, seed: int
) -> tuple[IntArray, float]:
    """Return a partition with this many clusters, and its resolution."""
    if path.sizes[0] < n_clusters:
        gammas = np.geomspace(6.0, 6.0 * 4**15, 16)[::-1]
        path = graph.path(gammas, seed)
    place = int(np.flatnonzero(path.sizes >= n_clusters)[-1])
    labels, chosen = path.labels[place], float(gammas[place])
    if path.sizes[place] > n_clusters:
        tree = merge_tree(graph.flow(labels), chosen)
        labels = cut_tree(tree, n_clusters=n_clusters)[:, 0][labels].astype(np.int64)
    return labels, chosen
