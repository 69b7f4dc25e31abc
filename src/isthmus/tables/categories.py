"""Columns that hold categories: text with few values, and numbers that look like labels."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from isthmus.printing import listed
from isthmus.tables.files import Table

if TYPE_CHECKING:
    import pandas as pd

NAMES = {"class", "classes", "label", "labels", "target", "species"}
# A first or last column of whole numbers without a gap, at most this many, looks like classes if
# most other columns have more values.
MOST_CLASSES = 15


def likely_label(table: Table) -> str | None:
    """Return the name of the column that looks like a label, if there is one."""
    for name in table.columns:
        if name.strip().lower() in NAMES:
            return name
    last = table.X.shape[1] - 1
    if last < 1:
        return None
    counts = [len(np.unique(column[~np.isnan(column)])) for column in table.X.T]
    for place in (last, 0):
        column = table.X[:, place]
        values = np.unique(column[~np.isnan(column)])
        classes = 2 < len(values) <= MOST_CLASSES and len(column) > 3 * len(values)
        whole = classes and values[0] in (0, 1) and bool((np.diff(values) == 1).all())
        if whole and np.mean([count > len(values) for count in counts]) > 0.5:
            return table.columns[place]
    return None


def with_categories(table: Table) -> tuple[pd.DataFrame, tuple[str, ...]]:
    """Return the numbers of a table with its label and its columns of text, and notes on them.

    Ids, and text of which most rows have a value of their own, are left out.
    """
    import pandas as pd

    from isthmus.tables.columns import is_nested

    columns, categories, unique = {}, [], []
    for name in table.frame.columns:
        column = table.frame[name]
        if name in table.columns:
            values = table.X[:, table.columns.index(name)]
            whole = column.dtype.kind in "iu"
            columns[name] = values.astype(np.int64) if whole else values
        elif name in table.left_out or name == table.label_name:
            most = max(2, len(column) / 2)
            if is_nested(column) or not 1 < column.nunique(dropna=False) <= most:
                unique.append(str(name))
            else:
                categories.append(str(name))
                columns[name] = column
    notes = [note for note in table.notes if "since most cells are not numbers" not in note]
    if categories:
        notes.append(f"Drawn as categories: {listed(categories)}.")
    if unique:
        reason = "nearly every row has its own value, or all the same"
        notes.append(f"Left out, since {reason}: {listed(unique)}.")
    return pd.DataFrame(columns), tuple(notes)
