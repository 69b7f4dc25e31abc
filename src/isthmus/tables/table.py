"""Table: the numbers of a file, and everything else that the file says."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from isthmus.tables.formats import FileFormat

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

__all__ = ["Table", "listed"]

EXACT = 2**53
"""Above this, not every whole number is a float64."""


@dataclass(frozen=True)
class Table:
    """Rows of numbers, with their names, ids and labels.

    Attributes
    ----------
    X : ndarray (n, D)
        float64, with NaN where a value is missing.
    columns : tuple of str
        Names of the D columns; x1, x2, ... by position if the file has no names.
    ids : ndarray (n,)
        Row ids as the file has them; numbers from 1 if it has none.
    id_name : str
        Name of the id column; ``row`` for numbers.
    labels : ndarray (n,) or None
        Known classes, whole numbers or text; empty text where missing.
    label_name : str or None
    left_out : tuple of str
        Columns that are not numbers.
    notes : tuple of str
        Sentences on how the file was read, for the user.
    frame : DataFrame
        Every column of the file, in its own type.
    cells : DataFrame or None
        The same as text, as it is written in the file, if ``as_written`` asked for it.
    format : FileFormat
        Format of the file, for :func:`write_table`.
    """

    X: NDArray[np.float64]
    columns: tuple[str, ...]
    ids: NDArray[Any]
    id_name: str
    labels: NDArray[Any] | None = None
    label_name: str | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    frame: pd.DataFrame = field(default=None, repr=False)
    cells: pd.DataFrame | None = field(default=None, repr=False)
    format: FileFormat = field(default_factory=FileFormat)

    def __len__(self) -> int:
        return len(self.X)

    def filled(self, X: NDArray[np.float64]) -> Table:
        """Return the table with gaps filled from X (n, D); known values stay as they are.

        Whole numbers become floats in a column that had gaps, unless some are too large for that:
        then the new values are rounded.
        """
        import numpy as np

        frame = self.frame.copy()
        cells = None if self.cells is None else self.cells.copy()
        gaps = np.isnan(self.X)
        for place in np.flatnonzero(gaps.any(0)):
            name, holes = self.columns[place], gaps[:, place]
            whole = frame[name].dtype.kind in "iu" and np.nanmax(np.abs(self.X[:, place])) > EXACT
            if whole:
                frame.loc[holes, name] = np.round(X[holes, place]).astype(np.int64)
            else:
                frame[name] = np.where(holes, X[:, place], self.X[:, place])
            if cells is not None:
                written = [_cell(value, self.format.decimal) for value in X[holes, place].tolist()]
                cells.loc[holes, name] = written
        return replace(self, X=np.where(gaps, X, self.X), frame=frame, cells=cells)


def _cell(value: float, decimal: str) -> str:
    return "" if value != value else repr(value).replace(".", decimal)


def listed(words: Sequence[str], most: int = 12) -> str:
    """Join words with commas, and count those after the first `most`."""
    shown = ", ".join(words[:most])
    return f"{shown}, and {len(words) - most} more" if len(words) > most else shown
