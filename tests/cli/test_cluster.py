"""`isthmus cluster`: what is written is what the library says, in the units of the table."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.integrate import trapezoid
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler

from isthmus.cli.cluster import describe, fit
from isthmus.cli.cluster_report import agreement
from isthmus.cli.main import main
from isthmus.cli.models import Scaling
from isthmus.cli.tables import Table, read_table
from isthmus.cluster import ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO, GaussianMeanShift

IRIS = load_iris(as_frame=True)
X = IRIS.data.to_numpy()
Z = StandardScaler().fit_transform(X)


@pytest.fixture
def iris(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    frame = IRIS.data.copy()
    frame.insert(0, "plant", [f"p{number:03}" for number in range(len(frame))])
    frame["species"] = [IRIS.target_names[kind] for kind in IRIS.target]
    frame.to_csv("iris.csv", index=False)
    return tmp_path / "iris.csv"


def printed(capsys: pytest.CaptureFixture[str]) -> dict:
    return json.loads(capsys.readouterr().out)


def test_with_no_options_it_standardises_and_fits_clam_crp(
    iris: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", "iris.csv", "--id", "plant", "--label", "species"]) == 0
    model = ClAMCRP(random_state=0).fit(Z)
    rows = pd.read_csv("iris.clusters.csv")
    assert list(rows["plant"]) == [f"p{number:03}" for number in range(150)]
    assert list(rows["species"]) == [IRIS.target_names[kind] for kind in IRIS.target]
    assert np.array_equal(rows["cluster"] - 1, model.labels_)
    shares = rows[[f"p{number}" for number in range(1, model.n_clusters_ + 1)]].to_numpy()
    assert np.allclose(shares, model.predict_proba(Z), rtol=0, atol=1e-12)
    assert np.allclose(rows["certainty"], shares.max(1))
    assert np.allclose(rows["novelty"], model.novelty(Z), rtol=0, atol=1e-12)
    scale = X.std(0)
    assert np.allclose(rows["log_density"], model.score_samples(Z) - np.log(scale).sum())
    out = capsys.readouterr().out
    assert f"{model.n_clusters_} clusters in 150 rows, 4 features" in out
    assert "iris.clusters.csv" in out


@pytest.mark.parametrize(
    ("options", "estimator"),
    [
        (["-k", "3"], ClAMELBO(3, random_state=5)),
        (["--method", "clam", "-k", "2"], ClAM(2, random_state=5)),
        (["--method", "crp-elbo", "--alpha", "0.1"], ClAMCRPELBO(alpha=0.1, random_state=5)),
        (["--method", "mean-shift", "--bandwidth", "0.5"], GaussianMeanShift(0.5)),
    ],
)
def test_every_method_is_the_library_s_own(
    iris: Path, options: list[str], estimator: object
) -> None:
    common = ["--drop", "plant,species", "--seed", "5", "-o", "out.parquet", "--quiet"]
    assert main(["cluster", str(iris), *options, *common]) == 0
    estimator.fit(Z)
    rows = pl.read_parquet("out.parquet")
    assert np.array_equal(rows["cluster"].to_numpy() - 1, estimator.labels_)
    densities = estimator.score_samples(Z) - np.log(X.std(0)).sum()
    assert np.allclose(rows["log_density"].to_numpy(), densities)
    assert rows["row"].to_list() == list(range(1, 151))
    assert ("p1" in rows.columns) == hasattr(estimator, "predict_proba")
    assert ("novelty" in rows.columns) == hasattr(estimator, "novelty")


def test_columns_compare_as_they_are_if_asked(iris: Path) -> None:
    assert main(["cluster", str(iris), "--no-standardise", "-o", "o.json", "--quiet"]) == 0
    model = ClAMCRP(random_state=0).fit(X)
    rows = json.loads(Path("o.json").read_text())
    assert [row["cluster"] - 1 for row in rows] == model.labels_.tolist()
    assert np.allclose([row["log_density"] for row in rows], model.score_samples(X))


def test_the_density_integrates_to_one_in_the_units_of_the_table() -> None:
    rng = np.random.default_rng(0)
    rows = np.concatenate([rng.normal(0, 1, (40, 2)), rng.normal(7, 1, (40, 2))]) * [3.0, 0.2]
    table = Table(rows, ("a", "b"), np.arange(80), "row")
    model = fit(table, "elbo", clusters=2)

    low, high = rows.min(0) - 5 * rows.std(0), rows.max(0) + 5 * rows.std(0)
    a, b = np.linspace(low[0], high[0], 201), np.linspace(low[1], high[1], 201)
    grid = np.stack(np.meshgrid(a, b, indexing="ij"), -1).reshape(-1, 2)
    density = np.exp(describe(model, grid).log_density).reshape(201, 201)
    assert trapezoid(trapezoid(density, b), a) == pytest.approx(1, abs=1e-3)


def test_a_density_of_gaps_counts_known_columns_only() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3)) * [10.0, 0.1, 1.0]
    rows[::7, 0] = np.nan
    model = fit(Table(rows, ("a", "b", "c"), np.arange(50), "row"), "elbo", clusters=2)
    scaler = StandardScaler().fit(rows)
    own = ClAMELBO(2, random_state=0).fit(scaler.transform(rows))
    found = describe(model, rows)
    volume = (~np.isnan(rows) * np.log(scaler.scale_)).sum(1)
    assert np.allclose(found.log_density, own.score_samples(scaler.transform(rows)) - volume)


def test_memories_are_in_the_units_of_the_table(
    iris: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", str(iris), "-k", "3", "--json", "--quiet"]) == 0
    summary = printed(capsys)
    model = ClAMELBO(3, random_state=0).fit(Z)
    memories = np.array([[*one["memory"].values()] for one in summary["clusters"]])
    assert np.allclose(memories, model.memories_ * X.std(0) + X.mean(0))
    assert [one["size"] for one in summary["clusters"]] == np.bincount(model.labels_).tolist()
    for number, one in enumerate(summary["clusters"]):
        means = Z[model.labels_ == number].mean(0)
        name, far = next(iter(one["set_apart_by"].items()))
        assert far == pytest.approx(means[np.abs(means).argmax()])
        assert name == IRIS.feature_names[np.abs(means).argmax()]


def test_agreement_is_that_of_scikit_learn_and_counts_known_labels(
    iris: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["cluster", str(iris), "--label", "species", "--json", "--quiet"]) == 0
    found, labels = printed(capsys)["agreement"], ClAMCRP(random_state=0).fit(Z).labels_
    assert found["ARI"] == pytest.approx(adjusted_rand_score(IRIS.target, labels))
    assert found["NMI"] == pytest.approx(normalized_mutual_info_score(IRIS.target, labels))
    kinds = np.array(["a", "", "b", "b"])
    table = Table(np.zeros((4, 1)), ("x",), np.arange(4), "row", kinds, "kind")
    assert agreement(table, np.array([0, 1, 1, 1])) == {
        "label": "kind",
        "classes": 2,
        "rows": 3,
        "ARI": 1.0,
        "NMI": 1.0,
    }


def test_a_saved_model_labels_other_rows_whatever_their_columns_order(
    iris: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    save = ["-k", "3", "--save", "model.safetensors", "-o", "a.csv", "--quiet"]
    assert main(["cluster", str(iris), *save]) == 0
    shuffled = pd.read_csv(iris).iloc[::-1, ::-1][:60]
    shuffled.to_csv("other.csv", index=False)
    use = ["--model", "model.safetensors", "-o", "b.csv", "--quiet"]
    assert main(["cluster", "other.csv", *use]) == 0
    first, second = pd.read_csv("a.csv"), pd.read_csv("b.csv")
    assert list(second["cluster"]) == list(first["cluster"][::-1][:60])
    assert np.allclose(second["log_density"], first["log_density"][::-1][:60])
    assert np.array_equal(ClAMELBO.load("model.safetensors").table_scale_, X.std(0))


def test_gaps_are_fine(iris: Path, capsys: pytest.CaptureFixture[str]) -> None:
    frame = pd.read_csv(iris)
    frame.iloc[::9, 2] = np.nan
    frame.to_csv("gaps.csv", index=False)
    assert main(["cluster", "gaps.csv", "--drop", "plant", "--quiet", "--json"]) == 0
    summary = printed(capsys)
    assert summary["missing"] == 17
    values = frame.iloc[:, 1:5].to_numpy()
    model = ClAMCRP(random_state=0).fit(StandardScaler().fit_transform(values))
    assert np.array_equal(pd.read_csv("gaps.clusters.csv")["cluster"] - 1, model.labels_)


def test_constant_columns_one_row_and_equal_rows_are_fine(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    for name, rows in {"one": ["1,2"], "equal": ["1,2"] * 9, "constant": ["1,2", "3,2"]}.items():
        Path(f"{name}.csv").write_text("\n".join(["a,b", *rows]))
        assert main(["cluster", f"{name}.csv", "--plot", f"{name}.png", "--quiet"]) == 0
        assert np.isfinite(pd.read_csv(f"{name}.clusters.csv")["log_density"]).all()
    assert "1 cluster in 1 row, 2 features" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ("a,b\n1,2\n", "there is one row, which makes one cluster"),
        ("a,b\n1,2\n1,2\n1,2\n", "all rows are the same, which makes one cluster"),
        ("a,b,c\n1,2,7\n1,3,\n1,5,7\n", "tells none apart: a, c."),
    ],
)
def test_what_tells_no_rows_apart_is_said_unless_quiet(
    content: str,
    words: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("t.csv").write_text(content)
    assert main(["cluster", "t.csv"]) == 0
    assert words in capsys.readouterr().err
    assert main(["cluster", "t.csv", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize("options", [[], ["--no-standardise"]])
def test_columns_of_two_values_are_told_where_they_may_split_clusters(
    options: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(20, 1)).round(2)
    lines = [f"{x},{n % 2},{n == 3},5,{n % 3}" for n, (x,) in enumerate(rows)]
    lines[4] = lines[4].replace(",0,", ",,")
    Path("t.csv").write_text("\n".join(["a,half,once,same,third", *lines]))
    assert main(["cluster", "t.csv", "-k", "2", *options]) == 0
    told = "may split clusters in two: half. --drop" in capsys.readouterr().err
    assert told == (not options)
    assert main(["cluster", "t.csv", "-k", "2", "--drop", "half", *options]) == 0
    assert "split" not in capsys.readouterr().err


def test_ids_are_found_by_name_and_a_model_without_them_says_so(
    iris: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    frame = IRIS.data.copy()
    frame.insert(1, "plant_id", 1000 + np.arange(len(frame)))
    frame.to_csv("numbered.csv", index=False)
    assert main(["cluster", "numbered.csv", "-k", "2"]) == 0
    rows = pd.read_csv("numbered.clusters.csv")
    assert list(rows["plant_id"]) == list(frame["plant_id"])
    assert np.array_equal(rows["cluster"] - 1, ClAMELBO(2, random_state=0).fit(Z).labels_)
    assert "'plant_id', by its name, is taken for the ids of rows" in capsys.readouterr().err
    save = ["cluster", "numbered.csv", "-k", "2", "--id", "none", "--save", "m"]
    assert main(save) == 0
    assert "5 features" in capsys.readouterr().out
    assert main(["cluster", "numbered.csv", "--model", "m"]) == 2
    assert capsys.readouterr().err.endswith("; say --id none, to use 'plant_id'.\n")
    assert main(["cluster", "numbered.csv", "--model", "m", "--id", "none"]) == 0


def test_many_clusters_are_written_without_their_posteriors_unless_asked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    np.save("data.npy", np.random.default_rng(0).normal(size=(200, 2)))
    common = ["cluster", "data.npy", "-k", "40", "--quiet", "-o", "out.csv"]
    assert main(common) == 0
    assert "15 more clusters" in capsys.readouterr().out
    assert "p1" not in pd.read_csv("out.csv")
    assert main([*common, "--posteriors"]) == 0
    shares = pd.read_csv("out.csv").filter(regex=r"^p\d+$").to_numpy()
    assert shares.shape == (200, 40)
    assert np.allclose(shares.sum(1), 1)


def test_a_column_of_the_table_does_not_hide_a_result(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("cluster,a\nx,1\ny,1.5\nx,9\ny,9.5\n")
    assert main(["cluster", "data.csv", "--label", "cluster", "-k", "2", "--quiet"]) == 0
    rows = pd.read_csv("data.clusters.csv")
    assert list(rows["cluster_given"]) == ["x", "y", "x", "y"]
    assert rows["cluster"].nunique() == 2


def test_rows_go_to_stdout_alone_if_asked(iris: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cluster", str(iris), "-k", "2", "-o", "-"]) == 0
    out = capsys.readouterr()
    assert out.out.startswith("row,cluster,certainty,log_density,p1,p2\n1,")
    assert out.out.count("\n") == 151
    assert "plant, species" in out.err
    assert sorted(path.name for path in iris.parent.iterdir()) == ["iris.csv"]


@pytest.mark.parametrize("suffix", [".png", ".svg"])
def test_the_picture_is_written(iris: Path, suffix: str) -> None:
    assert main(["cluster", str(iris), "--plot", f"iris{suffix}", "--quiet"]) == 0
    head = Path(f"iris{suffix}").read_bytes()[:200]
    assert (b"PNG" if suffix == ".png" else b"<svg" if b"<svg" in head else b"<?xml") in head


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["absent.csv"], "cannot be read"),
        (["iris.csv", "--method", "elbo"], "-k N"),
        (["iris.csv", "--method", "crp", "-k", "3"], "finds the number of clusters itself"),
        (["iris.csv", "-k", "151"], "more than the 150 rows"),
        (["iris.csv", "-k", "0"], "whole number"),
        (["iris.csv", "-k", "3", "--alpha", "1"], "--alpha is for"),
        (["iris.csv", "--alpha", "-1"], "not a number above zero"),
        (["iris.csv", "--bandwidth", "1"], "--bandwidth is for"),
        (["iris.csv", "--method", "mean-shift", "--save", "m"], "--save is not for"),
        (["gaps.csv", "--method", "mean-shift"], "needs complete rows"),
        (["iris.csv", "--plot", "a.gif"], "must end in .png or .svg"),
        (["iris.csv", "-o", "iris.csv"], "is the data itself"),
        (["iris.csv", "-o", "a.csv", "--plot", "iris.csv"], "--plot iris.csv is taken by DATA"),
        (["iris.csv", "--plot", "q.png", "--save", "./q.png"], "--save q.png is taken by --plot"),
        (["iris.csv", "-o", "q.csv", "--save", "q.csv"], "--save q.csv is taken by -o"),
        (["iris.csv", "--save", "iris.clusters.csv"], "is taken by -o"),
        (["iris.csv", "--plot", "nowhere/a.png"], "--plot nowhere/a.png: nowhere is not a"),
        (["iris.csv", "--save", "nowhere/m"], "--save nowhere/m: nowhere is not a directory"),
        (["iris.csv", "--model", "absent.safetensors"], "not a readable isthmus model"),
        (["tiny.csv"], "too small to compute with"),
        (["iris.csv", "-o", "nowhere/a.csv"], "make it first"),
        (["iris.csv", "-o", "-", "--json"], "choose one"),
        (["iris.csv", "--model", "iris.csv"], "not a readable isthmus model"),
        (["iris.csv", "--model", "m", "-k", "2"], "fitted already"),
        (["iris.csv", "--model", "bare.safetensors"], "not the columns it learned from"),
        (["iris.csv", "--id", "nobody"], "no such column"),
        (["iris.csv", "--drop", "2,3,4,5"], "no column of numbers"),
    ],
)
def test_bad_input_ends_with_2_and_one_line_and_no_file(
    iris: Path, options: list[str], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    Path("gaps.csv").write_text("a,b,c\n1,2,x\n,3,y\n")
    Path("tiny.csv").write_text("a,b\n1e-200,2\n3e-200,3\n")
    ClAMELBO(1).fit(Z).save("bare.safetensors")
    before = {path.name: path.read_bytes() for path in iris.parent.iterdir()}
    assert main(["cluster", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert {path.name: path.read_bytes() for path in iris.parent.iterdir()} == before


def test_scaling_is_that_of_scikit_learn_and_goes_back() -> None:
    rows = np.array([[1.0, 5.0, np.nan], [2.0, 5.0, 3.0], [6.0, 5.0, 4.0]])
    scaling = Scaling.of(rows, standardise=True)
    wanted = StandardScaler().fit_transform(rows)
    assert np.allclose(scaling.into(rows), wanted, equal_nan=True)
    assert np.allclose(scaling.back(wanted), rows, equal_nan=True)


def test_the_project_s_own_datasets_are_read(tmp_path: Path) -> None:
    np.savez(tmp_path / "d.npz", X=X, y=IRIS.target, class_names=np.array(IRIS.target_names))
    table = read_table(tmp_path / "d.npz", label="y")
    assert np.array_equal(table.label, IRIS.target)
