"""SIGKILL at random moments: files are whole, results are those of a run that was left alone.

`kill` also asserts that no process outlives the one that was killed.
"""

import json
import random
import textwrap
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest

import isthmus as ist
from isthmus import datasets
from isthmus.incontext import ICLEBM
from isthmus.incontext.storage import Checkpoint
from isthmus.index.index import Index
from isthmus.io.files import exclusive
from isthmus.study import Store

Kill = Callable[..., bool]
Finish = Callable[..., float]
pytestmark = [pytest.mark.slow, pytest.mark.timeout(1800)]


def moments(seconds: float) -> list[float]:
    """Return twenty moments of a kill: shares of the time of a whole run, from a fixed seed."""
    chance = random.Random(20)
    return [chance.random() * seconds for _ in range(20)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(centre, 1.0, (60, 3)) for centre in (-6, 0, 6)])
    rows[::7, 1] = np.nan
    path = tmp_path / "data.csv"
    pd.DataFrame(rows, columns=list("abc")).to_csv(path, index=False)
    return path


def test_outputs_are_the_old_files_or_the_new_ones(table, tmp_path, kill, finish) -> None:
    out = tmp_path / "out"
    out.mkdir()
    files = ["-o", out / "rows.csv", "--save", out / "model", "--plot", out / "map.png"]
    argv = ["cluster", table, *files, "--quiet"]
    seconds = finish(argv)
    new = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(new) == 3
    for moment in moments(seconds):
        for name in new:
            (out / name).write_bytes(b"old")
        killed = kill(moment, argv)
        for name, content in new.items():
            assert (out / name).read_bytes() in ((b"old", content) if killed else (content,))
        for leftover in out.glob(".*.part"):
            leftover.unlink()
        assert {path.name for path in out.iterdir()} == set(new)
    finish(argv)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == new


def fit_to_continue(
    words: str,
    place: Path,
    state: Callable[[Path], Any],
    check: Callable[[Path], None],
    kill: Kill,
    finish: Finish,
) -> None:
    """Kill runs that continue, in one folder until a run ends, then in the next."""
    argv, folder = words.split(), place / "0"
    seconds = finish([*argv, folder])
    whole, number = state(folder), 1
    for moment in moments(seconds):
        folder = place / str(number)
        killed = kill(moment, [*argv, folder])
        if folder.exists():
            check(folder)
        if not killed:
            assert state(folder) == whole
            number += 1
    folder = place / str(number)
    finish([*argv, folder])
    assert state(folder) == whole


def state_of_training(folder: Path) -> Any:
    checkpoint = Checkpoint.load(folder / "checkpoint.pt")
    lines = (folder / "metrics.jsonl").read_text().splitlines()
    rows = [json.loads(line) for line in lines]
    columns = pd.read_csv(folder / "metrics.csv").drop(columns="cpu_seconds")
    return (
        (folder / "model" / "model.safetensors").read_bytes(),
        (folder / "model" / "config.json").read_text(),
        {name: value.numpy().tobytes() for name, value in checkpoint.model.items()},
        repr(checkpoint.optimizer),
        [{name: value for name, value in row.items() if name != "cpu_seconds"} for row in rows],
        columns.to_csv(),
    )


def check_training(folder: Path) -> None:
    if (folder / "checkpoint.pt").exists():
        Checkpoint.load(folder / "checkpoint.pt")
    if (folder / "model" / "model.safetensors").exists():
        ICLEBM.from_pretrained(folder / "model")
    with exclusive(folder):
        pass


def test_training_continues_to_the_same_bits(tmp_path, kill, finish) -> None:
    words = "icl train --preset tiny --updates 25 --batch 4 --quiet --out"
    fit_to_continue(words, tmp_path, state_of_training, check_training, kill, finish)


def test_no_fit_of_a_study_is_lost_or_done_twice(tmp_path, kill, finish) -> None:
    words = "study run --datasets iris --methods KMeans,DP-means --seeds 3 --entries 2 --quiet -o"
    changing = ["seconds", "peak_megabytes", "finished"]
    known: dict[Path, dict[str, float]] = {}

    def check(folder: Path) -> None:
        rows = {row["id"]: row["finished"] for row in Store(folder).read()}
        assert rows.items() >= known.get(folder, {}).items()
        known[folder] = rows

    def state(folder: Path) -> Any:
        check(folder)
        raw = pd.DataFrame(Store(folder).read(everything=True))
        assert raw["id"].is_unique
        return raw.sort_values("id").drop(columns=changing).to_csv(index=False)

    fit_to_continue(words, tmp_path, state, check, kill, finish)


# Each of these writes two files in turn until it is killed, or has done so 30 times.
WRITERS = {
    "index": """
        import torch
        from isthmus.index.index import Index
        kept = [Index(torch.randn(3000, 8, generator=torch.Generator().manual_seed(n)))
                for n in (0, 1)]
        for count in range(30):
            kept[count % 2].save(f"{argv[0]}/file")
        """,
    "energy": """
        import torch, isthmus as ist
        kept = [ist.ModernHopfield(torch.full((2000, 8), float(n)), 1.0) for n in (0, 1)]
        for count in range(30):
            ist.save(kept[count % 2], f"{argv[0]}/file")
        """,
    "in-context model": """
        from isthmus.incontext import ICLEBM, ICLEBMConfig
        kept = [ICLEBM(ICLEBMConfig(layers=n, heads=2, width=64)) for n in (1, 2)]
        for count in range(30):
            kept[count % 2].save_pretrained(f"{argv[0]}/file")
        """,
    "dataset": """
        from isthmus import datasets
        X, y = datasets.load("iris")
        for count in range(30):
            datasets.store("iris", X, y, data_home=argv[0])
        """,
}
READERS: dict[str, Callable[[Path], Any]] = {
    "index": lambda place: Index.load(place / "file"),
    "energy": lambda place: ist.load(place / "file"),
    "in-context model": lambda place: ICLEBM.from_pretrained(place / "file"),
    "dataset": lambda place: datasets.load("iris", place, download_if_missing=False),
}


@pytest.mark.parametrize("kind", WRITERS)
def test_whatever_is_saved_can_be_read(kind, tmp_path, kill, finish) -> None:
    script = textwrap.dedent(WRITERS[kind])
    seconds = finish([tmp_path], script)
    READERS[kind](tmp_path)
    for moment in moments(seconds):
        kill(moment, [tmp_path], script)
        READERS[kind](tmp_path)
    finish([tmp_path], script)
