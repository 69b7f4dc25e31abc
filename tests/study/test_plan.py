"""Plans of directories with several runs, and files that cannot be read."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isthmus.errors import InvalidInputError
from isthmus.study import Method, Settings, Store, combinations, run, status

pytestmark = pytest.mark.usefixtures("instant")


def kmeans(**settings: Any) -> Any:
    raise NotImplementedError("no fit is done here")


def method(*restarts: int, name: str = "mine") -> Method:
    """A method whose grid holds these numbers of restarts."""
    return Method(name, kmeans, combinations(n_init=list(restarts)))


def rows_of(directory: Path, everything: bool = False) -> list[tuple[str, int, int, int]]:
    return [
        (row["method"], json.loads(row["parameters"])["n_init"], row["entry"], row["n_rows"])
        for row in Store(directory).read(everything)
    ]


def test_a_new_run_replaces_what_counts_for_its_pairs_and_leaves_the_others(tmp_path: Path) -> None:
    first = Settings(("iris",), (method(1, 2, 3), method(4, name="other")), seeds=(0,))
    assert run(tmp_path, first).set_aside == 0
    assert len(rows_of(tmp_path)) == 4
    # Fewer settings, in another order, on fewer rows; then on all rows again.
    again = replace(first, methods=(method(3, 5),), rows=60)
    second = run(tmp_path, again)
    assert (second.done, second.set_aside) == (2, 3)
    assert rows_of(tmp_path) == [("mine", 3, 0, 60), ("mine", 5, 1, 60), ("other", 4, 0, 150)]
    assert str(status(tmp_path)).endswith("3 of 3 fits done (3 ok)")
    third = run(tmp_path, replace(again, rows=5000))
    assert (third.before, third.done, third.set_aside) == (1, 1, 2)
    assert rows_of(tmp_path) == [("mine", 3, 0, 150), ("mine", 5, 1, 150), ("other", 4, 0, 150)]
    with sqlite3.connect(tmp_path / "results.sqlite") as database:
        assert len(pd.read_sql("SELECT * FROM results", database)) == 7
    assert len(rows_of(tmp_path, everything=True)) == 7


def test_without_a_plan_all_results_count_and_a_run_replaces_its_own_pairs(tmp_path: Path) -> None:
    settings = Settings(("iris", "wine"), (method(1, 2),), seeds=(0,))
    run(tmp_path, settings)
    ids = [task.id for task in settings.tasks()]
    altered(tmp_path, "DELETE FROM plan")
    assert len(Store(tmp_path).read()) == 4
    run(tmp_path, Settings(("iris",), (method(2),), seeds=(0,)))
    assert [row["id"] for row in Store(tmp_path).read()] == ids[1:]
    assert Store(tmp_path).plan() == {
        ("iris", "mine"): {ids[1]: 0},
        ("wine", "mine"): {ids[2]: None, ids[3]: None},
    }


def altered(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / "results.sqlite") as database:
        database.execute(statement)


def test_what_was_altered_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, Settings(("iris",), (method(1, 2),), seeds=(0,)))
    altered(tmp_path, "UPDATE results SET ari = 0.75")
    with pytest.raises(InvalidInputError, match="altered"):
        Store(tmp_path).read()


def test_a_study_in_parquet_files_is_read_and_continued(tmp_path: Path) -> None:
    settings = Settings(("iris",), (method(1, 2),), seeds=(0,))
    run(tmp_path / "new", settings)
    rows = Store(tmp_path / "new").read()
    (tmp_path / "old" / "results").mkdir(parents=True)
    pd.DataFrame(rows).to_parquet(tmp_path / "old" / "results" / "1.parquet")
    plan = {"iris": {"mine": {row["id"]: row["entry"] for row in rows[:1]}}}
    (tmp_path / "old" / "plan.json").write_text(json.dumps(plan))
    assert rows_of(tmp_path / "old") == rows_of(tmp_path / "new")[:1]
    again = run(tmp_path / "old", settings)
    assert (again.before, again.done) == (2, 0)
    assert rows_of(tmp_path / "old") == rows_of(tmp_path / "new")
