"""`isthmus sample`: options reach sample_table, and a seed fixes every byte."""

import io
import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from isthmus.cli.main import main
from isthmus.cluster import TableModel
from isthmus.synthesis import draw_rows

X = np.random.default_rng(0).normal(size=(60, 3)) * [100, 1, 0.01] + [1000, -5, 0.3]
COLUMNS = ["mass", "charge", "size"]


@pytest.fixture
def data(tmp_path: Path) -> Path:
    path = tmp_path / "points.csv"
    pd.DataFrame(X, columns=COLUMNS).to_csv(path, index=False)
    return path


@pytest.mark.parametrize(
    ("options", "settings", "sampling"),
    [
        (["--energy", "kde"], {}, {}),
        (["--sigma", "0.4", "--seed", "5"], {"sigma": 0.4, "seed": 5}, {"seed": 5}),
        (
            ["--energy", "hopfield", "--beta", "2", "--no-standardise"],
            {"method": "hopfield", "beta": 2, "standardise": False},
            {},
        ),
        (["--energy", "elbo", "-k", "2"], {"method": "elbo", "n_clusters": 2}, {}),
        (
            ["--sampler", "mala", "--steps", "20", "--chains", "5", "--step-size", "0.1"],
            {},
            {"sampler": "mala", "burn_in": 20, "chains": 5, "step_size": 0.1},
        ),
    ],
)
def test_every_option_reaches_the_library(
    data: Path,
    options: list[str],
    settings: dict,
    sampling: dict,
    capsys: pytest.CaptureFixture[str],
) -> None:
    model = TableModel.fit(X, columns=COLUMNS, **{"method": "kde", **settings})
    expected, chains = model.sample(7, **sampling)
    assert main(["sample", str(data), "-n", "7", *options]) == 0
    streams = capsys.readouterr()
    found = pd.read_csv(io.StringIO(streams.out))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    assert ("R-hat" in streams.err) == (chains is not None)
    assert main(["sample", str(data), "-n", "7", *options, "--json", "--quiet"]) == 0
    streams = capsys.readouterr()
    printed = json.loads(streams.out, parse_constant=pytest.fail)
    assert streams.err == ""
    pd.testing.assert_frame_equal(pd.DataFrame(printed["rows"]), expected, rtol=1e-9)
    assert printed["sigma"] == pytest.approx(float(model.energy.sigma))
    if chains is not None:
        assert printed["chains"]["largest_r_hat"] == pytest.approx(float(chains.r_hat.max()))


def test_chains_that_do_not_mix_are_reported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "apart.csv"
    data.write_text("a\n0\n1\n50\n51\n")
    command = ["sample", str(data), "-n", "10", "--sigma", "0.01", "--sampler", "mala"]
    assert main([*command, "--steps", "20"]) == 0
    assert "do not agree" in capsys.readouterr().err


def test_a_saved_model_takes_the_place_of_the_data(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = tmp_path / "groups.model"  # known by its contents, not by its name
    command = ["cluster", str(data), "-k", "2", "--save", str(model), "--quiet"]
    assert main([*command, "-o", str(tmp_path / "labels.csv")]) == 0
    capsys.readouterr()
    assert main(["sample", str(model), "-n", "50"]) == 0
    found = pd.read_csv(io.StringIO(capsys.readouterr().out))
    expected = TableModel.fit(X, columns=COLUMNS, n_clusters=2).sample(50)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert main(["sample", str(model), "--sigma", "1"]) == 2
    assert "fitted already" in capsys.readouterr().err


IMPOSSIBLE = {
    "no data": (["{tmp}/none.csv"], "cannot be read"),
    "no model": (["{tmp}/none.safetensors"], "none.safetensors"),
    "not a model": (["{tmp}/fake.safetensors"], "not a readable isthmus model"),
    "text": (["{tmp}/text.csv"], "no column of numbers"),
    "gaps": (["{tmp}/gaps.csv"], "missing"),
    "none": (["{data}", "-n", "0"], "whole number from 1"),
    "negative": (["{data}", "--sigma", "-1"], "above 0"),
    "no clusters": (["{data}", "--energy", "clam"], "clusters"),
    "clusters of rows": (["{data}", "-k", "2"], "n_clusters is for elbo"),
    "bandwidth of clusters": (["{data}", "--energy", "crp", "--sigma", "1"], "sigma is for kde"),
    "two of one": (["{data}", "--sigma", "1", "--beta", "1"], "give one"),
    "steps of exact": (["{data}", "--step-size", "1"], "for langevin, mala and hmc"),
    "diverging": (["{tmp}/two.csv", "--sampler", "langevin", "--step-size", "1e6"], "step"),
    "nowhere": (["{data}", "-o", "{tmp}/no/rows.csv"], "/no"),
    "the data": (["{data}", "-o", "{data}"], "the data itself"),
    "two on stdout": (["{data}", "-o", "-", "--json"], "choose one"),
    "one row": (["{tmp}/one.csv"], "two or more"),
    "one row of kde": (["{tmp}/one.csv", "--energy", "kde"], "sigma"),
    "outside of others": (["{data}", "--energy", "crp", "--outside"], "tables and kernel"),
    "chains of tables": (["{data}", "--energy", "tables", "--sampler", "mala"], "exact draws"),
    "bandwidth of tables": (["{data}", "--energy", "tables", "--sigma", "1"], "exact draws"),
    "small for tables": (["{tmp}/two.csv", "--energy", "tables"], "5 to 1,024 rows"),
    "too many clusters": (["{tmp}/one.csv", "--energy", "clam", "-k", "9"], "n_clusters=9"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_bad_input_is_one_clear_line_and_leaves_no_file(
    case: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.csv").write_text("name,place\nAda,London\n")
    (tmp_path / "gaps.csv").write_text("x,y\n1,2\n3,\n")
    (tmp_path / "fake.safetensors").write_text("not a model")
    (tmp_path / "one.csv").write_text("name,x\nAda,1\n")
    (tmp_path / "two.csv").write_text("name,x\nAda,1\nBob,2\n")
    before = sorted(tmp_path.iterdir())
    arguments, words = IMPOSSIBLE[case]
    out = [] if "-o" in arguments else ["-o", "{tmp}/out.csv"]
    command = [word.format(tmp=tmp_path, data=data) for word in (*arguments, *out)]
    assert main(["sample", *command]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("isthmus: ")
    assert streams.err.count("\n") == 1
    assert words in streams.err
    assert sorted(tmp_path.iterdir()) == before


def test_the_default_keeps_the_types_of_columns_and_checks_the_draws(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, rng = tmp_path / "people.csv", np.random.default_rng(0)
    age = rng.integers(20, 70, 90)
    frame = pd.DataFrame({"id": range(90), "age": age, "pay": (age * 1.5).round(2)})
    frame["kind"], frame["same"], frame["class"] = rng.choice(["a", "b"], 90), 7, np.arange(90) % 3
    frame["note"] = [f"text {row}" for row in range(90)]
    frame.to_csv(data, index=False)
    assert main(["sample", str(data), "-n", "200"]) == 0
    streams = capsys.readouterr()
    found = pd.read_csv(io.StringIO(streams.out))
    assert list(found) == ["age", "pay", "kind", "same", "class"]
    assert found.age.dtype == int
    assert found.age.between(age.min(), age.max()).all()
    assert set(found.kind) == {"a", "b"}
    assert set(found.same) == {7}
    for words in ("'class' looks like a label", "--drop class", "AUC", "categories: kind", "note"):
        assert words in streams.err
    expected = draw_rows(frame[list(found)], 200)
    pd.testing.assert_frame_equal(found, expected.rows, rtol=1e-9, check_dtype=False)
    assert main(["sample", str(data), "-n", "3", "--label", "class", "--json", "--quiet"]) == 0
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert streams.err == ""
    assert 0 <= printed["auc"] <= 1
    assert printed["copies"] == 0


def test_small_tables_of_numbers_are_drawn_in_context(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = {}
    for energy in (None, "tables", "kernel"):
        more = [] if energy is None else ["--energy", energy]
        assert main(["sample", str(data), "-n", "5", "--no-check", *more]) == 0
        printed[energy] = capsys.readouterr()
    assert printed[None] == printed["tables"]
    assert "in-context density of tables" in printed[None].err
    assert "kernel" in printed["kernel"].err
    found = pd.read_csv(io.StringIO(printed[None].out))
    expected = draw_rows(pd.read_csv(data), 5, model="tables", check=False)
    pd.testing.assert_frame_equal(found, expected.rows, rtol=1e-9)
