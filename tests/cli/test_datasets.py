"""`isthmus datasets`: lists, downloads, and one clear line for every failure."""

import json
from pathlib import Path

import numpy as np
import pytest

from isthmus.cli.main import dispatch
from isthmus.datasets import names, store
from isthmus.paper.datasets import loading
from isthmus.paper.datasets.manifest import Entry


def run(arguments: list[str]) -> int:
    return dispatch(["datasets", *arguments])


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, no other directory, and no network."""

    fetch = loading.fetch

    def offline(known: Entry, scratch: str | None = None) -> object:
        if scratch is None:  # bundled
            return fetch(known)
        raise OSError("Name or service not known")

    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(loading, "fetch", offline)
    return tmp_path / "isthmus" / "data"


def some_yale(directory: Path) -> Path:
    rows, labels = np.random.default_rng(0).random((165, 1024)), np.repeat(np.arange(15), 11)
    return store("yale_faces", rows, labels, data_home=directory)


def test_the_list_for_machines(cache, tmp_path, capsys) -> None:
    some_yale(cache)
    assert run(["list", "--json"]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert tuple(found) == names()
    assert found["yale_faces"]["found"] == "cached"
    assert found["zoo"] | {"found": "missing", "path": None} == found["zoo"]
    assert (found["zoo"]["samples"], found["zoo"]["paper"]["samples"]) == (101, 100)
    assert not found["zoo"]["as_in_the_paper"]
    mine = some_yale(tmp_path / "mine")
    assert run(["list", "--json", "--data", str(tmp_path / "mine")]) == 0
    found = {one["name"]: one for one in json.loads(capsys.readouterr().out)}
    assert (found["yale_faces"]["found"], found["yale_faces"]["path"]) == ("local", str(mine))


def test_offline_every_missing_dataset_is_one_line_and_the_others_load(cache, capsys) -> None:
    assert run(["fetch", "zoo", "iris", "yale_faces"]) == 2
    streams = capsys.readouterr()
    assert streams.out == "iris: bundled with scikit-learn\n"
    assert ["zoo" in streams.err, "yale_faces" in streams.err] == [True, True]
    assert streams.err.count("\n") == 2
    assert not cache.exists()
