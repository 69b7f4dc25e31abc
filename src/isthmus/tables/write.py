"""write_table: rows in the format of the target, or of the file that they come from."""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import sys
import zipfile
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically
from isthmus.tables.formats import STDIN, FileFormat
from isthmus.tables.table import Table

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
        others.

    Returns
    -------
    Path or None
        None for stdout.
    """
    import pandas as pd

    like = like.format if isinstance(like, Table) else like
    target = None if path is None or Path(path) == STDIN else Path(path)
    form = _form(target, like)
    frame = data
    if isinstance(data, Table):
        frame = data.frame
        if data.cells is not None and form.kind == "text":
            frame = data.cells.copy(deep=False)
            if data.format.decimal != form.decimal:
                for name in data.columns:
                    frame[name] = frame[name].str.replace(data.format.decimal, form.decimal)
    content = _encoded(frame if isinstance(frame, pd.DataFrame) else pd.DataFrame(frame), form)
    if target is None:
        sys.stdout.write(content.decode(form.encoding))
        return None
    return write_atomically(target, _compressed(content, form.compression, target))


def _form(target: Path | None, like: FileFormat | None) -> FileFormat:
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


def _encoded(frame: pd.DataFrame, form: FileFormat) -> bytes:
    """Return the content of a file, before compression."""
    import numpy as np

    buffer = io.BytesIO()
    if form.kind == "text":
        # Between spaces, nothing is no cell.
        spaces = form.separator == " "
        frame = frame.replace("", None) if spaces else frame
        text = frame.to_csv(
            sep=form.separator,
            decimal=form.decimal,
            index=False,
            lineterminator="\n",
            na_rep="NA" if spaces else "",
        )
        return _in_encoding(text, form.encoding)
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
        frame.to_excel(buffer, index=False)
    else:
        numeric = [name for name in frame if frame[name].dtype.kind in "biuf"]
        if form.kind == "npy" and len(numeric) < len(frame.columns):
            raise InvalidInputError("An .npy file holds numbers only; write an .npz file instead.")
        if form.kind == "npy":
            np.save(buffer, frame.to_numpy())
        else:
            others = {str(name): _array(frame[name]) for name in frame if name not in numeric}
            np.savez(buffer, X=frame[numeric].to_numpy(), feature_names=np.array(numeric), **others)
    return buffer.getvalue()


def _in_encoding(text: str, encoding: str) -> bytes:
    try:
        return text.encode(encoding)
    except UnicodeEncodeError:
        return text.encode("utf-8-sig")


def _array(column: pd.Series) -> Any:
    import numpy as np

    return np.array(["" if value is None or value != value else str(value) for value in column])


def _objects(frame: pd.DataFrame) -> list[dict[str, Any]]:
    """Return a dict for each row, with None where a value is missing."""
    lists = [
        [None if gap else value for value, gap in zip(column.tolist(), gaps, strict=True)]
        for column, gaps in ((frame[name], frame[name].isna().tolist()) for name in frame)
    ]
    return [dict(zip(frame.columns, row, strict=True)) for row in zip(*lists, strict=True)]


def _compressed(content: bytes, compression: str, target: Path) -> bytes:
    if compression == "gzip":
        return gzip.compress(content, mtime=0)
    if compression == "bz2":
        return bz2.compress(content)
    if compression == "xz":
        return lzma.compress(content)
    if compression == "zip":
        buffer = io.BytesIO()
        with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED) as archive:
            archive.writestr(target.stem, content)
        return buffer.getvalue()
    if compression == "zstd":
        import pyarrow

        return pyarrow.compress(content, codec="zstd", asbytes=True)
    return content
