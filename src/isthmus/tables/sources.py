"""Readers of each format: delimited text, JSON, Excel, Parquet, Feather and NumPy.

The layout of text is found on a sample of lines; pyarrow reads the cells. Excel, Parquet and
Feather files are read in a child process with limited memory.
"""

from __future__ import annotations

import csv
import io
import json
import lzma
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
from pyarrow import csv as arrow_csv
from pyarrow import feather, parquet, types

from isthmus.errors import InvalidInputError
from isthmus.io.arrays import open_npz, read_whole
from isthmus.io.reading import read_bounded, read_in_child, reading, require_size, size_limit
from isthmus.printing import counted, listed
from isthmus.tables.columns import (
    DECIMAL_COMMA,
    MISSING,
    POINTS_GROUPED,
    SWAPPED,
    UNIT,
    Source,
    has_commas,
    is_number,
)
from isthmus.tables.files import STDIN, FileFormat, require_openpyxl, typed, unique

CELL, OBJECT = 8, 64
"""Bytes that a cell takes, about, and an object of JSON, at least."""
# The first of several that fit equally well is taken: a comma may be a decimal mark.
SEPARATORS = ("\t", ";", "|", ",", " ")
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
SAMPLED_LINES, SAMPLED_CHARACTERS = 200, 2**16


def read_source(
    path: Path, header: bool | None, array: str | None, skip_rows: int | None, **given: str | None
) -> Source:
    """Read a file by its suffix; the parameters are those of :func:`isthmus.tables.read_table`."""
    form = FileFormat.of(path)
    if array is not None and form.kind not in ("npz", "excel"):
        raise InvalidInputError(
            f"array (--array) names an array of an .npz file or an Excel sheet; {path} is neither."
        )
    if form.kind == "text":
        return _read_text(path, form, header, skip_rows, **given)
    lines = {} if form.kind == "excel" else {"header": header, "skip_rows": skip_rows}
    if options := [name for name, value in (given | lines).items() if value is not None]:
        option = options[0].replace("_", "-")
        raise InvalidInputError(
            f"{options[0]} (--{option}) is for text files, which {path} is not."
        )
    if form.kind == "json":
        return _read_json(path, form)
    if form.kind == "excel":
        return _read_excel(path, form, header, skip_rows, array)
    if form.kind in ("npy", "npz"):
        return _read_numpy(path, form, array)
    what = f"{form.kind.capitalize()} file"
    return arrow_source(path, read_in_child(read_arrow, path, what, form.kind), form)


def _read_content(path: Path, compression: str) -> bytes:
    """Return the decompressed content of a file, or of stdin."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        return sys.stdin.buffer.read()
    if not compression:
        return path.read_bytes()
    with reading(path, f"{path.suffix} file"), ExitStack() as stack:
        if compression == "zip":
            archive = stack.enter_context(zipfile.ZipFile(path))
            if len(archive.namelist()) != 1:
                raise InvalidInputError(f"{path} must hold exactly one file.")
            stream: Any = stack.enter_context(archive.open(archive.namelist()[0]))
        elif compression == "xz":
            stream = stack.enter_context(lzma.open(path))
        else:
            opened = pyarrow.input_stream(str(path), compression=compression)
            stream = stack.enter_context(opened)
        return read_bounded(path, stream)


def _read_text(
    path: Path,
    form: FileFormat,
    header: bool | None,
    skip_rows: int | None,
    *,
    separator: str | None,
    decimal: str | None,
    encoding: str | None,
) -> Source:
    """Read a text file, whose layout is found on a sample of lines where it is not given."""
    data = _read_content(path, form.compression)
    encoding, note_on_encoding = (encoding, []) if encoding else _encoding(path, data)
    text = data.decode(encoding)
    above, lines = _sample(text, skip_rows or 0)
    try:
        separator = separator or _separator(lines)
        found = list(_rows(lines, separator))
    except csv.Error as error:
        raise InvalidInputError(f"{path} is not a readable text file: {error}.") from None
    if not found:
        raise InvalidInputError(f"{path} is empty.")
    titles = _count_titles([row for _, row in found]) if header is skip_rows is None else 0
    found = found[titles:]
    rows = [row for _, row in found]
    form = replace(
        form,
        separator=separator,
        decimal=decimal or _decimal(rows, separator),
        encoding=encoding,
    )
    # The last comment has the names in files of numpy.savetxt.
    comment = next((line for line in reversed(above) if line.startswith("#")), "")
    names = [row for _, row in _rows([comment[1:]], separator)]
    numbers = any(is_number(cell) or has_commas(cell) for cell in rows[0])
    commented = header is not False and numbers and [len(c) for c in names] == [len(rows[0])]
    if commented:
        rows = names + rows
    named, notes = _has_names(rows, form.decimal) if header is None else (header, [])
    notes += _note_on_titles(titles)
    # R leaves out the name of the column of row names.
    short = named and len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])
    written = [""] * short + [cell.strip() for cell in rows[0]] if named else [""] * len(rows[0])
    columns = unique(written)
    if len(set(filter(None, written))) < len(list(filter(None, written))):
        notes.append(f"Some names occur twice; the columns are {listed(columns)}.")
    skip = len(above) + (found[0][0] if named and not commented else 0)

    def checked_rows() -> Iterator[tuple[int, list[str]]]:
        return _checked_rows(path, text, skip, separator, len(columns), named)

    def place(row: int) -> str:  # pandas may count a row that looks blank
        numbered = [line for line, _ in checked_rows()]
        return f"line {numbered[row]}" if row < len(numbered) else f"row {row + 1}"

    frame = _fast_frame(_body(text, skip).read(), separator, columns)
    if frame is None:  # slowly, with an error that names a broken line
        frame = pd.DataFrame([cells for _, cells in checked_rows()], columns=columns, dtype=str)
    ids = 0 if named and not written[0] else None
    notes += note_on_encoding
    return Source(path, frame, form, place, ids, grouped=decimal is not None, notes=notes)


def _fast_frame(content: str, separator: str, columns: list[str]) -> pd.DataFrame | None:
    """Return the text of cells as pyarrow reads them, or None where it may not read them right."""
    # It takes neither runs of spaces as separators, nor quotes after a space; and it reads on
    # where one is left open.
    strange = f'{separator} "' in content or content.count('"') % 2
    if strange or not separator.isascii() or separator == " ":
        return None
    places = list(map(str, range(len(columns))))
    try:
        table = arrow_csv.read_csv(
            io.BytesIO(content.encode()),
            arrow_csv.ReadOptions(column_names=places, use_threads=False),
            arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
            arrow_csv.ConvertOptions(
                column_types=dict.fromkeys(places, pyarrow.string()), strings_can_be_null=False
            ),
        )
    except pyarrow.ArrowException:
        return None
    frame = table.to_pandas().set_axis(columns, axis=1)
    if len(columns) == 1:  # a line of spaces is blank; a quoted cell that is empty is a gap
        only = frame.iloc[:, 0]
        frame = frame[(only == "") | (only.str.strip() != "")].reset_index(drop=True)
    return frame


def _body(text: str, skip: int) -> io.StringIO:
    body = io.StringIO(text, newline="")
    for _ in range(skip):
        body.readline()
    return body


def _checked_rows(
    path: Path, text: str, skip: int, separator: str, width: int, named: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row: slowly, strict about quotes and widths."""
    line = skip
    try:
        for below, cells in _rows(_body(text, skip), separator, strict=True):
            line = skip + below
            if len(cells) != width:
                first = "the line of names" if named else "the first line"
                raise InvalidInputError(
                    f"{path}, line {line}: {counted(len(cells), 'cell')}, but {first} has "
                    f"{width}. Quote cells that contain the separator; if it is a comment "
                    "below the names, remove the line."
                )
            yield line, cells
    except csv.Error as error:
        where = f"{path}, below line {line}"
        raise InvalidInputError(f"{where}: {error}. Is a quote left open?") from None


def _encoding(path: Path, data: bytes) -> tuple[str, list[str]]:
    """Return an encoding, by a byte order mark, zero bytes or what can be decoded, and notes."""
    head = data[: 2**12]
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding, []
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) * 10 < max(even, odd) > len(head) / 3:
        return "utf-16-le" if odd > even else "utf-16-be", []
    if even or odd:
        raise InvalidInputError(f"{path} is not a text file.")
    try:
        data.decode()
        return "utf-8", []
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        where = f"line {line}: byte {data[error.start]:#04x} is not UTF-8"
    if not data.decode(errors="ignore").isascii():
        raise InvalidInputError(
            f"{path}, {where}, though other characters are. Correct the line, or name the encoding "
            "(encoding, --encoding)."
        )
    # They differ in these bytes only, which are control characters in Latin-1.
    windows = re.search(rb"[\x80-\x9f]", data) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", data)
    encoding, name = ("cp1252", "Windows-1252") if windows else ("latin-1", "Latin-1")
    return encoding, [f"The file is read as {name} (encoding, --encoding), since in {where}."]


def _sample(text: str, skip: int) -> tuple[list[str], list[str]]:
    """Return the blank lines and comments above the table, with `skip` others, and a sample."""
    above, lines, size = list[str](), list[str](), 0
    for line in io.StringIO(text, newline=""):
        if not lines and (len(above) < skip or not line.strip() or line.startswith("#")):
            above.append(line)
            continue
        lines.append(line)
        size += len(line)
        if len(lines) >= SAMPLED_LINES or (len(lines) >= 20 and size > SAMPLED_CHARACTERS):
            break
    return above, lines


def _decimal(rows: list[list[str]], separator: str) -> str:
    """Return the decimal mark; points may separate thousands."""
    cells = [UNIT.sub("", cell.strip()) for row in rows for cell in row]
    if separator == ",":
        return "."
    if any(map(POINTS_GROUPED.fullmatch, cells)):
        return ","
    points = any("." in cell and is_number(cell) for cell in cells)
    return "," if not points and any(map(DECIMAL_COMMA.fullmatch, cells)) else "."


def _rows(
    text: Iterable[str], separator: str, strict: bool = False
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row that is not blank."""
    if separator == " ":
        text = (line.replace("\t", " ").strip() for line in text)
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=strict)
    for cells in reader:
        if len(cells) > 1 or (cells and cells[0].strip()):
            yield reader.line_num, cells


def _separator(lines: list[str]) -> str:
    """Return the separator that cuts most lines into equally many cells, more than one."""
    shares = {",": 0.0}
    for separator in SEPARATORS:
        widths = Counter(len(cells) for _, cells in _rows(lines, separator))
        for usual, times in widths.most_common(1):
            share = times / widths.total() if usual > 1 else 0.0
            if share > max(shares.values()):
                shares = {separator: share}
    return next(iter(shares))


def _has_names(rows: list[list[str]], decimal: str = ".") -> tuple[bool, list[str]]:
    """Return True if the first row holds names, and a note if that is uncertain."""
    marks = SWAPPED if decimal == "," else {}
    first, *others = [[cell.translate(marks).strip() for cell in row] for row in rows]
    numeric = [place for place, cell in enumerate(first) if is_number(cell) or has_commas(cell)]
    if not numeric:
        return any(cell.lower() not in MISSING for cell in first), []
    # Numbers as names, such as years or the default of pandas: whole ones, in steps of one, above
    # columns that are not whole.
    shown = [first[place] for place in numeric]
    below = [row[place] for row in others for place in numeric if place < len(row)]
    if (
        len(shown) < 2
        or not all(cell.isdecimal() for cell in shown)
        or {int(right) - int(left) for left, right in pairwise(shown)} != {1}
        or not any("." in cell and is_number(cell) for cell in below)
    ):
        return False, []
    words = f"The first line ({shown[0]}, {shown[1]}, ...) is read as names of columns"
    return True, [f"{words}; header (--header) decides otherwise."]


def _count_titles(rows: list[list[str]]) -> int:
    """Return the number of rows above the names of columns: title, author, date of a report."""
    width = Counter(map(len, rows)).most_common(1)[0][0]
    filled = [sum(map(bool, map(str.strip, row))) for row in rows]
    full = [len(row) == width and count > 1 for row, count in zip(rows, filled, strict=True)]
    first = full.index(True) if True in full else 0
    below = any(is_number(cell) or has_commas(cell) for row in rows[first + 1 :] for cell in row)
    return first if below and _has_names(rows[first:])[0] else 0


def _note_on_titles(count: int) -> list[str]:
    words = "line above the names is" if count == 1 else "lines above the names are"
    return [f"{count} {words} skipped; skip_rows (--skip-rows) decides otherwise."] * bool(count)


def _read_json(path: Path, form: FileFormat) -> Source:
    text = _read_content(path, form.compression).decode("utf-8-sig")
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


def _read_excel(
    path: Path, form: FileFormat, header: bool | None, skip_rows: int | None, sheet: str | None
) -> Source:
    require_openpyxl()
    rows, notes = read_in_child(_read_sheet, path, "Excel file", sheet)
    rows = rows[skip_rows or 0 :]
    if not rows:
        raise InvalidInputError(f"{path} is empty.")
    shown = [[str(cell) for cell in row] for row in rows[:SAMPLED_LINES]]
    titles = _count_titles(shown) if header is skip_rows is None else 0
    named, more = _has_names(shown[titles:]) if header is None else (header, [])
    names = unique([name.strip() for name in shown[titles]] if named else [""] * len(rows[0]))
    above = titles + named
    body = pd.DataFrame(rows[above:], columns=names, dtype=object)
    frame = body.where(body != "", None).infer_objects()
    first = above + (skip_rows or 0) + 1
    notes = [*more, *_note_on_titles(titles), *notes]
    return Source(path, frame, form, lambda row: f"row {row + first}", notes=notes)


def _read_sheet(path: Path, sheet: str | None) -> tuple[list[list[Any]], list[str]]:
    """Return the cells of a sheet, or of the first one, with "" for empty ones, and notes."""
    import openpyxl
    from openpyxl.cell.cell import ERROR_CODES

    with zipfile.ZipFile(path) as archive:
        require_size(path, sum(member.file_size for member in archive.infolist()))
    limit, rows, width, size = size_limit(path), list[list[Any]](), 0, 0
    with path.open("rb") as file, warnings.catch_warnings(action="ignore"):
        book = openpyxl.load_workbook(file, read_only=True, data_only=True)
        first, *others = book.sheetnames
        if sheet not in (None, first, *others):
            known = ", ".join([first, *others])
            raise InvalidInputError(f"{path} has no sheet {sheet!r}; it has {known}.")
        cells = book[sheet or first]
        cells.reset_dimensions()  # which some programs write wrongly
        for values in cells.iter_rows(values_only=True):
            row = ["" if value is None or value in ERROR_CODES else value for value in values]
            while row and row[-1] == "":
                row.pop()
            rows.append(row)
            width = max(width, len(row))
            # Cells share the text that they repeat, until it is written out.
            size += sum(len(cell) for cell in row if isinstance(cell, str))
            if size + CELL * len(rows) * (width + CELL) > limit:
                require_size(path, limit + 1)
    while rows and not rows[-1]:
        rows.pop()
    ignored = f"Only sheet {first!r} is read; array (--array) names another."
    padded = [row + [""] * (width - len(row)) for row in rows]
    return padded, [ignored] * (sheet is None and bool(others))


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


def arrow_source(path: Path, table: pyarrow.Table, form: FileFormat) -> Source:
    """Return the columns of a table of pyarrow; an index of pandas is taken as ids."""
    found = table.column_names
    index: list[str] = []
    with suppress(ValueError, AttributeError, TypeError):  # not written by pandas
        stored = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
        index = [name for name in stored.get("index_columns", []) if name in found]
    names = ["index" if name.startswith("__index_level") else name for name in found]
    plain = table.replace_schema_metadata(None).rename_columns(unique(names))
    ids = found.index(index[0]) if len(index) == 1 else None
    return Source(path, plain.to_pandas(types_mapper=pd.ArrowDtype), form, ids=ids)


def _read_numpy(path: Path, form: FileFormat, array: str | None) -> Source:
    if form.kind == "npy":
        with reading(path, ".npy file", "It may be damaged."), path.open("rb") as file:
            return _of_arrays(path, form, read_whole(file), {})
    with open_npz(path, ".npz file") as file:
        square = [name for name, shape in file.shapes.items() if len(shape) == 2]
        only = square if len(square) == 1 else list(file.shapes) if len(file.shapes) == 1 else []
        wanted = [array] if array else ["X", *only]
        key = next((name for name in wanted if name in file.shapes), None)
        if key is None:
            found = ", ".join(f"{name} {shape}" for name, shape in file.shapes.items())
            wrong = f"there is no {array!r}" if array else "name one (array, --array)"
            raise InvalidInputError(f"{path} holds {found or 'nothing'}; {wrong}.")
        # Other arrays are not read, unless they are columns or names beside the table.
        length = file.shapes[key][:1]
        beside = [name for name, shape in file.shapes.items() if shape == length]
        arrays = file.read({key, *beside, *({"feature_names"} & file.shapes.keys())})
        return _of_arrays(path, form, arrays.pop(key), arrays)


def _of_arrays(path: Path, form: FileFormat, table: Any, beside: dict[str, Any]) -> Source:
    """Return the source of an array, with others of its length beside it."""
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.dtype.kind not in "fiub" or table.shape[1] == 0:
        raise InvalidInputError(
            f"{path} must hold numbers (n, D), not {table.dtype} of shape {table.shape}."
        )
    if len(table) == 0:
        raise InvalidInputError(f"{path} has no rows.")
    width = table.shape[1]
    features = beside.pop("feature_names", np.empty(0))
    more = {name: values for name, values in beside.items() if values.shape == (len(table),)}
    given: Sequence[str] = [*map(str, features)] if features.shape == (width,) else [""] * width
    names = unique([*given, *more])
    columns = dict(zip(names, [*table.T, *more.values()], strict=True))
    return Source(path, pd.DataFrame(columns), form, beside=range(width, len(names)))
