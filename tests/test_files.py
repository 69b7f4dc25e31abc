"""Files appear whole or not at all, and errors of reading name the file."""

import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import isthmus as ist
from isthmus.attend import Index
from isthmus.capacity import Certificate
from isthmus.cluster import ClAM
from isthmus.cluster.tabular import TableModel
from isthmus.errors import InvalidInputError, MissingFileError
from isthmus.incontext import Evaluation, pretrained
from isthmus.incontext.storage import Checkpoint
from isthmus.io.files import check_writable, exclusive, replacing, write_atomically
from isthmus.io.reading import reading
from isthmus.paper.attention import load_runs
from isthmus.tables import read_table


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


def test_permissions_are_kept_and_links_are_followed(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    real = write_atomically(tmp_path / "elsewhere" / "file", "old")
    real.chmod(0o600)
    link = tmp_path / "link"
    link.symlink_to(real)
    assert check_writable(link) == link == write_atomically(link, "new")
    assert link.is_symlink()
    assert real.read_text() == "new"
    assert real.stat().st_mode & 0o777 == 0o600
    real.chmod(0o400)
    with replacing(link) as partial:
        partial.write_text("newer")
    assert (real.read_text(), real.stat().st_mode & 0o777) == ("newer", 0o400)


def test_files_of_the_user_are_not_touched(tmp_path: Path) -> None:
    own = {name: tmp_path / name for name in (".out.probe", ".out.part", "out.part", ".lock")}
    for file in own.values():
        file.write_text("mine")
    write_atomically(check_writable(tmp_path / "out"), "result")
    with pytest.raises(InvalidInputError, match="not a lock of isthmus"):
        exclusive(tmp_path).__enter__()
    assert all(file.read_text() == "mine" for file in own.values())


def test_what_is_not_a_file_is_not_replaced(tmp_path: Path) -> None:
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InvalidInputError, match="--save .*pipe is not an ordinary file"):
        check_writable(pipe, "--save")
    with pytest.raises(InvalidInputError, match="pipe is not an ordinary file"):
        write_atomically(pipe, "text")
    assert pipe.is_fifo()


LOADERS: list[Callable[[Path], Any]] = [
    ist.load,
    Index.load,
    Certificate.load,
    ClAM.load,
    TableModel.load,
    Checkpoint.load,
    Evaluation.from_json,
    load_runs,
    pretrained,
    read_table,
]


@pytest.mark.parametrize("load", LOADERS)
def test_a_missing_file_is_one_of_isthmus_and_of_python(load, tmp_path) -> None:
    with pytest.raises(MissingFileError, match="absent") as caught:
        load(tmp_path / "absent.csv")
    assert isinstance(caught.value, FileNotFoundError)
    assert isinstance(caught.value, ValueError)


@pytest.mark.parametrize(
    ("error", "words"),
    [
        (ValueError("two\nlines."), "is not a readable thing: two lines. Do this."),
        (KeyError("name"), "is not a readable thing: KeyError 'name'. Do this."),
        (MemoryError(), "it needs more memory than there is"),
        (OSError(5, "Input/output error"), "is not a readable thing: Input/output error."),
        (RecursionError("maximum recursion depth"), "maximum recursion depth"),
        (EOFError(), "is not a readable thing: EOFError."),
        (ValueError("x" * 1000), "x" * 300 + "..."),
        (InvalidInputError("sigma is negative."), "thing: sigma is negative. Do this."),
    ],
)
def test_any_error_of_a_parser_becomes_a_line(error, words, tmp_path) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(InvalidInputError) as caught,
        reading(tmp_path / "file", "thing", "Do this."),
    ):
        raise error
    assert str(tmp_path / "file") in str(caught.value)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
