"""Cells of text: numbers, missing values, and words."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["DECIMAL_COMMA", "MISSING", "THOUSANDS", "Cells", "has_commas", "is_number", "parse"]

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
"""Spellings of a missing value, in lower case; upper and mixed case count too."""
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# Possible commas between thousands; no such number begins with a zero.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
WITH_COMMAS = re.compile(rf"{THOUSANDS.pattern}(\.\d*)?|[+-]?\d{{1,3}}(\.\d{{3}})+,\d+")
SWAPPED = str.maketrans(",.", ".,")
KINDS = GAP, NUMBER, FLAG, WORD, COMMAS = range(5)


@dataclass(frozen=True)
class Cells:
    """A column of text, parsed.

    Attributes
    ----------
    values : ndarray (n,)
        NaN where a cell is missing or not a number; 1 and 0 for true and false.
    kinds : ndarray (n,)
        GAP, NUMBER, FLAG, WORD, or COMMAS for a number with commas that are not decimal ones.
    """

    values: NDArray[np.float64]
    kinds: NDArray[np.int64]

    @property
    def is_numeric(self) -> bool:
        """True if every cell is a number, or every cell is true or false; gaps aside."""
        found = set(np.unique(self.kinds).tolist()) - {GAP}
        return found <= {NUMBER} or found <= {FLAG}

    def first_fault(self) -> int | None:
        """Return the first row that is not a number in a column that is mostly numbers."""
        counts = np.bincount(self.kinds, minlength=len(KINDS))
        faults = self.kinds >= (FLAG if counts[NUMBER] else WORD)
        if self.is_numeric or counts[NUMBER] + counts[COMMAS] < faults.sum():
            return None
        # A word says more about what is wrong than true or false does.
        words = self.kinds >= WORD
        return int(np.argmax(words if words.any() else faults))


def parse(column: Any, decimal: str = ".") -> Cells:
    """Parse a Series of text, or of text among numbers."""
    import pandas as pd

    codes, distinct = pd.factorize(column)
    kinds, values = [GAP], [np.nan]
    for cell in distinct:
        kind, value = _parse(str(cell), decimal if isinstance(cell, str) else ".")
        kinds.append(kind)
        values.append(value)
    # Missing cells have the code -1.
    return Cells(np.array(values)[codes + 1], np.array(kinds)[codes + 1])


def _parse(cell: str, decimal: str) -> tuple[int, float]:
    # Where commas are decimal, points are not.
    word = (cell.translate(SWAPPED) if decimal == "," else cell).strip().lower()
    if word in MISSING:
        return GAP, np.nan
    if word in ("true", "false"):
        return FLAG, float(word == "true")
    if is_number(word):
        return NUMBER, float(word)
    return (COMMAS if has_commas(cell) else WORD), np.nan


def has_commas(cell: str) -> bool:
    """Return True if only decimal commas or commas between thousands spoil a number."""
    return any(kind.fullmatch(cell.strip()) for kind in (DECIMAL_COMMA, WITH_COMMAS))


def is_number(cell: str) -> bool:
    """Return True if a cell is a number, with a decimal point."""
    try:
        float(cell)
    except ValueError:
        return False
    # Python reads 1_000; other programs do not.
    return "_" not in cell and cell.strip().lower() not in MISSING
