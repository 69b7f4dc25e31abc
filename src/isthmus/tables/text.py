"""Delimited text. The layout is found on a sample of lines; pandas reads the cells."""

from __future__ import annotations

import csv
import io
import lzma
import re
import sys
import warnings
import zipfile
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import IO, Any

import pandas as pd
import pyarrow

from isthmus.errors import InvalidInputError
from isthmus.io.reading import read_bounded, reading
from isthmus.printing import counted, listed
from isthmus.tables.columns import (
    DECIMAL_COMMA,
    FLAG,
    ID_NAME,
    MISSING,
    POINTS_GROUPED,
    THOUSANDS,
    WORD,
    Source,
    count_titles,
    has_commas,
    has_names,
    is_number,
    note_on_titles,
    parse_cells,
    unique,
)
from isthmus.tables.files import STDIN, FileFormat
from isthmus.tables.styles import UNIT

GAPS = sorted({case(word) for word in MISSING for case in (str, str.upper, str.title)} | {"NaN"})
# The first of several that fit equally well is taken: a comma may be a decimal mark.
SEPARATORS = ("\t", ";", "|", ",", " ")
# Older versions of pandas may round the last digit.
PRECISION = None if tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1) else "round_trip"
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}

Opener = Callable[[], IO[bytes]]


def read_text(
    path: Path,
    form: FileFormat,
    wanted: set[str],
    as_written: bool,
    header: bool | None,
    skip_rows: int | None,
    **given: str | None,
) -> Source:
    """Read a text file; one that is not UTF-8 is read in an encoding of one byte a character."""
    content = opener(path, form.compression)
    try:
        text = TextFile(path, content, form, header, skip_rows, **given)
        return text.source(wanted, as_written)
    except UnicodeDecodeError:
        if given["encoding"] is not None:
            raise
    given["encoding"], note = _one_byte_encoding(path, content)
    text = TextFile(path, content, form, header, skip_rows, **given)
    source = text.source(wanted, as_written)
    return replace(source, notes=[*source.notes, note])


def opener(path: Path, compression: str) -> Opener:
    """Return a function that opens the decompressed content, any number of times."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        held = sys.stdin.buffer.read()
    elif not compression:
        return lambda: path.open("rb")
    else:
        with reading(path, f"{path.suffix} file"), _decompressed(path, compression) as stream:
            held = read_bounded(path, stream)
    return lambda: io.BytesIO(held)


@contextmanager
def _decompressed(path: Path, compression: str) -> Iterator[Any]:
    if compression == "zip":
        with zipfile.ZipFile(path) as archive:
            if len(archive.namelist()) != 1:
                raise InvalidInputError(f"{path} must hold exactly one file.")
            with archive.open(archive.namelist()[0]) as stream:
                yield stream
    elif compression == "xz":
        with lzma.open(path) as stream:
            yield stream
    else:
        with pyarrow.input_stream(str(path), compression=compression) as stream:
            yield stream


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
        skip_rows: int | None,
        **given: str | None,
    ) -> None:
        self.path, self.content = path, content
        encoding = given["encoding"] or _encoding(path, content)
        above, lines = _sample(path, content, encoding, skip_rows or 0)
        try:
            separator = given["separator"] or _separator(lines)
            found = list(_rows(lines, separator))
        except csv.Error as error:
            raise InvalidInputError(f"{path} is not a readable text file: {error}.") from None
        if not found:
            raise InvalidInputError(f"{path} is empty.")
        titles = count_titles([row for _, row in found]) if header is skip_rows is None else 0
        found = found[titles:]
        rows = [row for _, row in found]
        self.unsure = given["decimal"] is None
        decimal = given["decimal"] or _decimal(rows, separator)
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
        self.format = replace(form, separator=separator, decimal=decimal, encoding=encoding)
        self.names = [""] * short + [cell.strip() for cell in rows[0]] if named else []
        self.width = len(rows[0]) + short
        self.skip = len(above) + (found[0][0] if named and not commented else 0)
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
            self._place,
            ids=0 if named and not self.names[0] else None,
            cells=self.read(set(range(self.width))).set_axis(names, axis=1) if as_written else None,
            notes=self.notes,
        )

    def read(self, as_text: set[int], nullable: bool = False) -> pd.DataFrame:
        """Return the cells, with columns 0, 1, ...; those in `as_text` as they are written."""
        gaps: Any = {place: GAPS for place in range(self.width) if place not in as_text}
        if not as_text:
            gaps = GAPS  # which pandas checks in less time
        separator = self.format.separator.encode()
        counts = self._counts(b"\n", b"\r", b'"', separator)
        if self.width * max(counts[b"\n"], counts[b"\r"]) > counts[b""]:
            list(self.rows())  # some are short, and pandas would add cells without bound
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
        except UnicodeDecodeError:
            raise
        except (ValueError, OverflowError, pd.errors.ParserWarning) as error:
            list(self.rows())  # raises an error that names the broken line, as a rule
            raise InvalidInputError(f"{self.path} cannot be read: {error}") from None
        last = frame[self.width - 1]
        if self.width > 1 and (last.isna() | (last == "")).any():
            # pandas adds missing values to rows that are too short; counting separators finds them,
            # unless some are in quotes, as only columns of text have them.
            quoted = counts[b'"'] and not all(kind.kind in "biuf" for kind in frame.dtypes)
            if quoted or counts[separator] != len(frame) * (self.width - 1):
                list(self.rows())
        return frame

    def _counts(self, *marks: bytes) -> Counter[bytes]:
        """Return how often marks occur below the names, and the number of all bytes as b""."""
        counts = Counter[bytes]()
        with self.content() as raw:
            for _ in range(self.skip):
                raw.readline()
            while part := raw.read(2**18):
                counts.update({b"": len(part)} | {mark: part.count(mark) for mark in marks})
        return counts

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

    def _place(self, row: int) -> str:
        """Return words for the place of a row; pandas may count one that looks blank."""
        lines = [line for line, _ in self.rows()]
        return f"line {lines[row]}" if row < len(lines) else f"row {row + 1}"

    def _check_commas(self, places: set[int], names: list[str]) -> list[str]:
        """Return a note on decimal commas; refuse commas that may stand between thousands."""
        unclear = ""
        for line, cells in self.rows():
            for place in sorted(places):
                cell = UNIT.sub("", cells[place].strip())
                where = f"line {line}, column {names[place]!r}"
                if THOUSANDS.fullmatch(cell):
                    unclear = unclear or (
                        f"{self.path}, {where}: {cell} may be {cell.replace(',', '')}, or have a "
                        "decimal comma, and no other cell decides which. Name the decimal mark "
                        "(option decimal), write numbers without separators of thousands, or leave "
                        f"the column out (option drop {names[place]})."
                    )
                elif DECIMAL_COMMA.fullmatch(cell) or POINTS_GROUPED.fullmatch(cell):
                    number = cell.replace(".", "").replace(",", ".")
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


def _one_byte_encoding(path: Path, content: Opener) -> tuple[str, str]:
    """Return the encoding of a file that is not UTF-8, and a note; refuse one that partly is."""
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
    # They differ in these bytes only, which are control characters in Latin-1.
    windows = re.search(rb"[\x80-\x9f]", data) and not re.search(rb"[\x81\x8d\x8f\x90\x9d]", data)
    encoding, name = ("cp1252", "Windows-1252") if windows else ("latin-1", "Latin-1")
    return encoding, f"The file is read as {name} (option encoding), since in {where}."


def _sample(path: Path, content: Opener, encoding: str, skip: int) -> tuple[list[str], list[str]]:
    """Return the blank lines and comments above the table, with `skip` others, and a sample."""
    above, lines, size = list[str](), list[str](), 0
    with io.TextIOWrapper(content(), encoding, newline="") as text:
        for line in text:
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
    best, most = ",", 0.0
    for separator in SEPARATORS:
        widths = Counter(len(cells) for _, cells in _rows(lines, separator))
        usual, times = max(widths.items(), key=lambda found: found[1], default=(1, 0))
        share = times / max(widths.total(), 1)
        if usual > 1 and share > most:
            best, most = separator, share
    return best
