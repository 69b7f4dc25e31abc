"""`isthmus reproduce`: the whole report, and options that are refused."""

import json
import re
from pathlib import Path

import pytest

from isthmus.cli.main import main
from isthmus.report import PARTS


@pytest.mark.slow
@pytest.mark.timeout(1800)
def test_all_parts_are_done(tmp_path: Path) -> None:
    assert main(["reproduce", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["summary"]["parts"] == {"done": len(PARTS), "failed": 0, "missing": 0}
    assert sum(results["summary"]["verdicts"].values()) > 0


def test_help_says_what_exit_code_1_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    (line,) = re.findall(r"^  1  .*", capsys.readouterr().out, re.MULTILINE)
    assert "a bug in isthmus" in line
    assert "a part that failed" in line


@pytest.mark.parametrize("out", ["taken", "taken/inside"])
def test_an_impossible_directory_is_one_clear_line(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert main(["reproduce", "--out", str(tmp_path / out)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert str(tmp_path / out) in streams.err
    assert (tmp_path / "taken").read_text() == "mine"


def test_a_directory_that_may_not_be_written_to_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["reproduce", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "-1"],
        ["--seed", "1.5"],
        ["--seed", str(2**32)],
        ["--jobs", "0"],
        ["--limit", "0"],
        ["--limit", "nan"],
        ["--out", ""],
        ["--only"],
        ["--only", ""],
        ["everything"],
    ],
)
def test_options_that_make_no_sense_are_one_clear_line(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *options]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert not list(tmp_path.iterdir())
