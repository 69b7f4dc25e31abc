"""`isthmus certify`: its results are those of the library and of brute force."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import isthmus as ist
from isthmus.capacity import certify, choose_sigma, phases

X = np.random.default_rng(3).uniform(-8, 8, (30, 2))


def written(name: str, table: np.ndarray) -> None:
    np.savetxt(name, table, delimiter=",", header="east,north", comments="", fmt="%.17g")


@pytest.mark.parametrize(
    ("options", "sigma"),
    [
        ([], choose_sigma(X, 29 / 30).sigma),  # 0.95 of 30, rounded up
        (["--sigma", "auto", "--stored", "0.5"], choose_sigma(X, 0.5).sigma),
        (["--sigma", "0.8", "--standardise"], 0.8),
        (["--model", "hopfield", "--beta", "2"], 2**-0.5),
        (["--sigma", "9", "--iterate", "none"], 9),
    ],
)
def test_the_certificate_is_that_of_the_library(run, options, sigma) -> None:
    written("points.csv", X)
    rows = (X - X.mean(0)) / X.std(0) if "--standardise" in options else X
    model = "hopfield" if "hopfield" in options else "kde"
    iterate = "none" if "none" in options else "all"
    memory = ist.ModernHopfield(rows, 2.0) if model == "hopfield" else ist.GaussianKDE(rows, sigma)
    expected = certify(memory, iterate=iterate)
    text = run("certify points.csv", *options).out
    assert text.startswith(f"{expected}\n")
    assert (", beta 2, " in text) == (model == "hopfield")
    assert ("not standardised" in text) == ("--standardise" not in options)
    streams = run("certify points.csv --json --quiet --seed 3", *options)
    assert streams.err == ""
    printed = json.loads(streams.out, parse_constant=pytest.fail)
    assert printed.items() >= expected.summary.items()
    assert printed["columns"] == ["east", "north"]
    assert printed["sigma_chosen"] == ("auto" in options or not options)
    assert printed["standardised"] == ("--standardise" in options)


def test_rows_have_ids_and_go_to_a_file_or_to_stdout(run) -> None:
    lines = [f"p{row},{a:.17g},{b:.17g}" for row, (a, b) in enumerate(X)]
    Path("named.csv").write_text("basin,east,north\n" + "\n".join(lines))
    command = "certify named.csv --id basin --sigma 0.5 -o"
    assert "rows written to  rows.csv" in run(command, "rows.csv").out
    rows, expected = pd.read_csv("rows.csv"), certify(X, 0.5).to_frame().replace(np.inf, np.nan)
    assert list(rows.pop("basin_given")) == [f"p{row}" for row in range(30)]
    pd.testing.assert_frame_equal(rows, expected[list(rows)], check_dtype=False)
    squared = ((X[:, None] - X) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    np.testing.assert_allclose(rows["separation"], 0.5 * squared.min(1), rtol=1e-9)
    assert run(command, "-").out == Path("rows.csv").read_text()


def test_one_row_is_stored_and_has_no_radius(run) -> None:
    written("one.csv", X[:1])
    assert run("certify one.csv -o one.json").out.startswith("1 of 1 pattern stored (100.0%)")
    row = json.loads(Path("one.json").read_text(), parse_constant=pytest.fail)[0]
    assert row["guaranteed_radius"] is None
    assert row["stored"] is True


def test_noise_is_that_of_the_library_with_its_length(run) -> None:
    written("points.csv", X)
    run("certify points.csv --sigma 0.5 --noise --delta 0.01 -o rows.csv --quiet")
    expected = certify(X, 0.5, noise=True, delta=0.01).noise
    found = pd.read_csv("rows.csv")
    np.testing.assert_allclose(found["noise"], expected)
    np.testing.assert_allclose(found["noise_norm"], expected * 2**0.5)


def test_phases_are_those_of_the_library(run) -> None:
    written("points.csv", X)
    text = run("certify points.csv --phases --json --plot phases.png").out
    printed = json.loads(text, parse_constant=pytest.fail)
    assert printed.items() >= phases(X).to_dict().items()
    assert Path("phases.png").read_bytes().startswith(b"\x89PNG")
    assert "--sigma" in run("certify points.csv --phases --sigma 1", code=2).err
