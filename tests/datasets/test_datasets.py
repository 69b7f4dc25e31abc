"""Datasets: found, checked, downloaded when missing, and never used when they are wrong."""

import io
import os
import tarfile
import zlib
from http.client import HTTPException
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from sklearn import datasets as scikit_learn

from isthmus.datasets import load, names, store
from isthmus.errors import DatasetChangedError, DatasetNotFoundError
from isthmus.paper.datasets.manifest import entry

DATA = os.environ.get("ISTHMUS_DATA")
needs_data = pytest.mark.skipif(not DATA, reason="ISTHMUS_DATA is not set")
SMALL = [name for name in names() if entry(name).n_samples < 50_000]


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty user cache, and no other directory."""
    monkeypatch.delenv("ISTHMUS_DATA", raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    return tmp_path / "isthmus" / "data"


def fake_openml(bunch: Any, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Scikit-learn's OpenML fetcher, without OpenML; returns which numbers were asked for."""
    asked = []

    def fetch(data_id: int, data_home: str, **_: object) -> Any:
        asked.append(data_id)
        (Path(data_home) / "arrived").write_bytes(b"x" * 1000)
        if isinstance(bunch, Exception):
            raise bunch
        return bunch

    monkeypatch.setattr(scikit_learn, "fetch_openml", fetch)
    return asked


def ecoli_bunch(**changes: Any) -> SimpleNamespace:
    """Rows of ecoli's shape and class sizes, as OpenML would give them."""
    labels = np.repeat(
        ["cp", "im", "imL", "imS", "imU", "om", "omL", "pp"], entry("ecoli").class_counts
    )
    rows = np.random.default_rng(0).random((336, 7))
    fields = {
        "data": rows,
        "target": labels.astype(object),
        "feature_names": list("abcdefg"),
        "categories": {},
    }
    return SimpleNamespace(**{**fields, **changes})


@needs_data
@pytest.mark.parametrize("name", SMALL)
def test_a_local_file_has_the_shape_and_classes_of_the_manifest(name: str) -> None:
    found = load(name, leak=True)
    known = entry(name)
    assert found.X.shape == (known.n_samples, known.n_features)
    assert np.bincount(found.y).tolist() == list(known.class_counts)
    assert len(found.class_names) == known.n_classes
    assert len(found.feature_names) in (0, known.n_features)


@needs_data
def test_the_column_that_leaks_the_labels_is_left_out_unless_asked_for() -> None:
    honest, leaked = load("boston_housing"), load("boston_housing", leak=True)
    assert honest.X.shape == (506, 13)
    assert len(honest.feature_names) == 13
    np.testing.assert_array_equal(honest.X, leaked.X[:, :13])
    assert len(np.unique(np.rint(leaked.X[:, 13]))) == leaked.n_classes == 46
    assert "leak" in str(honest)


@needs_data
@pytest.mark.parametrize("name", ["iris", "wine", "wisconsin_breast_cancer"])
def test_bundled_datasets_need_neither_files_nor_a_network(name: str, nowhere: Path) -> None:
    bundled, stored = load(name, download_if_missing=False), load(name, DATA)
    np.testing.assert_array_equal(bundled.X, stored.X)
    np.testing.assert_array_equal(bundled.y, stored.y)
    assert bundled.class_names == stored.class_names
    assert not nowhere.exists()


def test_a_download_is_checked_stored_and_used_the_next_time(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bunch = ecoli_bunch()
    asked = fake_openml(bunch, monkeypatch)
    first, second = load("ecoli"), load("ecoli")
    assert asked == [39]
    assert [path.name for path in nowhere.iterdir()] == ["ecoli.npz"]
    for found in (first, second):
        np.testing.assert_array_equal(found.X, bunch.data)
        assert found.class_names[found.y[0]] == "cp"
        assert found.feature_names == tuple("abcdefg")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"data": np.zeros((335, 7))}, "shape"),
        ({"target": np.repeat(["a", "b"], 168)}, "classes"),
        ({"data": np.full((336, 7), np.nan)}, "missing"),
    ],
)
def test_a_download_of_something_else_is_refused_and_not_stored(
    changes: dict[str, Any], message: str, nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    fake_openml(ecoli_bunch(**changes), monkeypatch)
    with pytest.raises(DatasetChangedError, match=message):
        load("ecoli")
    assert not nowhere.exists()


def test_datasets_downloaded_by_hand_can_be_stored(tmp_path: Path) -> None:
    rows, labels = np.random.default_rng(0).random((165, 1024)), np.repeat(np.arange(1, 16), 11)
    assert store("yale_faces", rows, labels, data_home=tmp_path) == tmp_path / "yale_faces.npz"
    found = load("yale_faces", tmp_path)
    np.testing.assert_array_equal(found.y, labels - 1)
    assert found.class_names[0] == "1"
    with pytest.raises(DatasetChangedError, match=r"X has shape \(164, 1024\)"):
        store("yale_faces", rows[1:], labels[1:], data_home=tmp_path)


def test_boston_gets_its_label_column_back_and_written_numbers_are_read(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    prices = np.repeat(np.arange(5, 51), entry("boston_housing").class_counts) + 0.25
    rows = np.zeros((506, 13))
    rows[:, 8] = np.arange(506) % 3
    columns = [f"c{place}" for place in range(13)]
    bunch = SimpleNamespace(
        data=rows,
        target=prices,
        feature_names=columns,
        target_names=["MEDV"],
        categories={"c8": ["1", "2", "24"]},
    )
    fake_openml(bunch, monkeypatch)
    found = load("boston_housing", leak=True)
    np.testing.assert_array_equal(found.X[:, 13], prices)
    np.testing.assert_array_equal(found.X[:3, 8], [1, 2, 24])
    assert found.feature_names[-1] == "MEDV"
    assert found.class_names[0] == "5"


def npz(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez(file, **arrays)
    return file.getvalue()


ZOO = {"y": np.repeat(np.arange(7), entry("zoo").class_counts), "class_names": list("abcdefg")}


@pytest.mark.parametrize(
    "content",
    [
        npz(X=np.zeros((150, 4)), **ZOO),
        npz(X=np.zeros((101, 16))),
        npz(X=np.full((101, 16), np.nan), **ZOO),
        npz(X=np.full((101, 16), "word"), **ZOO),
        npz(X=np.zeros((101, 16)), **ZOO)[:-100],
        b"",
    ],
)
def test_a_file_that_is_damaged_or_of_something_else_is_refused(
    content: bytes, tmp_path: Path
) -> None:
    (tmp_path / "zoo.npz").write_bytes(npz(X=np.ones((101, 16)), **ZOO))
    assert load("zoo", tmp_path).X.shape == (101, 16)
    (tmp_path / "zoo.npz").write_bytes(content)
    with pytest.raises(DatasetChangedError, match=r"zoo\.npz"):
        load("zoo", tmp_path)


@pytest.mark.parametrize("error", [EOFError, zlib.error, tarfile.ReadError, HTTPException, OSError])
def test_a_download_that_is_cut_off_is_one_error(
    error: type[Exception], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    def fetch(**_: Any) -> Any:
        raise error("cut off")

    monkeypatch.setattr(scikit_learn, "fetch_openml", fetch)
    with pytest.raises(DatasetNotFoundError, match="cut off"):
        load("ecoli", tmp_path)
    assert not list(tmp_path.iterdir())
