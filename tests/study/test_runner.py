"""A study survives what its fits do, and being killed; it does each fit once."""

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pytest

from isthmus.errors import (
    DatasetNotFoundError,
    InvalidInputError,
    IsthmusError,
    RunInProgressError,
)
from isthmus.files import shipped
from isthmus.study import (
    METHODS,
    Limits,
    Method,
    Progress,
    Settings,
    Store,
    combinations,
    run,
    runner,
    status,
)

CHANGING = ["seconds", "peak_megabytes", "finished"]


def steady(directory: Path) -> pd.DataFrame:
    """Results without what differs from run to run."""
    rows = [{k: v for k, v in row.items() if k not in CHANGING} for row in Store(directory).read()]
    return pd.DataFrame(rows)


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits are enforced on Linux only")
def test_fits_that_raise_crash_or_exceed_a_limit_are_recorded_and_stop_nothing(
    tmp_path: Path, bad_methods: Callable[[str], Method]
) -> None:
    names = ["raises", "exits", "crashes", "spins", "eats", "prints"]
    settings = Settings(
        datasets=("iris",),
        methods=[bad_methods(name) for name in names],
        seeds=(0,),
        limits=Limits(seconds=1, megabytes=500),
    )
    done = run(tmp_path, settings)
    found = {row["method"]: row for row in Store(tmp_path).read()}
    assert {name: found[name]["status"] for name in names} == {
        "raises": "failed",
        "exits": "failed",
        "crashes": "crashed",
        "spins": "timeout",
        "eats": "memory",
        "prints": "ok",
    }
    assert "no luck" in found["raises"]["message"]
    assert "SIGSEGV" in found["crashes"]["message"]
    assert found["exits"]["message"] == "SystemExit: licence missing"
    assert found["spins"]["message"] == "Not done after 1 s of CPU time."
    assert found["prints"]["n_clusters"] == 3
    assert all(found[name]["seconds"] is not None for name in names)
    assert found["spins"]["seconds"] == pytest.approx(1, abs=0.5)
    assert all(0 <= found[name]["peak_megabytes"] < 500 for name in names)
    assert done.statuses == {"failed": 2, "crashed": 1, "timeout": 1, "memory": 1, "ok": 1}


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
    assert "14 of 14 fits done (14 ok)" in str(status(tmp_path / "one"))
    directory = tmp_path / "one" / "results"
    assert len(list(directory.iterdir())) == 1
    assert len(pd.read_parquet(directory)) == len(pl.read_parquet(directory / "*.parquet")) == 14


def test_killed_at_any_moment_it_loses_at_most_the_fit_in_flight(tmp_path: Path) -> None:
    script = tmp_path / "study.py"
    out = tmp_path / "out"
    script.write_text(
        textwrap.dedent(
            f"""
            from isthmus.study import Settings, run
            settings = Settings(("iris",), ("KMeans", "DP-means"), seeds=(0, 1))
            run({str(out)!r}, settings, report=lambda p: print(p.row["id"], flush=True))
            """
        )
    )
    command = [sys.executable, str(script)]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
    assert process.stdout is not None
    reported = [process.stdout.readline().strip() for _ in range(5)]
    process.kill()
    process.wait()
    reported += process.stdout.read().split()
    process.stdout.close()
    kept = {row["id"] for row in Store(out).read()}
    assert set(reported) <= kept
    assert len(kept) <= len(reported) + 1
    assert status(out).missing == 32 - len(kept)
    rest = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    again = rest.stdout.split()
    assert not kept & set(again)
    assert len(kept) + len(again) == 32
    assert status(out).missing == 0


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


def test_a_method_that_cannot_be_unpickled_there_stops_the_run(tmp_path: Path) -> None:
    class Elsewhere:
        def __call__(self, **_: Any) -> None: ...

        def __reduce__(self) -> Any:
            return (__import__, ("no_such_module",))

    settings = Settings(("iris",), (Method("mine", Elsewhere()),), seeds=(0,))
    with pytest.raises(IsthmusError, match="mine on iris could not be started.*no_such_module"):
        run(tmp_path, settings)
    assert Store(tmp_path).read(everything=True) == []


def test_two_runs_do_not_share_a_directory(tmp_path: Path, small: Settings) -> None:
    with Store(tmp_path).writing(), pytest.raises(RunInProgressError, match="Another run"):
        run(tmp_path, small)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"jobs": 0}, "jobs must be"),
        ({"backend": "threads"}, "backend must be"),
        ({"backend": "dask"}, "needs the scheduler's address"),
        ({"settings": Settings(methods=["KMean"])}, "no method 'KMean'"),
        ({"settings": Settings(methods=[])}, "at least one"),
        ({"settings": Settings(datasets=["irys"])}, "no dataset 'irys'"),
        ({"settings": Settings(("iris",), ("KMeans",), rows=-1)}, "rows must be"),
    ],
)
def test_invalid_arguments_are_refused_before_any_work(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arguments = {"settings": Settings(("iris",), ("KMeans",)), **changes}
    with pytest.raises(InvalidInputError, match=message):
        run(tmp_path / "out", **arguments)
    assert not (tmp_path / "out").exists()


def test_the_time_left_of_the_whole_study_is_right_within_a_factor_of_two() -> None:
    """By the times of the published results, as if two jobs had done them in order."""
    published = shipped("docs/study")
    if published is None:
        pytest.skip("the published results are not here")
    took = {
        row["id"]: (row["seconds"] or {"timeout": 60, "memory": 8}.get(row["status"], 0)) + 0.3
        for row in Store(published).read()
    }
    whole = Settings(entries=max(len(method.grid) for method in METHODS.values()))
    tasks = [task for task in whole.tasks() if task.id in took]
    assert len(tasks) == len(took)
    costs = np.cumsum([runner._cost(task) for task in tasks])
    clock = np.cumsum([took[task.id] for task in tasks]) / 2
    for cost, seconds in zip(costs[:-1], clock[:-1], strict=True):
        if 0.05 <= seconds / clock[-1] <= 0.95:
            left = Progress(0, 0, seconds, {}, cost / costs[-1]).seconds_left
            assert 0.5 < left / (clock[-1] - seconds) < 2


def test_a_run_shows_its_progress_and_estimates_the_remaining_time(
    tmp_path: Path, instant: None, capsys: pytest.CaptureFixture[str]
) -> None:
    run(tmp_path, Settings(("iris",), ("KMeans",), seeds=(0,)), jobs=None, progress=True)
    assert "fits, iris KMeans" in capsys.readouterr().err
    assert Progress(3, 4, 30.0, {}, share=0.25).seconds_left == pytest.approx(90.0)


def test_no_study_no_status(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no study in"):
        status(tmp_path)


def test_grids_hold_plain_values_each_once() -> None:
    with pytest.raises(InvalidInputError, match="plain numbers"):
        Settings(("iris",), (Method("m", dict, ({"a": object()},)),)).tasks()
    with pytest.raises(InvalidInputError, match="twice"):
        Settings(("iris",), (Method("m", dict, combinations(a=[1, 1])),)).tasks()
