"""Readers of each format: a data frame, and the means to say where a cell stands."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.tables.formats import FileFormat, require_openpyxl
from isthmus.tables.text import TextFile, content_of, has_names, readable_errors

__all__ = ["Source", "read_source"]

PARQUET = b"PAR1"  # the first and last bytes of such files


@dataclass(frozen=True)
class Source:
    """The columns of a file, whatever its format.

    Attributes
    ----------
    frame : DataFrame
        Each name occurs once.
    format : FileFormat
    place : callable
        Maps a row, from 0, to words for its place in the file.
    text : TextFile or None
        Of delimited files, whose columns of text may hold numbers that pandas did not find.
    ids, ids_called : int or None, str
        A column that the file itself marks as row ids, and words for it.
    extra : dict of str to ndarray (n,)
        Arrays beside the table that can be ids or labels.
    notes : tuple of str
    """

    frame: pd.DataFrame
    format: FileFormat
    place: Callable[[int], str]
    text: TextFile | None = None
    ids: int | None = None
    ids_called: str = ""
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()


def read_source(
    path: Path,
    *,
    header: bool | None,
    array: str | None,
    keep_text: Callable[[list[str]], set[int]],
    **options: str | None,
) -> Source:
    """Read a file by its suffix.

    Parameters
    ----------
    path : Path
    header, array, **options
        As in :func:`isthmus.tables.read_table`.
    keep_text : callable
        Maps the names of a text file to the columns that are read as they are written.
    """
    given = FileFormat.of(path)
    if array is not None and given.kind not in ("npz", "excel"):
        raise InvalidInputError(
            f"Option array names an array of an .npz file or an Excel sheet; {path} is neither."
        )
    wrong = [name for name, value in options.items() if value is not None]
    wrong += ["header"] * (header is not None and given.kind != "excel")
    if wrong and given.kind != "text":
        raise InvalidInputError(f"Option {wrong[0]} is for text files, which {path} is not.")
    if given.kind == "text":
        with readable_errors(path, given.compression):
            return _text(TextFile.open(path, given, header, **options), keep_text)
    if given.kind == "json":
        with readable_errors(path, given.compression):
            return _json(path, given)
    if given.kind == "excel":
        return _excel(path, given, header, array)
    return (_arrow if given.kind in ("parquet", "feather") else _numpy)(path, given, array)


def _text(file: TextFile, keep_text: Callable[[list[str]], set[int]]) -> Source:
    names = unique(file.names or [""] * file.width)
    frame = file.read(file.words | keep_text(names))
    frame.columns = pd.Index(names)
    notes = list(file.notes)
    if len(set(filter(None, file.names))) < len([name for name in file.names if name]):
        notes.append(f"Some names occur twice; the columns are {', '.join(names)}.")
    nameless_first = bool(file.names) and file.names[0] == "" and any(file.names)
    lines: list[int] = []

    def place(row: int) -> str:
        lines[:] = lines or file.lines()
        return f"line {lines[row]}"

    return Source(
        frame,
        file.format,
        place,
        file,
        ids=0 if nameless_first else None,
        ids_called="The first column, which has no name,",
        notes=tuple(notes),
    )


def _json(path: Path, given: FileFormat) -> Source:
    with content_of(path, given.compression)() as file:
        text = file.read().decode("utf-8-sig")
    is_list = text.lstrip().startswith("[")
    kept = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    rows: list[Any] = []
    number = 1
    try:
        if is_list:
            rows = json.loads(text)
        else:
            for number, line in kept:  # noqa: B007
                rows.append(json.loads(line))
    except json.JSONDecodeError as error:
        line = error.lineno if is_list else number
        raise InvalidInputError(f"{path}, line {line}: this is not JSON: {error.msg}.") from None
    if not rows:
        raise InvalidInputError(f"{path} is empty.")

    def place(row: int) -> str:
        return f"row {row + 1}" if is_list else f"line {kept[row][0]}"

    wrong = next((at for at, row in enumerate(rows) if not isinstance(row, dict)), None)
    if wrong is not None:
        raise InvalidInputError(
            f"{path}, {place(wrong)}: a row must be an object with names and values."
        )
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _typed([row.get(name) for row in rows]) for name in names}
    return Source(pd.DataFrame(columns), given, place)


def _typed(values: list[Any]) -> pd.Series:
    """Return values as a Series: of numbers that keep all digits, of text, or of objects."""
    try:
        return pd.Series(pyarrow.array(values), dtype=pd.ArrowDtype(pyarrow.array(values).type))
    except (pyarrow.ArrowException, OverflowError):
        return pd.Series(values, dtype=object)


def _excel(path: Path, given: FileFormat, header: bool | None, sheet: str | None) -> Source:
    require_openpyxl()
    try:
        with path.open("rb") as file, pd.ExcelFile(file, engine="openpyxl") as book:
            found = [str(name) for name in book.sheet_names]
            if sheet is not None and sheet not in found:
                raise InvalidInputError(
                    f"{path} has no sheet {sheet!r}; it has {', '.join(found)}."
                )
            grid = book.parse(sheet or found[0], header=None, na_filter=False)
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        if isinstance(error, InvalidInputError):
            raise
        raise InvalidInputError(f"{path} is not a readable Excel file: {error}") from None
    if grid.empty:
        raise InvalidInputError(f"{path} is empty.")
    rows = [[str(cell) for cell in row] for row in grid.head(200).itertuples(index=False)]
    named, note = has_names(rows, ".") if header is None else (header, "")
    names = unique([name.strip() for name in rows[0]] if named else [""] * grid.shape[1])
    body = grid.iloc[int(named) :]
    columns = {
        name: _typed([None if cell == "" else cell for cell in body.iloc[:, place].tolist()])
        for place, name in enumerate(names)
    }
    notes = [note] * bool(note)
    if sheet is None and len(found) > 1:
        notes.append(f"Only sheet {found[0]!r} is read; option array names another.")
    frame = pd.DataFrame(columns).astype(
        {name: object for name, values in columns.items() if values.dtype == "string[pyarrow]"}
    )
    return Source(frame, given, lambda row: f"row {row + 1 + named}", notes=tuple(notes))


def _arrow(path: Path, given: FileFormat, array: None) -> Source:
    try:
        if given.kind == "parquet":
            from pyarrow import parquet

            with path.open("rb") as file:
                table = parquet.read_table(file)
        else:
            from pyarrow import feather

            with path.open("rb") as file:
                table = feather.read_table(file)
    except (pyarrow.ArrowException, ValueError) as error:
        kind = given.kind.capitalize()
        content = path.read_bytes()
        whole = content.startswith(PARQUET) and content.endswith(PARQUET)
        what = f"is not a {kind} file, or is truncated"
        if given.kind == "parquet":
            what = "is a damaged Parquet file" if whole else f"{what} (it lacks PAR1 at both ends)"
        raise InvalidInputError(f"{path} {what}: {str(error).splitlines()[0]}") from None
    stored = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    index = [name for name in stored.get("index_columns", []) if name in table.column_names]
    found = ["index" if name.startswith("__index_level") else name for name in table.column_names]
    frame = table.replace_schema_metadata(None).rename_columns(unique(found))
    return Source(
        frame.to_pandas(types_mapper=pd.ArrowDtype),
        given,
        lambda row: f"row {row + 1}",
        ids=table.column_names.index(index[0]) if len(index) == 1 else None,
        ids_called="The index of the data frame",
    )


def _numpy(path: Path, given: FileFormat, array: str | None) -> Source:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            packed = not isinstance(loaded, np.ndarray)
            arrays = {key: loaded[key] for key in loaded.files} if packed else {}
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        damaged = "it is damaged, or holds Python objects, which are never loaded"
        reason = damaged if "pickle" in str(error) else str(error)
        raise InvalidInputError(
            f"{path} is not a readable {path.suffix} file: {reason.splitlines()[0]}"
        ) from None
    key = _key(path, arrays, array) if packed else ""
    table = arrays[key] if packed else loaded
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.dtype.kind not in "fiub" or table.shape[1] == 0:
        raise InvalidInputError(
            f"{path} must hold numbers (n, D), not {table.dtype} of shape {table.shape}."
        )
    if len(table) == 0:
        raise InvalidInputError(f"{path} has no rows.")
    features = arrays.get("feature_names", np.empty(0))
    names = [str(name) for name in features] if len(features) == table.shape[1] else []
    return Source(
        pd.DataFrame(table, columns=unique(names or [""] * table.shape[1])),
        given,
        lambda row: f"row {row + 1}",
        extra={
            name: values
            for name, values in arrays.items()
            if name != key and values.shape == (len(table),)
        },
    )


def _key(path: Path, arrays: dict[str, NDArray[Any]], array: str | None) -> str:
    """Return the name of the array to read."""
    tables = [key for key, values in arrays.items() if values.ndim == 2]
    if array in arrays:
        return str(array)
    if array is None and "X" in arrays:
        return "X"
    if array is None and len(tables) == 1:
        return tables[0]
    if array is None and len(arrays) == 1:
        return next(iter(arrays))
    found = ", ".join(f"{key} {values.shape}" for key, values in arrays.items()) or "nothing"
    wrong = "name one (option array)" if array is None else f"there is no {array!r}"
    raise InvalidInputError(f"{path} holds {found}; {wrong}.")


def unique(found: Sequence[str]) -> list[str]:
    """Return a name for each column, each once: x3 if the third has none, a.2 for a second a."""
    taken: set[str] = set()
    names: list[str] = []
    for place, given in enumerate(found, 1):
        base = given or (f"x{place}" if place > 1 or not any(found) else "id")
        name, times = base, 1
        while name in taken or (name != given and name in found):
            times += 1
            name = f"{base}.{times}"
        taken.add(name)
        names.append(name)
    return names
