"""write_table: rows in the format of the target, or of the file that they come from."""

from __future__ import annotations

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

__all__ = ["write_table"]


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
    if isinstance(data, Table):
        frame = _as_written(data, form.decimal) if form.kind == "text" else data.frame
    else:
        frame = pd.DataFrame(data)
    content = _encoded(frame, form, data.columns if isinstance(data, Table) else ())
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


def _as_written(table: Table, decimal: str) -> pd.DataFrame:
    """Return the cells of a table as text, if they were kept, with another decimal mark."""
    if table.cells is None or table.format.decimal == decimal:
        return table.frame if table.cells is None else table.cells
    frame = table.cells.copy(deep=False)
    for name in table.columns:
        frame[name] = frame[name].str.replace(table.format.decimal, decimal)
    return frame


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
        rows = _objects(frame)
        if form.suffix == ".json":
            return (json.dumps(rows, indent=1) + "\n").encode()
        return "".join(json.dumps(row) + "\n" for row in rows).encode()
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
        numeric = [name for name in features or frame if frame[name].dtype.kind in "biuf"]
        others = {
            name: column.to_numpy()
            if column.dtype.kind in "biuf"
            else column.fillna("").to_numpy(str)
            for name, column in frame.items()
            if name not in numeric
        }
        if form.kind == "npy" and others:
            raise InvalidInputError("An .npy file holds numbers only; write an .npz file instead.")
        X = frame[numeric].to_numpy(na_value=np.nan)
        if X.dtype == object:
            X = X.astype(np.float64)
        if form.kind == "npy":
            np.save(buffer, X)
        else:
            np.savez(buffer, X=X, feature_names=np.array(numeric), **others)
    return buffer.getvalue()


def _objects(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a dict for each row, with None where a value is missing."""
    columns = (frame[name].astype(object) for name in frame)
    lists = [column.where(column.notna(), None).tolist() for column in columns]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*lists, strict=True)]


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
