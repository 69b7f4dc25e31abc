"""A write that fails: the old file stays, nothing else is left, and one line names the file."""

import contextlib
import resource
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

from isthmus.cli.main import main
from isthmus.cluster import BasinFlow, cluster_file
from isthmus.figures import save as save_figure
from isthmus.incontext.storage import Checkpoint
from isthmus.tables import write_table

RNG = np.random.default_rng(0)
ROWS = np.concatenate([RNG.normal(centre, 1.0, (30, 2)) for centre in (-6, 0, 6)])


@contextlib.contextmanager
def full_disk() -> Iterator[None]:
    """Refuse bytes after the tenth of every file of this process; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


def figure() -> Any:
    from matplotlib.figure import Figure

    return Figure()


def files(place: Path) -> dict[str, bytes]:
    found = (path for path in place.rglob("*") if path.is_file() and path.name != ".lock")
    return {str(path.relative_to(place)): path.read_bytes() for path in found}


# One of each way of writing.
WRITERS: dict[str, Callable[[Path], Any]] = {
    "estimator": lambda path: BasinFlow(random_state=0).fit(ROWS).save(path),
    "checkpoint": lambda path: Checkpoint({}, 1, 0.0, {"w": torch.zeros(99)}, {}, [], []).save(
        path
    ),
    "figure.png": lambda path: save_figure(figure(), path),
    "table.parquet": lambda path: write_table({"a": ROWS[:, 0]}, path),
    "table.csv.gz": lambda path: write_table({"a": ROWS[:, 0]}, path),
    "stream.csv": lambda path: cluster_file(path.with_name("rows.parquet"), path),
    "stream.parquet": lambda path: cluster_file(path.with_name("rows.parquet"), path),
}


@pytest.mark.parametrize("name", WRITERS)
def test_writers_keep_the_old_file_and_name_it(name, tmp_path) -> None:
    pd.DataFrame(ROWS, columns=["a", "b"]).to_parquet(tmp_path / "rows.parquet")
    WRITERS[name](tmp_path / name)  # compiles what it needs, too
    (tmp_path / name).write_bytes(b"old")
    before = files(tmp_path)
    with full_disk(), pytest.raises(OSError, match="too large") as caught:
        WRITERS[name](tmp_path / name)
    assert str(caught.value.filename).endswith(name)
    assert files(tmp_path) == before


def test_a_command_says_so_in_one_line_and_works_again(tmp_path, capsys) -> None:
    run = tmp_path / "run"
    words = f"icl train --preset tiny --updates 2 --batch 2 --quiet --out {run}".split()
    with full_disk():
        assert main(words) == 2
    error = capsys.readouterr().err
    assert error.startswith("isthmus: ")
    assert error.count("\n") == 1
    assert str(run) in error
    assert main(words) == 0
