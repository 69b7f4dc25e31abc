"""The choice of a partition: modes in few dimensions, separation from a null in more."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from scipy.cluster.hierarchy import cut_tree
from scipy.sparse import diags_array
from scipy.special import ndtr, ndtri
from scipy.stats import rankdata
from scipy.stats import t as student

from isthmus.cluster.apart import DENSITY_DIM, DENSITY_ROWS, FEWEST_ROWS, apart, spread_out
from isthmus.cluster.partition import (
    RESOLUTIONS,
    FloatArray,
    Graph,
    IntArray,
    Path,
    merge_tree,
)
from isthmus.cluster.retrieval_graph import LEARNING_ROWS, Memories, basins, components, nearest
from isthmus.compiled import compiled

if TYPE_CHECKING:
    from isthmus.cluster.basin_flow import BasinFlow

# Starts of each minimisation: a budget of computation.
STARTS = 3
# Partitions have at most this many clusters per memory: six rows show that they belong together.
LARGEST_SHARE = 1 / 6
# Columns with fewer values than one for so many rows are discrete, and so are those of the null.
REPEATED = 5
# Standard errors between the statistics of this draw and of others, largest first.
REDRAWS = ndtri((np.arange(21) + 0.5) / 21)[::-1]

# The masses of the clusters of a partition, and the log-flow out of each over its chance.
Cut = tuple[FloatArray, FloatArray]


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
    seed = int(generator.randint(2**31))
    given = model.resolution is not None or model.n_clusters is not None
    alphas = np.full(1, model.alpha) if given else ndtr(ndtri(model.alpha) + REDRAWS)
    middle = len(alphas) // 2  # alpha itself
    groups = apart(table, weights, alphas, seed)
    rotation = components(table, weights, generator, groups[middle])
    points = table @ rotation
    memories = model._remember(points, weights, np.random.RandomState(seed))
    gammas = RESOLUTIONS
    if model.resolution is not None:
        gammas = np.append(RESOLUTIONS[model.resolution < RESOLUTIONS], float(model.resolution))
    path = lowest_path(memories.graph, gammas, seed)
    # More for few rows, whose partitions vary more.
    count = 20 if len(points) < 500 else 10 if len(points) < 2000 else 5

    def null(groups: IntArray) -> tuple[FloatArray, list[list[Cut]]]:
        """Return log-energies (count, G) and cuts of draws that are unimodal in each group."""
        draw, energies, cuts = Unimodal(table, weights, groups, model._categories), [], []
        for place in range(count):
            stream = np.random.RandomState((seed + 1 + place) % 2**32)
            rows, masses = draw(stream)
            graph = model._remember(rows @ rotation, masses, stream).graph
            found = graph.path(gammas, seed)
            energies.append(np.log(found.energies))
            cuts.append(_cuts(graph, found))
        return np.array(energies), cuts

    energies, null_cuts = null(np.zeros_like(groups[middle]))
    cuts = _cuts(memories.graph, path)
    possible = np.array([len(masses) > 0 for masses, _ in cuts])
    own = np.log(np.maximum(path.energies, 1e-9))
    gaps = energies.mean(0) - own
    curve = {
        "resolution": gammas,
        "n_clusters": path.sizes.astype(float),
        "gap": np.where(possible, gaps, np.nan),
    }
    gap = float(gaps[possible].max(initial=0.0))

    def choice(found: Any, reason: str, gamma: float = np.nan, gap: float = gap) -> Choice:
        found = [np.unique(each, return_inverse=True)[1] for each in found]
        return Choice(rotation, memories, found[middle], gamma, gap, curve, reason, found)

    if model.n_clusters is not None:
        labels, gamma = _with_count(memories, path, gammas, model.n_clusters, seed)
        return choice([labels], "n_clusters", gamma)
    if model.resolution is not None:
        return choice(path.labels[-1:], "resolution", float(model.resolution))
    in_groups = groups[:, nearest(memories.patterns, points, 1)[:, 0]]
    if points.shape[1] == 1 or len(points) < FEWEST_ROWS:
        return choice(in_groups, "modes")
    if points.shape[1] <= DENSITY_DIM:
        return choice(_modes(table, rotation, memories.patterns, groups, alphas, seed), "modes")
    accepted = possible & (_excess(cuts, null_cuts, alphas) > np.log(model.min_separation))
    if groups[middle].any() and accepted.any():  # and it is more than the groups that are apart
        others = null(groups[middle])[0]
        accepted &= others.mean(0) - own > _chance(others.std(0, ddof=1), alphas, count)
    allowed = np.where(accepted, gaps, -np.inf)
    errors = energies.std(0, ddof=1) * np.sqrt(1 + 1 / count)
    least = allowed.max(1) - errors[allowed.argmax(1)]
    best = np.argmax(allowed >= least[:, None], 1)  # the finest
    found = np.where(accepted.any(1)[:, None], path.labels[best], in_groups)
    if accepted[middle].any():
        place = best[middle]
        return choice(found, "gap", float(gammas[place]), float(gaps[place]))
    return choice(found, "modes" if in_groups[middle].any() else "gap")


def _chance(spread: FloatArray, alphas: FloatArray, count: int) -> FloatArray:
    """Return by how much one more draw exceeds the mean of `count` at each level. (levels, G)"""
    return np.outer(student.ppf(1 - alphas, count - 1), np.sqrt(1 + 1 / count) * spread)


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
    excess: FloatArray = own - others.mean(0) - _chance(spread, alphas, len(null))
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
        columns = []
        for own, spread in zip(table.T, spread_out(table, np.random.RandomState(0)).T, strict=True):
            values = np.unique(own)
            discrete = values if REPEATED * len(values) <= len(own) else values[:0]
            columns.append((*_unimodal(spread, weights), discrete))
        return weights, scores, columns

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
    points, spread = table[kept] @ rotation, spread_out(table[kept], stream) @ rotation
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
