"""Columns of a source: numbers, ids, labels, and those that are left out."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pyarrow import types

from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.tables.files import EXACT, Table
from isthmus.tables.sources import Source
from isthmus.tables.text import (
    FLAG,
    MISSING,
    NUMBER,
    WORD,
    find_fault,
    has_commas,
    parse_cells,
)

Numbers = dict[int, NDArray[np.float64] | None]

# customer_id and customerId, but not paid.
ID_NAME = re.compile(r"(?i:id|index|row|rowid|unnamed: 0|.*[\s_.-]id)|.*[a-z0-9](Id|ID)")
# Squares of larger values, summed over some rows and columns, overflow. In a column of smaller
# ones, squares of differences vanish.
LARGEST, SMALLEST = 1e150, 1e-130


def find_column(path: Path, found: list[str], name: str, option: str) -> int:
    """Return the position of a column, by name or by number from 1."""
    if name in found:
        return found.index(name)
    if name.isdecimal() and 1 <= int(name) <= len(found):
        return int(name) - 1
    raise InvalidInputError(
        f"Option {option}, {name}: {path} has no such column; it has {listed(found)}."
    )


def build_table(
    path: Path,
    source: Source,
    chosen: Mapping[str, str | None],
    drop: Sequence[str],
    find_ids: bool,
    missing: bool,
    as_written: bool,
    check_commas: bool,
) -> Table:
    """Return the table of a source, in which `chosen` names the columns of ids and labels."""
    names = list(source.frame.columns)
    roles = {
        option: find_column(path, names, name, option)
        for option, name in chosen.items()
        if name is not None and name not in source.extra
    }
    aside = {find_column(path, names, name, "drop") for name in drop} | set(roles.values())
    numbers = _numbers(path, source, aside, check_commas)
    notes: list[str] = []
    likely = [
        place
        for place, values in numbers.items()
        # The only column is a feature, whatever its name.
        if place == source.ids or (len(numbers) > 1 and _are_ids(source, place, values))
    ]
    if find_ids and likely:
        first, *others = sorted(likely, key=lambda place: place != source.ids)
        roles["id"] = first
        del numbers[first]
        notes = [f"Column {names[first]!r} is used as row ids; option id none makes it a feature."]
        if more := [names[place] for place in others if numbers[place] is not None]:
            notes.append(f"Used as features, though they look like ids, too: {listed(more)}.")
    words = [place for place, values in numbers.items() if values is None]
    used = {names[place]: values for place, values in numbers.items() if values is not None}
    empty = [name for name, values in used.items() if len(values) and np.isnan(values).all()]
    used = {name: values for name, values in used.items() if name not in empty}
    if not used:
        shown = ""
        if words:
            column = source.frame.iloc[:, words[0]].astype(object)
            row = int((parse_cells(column, ".")[1] >= WORD).argmax())
            shown = f": {_cell(source, words[0], row)} is not a number"
        reason = " ".join([f"{path} has no column of numbers to use{shown}.", *notes[:1]])
        raise InvalidInputError(reason)
    if len(source.frame) == 0:
        raise InvalidInputError(f"{path} has names, but no rows.")
    _check_values(path, source, used, missing)
    # Twice as fast as np.column_stack.
    X = np.ascontiguousarray(np.array(list(used.values())).T)
    done = "Copied" if as_written else "Left out"
    textual = [names[place] for place in words]
    for reason, left in (("every cell is missing", empty), ("most cells are not numbers", textual)):
        notes += [f"{done}, since {reason}: {listed(left)}."] * bool(left)
    columns = {option: source.frame.iloc[:, place] for option, place in roles.items()}
    columns |= {role: source.extra[str(of)] for role, of in chosen.items() if of in source.extra}
    typed = {
        name: values
        for name, values in used.items()
        if source.frame[name].dtype.kind == "O" and np.nanmax(np.abs(values)) < EXACT
    }
    beside = {name: values for name, values in source.extra.items() if name not in names}
    cells = None
    if as_written and source.text is not None:
        cells = source.text.read(set(range(len(names)))).set_axis(names, axis=1)
    return Table(
        X=X,
        columns=tuple(used),
        ids=tidied(columns["id"]) if "id" in columns else np.arange(1, len(X) + 1),
        id_name=names[roles["id"]] if "id" in roles else chosen["id"] or "row",
        labels=tidied(columns["label"]) if "label" in columns else None,
        label_name=names[roles["label"]] if "label" in roles else chosen["label"],
        left_out=tuple(name for name in names if name in {*empty, *textual}),
        notes=(*source.notes, *notes),
        frame=source.frame.assign(**typed, **beside),
        cells=cells,
        format=source.format,
    )


def _numbers(path: Path, source: Source, aside: set[int], check_commas: bool) -> Numbers:
    """Return the values of each column that is not set aside; None for one of words."""
    names, numbers, faults = source.frame.columns, Numbers(), dict[int, int]()
    for place in sorted(set(range(len(names))) - aside):
        column = source.frame.iloc[:, place]
        numbers[place] = _floats(column)
        if numbers[place] is None and column.dtype in ("object", "str", "string"):
            values, kinds = parse_cells(column, source.format.decimal)
            fault = find_fault(kinds)
            if fault is not None:
                faults[place] = fault
            elif not (kinds >= WORD).any() and not {NUMBER, FLAG} <= set(kinds.tolist()):
                numbers[place] = values
    if source.text is not None and source.format.decimal == "," and check_commas:
        mostly = [at for at, values in numbers.items() if values is not None or at in faults]
        source.notes.extend(source.text.check_decimal_commas({at: names[at] for at in mostly}))
    for place, row in faults.items():
        if not _are_ids(source, place, None):
            raise InvalidInputError(_bad_cell(path, source, place, row))
    return numbers


def _floats(column: pd.Series) -> NDArray[np.float64] | None:
    """Return a column as float64 with NaN for gaps, if its type is one of numbers."""
    if isinstance(column.dtype, pd.ArrowDtype):
        kind = column.dtype.pyarrow_dtype
        if types.is_dictionary(kind):
            return _floats(column.astype(pd.ArrowDtype(kind.value_type)))
        if types.is_decimal(kind):
            column = column.astype("float64[pyarrow]")
    if column.dtype.kind not in "biuf":
        return None
    return column.to_numpy(dtype=np.float64, na_value=np.nan)


def _bad_cell(path: Path, source: Source, place: int, row: int) -> str:
    """Return the message on a cell that is not a number in a column that mostly is."""
    where = f"{path}, {_cell(source, place, row)} is not a number"
    advice = "Correct it, or leave it empty if it is missing (NA will do, too)"
    if has_commas(str(source.frame.iloc[row, place])):
        where += " here"
        advice = "Write numbers without separators of thousands, and with a decimal point"
    else:
        where += ", though most of the column is"
        if source.text is not None and not source.text.names and row == 0:
            advice = "If the first line has names, say so (option header yes)"
    name = source.frame.columns[place]
    return f"{where}. {advice}; or leave the column out (option drop {name})."


def _cell(source: Source, place: int, row: int) -> str:
    """Return the place and the text of a cell."""
    cell = str(source.frame.iloc[row, place]).strip()
    return f"{source.place(row)}, column {source.frame.columns[place]!r}: {cell!r}"


def _are_ids(source: Source, place: int, numbers: NDArray[np.float64] | None) -> bool:
    """Return True for distinct whole numbers or words, most of them known, called ids."""
    if not ID_NAME.fullmatch(source.frame.columns[place]):
        return False
    known = np.zeros(0) if numbers is None else numbers[~np.isnan(numbers)]
    if not (np.isfinite(known) & (known == np.floor(known))).all():
        return False
    cells = tidied(source.frame.iloc[:, place]).tolist()
    values = [cell for cell in cells if str(cell).lower() not in MISSING]
    return len(set(values)) == len(values) > len(cells) / 2


def tidied(values: Any) -> NDArray[Any]:
    """Return whole numbers where all are written as such, or else text, empty where missing."""
    plain = np.asarray(values)
    if plain.dtype.kind in "iub":
        return plain.astype(np.int64) if plain.dtype.kind == "b" else plain
    column = pd.Series(values)
    if column.dtype.kind == "f" and (column.dropna() % 1 == 0).all() and column.abs().max() < EXACT:
        column = column.astype("Int64")
    text = np.array(["" if pd.isna(value) else str(value).strip() for value in column])
    if all(cell.lstrip("-").isdecimal() and len(cell) < 19 for cell in text):
        whole = text.astype(np.int64)
        if (whole.astype(str) == text).all():
            return whole
    return text


def _check_values(
    path: Path, source: Source, columns: dict[str, NDArray[np.float64]], missing: bool
) -> None:
    """Refuse missing values unless they are allowed, and values too large or too small."""
    bad = []
    for place, (name, values) in enumerate(columns.items()):
        sizes = np.abs(values)
        largest = np.nanmax(sizes)
        if 0 < largest < SMALLEST:
            raise InvalidInputError(
                f"{path}, column {name!r}: its values, {largest:.3g} at most, are too small to "
                "compute with. Rescale or drop the column."
            )
        if largest > LARGEST or (not missing and np.isnan(values).any()):
            wrong = (sizes > LARGEST) | (np.isnan(values) & (not missing))
            bad.append((int(wrong.argmax()), place, name))
    if not bad:
        return
    row, _, name = min(bad)
    value = columns[name][row]
    problem = f"{value:.3g} is too large to compute with. Rescale or drop the column."
    if np.isinf(value):
        problem = "the value is infinite. Correct or remove the row."
    if np.isnan(value):
        count = sum(int(np.isnan(values).sum()) for values in columns.values())
        problem = (
            f"the value is missing ({count} in all). Fill gaps with `isthmus complete` "
            "first, or remove such rows."
        )
    raise InvalidInputError(f"{path}, {source.place(row)}, column {name!r}: {problem}")
