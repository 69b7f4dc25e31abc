"""`isthmus study`: run, status, table and plot, and one clear line for what cannot be done."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus import study
from isthmus.cli.main import dispatch
from isthmus.paper.datasets import loading
from isthmus.paper.study.fitting import METRICS
from isthmus.study import QUICK, Run, Settings, Store

METHODS = {
    "ClAM": "K given",
    "ClAM+ELBO": "K given",
    "ClAM+CRP": "K unknown",
    "HDBSCAN": "K unknown",
}


def run(arguments: list[str]) -> int:
    return dispatch(["study", *arguments])


def fits(datasets: str = "abcdefg") -> list[dict[str, Any]]:
    """Results of four methods on seven datasets, one of which HDBSCAN could not do."""
    rng = np.random.default_rng(0)
    rows = []
    for dataset in datasets:
        for method, kind in METHODS.items():
            for entry in range(2):
                failed = (dataset, method) == ("g", "HDBSCAN")
                scores = {metric: None if failed else float(rng.random()) for metric in METRICS}
                rows.append(
                    {
                        "id": f"{dataset}-{method}-{entry}",
                        "dataset": dataset,
                        "method": method,
                        "kind": kind,
                        "parameters": json.dumps({"x": entry}),
                        "entry": entry,
                        "seed": 0,
                        "status": "timeout" if failed else "ok",
                        "message": "Not done." if failed else "",
                        "n_rows": None if failed else 50,
                        "n_available": None if failed else 100,
                        **scores,
                        "objective": float(entry),
                        "converged": True,
                        "seconds": 0.5,
                        "finished": 1.0,
                    }
                )
    return rows


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study that is done, but for one fit."""
    return stored(fits(), tmp_path_factory.mktemp("study"))


def stored(rows: list[dict[str, Any]], directory: Path) -> Path:
    Store(directory).results.mkdir()
    Store(directory).append(rows)
    plan: dict[str, dict[str, dict[str, int]]] = {"a": {"HDBSCAN": {"missing": 2}}}
    for row in rows:
        ids = plan.setdefault(row["dataset"], {}).setdefault(row["method"], {})
        ids[row["id"]] = row["entry"]
    (directory / "plan.json").write_text(json.dumps(plan))
    return directory


def offline(*_: object) -> None:
    """Fail as OpenML's fetcher does without a network."""
    raise OSError("Name or service not known")


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, Settings, dict[str, Any]]]:
    """The arguments of `isthmus.study.run`, which does nothing."""
    calls: list[tuple[Path, Settings, dict[str, Any]]] = []

    def record(out: Path, settings: Settings, **options: Any) -> Run:
        calls.append((out, settings, options))
        return Run(out, 3, 1, 2, {"ok": 3})

    monkeypatch.setattr(study, "run", record)
    return calls


def test_a_run_does_each_fit_once_and_prints_one_line(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "out"
    command = ["run", "--datasets", "iris", "--methods", "KMeans,HDBSCAN", "--entries", "1"]
    command += ["--seeds", "2", "--jobs", "1", "-o", str(out)]
    assert run(command) == 0
    assert capfd.readouterr() == (f"{out}: 3 of 3 fits done (3 ok)\n", "")
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


def test_options_reach_the_runner(asked: list[Any], tmp_path: Path) -> None:
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


def test_quick_without_data_or_network_takes_what_scikit_learn_brings(
    asked: list[Any],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "fetch_guarded", offline)
    assert run(["run", "--quick", "--seeds", "2", "-o", str(tmp_path / "out")]) == 0
    ((_, settings, _),) = asked
    assert settings.datasets == ("iris", "wine", "wisconsin_breast_cancer")
    assert (settings.rows, settings.entries, settings.seeds) == (QUICK.rows, QUICK.entries, (0, 1))
    err = capsys.readouterr().err
    assert err.startswith("isthmus: without zoo and ecoli: ")
    assert err.count("\n") == 1


def test_the_table_has_scores_verdict_and_failures(
    finished: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert run(["table", str(finished)]) == 0
    streams = capsys.readouterr()
    assert "missing" in streams.err
    assert "| g | HDBSCAN | timeout | 2 of 2 | Not done. |" in streams.out
    first = {(row["dataset"], row["method"]): row["ari"] for row in fits() if row["entry"] == 0}
    assert f"| a | {first['a', 'ClAM']:.3f} | {first['a', 'ClAM+ELBO']:.3f} |" in streams.out


def test_the_table_for_machines_and_in_a_file(
    finished: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = tmp_path / "table.json"
    command = ["table", str(finished), "--json", "-o", str(target)]
    command += ["--metric", "nmi,ami", "--question", "given", "--view", "all"]
    assert run(command) == 0
    assert capsys.readouterr().out == f"{target}\n"
    found = json.loads(target.read_text())
    assert {(each["question"], each["metric"]) for each in found["comparisons"]} == {
        ("K given", "nmi"),
        ("K given", "ami"),
    }
    assert len(found["comparisons"]) == 6
    assert found["account"]["not_ok"][0]["method"] == "HDBSCAN"


@pytest.mark.slow
def test_the_plots(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = stored(fits("fg"), tmp_path)
    assert run(["plot", str(directory), "-o", str(tmp_path / "figures")]) == 0
    paths = list(map(Path, capsys.readouterr().out.splitlines()))
    assert len(paths) == 6
    assert all(path.read_bytes().startswith(b"\x89PNG") for path in paths)
