"""Learn from a table with gaps how to fill them, and how to draw fillings: hide known cells."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from isthmus.impute.shape import (
    Covariance,
    FloatArray,
    Mask,
    Regression,
    Shape,
    blocks,
    learn_shape,
    linear_fill,
)

SinglesArray = NDArray[np.float32]

# Shares of the variances of columns.
RIDGES = (0.0001, 0.003, 0.1, 3.0)
CHECKED_ROWS, CHECKED_SHARE, CHECKED_MEMORIES = 300, 1 / 3, 1200
# Tables with up to so many rows are checked several times, until so many cells were hidden.
SMALL_ROWS, MOST_REPEATS, ENOUGH_CELLS = 600, 12, 3000
# The share of cells to hide where the table has fewer gaps.
FEWEST_HIDDEN = 0.1
# Cells that equal weights of the estimates count for.
PRIOR_CELLS = 60
MEASURED_ROWS, MEASURED_DRAWS = 150, 40
# Cells that the table as a whole counts for, beside those of a column.
PRIOR_SPREAD_CELLS = 10.0
# The share of errors that intervals of draws cover.
COVERAGE = 0.9
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


@dataclass(frozen=True)
class Check:
    """Memories of a table with hidden cells, the rows that have them, and the true values."""

    memories: FilledMemories
    places: NDArray[np.intp]
    truth: FloatArray
    given: FloatArray
    hidden: Mask


@dataclass(frozen=True)
class Blend:
    """The ridge of regressions, and the weights (K,) of the estimates.

    `cells` are the places (row, column) of hidden cells, `rows` their rows in the table, `truth`
    their values and `found` their fills, by weights learned from other rows.
    """

    ridge: float
    weights: FloatArray
    cells: tuple[NDArray[np.intp], NDArray[np.intp]]
    rows: NDArray[np.intp]
    truth: FloatArray
    found: FloatArray

    def fill(self, memories: FilledMemories, Z: FloatArray) -> FloatArray:
        """Return the means of all cells of a block of rows (n, D)."""
        found = memories.estimates(Z, self.ridge)
        return memories.shape.mean + np.tensordot(self.weights, np.array(found), 1)


def learn(
    Z: FloatArray,
    weights: FloatArray,
    features: NDArray[np.intp],
    generator: np.random.Generator,
    most_memories: int,
) -> tuple[FilledMemories, Blend, list[Check]]:
    """Return memories of rows (n, D) with gaps in standard units, how to use them, and checks.

    Columns with the same number in `features` (D,) are missing together.
    """
    checks: list[Check] = []
    cells, repeats = 0, MOST_REPEATS if len(Z) <= SMALL_ROWS else 1
    while len(checks) < repeats and cells < ENOUGH_CELLS:
        places, hidden = _hide(Z, features, generator)
        cells += max(int(hidden.sum()), 1)
        table, given = Z.copy(), np.where(hidden, np.nan, Z[places])
        table[places] = given
        shape = learn_shape(table, weights)
        memories = _memories(table, weights, shape, min(most_memories, CHECKED_MEMORIES), generator)
        checks.append(Check(memories, places, Z[places], given, hidden))
    ridge = _choose_ridge(checks)
    shape = learn_shape(Z, weights, checks[0].memories.shape)
    memories = _memories(Z, weights, shape, most_memories, generator)
    return memories, _blend(checks, ridge), checks


def _hide(
    Z: FloatArray, features: NDArray[np.intp], generator: np.random.Generator
) -> tuple[NDArray[np.intp], Mask]:
    """Choose rows with few gaps, and known cells of theirs to hide in the pattern of other rows."""
    known = ~np.isnan(Z)
    count = min(CHECKED_ROWS, max(int(len(Z) * CHECKED_SHARE), 2), len(Z))
    order = generator.permutation(len(Z))
    places = order[np.argsort((~known).mean(1)[order], kind="stable")[:count]]
    gaps = ~known[~known.all(1)]
    hidden = (generator.random((count, int(features[-1]) + 1)) < FEWEST_HIDDEN)[:, features]
    if len(gaps):
        hidden = gaps[generator.integers(len(gaps), size=count)]
    hidden &= known[places]
    # A column keeps two known cells.
    hidden[:, known.sum(0) - hidden.sum(0) < 2] = False
    return places, hidden


def _memories(
    Z: FloatArray,
    weights: FloatArray,
    shape: Shape,
    most: int,
    generator: np.random.Generator,
) -> FilledMemories:
    """Return rows that know anything, at most so many, as memories with their linear fill."""
    places = np.flatnonzero(~np.isnan(Z).all(1) & (weights > 0))
    if len(places) > most:
        places = np.sort(generator.permutation(places)[:most])
    return FilledMemories(Z[places], linear_fill(shape, Z[places]), shape, weights[places])


def _choose_ridge(checks: Sequence[Check]) -> float:
    """Return the ridge of regressions with the least error at hidden cells."""
    errors = np.zeros(len(RIDGES))
    for check in checks:
        memories, truth = check.memories, check.truth[check.hidden]
        queries = memories.queries(check.given)
        shares = memories.responsibilities(queries)
        for place, ridge in enumerate(RIDGES):
            regress = memories.shape.regression(queries.known, ridge)
            means = memories.corrected(queries, shares, regress) + memories.shape.mean
            errors[place] += np.square(means[check.hidden] - truth).sum()
    return RIDGES[int(errors.argmin())]


def _blend(checks: Sequence[Check], ridge: float) -> Blend:
    """Return the weights of the estimates that leave the least error at hidden cells."""
    parts, start = [], 0
    for check in checks:
        row, column = np.nonzero(check.hidden)
        centre = check.memories.shape.mean[column]
        found = np.array(check.memories.estimates(check.given, ridge))[:, row, column]
        truth = check.truth[row, column] - centre
        parts.append((found.T, truth, centre, row + start, column, check.places[row]))
        start += len(check.truth)
    found, truth, centre, row, column, origin = map(np.concatenate, zip(*parts, strict=True))
    # Errors are measured where the weights were not learned.
    crossed = np.empty_like(truth)
    half = np.unique(origin, return_inverse=True)[1] % 2 == 0
    for learned in (half, ~half):
        crossed[~learned] = found[~learned] @ _weights(found[learned], truth[learned])
    weights = _weights(found, truth)
    return Blend(ridge, weights, (row, column), origin, truth + centre, crossed + centre)


def _weights(estimates: FloatArray, truth: FloatArray) -> FloatArray:
    """Return non-negative weights (K,) of estimates (cells, K), drawn to equal ones."""
    equal = np.full(estimates.shape[1], 1 / estimates.shape[1])
    if not len(truth):
        return equal
    # The prior counts for less where the estimates are good.
    pull = np.sqrt(PRIOR_CELLS * np.square(truth - estimates @ equal).mean()) + 1e-9
    system = np.concatenate([estimates, pull * np.eye(len(equal))])
    return np.asarray(nnls(system, np.concatenate([truth, pull * equal]))[0])


@dataclass(frozen=True)
class Spread:
    """Factors (D,) of the deviations of memories, and standard deviations (D,) of noise."""

    local: FloatArray
    noise: FloatArray

    @classmethod
    def of(cls, checks: Sequence[Check], blend: Blend, generator: np.random.Generator) -> Spread:
        """Match the spread of draws with the errors at the hidden cells of checks."""
        dim = checks[0].truth.shape[1]
        (row, column), unit = blend.cells, cls(np.ones(dim), np.zeros(dim))
        if not len(row):
            return unit
        errors = _column_means(np.square(blend.found - blend.truth), column, dim)
        parts, places, start = [], [], 0
        for check in checks:
            given = check.given[:MEASURED_ROWS]
            own = np.flatnonzero((row >= start) & (row < start + len(given)))
            renewal = generator.exponential(size=(MEASURED_DRAWS, len(check.memories.rows)))
            drawn = draw_block(check.memories, blend, unit, given, renewal, generator)
            parts.append(drawn[:, row[own] - start, column[own]])
            places.append(own)
            start += len(check.truth)
        cells, chosen = np.concatenate(parts, 1), np.concatenate(places)
        column = column[chosen]
        local = _column_means(cells.var(0), column, dim)
        factor = np.minimum(1.0, np.sqrt(errors / np.maximum(local, 1e-12)))
        noise = np.sqrt(np.maximum(errors - np.square(factor) * local, 0.0))
        trial = factor[column] * (cells - cells.mean(0))
        trial += noise[column] * generator.standard_normal(cells.shape)
        low, high = np.quantile(trial, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2), axis=0)
        error = (blend.truth - blend.found)[chosen]
        reach = np.maximum(np.where(error > 0, high, -low), 1e-9)
        gain = float(np.clip(np.quantile(np.abs(error) / reach, COVERAGE), 0.3, 3.0))
        return cls(gain * factor, gain * noise)


def _column_means(values: FloatArray, column: np.ndarray, dim: int) -> FloatArray:
    """Return the mean of the values of each column, drawn to that of all."""
    sums, counts = np.bincount(column, values, dim), np.bincount(column, minlength=dim)
    found: FloatArray = (sums + PRIOR_SPREAD_CELLS * values.mean()) / (counts + PRIOR_SPREAD_CELLS)
    return found


def draw_block(
    memories: FilledMemories,
    blend: Blend,
    spread: Spread,
    Z: FloatArray,
    renewal: FloatArray,
    generator: np.random.Generator,
) -> FloatArray:
    """Return fillings (n, rows, D) of a block of rows, with `renewal` (n, m) of the memories."""
    queries = memories.queries(Z)
    means = blend.fill(memories, Z)
    shares = memories.responsibilities(queries)
    regress = memories.shape.regression(queries.known, blend.ridge)
    centre = memories.corrected(queries, shares, regress)
    drawn = np.empty((len(renewal), *Z.shape))
    for number, weights in enumerate(renewal):
        steps = np.cumsum(shares * weights.astype(np.float32), axis=1)
        level = generator.random((len(Z), 1)) * steps[:, -1:]
        chosen = np.minimum((steps < level).sum(1), len(weights) - 1)
        rows = memories.centred[chosen]
        deviation = rows + regress(np.where(queries.known, queries.residuals - rows, 0.0)) - centre
        noise = spread.noise * generator.standard_normal(Z.shape)
        drawn[number] = means + spread.local * deviation + noise
    return drawn
