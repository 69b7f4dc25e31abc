"""read_table: the numeric columns of a file, its ids and labels."""

from __future__ import annotations

import codecs
import lzma
import zipfile
from collections.abc import Sequence
from pathlib import Path

from isthmus.errors import InvalidInputError
from isthmus.tables.table import Table

__all__ = ["read_table"]

NO_IDS = "none"
SEPARATOR_NAMES = {"\\t": "\t", "tab": "\t", "space": " "}


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
    """Read the numeric columns of a file.

    Notes in the table name the columns that are left out, and everything that was found out rather
    than given. Messages refer to the options below, which are options of the commands as well.

    Parameters
    ----------
    path : str or Path
        CSV, TSV or other delimited text and JSON (lines, or a list of objects), also compressed
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
        Whether the first line has names. By default it has, if no cell in it is a number.
    separator, decimal, encoding : str, optional
        Of a text file. By default they are found out.
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
    from isthmus.tables.columns import ID_NAME, build_table, find_column
    from isthmus.tables.sources import read_source

    path, separator = Path(path), SEPARATOR_NAMES.get(separator or "", separator)
    _check_options(separator, decimal, encoding)
    chosen = {"id": None if id == NO_IDS else id, "label": label}

    def keep_text(names: list[str]) -> set[int]:
        wanted = [(name, option) for option, name in chosen.items() if name is not None]
        wanted += [(name, "drop") for name in drop]
        kept = {find_column(path, names, name, option) for name, option in wanted}
        return kept | {place for place, name in enumerate(names) if ID_NAME.fullmatch(name)}

    options = {"separator": separator, "decimal": decimal, "encoding": encoding}
    try:
        source = read_source(path, keep_text, as_written, header, array, **options)
    except UnicodeDecodeError as error:
        raise InvalidInputError(
            f"{path} is not text in {error.encoding}: byte {error.object[error.start]:#04x} is "
            "invalid. Name its encoding (option encoding), or save it as UTF-8."
        ) from None
    except (OSError, EOFError, lzma.LZMAError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or f"it is not a complete {path.suffix} file"
        raise InvalidInputError(f"{path} cannot be read: {reason}.") from None
    return build_table(
        path, source, chosen, drop, id is None, missing, as_written, check_commas=decimal is None
    )


def _check_options(separator: str | None, decimal: str | None, encoding: str | None) -> None:
    if separator is not None and (len(separator) != 1 or separator in '"\r\n'):
        raise InvalidInputError(f"The separator must be one character, not {separator!r}.")
    if decimal not in (None, ".", ",") or (decimal is not None and decimal == separator):
        raise InvalidInputError(
            f"The decimal mark must be . or , and differ from the separator, not {decimal!r}."
        )
    try:
        codecs.lookup(encoding or "utf-8")
    except LookupError:
        raise InvalidInputError(
            f"There is no encoding {encoding!r}; examples are utf-8, utf-16 and latin-1."
        ) from None
