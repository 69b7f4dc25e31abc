"""Delimited text: its encoding, separator, decimal mark and names are found on a sample."""

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
    MISSING,
    SWAPPED,
    THOUSANDS,
    has_commas,
    is_number,
    parse,
)
from isthmus.tables.formats import STDIN, FileFormat

__all__ = ["TextFile", "content_of", "has_names", "readable_errors"]

# The first of several that fit equally well is taken: a comma may be a decimal one.
SEPARATORS = ("\t", ";", "|", ",", " ")
SAMPLE_CHARACTERS = 2**16
SAMPLE_LINES, FEWEST_LINES = 200, 20
GAPS = [spelling for word in MISSING for spelling in (word, word.upper(), word.title())] + ["NaN"]
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
BROKEN = (EOFError, zlib.error, lzma.LZMAError, zipfile.BadZipFile, gzip.BadGzipFile)


def content_of(path: Path, compression: str) -> Callable[[], IO[bytes]]:
    """Return a function that opens the decompressed content, any number of times."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        held = sys.stdin.buffer.read()
    elif compression == "zip":
        with zipfile.ZipFile(path) as archive:
            members = [name for name in archive.namelist() if not name.endswith("/")]
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
            f"{path} is not text in {error.encoding} (byte {byte} in it is not). Name its encoding "
            "(option encoding), or save it as UTF-8."
        ) from None
    except (*BROKEN, OSError) as error:
        # Opening fails with an error number; reading damaged content does not.
        if not compression or getattr(error, "errno", None):
            raise
        raise InvalidInputError(f"{path} is not a complete {compression} file: {error}") from None


@dataclass(frozen=True)
class TextFile:
    """A delimited file, and the layout of its cells.

    Attributes
    ----------
    path : Path
    content : callable
        Opens the decompressed bytes.
    format : FileFormat
    names : list of str
        Empty if the file has none.
    width, skip : int
        Number of columns, and of lines above the first row.
    words : set of int
        Columns that hold words in the sample.
    notes : tuple of str
    """

    path: Path
    content: Callable[[], IO[bytes]]
    format: FileFormat
    names: list[str]
    width: int
    skip: int
    words: set[int]
    notes: tuple[str, ...] = ()

    @classmethod
    def open(
        cls, path: Path, given: FileFormat, header: bool | None, **options: str | None
    ) -> TextFile:
        """Find the layout of a file.

        Parameters
        ----------
        path : Path
        given : FileFormat
            By the suffixes of the file.
        header : bool or None
            Names come first; None finds out.
        **options : str or None
            The separator, decimal mark and encoding; None finds out.
        """
        content = content_of(path, given.compression)
        with content() as file:
            head = file.read(2**12)
        encoding = options["encoding"] or _encoding(path, head)
        note = ""
        try:
            sample = _sample(content, encoding)
        except UnicodeDecodeError:
            if options["encoding"]:
                raise
            encoding, note = _single_byte_encoding(path, content)
            sample = _sample(content, encoding)
        separator = options["separator"] or _separator(path, sample)
        found = list(_rows(path, sample, separator, header is not False, strict=False))
        if not found:
            raise InvalidInputError(f"{path} is empty.")
        rows = [cells for _, cells in found]
        decimal = options["decimal"]
        if decimal is None:
            decimal = "," if separator != "," and _has_decimal_commas(rows) else "."
        named, header_note = has_names(rows, decimal) if header is None else (header, "")
        width = len(rows[0])
        # R leaves out the name of the column of row names.
        short = named and len(rows) > 1 and all(len(cells) == width + 1 for cells in rows[1:])
        width += short
        columns = zip(*(row for row in rows[named:] if len(row) == width), strict=True)
        return cls(
            path,
            content,
            replace(given, separator=separator, decimal=decimal, encoding=encoding),
            [""] * short + [cell.strip() for cell in rows[0]] if named else [],
            width,
            skip=found[0][0] - (not named),
            words={
                place
                for place, cells in enumerate(columns)
                if not parse(pd.Series(cells, dtype=object), decimal).is_numeric
            },
            notes=tuple(filter(None, (note, header_note))),
        )

    def read(self, as_text: Iterable[int]) -> pd.DataFrame:
        """Return the cells, with columns 0, 1, ...; those in `as_text` as they are written."""
        text = set(as_text)
        gaps = {place: GAPS for place in range(self.width) if place not in text}
        try:
            with self._text() as file, warnings.catch_warnings():
                warnings.simplefilter("error", pd.errors.ParserWarning)
                for _ in range(self.skip):
                    file.readline()
                frame = pd.read_csv(
                    file,
                    sep=r"\s+" if self.format.separator == " " else self.format.separator,
                    decimal=self.format.decimal,
                    header=None,
                    names=range(self.width),
                    index_col=False,
                    dtype=dict.fromkeys(text, str),
                    keep_default_na=False,
                    na_values=gaps or None,
                    na_filter=bool(gaps),
                    skipinitialspace=True,
                    low_memory=False,
                    **EXACT_FLOATS,
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            self.lines()  # names the line
            raise InvalidInputError(f"{self.path} cannot be read: {error}") from None
        if self._may_be_ragged(frame):
            self.lines()
        return frame

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row. Slow; strict about quotes and widths."""
        with self._text() as file:
            found = _rows(self.path, file, self.format.separator, bool(self.names), strict=True)
            if self.names:
                next(found)
            for line, cells in found:
                if len(cells) != self.width:
                    raise InvalidInputError(self._wrong_width(line, cells))
                yield line, cells

    def lines(self) -> list[int]:
        """Return the line number of each row."""
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
                cell = cells[place].strip()
                where = f"line {line}, column {name!r}"
                if THOUSANDS.fullmatch(cell):
                    unclear = unclear or (
                        f"{self.path}, {where}: {cell} may be {cell.replace(',', '')}, or have a "
                        "decimal comma, and no other cell decides which. Name the decimal mark "
                        "(option decimal), write numbers without separators of thousands, or leave "
                        f"the column out (option drop): {name}."
                    )
                elif DECIMAL_COMMA.fullmatch(cell):
                    number = cell.replace(",", ".")
                    return f"Commas in numbers are decimal marks: {where}, {cell} is {number}."
        if unclear:
            raise InvalidInputError(unclear)
        return ""

    def _text(self) -> io.TextIOWrapper:
        return io.TextIOWrapper(self.content(), self.format.encoding, newline="")

    def _may_be_ragged(self, frame: pd.DataFrame) -> bool:
        """Return True if rows may be too short: pandas fills them up with missing values."""
        last = frame[self.width - 1]
        if self.width == 1 or not (last.isna() | (last == "")).any():
            return False
        separators = 0
        with self._text() as file:
            for _ in range(self.skip):
                file.readline()
            while part := file.read(2**20):
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


# The parser of older versions of pandas rounds the last digit.
EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
EXACT_FLOATS: dict[str, Any] = {} if EXACT else {"float_precision": "round_trip"}


def _encoding(path: Path, head: bytes) -> str:
    """Return the encoding that a byte order mark or zero bytes show, or else UTF-8."""
    for mark, encoding in BYTE_ORDER_MARKS.items():
        if head.startswith(mark):
            return encoding
    if b"\0" not in head:
        return "utf-8"
    even, odd = head[::2].count(0), head[1::2].count(0)
    if min(even, odd) * 10 < max(even, odd) > len(head) / 3:
        return "utf-16-le" if odd > even else "utf-16-be"
    raise InvalidInputError(f"{path} is not a text file.")


def _single_byte_encoding(path: Path, content: Callable[[], IO[bytes]]) -> tuple[str, str]:
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
    note = f"The file is read as {name}, since in {where}; option encoding names another."
    return ("cp1252" if windows else "latin-1"), note


def _sample(content: Callable[[], IO[bytes]], encoding: str) -> list[str]:
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
        text = (" ".join(line.split("\t")).strip() for line in text)
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
    rest, above = iter(lines), []
    for line in rest:
        above.append(line)
        if line.strip() and not line.startswith("#"):
            break
    *comments, first = above or [""]
    marked = [place for place, line in enumerate(comments) if line.startswith("#")]
    if marked and names:
        last = comments[marked[-1]].removeprefix("#")
        named, cells = (
            line.replace('"', "").split(None if separator == " " else separator)
            for line in (last, first)
        )
        numbers = any(is_number(cell) or has_commas(cell) for cell in cells)
        if len(named) == len(cells) and numbers:
            comments[marked[-1]] = last
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


def has_names(rows: list[list[str]], decimal: str) -> tuple[bool, str]:
    """Return True if the first row holds names, and a note if that is uncertain."""
    table = str.maketrans({}) if decimal == "." else SWAPPED
    first, *others = [[cell.translate(table).strip() for cell in row] for row in rows]
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
    return True, f"{words}; option header (yes or no) decides otherwise."
