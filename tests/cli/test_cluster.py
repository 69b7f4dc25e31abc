"""`isthmus cluster`: options reach TableModel, and its results reach files and stdout."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.datasets import load_iris

from isthmus.cluster import ClAMELBO, TableModel

IRIS = load_iris(as_frame=True)


@pytest.fixture
def iris(run) -> None:
    frame = IRIS.data.copy()
    frame.insert(0, "plant", [f"p{number:03}" for number in range(len(frame))])
    frame["species"] = [IRIS.target_names[kind] for kind in IRIS.target]
    frame.to_csv("iris.csv", index=False)


@pytest.mark.slow
@pytest.mark.usefixtures("iris")
def test_the_default_writes_and_prints_the_clusters_of_the_library(run) -> None:
    out = run("cluster iris.csv --id plant --label species").out
    found = TableModel.fit(IRIS.data).describe(
        IRIS.data, classes=IRIS.target_names[IRIS.target], class_name="species"
    )
    rows = pd.read_csv("iris.clusters.csv")
    assert list(rows["plant"]) == [f"p{number:03}" for number in range(150)]
    assert list(rows["species"]) == list(IRIS.target_names[IRIS.target])
    for name, values in found.to_frame().items():
        if name not in ("row", "species"):
            np.testing.assert_allclose(rows[name], values, rtol=1e-9, atol=1e-12)
    out = re.sub(r"\bp(\d{3})\b", lambda found: str(int(found[1]) + 1), out)
    assert out == f"{found}\n\nrows written to  iris.clusters.csv\n"


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        (["-k", "3"], {"n_clusters": 3}),
        (["--resolution", "0.6"], {"resolution": 0.6}),
        (["--method", "crp", "--alpha", "0.1", "--no-standardise"], {"alpha": 0.1}),
        (["--method", "mean-shift", "--bandwidth", "0.5"], {"bandwidth": 0.5}),
    ],
)
@pytest.mark.usefixtures("iris")
def test_every_option_reaches_the_library(run, options, settings) -> None:
    if "bandwidth" in settings:
        settings["method"] = "mean-shift"
    settings["standardise"] = "--no-standardise" not in options
    common = "--drop plant,species --seed 5 -o out.parquet --quiet --json"
    printed = json.loads(run(f"cluster iris.csv {common}", *options).out)
    found = TableModel.fit(IRIS.data, seed=5, **settings).describe(IRIS.data)
    rows = pd.read_parquet("out.parquet")
    assert rows["row"].to_list() == list(range(1, 151))
    assert list(rows["cluster"]) == list(found.labels + 1)
    assert printed == found.summary | {"output": "out.parquet"}


@pytest.mark.usefixtures("iris")
def test_a_saved_model_labels_other_rows(run) -> None:
    text = run("cluster iris.csv -k 3 --save model.safetensors -o a.csv --quiet").out
    assert text.endswith("model written to  model.safetensors\n")
    pd.read_csv("iris.csv").iloc[::-1, ::-1][:60].to_csv("other.csv", index=False)
    run("cluster other.csv --model model.safetensors -o b.csv")
    assert list(pd.read_csv("b.csv")["cluster"]) == list(pd.read_csv("a.csv")["cluster"][::-1][:60])
    scale = ClAMELBO.load("model.safetensors").table_scale_
    np.testing.assert_allclose(scale, IRIS.data.std(ddof=0))


def test_ids_are_found_by_name_and_a_model_that_learned_from_them_says_so(run) -> None:
    frame = IRIS.data.copy()
    frame.insert(1, "plant_id", 1000 + np.arange(len(frame)))
    frame.to_csv("numbered.csv", index=False)
    assert "'plant_id'" in run("cluster numbered.csv -k 2").err
    rows = pd.read_csv("numbered.clusters.csv")
    assert list(rows["plant_id"]) == list(frame["plant_id"])
    assert "5 features" in run("cluster numbered.csv -k 2 --id none --save m").out
    assert "ids" in run("cluster numbered.csv --model m", code=2).err
    run("cluster numbered.csv --model m --id none")


def test_a_table_with_semicolons_stays_one_and_a_second_run_says_that_it_replaces(run) -> None:
    Path("semi.csv").write_text("a;b\n1,5;2\n2,5;3\n9,5;8\n8;9\n")
    assert run("cluster semi.csv").out.endswith("rows written to  semi.clusters.csv\n")
    rows = pd.read_csv("semi.clusters.csv", sep=";", decimal=",")
    assert rows["certainty"].between(0.5, 1).all()
    assert run("cluster semi.csv").out.endswith("rows written to  semi.clusters.csv (replaced)\n")
