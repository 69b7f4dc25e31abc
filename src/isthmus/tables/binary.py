"""Excel, Parquet and Feather files, whose tables are much larger than the files if they lie."""

from __future__ import annotations

import mmap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow
import pyarrow.compute
from pyarrow import feather, parquet, types

from isthmus.errors import InvalidInputError
from isthmus.reading import require_size, size_limit

# In a Feather file, a compressed buffer follows its size, 8 bytes, and starts with one of these.
FRAME_STARTS = (b"\x04\x22\x4d\x18", b"\x28\xb5\x2f\xfd")
CELL = 8
"""Bytes that a cell takes, about."""


def read_arrow(path: Path, kind: str) -> pyarrow.Table:
    """Return the table of a Parquet or Feather file, unless it is far larger than the file."""
    with path.open("rb") as file:
        if kind == "feather":
            require_size(path, _announced_size(path))
            table = feather.read_table(file)
            table.validate(full=True)  # offsets that lead elsewhere would end the process
        else:
            table = _read_parquet(path, file)
    require_size(path, CELL * table.num_rows * table.num_columns + _size_of_words(table))
    return table


def _read_parquet(path: Path, file: Any) -> pyarrow.Table:
    source = parquet.ParquetFile(file)
    about, schema = source.metadata, source.schema_arrow
    groups = [about.row_group(number) for number in range(about.num_row_groups)]
    chunks = [group.column(place) for group in groups for place in range(group.num_columns)]
    sizes = [max(each.total_uncompressed_size, CELL * each.num_values) for each in chunks]
    require_size(path, max(sum(sizes), CELL * about.num_rows * about.num_columns))
    # Repeated words take memory once, until their sizes have been added up.
    words = [
        each.name for each in schema if types.is_string(each.type) or types.is_binary(each.type)
    ]
    options = {"read_dictionary": words, "page_checksum_verification": True}
    table = parquet.ParquetFile(file, **options).read()
    table.validate(full=True)
    require_size(path, _size_of_words(table))
    for place, each in enumerate(schema):
        if each.name in words:
            column = table.column(place).cast(each.type)
            table = table.set_column(place, each.name, column)
    return table


def _announced_size(path: Path) -> int:
    """Return the sum of the sizes that the compressed buffers of a Feather file announce."""
    total = 0
    with path.open("rb") as file:
        if not path.stat().st_size:
            return 0
        with mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ) as content:
            for start in FRAME_STARTS:
                place = content.find(start)
                while place >= 0:
                    if place % CELL == 0 and place >= CELL:
                        before = content[place - CELL : place]
                        total += max(0, int.from_bytes(before, "little", signed=True))
                    place = content.find(start, place + 1)
    return total


def _size_of_words(table: pyarrow.Table) -> int:
    """Return the bytes of columns of repeated words when each is written out."""
    total = 0
    for column in table.itercolumns():
        if not types.is_dictionary(column.type):
            continue
        for chunk in column.chunks:
            words = chunk.dictionary
            if types.is_string(words.type) or types.is_binary(words.type):
                sizes = pyarrow.compute.binary_length(words).take(chunk.indices)
                total += pyarrow.compute.sum(sizes).as_py() or 0
    return total


def read_sheet(path: Path, sheet: str | None) -> tuple[pd.DataFrame, list[str]]:
    """Return the cells of a sheet, or of the first one, with "" for empty ones, and notes."""
    from openpyxl import load_workbook

    with zipfile.ZipFile(path) as archive:
        require_size(path, sum(member.file_size for member in archive.infolist()))
    with path.open("rb") as file:
        book = load_workbook(file, read_only=True, data_only=True, keep_links=False)
        try:
            first, *others = (each.title for each in book.worksheets)
            if sheet not in (None, first, *others):
                known = ", ".join([first, *others])
                raise InvalidInputError(f"{path} has no sheet {sheet!r}; it has {known}.")
            rows = _rows(path, book[sheet or first])
        finally:
            book.close()
    ignored = f"Only sheet {first!r} is read; option array names another."
    return pd.DataFrame(rows), [ignored] * (sheet is None and bool(others))


def _rows(path: Path, sheet: Any) -> list[list[Any]]:
    """Return the rows of a sheet, equally long; one cell may claim to be a million rows below."""
    sheet.reset_dimensions()
    rows, width, limit, last = list[list[Any]](), 0, size_limit(path), 0
    for row in sheet.rows:
        cells = [_value(cell) for cell in row]
        while cells and cells[-1] == "":
            cells.pop()
        rows.append(cells)
        width, last = max(width, len(cells)), len(rows) if cells else last
        if CELL * len(rows) * (width + CELL) > limit:
            require_size(path, CELL * len(rows) * (width + CELL))
    return [cells + [""] * (width - len(cells)) for cells in rows[:last]]


def _value(cell: Any) -> Any:
    """Return the value of a cell: whole numbers as such, NaN for errors."""
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e":
        return np.nan
    return int(value) if isinstance(value, float) and value.is_integer() else value
