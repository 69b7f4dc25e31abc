"""Random fillings of gaps whose spread is that of the errors at hidden cells."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from isthmus.impute.learning import Blend, Check
from isthmus.impute.retrieval import FilledMemories
from isthmus.impute.shape import FloatArray

MEASURED_ROWS, MEASURED_DRAWS = 150, 40
# Cells that the table as a whole counts for, beside those of a column.
PRIOR_CELLS = 10.0
# Columns with fewer hidden cells have the gain of the table.
FEWEST_CELLS = 60
COVERAGE = 0.9


@dataclass(frozen=True)
class Spread:
    """Factors (D,) of the deviations of memories, and standard deviations (D,) of noise.

    `doubt` is the error of a memory's cell that is itself filled.
    """

    local: FloatArray
    noise: FloatArray
    doubt: FloatArray

    @classmethod
    def of(cls, checks: Sequence[Check], blend: Blend, generator: np.random.Generator) -> Spread:
        """Match the spread of draws with the errors at the hidden cells of checks."""
        dim = checks[0].truth.shape[1]
        row, column = blend.cells
        if not len(row):
            return cls(np.ones(dim), np.zeros(dim), np.zeros(dim))
        errors = _column_means(np.square(blend.found - blend.truth), column, dim)
        unit = cls(np.ones(dim), np.zeros(dim), np.sqrt(errors))
        parts, places, start = [], [], 0
        for check in checks:
            own = np.flatnonzero(
                (row >= start) & (row < start + min(len(check.truth), MEASURED_ROWS))
            )
            renewal = generator.exponential(size=(MEASURED_DRAWS, len(check.memories.rows)))
            given = check.given[:MEASURED_ROWS]
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
        gain = _gain(trial, (blend.truth - blend.found)[chosen], column, dim)
        return cls(gain * factor, gain * noise, unit.doubt)


def _column_means(values: FloatArray, column: np.ndarray, dim: int) -> FloatArray:
    """Return the mean of the values of each column, drawn to that of all."""
    sums, counts = np.bincount(column, values, dim), np.bincount(column, minlength=dim)
    found: FloatArray = (sums + PRIOR_CELLS * values.mean()) / (counts + PRIOR_CELLS)
    return found


def _gain(trial: FloatArray, error: FloatArray, column: np.ndarray, dim: int) -> FloatArray:
    """Return the factors (D,) that make intervals of trial deviations cover the errors."""
    low, high = np.quantile(trial, ((1 - COVERAGE) / 2, (1 + COVERAGE) / 2), axis=0)
    reach = np.maximum(np.where(error > 0, high, -low), 1e-9)
    ratio = np.abs(error) / reach
    common = float(np.clip(np.quantile(ratio, COVERAGE), 0.3, 3.0))
    gain = np.full(dim, common)
    for place in np.flatnonzero(np.bincount(column, minlength=dim) >= FEWEST_CELLS):
        own = np.quantile(ratio[column == place], COVERAGE)
        gain[place] = np.clip(own, common / 2, common * 2)
    return gain


def draw_block(
    memories: FilledMemories,
    blend: Blend,
    spread: Spread,
    Z: FloatArray,
    renewal: FloatArray,
    generator: np.random.Generator,
) -> FloatArray:
    """Return fillings (n, rows, D) of a block of rows, with `renewal` (n, m) of the memories."""
    queries, recipe = memories.queries(Z), blend.recipe
    means = blend.fill(memories, Z)
    shares = memories.responsibilities(queries, recipe.bandwidth)
    regress = memories.shape.regression(queries.known, recipe.ridge)
    centre = memories.corrected(queries, shares, regress)
    filled_cells = np.isnan(memories.rows)
    drawn = np.empty((len(renewal), *Z.shape))
    for number, weights in enumerate(renewal):
        steps = np.cumsum(shares * weights.astype(np.float32), axis=1)
        level = generator.random((len(Z), 1)) * steps[:, -1:]
        chosen = np.minimum((steps < level).sum(1), len(weights) - 1)
        rows = memories.centred[chosen]
        deviation = rows + regress(np.where(queries.known, queries.residuals - rows, 0.0)) - centre
        doubt = generator.standard_normal(Z.shape) * spread.doubt
        deviation += np.where(filled_cells[chosen], doubt, 0.0)
        noise = spread.noise * generator.standard_normal(Z.shape)
        drawn[number] = means + spread.local * deviation + noise
    return drawn
