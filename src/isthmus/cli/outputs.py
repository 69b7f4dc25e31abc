"""The tables that commands write: CSV, TSV, Parquet and JSON."""

from __future__ import annotations

import argparse
import csv
import io
import json
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from isthmus.cli.delimited import STDIN
from isthmus.cli.files import writable_file
from isthmus.cli.options import add_output
from isthmus.cli.sources import load_pyarrow
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = ["add_table_output", "counted", "default_output", "output_file", "write_rows"]

WRITABLE = (".csv", ".tsv", ".parquet", ".json")


def add_table_output(group: argparse._ArgumentGroup, ending: str) -> None:
    """Add ``-o`` for a table that is called after DATA unless it is named."""
    kinds = f"{', '.join(WRITABLE[:-1])} or {WRITABLE[-1]}"
    add_output(group, "FILE", words=f"{kinds}, - for stdout; default: DATA's name + .{ending}")


def counted(number: int, noun: str) -> str:
    """A number and what it counts: 1 row, 2,000 rows."""
    return f"{number:,} {noun}{'' if number == 1 else 's'}"


def default_output(data: Path, ending: str) -> Path:
    """A file in the current directory, called after the data: iris.csv gives iris.ENDING."""
    name = "stdin" if data == STDIN else data.name
    for suffix in (".gz", Path(name.removesuffix(".gz")).suffix):
        name = name.removesuffix(suffix) or name
    return Path(f"{name}.{ending}")


def output_file(target: Path, data: Path | None = None) -> Path:
    """Check that rows can be written there, before any work is done that could not be kept.

    Parameters
    ----------
    target : Path
    data : Path, optional
        The input, which is never written over.
    """
    if target.suffix.lower() not in WRITABLE:
        raise InvalidInputError(f"-o {target} must end in {', '.join(WRITABLE[:-1])} or .json.")
    if data is not None and target.resolve() == data.resolve():
        raise InvalidInputError(f"-o {target} is the data itself; name another file.")
    if target.suffix.lower() == ".parquet":
        load_pyarrow("writing")
    return writable_file(target)


def write_rows(target: Path | None, columns: Mapping[str, Any]) -> None:
    """Write columns of equal length, in full precision; the suffix says in which format.

    Parameters
    ----------
    target : Path or None
        .csv, .tsv, .parquet or .json (a list of objects, one a row). None is CSV on stdout.
    columns : dict of str to array-like
        NaN is written as a missing value.
    """
    lists = {name: _listing(values) for name, values in columns.items()}
    kind = ".csv" if target is None else target.suffix.lower()
    content: str | bytes
    if kind == ".parquet":
        pyarrow, parquet = load_pyarrow("writing")
        buffer = io.BytesIO()
        parquet.write_table(pyarrow.table(lists), buffer)
        content = buffer.getvalue()
    elif kind == ".json":
        rows = zip(*lists.values(), strict=True)
        content = json.dumps([dict(zip(lists, row, strict=True)) for row in rows], indent=1) + "\n"
    else:
        text = io.StringIO()
        writer = csv.writer(text, delimiter="\t" if kind == ".tsv" else ",", lineterminator="\n")
        writer.writerow(lists)
        writer.writerows(zip(*lists.values(), strict=True))
        content = text.getvalue()
    if target is None:
        sys.stdout.write(str(content))
    else:
        write_atomically(target, content)


def _listing(values: Any) -> list[Any]:
    """Plain Python values; None where one is missing."""
    import numpy as np

    plain: list[Any] = np.asarray(values).tolist()
    return [None if value != value else value for value in plain]
