"""Tables in memory, the formats of their files, and checks of files to be written."""

from __future__ import annotations

import importlib.util
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError
from isthmus.files import check_writable

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

STDIN = Path("-")
KINDS = {
    **dict.fromkeys((".csv", ".tsv", ".txt", ".dat", ".data"), "text"),
    **dict.fromkeys((".jsonl", ".ndjson", ".json"), "json"),
    **dict.fromkeys((".parquet", ".pq"), "parquet"),
    ".feather": "feather",
    ".xlsx": "excel",
    ".npy": "npy",
    ".npz": "npz",
}
COMPRESSIONS = {".gz": "gzip", ".bz2": "bz2", ".xz": "xz", ".zip": "zip", ".zst": "zstd"}
WRITABLE = (
    ".csv, .tsv, .txt, .jsonl, .json (each also with .gz, .bz2, .xz, .zip or .zst), .parquet, "
    ".feather, .xlsx or .npz"
)
READABLE = f"{WRITABLE.removesuffix(' or .npz')}, .npy or .npz"
EXACT = 2**53
"""Above this, not every whole number is a float64."""


@dataclass(frozen=True)
class FileFormat:
    """The format of a file, with everything needed to write another one like it.

    Attributes
    ----------
    kind : {"text", "json", "parquet", "feather", "excel", "npy", "npz"}
    suffix : str
        In lower case, without that of the compression.
    compression : {"", "gzip", "bz2", "xz", "zip", "zstd"}
    separator, decimal, encoding : str
        Of text files. A separator of one space stands for any run of spaces.
    """

    kind: str = "text"
    suffix: str = ".csv"
    compression: str = ""
    separator: str = ","
    decimal: str = "."
    encoding: str = "utf-8"

    @classmethod
    def of(cls, path: Path) -> FileFormat:
        """Return the format that the suffixes of a path stand for; ``-`` is CSV."""
        if path == STDIN:
            return cls()
        *_, before, last = ("", "", *(suffix.lower() for suffix in path.suffixes))
        compression = COMPRESSIONS.get(last, "")
        suffix = before if compression else last
        kind = KINDS.get(suffix, "")
        if not kind or (compression and kind not in ("text", "json")):
            raise InvalidInputError(f"{path} must end in {READABLE}.")
        return cls(kind, suffix, compression, "\t" if suffix == ".tsv" else ",")


@dataclass(frozen=True)
class Table:
    """Rows of numbers, with their names, ids and labels.

    Attributes
    ----------
    X : ndarray (n, D)
        float64, with NaN where a value is missing.
    columns : tuple of str
        Names of the D columns; x1, x2, ... by position if the file has no names.
    ids, id_name : ndarray (n,), str
        Row ids as the file has them, and the name of their column; numbers from 1, and ``row``,
        if it has none.
    labels, label_name : ndarray (n,), str; or None
        Known classes: whole numbers, or text that is empty where missing.
    left_out : tuple of str
        Columns that are not numbers.
    notes : tuple of str
        Sentences on how the file was read, for the user.
    frame : DataFrame
        Every column of the file, in its own type.
    cells : DataFrame or None
        The text of every cell, if :func:`read_table` was asked for it.
    format : FileFormat
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

        frame, cells, gaps = self.frame.copy(), self.cells, np.isnan(self.X)
        cells = None if cells is None else cells.copy()
        for place in np.flatnonzero(gaps.any(0)):
            name, holes = self.columns[place], gaps[:, place]
            if frame[name].dtype.kind in "iu" and np.nanmax(np.abs(self.X[:, place])) > EXACT:
                frame.loc[holes, name] = np.round(X[holes, place]).astype(np.int64)
            else:
                frame[name] = np.where(holes, X[:, place], self.X[:, place])
            if cells is not None:
                cells.loc[holes, name] = [
                    "" if value != value else repr(value).replace(".", self.format.decimal)
                    for value in X[holes, place].tolist()
                ]
        return replace(self, X=np.where(gaps, X, self.X), frame=frame, cells=cells)


def default_output(data: Path, ending: str) -> Path:
    """Return a path in the current directory, named after the data.

    Parameters
    ----------
    data : Path
    ending : str
        ``"clusters.csv"`` turns iris.tsv into iris.clusters.csv. An ending without a suffix keeps
        that of the data: ``"completed"`` turns iris.csv.gz into iris.completed.csv.gz.
    """
    name, kept = "stdin" if data == STDIN else data.name, ""
    for known in (COMPRESSIONS, KINDS):
        suffix = Path(name).suffix
        if suffix.lower() in known:
            kept, name = suffix + kept, name.removesuffix(suffix)
    return Path(f"{name}.{ending}" if "." in ending else f"{name}.{ending}{kept or '.csv'}")


def check_output(target: str | Path, *inputs: Path, option: str = "-o") -> Path:
    """Return the path of a table to be written, checked before any work begins.

    Parameters
    ----------
    target : str or Path
    *inputs : Path
        Files that must not be overwritten.
    option : str
        The name of the argument, for messages.
    """
    target = Path(target)
    try:
        kind = FileFormat.of(target).kind
    except InvalidInputError:
        kind = ""
    # Only a table that was an array is sure to hold nothing but numbers.
    if not kind or (kind == "npy" and not any(data.suffix == ".npy" for data in inputs)):
        raise InvalidInputError(f"{option} {target} must end in {WRITABLE}.")
    if any(target.resolve() == data.resolve() for data in inputs):
        raise InvalidInputError(f"{option} {target} is the data itself; name another file.")
    if kind == "excel":
        require_openpyxl()
    return check_writable(target, option)


def require_openpyxl() -> None:
    """Raise an error that says how to install openpyxl, if it is missing."""
    if importlib.util.find_spec("openpyxl") is None:
        raise InvalidInputError("Excel files need openpyxl: pip install 'isthmus[excel]'.")


def listed(words: Sequence[str], most: int = 12) -> str:
    """Join words with commas, and count those after the first `most`."""
    shown = ", ".join(words[:most])
    return f"{shown}, and {len(words) - most} more" if len(words) > most else shown
