"""Estimates of missing cells from memories: the filled rows of a table, and its shape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from isthmus.impute.shape import Covariance, FloatArray, Mask, Regression, Shape, blocks

SinglesArray = NDArray[np.float32]

# The bandwidth of a query is a multiple of its distance to this neighbour.
NEIGHBOUR = 10
CLOSEST = 1e-6
# What the covariance of the table counts for beside that of a neighbourhood, which is wider.
LOCAL_PRIOR, LOCAL_WIDER = 0.15, 2.0
TYPICAL_ROWS = 300


@dataclass(frozen=True)
class Recipe:
    """The settings of the estimates that are blended.

    The bandwidth is a multiple of a query's distance to its tenth neighbour; ridges are shares of
    the variance of each column.
    """

    linear_ridge: float
    bandwidth: float
    ridge: float


@dataclass(frozen=True)
class Queries:
    """A block of rows: known cells less the mean, zero where unknown, and squared distances."""

    known: Mask
    residuals: FloatArray
    squared: SinglesArray


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

    @property
    def width(self) -> int:
        """Entries that a query takes."""
        return max(self.shape.width, 3 * len(self.rows))

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
        return Queries(known, residuals, squared)

    def typical_width(self, bandwidth: float) -> float:
        """Return the median of the bandwidths of the memories themselves."""
        some = self.filled[:: max(len(self.filled) // TYPICAL_ROWS, 1)]
        some, plain = some - self.shape.mean, np.square(self.centred).sum(1)
        squared = np.square(some).sum(1)[:, None] + plain - 2 * some @ self.centred.T
        rank = min(NEIGHBOUR, len(self.rows) // 2)
        scales = np.partition(np.maximum(squared, 0), rank, axis=1)[:, rank]
        return bandwidth * float(np.sqrt(np.median(scales) + CLOSEST))

    def responsibilities(self, queries: Queries, bandwidth: float) -> SinglesArray:
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

    def local(
        self, queries: Queries, shares: SinglesArray, prior: float = LOCAL_PRIOR
    ) -> FloatArray:
        """Return means given the known cells under a covariance of each query's neighbourhood."""
        assert isinstance(self.shape, Covariance)
        dim = self.centred.shape[1]
        first, second = np.triu_indices(dim)
        if self.products is None:
            self.products = self.singles[:, first] * self.singles[:, second]
        means = (shares @ self.singles).astype(np.float64)
        moments = np.empty((len(means), dim, dim))
        moments[:, first, second] = moments[:, second, first] = shares @ self.products
        moments -= means[:, :, None] * means[:, None, :]
        moments += prior * self.shape.covariance
        both = queries.known[:, :, None] & queries.known[:, None, :]
        system = np.where(both, moments, 0.0)
        diagonal = np.arange(dim)
        floor = 0.05 * prior * self.shape.variances
        system[:, diagonal, diagonal] += np.where(queries.known, floor, 1.0)
        right = np.where(queries.known, queries.residuals - means, 0.0)
        solved = np.linalg.solve(system, right[:, :, None])
        return means + (moments @ solved)[:, :, 0]

    def estimates(self, Z: FloatArray, recipe: Recipe) -> list[FloatArray]:
        """Return estimates of all cells of a block of rows (n, D), less the mean.

        They are linear, locally linear, and, unless the shape has factors, with covariances of the
        neighbourhoods, which are wider.
        """
        queries = self.queries(Z)
        linear = self.shape.regression(queries.known, recipe.linear_ridge)
        regress = self.shape.regression(queries.known, recipe.ridge)
        shares = self.responsibilities(queries, recipe.bandwidth)
        found = [linear(queries.residuals), self.corrected(queries, shares, regress)]
        if isinstance(self.shape, Covariance):
            wide = self.responsibilities(queries, LOCAL_WIDER * recipe.bandwidth)
            found.append(self.local(queries, wide))
        return found

    def refilled(self, recipe: Recipe) -> FilledMemories:
        """Return memories whose gaps are filled by retrieval from the others."""
        filled = self.filled.copy()
        for places in self.open_blocks(self.rows):
            rows = self.rows[places]
            queries = self.queries(rows)
            shares = self.responsibilities(queries, recipe.bandwidth)
            regress = self.shape.regression(queries.known, recipe.ridge)
            means = self.corrected(queries, shares, regress) + self.shape.mean
            filled[places] = np.where(np.isnan(rows), means, rows)
        return FilledMemories(self.rows, filled, self.shape, self.weights)

    def open_blocks(self, Z: FloatArray) -> Iterator[NDArray[np.intp]]:
        """Yield the places of blocks of rows with gaps, those with the same gaps together."""
        gaps = np.isnan(Z)
        places = np.flatnonzero(gaps.any(1))
        order = np.lexsort(np.packbits(gaps[places], axis=1).T)
        places = places[order]
        return (places[block] for block in blocks(len(places), self.width))
