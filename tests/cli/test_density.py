"""`isthmus density`: scores are those of the library, and errors are one line."""

import json

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main
from isthmus.incontext import score_rows

X = np.random.default_rng(0).normal(size=(40, 2)) @ [[2.0, 1.0], [0.0, 0.5]] + [100, 0]


@pytest.fixture
def data(tmp_path):
    pd.DataFrame(X, columns=["a", "b"]).assign(name="x").to_csv(tmp_path / "train.csv", index=False)
    new = pd.DataFrame({"b": [0.1, 0.0, np.nan], "key": ["u", "v", "w"], "a": [100.0, 300.0, 99.0]})
    new.to_csv(tmp_path / "new.csv", index=False)
    return tmp_path


def test_rows_of_another_file_are_matched_by_name(data, capsys, monkeypatch) -> None:
    monkeypatch.chdir(data)
    arguments = ["density", str(data / "train.csv"), "--score", str(data / "new.csv")]
    assert main([*arguments, "--json", "--quiet"]) == 0
    printed = json.loads(capsys.readouterr().out)
    found = pd.read_csv(data / "new.density.csv")
    expected = score_rows(X, [[100.0, 0.1], [300.0, 0.0], [99.0, np.nan]])
    np.testing.assert_allclose(found["log_density"], expected.log_density)
    np.testing.assert_allclose(found["percentile"], expected.percentile)
    assert found["outlier"].tolist() == [0, 1, 0]
    assert printed["outliers"] == 1
    assert printed["rows"] == 3
    assert set(printed) == {"output", *expected.to_dict()}


def test_rows_of_the_table_are_scored_without_themselves(data, capsys) -> None:
    assert main(["density", str(data / "train.csv"), "-o", "-", "--quiet", "--level", "5"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == "row,log_density,percentile,outlier"
    assert len(lines) == 41


def test_a_constant_column_is_scored(tmp_path, capsys) -> None:
    path = tmp_path / "constant.csv"
    pd.DataFrame(np.c_[X, np.full(len(X), 7.0)], columns=["a", "b", "c"]).to_csv(path, index=False)
    assert main(["density", str(path), "-o", str(tmp_path / "out.csv")]) == 0
    assert np.isfinite(pd.read_csv(tmp_path / "out.csv").log_density).all()
