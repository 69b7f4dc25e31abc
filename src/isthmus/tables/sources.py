"""Readers of each format: a data frame, and the means to say where a cell stands."""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
from numpy.typing import NDArray
from pyarrow import feather, parquet

from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.tables.files import FileFormat, require_openpyxl
from isthmus.tables.text import TextFile, check_latin1, has_names, opener


@dataclass(frozen=True)
class Source:
    """The columns of a file, whatever its format.

    `place` maps a row, from 0, to words for its place in the file; the file itself marks column
    `ids` as row ids; arrays in `extra`, beside the table, can be ids or labels.
    """

    frame: pd.DataFrame
    format: FileFormat
    place: Callable[[int], str] = lambda row: f"row {row + 1}"
    text: TextFile | None = None
    ids: int | None = None
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def read_source(
    path: Path,
    keep_text: Callable[[list[str]], set[int]],
    as_written: bool,
    header: bool | None,
    array: str | None,
    **options: str | None,
) -> Source:
    """Read a file by its suffix.

    `keep_text` maps the names in a text file to the columns that are read as they are written; the
    other parameters are those of :func:`isthmus.tables.read_table`.
    """
    form = FileFormat.of(path)
    if array is not None and form.kind not in ("npz", "excel"):
        raise InvalidInputError(
            f"Option array names an array of an .npz file or an Excel sheet; {path} is neither."
        )
    given = [name for name, value in options.items() if value is not None]
    given += ["header"] * (header is not None and form.kind != "excel")
    if given and form.kind != "text":
        raise InvalidInputError(f"Option {given[0]} is for text files, which {path} is not.")
    if form.kind == "json":
        return _json(path, form)
    if form.kind == "excel":
        return _excel(path, form, header, array)
    if form.kind != "text":
        is_arrow = form.kind in ("parquet", "feather")
        return _arrow(path, form) if is_arrow else _numpy(path, form, array)

    def read() -> Source:
        file = TextFile.open(path, content, form, header, **options)
        names = unique(file.names or [""] * file.width)
        frame = file.read(file.words | keep_text(names), nullable=as_written)
        named = [name for name in file.names if name]
        if len(set(named)) < len(named):
            file.notes.append(f"Some names occur twice; the columns are {listed(names)}.")
        return Source(
            frame.set_axis(names, axis=1),
            file.format,
            lambda row: f"line {file.lines()[row]}",
            file,
            ids=0 if named and not file.names[0] else None,
            notes=file.notes,
        )

    content = opener(path, form.compression)
    try:
        return read()
    except UnicodeDecodeError:
        if options["encoding"] is not None:
            raise
        note = check_latin1(path, content)
        options["encoding"] = "latin-1"
        source = read()
        source.notes.append(note)
        return source


def _json(path: Path, form: FileFormat) -> Source:
    with opener(path, form.compression)() as file:
        text = file.read().decode("utf-8-sig")
    lines = [(number, line) for number, line in enumerate(text.split("\n"), 1) if line.strip()]
    place: Callable[[int], str] = lambda row: f"line {lines[row][0]}"  # noqa: E731
    rows: list[Any] = []
    try:
        if text.lstrip().startswith("["):
            lines = [(1, "")]
            rows = json.loads(text)
            place = Source.place
        else:
            rows.extend(json.loads(line) for _, line in lines)
    except json.JSONDecodeError as error:
        line = lines[len(rows)][0] + error.lineno - 1
        raise InvalidInputError(f"{path}, line {line}: this is not JSON: {error.msg}.") from None
    if not rows:
        raise InvalidInputError(f"{path} is empty.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InvalidInputError(f"{path}, {place(number)}: a row must be an object, {{...}}.")
    names = list(dict.fromkeys(name for row in rows for name in row))
    columns = {name: _typed([row.get(name) for row in rows]) for name in names}
    return Source(pd.DataFrame(columns), form, place)


def _typed(values: list[Any]) -> pd.Series:
    """Return a Series of numbers that keep all digits, of text, or of whatever there is."""
    for kind in (None, pyarrow.uint64()):
        with suppress(pyarrow.ArrowException, OverflowError):
            found = pyarrow.array(values, kind)
            return pd.Series(found, dtype=pd.ArrowDtype(found.type))
    return pd.Series(values, dtype=object)


def _excel(path: Path, form: FileFormat, header: bool | None, sheet: str | None) -> Source:
    require_openpyxl()
    try:
        with path.open("rb") as file, pd.ExcelFile(file, engine="openpyxl") as book:
            sheets = [str(name) for name in book.sheet_names]
            if sheet in (None, *sheets):
                grid = pd.read_excel(book, sheet or sheets[0], header=None, na_filter=False)
    except (ValueError, KeyError, zipfile.BadZipFile, EOFError) as error:
        raise InvalidInputError(f"{path} is not a readable Excel file: {error}.") from None
    if sheet not in (None, *sheets):
        raise InvalidInputError(f"{path} has no sheet {sheet!r}; it has {', '.join(sheets)}.")
    if grid.empty:
        raise InvalidInputError(f"{path} is empty.")
    rows = grid.head(200).astype(str).to_numpy().tolist()
    named, note = has_names(rows) if header is None else (header, "")
    notes = [note] * bool(note)
    if sheet is None and len(sheets) > 1:
        notes.append(f"Only sheet {sheets[0]!r} is read; option array names another.")
    names = unique([name.strip() for name in rows[0]] if named else [""] * grid.shape[1])
    body = grid.iloc[int(named) :].reset_index(drop=True).set_axis(names, axis=1)
    frame = body.astype(object).where(body != "", None).infer_objects()
    return Source(frame, form, lambda row: f"row {row + 1 + named}", notes=notes)


def _arrow(path: Path, form: FileFormat) -> Source:
    read = parquet.read_table if form.kind == "parquet" else feather.read_table
    try:
        with path.open("rb") as file:
            table = read(file)
    except (pyarrow.ArrowException, ValueError) as error:
        kind, reason = form.kind.capitalize(), str(error).splitlines()[0].rstrip(".")
        raise InvalidInputError(
            f"{path} is not a {kind} file, or is damaged or truncated: {reason}."
        ) from None
    stored = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    index = [name for name in stored.get("index_columns", []) if name in table.column_names]
    names = ["index" if name.startswith("__index_level") else name for name in table.column_names]
    plain = table.replace_schema_metadata(None).rename_columns(unique(names))
    return Source(
        plain.to_pandas(types_mapper=pd.ArrowDtype),
        form,
        ids=table.column_names.index(index[0]) if len(index) == 1 else None,
    )


def _numpy(path: Path, form: FileFormat, array: str | None) -> Source:
    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            packed = not isinstance(loaded, np.ndarray)
            arrays = {key: loaded[key] for key in loaded.files} if packed else {"": loaded}
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        damaged = "it is damaged, or holds Python objects, which are never loaded"
        reason = damaged if "pickle" in str(error) else str(error).splitlines()[0]
        raise InvalidInputError(f"{path} is not a readable {form.suffix} file: {reason}.") from None
    key = _key(path, arrays, array)
    table = arrays.pop(key)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.dtype.kind not in "fiub" or table.shape[1] == 0:
        raise InvalidInputError(
            f"{path} must hold numbers (n, D), not {table.dtype} of shape {table.shape}."
        )
    if len(table) == 0:
        raise InvalidInputError(f"{path} has no rows.")
    features = arrays.pop("feature_names", np.empty(0))
    names = map(str, features) if len(features) == table.shape[1] else [""] * table.shape[1]
    extra = {name: values for name, values in arrays.items() if values.shape == (len(table),)}
    return Source(pd.DataFrame(table, columns=unique(list(names))), form, extra=extra)


def _key(path: Path, arrays: dict[str, NDArray[Any]], array: str | None) -> str:
    """Return the name of the array to read."""
    tables = [key for key, values in arrays.items() if values.ndim == 2]
    if array in arrays:
        return str(array)
    if array is None and "X" in arrays:
        return "X"
    if array is None and (len(tables) == 1 or len(arrays) == 1):
        return (*tables, *arrays)[0]
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
