"""Points of a plane from tables: columns as they are, principal components, gaps and names."""

import json

import numpy as np
import pandas as pd
import pytest
from sklearn.decomposition import PCA
from sklearn.preprocessing import StandardScaler

from isthmus.errors import InvalidInputError
from isthmus.play.data import MOST_ROWS, plane_of, plane_of_text
from isthmus.play.playground import Playground
from isthmus.play.wire import unpack

RNG = np.random.default_rng(0)


def test_two_columns_are_drawn_as_they_are() -> None:
    X = RNG.normal(size=(20, 2)) * [1, 1000]
    found = plane_of(pd.DataFrame(X, columns=["a", "b"]).assign(word="x"))
    np.testing.assert_array_equal(found.points, X)
    assert found.axes == ("a", "b")
    assert found.notes == ()


def test_more_columns_are_their_principal_components() -> None:
    X = RNG.normal(size=(50, 4)) @ RNG.normal(size=(4, 4)) * [1, 10, 100, 1000]
    found = plane_of(X)
    pca = PCA(2).fit(StandardScaler().fit_transform(X))
    expected = pca.transform(StandardScaler().fit_transform(X))
    signs = np.sign((found.points * expected).sum(0))
    np.testing.assert_allclose(found.points, expected * signs, atol=1e-9)


def test_gaps_constants_and_long_tables_are_told() -> None:
    X = RNG.normal(size=(MOST_ROWS + 101, 3))
    X[0, 0] = np.nan
    X[:, 2] = 7
    found = plane_of(X)
    assert found.points.shape == (MOST_ROWS, 2)
    assert len(found.notes) == 2
    assert set(map(tuple, found.points)) <= set(map(tuple, X[:, :2]))


def test_a_file_of_the_page_is_read_and_its_names_are_kept_as_text() -> None:
    name = "<script>alert(1)</script>"
    rows = "\n".join(f"{a},{b}" for a, b in RNG.normal(size=(9, 2)))
    request = {"id": 1, "kind": "table", "name": "x.csv", "text": f'"{name}","b&<i>"\n{rows}'}
    header, _ = unpack(Playground().answer(json.dumps(request)) or b"")
    assert header["axes"] == [name, "b&<i>"]
    assert len(header["scene"]["memories"]) == 9
    # Standardised, so that the kernels are round in units of both columns.
    np.testing.assert_allclose(np.std(header["scene"]["memories"], axis=0), 1)


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("x.jsonl", '{"a": 1, "b": 2}\n{"a": 3, "b": 5}\n'),
        ("x.json", '[{"a": 1, "b": 2}, {"a": 3, "b": 5}]'),
        ("x.csv", "a,b,c\n1,2,\ud800\n3,5,x\n"),
    ],
)
def test_every_kind_of_file_that_the_dialog_offers_is_read(name, text) -> None:
    request = {"id": 1, "kind": "table", "name": name, "text": text}
    header, _ = unpack(Playground().answer(json.dumps(request)) or b"")
    assert header.get("axes") == ["a", "b"], header


def test_a_broken_file_names_no_path_of_this_machine() -> None:
    for text in ("", "a,b\n1,2,3\n4\n", "a,b\nx,y\n"):
        with pytest.raises(InvalidInputError) as caught:
            plane_of_text("mine.csv", text)
        assert "/tmp" not in str(caught.value)
        assert "table.csv" not in str(caught.value)
