"""A disk that fills up: the old file stays, nothing else is left, and one line names the file."""

import contextlib
import resource
import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
import torch

import isthmus as ist
from isthmus import datasets
from isthmus.capacity import certify
from isthmus.cli.main import main
from isthmus.cluster import BasinFlow, cluster_file
from isthmus.figures import save as save_figure
from isthmus.incontext import ICLEBM, ICLEBMConfig, TrainingSettings, train
from isthmus.incontext.runs import Checkpoint
from isthmus.index.index import Index
from isthmus.study import Store
from isthmus.study.store import write_plan
from isthmus.tables import write_table

MEGABYTE = 2**20
Full = Callable[[], AbstractContextManager[None]]
RNG = np.random.default_rng(0)
ROWS = np.concatenate([RNG.normal(centre, 1.0, (30, 2)) for centre in (-6, 0, 6)])
GAPS = np.where(np.arange(len(ROWS))[:, None] % 9 == 0, [np.nan, 1.0], ROWS)
POINTS = torch.tensor(ROWS)


@pytest.fixture(params=["1 MB disk", "limited files"])
def disk(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Path, Full]]:
    """A folder, and a context in which it, or any file of this process, takes no more."""
    place = tmp_path / "disk"
    place.mkdir()
    if request.param == "limited files":
        yield place, limited_files
        return
    mount = shutil.which("mount")
    options = ["-t", "tmpfs", "-o", f"size={MEGABYTE}", "none", str(place)]
    if mount is None or subprocess.run([mount, *options], capture_output=True).returncode:
        pytest.skip("mounting a file system is not permitted here")
    try:
        yield place, lambda: filled(place)
    finally:
        subprocess.run(["umount", str(place)], check=True)


@contextlib.contextmanager
def limited_files() -> Iterator[None]:
    """Refuse bytes after the tenth of every file; Python ignores the signal."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (10, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)


@contextlib.contextmanager
def filled(place: Path) -> Iterator[None]:
    ballast = place / "ballast"
    with ballast.open("wb", buffering=0) as file, contextlib.suppress(OSError):
        while True:
            file.write(b"0" * 4096)
    try:
        yield
    finally:
        ballast.unlink()


def files(place: Path) -> dict[str, bytes]:
    """Return the files of a folder, without locks, which are empty."""
    found = {str(path.relative_to(place)): path for path in place.rglob("*") if path.is_file()}
    return {
        name: path.read_bytes()
        for name, path in found.items()
        if path.name not in ("ballast", ".lock")
    }


def figure() -> Any:
    from matplotlib.figure import Figure

    drawn = Figure()
    drawn.add_subplot().plot([0, 1])
    return drawn


def stored_checkpoint(path: Path) -> None:
    Checkpoint({}, 1, 0.0, {"w": torch.zeros(99)}, {}, [], []).save(path)


def append_to_study(path: Path) -> None:
    fields = {"dataset": "iris", "method": "KMeans", "status": "ok", "entry": 0, "seed": 0}
    (path.parent / "results").mkdir(exist_ok=True)
    Store(path.parent).append([{**fields, "id": "a", "finished": 0.0}])


def evaluation() -> Any:
    from isthmus.incontext import evaluate
    from isthmus.incontext.priors import prior

    model = ICLEBM(ICLEBMConfig(layers=1, heads=2, width=8, box=5.5))
    return evaluate(model, prior("compact"), contexts=(0,), tasks=1, points=1, references=())


def cluster_stream(path: Path) -> None:
    source = path.with_name("rows.parquet")
    assert source.exists()
    cluster_file(source, path)


# Each writes the file of the given path, or those named after the colon.
WRITERS: dict[str, Callable[[Path], Any]] = {
    "estimator": lambda path: BasinFlow(random_state=0).fit(ROWS).save(path),
    "energy": lambda path: ist.save(ist.ModernHopfield(POINTS, 1.0), path),
    "index": lambda path: Index(POINTS).save(path),
    "certificate.npz": lambda path: certify(ist.GaussianKDE(ROWS, 0.1)).save(path),
    "figure.png": lambda path: save_figure(figure(), path),
    "model: model.safetensors": lambda path: ICLEBM(
        ICLEBMConfig(layers=1, heads=2, width=8, box=5.5)
    ).save_pretrained(path.parent),
    "checkpoint": stored_checkpoint,
    "scores.json": lambda path: evaluation().to_json(path),
    "plan: plan.json": lambda path: write_plan(path.parent, {("a", "b"): {"c": 1}}),
    "results: .parquet": append_to_study,
    "dataset: iris.npz.sha256": lambda path: datasets.store(
        "iris", *datasets.load("iris"), data_home=path.parent
    ),
    **{
        f"table.{suffix}": lambda path: write_table({"a": ROWS[:, 0], "b": ROWS[:, 1]}, path)
        for suffix in ("csv", "csv.gz", "parquet", "feather", "xlsx", "json", "jsonl", "npz")
    },
    "stream.csv": cluster_stream,
    "stream.parquet": cluster_stream,
}


@pytest.mark.parametrize("kind", WRITERS)
def test_writers_keep_the_old_file_and_name_it(kind: str, disk: tuple[Path, Full]) -> None:
    place, full = disk
    name = kind.partition(": ")[2] or kind
    if name == "table.xlsx" and full is limited_files:
        pytest.skip("openpyxl leaves its temporary file to the garbage collector, which complains")
    pd.DataFrame(ROWS, columns=["a", "b"]).to_parquet(place / "rows.parquet")
    if not name.startswith("."):
        (place / name).write_bytes(b"old")
    before = files(place)
    with full(), pytest.raises(OSError, match=r"(No space left on device|too large): '.*'") as told:
        WRITERS[kind](place / name)
    assert str(told.value.filename).endswith(name)
    assert files(place) == before
    WRITERS[kind](place / name)
    assert files(place).get(name) != b"old"


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "data.csv"
    pd.DataFrame(GAPS, columns=["a", "b"]).to_csv(path, index=False)
    pd.DataFrame(ROWS, columns=["a", "b"]).to_csv(tmp_path / "whole.csv", index=False)
    return path


COMMANDS = {
    "rows.csv": "cluster {data} -o {out}",
    "model": "cluster {data} --save {out} -o {elsewhere}",
    "map.png": "cluster {data} --plot {out} -o {elsewhere}",
    "completed.csv": "complete {data} -o {out}",
    "certified.csv": "certify {whole} -o {out}",
    "certified.png": "certify {whole} --plot {out}",
    "drawn.csv": "sample {whole} -n 20 -o {out}",
    "scored.csv": "density {whole} -o {out}",
    "judged.json": "icl eval --tasks 1 --points 2 --contexts 0 --references bayes -o {out}",
    "points.csv": "icl sample -n 3 --steps 2 -o {out}",
    "energy.png": "icl plot --tasks 1 --contexts 0 -o {out}",
    "table.txt": "study table {study} -o {out}",
}


@pytest.fixture(scope="module")
def study(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A study of one fit."""
    place = tmp_path_factory.mktemp("study")
    row = {"id": "a", "dataset": "iris", "method": "KMeans", "kind": "K given", "status": "ok"}
    shape = {"n_rows": 150, "n_available": 150, "n_features": 4, "n_classes": 3, "n_clusters": 3}
    numbers = {"entry": 0, "seed": 0, "finished": 0.0, "ari": 0.7, "silhouette": 0.5}
    (place / "results").mkdir()
    Store(place).append([{**row, **shape, **numbers, "parameters": "{}"}])
    write_plan(place, {("iris", "KMeans"): {"a": 0}})
    return place


@pytest.mark.parametrize("name", COMMANDS)
def test_commands_say_so_in_one_line(
    name: str,
    disk: tuple[Path, Full],
    data: Path,
    study: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    place, full = disk
    words = {"data": data, "whole": tmp_path / "whole.csv", "study": study, "out": place / name}
    if full is limited_files and "{elsewhere}" in COMMANDS[name]:
        words["elsewhere"] = Path("-")  # no other file can be written either
    command = COMMANDS[name].format(**{"elsewhere": tmp_path / "elsewhere.csv", **words}).split()
    (place / name).write_bytes(b"old")
    with full():
        code = main([*command, *["--quiet"] * (command[0] != "study")])
    errors = capsys.readouterr().err
    assert code == 2, errors
    assert errors.startswith("isthmus: ")
    assert errors.count("\n") == 1
    assert name in errors
    assert "bug" not in errors
    assert files(place) == {name: b"old"}


SMALL = TrainingSettings(
    model=ICLEBMConfig(layers=1, heads=2, width=8, box=5.5), updates=4, batch=4, length=5
)


def test_training_that_ran_out_of_space_continues_to_the_same_end(disk: tuple[Path, Full]) -> None:
    place, full = disk
    run, whole = place / "run", train(SMALL, log_every=1)
    rows: list[Any] = []

    def stop(row: dict[str, float]) -> None:
        rows.append(row)
        if len(rows) == 2:
            stack.enter_context(full())

    with contextlib.ExitStack() as stack, pytest.raises(OSError, match=r": '.*run/\w+\.\w+'"):
        train(SMALL, run, checkpoint_every=1, log_every=1, report=stop)
    assert Checkpoint.load(run / "checkpoint.pt").updates == 1
    assert not list(run.rglob("*.part"))
    model = train(SMALL, run, checkpoint_every=1, log_every=1).model
    for found, expected in zip(model.parameters(), whole.model.parameters(), strict=True):
        assert torch.equal(found, expected)
    assert len((run / "metrics.jsonl").read_text().splitlines()) == 4


def test_a_run_of_the_command_line_names_the_file(
    disk: tuple[Path, Full], capsys: pytest.CaptureFixture[str]
) -> None:
    place, full = disk
    words = "icl train --preset tiny --updates 2 --batch 2 --quiet --out"
    with full():
        assert main([*words.split(), str(place / "run")]) == 2
    error = capsys.readouterr().err
    assert error.startswith("isthmus: ")
    assert error.count("\n") == 1
    assert "/run/" in error
    assert main([*words.split(), str(place / "run")]) == 0


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "file"),
    [
        ("study run --datasets iris --methods KMeans --seeds 1 --quiet -o", "plan.json"),
        ("reproduce --only hopfield-equivalence --quiet --out", "hopfield-equivalence"),
    ],
)
def test_long_runs_stop_and_continue_when_there_is_space(
    words: str, file: str, disk: tuple[Path, Full], capsys: pytest.CaptureFixture[str]
) -> None:
    place, full = disk
    if full is not limited_files:
        place = place / "out"
        place.mkdir()
    with full():
        assert main([*words.split(), str(place)]) == 2
    error = capsys.readouterr().err
    assert error.startswith("isthmus: ")
    assert error.count("\n") == 1
    assert file in error
    assert not list(place.rglob("*.part"))
    assert main([*words.split(), str(place)]) == 0
