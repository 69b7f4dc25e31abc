"""The shape of a table: a Gaussian with a covariance or with factors, learned in spite of gaps."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from sklearn.utils.extmath import randomized_svd

FloatArray = NDArray[np.float64]
Mask = NDArray[np.bool_]
# Maps residuals (n, D), zero where unknown, to the mean of every cell given the known ones.
Regression = Callable[[FloatArray], FloatArray]

# Tables with more columns have a shape made of factors.
MOST_FULL_COLUMNS = 64
# Covariances of columns shrink by this share times columns over rows.
SHRINKAGE = 0.01
ROUNDS, ROUNDS_FROM_START = 6, 2
# Entries of the matrices of a block of rows.
BLOCK_ENTRIES = 2**21
SMALLEST_VARIANCE = 1e-6
# Pseudo-counts: of loadings of 0, and of a noise of one hundredth.
LOADING_COUNT, NOISE_COUNT, NOISE_SUM = 15.0, 2.0, 0.02
# At most so many factors, each of some rows, and so many multiplications in a round of learning.
MOST_FACTORS, FACTORS_A_ROW, MOST_WORK = 48, 0.7, 4e9


def blocks(count: int, width: int) -> Iterator[slice]:
    """Yield slices of rows that hold about `BLOCK_ENTRIES` entries, `width` each."""
    size = max(BLOCK_ENTRIES // max(width, 1), 16)
    return (slice(start, min(start + size, count)) for start in range(0, count, size))


@dataclass(frozen=True)
class Covariance:
    """A Gaussian with mean (D,) and covariance (D, D)."""

    mean: FloatArray
    covariance: FloatArray

    @property
    def width(self) -> int:
        """Entries that a row takes while it is regressed."""
        return 2 * len(self.mean) ** 2

    def precisions(self, known: Mask, ridge: float = 0.0) -> tuple[FloatArray, NDArray[np.intp]]:
        """Return the inverse covariance of the known columns of each pattern, and each row's."""
        packed = np.packbits(known, axis=1)
        _, first, place = np.unique(packed, axis=0, return_index=True, return_inverse=True)
        patterns, diagonal = known[first], np.arange(len(self.mean))
        inverses = np.where(patterns[:, :, None] & patterns[:, None, :], self.covariance, 0.0)
        inverses[:, diagonal, diagonal] += np.where(
            patterns, ridge * self.covariance.diagonal(), 1.0
        )
        inverses = np.linalg.inv(inverses)
        inverses[:, diagonal, diagonal] *= patterns
        return inverses, place.reshape(-1)

    def regression(self, known: Mask, ridge: float) -> Regression:
        """Return the map from known to all cells for rows with known cells (n, D)."""
        inverses, place = self.precisions(known, ridge)
        if len(inverses) == 1:
            return lambda residuals: residuals @ (inverses[0] @ self.covariance)
        own = inverses[place]
        return lambda residuals: (residuals[:, None, :] @ own)[:, 0] @ self.covariance

    def improved(self, Z: FloatArray, known: Mask, weights: FloatArray) -> Covariance:
        """Run a round of expectation maximisation on rows (n, D)."""
        filled, doubt = np.empty_like(Z), np.zeros_like(self.covariance)
        order = np.lexsort(np.packbits(known, axis=1).T)
        for rows in (order[block] for block in blocks(len(Z), self.width)):
            inverses, place = self.precisions(known[rows])
            shares = np.bincount(place, weights[rows], minlength=len(inverses))
            total = np.tensordot(shares, inverses, 1)
            doubt += shares.sum() * self.covariance - self.covariance @ total @ self.covariance
            residuals = np.where(known[rows], Z[rows] - self.mean, 0.0)
            means = (residuals[:, None, :] @ inverses[place])[:, 0] @ self.covariance
            filled[rows] = np.where(known[rows], Z[rows], means + self.mean)
        return _moments(filled, weights, doubt)


@dataclass(frozen=True)
class Factors:
    """A Gaussian with mean (D,), loadings (D, k) of k factors, and the rest as noise (D,)."""

    mean: FloatArray
    loadings: FloatArray
    noise: FloatArray

    @property
    def width(self) -> int:
        """Entries that a row takes while it is regressed."""
        return 2 * self.loadings.shape[1] ** 2 + 2 * len(self.mean)

    def spreads(self, known: Mask, noise: FloatArray) -> FloatArray:
        """Return the covariances of the factors given the known cells. (n, k, k)"""
        count = self.loadings.shape[1]
        outer = self.loadings[:, :, None] * (self.loadings / noise[:, None])[:, None, :]
        inverses = (known.astype(np.float64) @ outer.reshape(len(noise), -1)).reshape(
            -1, count, count
        )
        inverses[:, np.arange(count), np.arange(count)] += 1
        return np.asarray(np.linalg.inv(inverses), dtype=np.float64)

    def regression(self, known: Mask, ridge: float) -> Regression:
        """Return the map from known to all cells for rows with known cells (n, D)."""
        variances = np.square(self.loadings).sum(1) + self.noise
        noise = self.noise + ridge * variances
        spreads, scaled = self.spreads(known, noise), self.loadings / noise[:, None]
        return lambda residuals: (
            ((residuals @ scaled)[:, None, :] @ spreads)[:, 0] @ self.loadings.T
        )

    def improved(self, Z: FloatArray, known: Mask, weights: FloatArray) -> Factors:
        """Run a round of expectation maximisation."""
        (count, dim), factors = Z.shape, self.loadings.shape[1]
        scores = np.empty((count, factors))
        moments, doubts = np.zeros((2, dim, factors * factors))
        residuals = np.where(known, Z - self.mean, 0.0)
        scaled = self.loadings / self.noise[:, None]
        for block in blocks(count, self.width):
            spreads = self.spreads(known[block], self.noise)
            own = ((residuals[block] @ scaled)[:, None, :] @ spreads)[:, 0]
            scores[block] = own
            seen = (known[block] * weights[block, None]).T
            flat = spreads.reshape(len(own), -1)
            doubt = seen @ flat
            doubts += doubt
            moments += doubt + seen @ (own[:, :, None] * own[:, None, :]).reshape(len(own), -1)
        matrices = moments.reshape(dim, factors, factors)
        matrices[:, np.arange(factors), np.arange(factors)] += LOADING_COUNT * self.noise[:, None]
        target = (residuals * weights[:, None]).T @ scores
        loadings = np.linalg.solve(matrices, target[:, :, None])[:, :, 0]
        left = np.where(known, residuals - scores @ loadings.T, 0.0)
        unsure = (doubts.reshape(dim, factors, factors) @ loadings[:, :, None])[:, :, 0]
        seen_weight = weights @ known
        squares = weights @ np.square(left) + (unsure * loadings).sum(1)
        noise = (squares + NOISE_SUM) / (seen_weight + NOISE_COUNT)
        mean = self.mean + weights @ left / np.maximum(seen_weight, 1.0)
        return Factors(mean, loadings, np.maximum(noise, 1e-4))


Shape = Covariance | Factors


def learn_shape(Z: FloatArray, weights: FloatArray, start: Shape | None = None) -> Shape:
    """Learn a covariance, or factors if there are many columns, from rows (n, D) with gaps."""
    count, dim = Z.shape
    known, shape = ~np.isnan(Z), start
    if shape is None and dim > MOST_FULL_COLUMNS:
        most = min(FACTORS_A_ROW * min(count, dim), np.sqrt(MOST_WORK / (count * dim)))
        factors = int(np.clip(most, 1, MOST_FACTORS))
        scaled = np.where(known, Z, 0.0) * np.sqrt(weights / weights.sum())[:, None]
        _, values, vectors = randomized_svd(scaled, factors, random_state=0)
        shape = Factors(np.zeros(dim), vectors.T * values, np.full(dim, 0.5))
    shape = shape or _chained(Z, weights)
    for _ in range(ROUNDS_FROM_START if start else ROUNDS):
        shape = shape.improved(Z, known, weights)
    return shape


def linear_fill(shape: Shape, Z: FloatArray) -> FloatArray:
    """Fill the gaps of rows (n, D) with their means given the known cells."""
    filled, known = Z.copy(), ~np.isnan(Z)
    places = np.flatnonzero(~known.all(1))
    for rows in (places[block] for block in blocks(len(places), shape.width)):
        residuals = np.where(known[rows], Z[rows] - shape.mean, 0.0)
        means = shape.mean + shape.regression(known[rows], 0.0)(residuals)
        filled[rows] = np.where(known[rows], Z[rows], means)
    return filled


def _chained(Z: FloatArray, weights: FloatArray) -> Covariance:
    """Return moments of rows (n, D) whose columns are filled in turn by regression on others."""
    # Rows far from all others, if filled with means at first, would pull the covariances of a
    # column to 0, and expectation maximisation would not recover.
    gaps = np.isnan(Z)
    filled = np.where(gaps, 0.0, Z)
    for place in np.argsort(gaps.sum(0), kind="stable"):
        unknown = gaps[:, place]
        if 0 < unknown.sum() < len(Z):
            shape = _moments(filled[~unknown], weights[~unknown])
            others = np.arange(Z.shape[1]) != place
            system = shape.covariance[np.ix_(others, others)]
            slopes = np.linalg.solve(system, shape.covariance[others, place])
            residuals = filled[unknown][:, others] - shape.mean[others]
            filled[unknown, place] = shape.mean[place] + residuals @ slopes
    return _moments(filled, weights)


def _moments(
    filled: FloatArray, weights: FloatArray, doubt: FloatArray | float = 0.0
) -> Covariance:
    """Return mean and shrunk covariance of rows (n, D) whose own covariances sum to `doubt`."""
    count, dim = filled.shape
    mean = weights @ filled / weights.sum()
    centred = filled - mean
    scatter = (doubt + (weights[:, None] * centred).T @ centred) / weights.sum()
    shrink = min(0.5, SHRINKAGE * (dim + 1) / count)
    scatter -= shrink * (scatter - np.diag(scatter.diagonal()))
    scatter[np.diag_indices(dim)] += SMALLEST_VARIANCE
    return Covariance(mean, scatter)
