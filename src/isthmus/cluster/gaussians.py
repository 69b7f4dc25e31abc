"""Posteriors of clusters as Gaussians with one covariance, where rows have that form."""

from __future__ import annotations

import numpy as np
from scipy.spatial.distance import pdist, squareform
from scipy.special import logsumexp, softmax
from sklearn.cluster import kmeans_plusplus

from isthmus.bandwidth import leave_one_out
from isthmus.cluster.retrieval_graph import FloatArray, IntArray, nearest

# Budgets of computation: rows of both densities, iterations, and starts beside the clusters.
GAUSSIAN_ROWS, KERNEL_ROWS, GAUSSIAN_STEPS, GAUSSIAN_STARTS = 5000, 1000, 300, 10


def gaussian_posteriors(points: FloatArray, logits: FloatArray) -> FloatArray:
    """Return the probability of each Gaussian. (n, d), (d + 1, K) -> (n, K)"""
    posteriors: FloatArray = softmax(points @ logits[:-1] + logits[-1], axis=1)
    return posteriors


def gaussian_logits(points: FloatArray, weights: FloatArray, labels: IntArray) -> FloatArray | None:
    """Return the logits (d + 1, K) of Gaussians, one for each cluster, with one covariance.

    They are fitted by expectation maximisation, from the clusters and from random ones. None, if
    kernels around the rows have the higher density of rows left out: then the clusters are not of
    this form. The last entry of the logits is added to the product of the first with a row.
    """
    size, dim = int(labels.max()) + 1, points.shape[1]
    stream = np.random.RandomState(0)
    order = stream.permutation(len(points))[:GAUSSIAN_ROWS]
    points, shares, labels = points[order], weights[order] / weights[order].sum(), labels[order]
    n_free = size * (dim + 1) - 1 + dim * (dim + 1) // 2
    spare = len(points) - n_free - 1
    if size == 1 or spare <= 0:
        return None
    starts = [labels]
    for _ in range(GAUSSIAN_STARTS):
        seeds, _ = kmeans_plusplus(points, size, sample_weight=shares, random_state=stream)
        starts.append(nearest(points, seeds, 1)[:, 0])
    fits = [_gaussians(points, shares, np.eye(size)[start]) for start in starts]
    logits, log_density = max(fits, key=lambda fit: float(shares @ fit[1]))
    few = points[:KERNEL_ROWS]
    width = leave_one_out(few)
    squares = squareform(pdist(few, "sqeuclidean")) / width**2
    np.fill_diagonal(squares, np.inf)
    kernels = logsumexp(-0.5 * squares, 1).mean() - np.log(len(few) - 1)
    kernels -= dim * np.log(width * np.sqrt(2 * np.pi))
    # Akaike's correction for the rows that the Gaussians were fitted to.
    return logits if log_density[: len(few)].mean() - n_free / spare > kernels else None


def _gaussians(
    points: FloatArray, shares: FloatArray, parts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the logits of Gaussians from these responsibilities on, and their log-density."""
    dim, last = points.shape[1], -np.inf
    total = (points.T * shares) @ points
    for _ in range(GAUSSIAN_STEPS):
        masses = shares @ parts + 1e-300
        means = (parts.T * shares) @ points / masses[:, None]
        within = total - (means.T * masses) @ means
        within += 1e-9 * np.trace(total) / dim * np.eye(dim)
        precision = np.linalg.inv(within)
        logits = np.vstack(
            [
                precision @ means.T,
                np.log(masses) - 0.5 * np.einsum("kd,de,ke->k", means, precision, means),
            ]
        )
        scores = points @ logits[:-1] + logits[-1]
        sums = logsumexp(scores, 1)
        parts = np.exp(scores - sums[:, None])
        log_density = sums - 0.5 * np.einsum("nd,de,ne->n", points, precision, points)
        log_density -= 0.5 * (np.linalg.slogdet(within)[1] + dim * np.log(2 * np.pi))
        gain, last = shares @ log_density - last, shares @ log_density
        if gain < 1e-6:
            break
    return logits, log_density
