"""Choose what fills the gaps of a table best, by hiding known cells and measuring the error."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.cluster.crp import ClAMCRP
from isthmus.dynamics.retrieve import complete
from isthmus.errors import InvalidInputError
from isthmus.memories.base import Memory
from isthmus.memories.kde import GaussianKDE
from isthmus.progress import progress
from isthmus.validation import as_choice, as_number

__all__ = ["Candidate", "GapCheck", "How", "candidates", "check_candidates", "fill"]

How = Literal["mean", "mode"]
FloatArray = NDArray[np.float64]

# Bandwidths to choose from, in standard deviations of a column.
SIGMAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
FEWEST_MEMORIES = 5
# The check hides cells in at most this many rows, and learns from at most this many others.
CHECKED_ROWS, LEARNED_ROWS = 2000, 20_000
FOLDS_OF_FEW, FOLDS_OF_MANY, FEW_ROWS = 10, 4, 500


@dataclass(frozen=True)
class Candidate:
    """A way to make an energy of rows.

    Attributes
    ----------
    energy : {"kde", "crp"}
        A kernel density of the complete rows, or the memories that ClAMCRP learns.
    sigma : float or None
        The bandwidth of the former.
    """

    energy: str
    sigma: float | None = None

    def fit(self, Z: FloatArray, seed: int) -> Memory:
        """Return the energy of rows (n, D), NaN where unknown."""
        if self.sigma is None:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                return ClAMCRP(random_state=seed).fit(Z).energy_
        whole = Z[~np.isnan(Z).any(1)]
        if len(whole) < FEWEST_MEMORIES:
            raise InvalidInputError(
                f"Only {len(whole)} rows are complete, too few for a kernel density; use the "
                "energy crp, or learn from a table of complete rows."
            )
        return GaussianKDE(whole, self.sigma)


@dataclass(frozen=True)
class GapCheck:
    """Errors on known cells that were hidden on purpose.

    Attributes
    ----------
    chosen : Candidate
        The candidate with the lowest squared error on the first half of the cells.
    errors, baseline : ndarray (D,)
        Its root mean squared error in each column on the other half, and that of the column's
        mean; NaN where no cell was hidden.
    overall, overall_baseline : float
        The same over all columns.
    cells : int
        The number of cells that the errors are measured on.
    """

    chosen: Candidate
    errors: FloatArray
    baseline: FloatArray
    overall: float
    overall_baseline: float
    cells: int


def candidates(energy: str | None = None, sigma: float | None = None) -> list[Candidate]:
    """Return the candidates that the settings leave to choose from."""
    if energy is not None:
        energy = as_choice(energy, "energy", ("kde", "crp"))
    if sigma is not None:
        if energy == "crp":
            raise InvalidInputError("sigma is the bandwidth of the energy kde, not of crp.")
        return [Candidate("kde", as_number(sigma, "sigma", above=0))]
    densities = [Candidate("kde", value) for value in SIGMAS]
    if energy == "kde":
        return densities
    return [Candidate("crp")] if energy == "crp" else [*densities, Candidate("crp")]


def fill(energy: Memory, Z: FloatArray, how: How = "mean") -> FloatArray:
    """Fill gaps with the mean given the known values, or with a mode. (n, D) -> (n, D)"""
    gaps = np.isnan(Z)
    open_rows = gaps.any(1)
    filled = Z.copy()
    if open_rows.any():
        given = torch.from_numpy(Z[open_rows])
        with torch.no_grad():
            if how == "mode":
                found = complete(energy, given)
            else:
                found = energy.conditional_mean(given, ~torch.isnan(given))
        filled[gaps] = found.numpy()[gaps[open_rows]]
    return filled


def check_candidates(
    Z: FloatArray,
    patterns: NDArray[np.bool_],
    tried: Sequence[Candidate],
    how: How = "mean",
    seed: int = 0,
    show_progress: bool | None = False,
) -> GapCheck | None:
    """Hide known cells, fill them from other rows, and compare.

    Rows are dealt into folds. In the rows of a fold, cells are hidden in the pattern of a random
    row with gaps, and filled by an energy of the rows outside the fold. Half of the folds choose
    the candidate; the other half measure its error, so that it is not that of the best of many.

    Parameters
    ----------
    Z : ndarray (n, D)
        Rows to learn from, NaN where unknown.
    patterns : ndarray (m, D) of bool
        True at the gaps of rows that have some.
    tried : sequence of Candidate
    how : {"mean", "mode"}
    seed : int

    Returns
    -------
    GapCheck or None
        None if there are too few rows, or no cells to hide.
    """
    folds = list(_folds(Z, patterns, seed))
    if len(folds) < 2:
        return None
    squares: dict[Candidate, list[FloatArray]] = {one: [] for one in tried}
    halves, columns, baselines = [], [], []
    with progress("hiding cells", len(folds), show=show_progress) as report:
        for number, (learned, rows, hidden) in enumerate(folds):
            truth = rows[hidden]
            given = np.where(hidden, np.nan, rows)
            for candidate in tried:
                try:
                    filled = fill(candidate.fit(learned, seed), given, how)[hidden]
                except InvalidInputError:
                    filled = np.full(len(truth), np.inf)
                squares[candidate].append((filled - truth) ** 2)
            columns.append(np.nonzero(hidden)[1])
            baselines.append((np.nanmean(learned, 0)[columns[-1]] - truth) ** 2)
            halves.append(np.full(len(truth), number % 2))
            report(number + 1, f"fold {number + 1}")
    half = np.concatenate(halves)
    errors = {one: np.concatenate(parts) for one, parts in squares.items()}
    chosen = min(tried, key=lambda one: float(errors[one][half == 0].mean()))
    measured = half == 1
    own, centre = errors[chosen][measured], np.concatenate(baselines)[measured]
    if not np.isfinite(own).all():
        return None
    column = np.concatenate(columns)[measured]
    return GapCheck(
        chosen,
        _root_mean(own, column, Z.shape[1]),
        _root_mean(centre, column, Z.shape[1]),
        float(np.sqrt(own.mean())),
        float(np.sqrt(centre.mean())),
        len(own),
    )


def _root_mean(squares: FloatArray, column: NDArray[np.int64], dim: int) -> FloatArray:
    """Return the root of the mean in each column, NaN where there is none. (D,)"""
    times = np.bincount(column, minlength=dim)
    sums = np.bincount(column, squares, minlength=dim)
    found: FloatArray = np.sqrt(sums / np.where(times > 0, times, np.nan))
    return found


def _folds(
    Z: FloatArray, patterns: NDArray[np.bool_], seed: int
) -> Iterator[tuple[FloatArray, FloatArray, NDArray[np.bool_]]]:
    """Yield rows to learn from, rows to fill, and which of their cells are hidden."""
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(Z))
    checked = order[:CHECKED_ROWS]
    hidden = patterns[generator.integers(len(patterns), size=len(checked))] & ~np.isnan(Z[checked])
    useful = hidden.any(1)
    checked, hidden = checked[useful], hidden[useful]
    count = min(FOLDS_OF_FEW if len(Z) <= FEW_ROWS else FOLDS_OF_MANY, len(checked))
    for number in range(count):
        own = np.arange(number, len(checked), count)
        others = np.setdiff1d(order, checked[own])
        if len(others) > LEARNED_ROWS:
            others = generator.choice(others, LEARNED_ROWS, replace=False)
        learned = Z[others]
        if len(others) and not np.isnan(learned).all(0).any():
            yield learned, Z[checked[own]], hidden[own]
