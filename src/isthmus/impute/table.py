"""Fill the gaps of a table from rows that are similar."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.cluster.tabular import TableModel
from isthmus.errors import InvalidInputError
from isthmus.impute.check import FloatArray, GapCheck, How, candidates, check_candidates, fill
from isthmus.printing import aligned, counted
from isthmus.scaling import Scaling, as_table
from isthmus.validation import as_choice

__all__ = ["FilledTable", "fill_gaps"]

LISTED_COLUMNS = 15
# An error this close to that of column means is no improvement.
NO_BETTER = 0.95


@dataclass(frozen=True, eq=False, repr=False)
class FilledTable:
    """A table whose gaps are filled. ``print`` shows a summary.

    Attributes
    ----------
    X : ndarray (n, D)
        Known values are unchanged. NaN remains in columns that a model does not know.
    gaps : ndarray (n, D) of bool
        True where a value was missing.
    columns : tuple of str
    energy : str
        "kde", "crp", or the name of a model's estimator; empty if nothing was missing.
    sigma : float or None
        The bandwidth of "kde", in standard deviations of the columns.
    how : {"mean", "mode"}
    scaling : Scaling
    check : GapCheck or None
        In standard units. None if there are too few rows to measure errors, or a model is used.
    notes : tuple of str
        Remarks on the table.
    """

    X: FloatArray
    gaps: NDArray[np.bool_]
    columns: tuple[str, ...]
    energy: str
    sigma: float | None
    how: str
    scaling: Scaling
    check: GapCheck | None = None
    notes: tuple[str, ...] = ()

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        found: dict[str, Any] = {
            "rows": len(self.X),
            "columns": self.X.shape[1],
            "missing": int(self.gaps.sum()),
            "rows_with_gaps": int(self.gaps.any(1).sum()),
            "left_empty": int(np.isnan(self.X).sum()),
        }
        if self.energy:
            found |= {"energy": self.energy, "sigma": self.sigma, "how": self.how}
        if self.check is not None:
            found["check"] = self._errors(self.check)
        return found

    def _errors(self, check: GapCheck) -> dict[str, Any]:
        """Return the errors of columns in the units of the table."""
        missing, scale = self.gaps.sum(0), self.scaling.scale
        shown = np.flatnonzero((missing > 0) & np.isfinite(check.errors))
        return {
            "cells": check.cells,
            "error": check.overall,
            "error_of_column_means": check.overall_baseline,
            "columns": {
                self.columns[place]: {
                    "missing": int(missing[place]),
                    "error": float(check.errors[place] * scale[place]),
                    "error_of_column_mean": float(check.baseline[place] * scale[place]),
                }
                for place in shown
            },
        }

    def __str__(self) -> str:
        summary = self.summary
        if not summary["missing"]:
            return f"No value of the {counted(summary['rows'], 'row')} is missing."
        filled = counted(summary["missing"] - summary["left_empty"], "cell")
        sigma = f", sigma {self.sigma:g}" if self.sigma else ""
        lines = [
            f"{filled} filled in {summary['rows_with_gaps']:,} of {counted(len(self.X), 'row')} "
            f"({self.energy}{sigma}, {self.how})"
        ]
        if "check" in summary:
            lines += ["", *_check_lines(summary["check"])]
        return "\n".join(lines)

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
        NaN marks missing values.
    columns : sequence of str, optional
        Default: the names of a data frame, else x1, x2, ...
    memory : array (m, D), optional
        Rows to learn from. Default: those of X.
    model : TableModel, optional
        A fitted model that fills the columns it knows; nothing is learned or checked.
    energy : {"kde", "crp"}, optional
        A kernel density of the complete rows, or the memories that ClAMCRP learns. Default: the
        one with the lower error.
    sigma : float, optional
        Bandwidth of "kde", in standard deviations. Default: the one with the lowest error.
    how : {"mean", "mode"}
        The mean given the known values, which has the least squared error, or the nearest
        minimum of the energy, a value that occurs.
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
    rows, names = as_table(X, columns)
    how = "mode" if as_choice(how, "how", ("mean", "mode")) == "mode" else "mean"
    gaps = np.isnan(rows)
    if model is not None:
        if memory is not None or energy is not None or sigma is not None or not standardise:
            raise InvalidInputError(
                "A model is fitted already; leave out memory, energy, sigma and standardise."
            )
        return _filled_by_model(model, rows, names, how)
    tried = candidates(energy, sigma)
    source = rows if memory is None else as_table(memory, names)[0]
    scaling = Scaling.of(source, standardise)
    if not gaps.any():
        return FilledTable(rows, gaps, names, "", None, how, scaling)
    Z = scaling.into(source)
    found = check_candidates(Z, gaps[gaps.any(1)], tried, how, seed, show_progress)
    if found is None and energy == "kde" and sigma is None:
        raise InvalidInputError(
            "There are too few complete rows to choose a bandwidth; give sigma, or use the energy "
            "crp."
        )
    chosen = tried[-1] if found is None else found.chosen
    filled = scaling.back(fill(chosen.fit(Z, seed), scaling.into(rows), how))
    notes = () if found else ("too few rows to measure how well the gaps are filled.",)
    return FilledTable(
        np.where(gaps, filled, rows),
        gaps,
        names,
        chosen.energy,
        chosen.sigma,
        how,
        scaling,
        found,
        notes,
    )


def _filled_by_model(
    model: TableModel, rows: FloatArray, names: tuple[str, ...], how: How
) -> FilledTable:
    """Fill the columns that a fitted model knows."""
    gaps = np.isnan(rows)
    filled = fill(model.estimator.energy_, model.scaling.into(model.select(rows, names)), how)
    places = [names.index(name) for name in model.columns]
    X = rows.copy()
    X[:, places] = np.where(gaps[:, places], model.scaling.back(filled), rows[:, places])
    left = int(np.isnan(X).sum())
    unknown = "in columns that the model does not know stay empty."
    notes = (f"{counted(left, 'cell')} {unknown}",) if left else ()
    name = model.name if gaps.any() else ""
    return FilledTable(X, gaps, names, name, None, how, model.scaling, None, notes)


def _check_lines(check: dict[str, Any]) -> list[str]:
    """Return the errors as an aligned table with a line for each column."""
    ratio = check["error"] / max(check["error_of_column_means"], 1e-300)
    lines = [
        f"Checked on {counted(check['cells'], 'known cell')}, hidden in the pattern of the gaps: "
        f"the error is {ratio:.0%} of that of column means."
    ]
    if ratio > NO_BETTER:
        lines.append("Column means would do as well here: the columns are hardly related.")
    rows = [("column", "missing", "typical error", "of the column mean")]
    for name, one in list(check["columns"].items())[:LISTED_COLUMNS]:
        errors = (f"{one['error']:.4g}", f"{one['error_of_column_mean']:.4g}")
        rows.append((name[:40], f"{one['missing']:,}", *errors))
    lines += aligned(rows)
    if len(check["columns"]) > LISTED_COLUMNS:
        lines.append(f"... and {len(check['columns']) - LISTED_COLUMNS} more columns")
    return lines
