"""Readers of each format but text, which is in `text.py`.

The parsers of Excel, Parquet and Feather files run in a child process with limited memory.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
from pyarrow import feather, parquet, types

from isthmus.errors import InvalidInputError
from isthmus.io.arrays import open_npz, read_npy
from isthmus.io.reading import read_in_child, reading, require_size
from isthmus.tables.columns import Source, count_titles, has_names, note_on_titles, typed, unique
from isthmus.tables.files import FileFormat, require_openpyxl, with_columns
from isthmus.tables.text import read_content, read_text

CELL, OBJECT = 8, 64
"""Bytes that a cell takes, about, and an object of JSON, at least."""


def read_source(
    path: Path, header: bool | None, array: str | None, skip_rows: int | None, **given: str | None
) -> Source:
    """Read a file by its suffix; the parameters are those of :func:`isthmus.tables.read_table`."""
    form = FileFormat.of(path)
    if array is not None and form.kind not in ("npz", "excel"):
        raise InvalidInputError(
            f"Option array names an array of an .npz file or an Excel sheet; {path} is neither."
        )
    if form.kind == "text":
        return read_text(path, form, header, skip_rows, **given)
    lines = {} if form.kind == "excel" else {"header": header, "skip_rows": skip_rows}
    if options := [name for name, value in (given | lines).items() if value is not None]:
        raise InvalidInputError(f"Option {options[0]} is for text files, which {path} is not.")
    if form.kind == "json":
        return _json(path, form)
    if form.kind == "excel":
        return _excel(path, form, header, skip_rows, array)
    if form.kind in ("npy", "npz"):
        return _numpy(path, form, array)
    what = f"{form.kind.capitalize()} file"
    return arrow_source(path, read_in_child(read_arrow, path, what, form.kind), form)


def _json(path: Path, form: FileFormat) -> Source:
    text = read_content(path, form.compression).decode("utf-8-sig")
    require_size(path, OBJECT * text.count("{"))
    is_list = text.lstrip().startswith("[")
    numbered = [(1, text)] if is_list else enumerate(text.split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    place: Callable[[int], str] = lambda row: f"line {lines[row][0]}"  # noqa: E731
    rows: list[Any] = []
    try:
        with reading(path, "JSON file"):
            rows.extend(json.loads(line) for _, line in lines)
            if "\\ud" in text.lower():  # half of a pair of surrogates is no character
                json.dumps(rows, ensure_ascii=False).encode()
    except InvalidInputError as error:
        if not isinstance(error.__cause__, json.JSONDecodeError):
            raise
        line = lines[len(rows)][0] + error.__cause__.lineno - 1
        words = f"{path}, line {line}: this is not JSON: {error.__cause__.msg}."
        raise InvalidInputError(words) from None
    if is_list:
        rows, place = rows[0], Source.place
    if not rows:
        raise InvalidInputError(f"{path} is empty.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InvalidInputError(f"{path}, {place(number)}: a row must be an object, {{...}}.")
    names = dict.fromkeys(name for row in rows for name in row)
    require_size(path, CELL * len(rows) * len(names))
    columns = {name: typed([row.get(name) for row in rows]) for name in names}
    return Source(path, pd.DataFrame(columns), form, place)


def _excel(
    path: Path, form: FileFormat, header: bool | None, skip_rows: int | None, sheet: str | None
) -> Source:
    require_openpyxl()
    rows, notes = read_in_child(read_sheet, path, "Excel file", sheet)
    rows = rows[skip_rows or 0 :]
    if not rows:
        raise InvalidInputError(f"{path} is empty.")
    shown = [[str(cell) for cell in row] for row in rows[:200]]
    titles = count_titles(shown) if header is skip_rows is None else 0
    named, more = has_names(shown[titles:]) if header is None else (header, [])
    names = unique([name.strip() for name in shown[titles]] if named else [""] * len(rows[0]))
    above = titles + named
    body = pd.DataFrame(rows[above:], columns=names, dtype=object)
    frame = body.where(body != "", None).infer_objects()
    more += [note_on_titles(titles)] * bool(titles)
    first = above + (skip_rows or 0) + 1
    return Source(path, frame, form, lambda row: f"row {row + first}", notes=[*more, *notes])


def arrow_source(path: Path, table: pyarrow.Table, form: FileFormat) -> Source:
    """Return the columns of a table of pyarrow; an index of pandas is taken as ids."""
    found = table.column_names
    try:
        stored = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
        index = [name for name in stored.get("index_columns", []) if name in found]
    except (ValueError, AttributeError, TypeError):  # not written by pandas
        index = []
    names = ["index" if name.startswith("__index_level") else name for name in found]
    plain = table.replace_schema_metadata(None).rename_columns(unique(names))
    ids = found.index(index[0]) if len(index) == 1 else None
    return Source(path, plain.to_pandas(types_mapper=pd.ArrowDtype), form, ids=ids)


def _numpy(path: Path, form: FileFormat, array: str | None) -> Source:
    if form.kind == "npy":
        with reading(path, ".npy file", "It may be damaged."):
            return _of_arrays(path, form, {"": read_npy(path)}, "")
    with open_npz(path, ".npz file") as file:
        square = [name for name, shape in file.shapes.items() if len(shape) == 2]
        only = square if len(square) == 1 else list(file.shapes) if len(file.shapes) == 1 else []
        wanted = [array] if array else ["X", *only]
        key = next((name for name in wanted if name in file.shapes), None)
        if key is None:
            found = ", ".join(f"{name} {shape}" for name, shape in file.shapes.items())
            wrong = f"there is no {array!r}" if array else "name one (option array)"
            raise InvalidInputError(f"{path} holds {found or 'nothing'}; {wrong}.")
        # Other arrays are not read, unless they are columns or names beside the table.
        length = file.shapes[key][:1]
        beside = [name for name, shape in file.shapes.items() if shape == length]
        names = [name for name in ("feature_names",) if name in file.shapes]
        return _of_arrays(path, form, file.read({key, *beside, *names}), key)


def _of_arrays(path: Path, form: FileFormat, arrays: dict[str, Any], key: str) -> Source:
    """Return the source of one of some arrays, with others of its length beside it."""
    table = arrays.pop(key)
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.dtype.kind not in "fiub" or table.shape[1] == 0:
        raise InvalidInputError(
            f"{path} must hold numbers (n, D), not {table.dtype} of shape {table.shape}."
        )
    if len(table) == 0:
        raise InvalidInputError(f"{path} has no rows.")
    width = table.shape[1]
    features = arrays.pop("feature_names", np.empty(0))
    beside = [name for name, values in arrays.items() if values.shape == (len(table),)]
    given = list(map(str, features)) if features.shape == (width,) else [""] * width
    names = unique([*given, *beside])
    frame = pd.DataFrame(table, columns=names[:width])
    more = dict(zip(names[width:], (arrays[name] for name in beside), strict=True))
    frame = with_columns(frame, more)
    return Source(path, frame, form, beside=range(width, len(names)))


def read_arrow(path: Path, kind: str) -> pyarrow.Table:
    """Return the table of a Parquet or Feather file, unless it is far larger than the file."""
    with path.open("rb") as file:
        if kind == "feather":
            table = feather.read_table(file, use_threads=False)
        else:
            table = parquet.ParquetFile(file, page_checksum_verification=True).read(
                use_threads=False
            )
        table.validate(full=True)  # offsets that lead elsewhere would end the process
    for place, field in enumerate(table.schema):
        # Repeated words take memory once, until they are written out.
        if (plain := _plain_type(field.type)) != field.type:
            table = table.set_column(place, field.name, table.column(place).cast(plain))
    cells = table.num_rows * table.num_columns
    require_size(path, max(table.get_total_buffer_size(), CELL * cells))
    return table


def _plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type of a column in which every value is written out."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return kind.value_type
    if types.is_string_view(kind):
        return pyarrow.large_string()
    return pyarrow.large_binary() if types.is_binary_view(kind) else kind


def read_sheet(path: Path, sheet: str | None) -> tuple[list[list[Any]], list[str]]:
    """Return the cells of a sheet, or of the first one, with "" for empty ones, and notes."""
    with path.open("rb") as file, pd.ExcelFile(file, engine="openpyxl") as book:
        first, *others = map(str, book.sheet_names)
        if sheet not in (None, first, *others):
            known = ", ".join([first, *others])
            raise InvalidInputError(f"{path} has no sheet {sheet!r}; it has {known}.")
        cells = book.parse(sheet or first, header=None, dtype=object, na_filter=False)
    # Cells share the text that they repeat, until it is written out.
    size = sum(len(cell) for row in cells.values for cell in row if isinstance(cell, str))
    require_size(path, size + CELL * (cells.size + CELL * len(cells)))
    ignored = f"Only sheet {first!r} is read; option array names another."
    return cells.values.tolist(), [ignored] * (sheet is None and bool(others))
