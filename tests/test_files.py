"""Files appear whole or not at all."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from isthmus.errors import RunInProgressError
from isthmus.files import exclusive, write_atomically


@pytest.mark.parametrize(
    ("content", "written"), [("é\n", "é\n".encode()), (b"\x00\xff", b"\x00\xff")]
)
def test_text_and_bytes_are_written_as_they_are(
    tmp_path: Path, content: str | bytes, written: bytes
) -> None:
    path = write_atomically(str(tmp_path / "file"), content)
    assert path == tmp_path / "file"
    assert path.read_bytes() == written
    assert [each.name for each in tmp_path.iterdir()] == ["file"]


def test_a_file_is_replaced_and_others_may_read_it_as_the_umask_says(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_atomically(path, "old")
    write_atomically(path, "new")
    assert path.read_text() == "new"
    mask = os.umask(0)
    os.umask(mask)
    assert path.stat().st_mode & 0o777 == 0o666 & ~mask


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_write_that_fails_leaves_the_old_file_and_nothing_else(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    path = write_atomically(tmp_path / "file", "old")

    def full(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, step, full)
    with pytest.raises(OSError, match="disk full"):
        write_atomically(path, "new")
    assert [each.name for each in tmp_path.iterdir()] == ["file"]
    assert path.read_text() == "old"


def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError, match="nowhere is not a folder"):
        write_atomically(tmp_path / "nowhere" / "file", "text")


def test_a_directory_is_locked_until_the_holder_ends_however_it_ends(tmp_path: Path) -> None:
    code = f"""
import sys
from isthmus.files import exclusive
with exclusive({str(tmp_path)!r}):
    print("held", flush=True)
    sys.stdin.read()
"""
    with subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as other:
        assert other.stdout is not None
        assert other.stdout.readline() == b"held\n"
        with pytest.raises(RunInProgressError, match="choose another directory"):
            exclusive(tmp_path).__enter__()
        other.kill()
        other.wait()
    for _ in range(2):
        with exclusive(tmp_path):
            pass
