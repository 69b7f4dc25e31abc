"""Learn from a table with gaps how to fill them: hide known cells, and see what works."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from isthmus.impute.retrieval import FilledMemories, Recipe
from isthmus.impute.shape import (
    MOST_FULL_COLUMNS,
    Covariance,
    Factors,
    FloatArray,
    Mask,
    Regression,
    Shape,
    learn_covariance,
    learn_factors,
    linear_fill,
    relations,
)

BANDWIDTHS = (0.14, 0.2, 0.3, 0.42, 0.6, 0.85, 1.2, 2.0)
RIDGES = (0.003, 0.02, 0.1, 0.5, 3.0, 20.0)
# Columns count equally in distances, or for powers of what they have to do with the others.
EMPHASES = (0.0, 0.5, 1.0)
LOCAL_PRIORS = (0.05, 0.15, 0.5)
FACTORS = (3, 6, 12, 24, 48, 96)
# A round of learning factors takes at most about so many multiplications.
MOST_WORK = 4e9
CHECKED_ROWS, CHECKED_SHARE, CHECKED_MEMORIES = 400, 1 / 3, 1200
# Tables with up to so many rows are checked several times, until so many cells were hidden.
SMALL_ROWS, MOST_REPEATS, ENOUGH_CELLS = 600, 12, 3000
# Errors of a bandwidth count for more if it is unusual and if there are few cells to tell.
USUAL_BANDWIDTH, UNUSUAL = 0.42, 0.4
RANDOM_SHARE, FEWEST_HIDDEN, JITTER = 0.2, 0.1, 0.1
# Cells that the common weights of the estimates count for, beside those of a column.
PRIOR_CELLS = 30
# An estimate with less weight is not worth its time.
UNUSED = 0.04


@dataclass(frozen=True)
class Check:
    """Memories of a table with hidden cells, the rows that have them, and the true values."""

    memories: FilledMemories
    truth: FloatArray
    given: FloatArray
    hidden: Mask


@dataclass(frozen=True)
class Blend:
    """A recipe with the weights of its estimates in each column (K, D).

    `cells` are the places (row, column) of hidden cells, `truth` their values and `found` their
    fills, by weights learned from other cells.
    """

    recipe: Recipe
    weights: FloatArray
    cells: tuple[NDArray[np.intp], NDArray[np.intp]]
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
    checks: list[Check] = []
    factors, cells = None, 0
    repeats = MOST_REPEATS if len(Z) <= SMALL_ROWS else 1
    while len(checks) < repeats and cells < ENOUGH_CELLS:
        places, hidden = _hide(Z, features, generator)
        table = Z.copy()
        table[places] = np.where(hidden, np.nan, Z[places])
        if factors is None:
            factors = _choose_factors(table, Z, weights)
        shape = learn_shape(table, weights, factors)
        memories = _memories(table, weights, shape, min(most_memories, CHECKED_MEMORIES), generator)
        checks.append(Check(memories, Z[places], table[places], hidden))
        cells += max(int(hidden.sum()), 1)
    # In a table of one or two columns, all that is known counts.
    powers = EMPHASES if Z.shape[1] > 2 else EMPHASES[:1]
    tried = [
        [
            replace(check, memories=_emphasised(check.memories, power)) if power else check
            for check in checks
        ]
        for power in powers
    ]
    regressions = [
        {ridge: check.memories.shape.regression(~np.isnan(check.given), ridge) for ridge in RIDGES}
        for check in checks
    ]
    found = [_choose_recipe(one, regressions) for one in tried]
    best = int(np.argmin([error for _, error in found]))
    recipe = found[best][0]
    checks = [replace(check, memories=check.memories.refilled(recipe)) for check in tried[best]]
    blend = _blend(checks, _choose_local(checks, recipe))
    shape = learn_shape(Z, weights, factors or 0, checks[0].memories.shape)
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


def learn_shape(
    Z: FloatArray, weights: FloatArray, factors: int, start: Shape | None = None
) -> Shape:
    """Learn a covariance, or factors if their number is not 0."""
    if factors:
        return learn_factors(Z, weights, factors, start if isinstance(start, Factors) else None)
    return learn_covariance(Z, weights, start if isinstance(start, Covariance) else None)


def _choose_factors(table: FloatArray, Z: FloatArray, weights: FloatArray) -> int:
    """Return the number of factors with the least error at hidden cells, 0 for a covariance."""
    if Z.shape[1] <= MOST_FULL_COLUMNS:
        return 0
    hidden = np.isnan(table) & ~np.isnan(Z)
    errors = {}
    most = max(int(0.7 * min(Z.shape)), 1)
    most = min(most, max(int(np.sqrt(MOST_WORK / Z.size)), FACTORS[0]))
    for factors in [number for number in FACTORS if number <= most] or [most]:
        filled = linear_fill(learn_factors(table, weights, factors), table)
        errors[factors] = float(np.square((filled - Z)[hidden]).mean()) if hidden.any() else 0.0
        if errors[factors] > 1.2 * min(errors.values()):
            break
    return min(errors, key=errors.__getitem__)


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
        [(bandwidth, ridge) for bandwidth in (0, *BANDWIDTHS) for ridge in RIDGES], 0.0
    )
    for check, own in zip(checks, regressions, strict=True):
        queries = check.memories.queries(check.given)
        truth = check.truth[check.hidden]
        for ridge, regress in own.items():
            error = _cells(check, regress(queries.residuals)) - truth
            errors[0, ridge] += float(np.square(error).sum())
        for bandwidth in BANDWIDTHS:
            shares = check.memories.responsibilities(queries, bandwidth)
            for ridge, regress in own.items():
                found = check.memories.corrected(queries, shares, regress)
                error = _cells(check, found) - truth
                errors[bandwidth, ridge] += float(np.square(error).sum())
    linear = min(RIDGES, key=lambda ridge: errors[0, ridge])
    cells = sum(int(check.hidden.sum()) for check in checks)

    def judged(pair: tuple[float, float]) -> float:
        octaves = np.log2(pair[0] / USUAL_BANDWIDTH)
        return errors[pair] * float(1 + UNUSUAL * octaves**2 / np.sqrt(cells + 1))

    bandwidth, ridge = min([pair for pair in errors if pair[0]], key=judged)
    return Recipe(linear, bandwidth, ridge), judged((bandwidth, ridge))


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
    parts, truths, centres, rows, columns = [], [], [], [], []
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
        start += len(check.truth)
    estimates, truth = np.concatenate(parts, 1), np.concatenate(truths)
    row, column = np.concatenate(rows), np.concatenate(columns)
    weights = _weights(estimates, truth, column, dim)
    # Errors are measured where the weights were not learned.
    crossed = np.empty_like(truth)
    half = row % 2 == 0
    for learned in (half, ~half):
        other = _weights(estimates[:, learned], truth[learned], column[learned], dim)
        crossed[~learned] = (other[:, column] * estimates).sum(0)[~learned]
    unused = weights.mean(1) < UNUSED
    if unused.any() and not unused.all():
        weights[unused] = 0
        weights[~unused] = _weights(estimates[~unused], truth, column, dim)
    centre = np.concatenate(centres)
    return Blend(recipe, weights, (row, column), truth + centre, crossed + centre)


def _weights(
    estimates: FloatArray, truth: FloatArray, column: NDArray[np.intp], dim: int
) -> FloatArray:
    """Return non-negative weights (K, D) of estimates (K, cells), alike in all columns."""
    count = len(estimates)
    common = np.full(count, 1.0 / count)
    if not len(truth):
        return np.repeat(common[:, None], dim, 1)
    scale = np.sqrt(np.square(estimates).mean(1)) + 1e-9
    common = _shrunk(estimates, truth, common, scale)
    weights = np.repeat(common[:, None], dim, 1)
    order = np.argsort(column, kind="stable")
    ends = np.searchsorted(column[order], np.arange(dim + 1))
    for place in range(dim):
        own = order[ends[place] : ends[place + 1]]
        if len(own):
            weights[:, place] = _shrunk(estimates[:, own], truth[own], common, scale)
    return weights


def _shrunk(
    estimates: FloatArray, truth: FloatArray, prior: FloatArray, scale: FloatArray
) -> FloatArray:
    """Return non-negative least squares, drawn to a prior by some more cells."""
    pull = np.sqrt(PRIOR_CELLS) * scale
    system = np.concatenate([estimates.T, np.diag(pull)])
    return nnls(system, np.concatenate([truth, pull * prior]))[0]
