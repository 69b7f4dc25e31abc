"""Columns of categories, and those that are not what they seem: ids, other text."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np
import pandas as pd

from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.tables.columns import is_missing, is_nested, is_textual, mixed_units
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
                # What has several units is noted as such by the table.
                unique += [str(name)] * (not mixed_units(column, table.format.decimal))
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
    """Warn of columns of text that hardly repeats: ids, names, dates or numbers written as text."""
    if not isinstance(frame, pd.DataFrame) or len(frame) < FEWEST_ROWS:
        return
    for place, name in enumerate(frame.columns):
        column = frame.iloc[:, place]
        if is_textual(column) and not is_nested(column) and 2 * column.nunique() > len(column):
            shown = repr(str(column.dropna().iloc[0]))
            warnings.warn(
                f"Column {name!r} holds text that hardly repeats, such as {shown}, and is treated "
                "as categories. Convert it to numbers or times, or leave it out.",
                UserWarning,
                stacklevel=stacklevel,
            )
