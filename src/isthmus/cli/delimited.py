"""Tables as text: which character separates, whether names come first, and what is a number."""

from __future__ import annotations

import csv
import gzip
import io
import re
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import islice, pairwise
from pathlib import Path
from typing import IO, TYPE_CHECKING

from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["MISSING", "STDIN", "TextColumn", "TextTable", "has_commas", "read_delimited"]

STDIN = Path("-")
MISSING = frozenset({"", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
"""What stands for a missing value, in small or capital letters."""

# Where several fit equally well the first is taken: a comma may be a decimal one.
SEPARATORS = ("\t", ";", "|", ",", " ")
SAMPLE_BYTES = 2**16
SAMPLE_LINES = 200
ROWS_AT_A_TIME = 10_000
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# What may have commas between thousands; no such number begins with a zero.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
WITH_COMMAS = re.compile(rf"{THOUSANDS.pattern}(\.\d*)?|[+-]?\d{{1,3}}(\.\d{{3}})+,\d+")
SWAPPED = str.maketrans(",.", ".,")
UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass
class TextColumn:
    """One column, read a part at a time.

    Attributes
    ----------
    parts : list of ndarray
        Numbers, with NaN where a cell is missing or holds none.
    text : list of str or None
        The cells as they are written; None where they are not kept.
    numbers, flags, words : int
        How many cells hold a number, true or false, and something else.
    with_commas : int
        How many of the words would be numbers, but for their commas.
    odd, flag, decimal, thousands : (int, str) or None
        Line and text of the first word, of the first true or false, of the first number with a
        decimal comma, and of the first whose comma may be one between thousands.
    """

    text: list[str] | None
    parts: list[NDArray[np.float64]] = field(default_factory=list)
    numbers: int = 0
    flags: int = 0
    words: int = 0
    with_commas: int = 0
    odd: tuple[int, str] | None = None
    flag: tuple[int, str] | None = None
    decimal: tuple[int, str] | None = None
    thousands: tuple[int, str] | None = None

    def add(self, cells: Sequence[str], lines: Sequence[int], decimal_comma: bool) -> None:
        """Append the cells of some more rows."""
        import numpy as np

        if self.text is not None:
            self.text.extend(cells)
        plain = cells
        if decimal_comma:
            self._look_at_commas(cells, lines)
            # Where commas are decimal, a point is not.
            plain = [cell.translate(SWAPPED) for cell in cells]
        try:
            if "_" in "".join(plain):
                raise ValueError  # Python's own way to write 1_000 is nobody else's
            values = np.array(list(map(float, plain)))
            self.numbers += int((~np.isnan(values)).sum())
        except ValueError:
            found = zip(plain, cells, lines, strict=True)
            values = np.array([self._value(*cell) for cell in found])
        self.parts.append(values)

    def _look_at_commas(self, cells: Sequence[str], lines: Sequence[int]) -> None:
        """Keep the first cell of either kind; with a decimal one, nothing more is to be known."""
        for cell, line in zip(cells, lines, strict=True):
            if self.decimal is not None:
                return
            if THOUSANDS.fullmatch(cell.strip()):
                self.thousands = self.thousands or (line, cell.strip())
            elif DECIMAL_COMMA.fullmatch(cell.strip()):
                self.decimal = (line, cell.strip())

    def _value(self, plain: str, cell: str, line: int) -> float:
        word = plain.strip().lower()
        if word in MISSING:
            return float("nan")
        if word in ("true", "false"):
            self.flags += 1
            self.flag = self.flag or (line, cell.strip())
            return float(word == "true")
        if not _is_number(word):
            self.words += 1
            self.with_commas += has_commas(cell)
            self.odd = self.odd or (line, cell.strip())
            return float("nan")
        self.numbers += 1
        return float(word)


def has_commas(cell: str) -> bool:
    """Whether a cell would be a number, but for a decimal comma or commas between thousands."""
    return any(kind.fullmatch(cell.strip()) for kind in (DECIMAL_COMMA, WITH_COMMAS))


@dataclass(frozen=True)
class TextTable:
    """Names (empty if the file has none), columns, and the line that each row ends on."""

    names: list[str]
    columns: list[TextColumn]
    lines: NDArray[np.int64]
    note: str


def read_delimited(
    path: Path, keep_text: Callable[[list[str], int], set[int]], header: bool | None = None
) -> TextTable:
    """Read a table whose cells are separated by commas, semicolons, tabs, bars or spaces.

    Parameters
    ----------
    path : Path
        Ends in .gz if it is compressed; ``-`` is stdin.
    keep_text : callable
        From the names and the number of columns to those columns whose text is wanted.
    header : bool, optional
        Whether names come first; found out if not given.
    """
    with _told_apart(path):
        content = _content(path)
        with content() as file:
            head = file.read(SAMPLE_BYTES)
        encoding = "utf-16" if head.startswith(UTF16_MARKS) else "utf-8-sig"
        if b"\0" in head and encoding != "utf-16":
            raise InvalidInputError(f"{path} is not a text file.")
        with content() as file, io.TextIOWrapper(file, encoding, newline="") as text:
            return _read(path, text, _sample(head, encoding), keep_text, header)


def _content(path: Path) -> Callable[[], IO[bytes] | gzip.GzipFile]:
    """A function that opens the file anew each time; stdin is held, as it comes but once."""
    if path == STDIN:
        if sys.stdin is None:
            raise InvalidInputError("stdin is closed; name a file instead of -.")
        held = sys.stdin.buffer.read()
        return lambda: io.BytesIO(held)
    if path.suffix.lower() == ".gz":
        return lambda: gzip.open(path)
    return lambda: path.open("rb")


@contextmanager
def _told_apart(path: Path) -> Iterator[None]:
    """Turn what goes wrong in reading into words about the file."""
    try:
        yield
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{path} is not text in UTF-8 (byte {error.object[error.start]:#04x} in it is not). "
            "Save it as UTF-8 first."
        ) from None
    except (gzip.BadGzipFile, EOFError) as error:
        raise InvalidInputError(f"{path} is not a complete gzip file: {error}") from None


def _sample(head: bytes, encoding: str) -> list[str]:
    """The first lines that are not blank, without one that the sample cuts in two."""
    text = head.decode(encoding, errors="ignore")
    lines = text.splitlines(keepends=True)
    if len(head) == SAMPLE_BYTES and len(lines) > 1:
        lines = lines[:-1]
    return [line for line in lines if line.strip()][:SAMPLE_LINES]


def _read(
    path: Path,
    text: Iterable[str],
    sample: list[str],
    keep_text: Callable[[list[str], int], set[int]],
    header: bool | None,
) -> TextTable:
    import numpy as np

    separator = _separator(path, sample)
    rows = [cells for _, cells in _rows(path, sample, separator, strict=False)]
    if not rows:
        raise InvalidInputError(f"{path} is empty.")
    comma = separator != "," and _has_decimal_commas(rows)
    named, note = _has_names(rows, comma) if header is None else (header, "")
    width = len(rows[0])
    # R leaves out the name of the column of row names.
    short = named and len(rows) > 1 and all(len(cells) == width + 1 for cells in rows[1:])
    names = [""] * short + [cell.strip() for cell in rows[0]] if named else []
    width += short
    kept = keep_text(names, width)
    columns = [TextColumn([] if place in kept else None) for place in range(width)]
    lines: list[int] = []
    reader = _rows(path, text, separator, strict=True)
    if named:
        next(reader)
    while chunk := list(islice(reader, ROWS_AT_A_TIME)):
        here = [line for line, _ in chunk]
        for line, cells in chunk:
            if len(cells) != width:
                first = "the line of names" if named else "the first line"
                advice = "Are cells with a separator in them quoted?"
                if cells[0].startswith("#"):
                    advice = "Comments are read only above the table; remove the line."
                raise InvalidInputError(
                    f"{path}, line {line}: {_counted(len(cells))}, but {first} has {width}. "
                    f"{advice}"
                )
        cells_of = zip(*(cells for _, cells in chunk), strict=True)
        for column, values in zip(columns, cells_of, strict=True):
            column.add(values, here, comma)
        lines.extend(here)
    return TextTable(names, columns, np.array(lines, dtype=np.int64), note)


def _counted(cells: int) -> str:
    return f"{cells} cell{'' if cells == 1 else 's'}"


def _rows(
    path: Path, text: Iterable[str], separator: str, strict: bool
) -> Iterator[tuple[int, list[str]]]:
    """Line number and cells of each row that is neither blank nor a comment above the table."""
    text = _uncommented(text, separator)
    if separator == " ":
        text = (line.strip() for line in text)
    reader = csv.reader(text, delimiter=separator, skipinitialspace=True, strict=strict)
    try:
        for cells in reader:
            if len(cells) > 1 or (cells and cells[0].strip()):
                yield reader.line_num, cells
    except csv.Error as error:
        place = f"{path}, line {reader.line_num}"
        raise InvalidInputError(f"{place}: {error}. Is a quote left open?") from None


def _uncommented(lines: Iterable[str], separator: str) -> Iterator[str]:
    """Lines with blank ones for comments above the table.

    The last comment has the names, as numpy.savetxt writes them, if it has as many cells as the
    row of numbers below it.
    """
    rest, above = iter(lines), []
    for line in rest:
        above.append(line)
        if line.strip() and not line.startswith("#"):
            break
    *comments, first = above or [""]
    marked = [place for place, line in enumerate(comments) if line.startswith("#")]
    if marked:
        last = comments[marked[-1]].removeprefix("#")
        names, cells = (
            line.replace('"', "").split(None if separator == " " else separator)
            for line in (last, first)
        )
        numbers = any(_is_number(cell) or has_commas(cell) for cell in cells)
        if len(names) == len(cells) and numbers:
            comments[marked[-1]] = last
    yield from ("\n" if line.startswith("#") else line for line in comments)
    yield first
    yield from rest


def _separator(path: Path, sample: list[str]) -> str:
    """The one that cuts most lines into equally many cells, more than one."""
    best, most = ",", 0.0
    for separator in SEPARATORS:
        rows = _rows(path, sample, separator, strict=False)
        widths = Counter(len(cells) for _, cells in rows)
        usual, times = max(widths.items(), key=lambda found: found[1], default=(1, 0))
        share = times / max(widths.total(), 1)
        if usual > 1 and share > most:
            best, most = separator, share
    return best


def _has_decimal_commas(rows: list[list[str]]) -> bool:
    cells = [cell.strip() for row in rows for cell in row]
    return any(map(DECIMAL_COMMA.fullmatch, cells)) and not any(
        "." in cell and _is_number(cell) for cell in cells
    )


def _has_names(rows: list[list[str]], comma: bool) -> tuple[bool, str]:
    """Whether the first row holds names, and a word where that is not certain."""
    first, *others = [[_plain(cell, comma) for cell in row] for row in rows]
    numeric = [place for place, cell in enumerate(first) if _is_number(cell) or has_commas(cell)]
    if not numeric:
        return any(cell.lower() not in MISSING for cell in first), ""
    # Numbers as names, as of years, or as pandas gives them: whole ones, in steps of one,
    # above columns that are not whole.
    shown = [first[place] for place in numeric]
    if len(shown) < 2 or not all(cell.isdecimal() for cell in shown):
        return False, ""
    steps = {int(right) - int(left) for left, right in pairwise(shown)}
    below = [row[place] for row in others for place in numeric if place < len(row)]
    if steps != {1} or not any("." in cell and _is_number(cell) for cell in below):
        return False, ""
    words = f"the first line ({shown[0]}, {shown[1]}, ...) is taken for names of columns"
    return True, f"{words}; with --header no it is a row."


def _plain(cell: str, comma: bool) -> str:
    return (cell.translate(SWAPPED) if comma else cell).strip()


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return "_" not in cell and cell.strip().lower() not in MISSING
