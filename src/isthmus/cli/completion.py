"""Which energy fills the gaps of a table best, judged by cells that are hidden on purpose."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from isthmus.memories.base import Memory

__all__ = ["Candidate", "Check", "How", "candidates", "check", "fill", "learned_energy"]

How = Literal["mean", "mode"]

# Bandwidths tried, in standard deviations of a column.
SIGMAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
FEWEST_MEMORIES = 5
# The check hides cells in at most so many rows, and learns from at most so many others.
CHECKED_ROWS, LEARNED_ROWS = 2000, 20_000
FOLDS_OF_FEW, FOLDS_OF_MANY, FEW_ROWS = 10, 4, 500


@dataclass(frozen=True)
class Candidate:
    """A way to make an energy of rows: a density estimate or learned memories.

    Attributes
    ----------
    energy : {"kde", "crp"}
    sigma : float or None
        The bandwidth of the former.
    """

    energy: str
    sigma: float | None = None

    def __str__(self) -> str:
        return self.energy if self.sigma is None else f"{self.energy}, sigma {self.sigma:g}"


@dataclass(frozen=True)
class Check:
    """What came of hiding cells: which candidate was best, and how well it does.

    Attributes
    ----------
    chosen : Candidate
        The one with the lowest squared error on the cells for choosing.
    errors, baseline : ndarray (D,)
        Its root mean squared error in each column, and that of the column's mean, on other
        cells; NaN where none was hidden. In the units of the rows.
    overall, overall_baseline : float
        The same over all columns.
    cells : int
        How many cells the errors are of.
    """

    chosen: Candidate
    errors: NDArray[np.float64]
    baseline: NDArray[np.float64]
    overall: float
    overall_baseline: float
    cells: int


def candidates(energy: str, sigma: float | None) -> list[Candidate]:
    """All that the options leave to choose from."""
    sigmas = SIGMAS if sigma is None else (sigma,)
    densities = [Candidate("kde", value) for value in sigmas]
    if energy == "kde":
        return densities
    return [Candidate("crp")] if energy == "crp" else [*densities, Candidate("crp")]


def learned_energy(candidate: Candidate, Z: NDArray[np.float64], seed: int) -> Memory:
    """The energy that a candidate makes of rows, those with gaps included where it can."""
    import numpy as np

    from isthmus.cluster import ClAMCRP
    from isthmus.memories import GaussianKDE

    if candidate.sigma is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ClAMCRP(random_state=seed).fit(Z).energy_
    whole = Z[~np.isnan(Z).any(1)]
    if len(whole) < FEWEST_MEMORIES:
        raise InvalidInputError(
            f"Only {len(whole)} rows are complete, too few for --energy kde; use crp, or name a "
            "table of complete rows with --memory."
        )
    return GaussianKDE(whole, candidate.sigma)


def fill(energy: Memory, Z: NDArray[np.float64], how: How) -> NDArray[np.float64]:
    """Rows with their gaps filled by the mean given the known values, or by a mode. (n, D)"""
    import numpy as np
    import torch

    from isthmus.dynamics.retrieve import complete

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


def check(
    Z: NDArray[np.float64],
    patterns: NDArray[np.bool_],
    tried: list[Candidate],
    how: How,
    seed: int,
    report: Callable[[str, int], None] = lambda last, done: None,
) -> Check | None:
    """Hide cells as the gaps do, fill them from other rows, and compare.

    Rows are dealt into folds. In those of a fold, cells are hidden where some row with gaps,
    drawn by lot, has them; an energy of the rows outside the fold fills them. Half of the folds
    choose the candidate, the other half say how well it does, so that the error is not that of
    the best of many tries.

    Parameters
    ----------
    Z : ndarray (n, D)
        Rows to learn from, NaN where unknown.
    patterns : ndarray (m, D) of bool
        True where a row has gaps.
    tried : list of Candidate
    how : {"mean", "mode"}
    seed : int
    report : callable
        Told what was done last and how many folds are done.

    Returns
    -------
    Check or None
        None where there are too few rows, or no cells to hide.
    """
    import numpy as np

    halves: list[NDArray[np.int64]] = []
    centres: list[NDArray[np.float64]] = []
    columns: list[NDArray[np.int64]] = []
    folds = list(_folds(Z, patterns, seed))
    if len(folds) < 2:
        return None
    collected: dict[Candidate, list[NDArray[np.float64]]] = {one: [] for one in tried}
    for number, (learned, rows, hidden) in enumerate(folds):
        truth = rows[hidden]
        given = np.where(hidden, np.nan, rows)
        for candidate in tried:
            try:
                filled = fill(learned_energy(candidate, learned, seed), given, how)[hidden]
            except InvalidInputError:
                filled = np.full(len(truth), np.inf)
            collected[candidate].append((filled - truth) ** 2)
        columns.append(np.nonzero(hidden)[1])
        centres.append((np.nanmean(learned, 0)[columns[-1]] - truth) ** 2)
        halves.append(np.full(len(truth), number % 2))
        report(f"fold {number + 1}", number + 1)
    errors = {one: np.concatenate(parts) for one, parts in collected.items()}
    half, column, centre = (np.concatenate(parts) for parts in (halves, columns, centres))
    chosen = min(tried, key=lambda one: float(errors[one][half == 0].mean()))
    return _judged(chosen, errors[chosen][half == 1], centre[half == 1], column[half == 1], Z)


def _judged(
    chosen: Candidate,
    squares: NDArray[np.float64],
    centres: NDArray[np.float64],
    column: NDArray[np.int64],
    Z: NDArray[np.float64],
) -> Check | None:
    import numpy as np

    if not np.isfinite(squares).all():
        return None
    times = np.bincount(column, minlength=Z.shape[1])

    def per_column(values: NDArray[np.float64]) -> NDArray[np.float64]:
        sums = np.bincount(column, values, minlength=Z.shape[1])
        found: NDArray[np.float64] = np.sqrt(sums / np.where(times > 0, times, np.nan))
        return found

    return Check(
        chosen,
        per_column(squares),
        per_column(centres),
        float(np.sqrt(squares.mean())),
        float(np.sqrt(centres.mean())),
        len(squares),
    )


def _folds(Z: NDArray[np.float64], patterns: NDArray[np.bool_], seed: int) -> Iterator[Any]:
    """Rows to learn from, rows to fill, and which of their cells are hidden."""
    import numpy as np

    generator = np.random.default_rng(seed)
    order = generator.permutation(len(Z))
    checked = order[:CHECKED_ROWS]
    hidden = patterns[generator.integers(len(patterns), size=len(checked))] & ~np.isnan(Z[checked])
    worth = hidden.any(1)
    checked, hidden = checked[worth], hidden[worth]
    count = FOLDS_OF_FEW if len(Z) <= FEW_ROWS else FOLDS_OF_MANY
    count = min(count, len(checked))
    for number in range(count):
        mine = np.arange(number, len(checked), count)
        others = np.setdiff1d(order, checked[mine])
        if len(others) > LEARNED_ROWS:
            others = generator.choice(others, LEARNED_ROWS, replace=False)
        learned = Z[others]
        if len(others) and not np.isnan(learned).all(0).any():
            yield learned, Z[checked[mine]], hidden[mine]
