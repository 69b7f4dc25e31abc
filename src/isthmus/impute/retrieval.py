"""Estimates of missing cells from memories: the filled rows of a table, and its shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus.impute.shape import Covariance, FloatArray, Mask, Regression, Shape, blocks

SinglesArray = NDArray[np.float32]

# The bandwidth of a query is this multiple of its distance to this neighbour.
BANDWIDTH, NEIGHBOUR = 0.42, 10
CLOSEST = 1e-6
# What the covariance of the table counts for beside that of a neighbourhood, which is wider; and
# the share of its variances that keeps systems solvable.
LOCAL_PRIOR, LOCAL_WIDER, LOCAL_FLOOR = 0.15, 2.0, 0.0075
TYPICAL_ROWS = 300


@dataclass(frozen=True)
class Queries:
    """A block of rows: known cells less the mean, zero where unknown; distances over `scales`."""

    known: Mask
    residuals: FloatArray
    squared: SinglesArray
    scales: FloatArray


class FilledMemories:
    """Rows to retrieve from, with gaps (m, D) and filled (m, D), a shape and weights (m,)."""

    def __init__(
        self, rows: FloatArray, filled: FloatArray, shape: Shape, weights: FloatArray
    ) -> None:
        self.rows, self.filled, self.shape, self.weights = rows, filled, shape, weights
        self.log_weights = np.log(weights).astype(np.float32)
        self.centred = filled - shape.mean
        self.singles = self.centred.astype(np.float32)
        self.squares = np.square(self.centred).T
        self.places: dict[bytes, list[int]] = {}
        for place in np.flatnonzero(np.isnan(rows).any(1)):
            self.places.setdefault(rows[place].tobytes(), []).append(int(place))
        self.products: SinglesArray | None = None

    def queries(self, Z: FloatArray) -> Queries:
        """Return rows with gaps (n, D) with their distances over the known columns.

        A memory with the same known cells and the same gaps, such as the query itself, knows
        nothing of them and is infinitely far.
        """
        known = ~np.isnan(Z)
        residuals = np.where(known, Z - self.shape.mean, 0.0)
        exact = residuals @ (-2 * self.centred.T)
        exact += known.astype(np.float64) @ self.squares
        exact += np.square(residuals).sum(1, keepdims=True)
        squared = exact.astype(np.float32)
        np.maximum(squared, 0, out=squared)
        for place, row in enumerate(np.ascontiguousarray(Z)):
            same = self.places.get(row.tobytes())
            if same is not None and len(same) < len(self.rows):
                squared[place, same] = np.inf
        rank = min(NEIGHBOUR, len(self.rows) // 2)
        distant = np.partition(squared, rank, axis=1)[:, rank].astype(np.float64)
        scales = np.where(np.isfinite(distant), distant, 1.0) + CLOSEST
        squared *= (1 / scales)[:, None].astype(np.float32)
        return Queries(known, residuals, squared, scales)

    def typical_width(self) -> float:
        """Return the median of the bandwidths of the memories themselves."""
        some = self.filled[:: max(len(self.filled) // TYPICAL_ROWS, 1)]
        return BANDWIDTH * float(np.sqrt(np.median(self.queries(some).scales)))

    def responsibilities(self, queries: Queries, bandwidth: float = BANDWIDTH) -> SinglesArray:
        """Return the share of each memory in each query. (n, m)"""
        logits = queries.squared * np.float32(-0.5 / bandwidth**2)
        logits += self.log_weights
        logits -= logits.max(1, keepdims=True)
        np.exp(logits, out=logits)
        logits /= logits.sum(1, keepdims=True)
        return logits

    def corrected(self, queries: Queries, shares: SinglesArray, regress: Regression) -> FloatArray:
        """Return the mean of the memories, and a regression on what they leave unexplained."""
        means = (shares @ self.singles).astype(np.float64)
        return means + regress(np.where(queries.known, queries.residuals - means, 0.0))

    def local(self, queries: Queries) -> FloatArray:
        """Return means given the known cells under a covariance of each query's neighbourhood."""
        assert isinstance(self.shape, Covariance)
        shares = self.responsibilities(queries, LOCAL_WIDER * BANDWIDTH)
        dim = self.centred.shape[1]
        first, second = np.triu_indices(dim)
        if self.products is None:
            self.products = self.singles[:, first] * self.singles[:, second]
        means = (shares @ self.singles).astype(np.float64)
        moments = np.empty((len(means), dim, dim))
        moments[:, first, second] = moments[:, second, first] = shares @ self.products
        moments -= means[:, :, None] * means[:, None, :]
        moments += LOCAL_PRIOR * self.shape.covariance
        both = queries.known[:, :, None] & queries.known[:, None, :]
        system = np.where(both, moments, 0.0)
        diagonal = np.arange(dim)
        floor = LOCAL_FLOOR * self.shape.covariance.diagonal()
        system[:, diagonal, diagonal] += np.where(queries.known, floor, 1.0)
        right = np.where(queries.known, queries.residuals - means, 0.0)
        solved = np.linalg.solve(system, right[:, :, None])
        return means + (moments @ solved)[:, :, 0]

    def estimates(self, Z: FloatArray, ridge: float) -> list[FloatArray]:
        """Return estimates of all cells of a block of rows (n, D), less the mean.

        They are a regression on what the retrieved mean leaves, and, unless the shape has factors,
        one with the covariance of the neighbourhood.
        """
        queries = self.queries(Z)
        regress = self.shape.regression(queries.known, ridge)
        found = [self.corrected(queries, self.responsibilities(queries), regress)]
        return [*found, self.local(queries)] if isinstance(self.shape, Covariance) else found

    def open_blocks(self, Z: FloatArray) -> Iterator[NDArray[np.intp]]:
        """Yield the places of blocks of rows with gaps, those with the same gaps together."""
        gaps = np.isnan(Z)
        places = np.flatnonzero(gaps.any(1))
        order = np.lexsort(np.packbits(gaps[places], axis=1).T)
        places, width = places[order], max(self.shape.width, 3 * len(self.rows))
        return (places[block] for block in blocks(len(places), width))
