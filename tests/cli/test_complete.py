"""`isthmus complete`: only gaps change, and the error that is told is the error that is made."""

import json
import re
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
from scipy.special import softmax
from sklearn.datasets import load_iris
from sklearn.preprocessing import StandardScaler

import isthmus as ist
from isthmus.cli.completion import Candidate, candidates, check, fill, learned_energy
from isthmus.cli.main import main
from isthmus.cluster import ClAMCRP

IRIS = load_iris(as_frame=True)


@pytest.fixture
def gaps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> pd.DataFrame:
    """Iris with a name and a species, and a tenth of its cells missing, as gaps.csv."""
    monkeypatch.chdir(tmp_path)
    frame = IRIS.data.copy()
    frame.columns = ["a", "b", "c", "d"]
    frame = frame.mask(np.random.default_rng(0).random(frame.shape) < 0.1)
    frame.insert(0, "name", [f"{number:03}" for number in range(150)])
    frame["species"] = [IRIS.target_names[kind] for kind in IRIS.target]
    frame.to_csv("gaps.csv", index=False)
    return frame


def numbers(frame: pd.DataFrame) -> np.ndarray:
    return frame[["a", "b", "c", "d"]].to_numpy(dtype=float)


def by_hand(Z: np.ndarray, memories: np.ndarray, sigma: float) -> np.ndarray:
    """Means of memories, weighted by their likelihood given the known cells: a loop."""
    filled = Z.copy()
    for row in filled:
        known = ~np.isnan(row)
        squares = ((memories[:, known] - row[known]) ** 2).sum(1)
        row[~known] = softmax(-squares / (2 * sigma**2)) @ memories[:, ~known]
    return filled


def test_the_mean_of_complete_rows_weighted_by_likeness(gaps: pd.DataFrame) -> None:
    assert main(["complete", "gaps.csv", "--drop", "name", "--sigma", "0.4", "--quiet"]) == 0
    X = numbers(gaps)
    scaler = StandardScaler().fit(X)
    Z = scaler.transform(X)
    wanted = scaler.inverse_transform(by_hand(Z, Z[~np.isnan(Z).any(1)], 0.4))
    assert np.allclose(numbers(pd.read_csv("gaps.completed.csv")), wanted, rtol=1e-10)


@pytest.mark.parametrize("how", ["mean", "mode"])
def test_learned_memories_complete_as_the_library_does(gaps: pd.DataFrame, how: str) -> None:
    common = ["--drop", "name", "--energy", "crp", "--how", how, "-o", "o.parquet", "--quiet"]
    assert main(["complete", "gaps.csv", *common]) == 0
    X = numbers(gaps)
    scaler = StandardScaler().fit(X)
    Z = scaler.transform(X)
    model = ClAMCRP(random_state=0).fit(Z)
    filled = model.complete(Z)
    if how == "mean":
        filled = model.energy_.conditional_mean(Z, ~np.isnan(Z)).numpy()
    found = numbers(pl.read_parquet("o.parquet").to_pandas())
    assert np.allclose(found, scaler.inverse_transform(filled), rtol=1e-8)


def test_mode_is_complete_of_the_library(gaps: pd.DataFrame) -> None:
    options = ["--drop", "name", "--sigma", "0.3", "--how", "mode", "--quiet"]
    assert main(["complete", "gaps.csv", *options]) == 0
    X = numbers(gaps)
    scaler = StandardScaler().fit(X)
    Z = scaler.transform(X)
    wanted = ist.complete(ist.GaussianKDE(Z[~np.isnan(Z).any(1)], sigma=0.3), Z).numpy()
    found = numbers(pd.read_csv("gaps.completed.csv"))
    assert np.allclose(found, scaler.inverse_transform(wanted), rtol=1e-8)


def test_only_gaps_change_and_the_rest_stays_as_it_is_written(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    lines = ["who;a;b;k", "x;1,50;2;007", "y;;3,10;008", "z;2,5;?;009", "w;4,0;5;010"]
    Path("data.csv").write_text("\n".join([*lines, *(f"v;{n},5;{n};0" for n in range(9))]))
    assert main(["complete", "data.csv", "--drop", "k", "-o", "out.csv", "--quiet"]) == 0
    found = Path("out.csv").read_text().splitlines()
    assert found[:2] == ["who,a,b,k", "x,1.50,2,007"]
    assert found[2].startswith("y,")
    assert found[2].endswith(",3.10,008")
    assert found[3].startswith("z,2.5,")
    assert found[4] == "w,4.0,5,010"
    assert len(found) == 14
    assert np.isfinite(pd.read_csv("out.csv")[["a", "b"]].to_numpy()).all()


def test_known_values_stay_to_the_last_digit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(40, 3)) * [1e-9, 1.0, 1e9]
    rows[::5, 1] = np.nan
    frame = pl.DataFrame(rows, schema=["a", "b", "c"]).with_columns(n=pl.lit("x"), k=pl.lit(3))
    frame.write_parquet("data.parquet")
    assert main(["complete", "data.parquet", "--quiet"]) == 0
    found = pl.read_parquet("data.completed.parquet")
    assert found.columns == ["a", "b", "c", "n", "k"]
    values = found[["a", "b", "c"]].to_numpy()
    assert np.array_equal(values[~np.isnan(rows)], rows[~np.isnan(rows)])
    assert np.isfinite(values).all()
    assert found["n"].to_list() == ["x"] * 40
    assert found["k"].dtype == pl.Int64 or found["k"].dtype == pl.Int32


def test_memories_of_another_table(gaps: pd.DataFrame) -> None:
    whole = IRIS.data.set_axis(["a", "b", "c", "d"], axis=1)[["d", "c", "b", "a"]]
    whole.to_csv("whole.csv", index=False)
    options = ["--memory", "whole.csv", "--sigma", "0.2", "--drop", "name", "--quiet"]
    assert main(["complete", "gaps.csv", *options]) == 0
    scaler = StandardScaler().fit(IRIS.data.to_numpy())
    Z = scaler.transform(IRIS.data.to_numpy())
    wanted = scaler.inverse_transform(by_hand(scaler.transform(numbers(gaps)), Z, 0.2))
    assert np.allclose(numbers(pd.read_csv("gaps.completed.csv")), wanted, rtol=1e-9)


def test_a_saved_model_completes_and_leaves_what_it_does_not_know(
    gaps: pd.DataFrame, capsys: pytest.CaptureFixture[str]
) -> None:
    learn = ["--drop", "name,d", "--save", "m.safetensors", "-o", "c.csv", "--quiet"]
    assert main(["cluster", "gaps.csv", *learn]) == 0
    use = ["--drop", "name", "--model", "m.safetensors"]
    assert main(["complete", "gaps.csv", *use]) == 0
    X = numbers(gaps)
    scaler = StandardScaler().fit(X[:, :3])
    Z = scaler.transform(X[:, :3])
    energy = ClAMCRP(random_state=0).fit(Z).energy_
    wanted = scaler.inverse_transform(energy.conditional_mean(Z, ~np.isnan(Z)).numpy())
    found = numbers(pd.read_csv("gaps.completed.csv"))
    assert np.allclose(found[:, :3], wanted, rtol=1e-9)
    assert np.array_equal(found[:, 3], X[:, 3], equal_nan=True)
    assert f"{np.isnan(X[:, 3]).sum()} cells in columns that the model" in capsys.readouterr().err


def test_the_error_that_is_told_is_about_the_error_that_is_made(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rng = np.random.default_rng(0)
    truth = 3 * rng.normal(size=(6, 4))[rng.integers(6, size=1500)] + rng.normal(size=(1500, 4))
    hidden = rng.random(truth.shape) < 0.1
    np.save("gaps.npy", np.where(hidden, np.nan, truth))
    assert main(["complete", "gaps.npy", "--energy", "kde", "--json", "--quiet"]) == 0
    summary = json.loads(capsys.readouterr().out)
    found = pd.read_csv("gaps.completed.csv").to_numpy()
    for place, column in enumerate(["x1", "x2", "x3", "x4"]):
        made = np.sqrt(np.mean((found - truth)[hidden[:, place], place] ** 2))
        assert summary["check"]["columns"][column]["error"] == pytest.approx(made, rel=0.25)
    scaled = ((found - truth) / np.nanstd(np.where(hidden, np.nan, truth), axis=0))[hidden]
    assert summary["check"]["error"] == pytest.approx(np.sqrt(np.mean(scaled**2)), rel=0.15)
    assert summary["check"]["error"] < 0.75 * summary["check"]["error_of_column_means"]
    assert (summary["missing"], summary["left_empty"]) == (hidden.sum(), 0)


def test_unrelated_columns_are_told_to_be_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    rows = np.random.default_rng(0).normal(size=(120, 2))
    rows[::4, 0] = np.nan
    pd.DataFrame(rows, columns=["a", "b"]).to_csv("noise.csv", index=False)
    assert main(["complete", "noise.csv", "--quiet"]) == 0
    assert "Column means would do as well" in capsys.readouterr().out


def test_hidden_cells_are_filled_from_other_rows_only() -> None:
    """A row that was its own memory would have no error, as rows with twins elsewhere have none."""
    rows = np.random.default_rng(0).normal(size=(60, 3))
    patterns = np.array([[True, False, False]])
    found = check(rows, patterns, [Candidate("kde", 0.002)], "mean", seed=0)
    assert found is not None
    assert found.overall > 0.7
    assert np.isnan(found.errors[1:]).all()
    assert found.cells == 30
    pairs = check(np.repeat(rows, 9, axis=0), patterns, [Candidate("kde", 0.002)], "mean", seed=0)
    assert pairs is not None
    assert pairs.overall < 0.1


def test_the_candidate_with_the_lowest_error_is_chosen() -> None:
    angle = np.random.default_rng(0).uniform(0, 2 * np.pi, 300)
    rows = np.stack([np.cos(angle), np.sin(angle), angle / 3], axis=1)
    patterns = np.array([[False, False, True], [True, False, False]])
    tried = candidates("kde", None)
    found = check(rows, patterns, tried, "mean", seed=0)
    alone = {}
    for one in tried:
        checked = check(rows, patterns, [one], "mean", seed=0)
        assert checked is not None
        alone[one.sigma] = checked.overall
    assert found is not None
    assert alone[found.chosen.sigma] <= 1.1 * min(alone.values())
    assert found.overall == pytest.approx(alone[found.chosen.sigma])


def test_rows_without_gaps_are_not_touched_by_filling() -> None:
    rows = np.random.default_rng(0).normal(size=(20, 2))
    energy = learned_energy(Candidate("kde", 0.5), rows, 0)
    assert np.array_equal(fill(energy, rows, "mean"), rows)


def test_a_table_without_gaps_is_copied_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("data.csv").write_text("n,a\nx,1.0\ny,2.50\n")
    assert main(["complete", "data.csv", "--quiet"]) == 0
    assert "No cell of the 2 rows is missing" in capsys.readouterr().out
    assert Path("data.completed.csv").read_text() == Path("data.csv").read_text()


@pytest.mark.parametrize("suffix", [".csv", ".json"])
def test_ids_are_no_features_and_are_written_as_they_were(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    suffix: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    values = np.random.default_rng(0).normal(size=(12, 2)).round(3).astype(str)
    values[5, 1] = ""
    header = ["customer_id,a,b,group_id"]
    lines = [f"{50 - n},{a},{b},{n // 5}" for n, (a, b) in enumerate(values)]
    Path("t.csv").write_text("\n".join(header + lines))
    Path("plain.csv").write_text("\n".join(line.split(",", 1)[1] for line in header + lines))
    command = ["complete", "t.csv", "--sigma", "1", "-o", f"out{suffix}"]
    assert main(command) == 0
    assert "'customer_id', by its name, is taken for the ids" in capsys.readouterr().err
    assert main(["complete", "plain.csv", "--sigma", "1", "-o", "plain_out.csv"]) == 0
    found = pd.read_csv("out.csv") if suffix == ".csv" else pd.read_json("out.json")
    assert list(found.columns) == header[0].split(",")
    assert list(found["customer_id"]) == list(range(50, 38, -1))
    assert np.allclose(found.iloc[:, 1:], pd.read_csv("plain_out.csv"), rtol=1e-12)
    # A memory may have fewer distinct ones, which are then a column that is not looked at.
    Path("memory.csv").write_text("\n".join([*header, *lines, lines[0]]))
    assert main([*command, "--memory", "memory.csv"]) == 0


def test_rows_and_columns_of_little_are_completed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("one.csv").write_text("a\n1\nNA\n3\n2\n4\n")
    assert main(["complete", "one.csv", "--quiet", "-o", "-"]) == 0
    assert capsys.readouterr().out.splitlines()[2] == "2.5"
    Path("row.csv").write_text("a,b,c\n1,2,5\n,,\n3,4,5\n2,,5\n2,3,5\n1,1,5\n")
    assert main(["complete", "row.csv", "--quiet"]) == 0
    assert np.isfinite(pd.read_csv("row.completed.csv").to_numpy()).all()


@pytest.mark.parametrize(
    ("options", "words"),
    [
        (["absent.csv"], "cannot be read"),
        (["few.csv", "--energy", "kde"], "too few complete rows"),
        (["few.csv", "--sigma", "1"], "rows are complete, too few"),
        (["few.csv", "--sigma", "0"], "not a number above zero"),
        (["few.csv", "--sigma", "1", "--energy", "crp"], "not of crp"),
        (["few.csv", "--memory", "other.csv"], "no column of numbers called 'a'"),
        (["few.csv", "--model", "other.csv"], "not a readable isthmus model"),
        (["few.csv", "--model", "m", "--energy", "kde"], "learned already"),
        (["few.csv", "-o", "few.csv"], "is the data itself"),
        (["few.csv", "--memory", "other.csv", "-o", "other.csv"], "is the data itself"),
        (["few.csv", "-o", "-", "--json"], "choose one"),
        (["bad.csv"], "line 3, column 'a': 'x'"),
    ],
)
def test_bad_input_ends_with_2_and_one_line_and_no_file(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    options: list[str],
    words: str,
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("few.csv").write_text("a,b,c\n1,2,x\n,3,y\n4,,z\n")
    Path("other.csv").write_text("c,d\n1,2\n")
    Path("bad.csv").write_text("a,b\n1,2\nx,3\n4,\n")
    before = {path.name: path.read_bytes() for path in tmp_path.iterdir()}
    assert main(["complete", *options]) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.count("\n") == 1
    assert words in captured.err
    assert {path.name: path.read_bytes() for path in tmp_path.iterdir()} == before


def test_the_page_on_the_command_line_shows_what_is_printed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    page = (Path(__file__).parents[2] / "docs" / "cli.md").read_text()
    exec(re.search(r"^```python\n(.*?)^```$", page, re.MULTILINE | re.DOTALL)[1], {})
    shown = re.findall(
        r"```sh\nisthmus ((?:cluster|complete) [^\n]*)\n```\n\n```text\n(.*?)```", page, re.DOTALL
    )
    assert len(shown) == 2
    for command, wanted in shown:
        assert main(command.split()) == 0
        assert capsys.readouterr().out == wanted
