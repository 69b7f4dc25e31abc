"""Excel, Parquet and Feather files, whose parsers run in a child process with limited memory."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pyarrow
from pyarrow import feather, parquet, types

from isthmus.errors import InvalidInputError
from isthmus.io.reading import require_size

CELL = 8
"""Bytes that a cell takes, about."""


def read_arrow(path: Path, kind: str) -> pyarrow.Table:
    """Return the table of a Parquet or Feather file, unless it is far larger than the file."""
    with path.open("rb") as file:
        if kind == "feather":
            table = feather.read_table(file, use_threads=False)
        else:
            table = parquet.ParquetFile(file, page_checksum_verification=True).read(
                use_threads=False
            )
        table.validate(full=True)  # offsets that lead elsewhere would end the process
    for place, field in enumerate(table.schema):
        # Repeated words take memory once, until they are written out.
        if (plain := _plain_type(field.type)) != field.type:
            table = table.set_column(place, field.name, table.column(place).cast(plain))
    cells = table.num_rows * table.num_columns
    require_size(path, max(table.get_total_buffer_size(), CELL * cells))
    return table


def _plain_type(kind: pyarrow.DataType) -> pyarrow.DataType:
    """Return the type of a column in which every value is written out."""
    if types.is_dictionary(kind) or types.is_run_end_encoded(kind):
        return kind.value_type
    if types.is_string_view(kind):
        return pyarrow.large_string()
    return pyarrow.large_binary() if types.is_binary_view(kind) else kind


def read_sheet(path: Path, sheet: str | None) -> tuple[list[list[Any]], list[str]]:
    """Return the cells of a sheet, or of the first one, with "" for empty ones, and notes."""
    from openpyxl import load_workbook

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
    return rows, [ignored] * (sheet is None and bool(others))


def _rows(path: Path, sheet: Any) -> list[list[Any]]:
    """Return the rows of a sheet, equally long; one cell may claim to be a million rows below."""
    sheet.reset_dimensions()
    rows, width, last, size = list[list[Any]](), 0, 0, 0
    for row in sheet.rows:
        cells = [_value(cell) for cell in row]
        while cells and cells[-1] == "":
            cells.pop()
        rows.append(cells)
        width, last = max(width, len(cells)), len(rows) if cells else last
        # Cells share the text that they repeat, until it is written out.
        size += sum(len(cell) for cell in cells if isinstance(cell, str))
        require_size(path, size + CELL * len(rows) * (width + CELL))
    return [cells + [""] * (width - len(cells)) for cells in rows[:last]]


def _value(cell: Any) -> Any:
    """Return the value of a cell: whole numbers as such, NaN for errors."""
    value = cell.value
    if value is None:
        return ""
    if cell.data_type == "e":
        return float("nan")
    return int(value) if isinstance(value, float) and value.is_integer() else value
