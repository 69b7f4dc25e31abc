"""`isthmus`: exit codes, errors in one line, and help without heavy imports."""

import os
import signal
import subprocess
import sys
from pathlib import Path

import pandas as pd
import pytest

from isthmus.cli import datasets
from isthmus.cli.main import main
from isthmus.cli.options import HELP
from isthmus.errors import InvalidInputError
from isthmus.tables import write_table

HELPED = """
import contextlib, sys
from isthmus.cli.main import main
for command in argv:
    with contextlib.suppress(SystemExit):
        main([*command, "--help"])
    heavy = {"torch"} if command else {"torch", "matplotlib", "sklearn", "scipy", "numpy"}
    assert not heavy & set(sys.modules), command
"""


def test_help_of_every_command_loads_nothing_heavy() -> None:
    script = f"argv = {[[], *([name] for name in HELP)]}\n{HELPED}"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert all(f"usage: isthmus {name}" in done.stdout for name in HELP)


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("clusterz", "cluster"),
        ("study tabel", "table"),
        ("cluster data.csv --seeed=3", "--seeed"),
        ("sample data.csv --rows 9", "isthmus sample --help"),
    ],
)
def test_a_misspelt_option_or_command_is_named(line, words, capsys) -> None:
    assert main(line.split()) == 2
    assert words in capsys.readouterr().err


@pytest.mark.slow
def test_compiling_is_announced_once_and_not_quietly(tmp_path) -> None:
    data = tmp_path / "points.csv"
    data.write_text("x,y\n" + "\n".join(f"{n % 7},{n * n % 5}.5" for n in range(20)))

    def notes(cache: str, *options: str) -> str:
        return subprocess.run(
            [sys.executable, "-m", "isthmus", "cluster", str(data), *options],
            env={**os.environ, "NUMBA_CACHE_DIR": str(tmp_path / cache)},
            capture_output=True,
            text=True,
        ).stderr

    assert notes("one").count("Compiling") == 1
    assert "Compiling" not in notes("one")
    assert notes("two", "--quiet") == ""


@pytest.mark.parametrize(
    ("error", "code", "words"),
    [
        (KeyboardInterrupt(), 130, "interrupted"),
        (InvalidInputError("sigma is\nnegative."), 2, "sigma is negative."),
        (OSError("disk full"), 2, "disk full"),
        (ValueError("Found array with 0 samples."), 1, "report"),
        (MemoryError(), 2, "memory"),
        (RuntimeError("DefaultCPUAllocator: can't allocate memory"), 2, "memory"),
        (ModuleNotFoundError("No module named 'pyarrow'", name="pyarrow"), 2, "pyarrow"),
        (ImportError("no such name", name="isthmus.cli.none"), 1, "bug"),
        (KeyError("lost"), 1, "test_main.py"),
    ],
)
def test_an_error_is_one_line_and_an_exit_code(error, code, words, capsys, monkeypatch) -> None:
    def run(arguments: object) -> int:
        raise error

    monkeypatch.delenv("ISTHMUS_TRACEBACK", raising=False)
    monkeypatch.setattr(datasets, "run_list", run)
    assert main(["datasets", "list"]) == code
    err = capsys.readouterr().err
    assert words in err
    assert err.startswith("isthmus: ")
    assert err.count("\n") == 1
    monkeypatch.setenv("ISTHMUS_TRACEBACK", "1")
    assert main(["datasets", "list"]) == code
    assert ("Traceback" in capsys.readouterr().err) == (code < 130)


@pytest.mark.parametrize(
    ("arguments", "lines"),
    [
        (["--help"], 0),
        pytest.param(["sample", "{data}", "-n", "30000", "--quiet"], 1, marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_a_closed_pipe_is_no_error(arguments, lines, unbuffered, tmp_path) -> None:
    data = tmp_path / "points.csv"
    data.write_text("x,y\n1,2\n2,1\n4,3\n")
    command = [sys.executable, "-m", "isthmus", *(word.format(data=data) for word in arguments)]
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment
    ) as process:
        assert process.stdout is not None
        assert process.stderr is not None
        assert [process.stdout.readline() for _ in range(lines)] == ["x,y\n"] * lines
        process.stdout.close()
        assert process.stderr.read() == ""
    assert process.returncode == 141


# A file whose size is limited fills up as a disk does: its end is written in part.
LIMITED = """
import resource, runpy, signal, sys
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
resource.setrlimit(resource.RLIMIT_FSIZE, (1000, 1000))
sys.argv = ["isthmus", "datasets", "list"]
runpy.run_module("isthmus", run_name="__main__")
"""


@pytest.mark.parametrize("unbuffered", ["", "1"])
def test_output_that_is_cut_short_is_an_error(unbuffered, tmp_path) -> None:
    environment = {**os.environ, "PYTHONUNBUFFERED": unbuffered}
    places = [tmp_path / "out", *filter(Path.exists, [Path("/dev/full")])]
    for place, word in zip(places, ("File too large", "No space left on device"), strict=False):
        with place.open("w") as stdout:
            done = subprocess.run(
                [sys.executable, "-c", LIMITED],
                stdout=stdout,
                stderr=subprocess.PIPE,
                text=True,
                env=environment,
            )
        assert word in done.stderr
        assert done.stderr.count("\n") == 1
        assert done.returncode == 2
    assert places[0].stat().st_size == 1000


def enable_control_c() -> None:
    # Shells start background jobs, and their children, with SIGINT ignored.
    signal.signal(signal.SIGINT, signal.SIG_DFL)


@pytest.mark.parametrize(
    ("closed", "code", "words"), [("stdout", 2, "stdout"), ("stderr", 0, ""), ("stdin", 2, "stdin")]
)
@pytest.mark.slow
def test_a_closed_stream_is_one_line_or_nothing(closed, code, words, tmp_path) -> None:
    data = tmp_path / "points.csv"
    data.write_text("who,x,y\nann,1,2\nbob,2,1\neve,4,3\n")
    number = ("stdin", "stdout", "stderr").index(closed)
    source = "-" if closed == "stdin" else str(data)
    done = subprocess.run(
        [sys.executable, "-m", "isthmus", "complete", source, "-o", "-"],
        capture_output=True,
        text=True,
        preexec_fn=lambda: os.close(number),
    )
    assert done.returncode == code, done.stderr
    assert done.stdout == ("" if code else data.read_text())
    assert words in done.stderr
    assert done.stderr.count("\n") == (code > 0)


@pytest.mark.slow
def test_control_c_ends_a_process_with_130_and_one_line(tmp_path) -> None:
    command = [sys.executable, "-m", "isthmus", "certify", "-", "-o", f"{tmp_path}/out.csv"]
    pipe = subprocess.PIPE
    with subprocess.Popen(
        command, stdin=pipe, stderr=pipe, text=True, preexec_fn=enable_control_c
    ) as process:
        assert process.stdin is not None
        assert process.stderr is not None
        for _ in range(20_000):  # more than a pipe holds: it ends once the command reads
            process.stdin.write("1,2,3,4\n")
        process.stdin.flush()
        process.send_signal(signal.SIGINT)
        process.stdin.close()  # ends a read that had begun just before the signal came
        assert process.stderr.read() == "isthmus: interrupted\n"
    assert process.returncode == 130
    assert not any(tmp_path.iterdir())


@pytest.mark.parametrize("command", ["complete", "sample --no-check"])
@pytest.mark.parametrize("suffix", [".jsonl", ".parquet"])
def test_cells_that_are_lists_are_left_out(run, command, suffix) -> None:
    numbers = [(7 * row % 12) / 2 for row in range(12)]
    frame = pd.DataFrame({"a": numbers, "b": range(12), "nested": [[1, 2]] * 12})
    write_table(frame, f"data{suffix}")
    line = f"{command} data{suffix} -o out.csv"
    assert "nested" in run(line).err
    assert "no column of numbers to use" in run(f"{line} --drop a,b", code=2).err
