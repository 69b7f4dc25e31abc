"""The choice of a resolution: the gap between the energy of the data and that of one memory."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
from scipy.cluster.hierarchy import cut_tree
from scipy.sparse import diags_array

from isthmus.cluster.partition import FloatArray, Graph, IntArray, Path, flux_ratios, merge_tree
from isthmus.cluster.retrieval_graph import Memories, Recollection, basins

# The resolutions that are compared, finest first.
RESOLUTIONS = np.geomspace(6.0, 0.03, 16)
# A gap below these is none: to a Gaussian, and to the other nulls where the first is weak.
LEAST_GAP, LEAST_OTHER_GAP = 0.07, 0.05
WEAK_GAP = 0.3
# Energies of null draws vary at least this much, in nats.
LEAST_DEVIATION = 0.03
# Among resolutions whose gaps differ less than this, the finest is chosen.
NEAR_TIE = 0.02
# Partitions have at most this many clusters per memory.
LARGEST_SHARE = 1 / 6
# Up to this dimension, densities can be estimated, and clusters must be modes.
DENSITY_DIM = 3
DENSITY_ROWS = 5000
RESTARTS = 5

Remember = Callable[[FloatArray, FloatArray, np.random.RandomState], Memories]
Draw = Callable[[np.random.RandomState], FloatArray]


class Choice(NamedTuple):
    """A partition of the memories and the evidence for it."""

    memories: Memories
    labels: IntArray
    resolution: float
    gap: float
    curve: dict[str, FloatArray]


def n_nulls(n_rows: int) -> int:
    """Return the number of null draws: more for few rows, whose energies vary more."""
    return 20 if n_rows < 500 else 10 if n_rows < 2000 else 5 if n_rows <= 5000 else 3


def draw_gaussian(n: int, deviations: FloatArray, generator: Any) -> FloatArray:
    """Draw rows of one memory with these deviations."""
    points: FloatArray = generator.normal(size=(n, len(deviations)))
    return points * deviations


def draw_uniform(n: int, deviations: FloatArray, generator: Any) -> FloatArray:
    """Draw rows that are uniform in an ellipsoid with these deviations."""
    dim = len(deviations)
    points: FloatArray = generator.normal(size=(n, dim))
    radii = generator.uniform(size=(n, 1)) ** (1 / dim) * np.sqrt(dim + 2)
    return points * radii / np.linalg.norm(points, axis=1, keepdims=True) * deviations


def choose(
    points: FloatArray,
    weights: FloatArray,
    remember: Remember,
    generator: np.random.RandomState,
    resolution: float | None = None,
    n_clusters: int | None = None,
    shuffled: Draw | None = None,
) -> Choice:
    """Partition the rows at the resolution with the largest gap, or at the one given.

    `shuffled` draws rows whose columns are those of the data, each in an order of its own: a null
    with the tails of the data.
    """
    seed = int(generator.randint(2**31))
    memories = remember(points, weights, np.random.RandomState(seed))
    deviations = np.sqrt(np.average(np.square(points), axis=0, weights=weights))
    gammas = RESOLUTIONS
    if resolution is not None:
        gammas = np.sort(np.append(RESOLUTIONS, resolution))[::-1]
    path = memories.graph.path(gammas, seed)

    def null_energies(rows: Draw, count: int) -> FloatArray:
        draws = []
        for draw in range(count):
            stream = np.random.RandomState((seed + 1 + draw) % 2**32)
            graph = remember(rows(stream), stream.permutation(weights), stream).graph
            draws.append(np.log(graph.path(gammas, seed).energies))
        return np.array(draws)

    count = n_nulls(len(points))
    null = null_energies(partial(draw_gaussian, len(points), deviations), count)
    log_energies = np.log(np.maximum(path.energies, 1e-9))
    gaps = null.mean(0) - log_energies
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
        labels, chosen = _with_count(memories, path, gammas, n_clusters, seed)
        return Choice(memories, labels, chosen, gap, curve)
    if resolution is not None:
        place = int(np.flatnonzero(gammas == resolution)[0])
        return Choice(memories, path.labels[place], resolution, gap, curve)
    labels = np.zeros(len(memories.patterns), dtype=np.int64)
    chosen = float(gammas[best])
    if gap > LEAST_GAP and _stands_out(gaps, null):
        others = [partial(draw_uniform, len(points), deviations), shuffled]
        levels = [
            null_energies(rows, max(count // 2, 2))[:, best].mean()
            for rows in others
            if rows is not None and gap < WEAK_GAP
        ]
        if all(level - log_energies[best] > LEAST_OTHER_GAP for level in levels):
            labels = _lowest(memories, path, best, gammas, seed)
            labels = _joined_by_mode(points, memories, labels, generator)
    return Choice(memories, labels, chosen, gap, curve)


def one_cluster(points: FloatArray, weights: FloatArray) -> Choice:
    """Return the partition of rows that are all equal."""
    loops = Graph.of(diags_array(weights))
    memories = Memories(points, weights / weights.mean(), len(points), loops)
    empty = np.zeros(0)
    curve = {"resolution": empty, "n_clusters": empty, "gap": empty}
    return Choice(memories, np.zeros(len(points), dtype=np.int64), 1.0, 0.0, curve)


def _stands_out(gaps: FloatArray, null: FloatArray) -> bool:
    """Return whether some gap, over its deviation, exceeds what null draws reach on any scale."""
    if len(null) < 10:
        return True
    deviations = null.std(0, ddof=1) + LEAST_DEVIATION
    others = (null.sum(0) - null) / (len(null) - 1)
    reached = ((others - null) / deviations).max(1)
    return bool((gaps / deviations).max() > reached.mean() + 3 * reached.std())


def _lowest(memories: Memories, path: Path, place: int, gammas: FloatArray, seed: int) -> IntArray:
    """Return the partition of the lowest energy among several starts."""
    graph, gamma = memories.graph, float(gammas[place])
    found = [path.labels[place]]
    for start in range(RESTARTS):
        again = graph.path(gammas[: place + 1], (seed + 1 + start) % 2**31).labels[-1]
        found.append(graph.lowered(again, gamma))
    return min(found, key=lambda labels: graph.energy(labels, gamma))


def _joined_by_mode(
    points: FloatArray, memories: Memories, labels: IntArray, generator: np.random.RandomState
) -> IntArray:
    """Join clusters that share a mode of the density, where its dimension permits an estimate."""
    if points.shape[1] > DENSITY_DIM:
        return labels
    if len(points) > DENSITY_ROWS:
        points = points[generator.permutation(len(points))[:DENSITY_ROWS]]
    size = int(labels.max()) + 1
    basin = basins(points, 0.75 + 3 / np.sqrt(len(points)))
    owners = Recollection.of(points, *memories[:3]).labels(labels)
    shared = np.zeros((size, basin.max() + 1))
    np.add.at(shared, (owners, basin), 1)
    joined: IntArray = np.unique(shared.argmax(1), return_inverse=True)[1]
    return joined[labels]


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


def without_small(memories: Memories, labels: IntArray, sizes: Any, least: float) -> IntArray:
    """Join each cluster below the least size to the one it exchanges most flow with."""
    sizes = sizes.copy()
    while len(sizes) > 1 and sizes.min() < least:
        small = int(sizes.argmin())
        ratios = flux_ratios(memories.graph.flow(labels))[small]
        ratios[small] = -1.0
        other = int(ratios.argmax())
        labels = np.where(labels == small, other, labels)
        sizes[other] += sizes[small]
        labels = labels - (labels > small)
        sizes = np.delete(sizes, small)
    return labels
