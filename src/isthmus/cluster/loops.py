"""The compiled loops of BasinFlow, which a first fit imports.

The energy of a partition z of nodes with flows W (which add up to 1) and masses pi at resolution
gamma is the modularity of Reichardt and Bornholdt (2006) up to sign and a constant,

    E(z) = sum_ij W_ij [z_i != z_j] + gamma sum_c (sum_{i in c} pi_i)^2,

and is lowered by the moves of Louvain (Blondel et al. 2008).
"""

# mypy: disallow-untyped-defs=False
from __future__ import annotations

import numpy as np

from isthmus.compiled import compiled


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
    """Number labels from 0, in place; return their number."""
    names = np.unique(labels)
    labels[:] = np.searchsorted(names, labels)
    return len(names)


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
def minimise(indptr, indices, weights, masses, labels, gamma, rounds, seed):
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
def climbed(order, points, links, squares, k, least):
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
