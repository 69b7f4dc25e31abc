"""What files of each format hold: columns of numbers, columns of text, and where they stand."""

from __future__ import annotations

import json
import re
import zipfile
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.delimited import STDIN, TextColumn, TextTable, has_commas, read_delimited
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "READABLE",
    "Source",
    "find_column",
    "listed",
    "load_pyarrow",
    "named_like_ids",
    "read_source",
]

TEXT = (".csv", ".tsv", ".txt", ".dat", ".data")
PARQUET = b"PAR1"  # what such files begin and end with
READABLE = ".csv, .tsv, .txt (each also with .gz), .parquet, .npy or .npz"
# customer_id and customerId, but not paid.
ID_NAME = re.compile(r"(?i:id|index|row|rowid|unnamed: 0|.*[\s_.-]id)|.*[a-z0-9](Id|ID)")


@dataclass(frozen=True)
class Source:
    """What a file holds, whatever its format.

    Attributes
    ----------
    names : list of str
        Of all columns, each once.
    numbers : list of ndarray (n,) or None
        The values of each column, NaN where missing; None where they are not numbers.
    values : callable
        From a column's place to its values as the file has them.
    place : callable
        From a row's number, from 0, to words that say where it is.
    ids, ids_called : int or None, str
        A column that the file itself marks as ids of rows, and what to call it.
    extra : dict of str to ndarray (n,)
        Arrays beside the table that can be ids or labels.
    notes : tuple of str
        What the reader should know.
    words : dict of int to str
        For columns that are not numbers, the first cell that is none, and where it is.
    """

    names: list[str]
    numbers: list[NDArray[np.float64] | None]
    values: Callable[[int], Any]
    place: Callable[[int], str]
    ids: int | None = None
    ids_called: str = ""
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    words: Mapping[int, str] = field(default_factory=dict)


def read_source(
    path: Path,
    wanted: list[str],
    drop: Sequence[str],
    array: str | None,
    header: bool | None,
    keep_cells: bool,
) -> Source:
    """Read a file by its suffix.

    Parameters
    ----------
    path : Path
    wanted, drop : sequences of str
        Columns that are ids or labels, or to be left out: they need not be numbers.
    array : str or None
        Which array of an .npz.
    header : bool or None
        Whether a text file has names; None is to find out.
    keep_cells : bool
        Keep the text of all cells.
    """
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".gz" and len(suffixes) > 1:
        kind = suffixes[-2] if suffixes[-2] in TEXT else ""
    if path == STDIN or kind in TEXT:
        return _text_source(path, wanted, drop, header, keep_cells)
    if header is not None:
        raise InvalidInputError(f"--header is for text files, which {path} is not.")
    if kind in (".parquet", ".pq"):
        return _parquet_source(path)
    if kind in (".npy", ".npz"):
        return _numpy_source(path, array)
    raise InvalidInputError(f"{path} must end in {READABLE}, to tell what it is.")


def find_column(path: Path, found: list[str], name: str, option: str) -> int:
    """The place of a column, by name or by number from 1."""
    if name in found:
        return found.index(name)
    if name.isdecimal() and 1 <= int(name) <= len(found):
        return int(name) - 1
    raise InvalidInputError(f"{option} {name}: {path} has no such column; it has {listed(found)}.")


def named_like_ids(name: str) -> bool:
    """Whether a column is called as ids of rows are: id, index, customer_id, customerId."""
    return ID_NAME.fullmatch(name) is not None


def listed(words: Sequence[str], most: int = 12) -> str:
    """Words in a row, and how many more there are."""
    shown = ", ".join(words[:most])
    return f"{shown}, and {len(words) - most} more" if len(words) > most else shown


def _text_source(
    path: Path, wanted: list[str], drop: Sequence[str], header: bool | None, keep_cells: bool
) -> Source:
    import numpy as np

    aside: set[int] = set()

    def keep_text(found: list[str], width: int) -> set[int]:
        unique = _unique(found or [""] * width)
        aside.update(find_column(path, unique, name, "--id or --label") for name in wanted)
        kept = set(aside)
        kept.update(place for place, name in enumerate(unique) if named_like_ids(name))
        if found and found[0] == "":
            kept.add(0)
        aside.update(find_column(path, unique, name, "--drop") for name in drop)
        return set(range(width)) if keep_cells else kept

    table = read_delimited(path, keep_text, header)
    columns = table.columns
    found = _unique(table.names or [""] * len(columns))
    used = {found[place]: one for place, one in enumerate(columns) if place not in aside}
    notes = [table.note, _decimal_commas(path, used)]
    for name, column in used.items():
        text = column.text or []
        if not (named_like_ids(name) and len(set(text)) == len(text)):
            _check_words(path, name, column, table)
    if len(set(filter(None, table.names))) < len([name for name in table.names if name]):
        notes.append(f"some names occur twice; the columns are {listed(found)}.")
    nameless_first = bool(table.names) and table.names[0] == "" and any(table.names)
    numeric = [one.odd is None and not (one.numbers and one.flags) for one in columns]
    return Source(
        found,
        [
            np.concatenate(one.parts or [np.empty(0)]) if whole else None
            for one, whole in zip(columns, numeric, strict=True)
        ],
        values=lambda place: np.array(columns[place].text or [], dtype=object),
        place=lambda row: f"line {table.lines[row]}",
        ids=0 if nameless_first else None,
        ids_called="the first column, which has no name,",
        notes=tuple(filter(None, notes)),
        words={
            place: f"line {one.odd[0]}, column {found[place]!r}: {one.odd[1]!r} is not a number"
            for place, one in enumerate(columns)
            if one.odd is not None
        },
    )


def _decimal_commas(path: Path, columns: Mapping[str, TextColumn]) -> str:
    """Words on commas that are read as decimal ones; an error where they may be of thousands."""
    numeric = {
        name: column
        for name, column in columns.items()
        if column.numbers + column.with_commas >= column.words
    }
    for name, column in numeric.items():
        if column.decimal is not None:
            line, cell = column.decimal
            number = cell.replace(",", ".")
            return (
                "commas in numbers are read as decimal points: in line "
                f"{line}, column {name!r}, {cell} is {number}."
            )
    for name, column in numeric.items():
        if column.thousands is not None:
            line, cell = column.thousands
            raise InvalidInputError(
                f"{path}, line {line}, column {name!r}: {cell} may be {cell.replace(',', '')}, or "
                "have a decimal comma, and no other cell tells which. Write numbers without "
                "separators of thousands, and with a decimal point; or leave the column out, with "
                f"--drop {name}."
            )
    return ""


def _check_words(path: Path, name: str, column: TextColumn, table: TextTable) -> None:
    """Refuse a column that is one of numbers, but for some cells."""
    odd, count = column.odd, column.words
    if column.numbers and column.flags:
        odd, count = odd or column.flag, count + column.flags
    if odd is None or column.numbers + column.with_commas < count:
        return
    line, cell = odd
    place = f"{path}, line {line}, column {name!r}: {cell!r} is not a number"
    if has_commas(cell):
        raise InvalidInputError(
            f"{place} here. Write numbers without separators of thousands, and with a decimal "
            f"point; or leave the column out, with --drop {name}."
        )
    if not table.names and line == table.lines[0]:
        raise InvalidInputError(
            f"{place}, though most of the column is. If the first line has names of columns, say "
            f"--header yes; or leave the column out, with --drop {name}."
        )
    raise InvalidInputError(
        f"{place}, though most of the column is. Correct it, or leave it empty if it is missing "
        f"(NA will do, too); or leave the column out, with --drop {name}."
    )


def _unique(found: Sequence[str]) -> list[str]:
    """Names for all columns, each once: x3 where the third has none, a.2 for the second a."""
    taken: set[str] = set()
    unique: list[str] = []
    for place, given in enumerate(found, 1):
        base = given or (f"x{place}" if place > 1 or not any(found) else "id")
        name, times = base, 1
        while name in taken or (name != given and name in found):
            times += 1
            name = f"{base}.{times}"
        taken.add(name)
        unique.append(name)
    return unique


def _parquet_source(path: Path) -> Source:
    pyarrow, parquet = load_pyarrow("reading")
    try:
        with path.open("rb") as file:
            table = parquet.read_table(file)
    except (pyarrow.ArrowException, ValueError) as error:
        content = path.read_bytes()
        whole = content.startswith(PARQUET) and content.endswith(PARQUET)
        what = "is a damaged Parquet file" if whole else "is no Parquet file, or was cut short"
        reason = str(error).splitlines()[0] if whole else "it should begin and end with PAR1"
        raise InvalidInputError(f"{path} {what}: {reason.rstrip('.')}.") from None
    kinds = pyarrow.types
    numbers = []
    for column in table.columns:
        kind = column.type
        if kinds.is_dictionary(kind):
            kind = kind.value_type
        test = (kinds.is_integer, kinds.is_floating, kinds.is_boolean, kinds.is_decimal)
        numeric = any(is_kind(kind) for is_kind in test)
        numbers.append(_floats(column) if numeric else None)
    stored = json.loads((table.schema.metadata or {}).get(b"pandas", b"{}"))
    index = [name for name in stored.get("index_columns", []) if name in table.column_names]
    found = ["index" if name.startswith("__index_level") else name for name in table.column_names]

    def values(place: int) -> NDArray[Any]:
        import numpy as np

        column = table.column(place)
        if column.null_count == 0 and kinds.is_integer(column.type):
            return np.asarray(column)
        return np.array([*column.to_pylist(), None], dtype=object)[:-1]

    return Source(
        _unique(found),
        numbers,
        values=values,
        place=lambda row: f"row {row + 1}",
        ids=table.column_names.index(index[0]) if len(index) == 1 else None,
        ids_called="the index of the data frame",
    )


def _floats(column: Any) -> NDArray[np.float64]:
    import numpy as np

    values = column.to_pylist() if column.null_count else np.asarray(column)
    return np.array(values, dtype=np.float64)  # None becomes NaN


def load_pyarrow(doing: str) -> tuple[Any, Any]:
    """The modules pyarrow and pyarrow.parquet, or a word on how to get them."""
    try:
        import pyarrow
        from pyarrow import parquet
    except ImportError:
        raise InvalidInputError(
            f"{doing} Parquet needs pyarrow: pip install 'isthmus[study]', or use CSV."
        ) from None
    return pyarrow, parquet


def _numpy_source(path: Path, array: str | None) -> Source:
    import numpy as np

    try:
        with path.open("rb") as file:
            loaded = np.load(file, allow_pickle=False)
            packed = not isinstance(loaded, np.ndarray)
            arrays = {key: loaded[key] for key in loaded.files} if packed else {}
    except (ValueError, EOFError, zipfile.BadZipFile, KeyError, AttributeError) as error:
        damaged = "it is damaged, or holds Python objects, which are never loaded"
        reason = damaged if "pickle" in str(error) else str(error)
        raise InvalidInputError(
            f"{path} is not a readable {path.suffix} file: {reason.splitlines()[0]}"
        ) from None
    key = _key(path, arrays, array) if packed else ""
    table = arrays[key] if packed else loaded
    if table.ndim == 1:
        table = table[:, None]
    if table.ndim != 2 or table.dtype.kind not in "fiub" or table.shape[1] == 0:
        raise InvalidInputError(
            f"{path} must hold numbers (n, D), not {table.dtype} of shape {table.shape}."
        )
    if len(table) == 0:
        raise InvalidInputError(f"{path} has no rows.")
    features = arrays.get("feature_names", np.empty(0))
    given = [str(name) for name in features] if len(features) == table.shape[1] else []
    X = table.astype(np.float64)
    return Source(
        _unique(given or [""] * X.shape[1]),
        list(X.T),
        values=lambda place: table[:, place],
        place=lambda row: f"row {row + 1}",
        extra={
            name: values
            for name, values in arrays.items()
            if name != key and values.shape == (len(X),)
        },
    )


def _key(path: Path, arrays: dict[str, NDArray[Any]], array: str | None) -> str:
    """The name of the array to read."""
    tables = [key for key, values in arrays.items() if values.ndim == 2]
    if array in arrays:
        return str(array)
    if array is None and "X" in arrays:
        return "X"
    if array is None and len(tables) == 1:
        return tables[0]
    if array is None and len(arrays) == 1:
        return next(iter(arrays))
    found = ", ".join(f"{key} {values.shape}" for key, values in arrays.items()) or "nothing"
    wrong = "name one with --array" if array is None else f"there is no {array!r}"
    raise InvalidInputError(f"{path} holds {found}; {wrong}.")
