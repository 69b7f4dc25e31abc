"""Run command lines in an empty directory."""

import shlex
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from isthmus.cli.main import main

Run = Callable[..., Any]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Run:
    """Run ``isthmus LINE`` in `tmp_path`, assert its exit code, and return what it prints."""
    monkeypatch.chdir(tmp_path)

    def command(line: str, *words: object, code: int = 0) -> Any:
        assert main([*shlex.split(line), *map(str, words)]) == code
        return capsys.readouterr()

    return command
