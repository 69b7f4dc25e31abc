"""What a tightness of clusters is judged by, before one is chosen."""

from __future__ import annotations

import math

from torch import Tensor

from isthmus.cluster.data import Rows
from isthmus.cluster.restaurant import Clusters, House, seat

__all__ = ["calinski_harabasz", "effective_dimension", "settled"]

ITERATIONS = 20


def settled(rows: Rows, clusters: Clusters, house: House, soft: bool) -> Clusters:
    """Merge and reseat until the evidence stands still."""
    evidence = clusters.log_evidence(house)
    for _ in range(ITERATIONS):
        clusters = seat(rows, clusters.merged(house), house, soft)
        before, evidence = evidence, clusters.log_evidence(house)
        if abs(before - evidence) <= 1e-6 * abs(evidence):
            break
    return clusters


def effective_dimension(rows: Rows) -> float:
    """Participation ratio of the covariance: how many directions share the variance."""
    values = rows.values.double() * rows.weights.double().sqrt()[:, None]
    small = values.T @ values if values.shape[1] <= values.shape[0] else values @ values.T
    spread = float(small.square().sum())
    return float(small.diagonal().sum()) ** 2 / spread if spread > 0 else 1.0


def calinski_harabasz(rows: Rows, clusters: Clusters) -> float:
    """Spread between clusters over spread within, each per degree of freedom."""
    total, size = float(clusters.counts.sum()), len(clusters)
    if size < 2 or total <= size:
        return -math.inf
    square = float(rows.weights.double() @ rows.squares.double())
    means: Tensor = clusters.sums / clusters.masses.clamp(min=1e-300)
    explained = float((clusters.sums * means).sum())
    centre = float(clusters.sums.sum(0).square().sum()) / total
    within = max(square - explained, 1e-12 * square)
    return (explained - centre) / (size - 1) / (within / (total - size))
