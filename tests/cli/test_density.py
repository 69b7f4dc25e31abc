"""`isthmus density`: scores are those of the library, and errors are one line."""

import json

import numpy as np
import pandas as pd

from isthmus.incontext import score_rows

X = np.random.default_rng(0).normal(size=(40, 2)) @ [[2.0, 1.0], [0.0, 0.5]] + [100, 0]
TRAIN = pd.DataFrame(X, columns=["a", "b"]).assign(name="x")


def test_rows_of_another_file_are_matched_by_name(run) -> None:
    TRAIN.to_csv("train.csv", index=False)
    new = pd.DataFrame({"b": [0.1, 0.0, np.nan], "key": ["u", "v", "w"], "a": [100.0, 300.0, 99.0]})
    new.to_csv("new.csv", index=False)
    printed = json.loads(run("density train.csv --score new.csv --json --quiet").out)
    found = pd.read_csv("new.density.csv")
    expected = score_rows(X, [[100.0, 0.1], [300.0, 0.0], [99.0, np.nan]])
    np.testing.assert_allclose(found["log_density"], expected.log_density)
    np.testing.assert_allclose(found["percentile"], expected.percentile)
    assert found["outlier"].tolist() == [0, 1, 0]
    assert (printed["outliers"], printed["rows"]) == (1, 3)
    assert set(printed) == {"output", *expected.to_dict()}


def test_missing_text_is_unknown_in_the_table_and_in_other_rows(run) -> None:
    towns = np.array(["Rome", "Oslo", "Rome", ""] * 10)
    TRAIN.assign(name=towns).to_csv("train.csv", index=False)
    TRAIN.head(4).assign(name=["", "Oslo", "NA", "Rome"]).to_csv("new.csv", index=False)
    run("density train.csv --score new.csv --quiet")
    train = TRAIN.assign(name=pd.Series(towns).replace("", None))
    expected = score_rows(train, TRAIN.head(4).assign(name=[None, "Oslo", None, "Rome"]))
    found = pd.read_csv("new.density.csv")
    np.testing.assert_allclose(found["log_density"], expected.log_density)
