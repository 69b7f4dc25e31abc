"""Every loader names a missing file in an error of isthmus that is a FileNotFoundError too."""

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
from isthmus.io.reading import reading
from isthmus.paper.attention import load_runs
from isthmus.tables import read_table

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
