"""Points of a plane from tables: columns as they are, principal components, gaps and names."""

import base64
import io
import json

import numpy as np
import pandas as pd
import pytest
from helpers import unpack
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from isthmus.play.data import MOST_ROWS, Columns
from isthmus.play.playground import Playground

RNG = np.random.default_rng(0)


def test_two_columns_are_drawn_as_they_are() -> None:
    X = RNG.normal(size=(20, 2)) * [1, 1000]
    frame = pd.DataFrame(X, columns=["a", "b"]).assign(word="x")
    points, axes, notes = Columns.of(frame).plane()
    np.testing.assert_array_equal(points, X)
    assert (axes, notes) == (["a", "b"], [])


def test_more_columns_are_their_principal_components() -> None:
    X = RNG.normal(size=(50, 4)) @ RNG.normal(size=(4, 4)) * [1, 10, 100, 1000]
    points = Columns.of(X).plane()[0]
    pca = PCA(2).fit(StandardScaler().fit_transform(X))
    expected = pca.transform(StandardScaler().fit_transform(X))
    signs = np.sign((points * expected).sum(0))
    np.testing.assert_allclose(points, expected * signs, atol=1e-9)


def test_gaps_constants_and_long_tables_are_told() -> None:
    X = RNG.normal(size=(MOST_ROWS + 101, 3))
    X[0, 0] = np.nan
    X[:, 2] = 7
    points, _, notes = Columns.of(X).plane()
    assert points.shape == (MOST_ROWS, 2)
    assert len(notes) == 2
    assert set(map(tuple, points)) <= set(map(tuple, X[:, :2]))


def sent(name: str, content: bytes, **body: object) -> dict:
    """Return the header of the answer to a file from the page."""
    coded = base64.b64encode(content).decode()
    request = {"id": 1, "kind": "table", "name": name, "content": coded, **body}
    return unpack(Playground().answer(json.dumps(request)) or b"")[0]


def test_a_file_of_the_page_is_read_and_its_names_are_kept_as_text() -> None:
    name = "<script>alert(1)</script>"
    rows = "\n".join(f"{a},{b}" for a, b in RNG.normal(size=(9, 2)))
    header = sent("x.csv", f'"{name}","b&<i>"\n{rows}'.encode())
    assert header["axes"] == [name, "b&<i>"]
    assert len(header["scene"]["memories"]) == 9
    # Standardised, so that the kernels are round in units of both columns.
    np.testing.assert_allclose(np.std(header["scene"]["memories"], axis=0), 1)


def written(method: str) -> bytes:
    buffer = io.BytesIO()
    getattr(pd.DataFrame({"a": [1.0, 3.0], "b": [2.0, 5.0]}), method)(buffer)
    return buffer.getvalue()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("x.jsonl", b'{"a": 1, "b": 2}\n{"a": 3, "b": 5}\n'),
        ("x.csv", b"a;b;c\n1,5;2;\xe9\n3;5;x\n"),
        ("x.parquet", written("to_parquet")),
        ("x.feather", written("to_feather")),
    ],
)
def test_every_kind_of_file_that_the_dialog_offers_is_read(name: str, content: bytes) -> None:
    header = sent(name, content)
    assert header.get("axes") == ["a", "b"], header


def test_two_columns_are_chosen_of_a_file_or_of_the_table_at_the_start() -> None:
    X = pd.DataFrame(RNG.normal(size=(20, 4)), columns=[*"abcd"])
    header = sent("x.csv", X.to_csv(index=False).encode(), axes=["d", "b"])
    assert header["columns"] == [*"abcd"]
    assert header["axes"] == ["d", "b"]
    wanted = StandardScaler().fit_transform(X[["d", "b"]])
    np.testing.assert_allclose(header["scene"]["memories"], wanted, atol=1e-9)
    playground = Playground(X)
    assert unpack(playground.hello())[0]["columns"] == [*"abcd"]
    request = {"id": 1, "kind": "table", "axes": ["a", "c"]}
    header, _ = unpack(playground.answer(json.dumps(request)) or b"")
    np.testing.assert_array_equal(header["scene"]["memories"], X[["a", "c"]])
    for axes in (["a"], ["a", "a"], ["a", "x"], "ab"):
        found = unpack(playground.answer(json.dumps({**request, "axes": axes})) or b"")[0]
        assert found["kind"] == "error"


@pytest.mark.parametrize("content", [b"", b"a,b\n1,2,3\n4\n", b"a,b\nx,y\n"])
def test_a_broken_file_names_no_path_of_this_machine(content: bytes) -> None:
    header = sent("mine.csv", content)
    assert header["kind"] == "error"
    assert "/tmp" not in header["error"]
    assert "table.csv" not in header["error"]
