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
from isthmus.capacity.certificate import Certificate
from isthmus.incontext import ICLEBM
from isthmus.incontext.runs import Checkpoint
from isthmus.index.index import Index
from isthmus.io.files import PARTIAL_NAMES, exclusive
from isthmus.study import Store

Kill = Callable[..., bool]
Finish = Callable[..., float]
# The moments of a kill are a share of the time of a whole run, from a fixed seed.
TWO_OR_TWENTY = pytest.mark.parametrize("kills", [2, pytest.param(20, marks=pytest.mark.slow)])
TWENTY = 20


def moments(kills: int, seconds: float) -> list[float]:
    chance = random.Random(kills)
    return [chance.random() * seconds for _ in range(kills)]


@pytest.fixture
def table(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(centre, 1.0, (60, 3)) for centre in (-6, 0, 6)])
    rows[::7, 1] = np.nan
    path = tmp_path / "data.csv"
    pd.DataFrame(rows, columns=list("abc")).to_csv(path, index=False)
    return path


@TWO_OR_TWENTY
@pytest.mark.parametrize("command", ["cluster", "complete"])
def test_outputs_are_the_old_files_or_the_new_ones(
    command: str, kills: int, table: Path, tmp_path: Path, kill: Kill, finish: Finish
) -> None:
    out = tmp_path / "out"
    out.mkdir()
    words: dict[str, list[Any]] = {
        "cluster": ["-o", out / "rows.csv", "--save", out / "model", "--plot", out / "map.png"],
        "complete": ["-o", out / "rows.csv"],
    }
    argv = [command, table, *words[command], "--quiet"]
    seconds = finish(argv)
    new = {path.name: path.read_bytes() for path in out.iterdir()}
    assert len(new) == len(words[command]) // 2
    for moment in moments(kills, seconds):
        for name in new:
            (out / name).write_bytes(b"old")
        killed = kill(moment, argv)
        for name, content in new.items():
            assert (out / name).read_bytes() in ((b"old", content) if killed else (content,))
        for leftover in out.glob(PARTIAL_NAMES):
            leftover.unlink()
        assert {path.name for path in out.iterdir()} == set(new)
    finish(argv)
    assert {path.name: path.read_bytes() for path in out.iterdir()} == new


def fit_to_continue(
    argv: list[Any],
    script: str | None,
    kills: int,
    folders: Callable[[int], Path],
    state: Callable[[Path], Any],
    check: Callable[[Path], None],
    kill: Kill,
    finish: Finish,
) -> None:
    """Kill runs that continue, in one folder until a run ends, then in the next."""
    given = [] if script is None else [script]
    seconds = finish([*argv, folders(0)], *given)
    whole, place = state(folders(0)), 1
    for moment in moments(kills, seconds):
        killed = kill(moment, [*argv, folders(place)], *given)
        if folders(place).exists():
            check(folders(place))
        if not killed:
            assert state(folders(place)) == whole
            place += 1
    finish([*argv, folders(place)], *given)
    assert state(folders(place)) == whole
    assert not list(folders(place).rglob(PARTIAL_NAMES))


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


@TWO_OR_TWENTY
def test_training_continues_to_the_same_bits(
    kills: int, tmp_path: Path, kill: Kill, finish: Finish
) -> None:
    words = "icl train --preset tiny --updates 25 --batch 4 --quiet --out"
    folders = lambda number: tmp_path / str(number)  # noqa: E731
    fit_to_continue(
        words.split(), None, kills, folders, state_of_training, check_training, kill, finish
    )


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_no_fit_of_a_study_is_lost_or_done_twice(
    tmp_path: Path, kill: Kill, finish: Finish
) -> None:
    words = "study run --datasets iris --methods KMeans,DP-means --seeds 3 --entries 2 --quiet -o"
    changing = ["seconds", "peak_megabytes", "finished"]
    known: dict[Path, dict[str, float]] = {}

    def check(folder: Path) -> None:
        rows = {row["id"]: row["finished"] for row in Store(folder).read()}
        assert rows.items() >= known.get(folder, {}).items()
        known[folder] = rows

    def state(folder: Path) -> Any:
        check(folder)
        raw = pd.read_parquet(folder / "results")
        assert raw["id"].is_unique
        return raw.sort_values("id").drop(columns=changing).to_csv(index=False)

    folders = lambda number: tmp_path / str(number)  # noqa: E731
    fit_to_continue(words.split(), None, TWENTY, folders, state, check, kill, finish)


@pytest.mark.slow
@pytest.mark.timeout(1200)
def test_a_report_continues_to_the_same_page(tmp_path: Path, kill: Kill, finish: Finish) -> None:
    words = "reproduce --only landscapes-1d hopfield-equivalence --quiet --out"

    def check(folder: Path) -> None:
        for path in folder.rglob("*.json"):
            json.loads(path.read_text())

    def state(folder: Path) -> Any:
        results = json.loads((folder / "results.json").read_text())
        figures = {path.name: path.read_bytes() for path in sorted(folder.rglob("*.png"))}
        assert results["summary"]["parts"]["done"] == 2
        assert (folder / "index.html").read_text().rstrip().endswith("</html>")
        return results["parts"], figures

    folders = lambda number: tmp_path / str(number)  # noqa: E731
    fit_to_continue(words.split(), None, TWENTY, folders, state, check, kill, finish)


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
    "certificate": """
        import numpy as np, isthmus as ist
        from isthmus.capacity import certify
        kept = [certify(ist.GaussianKDE(np.arange(40.0)[:, None] * n, 0.1)) for n in (9, 10)]
        for count in range(30):
            kept[count % 2].save(f"{argv[0]}/file.npz")
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
    "certificate": lambda place: Certificate.load(place / "file.npz"),
    "in-context model": lambda place: ICLEBM.from_pretrained(place / "file"),
    "dataset": lambda place: datasets.load("iris", place, download_if_missing=False),
}


@TWO_OR_TWENTY
@pytest.mark.parametrize("kind", WRITERS)
def test_whatever_is_saved_can_be_read(
    kind: str, kills: int, tmp_path: Path, kill: Kill, finish: Finish
) -> None:
    script = textwrap.dedent(WRITERS[kind])
    seconds = finish([tmp_path], script)
    READERS[kind](tmp_path)
    for moment in moments(kills, seconds):
        kill(moment, [tmp_path], script)
        READERS[kind](tmp_path)
    finish([tmp_path], script)
