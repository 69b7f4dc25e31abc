"""Delimited text. The layout is found on a sample of lines; pyarrow reads the cells."""

from __future__ import annotations

import csv
import io
import lzma
import re
import sys
import zipfile
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
from pyarrow import csv as arrow_csv

from isthmus.errors import InvalidInputError
from isthmus.io.reading import read_bounded, reading
from isthmus.printing import counted, listed
from isthmus.tables.columns import (
    DECIMAL_COMMA,
    POINTS_GROUPED,
    Source,
    count_titles,
    has_commas,
    has_names,
    is_number,
    note_on_titles,
    unique,
)
from isthmus.tables.files import STDIN, FileFormat
from isthmus.tables.styles import UNIT

# The first of several that fit equally well is taken: a comma may be a decimal mark.
SEPARATORS = ("\t", ";", "|", ",", " ")
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}


def read_text(
    path: Path, form: FileFormat, header: bool | None, skip_rows: int | None, **given: str | None
) -> Source:
    """Read a text file."""
    data = read_content(path, form.compression)
    encoding, notes = (given["encoding"], []) if given["encoding"] else _encoding(path, data)
    form = replace(form, encoding=encoding)
    marks = {name: given[name] for name in ("separator", "decimal")}
    source = TextFile(path, data.decode(encoding), form, header, skip_rows, **marks).source()
    return replace(source, notes=[*source.notes, *notes])


def read_content(path: Path, compression: str) -> bytes:
    """Return the decompressed content of a file, or of stdin."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        return sys.stdin.buffer.read()
    if not compression:
        return path.read_bytes()
    with reading(path, f"{path.suffix} file"), _decompressed(path, compression) as stream:
        return read_bounded(path, stream)


@contextmanager
def _decompressed(path: Path, compression: str) -> Iterator[Any]:
    if compression == "zip":
        with zipfile.ZipFile(path) as archive:
            if len(archive.namelist()) != 1:
                raise InvalidInputError(f"{path} must hold exactly one file.")
            with archive.open(archive.namelist()[0]) as stream:
                yield stream
        return
    is_xz = compression == "xz"
    with (
        lzma.open(path) if is_xz else pyarrow.input_stream(str(path), compression=compression)
    ) as stream:
        yield stream


class TextFile:
    """A delimited file and its layout, found on a sample of lines where it is not given.

    `names` is empty if the file has none, and `skip` lines stand above the first row.
    """

    def __init__(
        self,
        path: Path,
        text: str,
        form: FileFormat,
        header: bool | None,
        skip_rows: int | None,
        *,
        separator: str | None,
        decimal: str | None,
    ) -> None:
        self.path, self.text = path, text
        above, lines = _sample(path, text, skip_rows or 0)
        try:
            separator = separator or _separator(lines)
            found = list(_rows(lines, separator))
        except csv.Error as error:
            raise InvalidInputError(f"{path} is not a readable text file: {error}.") from None
        if not found:
            raise InvalidInputError(f"{path} is empty.")
        titles = count_titles([row for _, row in found]) if header is skip_rows is None else 0
        found = found[titles:]
        rows = [row for _, row in found]
        self.decimal_given = decimal is not None
        decimal = decimal or _decimal(rows, separator)
        # The last comment has the names in files of numpy.savetxt.
        comment = next((line for line in reversed(above) if line.startswith("#")), "")
        names = [row for _, row in _rows([comment[1:]], separator)]
        numbers = any(is_number(cell) or has_commas(cell) for cell in rows[0])
        commented = header is not False and numbers and [len(c) for c in names] == [len(rows[0])]
        if commented:
            rows = names + rows
        named, self.notes = has_names(rows, decimal) if header is None else (header, [])
        if titles:
            self.notes.append(note_on_titles(titles))
        # R leaves out the name of the column of row names.
        short = named and len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])
        self.format = replace(form, separator=separator, decimal=decimal)
        self.names = [""] * short + [cell.strip() for cell in rows[0]] if named else []
        self.width = len(rows[0]) + short
        self.skip = len(above) + (found[0][0] if named and not commented else 0)

    def source(self) -> Source:
        """Read the file."""
        names = unique(self.names or [""] * self.width)
        frame = self._read().set_axis(names, axis=1)
        named = [name for name in self.names if name]
        if len(set(named)) < len(named):
            self.notes.append(f"Some names occur twice; the columns are {listed(names)}.")
        return Source(
            self.path,
            frame,
            self.format,
            self._place,
            ids=0 if named and not self.names[0] else None,
            grouped=self.decimal_given,
            notes=self.notes,
        )

    def _read(self) -> pd.DataFrame:
        """Return the text of the cells, with columns 0, 1, ..."""
        separator, places = self.format.separator, range(self.width)
        content = self._body().read()
        # pyarrow takes neither runs of spaces as separators, nor quotes after a space; and it
        # reads on where one is left open.
        strange = f'{separator} "' in content or content.count('"') % 2
        if separator.isascii() and separator != " " and not strange:
            kinds = dict.fromkeys(map(str, places), pyarrow.string())
            with suppress(pyarrow.ArrowException):
                table = arrow_csv.read_csv(
                    io.BytesIO(content.encode()),
                    arrow_csv.ReadOptions(column_names=list(kinds), use_threads=False),
                    arrow_csv.ParseOptions(delimiter=separator, newlines_in_values=True),
                    arrow_csv.ConvertOptions(column_types=kinds, strings_can_be_null=False),
                )
                frame = table.to_pandas().set_axis(places, axis=1)
                if self.width > 1:
                    return frame
                # A line of spaces is blank; a quoted cell that is empty is a gap.
                blank = (frame[0] != "") & (frame[0].str.strip() == "")
                return frame[~blank].reset_index(drop=True)
        # Slowly, with an error that names a broken line.
        return pd.DataFrame([cells for _, cells in self.rows()], columns=places, dtype=str)

    def _body(self) -> io.StringIO:
        """Return the text of the rows."""
        text = io.StringIO(self.text, newline="")
        for _ in range(self.skip):
            text.readline()
        return text

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row: slowly, strict about quotes and widths."""
        line = self.skip
        try:
            for below, cells in _rows(self._body(), self.format.separator, strict=True):
                line = self.skip + below
                if len(cells) != self.width:
                    first = "the line of names" if self.names else "the first line"
                    raise InvalidInputError(
                        f"{self.path}, line {line}: {counted(len(cells), 'cell')}, but {first} has "
                        f"{self.width}. Quote cells that contain the separator; if it is a comment "
                        "below the names, remove the line."
                    )
                yield line, cells
        except csv.Error as error:
            where = f"{self.path}, below line {line}"
            raise InvalidInputError(f"{where}: {error}. Is a quote left open?") from None

    def _place(self, row: int) -> str:
        """Return words for the place of a row; pandas may count one that looks blank."""
        lines = [line for line, _ in self.rows()]
        return f"line {lines[row]}" if row < len(lines) else f"row {row + 1}"


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
            "(option encoding)."
        )
    # They differ in these bytes only, which are control characters in Latin-1.
    windows = re.search(rb"[\x80-\x9f]", data) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", data)
    encoding, name = ("cp1252", "Windows-1252") if windows else ("latin-1", "Latin-1")
    return encoding, [f"The file is read as {name} (option encoding), since in {where}."]


def _sample(path: Path, text: str, skip: int) -> tuple[list[str], list[str]]:
    """Return the blank lines and comments above the table, with `skip` others, and a sample."""
    above, lines, size = list[str](), list[str](), 0
    for line in io.StringIO(text, newline=""):
        if not lines and (len(above) < skip or not line.strip() or line.startswith("#")):
            above.append(line)
            continue
        lines.append(line)
        size += len(line)
        if len(lines) >= 200 or (len(lines) >= 20 and size > 2**16):
            break
    if not lines:
        raise InvalidInputError(f"{path} is empty.")
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
