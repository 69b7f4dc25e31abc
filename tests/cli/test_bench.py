"""`isthmus bench`: finds its scripts, runs them as they are, and lets interruptions through."""

import json
import os
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.cli import bench
from isthmus.cli.main import main

SCRIPT = """
import argparse
from beside import RATIO
parser = argparse.ArgumentParser()
parser.add_argument("--sizes", default="all")
options = parser.parse_args()
print(f"sizes: {options.sizes}\\n\\n| memories | faster |\\n|---|---|")
print(f"| 10,000 | {RATIO}x |\\n| a few | 0.5 (yes) |")
"""


@pytest.fixture
def scripts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Scripts that are quick, in place of those of the project."""
    for name in bench.BENCHMARKS:
        (tmp_path / f"{name}.py").write_text("print('nothing')\n")
    (tmp_path / "attend.py").write_text(SCRIPT)
    (tmp_path / "beside.py").write_text("RATIO = 3.1\n")
    monkeypatch.setattr(bench, "_scripts", lambda: tmp_path)
    return tmp_path


@pytest.mark.usefixtures("scripts")
def test_without_a_name_the_short_one_runs(capsys: pytest.CaptureFixture[str]) -> None:
    before = list(sys.argv), list(sys.path)
    assert main(["bench"]) == 0
    streams = capsys.readouterr()
    assert streams.out.startswith("attend: ")
    assert "sizes: small\n" in streams.out
    assert "| 10,000 | 3.1x |" in streams.out
    assert streams.err == ""
    assert (sys.argv, sys.path) == before


@pytest.mark.usefixtures("scripts")
def test_tables_become_numbers_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "attend", "cluster", "attend", "--full", "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert list(found) == ["attend", "cluster"]
    assert found["attend"]["arguments"] == []
    assert found["attend"]["lines"] == ["sizes: all"]
    assert found["attend"]["tables"] == [
        [{"memories": 10000, "faster": 3.1}, {"memories": "a few", "faster": "0.5 (yes)"}]
    ]
    assert found["cluster"]["lines"] == ["nothing"]


def test_a_table_that_ends_and_another_are_two() -> None:
    tables, lines = bench.parsed(
        "| a |\n|---|\n| -1e-07 |\n\nnext\n| b | c |\n|:--|--:|\n| | x |\n"
    )
    assert tables == [[{"a": -1e-7}], [{"b": "", "c": "x"}]]
    assert lines == ["next"]


def test_the_list_names_every_benchmark(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["bench", "--list"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert [line.split()[0] for line in lines[1:]] == list(bench.BENCHMARKS)
    assert main(["bench", "--list", "--json"]) == 0
    assert list(json.loads(capsys.readouterr().out)) == list(bench.BENCHMARKS)


def test_the_scripts_of_the_project_take_what_they_are_given(tmp_path: Path) -> None:
    folder = bench._scripts()
    for name, benchmark in bench.BENCHMARKS.items():
        text = (folder / f"{name}.py").read_text()
        for word in (*benchmark.short, *benchmark.full):
            if word.startswith("--"):
                assert f'add_argument("{word}"' in text, (name, word)


def test_without_scripts_the_way_out_is_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "site-packages" / "isthmus"
    monkeypatch.setattr("isthmus.files.__file__", str(package / "files.py"))
    assert main(["bench"]) == 2
    assert "pip install -e ." in capsys.readouterr().err
    installed = package / "_shipped" / "benchmarks"
    shutil.copytree(Path(__file__).parents[2] / "benchmarks", installed)
    assert bench._scripts() == installed


@pytest.mark.usefixtures("scripts")
def test_what_cannot_be_run_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    taken = tmp_path / "taken"
    taken.write_text("mine")
    for arguments, words in {
        "speed": "there are attend",
        "quality": "ISTHMUS_DATA",
        f"attention --out {taken}": "is a file",
    }.items():
        assert main(["bench", *arguments.split()]) == 2
        streams = capsys.readouterr()
        assert streams.out == ""
        assert streams.err.count("\n") == 1
        assert words in streams.err


@pytest.mark.usefixtures("scripts")
def test_runs_are_kept_where_out_says(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "attention.py").write_text("import sys\nprint(*sys.argv[1:])\n")
    out = tmp_path / "deep" / "kept"
    assert main(["bench", "attention", "--out", str(out)]) == 0
    assert f"--seeds 1 --out {out}/attention.json" in capsys.readouterr().out
    assert out.is_dir()


def listen_to_control_c() -> None:
    # A shell starts background jobs, and so what they start, deaf to it.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def test_control_c_goes_through(scripts: Path) -> None:
    (scripts / "attend.py").write_text("import time\nprint('go', flush=True)\ntime.sleep(60)\n")
    script = (
        "import sys, pathlib\nfrom isthmus.cli import bench\nfrom isthmus.cli.main import main\n"
        f"bench._scripts = lambda: pathlib.Path({str(scripts)!r})\nsys.exit(main(['bench']))"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        env=os.environ,
        preexec_fn=listen_to_control_c,
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        while process.stdout.readline() != "go\n":
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        assert process.stderr.read() == "isthmus: interrupted\n"
    assert process.returncode == 130
