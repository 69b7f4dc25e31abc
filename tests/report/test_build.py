"""Building a report from parts that are quick, fail, hang and are stopped."""

import json
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main
from isthmus.errors import InvalidInputError
from isthmus.paper.report import registry
from isthmus.paper.report.registry import PARTS, select
from isthmus.report import Part

# Each function is a part; it leaves a line about every call beside this module.
FAKES = """
import os, random, time
from pathlib import Path
from isthmus.paper.report.section import Finding, Section

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

def forgets(seed, full): pass
def nan(seed, full): return section(seed, full, inner={"mean": float("nan")})

def hangs(seed, full):
    time.sleep(60)
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

    def make(*names: str, **functions: str) -> None:
        functions = {name: name for name in names} | functions
        made = tuple(
            Part(name, name.title(), "energies", f"fake_parts:{function}")
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
        "forgets": "returned None, which is not a Section",
        "nan": "numbers.inner",
    }
    parts("one", *messages, "two")
    code, results = reproduced(place, "--jobs", "3")
    assert code == 1
    assert results["summary"]["parts"] == {"done": 2, "failed": 3, "missing": 0}
    for name, message in messages.items():
        assert results["parts"][name]["status"] == "failed"
        assert message in results["parts"][name]["message"], name
    streams = capsys.readouterr()
    assert streams.out == f"{place / 'report' / 'index.html'}\n"
    assert streams.err.count("\n") == 1
    assert "Traceback" in (place / "report" / "parts" / "raises.log").read_text()
    html = (place / "report" / "index.html").read_text()
    assert "no luck with &lt;b&gt;this&lt;/b&gt;" in html
    assert "parts/raises.log" in html


def test_a_part_that_hangs_is_ended_at_its_limit(parts: Make, place: Path) -> None:
    parts("hangs", "one")
    began = time.monotonic()
    code, results = reproduced(place, "--limit", "8", "--jobs", "1", "--quiet")
    assert time.monotonic() - began < 30
    assert code == 1
    assert results["parts"]["hangs"]["status"] == "failed"
    assert results["parts"]["one"]["status"] == "done"


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


def test_a_damaged_part_is_made_again(parts: Make, place: Path) -> None:
    parts("one")
    results = reproduced(place)[1]
    stored = place / "report" / "parts" / "one.json"
    text = stored.read_text()
    stored.write_text(text[: len(text) // 2])
    assert reproduced(place)[1]["parts"] == results["parts"]
    stored.with_suffix(".png").unlink()
    assert reproduced(place)[1]["parts"] == results["parts"]
    assert runs(place, "one") == 3


def test_a_chapter_selects_its_parts_and_unknown_names_are_refused() -> None:
    assert [part.name for part in select(["overview", "errata"])] == ["hero", "errata"]
    assert [part.name for part in select("hero")] == ["hero"]
    assert select(None) == [*PARTS]
    with pytest.raises(InvalidInputError, match="nothing"):
        select(["nothing", "hero"])
