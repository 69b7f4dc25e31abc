"""The graph of leave-one-out retrieval: from each pattern to the patterns that it recalls."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import warnings
from typing import NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, diags_array
from scipy.spatial import cKDTree
from scipy.special import ndtri
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from sklearn.neighbors import NearestNeighbors
from sklearn.utils.extmath import randomized_svd

from isthmus.cluster.partition import FloatArray, Graph, IntArray
from isthmus.compiled import compiled

# A query at this squared distance from a pattern, over its squared length, is that pattern.
ROUNDING = 1e-26
# The entropy of a retrieval is the logarithm of this share of its neighbours.
FLATNESS = 0.6
# Patterns recalled by a row: few, since a cluster of fewer rows cannot be found; and memories.
ROW_NEIGHBOURS, MEMORY_NEIGHBOURS = 15, 10
# A density is judged by the rows in balls of this many: smaller modes are not found, and those of
# much fewer would not be significant. Modes are joined along the links to so many neighbours.
DENSITY_NEIGHBOURS, MODE_LINKS = 25, 10
# Memories are learned from at most this many rows, in this many iterations.
LEARNING_ROWS, LEARNING_STEPS = 30_000, 10

# Principal components keep this share of the variance, and are at least and at most so many.
KEPT_VARIANCE, FEWEST_COMPONENTS, MOST_COMPONENTS = 0.9, 3, 50
EXACT_COMPONENTS = 1000


@compiled
def _recall(queries, patterns, log_weights, neighbours, target):
    """Return the softmax of entropy `target` over neighbours, and the place of a match or -1."""
    n, k = neighbours.shape
    shares = np.empty((n, k))
    matches = np.full(n, -1)
    gaps = np.empty(k)
    for i in range(n):
        lowest, mean, square = np.inf, 0.0, 0.0
        for d in range(queries.shape[1]):
            square += queries[i, d] ** 2
        for t in range(k):
            gaps[t] = 0.0
            for d in range(queries.shape[1]):
                gaps[t] += (queries[i, d] - patterns[neighbours[i, t], d]) ** 2
            if gaps[t] < lowest:
                lowest = gaps[t]
                if lowest <= ROUNDING * square:
                    matches[i] = t
        for t in range(k):
            gaps[t] -= lowest
            mean += gaps[t] / k
        beta = 1.0 / mean if mean > 0 else 1.0
        smallest, largest = 0.0, np.inf
        for _ in range(60):
            top = -np.inf
            for t in range(k):
                shares[i, t] = log_weights[neighbours[i, t]] - beta * gaps[t]
                top = max(top, shares[i, t])
            total, spread = 0.0, 0.0
            for t in range(k):
                shares[i, t] = np.exp(shares[i, t] - top)
                total += shares[i, t]
                spread += shares[i, t] * beta * gaps[t]
            for t in range(k):
                shares[i, t] /= total
            entropy = np.log(total) + top + spread / total
            if abs(entropy - target) < 1e-4:
                break
            if entropy > target:
                smallest = beta
                beta = 2 * beta if largest == np.inf else (beta + largest) / 2
            else:
                largest = beta
                beta = (beta + smallest) / 2
    return shares, matches


@compiled
def _basins(order, points, links, squares, k, least):
    """Return the basin of each point, climbed in this order.

    Two basins meet midway between two linked points. If the ball there with the radius of the k
    neighbours of the lower peak is not emptier by `least`, in square roots of counts, they join.
    """
    n, dim = points.shape
    root, rank = np.full(n, -1), np.empty(n, dtype=np.int64)
    apart = {(-1, -1)}
    for place, i in enumerate(order):
        rank[i], root[i] = place, i
        for j in links[i]:
            a, b = j, i
            if root[a] < 0:
                continue
            while root[a] != a:
                a = root[a]
            while root[b] != b:
                b = root[b]
            if rank[a] > rank[b]:
                a, b = b, a
            if a == b or (a, b) in apart:
                continue
            count = 0
            if b != i:
                for other in range(n):
                    square = 0.0
                    for d in range(dim):
                        square += (points[other, d] - (points[i, d] + points[j, d]) / 2) ** 2
                    count += square <= squares[b]
            if b == i or np.sqrt(k) - np.sqrt(count) < least:
                root[b] = a
            else:
                apart.add((a, b))
    for i in order:
        root[i] = root[root[i]]
    return root


def nearest(queries: FloatArray, patterns: FloatArray, k: int, others: bool = False) -> IntArray:
    """Return the places of the k nearest patterns, without a query's own place if `others`."""
    search = NearestNeighbors(n_neighbors=k, algorithm="brute").fit(patterns)
    places: IntArray = search.kneighbors(None if others else queries, return_distance=False)
    return places


def recall(
    queries: FloatArray, patterns: FloatArray, weights: FloatArray, k: int, others: bool = False
) -> tuple[csr_array, IntArray]:
    """Return the shares (n, M), and the entry of each query's match within its row, or -1."""
    neighbours = nearest(queries, patterns, k, others)
    target = np.log(max(FLATNESS * k, 1.0))
    shares, matches = _recall(queries, patterns, np.log(weights), neighbours, target)
    places = np.arange(0, neighbours.size + 1, k)
    shape = len(queries), len(patterns)
    return csr_array((shares.ravel(), neighbours.ravel(), places), shape), matches


def row_neighbours(n_rows: int) -> int:
    """Return how many other rows a row recalls; at most a third of the rows."""
    return min(ROW_NEIGHBOURS, max(n_rows // 3, 1))


class Memories(NamedTuple):
    """Stored patterns (M, d), their weights (M,), the neighbours of a query, and the graph."""

    patterns: FloatArray
    weights: FloatArray
    k: int
    graph: Graph

    @classmethod
    def of_rows(cls, points: FloatArray, weights: FloatArray) -> Memories:
        """Store every row."""
        weights = weights / weights.mean()
        k = row_neighbours(len(points))
        steps = diags_array(weights) @ recall(points, points, weights, k, others=True)[0]
        return cls(points, weights, k, Graph.of(steps + steps.T))

    @classmethod
    def learned(
        cls, points: FloatArray, weights: FloatArray, size: int, generator: np.random.RandomState
    ) -> Memories:
        """Store the means of a few iterations of k-means; rows link the memories they recall."""
        if len(points) > LEARNING_ROWS:
            kept = generator.permutation(len(points))[:LEARNING_ROWS]
            points, weights = points[kept], weights[kept]
        starts = points[generator.permutation(len(points))[:size]]
        means = KMeans(size, init=starts, n_init=1, max_iter=LEARNING_STEPS, tol=0)
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)  # some rows have equal components
            patterns = means.fit(points, sample_weight=weights).cluster_centers_
        k = min(MEMORY_NEIGHBOURS, len(patterns))
        shares, _ = recall(points, patterns, np.ones(len(patterns)), k)
        graph = Graph.of(shares.T @ (diags_array(weights) @ shares))
        return cls(patterns, np.ones(len(patterns)), k, graph)


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


def basins(points: FloatArray, alphas: ArrayLike) -> list[IntArray]:
    """Return the basin of each point in a nearest-neighbour density, at each level.

    Basins are joined as in ToMATo (Chazal et al. 2013), unless the saddle has fewer points than
    the peak by more than chance allows: the square root of a Poisson count has the standard error
    1/2 in any dimension, the difference of two that of 2^-1/2, and any of n/k balls may be a peak.
    """
    n = len(points)
    k = min(DENSITY_NEIGHBOURS, max(n // 3, 1))
    distances, neighbours = cKDTree(points).query(points, k + 1)
    squares = np.square(distances[:, 1:])
    order = np.argsort(squares.mean(1), kind="stable")
    links = neighbours[:, 1 : MODE_LINKS + 1]
    reach = squares[:, -1] * (1 + 1e-9)
    errors = -ndtri(np.asarray(alphas) * k / n) / np.sqrt(2)
    roots = [_basins(order, points, links, reach, k + 1, least) for least in errors]
    return [np.unique(each, return_inverse=True)[1] for each in roots]


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
