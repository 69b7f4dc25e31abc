"""Cells of text and columns of a file: which hold numbers, gaps, ids and labels."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
from numpy.typing import NDArray
from pyarrow import compute, types

from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.scaling import MOST_DECIMALS
from isthmus.tables.files import EXACT, FileFormat, Table, with_columns

MISSING = frozenset({"", "-", "--", "na", "n/a", "#n/a", "nan", "null", "none", "?"})
"""Spellings of a missing value, in lower case; any other case counts too."""
SWAPPED = str.maketrans(",.", ".,")
DECIMAL_COMMA = re.compile(r"[+-]?\d*,\d+([eE][+-]?\d+)?")
# Possible commas between thousands; no such number begins with a zero.
THOUSANDS = re.compile(r"[+-]?[1-9]\d{0,2}(,\d{3})+")
GROUPED = re.compile(rf"{THOUSANDS.pattern}(\.\d*)?")
# Here the point tells that the commas are no decimal marks, and the comma that the points are none.
CLEARLY_GROUPED = re.compile(rf"{THOUSANDS.pattern}\.\d+")
POINTS_GROUPED = re.compile(r"[+-]?[1-9]\d{0,2}(\.\d{3})+,\d+")
KINDS = GAP, NUMBER, FLAG, WORD, COMMAS = range(5)
SIGNS = "%$€£¥"
_LETTER = r"(?:[^\W\d_]|[°/])"
# A sign, or a word of at most 8 letters; a single letter needs a space, since 12a may be a code.
_AFTER = rf"(?<=[\d.])(?:\s?[{SIGNS}]|(?:\s{_LETTER}|\s?{_LETTER}{{2}}){_LETTER}{{0,6}})$"
UNIT = re.compile(rf"(?<![^+-])[$€£¥]\s?(?=[\d.])|{_AFTER}")
"""A currency before an amount, or a currency, a percent sign or the name of a unit after it."""
BEFORE, AFTER = re.compile(r"^[+-]?([$€£¥]\s?)"), re.compile(_AFTER)
# Distinct cells in which units are looked for: a budget of computation.
SAMPLED = 1000
# Means of whole numbers, where they are not rounded, have so many decimals.
DECIMALS_OF_MEANS = 2
# customer_id and customerId, but not paid.
ID_NAME = re.compile(r"(?i:id|index|row|rowid|unnamed: 0|.*[\s_.-]id)|.*[a-z0-9](Id|ID)")
# Squares of larger values, summed over some rows and columns, overflow. In a column of smaller
# ones, squares of differences vanish.
LARGEST, SMALLEST = 1e150, 1e-130


@dataclass(frozen=True)
class NumberStyle:
    """The sign before and after the numbers of a column, their decimals and their decimal mark.

    `decimals` is None where numbers have all the digits of a float, `truths` are the spellings of
    false and true, and `grouped` says that the other mark separates thousands.

    >>> style = NumberStyle.of(["$15.2", "-$3"], ".")
    >>> style.write(-0.456), style.write(12.0)
    ('-$0.5', '$12.0')
    """

    before: str = ""
    after: str = ""
    decimals: int | None = None
    mark: str = "."
    truths: tuple[str, str] | None = None
    grouped: bool = False

    @classmethod
    def of(cls, cells: Iterable[str], mark: str) -> NumberStyle:
        """Return the style of known cells: the sign of the first, the most decimals of any."""
        texts = [cell.strip() for cell in cells]
        if not texts:
            return cls(mark=mark)
        if {text.lower() for text in texts} <= {"false", "true"}:
            spell = str.upper if texts[0].isupper() else str.title if texts[0][0].isupper() else str
            return cls(decimals=0, truths=(spell("false"), spell("true")))
        before, after = BEFORE.search(texts[0]), AFTER.search(texts[0])
        bare = [AFTER.sub("", text) for text in texts]
        most = max(len(text.rpartition(mark)[2]) if mark in text else 0 for text in bare)
        exact = most > MOST_DECIMALS or any("e" in text.lower() for text in bare)
        signs = (before.group(1) if before else "", after.group() if after else "")
        grouped = any(mark.translate(SWAPPED) in text for text in bare)
        return cls(*signs, None if exact else most, mark, grouped=grouped)

    @property
    def has_sign(self) -> bool:
        """True if numbers have a sign or a unit."""
        return bool(self.before or self.after)

    def rounded(self, values: NDArray[np.float64]) -> NDArray[np.float64]:
        """Return values with the decimals of the column; means of whole numbers have two."""
        if self.decimals is None:
            return values
        if self.truths is not None:
            return np.where(np.isnan(values), np.nan, values >= 0.5)
        more = 0 if self.decimals or self.has_sign else DECIMALS_OF_MEANS
        return np.round(values, self.decimals + more)

    def write(self, value: float) -> str:
        """Return a number as text; empty if it is NaN."""
        value = float(self.rounded(np.array(value, dtype=np.float64)))
        if value != value:
            return ""
        if self.truths is not None:
            return self.truths[int(value)]
        if self.decimals is None or (self.decimals == 0 and not value.is_integer()):
            amount = repr(abs(value))
        else:
            amount = f"{abs(value):{',' if self.grouped else ''}.{self.decimals}f}"
        if self.mark == ",":
            amount = amount.translate(SWAPPED)
        return f"{'-' * (value < 0)}{self.before}{amount}{self.after}"


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
    return any(kind.fullmatch(cell.strip()) for kind in (DECIMAL_COMMA, GROUPED, POINTS_GROUPED))


def is_missing(column: pd.Series) -> pd.Series:
    """Return True for missing cells, and for text that is a spelling of a missing value."""
    if is_nested(column):
        return column.isna()
    lower = column.astype(object).astype(str).str.strip().str.lower()
    found: pd.Series = column.isna() | lower.isin(MISSING)
    return found


def is_textual(column: pd.Series) -> bool:
    """Return True for a column of text, or of objects that may be text."""
    return column.dtype == object or pd.api.types.is_string_dtype(column.dtype)


def is_nested(column: pd.Series) -> bool:
    """Return True if cells of a column are lists or objects, as in JSON and Parquet files."""
    if isinstance(column.dtype, pd.ArrowDtype):
        return bool(types.is_nested(column.dtype.pyarrow_dtype))
    return column.dtype == object and not column.map(pd.api.types.is_hashable).all()


def parse_cells(
    column: Any, decimal: str, grouped: bool = False
) -> tuple[NDArray[np.float64], NDArray[np.int64]]:
    """Return value and kind of each cell in a column of text, or of text among numbers.

    The mark that is not the decimal one separates thousands if `grouped`, or if a cell shows that.
    """
    column = pd.Series(column)
    codes, distinct = pd.factorize(column.astype(object).map(str) if is_nested(column) else column)
    texts = [str(cell).strip() for cell in distinct]
    # The unit that is no part of the numbers: the sign of most cells, the word of all.
    units = Counter(_unit(text) for text in texts if text.lower() not in MISSING)
    unit = max(units, key=units.__getitem__, default="")
    unit = unit if unit in SIGNS or len(units) == 1 else ""
    # Where commas are decimal marks, points are not.
    marks = SWAPPED if decimal == "," else {}
    bare = (UNIT.sub("", text).translate(marks) for text in texts)
    grouped = grouped or any(map(CLEARLY_GROUPED.fullmatch, bare))

    def parse(cell: object) -> tuple[float, int]:
        text = str(cell).strip()
        if unit and text.lower() not in MISSING:
            if _unit(text) != unit:
                return np.nan, WORD
            text = UNIT.sub("", text)
        word = (text.translate(marks) if isinstance(cell, str) else text).lower()
        if word in MISSING:
            return np.nan, GAP
        if word in ("true", "false"):
            return float(word == "true"), FLAG
        if grouped and GROUPED.fullmatch(word):
            word = word.replace(",", "")
        if is_number(word):
            return float(word), NUMBER
        return np.nan, COMMAS if has_commas(text) else WORD

    values, kinds = zip((np.nan, GAP), *map(parse, distinct), strict=True)
    # Missing cells have the code -1.
    return np.array(values)[codes + 1], np.array(kinds)[codes + 1]


def _unit(text: str) -> str:
    """Return the currency, percent sign or other unit of an amount, or nothing."""
    return "".join(UNIT.findall(text)).strip()


def mixed_units(column: pd.Series, decimal: str) -> list[str]:
    """Return the units of text if most cells are numbers with one of several, or else nothing."""
    texts = column.dropna().astype(str).str.strip().unique()[:SAMPLED]
    kinds = parse_cells([UNIT.sub("", text) for text in texts], decimal)[1]
    is_number = (kinds == NUMBER) | (kinds == COMMAS)
    units = Counter(unit for text in texts[is_number] if (unit := _unit(text)))
    is_mixed = 1 < len(units) <= units.total() / 2 and units.total() > len(texts) / 2
    return list(units) if is_mixed else []


@dataclass(frozen=True)
class Source:
    """The columns of a file, whatever its format.

    `place` maps a row, from 0, to words for its place in the file; the file itself marks column
    `ids` as row ids; columns `beside` are no features. Columns of a text file hold the text of
    their cells; `grouped` says that its decimal mark is sure, so the other separates thousands.
    """

    path: Path
    frame: pd.DataFrame
    format: FileFormat
    place: Callable[[int], str] = lambda row: f"row {row + 1}"
    ids: int | None = None
    beside: Collection[int] = ()
    grouped: bool = False
    notes: list[str] = field(default_factory=list)

    def find(self, name: str, option: str) -> int:
        """Return the position of a column, by name or by number from 1."""
        found = list(self.frame.columns)
        if name in found:
            return found.index(name)
        if name.isdecimal() and 1 <= int(name) <= len(found):
            return int(name) - 1
        raise InvalidInputError(
            f"{option} (--{option} {name}): {self.path} has no such column; it has {listed(found)}."
        )

    def show(self, place: int, row: int) -> str:
        """Return the place and the text of a cell."""
        cell = str(self.frame.iloc[row, place]).strip()
        return f"{self.place(row)}, column {self.frame.columns[place]!r}: {cell!r}"


def build_table(
    source: Source,
    id: str | None,  # noqa: A002
    label: str | None,
    drop: Sequence[str],
    *,
    missing: bool,
    as_written: bool,
    numbers: bool = True,
) -> Table:
    """Return the table of a source; the parameters are those of :func:`read_table`."""
    frame, names, notes = source.frame, list(source.frame.columns), list(source.notes)
    chosen = {"id": None if id == "none" else id, "label": label}
    roles = {role: source.find(name, role) for role, name in chosen.items() if name is not None}
    aside = {source.find(name, "drop") for name in drop}.union(roles.values(), source.beside)
    others = [place for place in range(len(names)) if place not in aside]
    columns = {place: _numbers(source, place) for place in others}
    likely = [
        place
        for place, found in columns.items()
        # The only column is a feature, whatever its name.
        if place == source.ids or (len(columns) > 1 and _are_ids(source, place, found))
    ]
    if id is None and likely:
        first, *others = sorted(likely, key=lambda place: place != source.ids)
        roles["id"] = first
        del columns[first]
        notes.append(
            f"Column {names[first]!r} is used as row ids; id none (--id none) makes it a feature."
        )
        if more := [names[place] for place in others if columns[place] is not None]:
            notes.append(f"Used as features, though they look like ids, too: {listed(more)}.")
    words = [names[place] for place, found in columns.items() if found is None]
    known = {names[place]: found for place, found in columns.items() if found is not None}
    values = {name: _floats(column) for name, column in known.items()}
    used = [name for name in known if not len(frame) or not np.isnan(values[name]).all()]
    if not used and (numbers or not words):
        shown = ""
        if words:
            kinds = parse_cells(frame[words[0]].astype(object), ".")[1]
            cell = source.show(names.index(words[0]), int((kinds >= WORD).argmax()))
            shown = f": {cell} is not a number"
        reason = f"{source.path} has no column of numbers to use{shown}."
        raise InvalidInputError(" ".join([reason, *notes[len(source.notes) :][:1]]))
    if len(frame) == 0:
        raise InvalidInputError(f"{source.path} has names, but no rows.")
    if source.format.decimal == "," and not source.grouped:
        notes += _check_commas(source, used)
    # Faster than column_stack, which writes with strides.
    X = np.array([values[name] for name in used]).reshape(len(used), len(frame))
    X = np.ascontiguousarray(X.T)
    if used:
        _check_values(source, used, X, missing)
    empty = [name for name in known if name not in used]
    units = {name: mixed_units(frame[name], source.format.decimal) for name in words}
    plain = [name for name in words if not units[name]]
    for some, reason in (empty, "every cell is missing"), (plain, "most cells are not numbers"):
        notes += [f"Not used, since {reason}: {listed(some)}."] * bool(some)
    for name, some in units.items():
        reason = f"cells have several units, such as {' and '.join(some[:2])}"
        notes += [f"Not used as numbers, since {reason}: {name}."] * bool(some)
    cells = {role: tidied(frame.iloc[:, place]) for role, place in roles.items()}
    is_text = source.format.kind == "text"
    return Table(
        X=X,
        columns=tuple(used),
        ids=cells.get("id", np.arange(1, len(frame) + 1)),
        id_name=names[roles["id"]] if "id" in roles else "row",
        labels=cells.get("label"),
        label_name=names[roles["label"]] if "label" in roles else None,
        left_out=tuple(name for name in names if name in empty or name in words),
        notes=tuple(notes),
        frame=with_columns(frame, known if is_text else {name: known[name] for name in used}),
        cells=frame if as_written and is_text else None,
        format=source.format,
    )


def _check_commas(source: Source, columns: Sequence[str]) -> list[str]:
    """Return a note on decimal commas; refuse commas that may stand between thousands."""
    unclear = ""
    for name in columns:
        for row, text in enumerate(source.frame[name]):
            cell = UNIT.sub("", text.strip())
            if THOUSANDS.fullmatch(cell):
                unclear = unclear or (
                    f"{source.path}, {source.place(row)}, column {name!r}: {cell} may have a "
                    "decimal comma, or one between thousands. Name the decimal mark "
                    f"(decimal, --decimal), or leave the column out (drop, --drop {name})."
                )
            elif DECIMAL_COMMA.fullmatch(cell) or POINTS_GROUPED.fullmatch(cell):
                number = cell.replace(".", "").replace(",", ".")
                return [f"Commas in numbers are decimal marks: {cell} is {number}."]
    if unclear:
        raise InvalidInputError(unclear)
    return []


def numbers_of(source: Source, columns: Sequence[str]) -> NDArray[np.float64]:
    """Return columns that :func:`build_table` chose, of more rows of the same types. (n, D)"""
    found = [_numbers(source, source.find(name, "drop")) for name in columns]
    X = np.ascontiguousarray(np.array([_floats(column) for column in found]).T)
    _check_values(source, columns, X, True)
    return X


def _numbers(source: Source, place: int) -> pd.Series | None:
    """Return a column of numbers in a type that keeps them, or None if it is one of words."""
    column = source.frame.iloc[:, place]
    if isinstance(column.dtype, pd.ArrowDtype):
        kind = column.dtype.pyarrow_dtype
        if types.is_dictionary(kind):
            kind = kind.value_type
            column = column.astype(pd.ArrowDtype(kind))
        if types.is_decimal(kind):
            column = column.astype("float64[pyarrow]")
    if column.dtype.kind in "biuf":
        return column
    # Text of typed files, such as postal codes, stays text.
    if not is_textual(column) or isinstance(column.dtype, pd.ArrowDtype):
        return None
    is_text = source.format.kind == "text"
    if is_text and (plain := _plain_numbers(column, source)) is not None:
        return plain
    values, kinds = parse_cells(column, source.format.decimal, source.grouped)
    counts = np.bincount(kinds, minlength=len(KINDS))
    faults, wrong = kinds >= (FLAG if counts[NUMBER] else WORD), kinds >= WORD
    if faults.any():
        mostly_numbers = counts[NUMBER] + counts[COMMAS] >= faults.sum()
        if mostly_numbers and not _are_ids(source, place, None):
            row = int(np.argmax(wrong if wrong.any() else faults))
            raise InvalidInputError(_bad_cell(source, place, row))
        return None
    if counts[FLAG]:
        return pd.Series(values).astype("boolean" if np.isnan(values).any() else "bool")
    # Whole numbers of a sheet or of JSON may be too large for a float.
    exact = is_text or not (np.abs(values) >= EXACT).any()
    return pd.Series(values) if exact else column


def _plain_numbers(column: pd.Series, source: Source) -> pd.Series | None:
    """Return text as numbers if all known cells are plain ones; whole numbers keep all digits."""
    cells = compute.utf8_trim_whitespace(pyarrow.array(column, from_pandas=True))
    is_gap = compute.is_in(compute.utf8_lower(cells), value_set=pyarrow.array([*MISSING]))
    cells = compute.if_else(is_gap, None, cells)
    unlike = "x" if source.format.decimal == "." else "[x.]"  # 0x10 is no number
    if compute.any(compute.match_substring_regex(cells, unlike, ignore_case=True)).as_py():
        return None
    if source.format.decimal == ",":
        cells = compute.replace_substring(cells, ",", ".")
    kinds = {pyarrow.int64(): pd.Int64Dtype(), pyarrow.uint64(): pd.UInt64Dtype()}
    for kind in (*kinds, pyarrow.float64()):
        with suppress(pyarrow.ArrowException):
            found = cells.cast(kind)
            has_gaps = 0 < found.null_count < len(found)
            return found.to_pandas(types_mapper=kinds.get if has_gaps else None)
    return None


def _floats(column: pd.Series) -> NDArray[np.float64]:
    # With a value for gaps, pandas copies the column first.
    gap = {} if isinstance(column.dtype, np.dtype) else {"na_value": np.nan}
    return column.to_numpy(dtype=np.float64, **gap)


def _bad_cell(source: Source, place: int, row: int) -> str:
    """Return the message on a cell that is not a number in a column that mostly is."""
    cell = str(source.frame.iloc[row, place]).strip()
    advice = "Correct it, or leave it empty if it is missing (NA will do, too)"
    if has_commas(UNIT.sub("", cell)):
        advice = (
            "Write numbers without separators of thousands, and with a decimal point, or name the "
            "decimal mark (decimal, --decimal)"
        )
    elif is_number(cell):
        advice = "Write all numbers of a column with the same sign, or all without"
    elif source.place(row) == "line 1":
        advice = "If the first line has names, say so (header, --header yes)"
    where = f"{source.path}, {source.show(place, row)} is not a number, though most cells are"
    return (
        f"{where}. {advice}; or leave the column out (drop, --drop {source.frame.columns[place]})."
    )


def _are_ids(source: Source, place: int, numbers: pd.Series | None) -> bool:
    """Return True for distinct whole numbers or words, most of them known, called ids."""
    if not ID_NAME.fullmatch(source.frame.columns[place]):
        return False
    if numbers is not None and (_floats(numbers.dropna()) % 1 != 0).any():
        return False
    cells = tidied(source.frame.iloc[:, place]).tolist()
    values = [cell for cell in cells if str(cell).lower() not in MISSING]
    return len(set(values)) == len(values) > len(cells) / 2


def tidied(column: pd.Series) -> NDArray[Any]:
    """Return whole numbers where all are written as such, or else text, empty where missing."""
    if column.dtype.kind == "f":
        values = column.to_numpy(np.float64, na_value=np.nan)
        if ((np.abs(values) < EXACT) & (values % 1 == 0) | np.isnan(values)).all():
            column = pd.Series(values).astype("Int64")
    if column.dtype.kind == "b":
        column = column.astype("Int64")
    text = column.astype(object).where(column.notna(), "").astype(str).str.strip()
    whole = pd.to_numeric(text, errors="coerce")
    if whole.dtype.kind in "iu" and (whole.astype(str) == text).all():
        return whole.to_numpy()
    return text.to_numpy(dtype=str)


def _check_values(
    source: Source, names: Sequence[str], X: NDArray[np.float64], missing: bool
) -> None:
    """Refuse gaps unless they are allowed, and values too large or too small."""
    sizes = np.fmax(np.fmax.reduce(X, 0), -np.fmin.reduce(X, 0))
    for name, size in zip(names, sizes, strict=True):
        if 0 < size < SMALLEST:
            raise InvalidInputError(
                f"{source.path}, column {name!r}: its values, {size:.3g} at most, are too small to "
                "compute with. Rescale or drop the column."
            )
    if not np.fmax.reduce(sizes) > LARGEST and (missing or not np.isnan(X).any()):
        return
    row, place = np.argwhere((np.abs(X) > LARGEST) | (np.isnan(X) & (not missing)))[0]
    problem = f"{X[row, place]:.3g} is too large to compute with. Rescale or drop the column."
    if np.isinf(X[row, place]):
        problem = "the value is infinite. Correct or remove the row."
    if np.isnan(X[row, place]):
        problem = "the value is missing. Fill gaps first, or remove such rows."
    where = f"{source.path}, {source.place(row)}, column {names[place]!r}"
    raise InvalidInputError(f"{where}: {problem}")
