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
def test_every_option_reaches_the_library(data, options, settings, sampling, capsys) -> None:
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


def test_a_saved_model_takes_the_place_of_the_data(data, tmp_path, capsys) -> None:
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


def test_the_default_keeps_the_types_of_columns_and_checks_the_draws(tmp_path, capsys) -> None:
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
    assert "class" in streams.err
    expected = draw_rows(frame[list(found)], 200)
    pd.testing.assert_frame_equal(found, expected.rows, rtol=1e-9, check_dtype=False)
    assert main(["sample", str(data), "-n", "3", "--label", "class", "--json", "--quiet"]) == 0
    streams = capsys.readouterr()
    printed = json.loads(streams.out)
    assert streams.err == ""
    assert 0 <= printed["auc"] <= 1
    assert printed["copies"] == 0


def test_small_tables_of_numbers_are_drawn_in_context(data, capsys) -> None:
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


def test_draws_are_given_values_and_ranges(tmp_path, capsys) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(18, 80, 90), "sex": ["f", "m"] * 45})
    table["pay"] = table.age * 10 + rng.normal(size=90).round(2)
    table.loc[::9, "pay"] = np.nan
    path, out = tmp_path / "people.csv", tmp_path / "drawn.csv"
    table.to_csv(path, index=False)
    words = ["sample", str(path), "-n", "40", "-o", str(out), "--no-check", "--quiet"]
    assert main([*words, "--given", "age=30..40", "--given", "sex=f"]) == 0
    drawn = pd.read_csv(out)
    assert drawn.age.between(30, 40).all()
    assert set(drawn.sex) == {"f"}
    for wrong in ("age=x", "age", "sex=q", "shoe=3"):
        assert main([*words, "--given", wrong]) == 2
