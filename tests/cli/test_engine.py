"""The engine of `isthmus reproduce`, on parts that are quick, fail, crash, hang and are killed."""

import fcntl
import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from isthmus.cli import reproduce
from isthmus.cli.engine.inputs import inputs_of, source_digest
from isthmus.cli.engine.record import Record, plain
from isthmus.cli.engine.store import Store
from isthmus.cli.main import main
from isthmus.cli.parts import Part
from isthmus.errors import InvalidInputError

# A module of its own, as the processes that make parts import it. Its sections are no `Section`s:
# importing those takes seconds.
FAKES = '''
import fcntl, os, random, signal, sys, time
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace

from isthmus.cli.parts import Part

@dataclass(frozen=True)
class Finding:
    claim: str
    verdict: str
    because: str

class Fake(Part):
    """Its function is what to do and where to leave a line about it."""

    def make(self, seed, full=False):
        deed, _, place = self.function.partition(":")
        with (Path(place) / f"{self.name}.ran").open("a") as file:
            file.write(f"{seed} {full}\\n")
        numbers = {"seed": seed, "full": full, "drawn": random.Random(seed).random()}
        if deed == "raise":
            raise ValueError("no luck\\nwith <b>this</b>")
        elif deed == "exit":
            sys.exit(3)
        elif deed == "leave":
            os._exit(0)
        elif deed == "kill":
            os.kill(os.getpid(), signal.SIGKILL)
        elif deed == "crash":
            os.abort()
        elif deed == "memory":
            numbers["much"] = len(bytearray(2**62))
        elif deed == "nan":
            numbers["inner"] = {"mean": float("nan")}
        elif deed == "threads":
            numbers["threads"] = os.environ["OMP_NUM_THREADS"]
        elif deed == "hang":
            with (Path(place) / f"{self.name}.held").open("w") as held:
                fcntl.flock(held, fcntl.LOCK_EX)
                held.write("held")
                held.flush()
                time.sleep(60)
        finding = Finding("It is so", "held with a correction", "0.5 < 1")
        return SimpleNamespace(
            caption="A caption.", figure=None, table=None, numbers=numbers, findings=(finding,),
            observations=("It was seen that 1 > 0.",),
        )
'''

Make = Callable[..., tuple[Part, ...]]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """Where fake parts live, and leave their lines."""
    (tmp_path / "fake_parts.py").write_text(FAKES)
    return tmp_path


@pytest.fixture
def parts(place: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Have the command know these parts only: their names, and what each does."""
    monkeypatch.syspath_prepend(place)
    monkeypatch.delitem(sys.modules, "fake_parts", raising=False)
    monkeypatch.setattr("isthmus.cli.engine.inputs.source_digest", lambda directory: "as it is")

    def make(**deeds: str) -> tuple[Part, ...]:
        from fake_parts import Fake

        made = tuple(
            Fake(name, name.title(), "energies", f"{deed}:{place}") for name, deed in deeds.items()
        )
        monkeypatch.setattr(reproduce, "PARTS", made)
        return made

    return make


def reproduced(place: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Run the command into a directory there: the exit code, and the results."""
    out = place / "report"
    code = main(["reproduce", "--out", str(out), *more])
    return code, json.loads((out / "results.json").read_text())


def runs(place: Path, name: str) -> int:
    """How often the part was made, or tried."""
    lines = place / f"{name}.ran"
    return len(lines.read_text().splitlines()) if lines.exists() else 0


def test_what_a_part_does_to_itself_leaves_the_others_alone(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    deeds = ("raise", "exit", "leave", "kill", "crash", "memory", "nan")
    parts(first="ok", **{f"to-{deed}": deed for deed in deeds}, last="ok")
    code, results = reproduced(place, "--jobs", "3")
    assert code == 1
    status = {name: part["status"] for name, part in results["parts"].items()}
    assert status == {"first": "done", "last": "done"} | {f"to-{deed}": "failed" for deed in deeds}
    assert results["summary"]["parts"] == {"done": 2, "failed": 7, "missing": 0}
    message = {name: part["message"] for name, part in results["parts"].items()}
    assert message["to-raise"] == "ValueError: no luck with <b>this</b>"
    assert message["to-exit"] == "SystemExit: 3"
    assert "without a result" in message["to-leave"]
    assert "SIGKILL" in message["to-kill"]
    assert "Abort" in message["to-crash"]
    assert "MemoryError" in message["to-memory"]
    assert "numbers.inner.mean is nan" in message["to-nan"]
    streams = capsys.readouterr()
    assert streams.out == f"{place / 'report' / 'index.html'}\n"
    assert streams.err.count("\n") == 1
    assert "7 parts failed" in streams.err
    assert f"Logs are in {place / 'report' / 'parts'}." in streams.err
    assert all(name in streams.err for name in status if name.startswith("to-"))
    log = (place / "report" / "parts" / "to-raise.log").read_text()
    assert "Traceback" in log
    html = (place / "report" / "index.html").read_text()
    assert "no luck with &lt;b&gt;this&lt;/b&gt;" in html
    assert "parts/to-raise.log" in html


def test_a_part_that_failed_is_tried_again_and_its_failure_shown_until_then(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(good="ok", bad="raise")
    assert reproduced(place)[0] == 1
    code, results = reproduced(place, "--only", "good")
    assert code == 0
    assert results["parts"]["bad"]["status"] == "failed"
    assert runs(place, "bad") == 1
    assert reproduced(place)[0] == 1
    assert (runs(place, "good"), runs(place, "bad")) == (1, 2)


def test_a_part_that_hangs_is_ended_when_its_time_is_up(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(stuck="hang", good="ok")
    began = time.monotonic()
    code, results = reproduced(place, "--limit", "2", "--jobs", "1", "--quiet")
    assert time.monotonic() - began < 30
    assert code == 1
    assert "Not done after 2 s" in results["parts"]["stuck"]["message"]
    assert results["parts"]["good"]["status"] == "done"
    assert is_free(place / "stuck.held")
    # It printed nothing, so nobody is sent to read it.
    assert not (place / "report" / "parts" / "stuck.log").exists()
    assert "stuck.log" not in (place / "report" / "index.html").read_text()
    errors = capsys.readouterr().err
    assert "stuck: Not done after 2 s" in errors
    assert "Logs" not in errors


def test_what_is_done_is_not_done_again_and_gives_the_same_files(parts: Make, place: Path) -> None:
    parts(one="ok", two="threads")
    assert reproduced(place)[0] == 0
    before = {path: path.read_bytes() for path in (place / "report").rglob("*.*")}
    code, results = reproduced(place)
    assert code == 0
    assert {path: path.read_bytes() for path in (place / "report").rglob("*.*")} == before
    assert (runs(place, "one"), runs(place, "two")) == (1, 1)
    assert results["parts"]["two"]["numbers"]["threads"] == "1"
    assert reproduced(place, "--fresh", "--only", "one")[0] == 0
    assert (runs(place, "one"), runs(place, "two")) == (2, 1)


def test_other_inputs_do_it_again_and_the_papers_sizes_are_kept_apart(
    parts: Make, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts(one="ok")
    assert reproduced(place, "--full")[1]["parts"]["one"]["numbers"]["full"] is True
    assert reproduced(place)[1]["parts"]["one"]["numbers"]["full"] is False
    assert reproduced(place, "--seed", "1")[1]["parts"]["one"]["numbers"]["seed"] == 1
    assert runs(place, "one") == 3
    reproduced(place, "--full")  # not lost to what came in between
    assert runs(place, "one") == 3
    monkeypatch.setattr("isthmus.cli.engine.inputs.source_digest", lambda directory: "edited")
    reproduced(place, "--full")
    assert runs(place, "one") == 4


@pytest.mark.parametrize("damage", ["truncated", "edited", "emptied", "removed", "not ours"])
def test_a_stored_part_that_is_not_as_written_is_made_again(
    damage: str, parts: Make, place: Path
) -> None:
    parts(one="ok")
    results = reproduced(place)[1]
    stored = place / "report" / "parts" / "one.json"
    text = stored.read_text()
    if damage == "removed":
        stored.unlink()
    else:
        changes = {
            "truncated": text[: len(text) // 2],
            "edited": text.replace('"held with a correction"', '"held"'),
            "emptied": "",
            "not ours": "[1, 2]",
        }
        assert changes[damage] != text
        stored.write_text(changes[damage])
    again = reproduced(place)[1]
    assert runs(place, "one") == 2
    assert again["parts"] == results["parts"]


def is_free(held: Path) -> bool:
    """Whether the process that holds the file is gone, or goes within seconds."""
    deadline = time.monotonic() + 10
    with held.open() as file:
        while time.monotonic() < deadline:
            try:
                fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return True
            except OSError:
                time.sleep(0.05)
    return False


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_a_run_that_is_stopped_ends_its_parts_and_goes_on_where_it_was(
    number: signal.Signals, parts: Make, place: Path
) -> None:
    out = place / "report"
    script = (
        f"import sys; sys.path.insert(0, {str(place)!r})\n"
        "from fake_parts import Fake\nfrom isthmus.cli import reproduce\n"
        "from isthmus.cli.engine import inputs\nfrom isthmus.cli.main import main\n"
        "inputs.source_digest = lambda directory: 'as it is'\n"
        f"reproduce.PARTS = (Fake('one', 'One', 'energies', 'ok:{place}'), "
        f"Fake('two', 'Two', 'energies', 'hang:{place}'))\n"
        f"sys.exit(main(['reproduce', '--jobs', '1', '--out', {str(out)!r}]))"
    )
    engine = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    held, deadline = place / "two.held", time.monotonic() + 60
    while not (held.exists() and held.read_text() == "held"):
        assert time.monotonic() < deadline, engine.communicate()
        time.sleep(0.05)
    engine.send_signal(number)
    errors = engine.communicate(timeout=30)[1]
    assert is_free(held)
    if number == signal.SIGINT:
        assert engine.returncode == 130
        assert errors == "isthmus: interrupted; the same command goes on from here\n"
    else:
        assert engine.returncode == -signal.SIGKILL
    assert not (out / "index.html").exists()
    parts(one="ok", two="ok")
    assert reproduced(place)[0] == 0
    assert (runs(place, "one"), runs(place, "two")) == (1, 2)
    assert not list(out.rglob(".*.part"))


def test_only_these_and_the_page_says_what_is_missing(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(one="ok", two="ok", three="ok")
    code, results = reproduced(place, "--only", "three", "one", "--json")
    assert code == 0
    status = {name: part["status"] for name, part in results["parts"].items()}
    assert status == {"one": "done", "two": "missing", "three": "done"}
    told = json.loads(capsys.readouterr().out)
    assert told["parts"] == {"done": 2, "failed": 0, "missing": 1}
    assert told["verdicts"] == {"held": 0, "held with a correction": 2, "did not hold": 0}
    html = (place / "report" / "index.html").read_text()
    assert "1 of 3 parts not made yet" in html
    assert [part["title"] for part in results["parts"].values()] == ["One", "Two", "Three"]
    assert '<a href="#two">Two</a> (missing)' in html
    assert html.count("It was seen that 1 &gt; 0.") == 2
    assert results["parts"]["one"]["observations"] == ["It was seen that 1 > 0."]
    assert results["parts"]["two"]["observations"] == []
    results = reproduced(place, "--only", "two", "--seed", "5")[1]
    assert results["parts"]["one"]["status"] == "missing"
    assert "another seed" in results["parts"]["one"]["message"]
    capsys.readouterr()
    assert main(["reproduce", "--list", "--seed", "5", "--out", str(place / "report")]) == 0
    assert capsys.readouterr().out == "one    energies\ntwo    energies  done\nthree  energies\n"


def test_a_chapter_stands_for_its_parts_and_an_unknown_name_for_none(
    parts: Make, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(one="ok", two="ok")
    out = tmp_path / "new"
    assert main(["reproduce", "--only", "energies,one", "nothing", "--out", str(out)]) == 2
    streams = capsys.readouterr()
    assert streams.err.count("\n") == 1
    assert all(name in streams.err for name in ("nothing", "energies", "one", "two"))
    assert not out.exists()
    assert [part.name for part in reproduce._chosen([("energies",)])] == ["one", "two"]


def test_two_runs_do_not_share_a_directory(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts(one="ok")
    with Store(place / "report", full=True).writing():
        assert main(["reproduce", "--out", str(place / "report")]) == 2
    streams = capsys.readouterr()
    assert streams.err.count("\n") == 1
    assert "Another run" in streams.err
    assert runs(place, "one") == 0
    assert reproduced(place)[0] == 0


def test_results_are_the_same_for_any_number_of_jobs(parts: Make, place: Path) -> None:
    parts(**{f"p{number}": "threads" for number in range(4)})
    found = []
    for jobs in ("1", "4"):
        results = reproduced(place, "--jobs", jobs, "--fresh", "--seed", "3")[1]
        assert set(results.pop("seconds")) == set(results["parts"])
        found.append(json.dumps(results))
    assert found[0] == found[1]


def test_a_terminal_gets_a_bar_with_what_is_being_made(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    parts(brief="ok")
    assert reproduced(place)[0] == 0
    streams = capsys.readouterr()
    assert "brief" in streams.err
    assert streams.out == f"{place / 'report' / 'index.html'}\n"


def test_values_are_those_that_json_knows() -> None:
    value = {1: (np.float64(0.5), np.int64(2)), "text": [True, None, "x", {"y": np.float32(0.25)}]}
    wanted = {"1": [0.5, 2], "text": [True, None, "x", {"y": 0.25}]}
    assert plain(value, "numbers") == wanted
    assert json.dumps(plain(value, "numbers"), allow_nan=False) == json.dumps(wanted)


@pytest.mark.parametrize(
    ("value", "place"),
    [
        ({"a": [1.0, float("inf")]}, r"numbers\.a\[1\] is inf"),
        ({"a": {"b": np.float64("nan")}}, r"numbers\.a\.b is nan"),
        ({"a": np.zeros(2)}, r"numbers\.a is of type ndarray"),
        ({"a": 1j}, r"numbers\.a is of type complex"),
    ],
)
def test_a_value_that_json_cannot_hold_is_named(value: Any, place: str) -> None:
    with pytest.raises(InvalidInputError, match=place):
        plain(value, "numbers")


def test_a_picture_belongs_to_its_record(tmp_path: Path) -> None:
    store = Store(tmp_path)
    inputs = inputs_of(Part("one", "One", "energies", "x:y"), 0, False)
    record = Record(inputs, "done", 1.5, caption="Größe", numbers={"a": 1 / 3}, picture=b"PNG")
    with store.writing():
        store.write("one", record)
        assert store.read("one") == record
        assert store.finished("one", inputs)
        assert not store.finished("one", {**inputs, "seed": 1})
        (store.directory / "one.png").write_bytes(b"PNGs")
        assert store.read("one") is None
        (store.directory / "one.png").unlink()
        assert store.read("one") is None
        store.write("one", record)
        failure = Record(inputs, "failed", 1.0, message="no")
        store.write("one", failure)  # the picture of before is still there
        assert store.read("one") == failure
        assert not store.finished("one", inputs)


def test_leftovers_of_a_killed_write_are_cleared(tmp_path: Path) -> None:
    store = Store(tmp_path)
    store.directory.mkdir()
    leftovers = [tmp_path / ".index.html.abc.part", store.directory / ".one.json.abc.part"]
    for path in leftovers:
        path.write_text("half")
    with store.writing():
        assert not any(path.exists() for path in leftovers)


def test_a_part_depends_on_what_it_shows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "docs" / "study").mkdir(parents=True)
    (tmp_path / "src" / "isthmus").mkdir(parents=True)
    monkeypatch.setattr("isthmus.files.__file__", str(tmp_path / "src" / "isthmus" / "files.py"))
    study = Part("a", "A", "clustering", "study:ranks", "docs/study")
    other = Part("b", "B", "energies", "other:thing")
    before = inputs_of(study, 0, False)
    (tmp_path / "docs" / "study" / "rows.parquet").write_bytes(b"\1")
    source_digest.cache_clear()
    after = inputs_of(study, 0, False)
    assert {name for name in after if after[name] != before[name]} == {"shows"}
    assert "shows" not in inputs_of(other, 0, False)
    source_digest.cache_clear()


def test_any_change_of_a_source_file_changes_the_digest(tmp_path: Path) -> None:
    def digest() -> str:
        source_digest.cache_clear()
        return source_digest(tmp_path)

    (tmp_path / "one.py").write_text("a")
    seen = [digest()]
    (tmp_path / "one.py").write_text("b")
    seen.append(digest())
    (tmp_path / "one.py").rename(tmp_path / "two.py")
    seen.append(digest())
    (tmp_path / "weights").mkdir()
    (tmp_path / "weights" / "model.bin").write_bytes(b"\0")
    seen.append(digest())
    assert len(set(seen)) == 4
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "one.pyc").write_bytes(b"\0")
    assert digest() == seen[-1]
    source_digest.cache_clear()
