"""How the numbers of a column are written: decimals, and signs or units."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

SIGNS = "%$€£¥"
_LETTER = r"(?:[^\W\d_]|[°/])"
# A sign, or a word of at most 8 letters; a single letter needs a space, since 12a may be a code.
_AFTER = rf"(?<=[\d.])(?:\s?[{SIGNS}]|(?:\s{_LETTER}|\s?{_LETTER}{{2}}){_LETTER}{{0,6}})$"
UNIT = re.compile(rf"(?<![^+-])[$€£¥]\s?(?=[\d.])|{_AFTER}")
"""A currency before an amount, or a currency, a percent sign or the name of a unit after it."""
BEFORE, AFTER = re.compile(r"^[+-]?([$€£¥]\s?)"), re.compile(_AFTER)
SWAPPED = str.maketrans(",.", ".,")
# Numbers with more decimals are not rounded.
MOST_DECIMALS = 6
# Means of whole numbers, where they are not rounded, have so many decimals.
DECIMALS_OF_MEANS = 2


def count_decimals(column: NDArray[np.float64]) -> int | None:
    """Return the number of decimals that all values have at most, or None if there are many.

    >>> import numpy as np
    >>> count_decimals(np.array([1.5, 2.25])), count_decimals(np.array([1 / 3]))
    (2, None)
    """
    for decimals in range(MOST_DECIMALS + 1):
        if np.allclose(column, np.round(column, decimals), rtol=1e-12, atol=0):
            return decimals
    return None


@dataclass(frozen=True)
class NumberStyle:
    """The sign before and after the numbers of a column, their decimals and their decimal mark.

    `decimals` is None where numbers have all the digits of a float.

    >>> style = NumberStyle.of(["$15.2", "-$3"], ".")
    >>> style.write(-0.456), style.write(12.0)
    ('-$0.5', '$12.0')
    """

    before: str = ""
    after: str = ""
    decimals: int | None = None
    mark: str = "."
    truths: tuple[str, str] | None = None
    """Spellings of false and true, in a column of truth values."""
    grouped: bool = False
    """True if the other mark separates thousands."""

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
        other = "." if mark == "," else ","
        grouped = any(other in text for text in bare)
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
        if value != value:
            return ""
        value = float(self.rounded(np.array(value)))
        if self.truths is not None:
            return self.truths[int(value)]
        if self.decimals is None or (self.decimals == 0 and not value.is_integer()):
            amount = repr(abs(value))
        else:
            amount = f"{abs(value):{',' if self.grouped else ''}.{self.decimals}f}"
        if self.mark == ",":
            amount = amount.translate(SWAPPED)
        return f"{'-' * (value < 0)}{self.before}{amount}{self.after}"
