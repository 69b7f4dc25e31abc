"""Initial memories: k-means++, k-means or random rows."""

from __future__ import annotations

import math
import warnings

import numpy as np
import torch
from sklearn.cluster import KMeans
from sklearn.exceptions import ConvergenceWarning
from torch import Tensor

from isthmus.cluster.data import Rows
from isthmus.logits import distance_logits

__all__ = ["k_means", "k_means_plus_plus", "random_rows"]


def k_means_plus_plus(rows: Rows, n_clusters: int, generator: np.random.RandomState) -> Tensor:
    """Return greedy k-means++ seeds, each the best of a few draws by squared distance. (K, D)"""
    values, weights = rows.values, rows.weights.double()
    trials = 2 + int(math.log(n_clusters))
    first = _draw(weights, 1, generator)
    chosen = [int(first[0])]
    closest = _squared_distances(rows, values[first])[:, 0]
    for _ in range(1, n_clusters):
        potential = weights * closest
        # When every row coincides with a seed, further seeds repeat rows.
        pool = potential if float(potential.sum()) > 0 else weights
        candidates = _draw(pool, trials, generator)
        distances = torch.minimum(closest[:, None], _squared_distances(rows, values[candidates]))
        best = int(torch.argmin(weights.to(distances.dtype) @ distances))
        chosen.append(int(candidates[best]))
        closest = distances[:, best]
    return values[chosen].clone()


def _squared_distances(rows: Rows, points: Tensor) -> Tensor:
    """Return squared distances over known coordinates. (N, D), (k, D) -> (N, k)"""
    logits = distance_logits(rows.values, points, 0.0, 1.0, rows.observed)
    return logits.neg_().add_(rows.squares[:, None]).clamp_(min=0)


def _draw(weights: Tensor, n: int, generator: np.random.RandomState) -> Tensor:
    total = weights.double().cumsum(0)
    where = torch.from_numpy(generator.uniform(size=n)) * total[-1]
    return torch.searchsorted(total, where, right=True).clamp(max=len(total) - 1)


def random_rows(rows: Rows, n_clusters: int, generator: np.random.RandomState) -> Tensor:
    """Return different rows, drawn in proportion to their weights. (K, D)"""
    keys = torch.from_numpy(generator.exponential(size=len(rows))) / rows.weights.double()
    return rows.values[torch.argsort(keys)[:n_clusters]].clone()


def k_means(rows: Rows, seeds: Tensor, max_iter: int = 300) -> tuple[Tensor, float]:
    """Run Lloyd's algorithm from `seeds`; unknown coordinates count as their column mean.

    Returns
    -------
    means : Tensor (K, D)
    inertia : float
    """
    if len(rows) <= len(seeds):  # a memory for every distinct row
        return rows.values[torch.arange(len(seeds)) % len(rows)].clone(), 0.0
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)
        fitted = KMeans(len(seeds), init=seeds.numpy(), n_init=1, max_iter=max_iter).fit(
            rows.values.numpy(), sample_weight=rows.weights.numpy()
        )
    return torch.from_numpy(fitted.cluster_centers_.astype(seeds.numpy().dtype)), fitted.inertia_
