"""Readers of each format. The layout of text is found on a sample; pandas reads the cells."""

from __future__ import annotations

import csv
import io
import json
import lzma
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow

from isthmus.arrays import open_npz, read_npy
from isthmus.errors import InvalidInputError
from isthmus.printing import counted, listed
from isthmus.reading import read_bounded, reading
from isthmus.tables.binary import read_arrow, read_sheet
from isthmus.tables.columns import (
    DECIMAL_COMMA,
    FLAG,
    ID_NAME,
    MISSING,
    THOUSANDS,
    WORD,
    Source,
    has_commas,
    has_names,
    is_number,
    parse_cells,
    unique,
)
from isthmus.tables.files import STDIN, FileFormat, require_openpyxl

GAPS = sorted({case(word) for word in MISSING for case in (str, str.upper, str.title)} | {"NaN"})
# The first of several that fit equally well is taken: a comma may be a decimal mark.
SEPARATORS = ("\t", ";", "|", ",", " ")
# Older versions of pandas may round the last digit.
PRECISION = None if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else "round_trip"
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

Opener = Callable[[], IO[bytes]]


def read_source(
    path: Path,
    wanted: set[str],
    as_written: bool,
    header: bool | None,
    array: str | None,
    **given: str | None,
) -> Source:
    """Read a file by its suffix. Columns of text in `wanted`, by name or number, keep their text.

    The other parameters are those of :func:`isthmus.tables.read_table`.
    """
    form = FileFormat.of(path)
    if array is not None and form.kind not in ("npz", "excel"):
        raise InvalidInputError(
            f"Option array names an array of an .npz file or an Excel sheet; {path} is neither."
        )
    if form.kind == "text":
        content = opener(path, form.compression)
        try:
            return TextFile(path, content, form, header, **given).source(wanted, as_written)
        except UnicodeDecodeError:
            if given["encoding"] is not None:
                raise
            note, given["encoding"] = _check_latin1(path, content), "latin-1"
            source = TextFile(path, content, form, header, **given).source(wanted, as_written)
            return replace(source, notes=[*source.notes, note])
    options = [name for name, value in given.items() if value is not None]
    options += ["header"] * (header is not None and form.kind != "excel")
    if options:
        raise InvalidInputError(f"Option {options[0]} is for text files, which {path} is not.")
    if form.kind == "json":
        return _json(path, form)
    if form.kind == "excel":
        return _excel(path, form, header, array)
    return _arrow(path, form) if form.kind in ("parquet", "feather") else _numpy(path, form, array)


def opener(path: Path, compression: str) -> Opener:
    """Return a function that opens the decompressed content, any number of times."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        held = sys.stdin.buffer.read()
    elif not compression:
        return lambda: path.open("rb")
    elif compression == "zip":
        with zipfile.ZipFile(path) as archive:
            if len(archive.namelist()) != 1:
                raise InvalidInputError(f"{path} must hold exactly one file.")
            with archive.open(archive.namelist()[0]) as stream:
                held = read_bounded(path, stream)
    elif compression == "xz":
        with lzma.open(path) as stream:
            held = read_bounded(path, stream)
    else:
        with pyarrow.input_stream(str(path), compression=compression) as stream:
            held = read_bounded(path, stream)
    return lambda: io.BytesIO(held)


class TextFile:
    """A delimited file and its layout, found on a sample of lines where it is not given.

    `names` is empty if the file has none, `skip` lines stand above the first row, and columns in
    `words` hold something else than numbers in the sample.
    """

    def __init__(
        self,
        path: Path,
        content: Opener,
        form: FileFormat,
        header: bool | None,
        **given: str | None,
    ) -> None:
        self.path, self.content = path, content
        encoding = given["encoding"] or _encoding(path, content)
        lines = list[str]()
        with io.TextIOWrapper(content(), encoding, newline="") as text:
            for line in text:
                lines.append(line)
                if len(lines) >= 200 or (len(lines) >= 20 and sum(map(len, lines)) > 2**16):
                    break
        blank = [not line.strip() or line.startswith("#") for line in lines]
        if all(blank):
            raise InvalidInputError(f"{path} is empty.")
        top = blank.index(False)
        separator = given["separator"] or _separator(lines[top:])
        found = list(_rows(lines[top:], separator))
        rows = [cells for _, cells in found]
        cells = [cell.strip() for row in rows for cell in row]
        commas = separator != "," and any(map(DECIMAL_COMMA.fullmatch, cells))
        points = any("." in cell and is_number(cell) for cell in cells)
        self.unsure = given["decimal"] is None
        decimal = given["decimal"] or ("," if commas and not points else ".")
        comment = next((line for line in reversed(lines[:top]) if line.startswith("#")), "")
        above = [cells for _, cells in _rows([comment[1:]], separator)]
        # The last comment has the names in files of numpy.savetxt.
        numbers = any(is_number(cell) or has_commas(cell) for cell in rows[0])
        commented = header is not False and numbers and [len(c) for c in above] == [len(rows[0])]
        if commented:
            rows = above + rows
        named, self.notes = has_names(rows, decimal) if header is None else (header, [])
        # R leaves out the name of the column of row names.
        short = named and len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])
        self.format = replace(form, separator=separator, decimal=decimal, encoding=encoding)
        self.names = [""] * short + [cell.strip() for cell in rows[0]] if named else []
        self.width = len(rows[0]) + short
        self.skip = top + (found[0][0] if named and not commented else 0)
        sample = pd.DataFrame([row for row in rows[named:] if len(row) == self.width])
        kinds = {place: set(parse_cells(sample[place], decimal)[1].tolist()) for place in sample}
        self.words = {place for place, found in kinds.items() if not found.isdisjoint((FLAG, WORD))}
        self.padded = any(separator + " " in line for line in lines)

    def source(self, wanted: set[str], as_written: bool) -> Source:
        """Read the file."""
        names = unique(self.names or [""] * self.width)
        kept = {
            place
            for place, name in enumerate(names)
            if ID_NAME.fullmatch(name) or not wanted.isdisjoint((name, str(place + 1)))
        }
        frame = self.read(self.words | kept, nullable=as_written).set_axis(names, axis=1)
        if self.format.decimal == "," and self.unsure:
            self.notes += self._check_commas(set(range(self.width)) - kept - self.words, names)
        named = [name for name in self.names if name]
        if len(set(named)) < len(named):
            self.notes.append(f"Some names occur twice; the columns are {listed(names)}.")
        return Source(
            self.path,
            frame,
            self.format,
            lambda row: f"line {list(self.rows())[row][0]}",
            ids=0 if named and not self.names[0] else None,
            cells=self.read(set(range(self.width))).set_axis(names, axis=1) if as_written else None,
            notes=self.notes,
        )

    def read(self, as_text: set[int], nullable: bool = False) -> pd.DataFrame:
        """Return the cells, with columns 0, 1, ...; those in `as_text` as they are written."""
        gaps: Any = {place: GAPS for place in range(self.width) if place not in as_text}
        if not as_text:
            gaps = GAPS  # which pandas checks in less time
        try:
            with self._open() as file, warnings.catch_warnings():
                warnings.simplefilter("ignore", pd.errors.DtypeWarning)
                warnings.simplefilter("error", pd.errors.ParserWarning)
                frame = pd.read_csv(
                    file,
                    sep=r"\s+" if self.format.separator == " " else self.format.separator,
                    decimal=self.format.decimal,
                    header=None,
                    names=range(self.width),
                    index_col=False,
                    dtype=dict.fromkeys(as_text, str),
                    keep_default_na=False,
                    na_values=gaps or None,
                    na_filter=bool(gaps),
                    skipinitialspace=self.padded,
                    float_precision=PRECISION,
                    **({"dtype_backend": "numpy_nullable"} if nullable else {}),
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            list(self.rows())  # raises an error that names the broken line, as a rule
            raise InvalidInputError(f"{self.path} cannot be read: {error}") from None
        last = frame[self.width - 1]
        if self.width > 1 and (last.isna() | (last == "")).any():
            # pandas adds missing values to rows that are too short; counting separators finds them,
            # unless some are in quotes, as only columns of text have them.
            quotes = not all(kind.kind in "biuf" for kind in frame.dtypes)
            quoted, count = False, 0
            with self.content() as raw:
                for _ in range(self.skip):
                    raw.readline()
                while part := raw.read(2**18):
                    quoted = quoted or (quotes and b'"' in part)
                    marks = np.frombuffer(part, np.uint8) == ord(self.format.separator)
                    count += int(np.count_nonzero(marks))
            if quoted or count != len(frame) * (self.width - 1):
                list(self.rows())
        return frame

    def _open(self) -> io.TextIOWrapper:
        """Return the text of the rows."""
        text = io.TextIOWrapper(self.content(), self.format.encoding, newline="")
        for _ in range(self.skip):
            text.readline()
        return text

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row: slowly, strict about quotes and widths."""
        line = self.skip
        with self._open() as text:
            try:
                for below, cells in _rows(text, self.format.separator, strict=True):
                    line = self.skip + below
                    if len(cells) != self.width:
                        first = "the line of names" if self.names else "the first line"
                        advice = "Are cells that contain the separator quoted?"
                        if cells[0].startswith("#"):
                            advice = "Comments are allowed only above the table; remove the line."
                        raise InvalidInputError(
                            f"{self.path}, line {line}: {counted(len(cells), 'cell')}, but {first} "
                            f"has {self.width}. {advice}"
                        )
                    yield line, cells
            except csv.Error as error:
                where = f"{self.path}, below line {line}"
                raise InvalidInputError(f"{where}: {error}. Is a quote left open?") from None

    def _check_commas(self, places: set[int], names: list[str]) -> list[str]:
        """Return a note on decimal commas; refuse commas that may stand between thousands."""
        unclear = ""
        for line, cells in self.rows():
            for place in sorted(places):
                cell, where = cells[place].strip(), f"line {line}, column {names[place]!r}"
                if THOUSANDS.fullmatch(cell):
                    unclear = unclear or (
                        f"{self.path}, {where}: {cell} may be {cell.replace(',', '')}, or have a "
                        "decimal comma, and no other cell decides which. Name the decimal mark "
                        "(option decimal), write numbers without separators of thousands, or leave "
                        f"the column out (option drop {names[place]})."
                    )
                elif DECIMAL_COMMA.fullmatch(cell):
                    number = cell.replace(",", ".")
                    return [f"Commas in numbers are decimal marks: {where}, {cell} is {number}."]
        if unclear:
            raise InvalidInputError(unclear)
        return []


def _encoding(path: Path, content: Opener) -> str:
    """Return the encoding that a byte order mark or zero bytes show, or else UTF-8."""
    with content() as file:
        head = file.read(2**12)
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) * 10 < max(even, odd) > len(head) / 3:
        return "utf-16-le" if odd > even else "utf-16-be"
    if even or odd:
        raise InvalidInputError(f"{path} is not a text file.")
    return "utf-8"


def _check_latin1(path: Path, content: Opener) -> str:
    """Return a note on a file that is not UTF-8; refuse one that is UTF-8 in other places."""
    with content() as file:
        data = file.read()
    try:
        data.decode()
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        where = f"line {line}: byte {data[error.start]:#04x} is not UTF-8"
    if not data.decode(errors="ignore").isascii():
        raise InvalidInputError(
            f"{path}, {where}, though other characters are. Correct the line, or name the encoding "
            "(option encoding)."
        )
    return f"The file is read as Latin-1 (option encoding), since in {where}."


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
    best, most = ",", 0.0
    for separator in SEPARATORS:
        widths = Counter(len(cells) for _, cells in _rows(lines, separator))
        usual, times = max(widths.items(), key=lambda found: found[1], default=(1, 0))
        share = times / max(widths.total(), 1)
        if usual > 1 and share > most:
            best, most = separator, share
    return best


def _json(path: Path, form: FileFormat) -> Source:
    with opener(path, form.compression)() as file:
        text = file.read().decode("utf-8-sig")
    is_list = text.lstrip().startswith("[")
    numbered = [(1, text)] if is_list else enumerate(text.split("\n"), 1)
    lines = [(number, line) for number, line in numbered if line.strip()]
    place: Callable[[int], str] = lambda row: f"line {lines[row][0]}"  # noqa: E731
    rows: list[Any] = []
    try:
        rows.extend(json.loads(line) for _, line in lines)
    except json.JSONDecodeError as error:
        line = lines[len(rows)][0] + error.lineno - 1
        raise InvalidInputError(f"{path}, line {line}: this is not JSON: {error.msg}.") from None
    if is_list:
        rows, place = rows[0], Source.place
    if not rows:
        raise InvalidInputError(f"{path} is empty.")
    for number, row in enumerate(rows):
        if not isinstance(row, dict):
            raise InvalidInputError(f"{path}, {place(number)}: a row must be an object, {{...}}.")
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _typed([row.get(name) for row in rows]) for name in names}
    return Source(path, pd.DataFrame(columns), form, place)


def _typed(values: list[Any]) -> pd.Series:
    """Return a Series of numbers that keep all digits, of text, or of whatever there is."""
    for kind in (None, pyarrow.uint64()):
        with suppress(pyarrow.ArrowException, OverflowError):
            found = pyarrow.array(values, kind)
            return pd.Series(found, dtype=pd.ArrowDtype(found.type))
    return pd.Series(values, dtype=object)


def _excel(path: Path, form: FileFormat, header: bool | None, sheet: str | None) -> Source:
    require_openpyxl()
    with reading(path, "Excel file"):
        grid, notes = read_sheet(path, sheet)
    if grid.empty:
        raise InvalidInputError(f"{path} is empty.")
    rows = grid.head(200).astype(str).to_numpy().tolist()
    named, more = has_names(rows) if header is None else (header, [])
    names = unique([name.strip() for name in rows[0]] if named else [""] * grid.shape[1])
    body = grid.iloc[int(named) :].reset_index(drop=True).set_axis(names, axis=1)
    frame = body.astype(object).where(body != "", None).infer_objects()
    return Source(path, frame, form, lambda row: f"row {row + 1 + named}", notes=[*more, *notes])


def _arrow(path: Path, form: FileFormat) -> Source:
    with reading(path, f"{form.kind.capitalize()} file", "It may be damaged or truncated."):
        return arrow_source(path, read_arrow(path, form.kind), form)


def arrow_source(path: Path, table: pyarrow.Table, form: FileFormat) -> Source:
    """Return the columns of a table of pyarrow; an index of pandas is taken as ids."""
    stored = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    index = [name for name in stored.get("index_columns", []) if name in table.column_names]
    found = table.column_names
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
    frame = frame.assign(**dict(zip(names[width:], (arrays[name] for name in beside), strict=True)))
    return Source(path, frame, form, beside=range(width, len(names)))
