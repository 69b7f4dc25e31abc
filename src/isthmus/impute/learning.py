"""Learn from a table with gaps how to fill them: hide known cells, and see what works."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from isthmus.impute.retrieval import FilledMemories, Recipe
from isthmus.impute.shape import (
    MOST_FULL_COLUMNS,
    FloatArray,
    Kind,
    Mask,
    Shape,
    kinds,
    linear_fill,
)

BANDWIDTHS = (0.2, 0.42, 0.85, 2.0)
RIDGES = (0.0001, 0.003, 0.1, 3.0)
# More factors are not tried once they raise the error by this factor.
TOO_MANY = 1.2
CHECKED_ROWS, CHECKED_SHARE, CHECKED_MEMORIES = 300, 1 / 3, 1200
# Tables with up to so many rows are checked several times, until so many cells were hidden.
SMALL_ROWS, MOST_REPEATS, ENOUGH_CELLS = 600, 12, 3000
# The share of cells to hide where the table has fewer gaps.
FEWEST_HIDDEN = 0.1
# Cells that the common weights of the estimates count for, beside those of a column.
PRIOR_CELLS = 60


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
    """A recipe with the weights of its estimates in each column (K, D).

    `cells` are the places (row, column) of hidden cells, `rows` their rows in the table, `truth`
    their values and `found` their fills, by weights learned from other rows.
    """

    recipe: Recipe
    weights: FloatArray
    cells: tuple[NDArray[np.intp], NDArray[np.intp]]
    rows: NDArray[np.intp]
    truth: FloatArray
    found: FloatArray

    def fill(self, memories: FilledMemories, Z: FloatArray) -> FloatArray:
        """Return the means of all cells of a block of rows (n, D)."""
        found = memories.estimates(Z, self.recipe)
        return memories.shape.mean + np.einsum("kd,knd->nd", self.weights, np.array(found))


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
    choices: list[tuple[NDArray[np.intp], Mask]] = []
    cells = 0
    repeats = MOST_REPEATS if len(Z) <= SMALL_ROWS else 1
    while len(choices) < repeats and cells < ENOUGH_CELLS:
        choices.append(_hide(Z, features, generator))
        cells += max(int(choices[-1][1].sum()), 1)
    tables = [_hidden(Z, *choice) for choice in choices]
    kind, shapes = _choose_shape(Z, tables, weights)
    checks: list[Check] = []
    for (places, hidden), table, shape in zip(choices, tables, shapes, strict=True):
        memories = _memories(table, weights, shape, min(most_memories, CHECKED_MEMORIES), generator)
        checks.append(Check(memories, places, Z[places], table[places], hidden))
    recipe = _choose_recipe(checks)
    checks = [replace(check, memories=check.memories.refilled(recipe)) for check in checks]
    shape = kind.learn(Z, weights, checks[0].memories.shape)
    memories = _memories(Z, weights, shape, most_memories, generator)
    return memories.refilled(recipe), _blend(checks, recipe), checks


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
    # A column keeps two known cells, and a row one if it can have another.
    bare = np.flatnonzero((hidden == known[places]).all(1) & (features[-1] > 0))
    for row in bare:
        own = np.flatnonzero(known[places[row]])
        if len(own):
            hidden[row, features == features[generator.choice(own)]] = False
    hidden[:, known.sum(0) - hidden.sum(0) < 2] = False
    return places, hidden


def _hidden(Z: FloatArray, places: NDArray[np.intp], hidden: Mask) -> FloatArray:
    """Return a table (n, D) without hidden cells of some rows."""
    table = Z.copy()
    table[places] = np.where(hidden, np.nan, Z[places])
    return table


def _choose_shape(
    Z: FloatArray, tables: Sequence[FloatArray], weights: FloatArray
) -> tuple[Kind, list[Shape]]:
    """Return the kind of shape with the least linear error at hidden cells, and each table's."""
    tried = tables if Z.shape[1] <= MOST_FULL_COLUMNS else tables[:1]
    best: tuple[float, Kind, list[Shape]] | None = None
    for kind in kinds(*Z.shape):
        shapes = [kind.learn(table, weights) for table in tried]
        error = sum(map(partial(_linear_error, Z), tried, shapes))
        if best is None or error < best[0]:
            best = error, kind, shapes
        elif kind.factors and error > TOO_MANY * best[0]:
            break
    assert best is not None
    _, kind, shapes = best
    return kind, shapes + [kind.learn(table, weights) for table in tables[len(tried) :]]


def _linear_error(Z: FloatArray, table: FloatArray, shape: Shape) -> float:
    """Return the squared error of a linear fill at hidden cells."""
    hidden = np.isnan(table) & ~np.isnan(Z)
    rows = hidden.any(1)
    errors = (linear_fill(shape, table[rows]) - Z[rows])[hidden[rows]]
    return float(np.square(errors).sum())


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


def _choose_recipe(checks: Sequence[Check]) -> Recipe:
    """Return the bandwidth and the ridges with the least error at hidden cells."""
    errors: dict[tuple[float, float], float] = defaultdict(float)
    for check in checks:
        memories, truth = check.memories, check.truth[check.hidden]
        queries = memories.queries(check.given)
        regressions = {ridge: memories.shape.regression(queries.known, ridge) for ridge in RIDGES}
        for bandwidth in (0.0, *BANDWIDTHS):
            mean = np.zeros(queries.residuals.shape)
            if bandwidth:
                shares = memories.responsibilities(queries, bandwidth)
                mean = (shares @ memories.singles).astype(np.float64)
            rest = np.where(queries.known, queries.residuals - mean, 0.0)
            for ridge, regress in regressions.items():
                found = (mean + regress(rest) + memories.shape.mean)[check.hidden]
                errors[bandwidth, ridge] += float(np.square(found - truth).sum())
    linear = min(RIDGES, key=lambda ridge: errors[0.0, ridge])
    best = min((pair for pair in errors if pair[0]), key=errors.__getitem__)
    return Recipe(linear, *best)


def _blend(checks: Sequence[Check], recipe: Recipe) -> Blend:
    """Return the weights of the estimates that leave the least error at hidden cells."""
    dim = checks[0].truth.shape[1]
    parts, truths, centres, rows, columns, places = [], [], [], [], [], []
    start = 0
    for check in checks:
        mean = check.memories.shape.mean
        found = check.memories.estimates(check.given, recipe)
        row, column = np.nonzero(check.hidden)
        parts.append(np.stack([estimate[row, column] for estimate in found]))
        truths.append(check.truth[row, column] - mean[column])
        centres.append(mean[column])
        rows.append(row + start)
        columns.append(column)
        places.append(check.places[row])
        start += len(check.truth)
    estimates, truth = np.concatenate(parts, 1), np.concatenate(truths)
    row, column = np.concatenate(rows), np.concatenate(columns)
    weights = _weights(estimates, truth, column, dim)
    # Errors are measured where the weights were not learned.
    crossed, origin = np.empty_like(truth), np.concatenate(places)
    half = np.unique(origin, return_inverse=True)[1] % 2 == 0
    for learned in (half, ~half):
        other = _weights(estimates[:, learned], truth[learned], column[learned], dim)
        crossed[~learned] = (other[:, column] * estimates).sum(0)[~learned]
    centre = np.concatenate(centres)
    return Blend(recipe, weights, (row, column), origin, truth + centre, crossed + centre)


def _weights(
    estimates: FloatArray, truth: FloatArray, column: NDArray[np.intp], dim: int
) -> FloatArray:
    """Return non-negative weights (K, D) of estimates (K, cells), alike in all columns."""
    count = len(estimates)
    common = np.full(count, 1.0 / count)
    if not len(truth):
        return np.repeat(common[:, None], dim, 1)
    # The prior counts for less where the estimates are good.
    noise = np.sqrt(np.square(truth - estimates).mean(1).min())
    pull = noise * np.sqrt(PRIOR_CELLS) + 1e-9
    common = _shrunk(estimates, truth, common, pull)
    weights = np.repeat(common[:, None], dim, 1)
    order = np.argsort(column, kind="stable")
    ends = np.searchsorted(column[order], np.arange(dim + 1))
    for place in range(dim):
        own = order[ends[place] : ends[place + 1]]
        if len(own):
            weights[:, place] = _shrunk(estimates[:, own], truth[own], common, pull)
    return weights


def _shrunk(estimates: FloatArray, truth: FloatArray, prior: FloatArray, pull: float) -> FloatArray:
    """Return non-negative least squares, drawn to a prior."""
    system = np.concatenate([estimates.T, pull * np.eye(len(prior))])
    return nnls(system, np.concatenate([truth, pull * prior]))[0]
