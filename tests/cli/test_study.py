"""`isthmus study`: run, status, table and plot."""

import json
from pathlib import Path
from typing import Any

import pytest

from isthmus import study
from isthmus.cli.main import dispatch
from isthmus.study import Run, Settings, Store


def run(arguments: list[str]) -> int:
    return dispatch(["study", *arguments])


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Settings, dict[str, Any]]]:
    """The arguments of `isthmus.study.run`, which does nothing."""
    calls: list[tuple[Path, Settings, dict[str, Any]]] = []

    def record(out: Path, settings: Settings, **options: Any) -> Run:
        calls.append((out, settings, options))
        return Run(out, 3, 1, 2, {"ok": 3})

    monkeypatch.setattr(study, "run", record)
    return calls


@pytest.mark.slow
def test_a_run_does_each_fit_once_and_has_a_status_tables_and_plots(tmp_path, capfd) -> None:
    out = tmp_path / "out"
    command = ["run", "--datasets", "iris", "--methods", "KMeans,HDBSCAN", "--entries", "1"]
    command += ["--seeds", "2", "--jobs", "1", "-o", str(out)]
    assert run(command) == 0
    rows = Store(out).read()
    assert [(row["method"], row["seed"]) for row in rows] == [
        ("HDBSCAN", 0),
        ("KMeans", 0),
        ("KMeans", 1),
    ]
    assert run(command) == 0
    assert Store(out).read() == rows
    capfd.readouterr()
    assert run(["status", str(out), "--json"]) == 0
    printed = json.loads(capfd.readouterr().out)
    expected = {"directory": str(out), "fits": 3, "missing": 0, "ended": {"ok": 3}}
    assert printed == {**expected, "seconds_left": None}
    target = tmp_path / "table.json"
    assert run(["table", str(out), "--metric", "nmi", "--json", "-o", str(target)]) == 0
    assert {each["metric"] for each in json.loads(target.read_text())["comparisons"]} == {"nmi"}
    capfd.readouterr()
    assert run(["table", str(out)]) == 0
    selected = next(row["ari"] for row in rows if row["method"] == "HDBSCAN")
    assert f"{selected:.3f}" in capfd.readouterr().out
    assert run(["plot", str(out), "-o", str(tmp_path / "figures")]) == 0
    paths = list(map(Path, capfd.readouterr().out.splitlines()))
    assert paths
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)


def test_options_reach_the_runner(asked, tmp_path) -> None:
    command = "run --datasets iris,zoo --methods KMeans --seeds 2 --rows 0 --time-limit 7 "
    command += "--memory-limit 512 --retry --scheduler tcp://somewhere:1 --jobs 3"
    assert run([*command.split(), "-o", str(tmp_path), "--data", str(tmp_path)]) == 0
    ((out, settings, options),) = asked
    assert out == tmp_path
    assert (settings.datasets, settings.methods) == (("iris", "zoo"), ("KMeans",))
    assert (settings.seeds, settings.rows, settings.entries) == ((0, 1), 0, None)
    assert (settings.limits.seconds, settings.limits.megabytes) == (7, 512)
    assert (options["backend"], options["scheduler"]) == ("dask", "tcp://somewhere:1")
    assert (options["jobs"], options["retry"], options["data_home"]) == (3, True, tmp_path)
