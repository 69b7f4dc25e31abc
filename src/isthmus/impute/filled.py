"""`fill_gaps`: fill a whole table, by any energy, and report how well that works."""

from __future__ import annotations

import warnings
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.cluster.crp import ClAMCRP
from isthmus.cluster.tabular import TableModel
from isthmus.dynamics.retrieve import complete
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.extras import require
from isthmus.impute.imputer import MemoryImputer
from isthmus.incontext.model import pretrained
from isthmus.memories.base import Memory
from isthmus.memories.gaussian import GaussianKDE
from isthmus.printing import Summarised, aligned, counted, listed
from isthmus.progress import progress
from isthmus.scaling import Scaling, as_table
from isthmus.tables.encoding import as_frame, is_category, is_mixed
from isthmus.validation import as_choice, as_flag, as_names, as_number, as_seed, require_kind

How = Literal["mean", "mode"]
FloatArray = NDArray[np.float64]
# A bandwidth of a kernel density, the in-context density, or None for ClAMCRP.
Candidate = float | Literal["tables"] | None

# Bandwidths to choose from, in standard deviations of a column.
SIGMAS = (0.05, 0.1, 0.15, 0.2, 0.3, 0.4, 0.5, 0.7, 1.0, 1.4, 2.0, 2.8)
CANDIDATES: dict[str, list[Candidate]] = {"kde": [*SIGMAS], "crp": [None], "tables": ["tables"]}
FEWEST_MEMORIES = 5
# The check hides cells in at most this many rows, and learns from at most this many others.
CHECKED_ROWS, LEARNED_ROWS = 2000, 20_000
FOLDS_OF_FEW, FOLDS_OF_MANY, FEW_ROWS = 10, 4, 500
LISTED_COLUMNS = 15
TOO_FEW = "too few rows to measure how well the gaps are filled."
# An error this close to that of column means is no improvement.
NO_BETTER = 0.95
# A column with a smaller share of known cells is nearly empty; text with more gaps is optional.
NEARLY_EMPTY, OPTIONAL = 0.1, 0.5


@dataclass(frozen=True, eq=False, repr=False)
class FilledTable(Summarised):
    """A table whose gaps are filled. ``print`` shows a summary.

    Attributes
    ----------
    X : ndarray (n, D)
        Known values are unchanged. NaN remains in columns that a model does not know.
    gaps : ndarray (n, D) of bool
        True where a value was missing.
    energy : str
        "memory", "kde", "crp", "tables", or the name of a model's estimator; empty if nothing was
        missing.
    sigma : float or None
        The bandwidth of "kde", in standard deviations of the columns, which are `scale` (D,).
    errors, baseline : ndarray (m, D) or None
        Errors at hidden cells, and those of column means; NaN where no cell was hidden. None if
        errors cannot be measured.
    words, word_gaps : DataFrame (n, C) and ndarray of bool; or None
        The columns of text, with their gaps filled, and where those were.
    word_errors : dict
        For each column of text that was filled, the share of wrong values at hidden cells, that of
        its most frequent value, and the number of cells.
    """

    X: FloatArray
    gaps: NDArray[np.bool_]
    columns: tuple[str, ...]
    energy: str
    sigma: float | None
    how: How
    scale: FloatArray
    errors: FloatArray | None = None
    baseline: FloatArray | None = None
    notes: tuple[str, ...] = ()
    words: Any = None
    word_gaps: Any = None
    word_errors: dict[str, tuple[float, float, int]] = field(default_factory=dict)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        gaps, left = self._cells
        found: dict[str, Any] = {
            "rows": len(self.X),
            "columns": self.X.shape[1],
            "missing": int(gaps.sum()),
            "rows_with_gaps": int(gaps.any(1).sum()),
            "left_empty": int(left.sum()),
        }
        if self.energy:
            found |= {"energy": self.energy, "sigma": self.sigma, "how": self.how}
        if self.errors is None or self.baseline is None:
            return found
        hidden, columns = ~np.isnan(self.errors), dict[str, Any]()
        for place in np.flatnonzero((self.gaps & ~np.isnan(self.X)).any(0) & hidden.any(0)):
            columns[self.columns[place]] = {
                "missing": int(self.gaps[:, place].sum()),
                "error": _root_mean_square(self.errors[:, place]),
                "error_of_column_mean": _root_mean_square(self.baseline[:, place]),
            }
        for name, (wrong, usual, _) in self.word_errors.items():
            count = int(self.word_gaps[:, list(self.words).index(name)].sum())
            columns[name] = {"missing": count, "error": wrong, "error_of_column_mean": usual}
        error, error_of_means = (
            _root_mean_square(each / self.scale) if hidden.any() else None
            for each in (self.errors, self.baseline)
        )
        found["check"] = {
            "cells": int(hidden.sum()) + sum(count for *_, count in self.word_errors.values()),
            "error": error,
            "error_of_column_means": error_of_means,
            "columns": columns,
        }
        return found

    @property
    def _cells(self) -> tuple[NDArray[np.bool_], NDArray[np.bool_]]:
        """The cells of numbers and of text that were missing, and that still are."""
        if self.words is None:
            return self.gaps, np.isnan(self.X)
        left = np.column_stack([np.isnan(self.X), self.words.isna()])
        return np.column_stack([self.gaps, self.word_gaps]), left

    def __str__(self) -> str:
        found, (gaps, left) = self.summary, self._cells
        rows = counted(found["rows"], "row")
        if not found["missing"]:
            return f"No value of the {rows} is missing."
        cells = counted(int((gaps & ~left).sum()), "cell")
        sigma = f", sigma {self.sigma:g}" if self.sigma else ""
        some = f"{int((gaps & ~left).any(1).sum()):,} of {rows}"
        line = f"{cells} filled in {some} ({self.energy}{sigma}, {self.how})"
        more = _check_lines(found["check"], set(self.word_errors)) if "check" in found else []
        return "\n".join([line, *[""][: len(more)], *more])

    __repr__ = __str__


def fill_gaps(
    X: Any,
    *,
    columns: Sequence[str] | None = None,
    memory: Any = None,
    model: TableModel | None = None,
    energy: str | None = None,
    sigma: float | None = None,
    how: How = "mean",
    words: Any = None,
    fill: Sequence[str] = (),
    standardise: bool = True,
    seed: int = 0,
    show_progress: bool | None = None,
) -> FilledTable:
    """Fill the missing values of a table from rows that are similar.

    Known cells are hidden, in the pattern of the gaps, to choose the energy and to measure the
    error to expect.

    Parameters
    ----------
    X : array or data frame (n, D)
        NaN marks missing values. Columns that do not hold numbers are taken as `words`.
    columns : sequence of str, optional
        Default: the names of a data frame, else x1, x2, ...
    memory : array (m, D) or data frame, optional
        Rows to learn from; a data frame has the columns of X, in any order. Default: those of X.
    model : TableModel, optional
        A fitted model that fills the columns it knows; nothing is learned or checked.
    energy : {"memory", "kde", "crp", "tables"}, optional
        :class:`MemoryImputer`, a kernel density of the complete rows, the memories of ClAMCRP, or
        the in-context density of small tables. Default: "memory"; "kde" if `sigma` is given; and
        without `standardise`, "kde" or "crp", whichever has the lower error.
    sigma : float, optional
        Bandwidth of "kde", in standard deviations. Default: the one with the lowest error.
    how : {"mean", "mode"}
        The mean given the known values, or the nearest minimum of the energy, a value that occurs.
    words : data frame (n, C), optional
        Columns of text beside those of X, which "memory" learns from and fills.
    fill : sequence of str
        Columns to fill even if hardly a tenth of their cells are known, or, of text, not half.
    standardise : bool
    seed : int
    show_progress : bool, optional
        Default: on a terminal, if it takes long.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.impute import fill_gaps
    >>> x = np.linspace(0, 1, 50)
    >>> X = np.column_stack([x, 2 * x])
    >>> X[10, 1] = np.nan
    >>> bool(abs(fill_gaps(X, sigma=0.05).X[10, 1] - 2 * x[10]) < 0.1)
    True
    """
    require("pandas")
    import pandas as pd

    if words is None and is_mixed(X):
        frame = as_frame(X)
        numeric = [name for name, column in frame.items() if not is_category(column, name)]
        if not numeric:
            raise InvalidInputError("X has no column of numbers; MemoryImputer fills such tables.")
        X, words = frame[numeric], frame.drop(columns=numeric)
    rows, names = as_table(X, columns)
    as_choice(how, "how", ("mean", "mode"))
    seed = as_seed(seed, 2**32 - 1)
    standardise = as_flag(standardise, "standardise")
    if words is not None:
        require_kind(words, "words", pd.DataFrame)
        if len(words) != len(rows):
            raise ShapeError(f"words has {len(words)} rows, but X has {len(rows)}.")
    fill = as_names(fill, "fill")
    known = (*names, *(() if words is None else words.columns))
    if absent := [repr(name) for name in fill if name not in known]:
        raise InvalidInputError(f"fill names columns that cannot be filled: {listed(absent, 5)}.")
    if model is not None:
        require_kind(model, "model", TableModel)
        return _filled_by_model(model, rows, names, how)
    source = rows
    if memory is not None:
        held = getattr(memory, "columns", names)
        if absent := [repr(name) for name in names if name not in held]:
            raise InvalidInputError(f"memory has no column called {listed(absent, 5)}.")
        memory = memory[list(names)] if hasattr(memory, "columns") else memory
        source = as_table(memory, names)[0]
    if energy is None and sigma is None and standardise:
        energy = "memory"
    if energy is not None:
        as_choice(energy, "energy", ("memory", *CANDIDATES))
    tried = CANDIDATES.get(energy or "", [*SIGMAS, None])
    if sigma is not None:
        if energy not in (None, "kde"):
            raise InvalidInputError(f"sigma is the bandwidth of the energy kde, not of {energy}.")
        tried = [as_number(sigma, "sigma", above=0)]
    scaling = Scaling.of(source, standardise or energy == "memory")
    result = FilledTable(rows, np.isnan(rows), names, "", None, how, scaling.scale)
    if energy == "memory":
        used = memory is None and words is not None and words.shape[1] > 0
        result = _filled_from_memory(result, source, words if used else None, fill, seed)
    elif result.gaps.any():
        options = {"seed": seed, "show_progress": show_progress}
        result = _filled_by_energy(result, scaling, source, tried, **options)
    sparse = (~np.isnan(source)).mean(0) < NEARLY_EMPTY
    blank = result.gaps & sparse & [name not in fill for name in names]
    if not blank.any():
        return result
    note = _note_on_blanks(np.array(names)[blank.any(0)], "nearly empty")
    return replace(result, X=np.where(blank, np.nan, result.X), notes=(*result.notes, note))


def _filled_by_energy(
    result: FilledTable,
    scaling: Scaling,
    source: FloatArray,
    tried: list[Candidate],
    **options: Any,
) -> FilledTable:
    Z, patterns = scaling.into(source), result.gaps[result.gaps.any(1)]
    found = hide_and_fill(Z, patterns, tried, result.how, **options)
    if found is None and tried == [*SIGMAS]:
        raise InvalidInputError(
            "There are too few complete rows to choose a bandwidth; give sigma, or use the energy "
            "crp."
        )
    chosen, errors, baseline = found or (tried[-1], None, None)
    filled = _fill(_energy(chosen, Z, options["seed"]), scaling.into(result.X), result.how)
    width = chosen if isinstance(chosen, float) else None
    return replace(
        result,
        X=np.where(result.gaps, scaling.back(filled), result.X),
        energy="kde" if width else str(chosen or "crp"),
        sigma=width,
        errors=None if errors is None else errors * scaling.scale,
        baseline=None if baseline is None else baseline * scaling.scale,
        notes=(TOO_FEW,) * (found is None),
    )


def _note_on_blanks(names: Any, reason: str) -> str:
    shown = listed([str(name) for name in names], 5)
    return f"Gaps are left in columns that are {reason}: {shown}."


def _filled_from_memory(
    result: FilledTable, source: FloatArray, words: Any, fill: Sequence[str], seed: int
) -> FilledTable:
    """Fill a table by a :class:`MemoryImputer` of a source, with words that are not optional."""
    import pandas as pd

    width, table, notes = result.X.shape[1], result.X, []
    used, word_errors = [], {}
    if words is not None:
        word_gaps = words.isna().to_numpy()
        optional = (word_gaps.mean(0) > OPTIONAL) & [name not in fill for name in words.columns]
        used = [*words.columns[~optional]]
        if optional.any():
            notes.append(_note_on_blanks(words.columns[optional], "mostly blank"))
        result = replace(result, words=words, word_gaps=word_gaps, notes=tuple(notes))
    if used:
        table = pd.DataFrame(table, index=words.index).add_prefix("x")
        source = table = pd.concat([table, words[used].add_prefix("w")], axis=1)
    if not np.any(pd.isna(table)):
        return result
    imputer = MemoryImputer(random_state=seed).set_output(transform="pandas")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        imputer.fit(source)
    filled = imputer.transform(table, how=result.how)
    if used:
        words = words.copy()
        for place, name in enumerate(used, width):
            words[name] = filled.iloc[:, place]
            is_category = words[name].dtype.kind != "M"
            if is_category and imputer.indicator_[:, place].any() and imputer.checked_[place]:
                shares = float(imputer.errors_[place]), float(imputer.mean_errors_[place])
                word_errors[name] = (*shares, int(imputer.checked_[place]))
    errors, baseline = (each[:, :width] for each in imputer.hidden_errors())
    measured = bool(word_errors) or not np.isnan(errors).all()
    if not measured:
        notes.append(TOO_FEW)
    elif result.how == "mode":
        notes.append("the errors are those of means; modes have larger ones.")
    return replace(
        result,
        X=filled.iloc[:, :width].to_numpy(np.float64),
        energy="memory",
        words=words,
        word_errors=word_errors,
        errors=errors if measured else None,
        baseline=baseline if measured else None,
        notes=tuple(notes),
    )


def hide_and_fill(
    Z: FloatArray,
    patterns: NDArray[np.bool_],
    tried: Sequence[Candidate],
    how: How = "mean",
    seed: int = 0,
    show_progress: bool | None = False,
) -> tuple[Candidate, FloatArray, FloatArray] | None:
    """Hide known cells, fill them from other rows, and return the best candidate and its errors.

    Cells of `Z` (n, D) are hidden in random `patterns` (m, D), and filled by an energy of the rows
    outside their fold. Half of the folds choose the candidate, the other half measure its errors
    (k, D), and those of column means: NaN at cells not hidden. None: too few rows or cells.
    """
    generator = np.random.default_rng(seed)
    order = generator.permutation(len(Z))
    hidden = patterns[generator.integers(len(patterns), size=len(Z))] & ~np.isnan(Z)
    checked = order[hidden[order].any(1)][:CHECKED_ROWS]
    count = min(FOLDS_OF_FEW if len(Z) <= FEW_ROWS else FOLDS_OF_MANY, len(checked))
    errors: dict[Candidate, list[FloatArray]] = {one: [] for one in tried}
    baseline = []
    with progress("hiding cells", count, show=show_progress) as report:
        for number in range(count):
            own = checked[number::count]
            others = np.setdiff1d(order, own)
            if len(others) > LEARNED_ROWS:
                others = generator.choice(others, LEARNED_ROWS, replace=False)
            rows, learned, chosen = Z[own], Z[others], hidden[own]
            if np.isnan(learned).all(0).any():  # or there are none
                continue
            for candidate in tried:
                try:
                    energy = _energy(candidate, learned, seed)
                    filled = _fill(energy, np.where(chosen, np.nan, rows), how)
                except InvalidInputError:
                    filled = np.full(rows.shape, np.inf)
                errors[candidate].append(np.where(chosen, filled - rows, np.nan))
            baseline.append(np.where(chosen, np.nanmean(learned, 0) - rows, np.nan))
            report(number + 1, f"fold {number + 1}")
    if len(baseline) < 2:
        return None
    best = min(tried, key=lambda one: _root_mean_square(np.concatenate(errors[one][::2])))
    measured = np.concatenate(errors[best][1::2])
    return None if np.isinf(measured).any() else (best, measured, np.concatenate(baseline[1::2]))


def _root_mean_square(values: FloatArray) -> float:
    return float(np.sqrt(np.nanmean(values**2)))


def _energy(sigma: Candidate, Z: FloatArray, seed: int) -> Memory:
    """Return an energy of rows (n, D), NaN where unknown."""
    if sigma == "tables":
        return pretrained("tables").condition(Z)
    if sigma is None:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return ClAMCRP(random_state=seed).fit(Z).energy_
    whole = Z[~np.isnan(Z).any(1)]
    if len(whole) < FEWEST_MEMORIES:
        raise InvalidInputError(
            f"Only {len(whole)} rows are complete, too few for a kernel density; use the energy "
            "crp, or learn from a table of complete rows."
        )
    return GaussianKDE(whole, sigma)


def _fill(energy: Memory, Z: FloatArray, how: How) -> FloatArray:
    """Fill gaps with the mean given the known values, or with a mode. (n, D) -> (n, D)"""
    open_rows, filled = np.isnan(Z).any(1), Z.copy()
    if open_rows.any():
        given = Z[open_rows]
        filled[open_rows] = np.where(np.isnan(given), complete(energy, given, how=how), given)
    return filled


def _filled_by_model(
    model: TableModel, rows: FloatArray, names: tuple[str, ...], how: How
) -> FilledTable:
    gaps, scaling = np.isnan(rows), model.scaling
    filled = scaling.back(_fill(model.energy, scaling.into(model.select(rows, names)), how))
    places = [names.index(name) for name in model.columns]
    X = rows.copy()
    X[:, places] = np.where(gaps[:, places], filled, rows[:, places])
    left = counted(int(np.isnan(X).sum()), "cell")
    note = f"{left} in columns that the model does not know stay empty."
    name = model.name if gaps.any() else ""
    notes = (note,) if np.isnan(X).any() else ()
    return FilledTable(X, gaps, names, name, None, how, scaling.scale, notes=notes)


def _check_lines(check: dict[str, Any], text: set[str]) -> list[str]:
    """Return the errors as an aligned table with a line for each column."""
    line = f"Checked on {counted(check['cells'], 'known cell')}, hidden in the pattern of the gaps"
    if check["error"] is None:  # of text alone
        lines = [f"{line}."]
    else:
        # Errors of column means that are exact are rounding.
        ratio = check["error"] / max(check["error_of_column_means"], 1e-9)
        lines = [f"{line}: the error is {ratio:.0%} of that of column means."]
        if ratio > NO_BETTER:
            verdict = "do better" if ratio > 1 / NO_BETTER else "would do as well"
            lines.append(f"Column means {verdict} here: the columns are hardly related.")
    rows = [("column", "missing", "typical error", "of the column mean")]
    for name, one in list(check["columns"].items())[:LISTED_COLUMNS]:
        shares = (one["error"], one["error_of_column_mean"])
        errors = [f"{each:.0%} wrong" if name in text else f"{each:.4g}" for each in shares]
        rows.append((name[:40], f"{one['missing']:,}", *errors))
    more = len(check["columns"]) - LISTED_COLUMNS
    return lines + aligned(rows) + [f"... and {more} more columns"] * (more > 0)
