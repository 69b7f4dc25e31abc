"""What commands read and write: points from tables, and places that are checked beforehand."""

from __future__ import annotations

import argparse
import csv
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING

from isthmus.errors import InvalidInputError

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["path", "read_points", "writable_directory", "writable_file"]

SEPARATORS = {".csv": ",", ".tsv": "\t"}


def path(text: str) -> Path:
    """A path on the command line: not an empty one, which would be the current directory."""
    if not text.strip():
        raise argparse.ArgumentTypeError("the path is empty")
    return Path(text)


def read_points(path: Path) -> NDArray[np.float64]:
    """Read the rows of a CSV or TSV file, with a line of names or without, or of a .npy file.

    Parameters
    ----------
    path : Path

    Returns
    -------
    ndarray (n, D)
        All finite, with at least one row.
    """
    import numpy as np

    try:
        if path.suffix == ".npy":
            points = _read_npy(path)
        elif path.suffix in SEPARATORS:
            points = np.array(_read_table(path, SEPARATORS[path.suffix]), dtype=float)
        else:
            raise InvalidInputError(f"{path} must end in .csv, .tsv or .npy, to tell what it is.")
    except UnicodeDecodeError:
        raise InvalidInputError(f"{path} is not a text file.") from None
    except OSError as error:
        raise InvalidInputError(f"{path} cannot be read: {error.strerror}.") from None
    if len(points) == 0:
        raise InvalidInputError(f"{path} has no rows.")
    return points


def _read_npy(path: Path) -> NDArray[np.float64]:
    import numpy as np

    try:
        array = np.load(path, allow_pickle=False)
    except (ValueError, EOFError) as error:
        reason = str(error).splitlines()[0]
        raise InvalidInputError(f"{path} is not a readable .npy file: {reason}") from None
    if not isinstance(array, np.ndarray) or array.ndim != 2 or array.dtype.kind not in "fiu":
        shape, dtype = getattr(array, "shape", "no shape"), getattr(array, "dtype", "no type")
        raise InvalidInputError(f"{path} must hold numbers (n, D), not {dtype} of shape {shape}.")
    bad = np.flatnonzero(~np.isfinite(array).all(1))
    if len(bad):
        raise InvalidInputError(
            f"{path}, row {bad[0]}: a value is not finite. Remove such rows first."
        )
    return array.astype(float)


def _read_table(path: Path, separator: str) -> list[list[float]]:
    rows: list[list[float]] = []
    with path.open(newline="", encoding="utf-8-sig") as file:
        reader = csv.reader(file, delimiter=separator)
        for cells in reader:
            place = f"{path}, line {reader.line_num}"
            if not any(cell.strip() for cell in cells):
                continue
            if not rows and reader.line_num == 1 and not any(_is_number(cell) for cell in cells):
                continue  # names
            numbers = [_number(cell, place) for cell in cells]
            if rows and len(numbers) != len(rows[0]):
                raise InvalidInputError(
                    f"{place}: {len(numbers)} values, but {len(rows[0])} in the row before."
                )
            rows.append(numbers)
    return rows


def _is_number(cell: str) -> bool:
    try:
        float(cell)
    except ValueError:
        return False
    return True


def _number(cell: str, place: str) -> float:
    if not _is_number(cell):
        hint = " Are values separated by something else?" if set(cell) & set(";\t|") else ""
        raise InvalidInputError(f"{place}: {cell.strip()!r} is not a number.{hint}")
    if not math.isfinite(float(cell)):
        raise InvalidInputError(f"{place}: {cell.strip()} is not finite. Remove such rows first.")
    return float(cell)


def writable_directory(out: Path) -> Path:
    """Make the directory if need be, before any work is done that could not be kept."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except FileExistsError:
        raise InvalidInputError(f"--out {out} is a file; name a directory.") from None
    except OSError as error:
        raise InvalidInputError(f"--out {out} cannot be made: {error.strerror}.") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise InvalidInputError(f"--out {out} cannot be written to; name another directory.")
    return out


def writable_file(path: Path) -> Path:
    """Check that a file can be put there, before any work is done that could not be kept."""
    if path.is_dir():
        raise InvalidInputError(f"-o {path} is a directory; name a file.")
    if not path.parent.is_dir():
        raise InvalidInputError(f"-o {path}: {path.parent} is not a directory; make it first.")
    if not os.access(path.parent, os.W_OK | os.X_OK):
        raise InvalidInputError(f"-o {path}: {path.parent} cannot be written to; name another.")
    return path
