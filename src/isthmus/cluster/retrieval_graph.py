"""The graph of leave-one-out retrieval: from each pattern to the patterns that it recalls."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from scipy.sparse import csr_array, diags_array
from scipy.spatial import cKDTree
from scipy.special import ndtri

from isthmus.cluster.partition import FloatArray, Graph, IntArray
from isthmus.compiled import compiled

# Entries of one block of distances.
BLOCK_ENTRIES = 2**21
# A query at this squared distance from a pattern, over its squared length, is that pattern.
ROUNDING = 1e-26
# Patterns with squared lengths above this multiple of the median need double precision.
FAR = 100.0
# The entropy of a retrieval is the logarithm of this share of its neighbours.
FLATNESS = 0.6
# Patterns recalled by a row: few, since a cluster of fewer rows cannot be found; and memories.
ROW_NEIGHBOURS, MEMORY_NEIGHBOURS = 15, 10
# A density is judged by the rows in balls of this many: smaller modes are not found, and those of
# much fewer would not be significant. Modes are joined along the links to so many neighbours.
DENSITY_NEIGHBOURS, MODE_LINKS = 25, 10
# Memories are learned from at most this many rows, in this many iterations.
LEARNING_ROWS, LEARNING_STEPS = 30_000, 10


@compiled
def _smallest(distances, places):
    """Write the places of the smallest entries of each row into `places` (n, k), unordered."""
    k = places.shape[1]
    values = np.empty(k, dtype=distances.dtype)
    for i in range(distances.shape[0]):
        values[:] = np.inf  # a heap with the largest on top
        for j in range(distances.shape[1]):
            value = distances[i, j]
            if value < values[0]:
                hole = 0
                while True:
                    child = 2 * hole + 1
                    if child >= k:
                        break
                    if child + 1 < k and values[child + 1] > values[child]:
                        child += 1
                    if values[child] <= value:
                        break
                    values[hole] = values[child]
                    places[i, hole] = places[i, child]
                    hole = child
                values[hole] = value
                places[i, hole] = j


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
    lengths = np.einsum("nd,nd->n", patterns, patterns)
    # Far from the others, rounded products would not tell near patterns apart.
    far = max(lengths.max(), np.einsum("nd,nd->n", queries, queries).max(initial=0.0))
    kind: Any = np.float32 if far < FAR * np.median(lengths) else np.float64
    kept, squares = patterns.astype(kind), lengths.astype(kind)
    places = np.zeros((len(queries), k), dtype=np.int64)
    size = max(BLOCK_ENTRIES // len(patterns), 1)
    for start in range(0, len(queries), size):
        block = queries[start : start + size].astype(kind)
        distances = squares - 2 * (block @ kept.T)
        if others:
            rows = np.arange(len(block))
            distances[rows, rows + start] = np.inf
        _smallest(distances, places[start : start + size])
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
        patterns = points[generator.permutation(len(points))[:size]]
        for _ in range(LEARNING_STEPS):
            owners = nearest(points, patterns, 1)[:, 0]
            members = csr_array((weights, owners, np.arange(len(points) + 1)), (len(points), size))
            masses = members.sum(0)
            held = masses > 0
            patterns[held] = (members.T @ points)[held] / masses[held, None]
        patterns, masses = patterns[held], masses[held]
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
