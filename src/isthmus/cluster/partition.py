"""Partitions of a weighted graph: local moves with aggregation, and trees of merges."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array

FloatArray = NDArray[np.float64]
IntArray = NDArray[np.int64]
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
        members = csr_array((np.ones(len(labels)), labels, np.arange(len(labels) + 1)))
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
