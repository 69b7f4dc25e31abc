"""Delimited text: the layout is found on a sample, the cells are read by pandas."""

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
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import IO, Any

import numpy as np
import pandas as pd
import pyarrow
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.tables.files import STDIN, FileFormat

MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
"""Spellings of a missing value, in lower case; any other case counts too."""
GAPS = sorted({case(word) for word in MISSING for case in (str, str.upper, str.title)} | {"NaN"})
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# Possible commas between thousands; no such number begins with a zero.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
WITH_COMMAS = re.compile(rf"{THOUSANDS.pattern}(\.\d*)?|[+-]?\d{{1,3}}(\.\d{{3}})+,\d+")
SWAPPED = str.maketrans(",.", ".,")
KINDS = GAP, NUMBER, FLAG, WORD, COMMAS = range(5)
# The first of several that fit equally well is taken: a comma may be a decimal mark.
SEPARATORS = ("\t", ";", "|", ",", " ")
BYTE_ORDER_MARKS = {b"\xef\xbb\xbf": "utf-8-sig", b"\xff\xfe": "utf-16", b"\xfe\xff": "utf-16"}
# Older versions of pandas may round the last digit.
EXACT = tuple(map(int, pd.__version__.split(".")[:2])) >= (3, 1)
PRECISION: dict[str, Any] = {} if EXACT else {"float_precision": "round_trip"}

Opener = Callable[[], IO[bytes]]


def is_number(cell: str) -> bool:
    """Return True for a number with a decimal point."""
    try:
        float(cell)
    except ValueError:
        return False
    # Python reads 1_000; other programs do not.
    return "_" not in cell and cell.strip().lower() not in MISSING


def has_commas(cell: str) -> bool:
    """Return True for a number with a decimal comma or with commas between thousands."""
    return any(kind.fullmatch(cell.strip()) for kind in (DECIMAL_COMMA, WITH_COMMAS))


def parse_cells(column: Any, decimal: str) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return value and kind of each cell in a column of text, or of text among numbers."""

    def parse(cell: object) -> tuple[float, int]:
        text = str(cell).strip()
        # Where commas are decimal marks, points are not.
        swap = decimal == "," and isinstance(cell, str)
        word = (text.translate(SWAPPED) if swap else text).lower()
        if word in MISSING:
            return np.nan, GAP
        if word in ("true", "false"):
            return float(word == "true"), FLAG
        if is_number(word):
            return float(word), NUMBER
        return np.nan, COMMAS if has_commas(text) else WORD

    codes, distinct = pd.factorize(column)
    values, kinds = zip((np.nan, GAP), *map(parse, distinct), strict=True)
    # Missing cells have the code -1.
    return np.array(values)[codes + 1], np.array(kinds)[codes + 1]


def find_fault(kinds: NDArray[np.int64]) -> int | None:
    """Return the first row that is not a number, in a column that mostly is."""
    counts = np.bincount(kinds, minlength=len(KINDS))
    faults, words = kinds >= (FLAG if counts[NUMBER] else WORD), kinds >= WORD
    if not faults.any() or counts[NUMBER] + counts[COMMAS] < faults.sum():
        return None
    return int(np.argmax(words if words.any() else faults))


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
            held = archive.read(archive.namelist()[0])
    elif compression == "xz":
        held = lzma.decompress(path.read_bytes())
    else:
        with pyarrow.input_stream(str(path), compression=compression) as stream:
            held = stream.read()
    return lambda: io.BytesIO(held)


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
        cls, path: Path, content: Opener, given: FileFormat, header: bool | None, **options: Any
    ) -> TextFile:
        """Find the separator, decimal mark, encoding and names, where they are not given."""
        encoding = options["encoding"] or _encoding(path, content)
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
        separator = options["separator"] or _separator(lines[top:])
        found = list(_rows(lines[top:], separator))
        rows = [cells for _, cells in found]
        cells = [cell.strip() for row in rows for cell in row]
        commas = separator != "," and any(map(DECIMAL_COMMA.fullmatch, cells))
        points = any("." in cell and is_number(cell) for cell in cells)
        decimal = options["decimal"] or ("," if commas and not points else ".")
        comment = next((line for line in reversed(lines[:top]) if line.startswith("#")), "")
        above = [cells for _, cells in _rows([comment[1:]], separator)]
        # The last comment has the names in files of numpy.savetxt.
        numbers = any(is_number(cell) or has_commas(cell) for cell in rows[0])
        commented = header is not False and numbers and [len(c) for c in above] == [len(rows[0])]
        if commented:
            rows = above + rows
        named, note = has_names(rows, decimal) if header is None else (header, "")
        # R leaves out the name of the column of row names.
        short = named and len(rows) > 1 and all(len(row) == len(rows[0]) + 1 for row in rows[1:])
        width = len(rows[0]) + short
        columns = zip(*(row for row in rows[named:] if len(row) == width), strict=True)
        kinds = [parse_cells(np.array(cells, object), decimal)[1] for cells in columns]
        return cls(
            path,
            content,
            replace(given, separator=separator, decimal=decimal, encoding=encoding),
            names=[""] * short + [cell.strip() for cell in rows[0]] if named else [],
            width=width,
            skip=top + (found[0][0] if named and not commented else 0),
            words={place for place, kind in enumerate(kinds) if (kind >= FLAG).any()},
            padded=any(separator + " " in line for line in lines),
            notes=[note] * bool(note),
        )

    def read(self, as_text: set[int], nullable: bool = False) -> pd.DataFrame:
        """Return the cells, with columns 0, 1, ...; those in `as_text` as they are written."""
        gaps = {place: GAPS for place in range(self.width) if place not in as_text}
        try:
            with self._rows_below() as file, warnings.catch_warnings():
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
                    **({"dtype_backend": "numpy_nullable"} if nullable else {}),
                    **PRECISION,
                )
        except (pd.errors.ParserError, pd.errors.ParserWarning) as error:
            self.lines()
            raise InvalidInputError(f"{self.path} cannot be read: {error}") from None
        last = frame[self.width - 1]
        if self.width > 1 and (last.isna() | (last == "")).any():
            # pandas adds missing values to rows that are too short.
            with self.content() as raw:
                for _ in range(self.skip):
                    raw.readline()
                quoted, separators, mark = False, 0, ord(self.format.separator)
                while part := raw.read(2**18):
                    quoted = quoted or b'"' in part
                    separators += int(np.count_nonzero(np.frombuffer(part, np.uint8) == mark))
            if quoted or separators != len(frame) * (self.width - 1):
                self.lines()
        return frame

    def _rows_below(self) -> io.TextIOWrapper:
        text = io.TextIOWrapper(self.content(), self.format.encoding, newline="")
        for _ in range(self.skip):
            text.readline()
        return text

    def rows(self) -> Iterator[tuple[int, list[str]]]:
        """Yield line number and cells of each row: slowly, strict about quotes and widths."""
        line = self.skip
        with self._rows_below() as text:
            try:
                for below, cells in _rows(text, self.format.separator, strict=True):
                    line = self.skip + below
                    if len(cells) != self.width:
                        raise InvalidInputError(self._wrong_width(line, cells))
                    yield line, cells
            except csv.Error as error:
                where = f"{self.path}, below line {line}"
                raise InvalidInputError(f"{where}: {error}. Is a quote left open?") from None

    def lines(self) -> list[int]:
        """Return the line number of each row, or raise an error that names a broken line."""
        return [line for line, _ in self.rows()]

    def _wrong_width(self, line: int, cells: list[str]) -> str:
        first = "the line of names" if self.names else "the first line"
        advice = "Are cells that contain the separator quoted?"
        if cells[0].startswith("#"):
            advice = "Comments are allowed only above the table; remove the line."
        count = f"{len(cells)} cell{'' if len(cells) == 1 else 's'}"
        return f"{self.path}, line {line}: {count}, but {first} has {self.width}. {advice}"

    def check_decimal_commas(self, columns: dict[int, str]) -> list[str]:
        """Return a note on decimal commas; refuse commas that may stand between thousands.

        `columns` has the positions and names of the columns of numbers.
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


def check_latin1(path: Path, content: Opener) -> str:
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
    below = [row[place] for row in others for place in numeric if place < len(row)]
    if (
        len(shown) < 2
        or not all(cell.isdecimal() for cell in shown)
        or {int(right) - int(left) for left, right in pairwise(shown)} != {1}
        or not any("." in cell and is_number(cell) for cell in below)
    ):
        return False, ""
    words = f"The first line ({shown[0]}, {shown[1]}, ...) is read as names of columns"
    return True, f"{words}; option header decides otherwise."
