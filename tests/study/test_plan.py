"""Plans of directories with several runs, and files that cannot be read."""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from isthmus.errors import InvalidInputError
from isthmus.paper.study.store import read_plan
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
    assert len(rows_of(tmp_path, everything=True)) == len(pd.read_parquet(Store(tmp_path).results))
    assert len(rows_of(tmp_path, everything=True)) == 7


def test_without_a_plan_all_results_count_and_a_run_replaces_its_own_pairs(tmp_path: Path) -> None:
    settings = Settings(("iris", "wine"), (method(1, 2),), seeds=(0,))
    run(tmp_path, settings)
    ids = [task.id for task in settings.tasks()]
    (tmp_path / "plan.json").unlink()
    assert len(Store(tmp_path).read()) == 4
    run(tmp_path, Settings(("iris",), (method(2),), seeds=(0,)))
    assert [row["id"] for row in Store(tmp_path).read()] == ids[1:]
    assert read_plan(tmp_path) == {
        ("iris", "mine"): {ids[1]: 0},
        ("wine", "mine"): {ids[2]: None, ids[3]: None},
    }


@pytest.mark.parametrize("name", ["results", "plan"])
def test_what_was_altered_is_noticed(tmp_path: Path, name: str) -> None:
    settings = Settings(("iris",), (method(1, 2),), seeds=(0,))
    run(tmp_path, settings)
    if name == "plan":
        path = tmp_path / "plan.json"
        content = json.loads(path.read_text())
        content["iris"]["mine"].popitem()
        path.write_text(json.dumps(content))
    else:
        (path,) = Store(tmp_path).results.iterdir()
        table = parquet.read_table(path)
        place = table.schema.get_field_index("ari")
        column = pyarrow.array([0.75] * len(table))
        parquet.write_table(table.set_column(place, "ari", column), path)
    with pytest.raises(InvalidInputError, match="it was altered after it was written"):
        Store(tmp_path).read()
