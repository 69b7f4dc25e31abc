"""The tables that commands read: CSV, TSV, Parquet, .npy and .npz."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.cli.delimited import MISSING
from isthmus.cli.files import path
from isthmus.cli.options import names
from isthmus.cli.sources import (
    READABLE,
    Source,
    find_column,
    listed,
    named_like_ids,
    read_source,
)
from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = [
    "Table",
    "add_no_standardise",
    "add_table_options",
    "load_table",
    "read_table",
    "tidied",
]

ROW = "row"
"""The name of the ids of rows that have none: their numbers, from 1."""
NO_IDS = "none"
"""What ``--id`` is told if no column has ids, whatever it looks like."""

# Squares of larger values, summed over some rows and columns, would overflow. In a column of
# smaller ones, squares of differences would vanish.
LARGEST, SMALLEST = 1e150, 1e-130


@dataclass(frozen=True)
class Table:
    """Rows of numbers, and what the file says beside them.

    Attributes
    ----------
    X : ndarray (n, D)
        NaN where a value is missing, if that was allowed; finite elsewhere.
    columns : tuple of str
        Names of the D columns; x1, x2, ... by place in the file if it has no names.
    ids : ndarray (n,)
        Of the rows, as the file has them; their numbers, from 1, if it has none.
    id_name : str
        The name of the column of ids; ``row`` for numbers.
    label : ndarray (n,) or None
        The column named as label, whole numbers or text; missing ones are empty.
    label_name : str or None
    left_out : tuple of str
        Columns that are not numbers.
    notes : tuple of str
        What to tell about how the file was read, once it is known that it will do.
    cells : dict
        Every column of the file by name, if asked for: text as it is written, or arrays.
    """

    X: NDArray[np.float64]
    columns: tuple[str, ...]
    ids: NDArray[Any]
    id_name: str
    label: NDArray[Any] | None = None
    label_name: str | None = None
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    cells: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.X)


def add_table_options(parser: argparse.ArgumentParser) -> None:
    """Add DATA and the options that say how it is read."""
    parser.add_argument("data", type=path, metavar="DATA", help=f"{READABLE}; - is stdin")
    group = parser.add_argument_group("reading DATA", "COLUMN is a name, or a number from 1")
    add_id(group)
    group.add_argument("--label", metavar="COLUMN", help="known classes, never learned from")
    add_drop(group)
    group.add_argument("--array", metavar="NAME", help="which array of an .npz; default: X")
    group.add_argument(
        "--header",
        choices=("yes", "no"),
        help="whether names come first in a text file; found out by default",
    )


def add_id(group: argparse._ActionsContainer) -> None:
    """Add ``--id``."""
    group.add_argument(
        "--id",
        metavar="COLUMN",
        help="ids of rows; default: a column called so (id, customer_id, ...) whose values are "
        "distinct, or else numbers from 1; none: no column has ids",
    )


def add_drop(group: argparse._ActionsContainer) -> None:
    """Add ``--drop``."""
    group.add_argument(
        "--drop", type=names, default=(), metavar="COLUMN,...", help="columns to leave out"
    )


def add_no_standardise(group: argparse._ArgumentGroup) -> None:
    """Add ``--no-standardise``."""
    group.add_argument(
        "--no-standardise",
        dest="standardise",
        action="store_false",
        help="columns compare as they are",
    )


def load_table(
    arguments: argparse.Namespace, *, missing: bool = False, keep_cells: bool = False
) -> Table:
    """Read the table that the options of :func:`add_table_options` describe."""
    return read_table(
        arguments.data,
        id=arguments.id,
        label=arguments.label,
        drop=arguments.drop,
        array=arguments.array,
        header=None if arguments.header is None else arguments.header == "yes",
        missing=missing,
        keep_cells=keep_cells,
    )


def read_table(
    path: Path,
    *,
    id: str | None = None,  # noqa: A002
    label: str | None = None,
    drop: Sequence[str] = (),
    array: str | None = None,
    header: bool | None = None,
    missing: bool = False,
    keep_cells: bool = False,
) -> Table:
    """Read the numeric columns of a file; the others are named in the notes and left out.

    Parameters
    ----------
    path : Path
        CSV, TSV or other text (also .gz), Parquet, .npy or .npz; ``-`` is text on stdin.
    id, label : str, optional
        A column's name, or its number from 1. Neither is used as a feature. In an .npz, the
        name of an array as long as the table will do too. Without an `id`, a column that is
        called as ids are and has distinct whole numbers or words is taken; ``"none"`` takes none.
    drop : sequence of str
        Columns to leave out.
    array : str, optional
        The array of an .npz to read: by default ``X``, or else the only one of numbers.
    header : bool, optional
        Whether a text file's first line has names. By default it has, if no cell in it is a
        number.
    missing : bool
        Allow missing values, as NaN. Otherwise they are an error, as infinities always are.
    keep_cells : bool
        Keep all columns, for writing them again.
    """
    if array is not None and path.suffix.lower() != ".npz":
        raise InvalidInputError(f"--array names an array of an .npz file, which {path} is not.")
    wanted = [name for name in (None if id == NO_IDS else id, label) if name is not None]
    try:
        source = read_source(path, wanted, drop, array, header, keep_cells)
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror or error}.") from None
    return _table(path, source, id, label, drop, missing, keep_cells)


def _table(
    path: Path,
    source: Source,
    id: str | None,  # noqa: A002
    label: str | None,
    drop: Sequence[str],
    missing: bool,
    keep_cells: bool,
) -> Table:
    import numpy as np

    size = next((len(found) for found in source.numbers if found is not None), 0)
    roles = {"--id": None if id == NO_IDS else id, "--label": label}
    given = {
        option: find_column(path, source.names, name, option)
        for option, name in roles.items()
        if name is not None and name not in source.extra
    }
    aside = set(given.values()) | {find_column(path, source.names, name, "--drop") for name in drop}
    notes = list(source.notes)
    words: list[str] = []
    if id is None:
        found_ids, words = _find_ids(source, aside)
        given |= found_ids
        aside |= set(found_ids.values())
        notes += words
    used, left_out = _features(source, aside)
    outside = tuple(source.names[place] for place in left_out)
    if not used:
        shown = [f": {source.words[place]}" for place in left_out if place in source.words]
        end = f" And {words[0]}" if words else ""
        raise InvalidInputError(f"{path} has no column of numbers to use{(*shown, '')[0]}.{end}")
    if size == 0:
        raise InvalidInputError(f"{path} has names, but no rows.")
    done = "written as they are" if keep_cells else "left out"
    empty = [source.names[place] for place in left_out if source.numbers[place] is not None]
    if empty:
        notes.append(f"{done}, since all of their cells are missing: {listed(empty)}.")
    if len(outside) > len(empty):
        rest = [name for name in outside if name not in empty]
        notes.append(f"{done}, since most of their cells are not numbers: {listed(rest)}.")
    found = [source.numbers[place] for place in used]
    X = np.column_stack([values for values in found if values is not None])
    _check_finite(path, source, X, used, missing)
    columns = tuple(source.names[place] for place in used)
    id_values, id_name = _chosen(source, roles["--id"], given.get("--id"))
    label_values, label_name = _chosen(source, label, given.get("--label"))
    return Table(
        X=X,
        columns=columns,
        ids=np.arange(1, size + 1) if id_values is None else id_values,
        id_name=id_name or ROW,
        label=label_values,
        label_name=label_name,
        left_out=outside,
        notes=tuple(notes),
        cells={name: source.values(at) for at, name in enumerate(source.names)}
        if keep_cells
        else {},
    )


def _features(source: Source, aside: set[int]) -> tuple[list[int], list[int]]:
    """The places of columns that hold numbers, and of those that do not."""
    import numpy as np

    used: list[int] = []
    left_out: list[int] = []
    for place, values in enumerate(source.numbers):
        if place not in aside:
            empty = values is None or (len(values) > 0 and bool(np.isnan(values).all()))
            (left_out if empty else used).append(place)
    return used, left_out


def _find_ids(source: Source, aside: set[int]) -> tuple[dict[str, int], list[str]]:
    """The column that holds ids of rows, as the file or the column's name says; and notes."""
    used, left_out = _features(source, aside)
    likely = [
        place
        for place in sorted(used + left_out)
        # The only column is there to be used, whatever its name.
        if place == source.ids or (len(used + left_out) > 1 and _are_ids(source, place))
    ]
    if source.ids in likely:
        likely.sort(key=lambda place: place != source.ids)
    if not likely:
        return {}, []
    first, *others = likely
    called = f"column {source.names[first]!r}, by its name,"
    if first == source.ids:
        called = source.ids_called
    notes = [f"{called} is taken for the ids of rows; --id none makes it a column as any other."]
    more = [source.names[place] for place in others if place in used]
    if more:
        notes.append(f"used as features, though they look like ids, too: {listed(more)}.")
    return {"--id": first}, notes


def _are_ids(source: Source, place: int) -> bool:
    """Whether a column is called as ids are, and has distinct whole numbers or words.

    Some ids may be missing, but not most.
    """
    import numpy as np

    if not named_like_ids(source.names[place]):
        return False
    numbers = source.numbers[place]
    if numbers is not None:
        known = numbers[~np.isnan(numbers)]
        if not (np.isfinite(known) & (known == np.floor(known))).all():
            return False
    cells = tidied(source.values(place)).tolist()
    values = [cell for cell in cells if str(cell).lower() not in MISSING]
    return len(set(values)) == len(values) > len(cells) / 2


def _chosen(
    source: Source, name: str | None, place: int | None
) -> tuple[NDArray[Any] | None, str | None]:
    """The values of a column of ids or labels, and its name."""
    if place is not None:
        return tidied(source.values(place)), source.names[place]
    if name is not None:
        return tidied(source.extra[name]), name
    return None, None


def tidied(values: Any) -> NDArray[Any]:
    """Whole numbers where all are written as such; text otherwise, empty where missing."""
    import numpy as np

    if isinstance(values, np.ndarray) and values.dtype.kind in "iub":
        return values.astype(np.int64)
    cells = [_text(value) for value in np.asarray(values, dtype=object)]
    if all(cell.lstrip("-").isdecimal() and len(cell) < 19 for cell in cells):
        whole = [int(cell) for cell in cells]
        if [str(number) for number in whole] == cells:
            return np.array(whole, dtype=np.int64)
    return np.array(cells)


def _text(value: Any) -> str:
    if value is None or value != value:
        return ""
    if isinstance(value, float) and value.is_integer():
        return str(int(value))
    return str(value).strip()


def _check_finite(
    path: Path, source: Source, X: NDArray[np.float64], used: list[int], missing: bool
) -> None:
    import numpy as np

    with np.errstate(invalid="ignore"):
        huge = np.abs(X) > LARGEST
    wrong = huge if missing else huge | np.isnan(X)
    if not wrong.any():
        _check_vanishing(path, source, X, used)
        return
    row, column = np.argwhere(wrong)[0]
    place = f"{path}, {source.place(int(row))}, column {source.names[used[column]]!r}"
    if np.isinf(X[row, column]):
        raise InvalidInputError(f"{place}: the value is infinite. Remove the row, or correct it.")
    if huge[row, column]:
        value = f"{X[row, column]:.3g}"
        raise InvalidInputError(
            f"{place}: {value} is too large to compute with. Rescale, or drop it."
        )
    more = int(np.isnan(X).sum())
    raise InvalidInputError(
        f"{place}: the value is missing ({more} in all). Fill gaps with `isthmus complete` "
        "first, or remove such rows."
    )


def _check_vanishing(path: Path, source: Source, X: NDArray[np.float64], used: list[int]) -> None:
    import numpy as np

    largest = np.nanmax(np.abs(X), axis=0)
    for place, value in zip(used, largest, strict=True):
        if 0 < value < SMALLEST:
            raise InvalidInputError(
                f"{path}, column {source.names[place]!r}: its values, {value:.3g} at most, are too "
                "small to compute with. Rescale, or drop it."
            )
