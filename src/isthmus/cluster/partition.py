"""Partitions of a weighted graph: compiled local moves with aggregation, and trees of merges.

The energy of a partition z of nodes with flows W (which add up to 1) and masses pi at resolution
gamma is the modularity of Reichardt and Bornholdt (2006) up to sign and a constant,

    E(z) = sum_ij W_ij [z_i != z_j] + gamma sum_c (sum_{i in c} pi_i)^2,

and is lowered by the moves of Louvain (Blondel et al. 2008).
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

from isthmus.compiled import compiled

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
# The resolutions that are compared, finest first; two digits, so that they can be typed.
RESOLUTIONS = np.array([6, 4.2, 3, 2.1, 1.5, 1, 0.72, 0.51, 0.36, 0.25, 0.18, 0.12])
RESOLUTIONS = np.append(RESOLUTIONS, [0.087, 0.061, 0.043, 0.03])
# Flux between clusters below this share of its chance value counts as this.
LEAST_FLUX = 1e-9


@compiled
def _moves(indptr, indices, weights, masses, labels, gamma):
    """Move nodes between neighbouring clusters until no move lowers the energy; count moves."""
    n = len(masses)
    totals = np.zeros(n)
    for i in range(n):
        totals[labels[i]] += masses[i]
    queue = np.random.permutation(n)  # noqa: NPY002
    waiting = np.ones(n, dtype=np.bool_)
    linked = np.zeros(n)
    touched = np.empty(n, dtype=np.int64)
    head, length, moved, visits = 0, n, 0, 0
    while length > 0 and visits < 100 * n:
        i = queue[head]
        head = (head + 1) % n
        length -= 1
        visits += 1
        waiting[i] = False
        own, mass, count = labels[i], masses[i], 0
        for place in range(indptr[i], indptr[i + 1]):
            j = indices[place]
            if j == i:
                continue
            c = labels[j]
            if linked[c] == 0.0:
                touched[count] = c
                count += 1
            linked[c] += weights[place]
        totals[own] -= mass
        best = own
        # A tie is no reason to move.
        gain = 2 * linked[own] - gamma * mass * (2 * totals[own] + mass) + 1e-13
        for t in range(count):
            c = touched[t]
            value = 2 * linked[c] - gamma * mass * (2 * totals[c] + mass)
            if value > gain:
                gain, best = value, c
            linked[c] = 0.0
        totals[best] += mass
        if best != own:
            labels[i] = best
            moved += 1
            for place in range(indptr[i], indptr[i + 1]):
                j = indices[place]
                if not waiting[j] and labels[j] != best:
                    waiting[j] = True
                    queue[(head + length) % n] = j
                    length += 1
    return moved


@compiled
def _renumber(labels):
    """Number labels from 0 in order of first appearance, in place; return their number."""
    names = np.full(labels.max() + 1, -1)
    count = 0
    for i in range(len(labels)):
        if names[labels[i]] < 0:
            names[labels[i]] = count
            count += 1
        labels[i] = names[labels[i]]
    return count


@compiled
def _aggregate(indptr, indices, weights, masses, labels, size):
    """Return the graph of clusters; weights within a cluster become a loop."""
    n = len(masses)
    starts = np.zeros(size + 1, dtype=np.int64)
    for i in range(n):
        starts[labels[i] + 1] += 1
    starts = np.cumsum(starts)
    members, fill = np.empty(n, dtype=np.int64), starts[:-1].copy()
    for i in range(n):
        members[fill[labels[i]]] = i
        fill[labels[i]] += 1
    new_indptr = np.zeros(size + 1, dtype=np.int64)
    new_indices = np.empty(len(indices), dtype=np.int64)
    new_weights, new_masses = np.empty(len(indices)), np.zeros(size)
    linked, touched = np.zeros(size), np.empty(size, dtype=np.int64)
    end = 0
    for c in range(size):
        count = 0
        for member in range(starts[c], starts[c + 1]):
            i = members[member]
            new_masses[c] += masses[i]
            for place in range(indptr[i], indptr[i + 1]):
                other = labels[indices[place]]
                if linked[other] == 0.0:
                    touched[count] = other
                    count += 1
                linked[other] += weights[place]
        for t in range(count):
            new_indices[end], new_weights[end] = touched[t], linked[touched[t]]
            linked[touched[t]] = 0.0
            end += 1
        new_indptr[c + 1] = end
    return new_indptr, new_indices[:end], new_weights[:end], new_masses


@compiled
def _minimise(indptr, indices, weights, masses, labels, gamma, rounds, seed):
    """Lower the energy of a partition in place: moves of nodes, then of clusters, repeatedly."""
    # The stream of compiled code, not the global one of NumPy.
    np.random.seed(seed)  # noqa: NPY002
    for _ in range(rounds):
        moved = _moves(indptr, indices, weights, masses, labels, gamma)
        size = _renumber(labels)
        graph = _aggregate(indptr, indices, weights, masses, labels, size)
        while True:
            coarse = np.arange(size)
            joined = _moves(graph[0], graph[1], graph[2], graph[3], coarse, gamma)
            if joined == 0:
                break
            moved += joined
            size = _renumber(coarse)
            for i in range(len(labels)):
                labels[i] = coarse[labels[i]]
            graph = _aggregate(graph[0], graph[1], graph[2], graph[3], coarse, size)
        if moved == 0:
            break
    return size


@compiled
def _energy(indptr, indices, weights, masses, labels, gamma):
    escape, totals = 0.0, np.zeros(len(masses))
    for i in range(len(masses)):
        totals[labels[i]] += masses[i]
        for place in range(indptr[i], indptr[i + 1]):
            if labels[indices[place]] != labels[i]:
                escape += weights[place]
    return escape + gamma * (totals * totals).sum()


@compiled
def _path(indptr, indices, weights, masses, gammas, seed, rounds):
    """Minimise at falling resolutions, each starting from the partition before."""
    labels = np.arange(len(masses))
    found = np.empty((len(gammas), len(masses)), dtype=np.int64)
    sizes, energies = np.empty(len(gammas), dtype=np.int64), np.empty(len(gammas))
    for g in range(len(gammas)):
        sizes[g] = _minimise(indptr, indices, weights, masses, labels, gammas[g], rounds, seed + g)
        found[g] = labels
        energies[g] = _energy(indptr, indices, weights, masses, labels, gammas[g])
    return found, sizes, energies


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

    def path(self, gammas: FloatArray, seed: int, rounds: int = 2) -> Path:
        """Minimise the energy at falling resolutions, from single nodes on."""
        return Path(*_path(*self, np.ascontiguousarray(gammas), seed, rounds))

    def energy(self, labels: IntArray, gamma: float) -> float:
        """Return the energy of a partition whose labels are below the number of nodes."""
        return float(_energy(*self, labels, gamma))

    def flow(self, labels: IntArray) -> FloatArray:
        """Return the flow between clusters, both directions added to each entry's half. (K, K)"""
        ones = np.ones(len(labels))
        members = csr_array((ones, labels, np.arange(len(labels) + 1)))
        matrix = csr_array((self.weights, self.indices, self.indptr))
        between: FloatArray = (members.T @ (matrix @ members)).toarray()
        return between


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
