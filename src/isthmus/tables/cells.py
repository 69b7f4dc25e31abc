"""Cells of text: which are numbers, which are missing, and how the numbers of a column look."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import types

from isthmus.scaling import MOST_DECIMALS

MISSING = frozenset({"", "-", "--", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
"""Spellings of a missing value, in lower case; any other case counts too."""
SWAPPED = str.maketrans(",.", ".,")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# Possible commas between thousands; no such number begins with a zero.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
GROUPED = re.compile(rf"{THOUSANDS.pattern}(\.\d*)?")
# Here the point tells that the commas are no decimal marks, and the comma that the points are none.
CLEARLY_GROUPED = re.compile(rf"{THOUSANDS.pattern}\.\d+")
POINTS_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+")
KINDS = GAP, NUMBER, FLAG, WORD, COMMAS = range(5)
SIGNS = "%$€£¥"
_LETTER = r"(?:[^\W\d_]|[°/])"
# A sign, or a word of at most 8 letters; a single letter needs a space, since 12a may be a code.
_AFTER = rf"(?<=[\d.])(?:\s?[{SIGNS}]|(?:\s{_LETTER}|\s?{_LETTER}{{2}}){_LETTER}{{0,6}})$"
UNIT = re.compile(rf"(?<![^+-])[$€£¥]\s?(?=[\d.])|{_AFTER}")
"""A currency before an amount, or a currency, a percent sign or the name of a unit after it."""
BEFORE, AFTER = re.compile(r"^[+-]?([$€£¥]\s?)"), re.compile(_AFTER)
# Means of whole numbers, where they are not rounded, have so many decimals.
DECIMALS_OF_MEANS = 2


@dataclass(frozen=True)
class NumberStyle:
    """The sign before and after the numbers of a column, their decimals and their decimal mark.

    `decimals` is None where numbers have all the digits of a float, `truths` are the spellings of
    false and true, and `grouped` says that the other mark separates thousands.

    >>> style = NumberStyle.of(["$15.2", "-$3"], ".")
    >>> style.write(-0.456), style.write(12.0)
    ('-$0.5', '$12.0')
    """

    before: str = ""
    after: str = ""
    decimals: int | None = None
    mark: str = "."
    truths: tuple[str, str] | None = None
    grouped: bool = False

    @classmethod
    def of(cls, cells: Iterable[str], mark: str) -> NumberStyle:
        """Return the style of known cells: the sign of the first, the most decimals of any."""
        texts = [cell.strip() for cell in cells]
        if not texts:
            return cls(mark=mark)
        if {text.lower() for text in texts} <= {"false", "true"}:
            spell = str.upper if texts[0].isupper() else str.title if texts[0][0].isupper() else str
            return cls(decimals=0, truths=(spell("false"), spell("true")))
        before, after = BEFORE.search(texts[0]), AFTER.search(texts[0])
        bare = [AFTER.sub("", text) for text in texts]
        most = max(len(text.rpartition(mark)[2]) if mark in text else 0 for text in bare)
        exact = most > MOST_DECIMALS or any("e" in text.lower() for text in bare)
        signs = (before.group(1) if before else "", after.group() if after else "")
        grouped = any(mark.translate(SWAPPED) in text for text in bare)
        return cls(*signs, None if exact else most, mark, grouped=grouped)

    @property
    def has_sign(self) -> bool:
        """True if numbers have a sign or a unit."""
        return bool(self.before or self.after)

    def rounded(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values with the decimals of the column; means of whole numbers have two."""
        if self.decimals is None:
            return values
        if self.truths is not None:
            return np.where(np.isnan(values), np.nan, values >= 0.5)
        more = 0 if self.decimals or self.has_sign else DECIMALS_OF_MEANS
        return np.round(values, self.decimals + more)

    def write(self, value: float) -> str:
        """Return a number as text; empty if it is NaN."""
        value = float(self.rounded(np.array(value, dtype=np.float64)))
        if value != value:
            return ""
        if self.truths is not None:
            return self.truths[int(value)]
        if self.decimals is None or (self.decimals == 0 and not value.is_integer()):
            amount = repr(abs(value))
        else:
            amount = f"{abs(value):{',' if self.grouped else ''}.{self.decimals}f}"
        if self.mark == ",":
            amount = amount.translate(SWAPPED)
        return f"{'-' * (value < 0)}{self.before}{amount}{self.after}"


def is_number(cell: str) -> bool:
    """Return True for a number with a decimal point."""
    try:
        float(cell)
    except ValueError:
        return False
    # Python reads 1_000; other programs do not.
    return "_" not in cell and cell.strip().lower() not in MISSING


def has_commas(cell: str) -> bool:
    """Return True for a number with a decimal comma or with commas between thousands."""
    return any(kind.fullmatch(cell.strip()) for kind in (DECIMAL_COMMA, GROUPED, POINTS_GROUPED))


def is_missing(column: pd.Series) -> pd.Series:
    """Return True for missing cells, and for text that is a spelling of a missing value."""
    if is_nested(column):
        return column.isna()
    lower = column.astype(object).astype(str).str.strip().str.lower()
    found: pd.Series = column.isna() | lower.isin(MISSING)
    return found


def is_nested(column: pd.Series) -> bool:
    """Return True if cells of a column are lists or objects, as in JSON and Parquet files."""
    if isinstance(column.dtype, pd.ArrowDtype):
        return bool(types.is_nested(column.dtype.pyarrow_dtype))
    return column.dtype == object and not column.map(pd.api.types.is_hashable).all()


def parse_cells(
    column: Any, decimal: str, grouped: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return value and kind of each cell in a column of text, or of text among numbers.

    The mark that is not the decimal one separates thousands if `grouped`, or if a cell shows that.
    """
    column = pd.Series(column)
    codes, distinct = pd.factorize(column.astype(object).map(str) if is_nested(column) else column)
    texts = [str(cell).strip() for cell in distinct]
    # The unit that is no part of the numbers: the sign of most cells, the word of all.
    units = Counter(_unit(text) for text in texts if text.lower() not in MISSING)
    unit = max(units, key=units.__getitem__, default="")
    unit = unit if unit in SIGNS or len(units) == 1 else ""
    # Where commas are decimal marks, points are not.
    marks = SWAPPED if decimal == "," else {}
    bare = (UNIT.sub("", text).translate(marks) for text in texts)
    grouped = grouped or any(map(CLEARLY_GROUPED.fullmatch, bare))

    def parse(cell: object) -> tuple[float, int]:
        text = str(cell).strip()
        if unit and text.lower() not in MISSING:
            if _unit(text) != unit:
                return np.nan, WORD
            text = UNIT.sub("", text)
        word = (text.translate(marks) if isinstance(cell, str) else text).lower()
        if word in MISSING:
            return np.nan, GAP
        if word in ("true", "false"):
            return float(word == "true"), FLAG
        if grouped and GROUPED.fullmatch(word):
            word = word.replace(",", "")
        if is_number(word):
            return float(word), NUMBER
        return np.nan, COMMAS if has_commas(text) else WORD

    values, kinds = zip((np.nan, GAP), *map(parse, distinct), strict=True)
    # Missing cells have the code -1.
    return np.array(values)[codes + 1], np.array(kinds)[codes + 1]


def _unit(text: str) -> str:
    """Return the currency, percent sign or other unit of an amount, or nothing."""
    return "".join(UNIT.findall(text)).strip()
