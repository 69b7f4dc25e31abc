"""Learn from a table with gaps how to fill them: hide known cells, and see what works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from isthmus.impute.retrieval import FilledMemories, Recipe
from isthmus.impute.shape import (
    MOST_FULL_COLUMNS,
    Covariance,
    FloatArray,
    Kind,
    Mask,
    Regression,
    Shape,
    kinds,
    linear_fill,
    relations,
)

BANDWIDTHS = (0.14, 0.2, 0.3, 0.42, 0.6, 0.85, 1.2, 2.0)
PLAIN_BANDWIDTHS = BANDWIDTHS[4:]
RIDGES = (0.0001, 0.003, 0.02, 0.1, 0.5, 3.0, 20.0)
# Columns count equally in distances, or for powers of what they have to do with the others.
EMPHASES = (0.0, 0.5, 1.0)
LOCAL_PRIORS = (0.05, 0.15, 0.5)
# More factors are not tried once they raise the error by this factor.
TOO_MANY = 1.2
CHECKED_ROWS, CHECKED_SHARE, CHECKED_MEMORIES = 300, 1 / 3, 1200
# Tables with up to so many rows are checked several times, until so many cells were hidden.
SMALL_ROWS, MOST_REPEATS, ENOUGH_CELLS = 600, 12, 3000
# Errors of a bandwidth count for more if it is unusual and if there are few cells to tell.
USUAL, UNUSUAL = (0.42, 0.1), 0.4
RANDOM_SHARE, FEWEST_HIDDEN, JITTER = 0.2, 0.1, 0.1
# Cells that the common weights of the estimates count for, beside those of a column.
PRIOR_CELLS = 60
# An estimate with less weight is not worth its time.
UNUSED = 0.04


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

    @property
    def used(self) -> list[int]:
        """Numbers of the estimates with any weight."""
        return np.flatnonzero(self.weights.any(1)).tolist()

    def fill(self, memories: FilledMemories, Z: FloatArray) -> FloatArray:
        """Return the means of all cells of a block of rows (n, D)."""
        parts = memories.estimates(Z, self.recipe, self.used)
        return memories.shape.mean + sum(
            (weight * part for weight, part in zip(self.weights[self.used], parts, strict=True)),
            np.zeros(Z.shape),
        )


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
    # In a table of one or two columns, all that is known counts.
    powers = EMPHASES if Z.shape[1] > 2 else EMPHASES[:1]
    tried = [
        [
            replace(check, memories=_emphasised(check.memories, power)) if power else check
            for check in checks
        ]
        for power in powers
    ]
    # The least ridge is for small tables of columns that follow from each other.
    ridges = RIDGES if len(Z) <= SMALL_ROWS else RIDGES[1:]
    regressions = [
        {ridge: check.memories.shape.regression(~np.isnan(check.given), ridge) for ridge in ridges}
        for check in checks
    ]
    found = [_choose_recipe(one, regressions) for one in tried]
    best = int(np.argmin([error for _, error in found]))
    recipe = found[best][0]
    checks = [replace(check, memories=check.memories.refilled(recipe)) for check in tried[best]]
    blend = _blend(checks, _choose_local(checks, recipe))
    shape = kind.learn(Z, weights, checks[0].memories.shape)
    memories = _memories(Z, weights, shape, most_memories, generator)
    memories = _emphasised(memories, powers[best]).refilled(blend.recipe)
    return memories, blend, checks


def _emphasised(memories: FilledMemories, power: float) -> FilledMemories:
    """Return memories whose columns count for a power of what they have to do with others."""
    return memories.emphasised(relations(memories.shape) ** power)


def _hide(
    Z: FloatArray, features: NDArray[np.intp], generator: np.random.Generator
) -> tuple[NDArray[np.intp], Mask]:
    """Choose rows, and known cells of theirs to hide: mostly in the pattern of other rows."""
    known = ~np.isnan(Z)
    count = min(CHECKED_ROWS, max(int(len(Z) * CHECKED_SHARE), 2), len(Z))
    # Rows with few gaps, so that they have about as many as others once cells are hidden.
    crowded = (~known).mean(1) + generator.random(len(Z)) * JITTER
    places = np.argsort(crowded)[:count]
    gaps = ~known[~known.all(1)]
    rate = max(float(gaps.mean()) if len(gaps) else 0.0, FEWEST_HIDDEN)
    hidden = (generator.random((count, int(features[-1]) + 1)) < rate)[:, features]
    if len(gaps):
        patterned = generator.random(count) >= RANDOM_SHARE
        hidden[patterned] = gaps[generator.integers(len(gaps), size=int(patterned.sum()))]
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
    equal = np.ones(Z.shape[1])
    return FilledMemories(Z[places], linear_fill(shape, Z[places]), shape, weights[places], equal)


def _cells(check: Check, estimates: FloatArray) -> FloatArray:
    return (estimates + check.memories.shape.mean)[check.hidden]


def _choose_recipe(
    checks: Sequence[Check], regressions: Sequence[Mapping[float, Regression]]
) -> tuple[Recipe, float]:
    """Return the bandwidth and the ridges with the least error at hidden cells, and that error."""
    errors: dict[tuple[float, float], float] = dict.fromkeys(
        [(bandwidth, ridge) for bandwidth in (0, *BANDWIDTHS) for ridge in regressions[0]], 0.0
    )
    usual: list[FloatArray] = []
    plain_errors = dict.fromkeys(PLAIN_BANDWIDTHS, 0.0)
    for check, own in zip(checks, regressions, strict=True):
        queries = check.memories.queries(check.given)
        truth = check.truth[check.hidden]
        for ridge, regress in own.items():
            error = _cells(check, regress(queries.residuals)) - truth
            errors[0, ridge] += float(np.square(error).sum())
        for bandwidth in BANDWIDTHS:
            shares = check.memories.responsibilities(queries, bandwidth)
            mean = (shares @ check.memories.singles).astype(np.float64)
            rest = np.where(queries.known, queries.residuals - mean, 0.0)
            if bandwidth in plain_errors:
                plain_errors[bandwidth] += float(np.square(_cells(check, mean) - truth).sum())
            for ridge, regress in own.items():
                found = mean + regress(rest)
                error = _cells(check, found) - truth
                if (bandwidth, ridge) == USUAL:
                    usual.append(error)
                errors[bandwidth, ridge] += float(np.square(error).sum())
    linear = min(regressions[0], key=lambda ridge: errors[0, ridge])
    typical = np.concatenate(usual)
    cells = len(typical) / heaviness(typical)

    def judged(error: float, bandwidth: float) -> float:
        octaves = np.log2(bandwidth / USUAL[0])
        return error * float(1 + UNUSUAL * octaves**2 / np.sqrt(cells + 1))

    local = {pair: judged(error, pair[0]) for pair, error in errors.items() if pair[0]}
    plain = {width: judged(error, width) for width, error in plain_errors.items()}
    bandwidth, ridge = min(local, key=local.__getitem__)
    recipe = Recipe(linear, bandwidth, ridge, min(plain, key=plain.__getitem__))
    return recipe, local[bandwidth, ridge]


def heaviness(errors: FloatArray) -> float:
    """Return how many times fewer Gaussian errors tell as much about their mean square."""
    largest = float(np.abs(errors).max(initial=0.0))
    if largest == 0:
        return 1.0
    squares = np.square(errors / largest)
    return max(1.0, float(len(squares) * np.square(squares).sum() / squares.sum() ** 2) / 3)


def _choose_local(checks: Sequence[Check], recipe: Recipe) -> Recipe:
    """Add local covariances to a recipe, at the settings with the least error."""
    if not isinstance(checks[0].memories.shape, Covariance):
        return recipe
    errors: dict[tuple[float, float], float] = {}
    for check in checks:
        queries = check.memories.queries(check.given)
        for bandwidth in (recipe.bandwidth, 2 * recipe.bandwidth):
            shares = check.memories.responsibilities(queries, bandwidth)
            for prior in LOCAL_PRIORS:
                found = _cells(check, check.memories.local(queries, shares, prior))
                error = float(np.square(found - check.truth[check.hidden]).sum())
                errors[bandwidth, prior] = errors.get((bandwidth, prior), 0.0) + error
    bandwidth, prior = min(errors, key=errors.__getitem__)
    return replace(recipe, local_bandwidth=bandwidth, local_prior=prior)


def _blend(checks: Sequence[Check], recipe: Recipe) -> Blend:
    """Return the weights of the estimates that leave the least error at hidden cells."""
    dim = checks[0].truth.shape[1]
    parts, truths, centres, rows, columns, places = [], [], [], [], [], []
    start = 0
    for check in checks:
        mean = check.memories.shape.mean
        found = check.memories.estimates(check.given, recipe, range(recipe.count))
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
    unused = weights.mean(1) < UNUSED
    if unused.any() and not unused.all():
        weights[unused] = 0
        weights[~unused] = _weights(estimates[~unused], truth, column, dim)
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
    # The prior counts for less where the estimates are good, and for more if few cells matter.
    noise = np.sqrt(np.square(truth - estimates).mean(1).min())
    pull = noise * np.sqrt(PRIOR_CELLS * heaviness(truth - common @ estimates)) + 1e-9
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
