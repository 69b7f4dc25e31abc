"""A study survives what its fits do, and being killed; it does each fit once."""

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pytest

from isthmus.errors import InvalidInputError, RunInProgressError
from isthmus.study import Limits, Method, Progress, Settings, Store, combinations, run, status

CHANGING = ["seconds", "peak_megabytes", "finished"]


def steady(directory: Path) -> pd.DataFrame:
    """Results without what differs from run to run."""
    rows = [{k: v for k, v in row.items() if k not in CHANGING} for row in Store(directory).read()]
    return pd.DataFrame(rows)


@pytest.mark.skipif(sys.platform != "linux", reason="memory limits are enforced on Linux only")
def test_fits_that_raise_crash_hang_or_eat_memory_are_recorded_and_stop_nothing(
    tmp_path: Path, bad_methods: Callable[[str], Method]
) -> None:
    names = ["raises", "crashes", "sleeps", "spins", "eats", "prints"]
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
        "crashes": "crashed",
        "sleeps": "timeout",
        "spins": "timeout",
        "eats": "memory",
        "prints": "ok",
    }
    assert "no luck" in found["raises"]["message"]
    assert "SIGSEGV" in found["crashes"]["message"]
    assert found["prints"]["n_clusters"] == 3
    assert done.statuses == {"failed": 1, "crashed": 1, "timeout": 2, "memory": 1, "ok": 1}


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
    told = [process.stdout.readline().strip() for _ in range(5)]
    process.kill()
    process.wait()
    told += process.stdout.read().split()
    process.stdout.close()
    kept = {row["id"] for row in Store(out).read()}
    assert set(told) <= kept
    assert len(kept) <= len(told) + 1
    assert status(out).missing == 32 - len(kept)
    rest = subprocess.run(command, capture_output=True, text=True, env=environment, check=True)
    again = rest.stdout.split()
    assert not kept & set(again)
    assert len(kept) + len(again) == 32
    assert status(out).missing == 0


def test_what_ended_badly_is_done_again_only_if_asked(tmp_path: Path) -> None:
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


@pytest.mark.skipif(sys.platform != "linux", reason="looks into /proc")
def test_the_server_of_fits_ends_when_the_process_that_asked_is_killed(tmp_path: Path) -> None:
    script = textwrap.dedent(
        """
        import isthmus.study.isolation as isolation, time
        print(isolation._Server().process.pid, flush=True)
        time.sleep(60)
        """
    )
    process = subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    server = int(process.stdout.readline())
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdout.close()
    for _ in range(300):
        try:
            state = Path(f"/proc/{server}/stat").read_text().split()[2]
        except (FileNotFoundError, ProcessLookupError):
            return
        if state == "Z":
            return
        time.sleep(0.1)
    raise AssertionError("the server is still there")


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
def test_what_cannot_be_run_is_said_before_any_work(
    changes: dict[str, Any], message: str, tmp_path: Path
) -> None:
    arguments = {"settings": Settings(("iris",), ("KMeans",)), **changes}
    with pytest.raises(InvalidInputError, match=message):
        run(tmp_path, **arguments)


def test_no_study_no_status(tmp_path: Path) -> None:
    with pytest.raises(InvalidInputError, match="no study in"):
        status(tmp_path)


def test_grids_hold_plain_values_each_once() -> None:
    with pytest.raises(InvalidInputError, match="plain numbers"):
        Settings(("iris",), (Method("m", dict, ({"a": object()},)),)).tasks()
    with pytest.raises(InvalidInputError, match="twice"):
        Settings(("iris",), (Method("m", dict, combinations(a=[1, 1])),)).tasks()
