"""read_table and write_table. pandas is imported when the first table is read or written."""

from __future__ import annotations

import codecs
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.tables.table import STDIN, FileFormat, Table

if TYPE_CHECKING:
    import pandas as pd

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


def write_table(
    data: Table | pd.DataFrame | Mapping[str, Any],
    path: str | Path | None,
    *,
    like: Table | FileFormat | None = None,
) -> Path | None:
    """Write columns in full precision, with missing values empty (null in JSON).

    Parameters
    ----------
    data : Table, DataFrame, or dict of str to array-like
        Of a table, every column of its file is written.
    path : str or Path or None
        The suffix decides on the format, as in :func:`read_table`; ``.jsonl`` has an object on
        each line, ``.json`` a list of them. The file appears whole or not at all. None and ``-``
        are stdout: text, or JSON if `like` is JSON.
    like : Table or FileFormat, optional
        Text is written with its separator, decimal mark and encoding, unless the suffix asks for
        another separator.

    Returns
    -------
    Path or None
        None for stdout.
    """
    import pandas as pd

    target = None if path is None or Path(path) == STDIN else Path(path)
    form = _target_format(target, like.format if isinstance(like, Table) else like)
    features = data.columns if isinstance(data, Table) else ()
    frame = data.frame if isinstance(data, Table) else pd.DataFrame(data)
    if isinstance(data, Table) and data.cells is not None and form.kind == "text":
        marks = data.format.decimal, form.decimal
        frame = data.cells.assign(
            **{name: data.cells[name].str.replace(*marks) for name in features}
        )
    content = _encoded(frame, form, features)
    if target is None:
        sys.stdout.write(content.decode(form.encoding))
        return None
    if form.compression:
        content = _compressed(content, form.compression, target.stem)
    return write_atomically(target, content)


def _target_format(target: Path | None, like: FileFormat | None) -> FileFormat:
    """Return the format to write."""
    if target is None:
        textual = like is not None and like.kind in ("text", "json")
        return replace(like, encoding="utf-8") if like is not None and textual else FileFormat()
    form = FileFormat.of(target)
    if like is None or like.kind != "text" or form.kind != "text":
        return form
    separator = like.separator
    if form.suffix != like.suffix and (form.suffix == ".tsv" or separator in "\t "):
        separator = form.separator
    decimal = "." if separator == "," else like.decimal
    return replace(form, separator=separator, decimal=decimal, encoding=like.encoding)


def _encoded(frame: pd.DataFrame, form: FileFormat, features: Sequence[str]) -> bytes:
    """Return the content of a file, before compression."""
    import numpy as np

    buffer = io.BytesIO()
    if form.kind == "text":
        spaces = form.separator == " "  # between which an empty cell is none
        text = (frame.replace("", None) if spaces else frame).to_csv(
            sep=form.separator,
            decimal=form.decimal,
            index=False,
            lineterminator="\n",
            na_rep="NA" if spaces else "",
        )
        try:
            return text.encode(form.encoding)
        except UnicodeEncodeError:
            return text.encode("utf-8-sig")
    if form.kind == "json":
        objects = [frame[name].astype(object) for name in frame]
        lists = [column.where(column.notna(), None).tolist() for column in objects]
        rows = [dict(zip(frame.columns, row, strict=True)) for row in zip(*lists, strict=True)]
        if form.suffix == ".json":
            return (json.dumps(rows, indent=1, default=str) + "\n").encode()
        return "".join(json.dumps(row, default=str) + "\n" for row in rows).encode()
    if form.kind == "parquet":
        frame.to_parquet(buffer, index=False)
    elif form.kind == "feather":
        frame.reset_index(drop=True).to_feather(buffer)
    elif form.kind == "excel":
        frame = frame.copy(deep=False)
        for name in frame:
            # Excel keeps 15 digits.
            if frame[name].dtype.kind in "iu" and frame[name].abs().max() >= 10**15:
                frame[name] = frame[name].astype(str)
        frame.to_excel(buffer, index=False)
    else:
        is_number = {name: column.dtype.kind in "biuf" for name, column in frame.items()}
        numeric = [name for name in features or frame if is_number[name]]
        beside = frame.drop(columns=numeric)
        if form.kind == "npy" and len(beside.columns):
            raise InvalidInputError("An .npy file holds numbers only; write an .npz file instead.")
        X = frame[numeric].to_numpy(na_value=np.nan)
        arrays = {"X": X.astype(np.float64) if X.dtype == object else X}
        if form.kind == "npy":
            np.save(buffer, arrays["X"])
        else:
            for name, column in beside.items():
                plain = column if is_number[name] else column.fillna("")
                arrays[name] = plain.to_numpy(None if is_number[name] else str)
            np.savez(buffer, feature_names=np.array(numeric), **arrays)
    return buffer.getvalue()


def _compressed(content: bytes, compression: str, name: str) -> bytes:
    import pyarrow

    if compression == "xz":
        return lzma.compress(content)
    if compression == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(name, content)
        return buffer.getvalue()
    sink = pyarrow.BufferOutputStream()
    with pyarrow.CompressedOutputStream(sink, compression) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()
