"""The graph of leave-one-out retrieval, from each pattern to those it recalls; its partitions."""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array, eye_array
from scipy.special import logsumexp
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors
from sklearn.utils import gen_batches
from sklearn.utils.extmath import randomized_svd

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# A query at this squared distance from a pattern, over its squared length, is that pattern.
ROUNDING = 1e-26
# The entropy of a retrieval is the logarithm of this share of its neighbours.
FLATNESS = 0.6
# Steps of the bisection for it: numerical precision; and rows at once, which fit the cache.
SEARCH_STEPS, BLOCK_ROWS = 60, 4096
# Patterns recalled by a row: few, since a cluster of fewer rows cannot be found; and memories.
ROW_NEIGHBOURS, MEMORY_NEIGHBOURS = 15, 10
# Budgets of computation: the rows that clusters are found on, and up to which each is a memory; the
# memories that are learned from more, and the iterations of that.
LEARNING_ROWS, STORED_ROWS, LEARNED_MEMORIES, LEARNING_STEPS = 10_000, 5000, 1500, 10
# Principal components keep this share of the variance, and are at least and at most so many.
KEPT_VARIANCE, FEWEST_COMPONENTS, MOST_COMPONENTS = 0.9, 3, 50
EXACT_COMPONENTS = 1000
# The resolutions that are compared, finest first; two digits, so that they can be typed.
RESOLUTIONS = np.array([6, 4.2, 3, 2.1, 1.5, 1, 0.72, 0.51, 0.36, 0.25, 0.18, 0.12])
RESOLUTIONS = np.append(RESOLUTIONS, [0.087, 0.061, 0.043, 0.03])
# Flux between clusters below this share of its chance value counts as this.
LEAST_FLUX = 1e-9


class Path(NamedTuple):
    """Partitions (G, n) at G resolutions, their numbers of clusters (G,) and energies (G,)."""

    labels: IntArray
    sizes: IntArray
    energies: FloatArray


class Graph(NamedTuple):
    """A symmetric graph in compressed rows, its weights scaled to a sum of 1."""

    indptr: IntArray
    indices: IntArray
    weights: FloatArray
    masses: FloatArray

    @classmethod
    def of(cls, matrix: Any) -> Graph:
        """Convert a sparse symmetric matrix."""
        matrix = csr_array(matrix)
        weights = matrix.data / matrix.data.sum()
        masses = np.add.reduceat(weights, matrix.indptr[:-1])
        return cls(matrix.indptr.astype(np.int64), matrix.indices.astype(np.int64), weights, masses)

    def path(self, gammas: FloatArray, seed: int) -> Path:
        """Minimise the energy at falling resolutions, from single nodes on."""
        from isthmus.cluster.loops import minimise

        labels, found = np.arange(len(self.masses)), []
        for place, gamma in enumerate(gammas):
            minimise(*self, labels, gamma, 2, seed + place)
            found.append(labels.copy())
        energies = [self.energy(each, gamma) for each, gamma in zip(found, gammas, strict=True)]
        return Path(np.array(found), np.array(found).max(1) + 1, np.array(energies))

    def energy(self, labels: IntArray, gamma: float) -> float:
        """Return the energy of a partition (see :mod:`isthmus.cluster.loops`)."""
        leaves = np.repeat(labels, np.diff(self.indptr)) != labels[self.indices]
        totals = np.bincount(labels, self.masses)
        return float(self.weights[leaves].sum() + gamma * totals @ totals)

    def flow(self, labels: IntArray) -> FloatArray:
        """Return the flow between clusters, both directions added to each entry's half. (K, K)"""
        size = int(labels.max()) + 1
        places = np.repeat(labels, np.diff(self.indptr)) * size + labels[self.indices]
        between: FloatArray = np.bincount(places, self.weights, size * size).astype(np.float64)
        return between.reshape(size, size)


def flux_ratios(flow: FloatArray) -> FloatArray:
    """Return the flow between clusters over its value by chance, pi_a pi_b. (K, K)"""
    masses = flow.sum(1)
    ratios: FloatArray = flow / np.outer(masses, masses)
    return ratios


def merge_tree(flow: FloatArray, resolution: float) -> FloatArray:
    """Return the tree that joins the pair of clusters with the highest flux ratio first.

    As in a linkage of scipy: a row for each merge, its height log(resolution / flux ratio). Falling
    below that resolution, the energy prefers the two clusters joined.
    """
    size = len(flow)
    flow = flow.copy()
    names, leaves = np.arange(size), np.ones(size)
    tree = np.empty((max(size - 1, 0), 4))
    height = 0.0
    for merge in range(size - 1):
        ratios = np.triu(flux_ratios(flow), 1)
        a, b = divmod(int(ratios.argmax()), len(flow))
        if ratios[a, b] == 0:
            a, b = 0, 1
        height = max(height, float(np.log(resolution / max(ratios[a, b], LEAST_FLUX))))
        tree[merge] = (*sorted((names[a], names[b])), height, leaves[a] + leaves[b])
        flow[a] += flow[b]
        flow[:, a] += flow[:, b]
        flow = np.delete(np.delete(flow, b, 0), b, 1)
        names[a], leaves[a] = size + merge, tree[merge, 3]
        names, leaves = np.delete(names, b), np.delete(leaves, b)
    return tree


def nearest(queries: FloatArray, patterns: FloatArray, k: int, others: bool = False) -> IntArray:
    """Return the places of the k nearest patterns, without a query's own place if `others`."""
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(patterns)
    places: IntArray = search.kneighbors(None if others else queries, return_distance=False)
    return places


def recall(
    queries: FloatArray, patterns: FloatArray, weights: FloatArray, k: int, others: bool = False
) -> tuple[csr_array, IntArray]:
    """Return the shares (n, M), and the entry of each query's match within its row, or -1."""
    neighbours, logs = nearest(queries, patterns, k, others), np.log(weights)
    parts = [
        _recalled(queries[some], patterns, neighbours[some], logs[neighbours[some]])
        for some in gen_batches(len(queries), BLOCK_ROWS)
    ]
    shares, matches = map(np.concatenate, zip(*parts, strict=True))
    places = np.arange(0, neighbours.size + 1, k)
    shape = len(queries), len(patterns)
    return csr_array((shares.ravel(), neighbours.ravel(), places), shape), matches


def _recalled(
    queries: FloatArray, patterns: FloatArray, neighbours: IntArray, logs: FloatArray
) -> tuple[FloatArray, IntArray]:
    """Return the shares (q, k) of neighbours with log-weights, and the places of matches or -1."""
    gaps = np.stack([np.square(queries - patterns[each]).sum(1) for each in neighbours.T], 1)
    lowest = gaps.min(1, keepdims=True)
    is_stored = lowest[:, 0] <= ROUNDING * np.square(queries).sum(1)
    gaps -= lowest
    mean, target = gaps.mean(1, keepdims=True), np.log(max(FLATNESS * gaps.shape[1], 1.0))
    beta = 1 / np.where(mean > 0, mean, 1.0)
    smallest, largest = 0 * beta, beta + np.inf
    for _ in range(SEARCH_STEPS):
        logits = logs - beta * gaps
        total = logsumexp(logits, axis=1, keepdims=True)
        shares = np.exp(logits - total)
        excess = total + beta * (shares * gaps).sum(1, keepdims=True) - target
        wrong = np.abs(excess) >= 1e-4
        if not wrong.any():
            break
        smallest = np.where(excess > 0, beta, smallest)
        largest = np.where(excess > 0, largest, beta)
        moved = np.where(np.isinf(largest), 2 * beta, (smallest + largest) / 2)
        beta = np.where(wrong, moved, beta)
    return shares, np.where(is_stored, gaps.argmin(1), -1)


class Memories(NamedTuple):
    """Stored patterns (M, d), their weights (M,), the neighbours of a query, and the graph."""

    patterns: FloatArray
    weights: FloatArray
    k: int
    graph: Graph

    @classmethod
    def of(
        cls,
        points: FloatArray,
        weights: FloatArray,
        size: Any = "all",
        generator: np.random.RandomState | None = None,
    ) -> Memories:
        """Store every row, or learn memories: a number of them, or as many as "auto" takes."""
        if size == "auto":
            size = "all" if len(points) <= STORED_ROWS else LEARNED_MEMORIES
        if size == "all" or size >= len(points):
            weights = weights / weights.mean()
            k = min(ROW_NEIGHBOURS, max(len(points) // 3, 1))
            steps = diags_array(weights) @ recall(points, points, weights, k, others=True)[0]
            return cls(points, weights, k, Graph.of(steps + steps.T))
        assert generator is not None
        starts = points[generator.permutation(len(points))[:size]]
        means = KMeans(size, init=starts, n_init=1, max_iter=LEARNING_STEPS, tol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # some rows have equal components
            patterns = means.fit(points, sample_weight=weights).cluster_centers_
        k, alike = min(MEMORY_NEIGHBOURS, len(patterns)), np.ones(len(patterns))
        shares, _ = recall(points, patterns, alike, k)
        return cls(patterns, alike, k, Graph.of(shares.T @ (diags_array(weights) @ shares)))


def leaving(flow: FloatArray) -> FloatArray:
    """Return the flow out of each cluster over its value by chance. (K,)"""
    masses = flow.sum(1)
    with np.errstate(invalid="ignore"):
        return np.asarray((masses - flow.diagonal()) / (masses * (1 - masses)))


def relative_cut(memories: Memories, labels: IntArray, seed: int) -> float:
    """Return how many times easier a group is cut than left, beside half a line; the largest value.

    What flows across a cut is divided by its value by chance in the graph that is cut. No part has
    fewer patterns than a query recalls; infinite if no group has enough for two. A half of mass m
    of a uniform line has 4 (1 - m). The other groups may consist of several clusters.
    """
    graph, least = memories.graph, memories.k
    half_a_link = 0.5 / len(graph.weights)
    flow = graph.flow(labels)
    matrix = csr_array((graph.weights, graph.indices, graph.indptr))
    ratios = []
    for number, left in enumerate(leaving(flow)):
        rows = np.flatnonzero(labels == number)
        # Loops, for rows that recall none of their own cluster.
        inside = Graph.of(matrix[rows][:, rows] + 1e-12 * eye_array(len(rows)))
        cuts = [np.inf]
        for each in inside.path(RESOLUTIONS, seed).labels if len(rows) >= 2 * least else ():
            sizes = np.bincount(each)
            cuts += [*leaving(inside.flow(each))[np.minimum(sizes, len(rows) - sizes) >= least]]
        if min(cuts) < np.inf:
            line = 4 * (1 - flow[number].sum())
            ratios.append(max(min(cuts), half_a_link) / max(left, half_a_link) / line)
    return float(max(ratios, default=np.inf))


def recollection(
    queries: FloatArray, patterns: FloatArray, weights: FloatArray, k: int
) -> csr_array:
    """Return the share of each pattern in the retrieval of each query. (n, M)

    A query that is a stored pattern recalls itself with share 1/2, and the others as in the graph:
    it stays in its cluster, and what it shares with other clusters remains visible.
    """
    shares, matches = recall(queries, patterns, weights, k)
    stored = np.flatnonzero(matches >= 0)
    entries = stored * k + matches[stored]
    rest = 1 - shares.data[entries]
    # The excess avoids a tie if all the others are in another cluster.
    shares.data[entries] = np.where(rest > 0, rest + 1e-6, 1.0)
    return shares


def cluster_shares(shares: csr_array, labels: IntArray) -> FloatArray:
    """Return the share of each cluster of patterns. (n, K)"""
    members = csr_array((np.ones(len(labels)), labels, np.arange(len(labels) + 1)))
    masses: FloatArray = (shares @ members).toarray()
    return masses / masses.sum(1, keepdims=True)


def components(
    table: FloatArray,
    generator: np.random.RandomState,
    weights: FloatArray | None = None,
    groups: IntArray | None = None,
) -> FloatArray:
    """Return the map (D, d) from centred rows to components, in units of deviations in groups."""
    weights = np.ones(len(table)) if weights is None else weights
    shares = weights / weights.sum()
    groups = np.zeros(len(table), dtype=np.int64) if groups is None else groups
    # By powers of two, which change no digit: squares of tiny columns would vanish.
    units = np.ldexp(1.0, np.maximum(np.frexp(np.abs(table).max(0))[1], -1000))
    table = table / units
    members = (groups == np.unique(groups)[:, None]) * shares
    means = (members @ table) / members.sum(1, keepdims=True)
    within = table - means[np.unique(groups, return_inverse=True)[1]]
    deviations, total = (np.sqrt(shares @ np.square(each)) for each in (within, table))
    deviations = np.where(deviations > 1e-9 * total, deviations, total)
    varies = np.ptp(table, axis=0) > 0
    scale = np.zeros(table.shape[1])
    scale[varies] = 1 / deviations[varies]
    scaled = table * scale * np.sqrt(shares)[:, None]
    if scaled.shape[1] <= min(EXACT_COMPONENTS, len(scaled)):
        variances, vectors = np.linalg.eigh(scaled.T @ scaled)
        variances, directions = variances[::-1], vectors.T[::-1]
    else:
        _, sizes, directions = (
            randomized_svd(scaled, MOST_COMPONENTS, random_state=generator.randint(2**31))
            if min(scaled.shape) > EXACT_COMPONENTS
            else np.linalg.svd(scaled, full_matrices=False)
        )
        variances = sizes**2
    within *= scale * np.sqrt(shares)[:, None]
    kept = np.cumsum(np.square(within @ directions[:MOST_COMPONENTS].T).sum(0))
    count = int(np.searchsorted(kept, KEPT_VARIANCE * np.square(within).sum())) + 1
    least = min(FEWEST_COMPONENTS, int(np.sum(variances > 1e-12 * variances.sum())))
    directions = directions[: min(max(count, least), MOST_COMPONENTS)]
    rotation: FloatArray = (scale / units * directions).T
    return rotation
