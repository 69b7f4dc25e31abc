"""Results in Parquet files: whole ones only, one more for every fit that is done."""

from __future__ import annotations

import io
import os
import secrets
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.files import exclusive, write_atomically
from isthmus.study.metrics import METRICS
from isthmus.study.plan import read_plan

__all__ = ["COLUMNS", "Row", "Store"]

Row = Mapping[str, Any]

COLUMNS: dict[str, str] = {
    "id": "string",
    "dataset": "string",
    "method": "string",
    "kind": "string",
    "parameters": "string",
    "entry": "int64",
    "seed": "int64",
    "status": "string",
    "message": "string",
    "n_rows": "int64",
    "n_available": "int64",
    "n_features": "int64",
    "n_classes": "int64",
    **dict.fromkeys(METRICS, "float64"),
    "n_clusters": "int64",
    "largest_share": "float64",
    "objective": "float64",
    "converged": "bool",
    "seconds": "float64",
    "peak_megabytes": "float64",
    "version": "string",
    "finished": "float64",
}
"""Columns of the results, with their Arrow types. `entry` is the settings' place in the grid,
`finished` seconds since 1970."""

# Without these a row cannot be told from others.
NEEDED = {"id", "dataset", "method", "entry", "seed", "status", "finished"}
# A directory with more files than this is tidied up on the way.
MANY_FILES = 200


class Store:
    """The results of a study in a directory, ``results/*.parquet``.

    Every file is complete when it appears, so a run that is killed loses nothing that was
    written. ``pandas.read_parquet``, polars and duckdb read the directory as one table.

    What counts is written in ``plan.json``: for each dataset and method, the fits that the newest
    run asked for. Results of earlier runs that asked for others stay in the files.

    Parameters
    ----------
    directory : str or Path
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.results = self.directory / "results"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Hold the directory for this process alone, until it leaves, however it ends."""
        _arrow()  # before any work, and before anything is written
        self.results.mkdir(parents=True, exist_ok=True)
        with exclusive(self.directory):
            for leftover in self.results.glob(".*.part"):
                leftover.unlink()
            self.compact()
            yield

    def append(self, rows: Sequence[Row]) -> None:
        """Add results, all or nothing."""
        self._write(rows)
        if len(self._files()) > MANY_FILES:
            self.compact()

    def read(self, everything: bool = False) -> list[dict[str, Any]]:
        """Results, the newest for every task, in the order of dataset, method and settings.

        Parameters
        ----------
        everything : bool
            Not only what counts: for each dataset and method, the fits that the newest run with
            both of them asked for. Without a plan, everything counts.
        """
        rows = self._newest()
        plan = None if everything else read_plan(self.directory)
        if plan is not None:
            places = {key: place for ids in plan.values() for key, place in ids.items()}
            rows = [_placed(row, places[row["id"]]) for row in rows if row["id"] in places]
        keys = ("dataset", "method", "entry", "seed", "id")
        return sorted(rows, key=lambda row: tuple(row[key] for key in keys))

    def compact(self) -> None:
        """Merge all files into one."""
        files = self._files()
        if len(files) < 2:
            return
        self._write(self.read(everything=True))
        # The new file is there before the old ones go: killed here, rows are only there twice,
        # which `read` knows how to take.
        for path in files:
            path.unlink()

    def _newest(self) -> list[dict[str, Any]]:
        newest: dict[str, dict[str, Any]] = {}
        for path in self._files():
            try:
                rows = _rows(path)
            except FileNotFoundError:  # merged into another just now
                return self._newest()
            for row in rows:
                known = newest.get(row["id"])
                if known is None or row["finished"] > known["finished"]:
                    newest[row["id"]] = row
        return list(newest.values())

    def _files(self) -> list[Path]:
        return sorted(self.results.glob("*.parquet"))

    def _write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        arrow, parquet = _arrow()
        table = arrow.Table.from_pylist(
            [{name: row.get(name) for name in COLUMNS} for row in rows],
            schema=arrow.schema([(name, _type(arrow, kind)) for name, kind in COLUMNS.items()]),
        )
        buffer = io.BytesIO()
        parquet.write_table(table, buffer, compression="zstd")
        name = f"{os.getpid()}-{secrets.token_hex(6)}.parquet"
        write_atomically(self.results / name, buffer.getvalue())


def _rows(path: Path) -> list[dict[str, Any]]:
    arrow, parquet = _arrow()
    try:
        table = parquet.read_table(path)
    except FileNotFoundError:
        raise
    except (arrow.ArrowException, OSError) as error:
        words = " ".join(str(error).split()).rstrip(".")
        raise InvalidInputError(
            f"{path} cannot be read ({words}). Remove it or move it away; its fits are then done "
            "again by the same `isthmus study run`."
        ) from None
    if not set(table.column_names) >= NEEDED:
        raise InvalidInputError(
            f"{path} holds no results of a study. Move it away: that directory is for these only."
        )
    rows: list[dict[str, Any]] = table.to_pylist()
    return rows


def _placed(row: dict[str, Any], place: int | None) -> dict[str, Any]:
    """The row with its settings' place in the grid as it is now."""
    return row if place is None else {**row, "entry": place}


def _type(arrow: Any, kind: str) -> Any:
    return arrow.bool_() if kind == "bool" else getattr(arrow, kind)()


def _arrow() -> tuple[Any, Any]:
    try:
        import pyarrow
        import pyarrow.parquet
    except ImportError:
        raise InvalidInputError(
            "A study keeps its results in Parquet files, which takes pyarrow: "
            "pip install 'isthmus[study]'."
        ) from None
    return pyarrow, pyarrow.parquet
