"""Columns of categories, and those that are not what they seem: ids, other text."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd

from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.tables.columns import (
    GAP,
    ID_NAME,
    WORD,
    is_missing,
    is_nested,
    is_textual,
    parse_cells,
)
from isthmus.tables.files import Table

# Text whose values are distinct in more than half of the rows is not one of categories, if there
# are at least so many rows.
FEWEST_ROWS = 10


def with_categories(table: Table) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the numbers of a table with its label and its columns of text, and notes on them.

    Ids, and text of which most rows have a value of their own, are left out. Missing text is None,
    but beside a single value it is a value too, such as no tick in a column of ticks.
    """
    columns, categories, unique = {}, [], []
    for name, column in table.frame.items():
        if name in table.columns:
            values = table.X[:, table.columns.index(name)]
            whole = column.dtype.kind in "iu" and not np.isnan(values).any()
            exact = np.uint64 if column.dtype.kind == "u" else np.int64
            columns[name] = column.to_numpy(exact) if whole else values
        elif (name in table.left_out or name == table.label_name) and not column.isna().all():
            known = column.mask(is_missing(column), None)
            text = column if is_nested(column) or known.nunique() < 2 else known
            most = max(2, len(column) / 2)
            if is_nested(text) or not 1 < text.nunique(dropna=False) <= most:
                unique.append(str(name))
            else:
                categories.append(str(name))
                # Numbers that are named as labels are categories, and nobody need be told.
                columns[name] = text.astype("category") if name == table.label_name else text
    if not columns:
        raise InvalidInputError("There is no column of numbers to use, nor of text that repeats.")
    notes = [note for note in table.notes if "since most cells are not numbers" not in note]
    if categories:
        notes.append(f"Used as categories: {listed(categories)}.")
    if unique:
        reason = "nearly every row has its own value, or all the same"
        notes.append(f"Left out, since {reason}: {listed(unique)}.")
    return pd.DataFrame(columns), tuple(notes)


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
            if column.dtype.kind != "f" or not (known % 1 != 0).any():
                yield f"Column {name!r} looks like row ids and is learned from. Leave it out."
            continue
        if not is_textual(column) or known.empty:
            continue
        kinds = set(np.unique(parse_cells(known, ".")[1]).tolist()) - {GAP}
        if kinds and max(kinds) < WORD and not all(isinstance(cell, bool) for cell in known):
            kind, advice = "numbers as text", "Convert it to numbers first."
        elif 2 * distinct <= max(len(column), 2):
            continue
        elif pd.to_datetime(known, errors="coerce", format="ISO8601").notna().all():
            kind, advice = "dates as text", "Convert it with pandas.to_datetime, or leave it out."
        else:
            kind, advice = "text that hardly repeats", "Leave it out."
        shown = f"such as {str(known.iloc[0])!r}, and is treated as categories."
        yield f"Column {name!r} holds {kind}, {shown} {advice}"
