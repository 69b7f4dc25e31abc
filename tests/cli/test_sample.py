"""`isthmus sample`: options reach sample_table, and a seed fixes every byte."""

import io
import json

import numpy as np
import pandas as pd
import pytest

from isthmus.cluster import TableModel
from isthmus.synthesis import draw_rows
from isthmus.tables import write_table

X = np.random.default_rng(0).normal(size=(60, 3)) * [100, 1, 0.01] + [1000, -5, 0.3]
COLUMNS = ["mass", "charge", "size"]


@pytest.fixture(autouse=True)
def points(run) -> None:
    pd.DataFrame(X, columns=COLUMNS).to_csv("points.csv", index=False)


@pytest.mark.parametrize(
    ("options", "settings", "sampling"),
    [
        (["--sigma", "0.4", "--seed", "5"], {"sigma": 0.4, "seed": 5}, {"seed": 5}),
        (["--energy", "hopfield", "--beta", "2"], {"method": "hopfield", "beta": 2}, {}),
        (["--no-standardise"], {"standardise": False}, {}),
        (["--energy", "elbo", "-k", "2"], {"method": "elbo", "n_clusters": 2}, {}),
        (
            ["--sampler", "mala", "--steps", "20", "--chains", "5", "--step-size", "0.1"],
            {},
            {"sampler": "mala", "burn_in": 20, "chains": 5, "step_size": 0.1},
        ),
    ],
)
def test_every_option_reaches_the_library(run, options, settings, sampling) -> None:
    model = TableModel.fit(X, columns=COLUMNS, **{"method": "kde", **settings})
    expected, chains = model.sample(7, **sampling)
    streams = run("sample points.csv -n 7", *options)
    found = pd.read_csv(io.StringIO(streams.out))
    pd.testing.assert_frame_equal(found, expected, rtol=1e-9)
    assert ("R-hat" in streams.err) == (chains is not None)
    streams = run("sample points.csv -n 7 --json --quiet", *options)
    printed = json.loads(streams.out, parse_constant=pytest.fail)
    assert streams.err == ""
    pd.testing.assert_frame_equal(pd.DataFrame(printed["rows"]), expected, rtol=1e-9)
    assert printed["sigma"] == pytest.approx(float(model.energy.sigma))
    if chains is not None:
        assert printed["chains"]["largest_r_hat"] == pytest.approx(float(chains.r_hat.max()))


def test_a_saved_model_takes_the_place_of_the_data(run) -> None:
    # It is known by its contents, not by its name.
    run("cluster points.csv -k 2 --save groups.model --quiet -o labels.csv")
    found = pd.read_csv(io.StringIO(run("sample groups.model -n 50").out))
    expected = TableModel.fit(X, columns=COLUMNS, n_clusters=2).sample(50)[0]
    np.testing.assert_allclose(found, expected, rtol=1e-9)
    assert "fitted already" in run("sample groups.model --sigma 1", code=2).err


def test_the_default_keeps_the_types_of_columns_and_checks_the_draws(run) -> None:
    rng = np.random.default_rng(0)
    age = rng.integers(20, 70, 90)
    frame = pd.DataFrame({"id": range(90), "age": age, "pay": (age * 1.5).round(2)})
    frame["kind"], frame["same"], frame["class"] = rng.choice(["a", "b"], 90), 7, np.arange(90) % 3
    frame["note"] = [f"text {row}" for row in range(90)]
    frame.to_csv("people.csv", index=False)
    streams = run("sample people.csv -n 200")
    found = pd.read_csv(io.StringIO(streams.out))
    assert list(found) == ["age", "pay", "kind", "same", "class"]
    assert found.age.dtype == int
    assert found.age.between(age.min(), age.max()).all()
    assert set(found.kind) == {"a", "b"}
    assert set(found.same) == {7}
    assert "class" in streams.err
    expected = draw_rows(frame[list(found)], 200)
    pd.testing.assert_frame_equal(found, expected.rows, rtol=1e-9, check_dtype=False)
    streams = run("sample people.csv -n 3 --label class --json --quiet")
    printed = json.loads(streams.out)
    assert streams.err == ""
    assert 0 <= printed["auc"] <= 1
    assert printed["copies"] == 0


def test_draws_are_given_values_and_gaps_are_written_as_the_table_is(run) -> None:
    rng = np.random.default_rng(0)
    table = pd.DataFrame({"age": rng.integers(18, 80, 90), "sex": ["f", "m"] * 45})
    table["rooms"] = pd.array(rng.integers(0, 9, 90), "Int64")
    table = table.mask(rng.random(table.shape) < [0, 0.2, 0.3])
    table.to_csv("people.csv", index=False)
    command = "sample people.csv -n 40 --no-check --quiet"
    drawn = pd.read_csv(io.StringIO(run(command).out), dtype=str)
    assert drawn.rooms.dropna().str.fullmatch(r"\d").all()
    assert drawn.rooms.isna().any()
    rows = json.loads(run(command, "--json").out, parse_constant=pytest.fail)["rows"]
    assert {row["sex"] for row in rows} == {"f", "m", None}
    run(f"{command} --given age=30..40 --given sex=f -o drawn.csv")
    drawn = pd.read_csv("drawn.csv")
    assert drawn.age.between(30, 40).all()
    assert set(drawn.sex) == {"f"}
    wrong = ("age=x", "age", "sex=q", "shoe=3", "age=1..2..3", "age=5..1", "age=nan", "age=")
    for words in wrong:
        run(command, "--given", words, code=2)
    low, high = int(table.age.min()), int(table.age.max())
    refused = run(command, "--given", "age=300..400", code=2).err
    assert f"'age'] is outside the range of the column, {low} to {high}" in refused


@pytest.mark.parametrize("suffix", ["csv", "xlsx", "parquet"])
def test_truth_values_and_whole_numbers_of_64_bits_stay_what_they_are(run, suffix) -> None:
    flags = pd.array([True, None, False, True] * 10, "boolean")
    large = 2**63 + 5000 * np.arange(40, dtype=np.uint64)
    table = pd.DataFrame({"x": np.arange(40.0), "flag": flags, "n": large})
    table.loc[::5, "x"] = np.nan
    write_table(table, f"flags.{suffix}")
    command = f"sample flags.{suffix} -n 20 --no-check --quiet"
    rows = pd.DataFrame(json.loads(run(command, "--json").out)["rows"])
    assert set(rows["flag"]) == {True, False, None}
    for word in ("TRUE", "1"):
        given = json.loads(run(f"{command} --given flag={word}", "--json").out)["rows"]
        assert {row["flag"] for row in given} == {True}
    assert "true or false" in run(f"{command} --given flag=maybe", code=2).err
    whole = r"\d+(\.0)?" if suffix == "csv" else r"\d+"  # text has 1.0, as pandas wrote it
    printed = pd.read_csv(io.StringIO(run(command).out), dtype=str)
    assert printed.x.dropna().str.fullmatch(whole).all()
    run(f"{command} -o drawn.parquet")
    drawn = pd.read_parquet("drawn.parquet")
    assert set(drawn["flag"].dropna()) == {True, False}
    assert drawn["n"].astype(np.uint64).between(large[0], large[-1]).all()


def test_tables_of_categories_alone_are_drawn_scored_and_asked(run) -> None:
    kinds = pd.DataFrame(
        {"sex": ["f", "m", "f", "f"] * 9, "town": ["Rome", "Oslo", "Rome", ""] * 9}
    )
    kinds.to_csv("kinds.csv", index=False)
    drawn = pd.read_csv(io.StringIO(run("sample kinds.csv -n 30 --no-check --quiet").out))
    assert not ((drawn.sex == "m") & (drawn.town == "Rome")).any()
    assert "36 rows" in run("density kinds.csv").out
    found = json.loads(run("ask kinds.csv --predict town --given sex=m --json --quiet").out)
    assert max(found["probabilities"], key=found["probabilities"].get) == "Oslo"
    assert "no column of numbers" in run("cluster kinds.csv", code=2).err


def test_given_numbers_have_the_decimal_mark_of_the_table(run) -> None:
    pd.DataFrame(X, columns=COLUMNS).to_csv("comma.csv", index=False, sep=";", decimal=",")
    command = "sample comma.csv -n 9 --no-check --quiet --json --given charge=-5,5..-4,25"
    rows = json.loads(run(command).out)["rows"]
    assert all(-5.5 <= row["charge"] <= -4.25 for row in rows)
