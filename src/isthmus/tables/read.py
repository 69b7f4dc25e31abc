"""read_table: the numeric columns of a file, its ids and labels."""

from __future__ import annotations

import codecs
import re
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError
from isthmus.tables.table import EXACT, Table, listed

if TYPE_CHECKING:
    import numpy as np
    import pandas as pd
    from numpy.typing import NDArray

    from isthmus.tables.sources import Source

__all__ = ["read_table"]

ROW = "row"
"""Name of the ids of rows that have none: their numbers, from 1."""
NO_IDS = "none"
"""The value of `id` that keeps every column from being taken for ids."""
# customer_id and customerId, but not paid.
ID_NAME = re.compile(r"(?i:id|index|row|rowid|unnamed: 0|.*[\s_.-]id)|.*[a-z0-9](Id|ID)")
SEPARATOR_NAMES = {"\\t": "\t", "tab": "\t", "space": " ", "comma": ",", "semicolon": ";"}
# Squares of larger values, summed over some rows and columns, overflow. In a column of smaller
# ones, squares of differences vanish.
LARGEST, SMALLEST = 1e150, 1e-130


def read_table(
    path: str | Path,
    *,
    id: str | None = None,  # noqa: A002
    label: str | None = None,
    drop: Sequence[str] = (),
    array: str | None = None,
    header: bool | None = None,
    separator: str | None = None,
    decimal: str | None = None,
    encoding: str | None = None,
    missing: bool = True,
    as_written: bool = False,
) -> Table:
    """Read the numeric columns of a file; notes name the columns that are left out.

    Messages name the options of this function, which are options of the commands as well.

    Parameters
    ----------
    path : str or Path
        CSV, TSV or other delimited text and JSON (lines or a list of objects), also compressed
        (.gz, .bz2, .xz, .zip, .zst); Parquet, Feather, Excel, .npy or .npz. ``-`` is text on
        stdin.
    id, label : str, optional
        Name of a column, or its number from 1. Neither is used as a feature. In an .npz file, an
        array as long as the table can be named too. Without an `id`, a column with the name of
        ids and distinct whole numbers or words is taken; ``"none"`` takes none.
    drop : sequence of str
        Columns to leave out.
    array : str, optional
        The array of an .npz file to read (default: ``X``, or else the only one of numbers), or
        the sheet of an Excel file (default: the first).
    header : bool, optional
        Whether the first line of a text file has names. By default it has, if no cell in it is a
        number.
    separator, decimal, encoding : str, optional
        Of a text file; found out by default.
    missing : bool
        Allow missing values, as NaN. Otherwise they are an error, as infinities always are.
    as_written : bool
        Keep the cells of a text file as they are written, so that :func:`write_table` writes
        known values to the last character.

    Returns
    -------
    Table

    Raises
    ------
    InvalidInputError
        With the line and column where the file is broken.
    """
    from isthmus.tables.sources import read_source
    from isthmus.tables.text import readable_errors

    path = Path(path)
    wanted = [name for name in (None if id == NO_IDS else id, label) if name is not None]

    def keep_text(names: list[str]) -> set[int]:
        kept = {find_column(path, names, name, "id or label") for name in wanted}
        kept |= {place for place, name in enumerate(names) if ID_NAME.fullmatch(name)}
        return kept

    separator = SEPARATOR_NAMES.get(separator or "", separator)
    _check_options(separator, decimal, encoding)
    try:
        source = read_source(
            path,
            header=header,
            array=array,
            keep_text=keep_text,
            separator=separator,
            decimal=decimal,
            encoding=encoding,
        )
        with readable_errors(path, source.format.compression):
            return _table(path, source, id, label, drop, missing, as_written, decimal is None)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.") from None


def _check_options(separator: str | None, decimal: str | None, encoding: str | None) -> None:
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise InvalidInputError(f"The separator must be one character, not {separator!r}.")
    if decimal not in (None, ".", ",") or (decimal is not None and decimal == separator):
        raise InvalidInputError(
            f"The decimal mark must be . or , and differ from the separator, not {decimal!r}."
        )
    if encoding is not None:
        try:
            codecs.lookup(encoding)
        except LookupError:
            raise InvalidInputError(
                f"There is no encoding {encoding!r}; examples are utf-8, utf-16 and latin-1."
            ) from None


def find_column(path: Path, found: list[str], name: str, option: str) -> int:
    """Return the position of a column, by name or by number from 1."""
    if name in found:
        return found.index(name)
    if name.isdecimal() and 1 <= int(name) <= len(found):
        return int(name) - 1
    raise InvalidInputError(
        f"Option {option}, {name}: {path} has no such column; it has {listed(found)}."
    )


def _table(
    path: Path,
    source: Source,
    id: str | None,  # noqa: A002
    label: str | None,
    drop: Sequence[str],
    missing: bool,
    as_written: bool,
    check_commas: bool,
) -> Table:
    import numpy as np

    names = list(source.frame.columns)
    roles = {"id": None if id == NO_IDS else id, "label": label}
    given = {
        option: find_column(path, names, name, option)
        for option, name in roles.items()
        if name is not None and name not in source.extra
    }
    aside = {find_column(path, names, name, "drop") for name in drop} | set(given.values())
    columns = {place: _parsed(source, place) for place in range(len(names)) if place not in aside}
    notes = list(source.notes)
    if source.text is not None and source.format.decimal == "," and check_commas:
        mostly = {
            place: names[place]
            for place, one in columns.items()
            if one[0] is not None or one[1] is not None
        }
        notes += filter(None, [source.text.check_decimal_commas(mostly)])
    for place, (_, fault) in columns.items():
        if fault is not None and not _are_ids(source, place, None):
            raise InvalidInputError(_bad_cell(path, source, place, fault))
    numbers = {place: values for place, (values, _) in columns.items()}
    id_notes: list[str] = []
    if id is None and (likely := _likely_ids(source, numbers)):
        given["id"], *others = likely
        called = f"Column {names[likely[0]]!r}"
        if likely[0] == source.ids:
            called = source.ids_called
        id_notes = [f"{called} is used as row ids; option id (none) makes it a feature."]
        numbers.pop(likely[0])
        more = [names[place] for place in others if numbers[place] is not None]
        if more:
            id_notes.append(f"Used as features, though they look like ids, too: {listed(more)}.")
    used = {
        place: values
        for place, values in numbers.items()
        if values is not None and not (len(values) and np.isnan(values).all())
    }
    left_out = [place for place in numbers if place not in used]
    if not used:
        raise InvalidInputError(_no_numbers(path, source, left_out, id_notes))
    if len(source.frame) == 0:
        raise InvalidInputError(f"{path} has names, but no rows.")
    notes += [*id_notes, *_left_out_notes(names, numbers, left_out, as_written)]
    X = np.column_stack(list(used.values()))
    _check_values(path, source, X, [names[place] for place in used], missing)
    id_values, id_name = _chosen(source, roles["id"], given.get("id"))
    labels, label_name = _chosen(source, label, given.get("label"))
    cells = None
    if as_written and source.text is not None:
        cells = source.text.read(range(len(names))).set_axis(names, axis=1)
    return Table(
        X=X,
        columns=tuple(names[place] for place in used),
        ids=np.arange(1, len(X) + 1) if id_values is None else id_values,
        id_name=id_name or ROW,
        labels=labels,
        label_name=label_name,
        left_out=tuple(names[place] for place in left_out),
        notes=tuple(notes),
        frame=_typed_frame(source.frame, {names[at]: values for at, values in used.items()}, cells),
        cells=cells,
        format=source.format,
    )


def _parsed(source: Source, place: int) -> tuple[NDArray[np.float64] | None, int | None]:
    """Return the numbers of a column, or None and the row of a fault among numbers."""
    import numpy as np
    import pandas as pd
    from pyarrow import types

    from isthmus.tables.cells import parse

    column = source.frame.iloc[:, place]
    if column.dtype.kind in "biuf":
        return column.to_numpy(dtype=np.float64, na_value=np.nan), None
    if isinstance(column.dtype, pd.ArrowDtype):
        kind = column.dtype.pyarrow_dtype
        kind = kind.value_type if types.is_dictionary(kind) else kind
        if not (types.is_integer(kind) or types.is_floating(kind) or types.is_decimal(kind)):
            return None, None
        floats = column.astype(pd.ArrowDtype(kind)).astype("float64[pyarrow]")
        return floats.to_numpy(dtype=np.float64, na_value=np.nan), None
    if column.dtype.kind == "M":
        return None, None
    cells = parse(column, source.format.decimal)
    return (cells.values, None) if cells.is_numeric else (None, cells.first_fault())


def _typed_frame(
    frame: pd.DataFrame, numbers: dict[str, NDArray[np.float64]], cells: pd.DataFrame | None
) -> pd.DataFrame:
    """Return the frame with numbers in the place of text, and whole numbers to the last digit."""
    import numpy as np

    frame = frame.copy(deep=False)
    for name, values in numbers.items():
        kind = frame[name].dtype.kind
        large = np.nanmax(np.abs(values)) >= EXACT
        if kind == "O":
            whole = not large and (values == np.floor(values)).all()
            frame[name] = values.astype(np.int64) if whole else values
        if kind == "f" and large and cells is not None:
            text = cells[name].str.strip()
            try:
                frame[name] = text.where(~np.isnan(values)).astype("Int64")
            except (ValueError, TypeError, OverflowError):
                continue
    return frame


def _bad_cell(path: Path, source: Source, place: int, row: int) -> str:
    """Return the message on a cell that is not a number in a column that mostly is."""
    from isthmus.tables.cells import has_commas

    name, cell = source.frame.columns[place], str(source.frame.iloc[row, place]).strip()
    where = f"{path}, {source.place(row)}, column {name!r}: {cell!r} is not a number"
    leave_out = f"or leave the column out (option drop): {name}."
    if has_commas(cell):
        return (
            f"{where} here. Write numbers without separators of thousands, and with a decimal "
            f"point; {leave_out}"
        )
    if source.text is not None and not source.text.names and row == 0:
        return (
            f"{where}, though most of the column is. If the first line has names of columns, say "
            f"so (option header, yes); {leave_out}"
        )
    return (
        f"{where}, though most of the column is. Correct it, or leave it empty if it is missing "
        f"(or write NA); {leave_out}"
    )


def _no_numbers(path: Path, source: Source, left_out: list[int], notes: list[str]) -> str:
    """Return the message on a file without numbers, with the first word as an example."""
    from isthmus.tables.cells import WORD, parse

    shown = ""
    for place in left_out:
        column = source.frame.iloc[:, place]
        words = parse(column.astype(object)).kinds >= WORD
        if words.any():
            row = int(words.argmax())
            where = f"{source.place(row)}, column {source.frame.columns[place]!r}"
            shown = f": {where}: {str(column.iloc[row]).strip()!r} is not a number"
            break
    return " ".join([f"{path} has no column of numbers to use{shown}.", *notes[:1]])


def _left_out_notes(
    names: list[str],
    numbers: dict[int, NDArray[np.float64] | None],
    left_out: list[int],
    as_written: bool,
) -> list[str]:
    done = "Copied" if as_written else "Left out"
    empty = [names[place] for place in left_out if numbers[place] is not None]
    words = [names[place] for place in left_out if numbers[place] is None]
    notes = []
    if empty:
        notes.append(f"{done}, since every cell is missing: {listed(empty)}.")
    if words:
        notes.append(f"{done}, since most cells are not numbers: {listed(words)}.")
    return notes


def _likely_ids(source: Source, numbers: dict[int, NDArray[np.float64] | None]) -> list[int]:
    """Return the columns that look like ids of rows, the likeliest first."""
    likely = [
        place
        for place, values in numbers.items()
        # The only column is a feature, whatever its name.
        if place == source.ids or (len(numbers) > 1 and _are_ids(source, place, values))
    ]
    return sorted(likely, key=lambda place: place != source.ids)


def _are_ids(source: Source, place: int, numbers: NDArray[np.float64] | None) -> bool:
    """Return True for distinct whole numbers or words in a column with the name of ids.

    Less than half of them may be missing.
    """
    import numpy as np

    from isthmus.tables.cells import MISSING

    if not ID_NAME.fullmatch(source.frame.columns[place]):
        return False
    if numbers is not None:
        known = numbers[~np.isnan(numbers)]
        if not (np.isfinite(known) & (known == np.floor(known))).all():
            return False
    cells = tidied(source.frame.iloc[:, place]).tolist()
    values = [cell for cell in cells if str(cell).lower() not in MISSING]
    return len(set(values)) == len(values) > len(cells) / 2


def _chosen(
    source: Source, name: str | None, place: int | None
) -> tuple[NDArray[Any] | None, str | None]:
    """Return the values of a column of ids or labels, and its name."""
    if place is not None:
        return tidied(source.frame.iloc[:, place]), source.frame.columns[place]
    if name is not None:
        return tidied(source.extra[name]), name
    return None, None


def tidied(values: Any) -> NDArray[Any]:
    """Return whole numbers where all are written as such, or else text, empty where missing."""
    import numpy as np

    plain = np.asarray(values)
    if plain.dtype.kind in "iub":
        return plain.astype(np.int64) if plain.dtype.kind == "b" else plain
    cells = [_text(value) for value in np.asarray(values, dtype=object)]
    if all(cell.lstrip("-").isdecimal() and len(cell) < 19 for cell in cells):
        whole = [int(cell) for cell in cells]
        if [str(number) for number in whole] == cells:
            return np.array(whole, dtype=np.int64)
    return np.array(cells)


def _text(value: Any) -> str:
    import pandas as pd

    if value is None or value is pd.NA or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _check_values(
    path: Path, source: Source, X: NDArray[np.float64], names: list[str], missing: bool
) -> None:
    """Refuse missing values unless they are allowed, and values too large or too small."""
    import numpy as np

    largest = np.nanmax(np.abs(X), axis=0)
    gaps = np.isnan(X) if not missing else np.zeros(0, dtype=bool)
    if (largest > LARGEST).any() or gaps.any():
        with np.errstate(invalid="ignore"):
            wrong = np.abs(X) > LARGEST
        row, column = np.argwhere(wrong if missing else wrong | gaps)[0]
        value = X[row, column]
        where = f"{path}, {source.place(int(row))}, column {names[column]!r}"
        if np.isinf(value):
            raise InvalidInputError(f"{where}: the value is infinite. Correct or remove the row.")
        if np.isnan(value):
            raise InvalidInputError(
                f"{where}: the value is missing ({gaps.sum()} in all). Fill gaps with `isthmus "
                "complete` first, or remove such rows."
            )
        raise InvalidInputError(
            f"{where}: {value:.3g} is too large to compute with. Rescale or drop the column."
        )
    for name, value in zip(names, largest, strict=True):
        if 0 < value < SMALLEST:
            raise InvalidInputError(
                f"{path}, column {name!r}: its values, {value:.3g} at most, are too small to "
                "compute with. Rescale or drop the column."
            )
