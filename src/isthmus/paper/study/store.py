"""Results of a study in Parquet files, and the plan that says which of them count."""

from __future__ import annotations

import hashlib
import io
import json
import os
import secrets
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from operator import itemgetter
from pathlib import Path, PurePath
from typing import Any

from isthmus.errors import InvalidInputError, MissingFileError
from isthmus.io.files import exclusive, write_atomically
from isthmus.io.reading import reading
from isthmus.paper.study.fitting import METRICS
from isthmus.paper.study.settings import Task
from isthmus.tables.binary import read_arrow

Row = Mapping[str, Any]
Plan = dict[tuple[str, str], dict[str, int | None]]
"""By dataset and method, the ids of the fits that count, each with the position of its settings
in the grid; None stands for the position that is stored with the result."""

PLAN = "plan.json"
# The name under which files of results, and the plan, keep a digest of what they hold.
DIGEST = b"sha256"

COLUMNS: dict[str, str] = {
    **dict.fromkeys(("id", "dataset", "method", "kind", "parameters"), "string"),
    **dict.fromkeys(("entry", "seed"), "int64"),
    **dict.fromkeys(("status", "message"), "string"),
    **dict.fromkeys(("n_rows", "n_available", "n_features", "n_classes"), "int64"),
    **dict.fromkeys(METRICS, "float64"),
    "n_clusters": "int64",
    **dict.fromkeys(("largest_share", "objective"), "float64"),
    "converged": "bool",
    **dict.fromkeys(("seconds", "peak_megabytes"), "float64"),
    "version": "string",
    "finished": "float64",
}
"""Columns of the results, with their Arrow types. `entry` is the position of the settings in the
grid, `finished` the time in seconds since 1970."""

# Columns that identify a row.
NEEDED = {"id", "dataset", "method", "entry", "seed", "status", "finished"}
# A directory with more files than this is compacted during the run.
MANY_FILES = 200


class Store:
    """Results of a study in a directory, ``results/*.parquet``.

    Every file is complete when it appears, so a killed run loses no stored result.
    ``pandas.read_parquet``, polars and duckdb read the directory as one table.

    ``plan.json`` lists the results that count: for each dataset and method, those of the newest
    run with both. Other results of earlier runs stay in the files.

    Parameters
    ----------
    directory : str or Path
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.results = self.directory / "results"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the directory for this process; raise RunInProgressError if another has it."""
        self.results.mkdir(parents=True, exist_ok=True)
        with exclusive(self.directory, self.results):
            self.compact()
            yield

    def append(self, rows: Sequence[Row]) -> None:
        """Store results, all or none of them."""
        self._write(rows)
        if len(self._files()) > MANY_FILES:
            self.compact()

    def read(self, everything: bool = False) -> list[dict[str, Any]]:
        """Return the newest result of every task, sorted by dataset, method and settings.

        Parameters
        ----------
        everything : bool
            Include results that no longer count. Without a plan, all results count.
        """
        rows = self._newest()
        plan = None if everything else read_plan(self.directory)
        if plan is not None:
            places = {key: place for ids in plan.values() for key, place in ids.items()}
            rows = [row for row in rows if row["id"] in places]
            for row in rows:  # the grid may have changed since the fit
                place = places[row["id"]]
                row["entry"] = row["entry"] if place is None else place
        return sorted(rows, key=itemgetter("dataset", "method", "entry", "seed", "id"))

    def compact(self) -> None:
        """Merge all files into one."""
        files = self._files()
        if len(files) < 2:
            return
        self._write(self.read(everything=True))
        # If the process is killed here, rows exist twice, and `read` takes one of them.
        for path in files:
            path.unlink()

    def _newest(self) -> list[dict[str, Any]]:
        files = self._files()
        try:
            rows = [row for path in files for row in _read(path)]
        except MissingFileError:
            if self._files() == files:
                raise
            return self._newest()  # another process has just compacted the directory
        return list({row["id"]: row for row in sorted(rows, key=itemgetter("finished"))}.values())

    def _files(self) -> list[Path]:
        try:
            names = sorted(os.listdir(self.results))
        except FileNotFoundError:
            return []
        except OSError as error:
            raise InvalidInputError(f"{self.results} cannot be read: {error.strerror}.") from None
        return [self.results / name for name in names if PurePath(name).match("*.parquet")]

    def _write(self, rows: Sequence[Row]) -> None:
        if not rows:
            return
        import pyarrow.parquet

        kinds = {name: pyarrow.type_for_alias(kind) for name, kind in COLUMNS.items()}
        content = [{name: row.get(name) for name in COLUMNS} for row in rows]
        buffer = io.BytesIO()
        table = pyarrow.Table.from_pylist(content, schema=pyarrow.schema(kinds))
        table = table.replace_schema_metadata({DIGEST: _digest(table.to_pylist())})
        pyarrow.parquet.write_table(table, buffer, compression="zstd", write_page_checksum=True)
        name = f"{os.getpid()}-{secrets.token_hex(6)}.parquet"
        write_atomically(self.results / name, buffer.getvalue())


def _read(path: Path) -> list[dict[str, Any]]:

    advice = "Remove it or move it away; the same `isthmus study run` then repeats its fits."
    with reading(path, "file of results", advice):
        table = read_arrow(path, "parquet")
        if not set(table.column_names) >= NEEDED:
            raise InvalidInputError(f"{path} holds no results of a study. Move it elsewhere.")
        rows = list(table.to_pylist())
        # Files of earlier versions have no digest.
        if (table.schema.metadata or {}).get(DIGEST, found := _digest(rows)) != found:
            raise ValueError("it was altered after it was written")
    return rows


def _digest(content: Any) -> bytes:
    """Return the digest of something that JSON can hold."""
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest().encode()


def read_plan(directory: Path) -> Plan | None:
    """Return the plan of a directory, or None if it has none."""
    path = directory / PLAN
    advice = "Remove it; the same `isthmus study run` writes it again and repeats no fit."
    try:
        with reading(path, "plan of a study", advice):
            found = json.loads(path.read_text(encoding="utf-8"))
            # Plans of earlier versions have no digest.
            digest = found.pop(DIGEST.decode(), None)
            if digest not in (None, _digest(found).decode()):
                raise ValueError("it was altered after it was written")
            return {
                (dataset, method): dict(ids)
                for dataset, methods in found.items()
                for method, ids in methods.items()
            }
    except MissingFileError:
        if path.is_symlink():
            raise
        return None


def write_plan(directory: Path, plan: Plan) -> None:
    """Store a plan."""
    written: dict[str, dict[str, dict[str, int | None]]] = defaultdict(dict)
    for (dataset, method), ids in plan.items():
        written[dataset][method] = ids
    digest = {DIGEST.decode(): _digest(written).decode()}
    write_atomically(directory / PLAN, json.dumps({**written, **digest}) + "\n")


def updated(before: Plan | None, tasks: Iterable[Task], rows: Iterable[Row]) -> Plan:
    """Return the plan after a run of `tasks`, which replaces only the pairs that they cover.

    If there was no plan, all rows count.
    """
    new: Plan = defaultdict(dict)
    for task in tasks:
        new[task.dataset, task.method][task.id] = task.entry
    if before is None:
        before = defaultdict(dict)
        for row in rows:
            before[row["dataset"], row["method"]][row["id"]] = None
    return {**before, **new}
