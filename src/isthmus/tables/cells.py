"""Cells of text: numbers, missing values, and words."""

from __future__ import annotations

import re
from dataclasses import dataclass

import numpy as np
import pandas as pd
from numpy.typing import NDArray

__all__ = ["Cells", "has_commas", "is_number", "parse_cells"]

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
"""Spellings of a missing value, in lower case; any other case counts too."""
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# Possible commas between thousands; no such number begins with a zero.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
WITH_COMMAS = re.compile(rf"{THOUSANDS.pattern}(\.\d*)?|[+-]?\d{{1,3}}(\.\d{{3}})+,\d+")
SWAPPED = str.maketrans(",.", ".,")
KINDS = GAP, NUMBER, FLAG, WORD, COMMAS = range(5)


@dataclass(frozen=True)
class Cells:
    """The values of a column of text, NaN for words, and the kind of each cell. Both are (n,)."""

    values: NDArray[np.float64]
    kinds: NDArray[np.int64]

    @property
    def numeric(self) -> bool:
        """True if all cells are numbers, or all are true or false; gaps aside."""
        found = set(np.unique(self.kinds).tolist()) - {GAP}
        return found <= {NUMBER} or found <= {FLAG}

    @property
    def fault(self) -> int | None:
        """The first row that is not a number, in a column that mostly is."""
        counts = np.bincount(self.kinds, minlength=len(KINDS))
        faults = self.kinds >= (FLAG if counts[NUMBER] else WORD)
        if self.numeric or counts[NUMBER] + counts[COMMAS] < faults.sum():
            return None
        words = self.kinds >= WORD
        return int(np.argmax(words if words.any() else faults))


def parse_cells(column: pd.Series, decimal: str = ".") -> Cells:
    """Parse a column of text, or of text among numbers. Each distinct cell is parsed once."""
    codes, distinct = pd.factorize(column)
    # Missing cells have the code -1.
    parsed = [(GAP, np.nan), *(_parse(cell, decimal) for cell in distinct)]
    kinds, values = (np.array(found)[codes + 1] for found in zip(*parsed, strict=True))
    return Cells(values, kinds)


def _parse(cell: object, decimal: str) -> tuple[int, float]:
    text = str(cell).strip()
    # Where commas are decimal marks, points are not.
    comma = decimal == "," and isinstance(cell, str)
    word = (text.translate(SWAPPED) if comma else text).lower()
    if word in MISSING:
        return GAP, np.nan
    if word in ("true", "false"):
        return FLAG, float(word == "true")
    if is_number(word):
        return NUMBER, float(word)
    return (COMMAS if has_commas(text) else WORD), np.nan


def has_commas(cell: str) -> bool:
    """Return True for a number with a decimal comma or with commas between thousands."""
    return any(kind.fullmatch(cell.strip()) for kind in (DECIMAL_COMMA, WITH_COMMAS))


def is_number(cell: str) -> bool:
    """Return True for a number with a decimal point."""
    try:
        float(cell)
    except ValueError:
        return False
    # Python reads 1_000; other programs do not.
    return "_" not in cell and cell.strip().lower() not in MISSING
