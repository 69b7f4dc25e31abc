"""A study survives what its fits do, and being killed; it does each fit once."""

import json
import sqlite3
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

from isthmus.errors import DatasetNotFoundError, InvalidInputError
from isthmus.paper.report.registry import recorded
from isthmus.paper.study import runner
from isthmus.paper.study.methods import METHODS, METRICS
from isthmus.paper.study.runner import fit, prepare
from isthmus.paper.study.settings import Task
from isthmus.study import Method, Progress, Settings, Store, combinations, run, status

CHANGING = ["seconds", "peak_megabytes", "finished"]


def steady(directory: Path) -> pd.DataFrame:
    """Results without what differs from run to run."""
    rows = [{k: v for k, v in row.items() if k not in CHANGING} for row in Store(directory).read()]
    return pd.DataFrame(rows)


@pytest.mark.slow
def test_results_are_the_same_with_one_job_and_with_two_and_nothing_is_done_twice(
    tmp_path: Path, small: Settings
) -> None:
    seen: list[Progress] = []
    one = run(tmp_path / "one", small, report=seen.append)
    two = run(tmp_path / "two", small, jobs=2)
    assert one.done == two.done == one.total == len(seen) == 10
    assert seen[-1].seconds_left == 0
    pd.testing.assert_frame_equal(steady(tmp_path / "one"), steady(tmp_path / "two"))
    again = run(tmp_path / "one", small, report=seen.append)
    assert (again.done, again.before, len(seen)) == (0, 10, 10)
    more = run(tmp_path / "one", replace(small, seeds=(0, 1, 2)))
    assert (more.done, more.before) == (4, 10)
    assert len(Store(tmp_path / "one").read()) == 14


def test_failed_fits_are_repeated_only_with_retry(tmp_path: Path) -> None:
    flag = tmp_path / "flag"

    def flaky(**settings: Any) -> Any:
        from sklearn.cluster import KMeans

        if not flag.exists():
            raise OSError("not yet")
        return KMeans(**settings)

    settings = Settings(("iris",), (Method("flaky", flaky),), seeds=(0,))
    assert run(tmp_path / "out", settings).statuses == {"failed": 1}
    flag.touch()
    assert run(tmp_path / "out", settings).done == 0
    assert run(tmp_path / "out", settings, retry=True).statuses == {"ok": 1}
    assert len(Store(tmp_path / "out").read()) == 1


@pytest.mark.slow
def test_data_that_go_missing_stop_the_run_and_are_no_failure_of_the_method(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # As on another machine: the process that fits does not find what this one has.
    monkeypatch.setattr(runner, "load", lambda *_: None)
    settings = Settings(("zoo",), ("KMeans",), seeds=(0,), entries=1)
    with pytest.raises(DatasetNotFoundError, match="KMeans on zoo could not be started on "):
        run(tmp_path, settings, data_home=tmp_path / "nowhere")
    assert Store(tmp_path).read(everything=True) == []
    assert status(tmp_path).missing == 1
    for note in ("[1, Infinity]", f"[{10**20}, 5]", "{}", 9999 * "["):
        (tmp_path / "progress.json").write_text(note)
        assert status(tmp_path).seconds_left is None


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": 0}, "jobs"),
        ({"backend": "threads"}, "backend"),
        ({"backend": "dask"}, "scheduler"),
        ({"settings": Settings(methods=["KMean"])}, "KMean"),
        ({"settings": Settings(methods=[])}, "at least one"),
        ({"settings": Settings(datasets=["irys"])}, "irys"),
        ({"settings": Settings(("iris",), ("KMeans",), rows=-1)}, "rows"),
    ],
)
def test_invalid_arguments_are_refused_before_any_work(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arguments = {"settings": Settings(("iris",), ("KMeans",)), **changes}
    with pytest.raises(InvalidInputError, match=message):
        run(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
def test_a_worker_killed_on_the_way_loses_nothing_and_repeats_nothing(
    tmp_path: Path, small: Settings
) -> None:
    distributed = pytest.importorskip("distributed")
    ids: list[str] = []
    with distributed.LocalCluster(
        n_workers=2, threads_per_worker=1, processes=True, dashboard_address=None
    ) as cluster:

        def report(progress: Progress) -> None:
            ids.append(progress.row["id"])
            if len(ids) == 2:
                next(iter(cluster.workers.values())).process.process.kill()

        address = cluster.scheduler_address
        done = run(tmp_path / "dask", small, backend="dask", scheduler=address, report=report)
        again = run(tmp_path / "dask", small, backend="dask", scheduler=address)
    assert done.done == len(set(ids)) == len(ids) == 10
    assert done.statuses == {"ok": 10}
    assert again.done == 0
    run(tmp_path / "loky", small)
    scores = [
        {row["id"]: (row["ari"], row["silhouette"]) for row in Store(tmp_path / name).read()}
        for name in ("dask", "loky")
    ]
    assert scores[0] == scores[1]


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


@pytest.mark.usefixtures("instant")
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


def altered(directory: Path, statement: str) -> None:
    with sqlite3.connect(directory / "results.sqlite") as database:
        database.execute(statement)


@pytest.mark.usefixtures("instant")
def test_what_was_altered_is_noticed(tmp_path: Path) -> None:
    run(tmp_path, Settings(("iris",), (method(1, 2),), seeds=(0,)))
    altered(tmp_path, "UPDATE results SET ari = 0.75")
    with pytest.raises(InvalidInputError, match="altered"):
        Store(tmp_path).read()


@pytest.mark.slow
def test_most_short_fits_on_bundled_data_are_those_that_were_published() -> None:
    data = {name: prepare(name, 5000) for name in ("iris", "wine", "wisconsin_breast_cancer")}
    rows = Store(recorded("docs/study/results.sqlite").parent).read()
    short = [row for row in rows if row["dataset"] in data and (row["seconds"] or 9) <= 1.5]
    equal = 0
    for place in np.random.default_rng(0).permutation(len(short))[:24]:
        row = short[place]
        task = Task(row["dataset"], row["method"], row["parameters"], row["seed"], 5000)
        found = fit(task, METHODS[row["method"]], data[row["dataset"]])
        ours, theirs = (np.array([each[m] for m in METRICS], float) for each in (found, row))
        equal += np.allclose(ours, theirs, rtol=1e-6, atol=1e-6, equal_nan=True)
    assert equal >= 20  # two estimators have changed since


@pytest.mark.usefixtures("instant")
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
