"""A study survives what its fits do, and being killed; it does each fit once."""

from dataclasses import replace
from pathlib import Path
from typing import Any

import pandas as pd
import pytest

from isthmus.errors import DatasetNotFoundError, InvalidInputError
from isthmus.paper.study import runner
from isthmus.study import Method, Progress, Settings, Store, run, status

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
