"""Delimited text: the layout is found on a sample, the cells are read by pandas."""

from __future__ import annotations

import bz2
import csv
import gzip
import io
import lzma
import re
import sys
import warnings
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import pandas as pd

from isthmus.errors import InvalidInputError
from isthmus.tables.cells import (
    DECIMAL_COMMA,
    FLAG,
    MISSING,
    SWAPPED,
    THOUSANDS,
    has_commas,
    is_number,
    parse_cells,
)
from isthmus.tables.formats import STDIN, FileFormat

__all__ = ["TextFile", "fallback_encoding", "has_names", "opener", "readable_errors"]

Opener = Callable[[], IO[bytes]]
# The first of several that fit equally well is taken: a comma may be a decimal mark.
SEPARATORS = ("\t", ";", "|", ",", " ")
SAMPLE_LINES, FEWEST_LINES, SAMPLE_CHARACTERS = 200, 20, 2**16
GAPS = sorted({case(word) for word in MISSING for case in (str, str.upper, str.title)} | {"NaN"})
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
DAMAGED = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, OSError)
# Older versions of pandas may round the last digit.
EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
PRECISION: dict[str, Any] = {} if EXACT else {"float_precision": "round_trip"}


def opener(path: Path, compression: str) -> Opener:
    """Return a function that opens the decompressed content, any number of times."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        held = sys.stdin.buffer.read()
    elif compression == "zip":
        with zipfile.ZipFile(path) as archive:
            members = archive.namelist()
            if len(members) != 1:
                raise InvalidInputError(f"{path} must hold one file, not {len(members)}.")
            held = archive.read(members[0])
    elif compression == "zstd":
        import pyarrow

        with pyarrow.input_stream(str(path), compression="zstd") as stream:
            held = stream.read()
    else:
        openers: dict[str, Any] = {"gzip": gzip.open, "bz2": bz2.open, "xz": lzma.open, "": open}
        return lambda: openers[compression](path, "rb")
    return lambda: io.BytesIO(held)


@contextmanager
def readable_errors(path: Path, compression: str) -> Iterator[None]:
    """Turn errors in decompression and decoding into errors that name the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        byte = f"{error.object[error.start]:#04x}"
        raise InvalidInputError(
            f"{path} is not text in {error.encoding}: byte {byte} is invalid. Name its encoding "
            "(option encoding), or save it as UTF-8."
        ) from None
    except DAMAGED as error:
        # Errors of the operating system have a number; those of damaged content do not.
        if not compression or getattr(error, "errno", None):
            raise
        raise InvalidInputError(f"{path} is not a complete {compression} file: {error}") from None


@dataclass(frozen=True)
class TextFile:
    """A delimited file and its layout.

    `names` is empty if the file has none, `skip` lines stand above the first row, and columns in
    `words` hold something else than numbers in the sample.
    """

    path: Path
    content: Opener
    format: FileFormat
    names: list[str]
    width: int
    skip: int
    words: set[int]
    padded: bool
    notes: list[str]

    @classmethod
    def open(
        cls,
        path: Path,
        content: Opener,
        given: FileFormat,
        header: bool | None,
        separator: str | None,
        decimal: str | None,
        encoding: str | None,
    ) -> TextFile:
        """Find the layout of a file, where it is not given."""
        encoding = encoding or _encoding(path, content)
        sample = _sample(content, encoding)
        separator = separator or _separator(path, sample)
        lines = list(_rows(path, sample, separator, header is not False, strict=False))
        if not lines:
            raise InvalidInputError(f"{path} is empty.")
        rows = [cells for _, cells in lines]
        if decimal is None:
            decimal = "," if separator != "," and _has_decimal_commas(rows) else "."
        named, note = has_names(rows, decimal) if header is None else (header, "")
        # R leaves out the name of the column of row names.
        short = named and len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])
        width = len(rows[0]) + short
        columns = zip(*(row for row in rows[named:] if len(row) == width), strict=True)
        kinds = (parse_cells(pd.Series(cells, dtype=object), decimal).kinds for cells in columns)
        return cls(
            path,
            content,
            replace(given, separator=separator, decimal=decimal, encoding=encoding),
            names=[""] * short + [cell.strip() for cell in rows[0]] if named else [],
            width=width,
            skip=lines[0][0] - (not named),
            words={place for place, found in enumerate(kinds) if (found >= FLAG).any()},
            padded=any(separator + " " in line for line in sample),
            notes=[note] * bool(note),
        )

    def read(self, as_text: set[int]) -> pd.DataFrame:
        """Return the cells, with columns 0, 1, ...; those in `as_text` as they are written."""
        gaps = {place: GAPS for place in range(self.width) if place not in as_text}
        try:
            with self._below_names() as file, warnings.catch_warnings():
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
                    **PRECISION,
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            self.lines()
            raise InvalidInputError(f"{self.path} cannot be read: {error}") from None
        if self._may_be_ragged(frame):
            self.lines()
        return frame

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row: slowly, strict about quotes and widths."""
        with self._text() as text:
            found = _rows(self.path, text, self.format.separator, bool(self.names), strict=True)
            if self.names:
                next(found)
            for line, cells in found:
                if len(cells) != self.width:
                    raise InvalidInputError(self._wrong_width(line, cells))
                yield line, cells

    def lines(self) -> list[int]:
        """Return the line number of each row, or raise an error that names a broken line."""
        return [line for line, _ in self.rows()]

    def check_decimal_commas(self, columns: dict[int, str]) -> str:
        """Return a note on decimal commas; refuse commas that may stand between thousands.

        Parameters
        ----------
        columns : dict of int to str
            Positions and names of the columns of numbers.
        """
        unclear = ""
        for line, cells in self.rows():
            for place, name in columns.items():
                cell, where = cells[place].strip(), f"line {line}, column {name!r}"
                if THOUSANDS.fullmatch(cell):
                    unclear = unclear or (
                        f"{self.path}, {where}: {cell} may be {cell.replace(',', '')}, or have a "
                        "decimal comma, and no other cell decides which. Name the decimal mark "
                        "(option decimal), write numbers without separators of thousands, or leave "
                        f"the column out (option drop {name})."
                    )
                elif DECIMAL_COMMA.fullmatch(cell):
                    number = cell.replace(",", ".")
                    return f"Commas in numbers are decimal marks: {where}, {cell} is {number}."
        if unclear:
            raise InvalidInputError(unclear)
        return ""

    def _text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(self.content(), self.format.encoding, newline="")

    def _below_names(self) -> io.TextIOWrapper:
        text = self._text()
        for _ in range(self.skip):
            text.readline()
        return text

    def _may_be_ragged(self, frame: pd.DataFrame) -> bool:
        """Return True if rows may be too short: pandas adds missing values to such rows."""
        last = frame[self.width - 1]
        if self.width == 1 or not (last.isna() | (last == "")).any():
            return False
        separators = 0
        with self._below_names() as text:
            while part := text.read(2**20):
                if '"' in part:
                    return True
                separators += part.count(self.format.separator)
        return separators != len(frame) * (self.width - 1)

    def _wrong_width(self, line: int, cells: list[str]) -> str:
        first = "the line of names" if self.names else "the first line"
        advice = "Are cells that contain the separator quoted?"
        if cells[0].startswith("#"):
            advice = "Comments are allowed only above the table; remove the line."
        count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
        return f"{self.path}, line {line}: {count}, but {first} has {self.width}. {advice}"


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


def fallback_encoding(path: Path, content: Opener) -> tuple[str, str]:
    """Return the encoding of a file that is not UTF-8, and a note."""
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
    windows = re.search(rb"[\x80-\x9f]", data) is not None
    name = "Windows-1252" if windows else "Latin-1"
    note = f"The file is read as {name} (option encoding), since in {where}."
    return ("cp1252" if windows else "latin-1"), note


def _sample(content: Opener, encoding: str) -> list[str]:
    """Return the first lines."""
    lines: list[str] = []
    characters = full = 0
    with io.TextIOWrapper(content(), encoding, newline="") as text:
        for line in text:
            lines.append(line)
            characters += len(line)
            full += bool(line.strip())
            if full >= SAMPLE_LINES or (full >= FEWEST_LINES and characters > SAMPLE_CHARACTERS):
                break
    return lines


def _rows(
    path: Path, text: Iterable[str], separator: str, names: bool, strict: bool
) -> Iterator[tuple[int, list[str]]]:
    """Yield line number and cells of each row that is neither blank nor a comment on top."""
    text = _uncommented(text, separator, names)
    if separator == " ":
        text = (line.replace("\t", " ").strip() for line in text)
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=strict)
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield reader.line_num, cells
    except csv.Error as error:
        place = f"{path}, line {reader.line_num}"
        raise InvalidInputError(f"{place}: {error}. Is a quote left open?") from None


def _uncommented(lines: Iterable[str], separator: str, names: bool) -> Iterator[str]:
    """Yield lines, blank ones in the place of comments above the table.

    The last comment has the names, as ``numpy.savetxt`` writes them, if it has as many cells as
    the row of numbers below it.
    """
    comments: list[str] = []
    rest, first, named = iter(lines), "", -1
    for line in rest:
        if line.strip() and not line.startswith("#"):
            first = line
            break
        named = len(comments) if line.startswith("#") else named
        comments.append(line)
    if named >= 0 and names:
        last = comments[named].removeprefix("#")
        above, below = (
            line.replace('"', "").split(None if separator == " " else separator)
            for line in (last, first)
        )
        numbers = any(is_number(cell) or has_commas(cell) for cell in below)
        if len(above) == len(below) and numbers:
            comments[named] = last
    yield from ("\n" if line.startswith("#") else line for line in comments)
    yield first
    yield from rest


def _separator(path: Path, sample: list[str]) -> str:
    """Return the separator that cuts most lines into equally many cells, more than one."""
    best, most = ",", 0.0
    for separator in SEPARATORS:
        rows = _rows(path, sample, separator, True, strict=False)
        widths = Counter(len(cells) for _, cells in rows)
        usual, times = max(widths.items(), key=lambda found: found[1], default=(1, 0))
        share = times / max(widths.total(), 1)
        if usual > 1 and share > most:
            best, most = separator, share
    return best


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell.strip() for row in rows for cell in row]
    return any(map(DECIMAL_COMMA.fullmatch, cells)) and not any(
        "." in cell and is_number(cell) for cell in cells
    )


def has_names(rows: list[list[str]], decimal: str = ".") -> tuple[bool, str]:
    """Return True if the first row holds names, and a note if that is uncertain."""
    marks = SWAPPED if decimal == "," else {}
    first, *others = [[cell.translate(marks).strip() for cell in row] for row in rows]
    numeric = [place for place, cell in enumerate(first) if is_number(cell) or has_commas(cell)]
    if not numeric:
        return any(cell.lower() not in MISSING for cell in first), ""
    # Numbers as names, such as years or the default of pandas: whole ones, in steps of one, above
    # columns that are not whole.
    shown = [first[place] for place in numeric]
    if len(shown) < 2 or not all(cell.isdecimal() for cell in shown):
        return False, ""
    steps = {int(right) - int(left) for left, right in pairwise(shown)}
    below = [row[place] for row in others for place in numeric if place < len(row)]
    if steps != {1} or not any("." in cell and is_number(cell) for cell in below):
        return False, ""
    words = f"The first line ({shown[0]}, {shown[1]}, ...) is read as names of columns"
    return True, f"{words}; option header decides otherwise."
