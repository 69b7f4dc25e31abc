"""Building a report from parts that are quick, fail, crash, hang and are killed."""

import fcntl
import json
import re
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.errors import InvalidInputError
from isthmus.processes import Limits, run_limited
from isthmus.report import Part, Section, build, builder, finished, registry
from isthmus.report.builder import Workspace, changes, digest, source_digests
from isthmus.report.registry import CHAPTERS, PARTS, select

# Each function is a part; it leaves a line about every call beside this module.
FAKES = """
import fcntl, os, random, signal, sys, time
from pathlib import Path
from isthmus.report.section import Finding, Section

HERE = Path(__file__).parent

def note(deed, words=""):
    with (HERE / f"{deed}.ran").open("a") as file:
        file.write(words + "\\n")

def section(seed, full, **more):
    numbers = {"seed": seed, "full": full, "drawn": random.Random(seed).random(), **more}
    found = Finding("It is so.", "held with a correction", "0.5 < 1")
    return Section("A caption.", b"PNG" * 10, numbers, (found,), None, ("It was seen: 1 > 0.",))

def one(seed, full):
    import isthmus.special
    note("one")
    return section(seed, full, threads=os.environ["OMP_NUM_THREADS"])

def two(seed, full):
    note("two")
    return section(seed, full)

def raises(seed, full):
    note("raises")
    raise ValueError("no luck\\nwith <b>this</b>")

def exits(seed, full): sys.exit(3)
def leaves(seed, full): os._exit(0)
def forgets(seed, full): pass
def kills(seed, full): os.kill(os.getpid(), signal.SIGKILL)
def crashes(seed, full): os.abort()
def memory(seed, full): return section(seed, full, much=len(bytearray(2**62)))
def nan(seed, full): return section(seed, full, inner={"mean": float("nan")})

def hangs(seed, full):
    note("hangs")
    with (HERE / "hangs.held").open("w") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        held.write("held")
        held.flush()
        time.sleep(60)

def prepares(seed, full):
    time.sleep(0.5)
    note("prepares")

def refuses(seed, full):
    raise RuntimeError("no data")

def reads(seed, full):
    return section(seed, full, calls=(HERE / "prepares.ran").read_text().count("\\n"))
"""
Make = Callable[..., None]


@pytest.fixture
def place(tmp_path: Path) -> Path:
    (tmp_path / "fake_parts.py").write_text(FAKES)
    return tmp_path


@pytest.fixture
def parts(place: Path, monkeypatch: pytest.MonkeyPatch) -> Make:
    """Return a function that replaces the parts by fakes: the name and function of each."""
    monkeypatch.syspath_prepend(place)

    def make(*names: str, needs: str | None = None, **functions: str) -> None:
        functions = {name: name for name in names} | functions
        made = tuple(
            Part(name, name.title(), "energies", f"fake_parts:{function}", needs)
            for name, function in functions.items()
        )
        monkeypatch.setattr(registry, "PARTS", made)

    return make


def reproduced(place: Path, *more: str) -> tuple[int, dict[str, Any]]:
    """Run the command: the exit code, and the results."""
    out = place / "report"
    code = main(["reproduce", "--out", str(out), "--quiet", *more])
    return code, json.loads((out / "results.json").read_text())


def runs(place: Path, name: str) -> int:
    lines = place / f"{name}.ran"
    return lines.read_text().count("\n") if lines.exists() else 0


def test_a_failing_part_leaves_the_others_alone(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    messages = {
        "raises": "ValueError: no luck with <b>this</b>",
        "exits": "SystemExit: 3",
        "leaves": "without a result",
        "forgets": "returned None, which is not a Section",
        "kills": "SIGKILL",
        "crashes": "Abort",
        "memory": "MemoryError",
        "nan": "numbers.inner.mean is nan",
    }
    parts("one", *messages, "two")
    code, results = reproduced(place, "--jobs", "3")
    assert code == 1
    assert results["summary"]["parts"] == {"done": 2, "failed": 8, "missing": 0}
    for name, message in messages.items():
        assert results["parts"][name]["status"] == "failed"
        assert message in results["parts"][name]["message"], name
    streams = capsys.readouterr()
    assert streams.out == f"{place / 'report' / 'index.html'}\n"
    assert streams.err.count("\n") == 1
    assert "8 parts failed" in streams.err
    assert f"Logs are in {place / 'report' / 'parts'}." in streams.err
    assert all(name in streams.err for name in messages)
    assert "Traceback" in (place / "report" / "parts" / "raises.log").read_text()
    html = (place / "report" / "index.html").read_text()
    assert "no luck with &lt;b&gt;this&lt;/b&gt;" in html
    assert "parts/raises.log" in html


def test_without_a_terminal_there_is_a_line_for_each_part(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts("one", "raises")
    command = ["reproduce", "--out", str(place / "report"), "--jobs", "1"]
    assert main(command) == 1
    first, *lines = capsys.readouterr().err.splitlines()
    assert first == "isthmus: 0 of 2 parts are up to date"
    for line, words in zip(lines, ("one: done", "raises: failed"), strict=False):
        assert re.fullmatch(rf"isthmus: {words} after \d+\.\d s \([12] of 2\)", line)
    assert main([*command, "--only", "one"]) == 0
    assert capsys.readouterr().err == "isthmus: 1 of 1 parts are up to date\n"


def test_a_failed_part_is_tried_again_and_shown_until_then(parts: Make, place: Path) -> None:
    parts("one", "raises")
    assert reproduced(place)[0] == 1
    code, results = reproduced(place, "--only", "one")
    assert code == 0
    assert results["parts"]["raises"]["status"] == "failed"
    assert runs(place, "raises") == 1
    assert reproduced(place)[0] == 1
    assert (runs(place, "one"), runs(place, "raises")) == (1, 2)


def test_a_part_that_hangs_is_ended_at_its_limit(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts("hangs", "one")
    began = time.monotonic()
    code, results = reproduced(place, "--limit", "2", "--jobs", "1", "--quiet")
    assert time.monotonic() - began < 30
    assert code == 1
    assert "Not done after 2 s" in results["parts"]["hangs"]["message"]
    assert results["parts"]["one"]["status"] == "done"
    assert is_free(place / "hangs.held")
    # It printed nothing, so there is no log to read.
    assert not (place / "report" / "parts" / "hangs.log").exists()
    assert "hangs.log" not in (place / "report" / "index.html").read_text()
    errors = capsys.readouterr().err
    assert "hangs: Not done after 2 s" in errors
    assert "Logs" not in errors


def test_finished_parts_are_kept_and_give_the_same_files(parts: Make, place: Path) -> None:
    parts("one", "two")
    assert reproduced(place)[0] == 0
    before = {path: path.read_bytes() for path in (place / "report").rglob("*.*")}
    code, results = reproduced(place)
    assert code == 0
    assert {path: path.read_bytes() for path in (place / "report").rglob("*.*")} == before
    assert (runs(place, "one"), runs(place, "two")) == (1, 1)
    assert results["parts"]["one"]["numbers"]["threads"] == "1"
    assert reproduced(place, "--fresh", "--only", "one")[0] == 0
    assert (runs(place, "one"), runs(place, "two")) == (2, 1)


def test_the_papers_sizes_are_kept_apart_from_quick_ones(parts: Make, place: Path) -> None:
    parts("one")
    assert reproduced(place, "--full")[1]["parts"]["one"]["numbers"]["full"] is True
    assert reproduced(place)[1]["parts"]["one"]["numbers"]["full"] is False
    assert reproduced(place, "--seed", "1")[1]["parts"]["one"]["numbers"]["seed"] == 1
    reproduced(place, "--full")  # not replaced by the runs in between
    assert runs(place, "one") == 3


def test_only_files_that_a_part_imports_make_it_run_again(
    parts: Make, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts("one")
    reproduced(place)
    now = source_digests()
    for file, times in (("capacity/bounds.py", 1), ("report/html/style.css", 1), ("special.py", 2)):
        edited = {**now, file: "edited"}
        monkeypatch.setattr(builder, "source_digests", lambda shown, edited=edited: edited)
        if times == 2:
            (section,) = build_nothing(place)
            assert section.message == "The stored part was made with a different special.py."
        reproduced(place)
        assert runs(place, "one") == times, file


def test_a_part_depends_on_its_own_text(parts: Make, place: Path) -> None:
    parts("one", "two")
    reproduced(place)
    first, second = registry.PARTS
    registry.PARTS = (replace(first, caption="New."), replace(second, title="New"))
    reproduced(place)
    assert (runs(place, "one"), runs(place, "two")) == (2, 1)


def build_nothing(place: Path) -> tuple[Section, ...]:
    """Return the sections of the report as they are stored."""
    return Workspace(place / "report", False, 0).write(()).sections


def test_a_real_part_depends_on_its_chapter_and_not_on_others(tmp_path: Path) -> None:
    # Another use of the server must not become an input of the part.
    run_limited(int, limits=Limits(), warm=partial(import_module, "isthmus.study"))
    build(tmp_path, ["landscapes-1d"])
    stored = Workspace(tmp_path).read("landscapes-1d")
    assert stored is not None
    used = {"report/parts/energies.py", "memories/kde.py", "dynamics/retrieve.py"}
    assert used <= set(stored.inputs["sources"])
    unused = ("capacity/", "incontext/", "study/", "cli/", "report/html/", "report/builder.py")
    unused += ("report/report.toml", "report/parts/capacity.py")
    assert not [path for path in stored.inputs["sources"] if path.startswith(unused)]
    results = json.loads((tmp_path / "results.json").read_text())
    assert set(results["parts"]) == {part.name for part in PARTS}
    # A PNG that is 1600 pixels wide.
    png = (tmp_path / results["parts"]["landscapes-1d"]["figure"]).read_bytes()
    assert int.from_bytes(png[16:20], "big") == 1600
    assert (tmp_path / "index.html").read_text().count("<img") == 1


def test_shown_results_are_inputs_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "src" / "isthmus").mkdir(parents=True)
    monkeypatch.setattr("isthmus.files.__file__", str(tmp_path / "src" / "isthmus" / "files.py"))
    assert "docs/study" not in source_digests(["docs/study", None])
    rows = tmp_path / "docs" / "study" / "rows.parquet"
    rows.parent.mkdir(parents=True)
    seen = []
    for content in (b"\0", b"\1"):
        rows.write_bytes(content)
        seen.append({"sources": source_digests(["docs/study"])})
    assert changes(*seen) == ["docs/study"]
    rows.rename(rows.with_name("other.parquet"))
    assert digest(rows.parent) != seen[1]["sources"]["docs/study"]


def test_a_needed_function_runs_once_and_before_the_parts(parts: Make, place: Path) -> None:
    parts(first="reads", second="reads", needs="fake_parts:prepares")
    code, results = reproduced(place, "--jobs", "2")
    assert code == 0
    assert [part["numbers"]["calls"] for part in results["parts"].values()] == [1, 1]
    reproduced(place)
    assert runs(place, "prepares") == 1  # nothing was left to do


def test_parts_fail_with_what_they_need(parts: Make, place: Path) -> None:
    parts("one", needs="fake_parts:refuses")
    code, results = reproduced(place)
    assert code == 1
    message = results["parts"]["one"]["message"]
    assert message == "fake_parts:refuses failed: RuntimeError: no data"


@pytest.mark.parametrize("damage", ["truncated", "edited", "emptied", "removed", "not ours", "png"])
def test_a_damaged_part_is_made_again(damage: str, parts: Make, place: Path) -> None:
    parts("one")
    results = reproduced(place)[1]
    stored = place / "report" / "parts" / "one.json"
    text = stored.read_text()
    changed = {
        "truncated": text[: len(text) // 2],
        "edited": text.replace('"held with a correction"', '"held"'),
        "emptied": "",
        "not ours": "[1, 2]",
    }
    if damage == "removed":
        stored.unlink()
    elif damage == "png":
        stored.with_suffix(".png").write_bytes(b"PNG")
    else:
        assert changed[damage] != text
        stored.write_text(changed[damage])
    again = reproduced(place)[1]
    assert runs(place, "one") == 2
    assert again["parts"] == results["parts"]


def is_free(held: Path) -> bool:
    """Return whether the process that holds the file is gone, or goes within seconds."""
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
def test_a_stopped_run_ends_its_parts_and_continues_later(
    number: signal.Signals, parts: Make, place: Path
) -> None:
    out = place / "report"
    script = (
        f"import signal, sys; sys.path.insert(0, {str(place)!r})\n"
        # A shell has background jobs ignore the signal.
        "signal.signal(signal.SIGINT, signal.default_int_handler)\n"
        "from isthmus.report import Part, registry\nfrom isthmus.cli.main import main\n"
        "registry.PARTS = (Part('one', 'One', 'energies', 'fake_parts:one'), "
        "Part('hangs', 'Hangs', 'energies', 'fake_parts:hangs'))\n"
        f"sys.exit(main(['reproduce', '--jobs', '1', '--quiet', '--out', {str(out)!r}]))"
    )
    process = subprocess.Popen([sys.executable, "-c", script], stderr=subprocess.PIPE, text=True)
    held, deadline = place / "hangs.held", time.monotonic() + 60
    while not (held.exists() and held.read_text() == "held"):
        assert time.monotonic() < deadline, process.communicate()
        time.sleep(0.05)
    process.send_signal(number)
    errors = process.communicate(timeout=30)[1]
    assert is_free(held)
    if number == signal.SIGINT:
        assert process.returncode == 130
        assert errors == "isthmus: interrupted; run the same command to continue\n"
    else:
        assert process.returncode == -signal.SIGKILL
    assert not (out / "index.html").exists()
    parts("one", hangs="two")
    assert reproduced(place)[0] == 0
    assert (runs(place, "one"), runs(place, "two")) == (1, 1)
    assert not list(out.rglob(".*.part"))


def test_the_page_says_what_is_missing(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts("one", other="two", third="one")
    code, results = reproduced(place, "--only", "third", "one", "--json")
    assert code == 0
    status = {name: part["status"] for name, part in results["parts"].items()}
    assert status == {"one": "done", "other": "missing", "third": "done"}
    printed = json.loads(capsys.readouterr().out)
    assert printed["parts"] == {"done": 2, "failed": 0, "missing": 1}
    found = {verdict: count for verdict, count in printed["verdicts"].items() if count}
    assert found == {"held with a correction": 2}
    html = (place / "report" / "index.html").read_text()
    assert "1 of 3 parts not made yet" in html
    assert '<a href="#other">Other</a> (missing)' in html
    assert html.count("It was seen: 1 &gt; 0.") == 2
    assert results["parts"]["one"]["observations"] == ["It was seen: 1 > 0."]
    results = reproduced(place, "--only", "other", "--seed", "5")[1]
    assert "different seed" in results["parts"]["one"]["message"]
    capsys.readouterr()
    listed = ["reproduce", "--list", "--seed", "5", "--out", str(place / "report")]
    assert main(listed) == 0
    assert capsys.readouterr().out == "one    energies\nother  energies  done\nthird  energies\n"
    assert main([*listed, "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[1] == {
        "name": "other",
        "chapter": "energies",
        "done": True,
    }


def test_two_runs_do_not_share_a_directory(
    parts: Make, place: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    parts("one")
    with Workspace(place / "report", full=True).writing():
        assert main(["reproduce", "--out", str(place / "report")]) == 2
    streams = capsys.readouterr()
    assert streams.err.count("\n") == 1
    assert "Another run" in streams.err
    assert runs(place, "one") == 0
    leftover = place / "report" / "parts" / f".one.json.{'0a' * 8}.part"
    own = place / "report" / ".download.part"
    leftover.write_text("half")
    own.write_text("a user's file")
    assert reproduced(place)[0] == 0
    assert not leftover.exists()
    assert own.exists()


def test_results_are_the_same_for_any_number_of_jobs(parts: Make, place: Path) -> None:
    parts(**{f"p{number}": "one" for number in range(4)})
    found = []
    for jobs in ("1", "4"):
        results = reproduced(place, "--jobs", jobs, "--fresh", "--seed", "3")[1]
        assert set(results.pop("seconds")) == set(results["parts"])
        found.append(json.dumps(results))
    assert found[0] == found[1]


def test_build_is_the_same_from_python(parts: Make, place: Path) -> None:
    parts("one", "raises")
    report = build(place / "out", seed=2, jobs=2)
    assert report.page.exists()
    assert report.results.exists()
    assert [section.name for section in report.failed] == ["raises"]
    assert report.summary["parts"] == {"done": 1, "failed": 1, "missing": 0}
    assert report.sections[0].numbers["seed"] == 2
    assert finished(place / "out", seed=2) == {"one": True, "raises": False}
    assert finished(place / "out") == {"one": False, "raises": False}
    with pytest.raises(InvalidInputError, match="limit"):
        build(place / "out", limit=0)


def test_parts_have_unique_names_and_chapters_in_order() -> None:
    assert len({part.name for part in PARTS}) == len(PARTS)
    order = [*CHAPTERS]
    assert list(dict.fromkeys(part.chapter for part in PARTS)) == order
    assert all(part.title and "_" not in part.title for part in PARTS)


def test_a_chapter_selects_its_parts_and_unknown_names_are_refused() -> None:
    assert [part.name for part in select(["overview", "errata"])] == ["hero", "errata"]
    assert [part.name for part in select("hero")] == ["hero"]
    assert select(None) == [*PARTS]
    with pytest.raises(InvalidInputError, match=r"'nothing'\. Chapters: overview.*hero"):
        select(["nothing", "hero"])
