"""Plans of directories with several runs, and files that cannot be read."""

import json
import os
import subprocess
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pyarrow
import pytest
from pyarrow import parquet

from isthmus.errors import InvalidInputError
from isthmus.study import Method, Settings, Store, combinations, run, status
from isthmus.study.runner import PROGRESS
from isthmus.study.store import read_plan, updated, write_plan

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


def test_a_small_run_does_not_make_an_unfinished_one_look_finished(tmp_path: Path) -> None:
    def stop(_: Any) -> None:
        raise KeyboardInterrupt

    large = Settings(("iris",), ("KMeans",), seeds=(0,))
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, large, report=stop)
    assert status(tmp_path).missing == 7
    run(tmp_path, Settings(("wine",), ("KMeans",), seeds=(0,), entries=1))
    found = status(tmp_path)
    assert (found.total, found.missing) == (9, 7)
    assert found.seconds_left is None


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


def test_a_plan_is_written_and_read_back(tmp_path: Path) -> None:
    tasks = Settings(("iris",), (method(1, 2),), seeds=(0,)).tasks()
    plan = updated(None, tasks, [])
    write_plan(tmp_path, plan)
    assert read_plan(tmp_path) == plan == {("iris", "mine"): {tasks[0].id: 0, tasks[1].id: 1}}
    assert read_plan(tmp_path / "nowhere") is None


def test_status_tells_the_time_left_while_a_run_is_at_it(tmp_path: Path) -> None:
    estimates: list[float | None] = []
    settings = Settings(("iris",), (method(1, 2),), seeds=(0,))
    run(tmp_path, settings, report=lambda _: estimates.append(status(tmp_path).seconds_left))
    assert estimates[0] is not None
    assert estimates[0] >= 0
    assert status(tmp_path).seconds_left is None
    note = {"process": os.getpid(), "ends": time.time() + 100}
    (tmp_path / PROGRESS).write_text(json.dumps(note))
    assert status(tmp_path).seconds_left == pytest.approx(100, abs=10)
    killed = subprocess.Popen(["true"])
    killed.wait()
    (tmp_path / PROGRESS).write_text(json.dumps({**note, "process": killed.pid}))
    assert status(tmp_path).seconds_left is None


@pytest.mark.parametrize(
    "text", ["5", "[]", "null", '"x"', "{", '{"iris": 3}', '{"iris": {"m": 3}}']
)
def test_a_plan_that_is_none_is_estimates_by_its_name(tmp_path: Path, text: str) -> None:
    (tmp_path / "plan.json").write_text(text)
    with pytest.raises(InvalidInputError, match=r"plan\.json is not a readable plan.* Remove it"):
        status(tmp_path)


def test_files_that_are_no_results_are_estimates_with_what_to_do(tmp_path: Path) -> None:
    store = Store(tmp_path)
    settings = Settings(("iris",), (method(1),), seeds=(0,))
    run(tmp_path, settings)
    (whole,) = store.results.iterdir()
    foreign = store.results / "foreign.parquet"
    pd.DataFrame({"a": [1]}).to_parquet(foreign)
    for attempt in (store.read, lambda: status(tmp_path), lambda: run(tmp_path, settings)):
        with pytest.raises(InvalidInputError, match=r"foreign\.parquet holds no results.*Move it"):
            attempt()
    foreign.unlink()
    content = whole.read_bytes()
    for harm in (content[:-20], b"", b"PAR1" + content[4:-4][::-1] + b"PAR1"):
        whole.write_bytes(harm)
        words = rf"{whole.name} is not a readable file.*Remove it or move it away; .* its fits"
        with pytest.raises(InvalidInputError, match=words):
            store.read()
    whole.unlink()
    assert run(tmp_path, settings).done == 1


def test_links_to_nowhere_and_directories_that_cannot_be_read_are_named(tmp_path: Path) -> None:
    store, settings = Store(tmp_path), Settings(("iris",), (method(1),), seeds=(0,))
    assert store.read() == []
    run(tmp_path, settings)
    dangling = store.results / "dangling.parquet"
    dangling.symlink_to(tmp_path / "nowhere")
    with pytest.raises(InvalidInputError, match=r"dangling\.parquet cannot be read: No such file"):
        store.read()
    dangling.unlink()
    store.results.chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    try:
        with pytest.raises(InvalidInputError, match="results cannot be read: Permission denied"):
            store.read(everything=True)
    finally:
        os.seteuid(os.getuid())
        store.results.chmod(0o700)
    assert len(store.read()) == 1


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


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"datasets": []}, "datasets must have at least one"),
        ({"datasets": "iris"}, "datasets must be a list"),
        ({"methods": "KMeans"}, "methods must be a list"),
        ({"methods": [kmeans]}, "a name or a Method"),
        ({"seeds": ()}, "seeds must have at least one"),
        ({"seeds": 3}, "seeds must be a list"),
        ({"seeds": (-1,)}, "a seed must be a whole number from 0 to 4294967295"),
        ({"seeds": (0.5,)}, "a seed must be"),
        ({"seeds": (2**32,)}, "a seed must be"),
        ({"seeds": (0, 0)}, "differ from each other"),
        ({"entries": 0}, "entries must be a whole number of at least 1"),
        ({"entries": -3}, "entries must be"),
        ({"limits": (1, 2)}, "limits must be Limits"),
    ],
)
def test_settings_that_ask_for_nothing_or_nonsense_are_refused(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    settings = replace(Settings(("iris",), ("KMeans",), entries=1), **changes)
    with pytest.raises(InvalidInputError, match=message):
        run(tmp_path / "out", settings)
    assert not (tmp_path / "out").exists()
