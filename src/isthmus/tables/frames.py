"""Columns of data frames that are not what they seem: ids, and text that is no category."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from isthmus.tables.columns import GAP, ID_NAME, WORD, is_missing, is_nested, parse_cells

# Text whose values are distinct in more than half of the rows is not one of categories, if there
# are at least so many rows.
FEWEST_ROWS = 10


def warn_of_columns(frame: Any, stacklevel: int = 3) -> None:
    """Warn of the doubtful columns of a data frame of pandas, each by name."""
    if isinstance(frame, pd.DataFrame) and len(frame) >= FEWEST_ROWS:
        for sentence in doubtful_columns(frame):
            warnings.warn(sentence, UserWarning, stacklevel=stacklevel)


def doubtful_columns(frame: pd.DataFrame) -> Iterator[str]:
    """Yield a sentence on each column that looks like ids, or is text but not categories.

    >>> import pandas as pd
    >>> table = pd.DataFrame({"price": ["$1.50", "$2.25"], "size": [1.0, 2.0]})
    >>> print(*doubtful_columns(table))
    Column 'price' holds numbers as text, such as '$1.50', and is treated as categories. Convert it to numbers first.
    """  # noqa: E501
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if is_nested(column):
            continue
        known = column[~is_missing(column)]
        distinct = known.nunique()
        if ID_NAME.fullmatch(str(name)) and distinct == len(known) > len(column) / 2:
            if column.dtype.kind == "f" and (known % 1 != 0).any():
                continue
            yield f"Column {name!r} looks like row ids and is learned from. Leave it out."
        elif column.dtype in ("object", "str", "string") and len(known):
            yield from _doubtful_text(name, known, 2 * distinct > max(len(column), 2))


def _doubtful_text(name: Any, known: pd.Series, is_distinct: bool) -> Iterator[str]:
    """Yield a sentence on a column of text that is no column of categories."""
    shown, treated = f"such as {str(known.iloc[0])!r},", "and is treated as categories."
    kinds = set(np.unique(parse_cells(known, ".")[1]).tolist()) - {GAP}
    if kinds and max(kinds) < WORD and not all(isinstance(cell, bool) for cell in known):
        advice = "Convert it to numbers first."
        yield f"Column {name!r} holds numbers as text, {shown} {treated} {advice}"
    elif is_distinct:
        kind, advice = "text that hardly repeats", "Leave it out."
        if pd.to_datetime(known, errors="coerce", format="ISO8601").notna().all():
            kind, advice = "dates as text", "Convert it with pandas.to_datetime, or leave it out."
        yield f"Column {name!r} holds {kind}, {shown} {treated} {advice}"
