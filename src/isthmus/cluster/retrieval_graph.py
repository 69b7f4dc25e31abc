"""The graph of leave-one-out retrieval: from each pattern to the patterns that it recalls."""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array, diags_array

from isthmus.cluster.partition import FloatArray, Graph, IntArray, compiled

# Entries of one block of distances.
BLOCK_ENTRIES = 2**21
# The entropy of a retrieval is the logarithm of this share of its neighbours.
FLATNESS = 0.6
# Patterns recalled by a row: among all other rows, or among fewer memories.
ROW_NEIGHBOURS, MEMORY_NEIGHBOURS = 40, 10
# Memories are learned from at most this many rows, in this many iterations.
LEARNING_ROWS, LEARNING_STEPS = 30_000, 10
# Above this many rows, neighbours are approximate if pynndescent is installed.
EXACT_ROWS = 50_000


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
    """Return the softmax over the neighbours of each query whose entropy is `target`."""
    n, k = neighbours.shape
    shares = np.empty((n, k))
    gaps = np.empty(k)
    for i in range(n):
        lowest, mean = np.inf, 0.0
        for t in range(k):
            gaps[t] = 0.0
            for d in range(queries.shape[1]):
                gaps[t] += (queries[i, d] - patterns[neighbours[i, t], d]) ** 2
            lowest = min(lowest, gaps[t])
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
    return shares


@compiled
def _basins(order, density, neighbours, prominence):
    """Return the basin of each point; modes that rise less above a saddle join the higher one."""
    root = np.full(len(order), -1)
    for i in order:
        root[i] = i
        for t in range(neighbours.shape[1]):
            a, b = neighbours[i, t], i
            if root[a] < 0:
                continue
            while root[a] != a:
                a = root[a]
            while root[b] != b:
                b = root[b]
            if density[a] < density[b]:
                a, b = b, a
            if a != b and density[b] - density[i] < prominence:
                root[b] = a
                root[i] = a
    for i in order:
        root[i] = root[root[i]]
    return root


def nearest(queries: FloatArray, patterns: FloatArray, k: int, others: bool = False) -> IntArray:
    """Return the places of the k nearest patterns, without a query's own place if `others`."""
    if others and len(queries) > EXACT_ROWS and (found := _approximate(queries, k)) is not None:
        return found
    single = patterns.astype(np.float32)
    squares = np.einsum("nd,nd->n", single, single)
    places = np.zeros((len(queries), k), dtype=np.int64)
    size = max(BLOCK_ENTRIES // len(patterns), 1)
    for start in range(0, len(queries), size):
        block = queries[start : start + size].astype(np.float32)
        distances = squares - 2 * (block @ single.T)
        if others:
            rows = np.arange(len(block))
            distances[rows, rows + start] = np.inf
        _smallest(distances, places[start : start + size])
    return places


def _approximate(points: FloatArray, k: int) -> IntArray | None:
    """Return approximate neighbours among the points, or None without pynndescent."""
    try:
        from pynndescent import NNDescent
    except ImportError:
        return None
    places = NNDescent(points, n_neighbors=k + 1, random_state=0).neighbor_graph[0]
    found = np.empty((len(points), k), dtype=np.int64)
    for i, row in enumerate(places):
        found[i] = row[row != i][:k]
    return found


def recall(
    queries: FloatArray, patterns: FloatArray, weights: FloatArray, k: int, others: bool = False
) -> csr_array:
    """Return the share of each of k patterns in the retrieval of each query. (n, M)"""
    neighbours = nearest(queries, patterns, k, others)
    target = np.log(max(FLATNESS * k, 1.0))
    shares = _recall(queries, patterns, np.log(weights), neighbours, target)
    places = np.arange(0, neighbours.size + 1, k)
    return csr_array((shares.ravel(), neighbours.ravel(), places), (len(queries), len(patterns)))


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
        k = min(ROW_NEIGHBOURS, len(points) - 1)
        steps = diags_array(weights) @ recall(points, points, weights, k, others=True)
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
        shares = recall(points, patterns, np.ones(len(patterns)), k)
        graph = Graph.of(shares.T @ (diags_array(weights) @ shares))
        return cls(patterns, np.ones(len(patterns)), k, graph)

    def retrieved(self, queries: FloatArray, labels: IntArray) -> FloatArray:
        """Return the mass that each query retrieves from each cluster of memories. (n, K)"""
        return retrieved(queries, self.patterns, self.weights, self.k, labels)


def retrieved(
    queries: FloatArray, patterns: FloatArray, weights: FloatArray, k: int, labels: IntArray
) -> FloatArray:
    """Return the mass that each query retrieves from each cluster of patterns. (n, K)"""
    members = csr_array((np.ones(len(labels)), labels, np.arange(len(labels) + 1)))
    shares: FloatArray = (recall(queries, patterns, weights, k) @ members).toarray()
    return shares / shares.sum(1, keepdims=True)


def basins(points: FloatArray, prominence: float) -> IntArray:
    """Return the basin of each point in a nearest-neighbour estimate of the log-density.

    Modes are joined as in ToMATo (Chazal et al. 2013), up to a prominence in nats.
    """
    n, dim = points.shape
    k = min(max(round(1.5 * np.sqrt(n)), 10), n - 1)
    neighbours = nearest(points, points, k, others=True)
    squares = np.zeros(n)
    for t in range(k):
        squares += np.square(points - points[neighbours[:, t]]).sum(1) / k
    density = -dim / 2 * np.log(squares + 1e-300)
    roots = _basins(np.argsort(-density, kind="stable"), density, neighbours, prominence)
    found: NDArray[np.int64] = np.unique(roots, return_inverse=True)[1]
    return found
