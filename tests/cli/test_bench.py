"""`isthmus bench`: finds the benchmarks, prints their rows, and passes interruptions on."""

import json
import shutil
import sys
from inspect import signature
from pathlib import Path

import pytest

from isthmus.cli import bench
from isthmus.cli.main import main

BENCHMARK = """
from beside import RATIO
def measure(full=False, seed=0):
    yield {"table": "Speed", "size": 10_000 if full else 100, "seed": seed, "faster": RATIO}
    yield {"table": "Speed", "size": 1, "seed": seed, "faster": float("nan")}
    yield {"table": "Memory", "holds": True, "more": {"inertia": 1.0034}, "K": [2, 3]}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Quick benchmarks in place of those of the project, with its own printer."""
    shutil.copy(Path(__file__).parents[2] / "benchmarks" / "measuring.py", tmp_path)
    for name in bench.BENCHMARKS:
        (tmp_path / f"{name}.py").write_text("def measure(full, seed, out=None): return []\n")
    (tmp_path / "attend.py").write_text(BENCHMARK)
    (tmp_path / "beside.py").write_text("RATIO = 3.1\n")
    monkeypatch.setattr(bench, "_folder", lambda: tmp_path)
    return tmp_path


@pytest.mark.usefixtures("folder")
def test_by_default_the_shortest_benchmark_prints_tables(
    capsys: pytest.CaptureFixture[str],
) -> None:
    before = list(sys.path)
    assert main(["bench", "--seed", "7"]) == 0
    streams = capsys.readouterr()
    _, _, table = streams.out.partition("\n\n")
    assert streams.out.startswith("attend: ")
    assert table == (
        "Speed\n\n| size | seed | faster |\n|---|---|---|\n| 100 | 7 | 3.1 |\n| 1 | 7 | nan |\n\n"
        "Memory\n\n| holds | more | K |\n|---|---|---|\n| yes | inertia 1 | 2 / 3 |\n\n"
    )
    assert streams.err == ""
    assert sys.path == before


@pytest.mark.usefixtures("folder")
def test_json_holds_the_rows_themselves(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attend", "cluster", "attend", "--full", "--json", "--quiet"]) == 0
    streams = capsys.readouterr()
    found = json.loads(streams.out, parse_constant=pytest.fail)
    assert streams.err == ""
    assert list(found) == ["attend", "cluster"]
    assert found["attend"]["rows"] == [
        {"table": "Speed", "size": 10000, "seed": 0, "faster": 3.1},
        {"table": "Speed", "size": 1, "seed": 0, "faster": None},
        {"table": "Memory", "holds": True, "more": {"inertia": 1.0034}, "K": [2, 3]},
    ]
    assert found["cluster"]["rows"] == []


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(bench.BENCHMARKS)
    assert main(["bench", "--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(bench.BENCHMARKS)


@pytest.mark.parametrize("name", bench.BENCHMARKS)
def test_the_benchmarks_of_the_project_take_the_arguments_of_the_command(
    name: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ISTHMUS_DATA", str(tmp_path))
    measure = bench._function(bench._folder(), name, "measure")
    signature(measure).bind(False, 0, **bench._places(name, tmp_path))


def test_an_installation_without_benchmarks_says_what_to_do(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "isthmus"
    monkeypatch.setattr("isthmus.io.files.__file__", str(package / "files.py"))
    assert main(["bench"]) == 2
    assert "pip install -e ." in capsys.readouterr().err
    installed = package / "_shipped" / "benchmarks"
    shutil.copytree(Path(__file__).parents[2] / "benchmarks", installed)
    assert bench._folder() == installed


@pytest.mark.usefixtures("folder")
def test_bad_arguments_are_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for arguments, words in {
        "speed": "there are attend",
        "atend": "did you mean attend?",
        "quality": "ISTHMUS_DATA",
        f"attention --out {taken}": "is a file",
    }.items():
        assert main(["bench", *arguments.split()]) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.count("\n") == 1
        assert words in streams.err


@pytest.mark.usefixtures("folder")
def test_stored_runs_go_where_out_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    benchmark = "def measure(full, seed, out): yield {'out': str(out)}\n"
    (tmp_path / "attention.py").write_text(benchmark)
    out = tmp_path / "deep" / "kept"
    assert main(["bench", "attention", "--out", str(out)]) == 0
    assert f"| {out}/attention.json |" in capsys.readouterr().out
    assert out.is_dir()


@pytest.mark.usefixtures("folder")
def test_an_interruption_ends_with_130(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attend.py").write_text("def measure(full, seed): raise KeyboardInterrupt\n")
    assert main(["bench"]) == 130
    assert capsys.readouterr().err == "isthmus: interrupted\n"
