"""Results of a study in a SQLite database, and the plan that says which of them count."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from operator import itemgetter
from pathlib import Path
from typing import Any

from isthmus.errors import InvalidInputError
from isthmus.io.files import exclusive
from isthmus.io.reading import reading
from isthmus.paper.study.methods import METRICS
from isthmus.paper.study.settings import Task
from isthmus.tables.sources import read_arrow

Row = Mapping[str, Any]

COLUMNS: dict[str, type] = {
    **dict.fromkeys(("id", "dataset", "method", "kind", "parameters"), str),
    **dict.fromkeys(("entry", "seed"), int),
    **dict.fromkeys(("status", "message"), str),
    **dict.fromkeys(("n_rows", "n_available", "n_features", "n_classes"), int),
    **dict.fromkeys(METRICS, float),
    "n_clusters": int,
    **dict.fromkeys(("largest_share", "objective"), float),
    "converged": bool,
    **dict.fromkeys(("seconds", "peak_megabytes"), float),
    "version": str,
    "finished": float,
}
"""Columns of the results, with their types. `entry` is the position of the settings in the
grid, `finished` the time in seconds since 1970."""
SQL_TYPES = {str: "TEXT", int: "INTEGER", float: "REAL", bool: "INTEGER"}
_TYPED = ", ".join(f"{name} {SQL_TYPES[kind]}" for name, kind in COLUMNS.items())
# Every row of results has a digest of its content.
TABLES = (
    f"results ({_TYPED}, sha256 TEXT, PRIMARY KEY (id))",
    "plan (dataset TEXT, method TEXT, id TEXT PRIMARY KEY, entry INTEGER)",
)
ADVICE = "Remove it or move it away; the same `isthmus study run` then repeats its fits."


class Store:
    """Results of a study in a directory: ``results.sqlite``, with a row of ``results`` per fit.

    The table ``plan`` lists the results that count: for each dataset and method, those of the
    newest run with both. Other results of earlier runs stay in the database. Studies of version
    0.1.0, in ``results/*.parquet`` and ``plan.json``, can be read and continued.

    Parameters
    ----------
    directory : str or Path
    """

    def __init__(self, directory: str | Path) -> None:
        self.directory = Path(directory)
        self.path = self.directory / "results.sqlite"

    @contextmanager
    def writing(self) -> Iterator[None]:
        """Lock the directory for this process; raise RunInProgressError if another has it."""
        self.directory.mkdir(parents=True, exist_ok=True)
        with exclusive(self.directory):
            yield

    @contextmanager
    def _opened(self) -> Iterator[sqlite3.Connection]:
        """Open the database; what is written counts if the block ends without an error."""
        with closing(sqlite3.connect(self.path)) as database, database:
            for table in TABLES:
                database.execute(f"CREATE TABLE IF NOT EXISTS {table}")
            yield database

    def append(self, rows: Sequence[Row]) -> None:
        """Store results, all or none of them."""
        marks = ", ".join("?" * (len(COLUMNS) + 1))
        with self._opened() as database:
            for row in rows:
                content = {name: _as(kind, row.get(name)) for name, kind in COLUMNS.items()}
                values = (*content.values(), _digest(content))
                database.execute(f"INSERT OR REPLACE INTO results VALUES ({marks})", values)

    def read(self, everything: bool = False) -> list[dict[str, Any]]:
        """Return the newest result of every task, sorted by dataset, method and settings.

        Parameters
        ----------
        everything : bool
            Include results that no longer count. Without a plan, all results count.
        """
        files = sorted((self.directory / "results").glob("*.parquet"))
        rows = {row["id"]: row for path in files for row in _read_parquet(path)}
        plan = {} if everything else self.plan()
        for *values, digest in self._select(f"SELECT {', '.join(COLUMNS)}, sha256 FROM results"):
            pairs = zip(COLUMNS.items(), values, strict=True)
            row = {name: _as(kind, value) for (name, kind), value in pairs}
            if _digest(row) != digest:
                raise InvalidInputError(f"{self.path} was altered after it was written. {ADVICE}")
            rows[row["id"]] = row
        # The grid may have changed since the fit.
        found = [
            row | {"entry": plan.get(key, row["entry"])}
            for key, row in rows.items()
            if not plan or key in plan
        ]
        return sorted(found, key=itemgetter("dataset", "method", "entry", "seed", "id"))

    def compact(self) -> None:
        """Release unused space of the database."""
        with self._opened() as database:
            database.commit()
            database.execute("VACUUM")

    def plan(self) -> dict[str, int]:
        """Return the ids of the fits that count, with the positions of their settings."""
        return {key: entry for *_, key, entry in self._planned()}

    def set_plan(self, tasks: Collection[Task]) -> None:
        """Let these fits count for their datasets and methods."""
        rows = [(task.dataset, task.method, task.id, task.entry) for task in tasks]
        cells = {row[:2] for row in rows}
        rows += [row for row in self._planned() if row[:2] not in cells]
        with self._opened() as database:
            database.execute("DELETE FROM plan")
            database.executemany("INSERT INTO plan VALUES (?, ?, ?, ?)", rows)

    def _planned(self) -> list[tuple[Any, ...]]:
        rows, old = self._select("SELECT * FROM plan"), self.directory / "plan.json"
        if not rows and old.exists():
            with reading(old, "plan of a study", "Remove it; all results count then."):
                listed = json.loads(old.read_text(encoding="utf-8"))
                listed.pop("sha256", None)
                for dataset, methods in listed.items():
                    for method, ids in methods.items():
                        rows += [(dataset, method, *each) for each in ids.items()]
        return rows

    def _select(self, query: str) -> list[tuple[Any, ...]]:
        """Return the rows of a query; none if there is no database yet."""
        if not (self.path.exists() or self.path.is_symlink()):
            return []
        try:
            with (
                reading(self.path, "database of results", ADVICE),
                closing(sqlite3.connect(self.path)) as database,
            ):
                (state,) = database.execute("PRAGMA integrity_check").fetchone()
                if state != "ok":
                    raise ValueError(state)
                return database.execute(query).fetchall()
        except sqlite3.Error as error:
            raise InvalidInputError(
                f"{self.path} is not a database of results, or is damaged: {error}. {ADVICE}"
            ) from None


def _as(kind: type, value: Any) -> Any:
    try:
        return None if value is None else kind(value)
    except ValueError:  # of a file that was altered
        return value


def _digest(content: Any) -> str:
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def _read_parquet(path: Path) -> list[dict[str, Any]]:
    """Return the rows of a file of version 0.1.0."""
    with reading(path, "file of results", ADVICE):
        rows: list[dict[str, Any]] = read_arrow(path, "parquet").to_pylist()
        if rows and not {"id", "dataset", "method", "entry", "seed", "finished"} <= rows[0].keys():
            raise InvalidInputError(f"{path} holds no results of a study. Move it elsewhere.")
    return rows
