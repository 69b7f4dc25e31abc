"""`isthmus bench`: finds the benchmarks of a clone and runs them."""

from pathlib import Path

import pytest

from isthmus.cli import bench
from isthmus.cli.main import main

SCRIPT = """import sys
if __name__ == "__main__":
    sys.exit(int(sys.argv[2]) if sys.argv[1] == "--code" else 1)
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "attend.py").write_text(SCRIPT)
    (tmp_path / "shared.py").touch()
    monkeypatch.setattr(bench, "shipped", lambda place: tmp_path)
    return tmp_path


def test_scripts_are_listed(folder, capsys) -> None:
    for arguments in (["bench"], ["bench", "--list"]):
        assert main(arguments) == 0
        assert capsys.readouterr().out.splitlines()[1:] == ["attend"]


@pytest.mark.usefixtures("folder")
def test_a_script_gets_its_arguments_and_sets_the_exit_code() -> None:
    assert main(["bench", "attend", "--code", "7"]) == 7


@pytest.mark.usefixtures("folder")
def test_unknown_names_are_refused(capsys) -> None:
    assert main(["bench", "atend"]) == 2
    assert "attend" in capsys.readouterr().err
