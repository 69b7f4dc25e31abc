"""`isthmus certify`: its results are those of the library and of brute force."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

import isthmus as ist
from isthmus.capacity import certify, choose_sigma, phases
from isthmus.cli.main import main

X = np.random.default_rng(3).uniform(-8, 8, (30, 2))


def written(path: Path, table: np.ndarray, names: str = "east,north") -> Path:
    np.savetxt(path, table, delimiter=",", header=names, comments="", fmt="%.17g")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "points.csv", X)


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
def test_the_certificate_is_that_of_the_library(data, options, sigma, capsys) -> None:
    rows = (X - X.mean(0)) / X.std(0) if "--standardise" in options else X
    model = "hopfield" if "hopfield" in options else "kde"
    iterate = "none" if "none" in options else "all"
    memory = ist.ModernHopfield(rows, 2.0) if model == "hopfield" else ist.GaussianKDE(rows, sigma)
    expected = certify(memory, iterate=iterate)
    assert main(["certify", str(data), *options]) == 0
    text = capsys.readouterr().out
    assert text.startswith(f"{expected}\n")
    assert (", beta 2, " in text) == (model == "hopfield")
    assert ("not standardised" in text) == ("--standardise" not in options)
    assert main(["certify", str(data), *options, "--json", "--quiet", "--seed", "3"]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    printed = json.loads(streams.out, parse_constant=pytest.fail)
    assert printed.items() >= expected.summary.items()
    assert printed["columns"] == ["east", "north"]
    assert printed["sigma_chosen"] == ("auto" in options or not options)
    assert printed["standardised"] == ("--standardise" in options)


def test_rows_have_ids_and_go_to_a_file_or_to_stdout(tmp_path, capsys) -> None:
    lines = [f"p{row},{a:.17g},{b:.17g}" for row, (a, b) in enumerate(X)]
    named, out = tmp_path / "named.csv", tmp_path / "rows.csv"
    named.write_text("basin,east,north\n" + "\n".join(lines))
    command = ["certify", str(named), "--id", "basin", "--sigma", "0.5", "-o"]
    assert main([*command, str(out)]) == 0
    assert f"rows written to  {out}" in capsys.readouterr().out
    rows, expected = pd.read_csv(out), certify(X, 0.5).to_frame().replace(np.inf, np.nan)
    assert list(rows.pop("basin_given")) == [f"p{row}" for row in range(30)]
    pd.testing.assert_frame_equal(rows, expected[list(rows)], check_dtype=False)
    squared = ((X[:, None] - X) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    np.testing.assert_allclose(rows["separation"], 0.5 * squared.min(1), rtol=1e-9)
    assert main([*command, "-"]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_one_row_is_stored_and_has_no_radius(tmp_path, capsys) -> None:
    data, out = written(tmp_path / "one.csv", X[:1]), tmp_path / "one.json"
    assert main(["certify", str(data), "-o", str(out)]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 pattern stored (100.0%)")
    row = json.loads(out.read_text(), parse_constant=pytest.fail)[0]
    assert row["guaranteed_radius"] is None
    assert row["stored"] is True


def test_noise_is_that_of_the_library_with_its_length(data, tmp_path) -> None:
    rows = tmp_path / "rows.csv"
    options = ["--sigma", "0.5", "--noise", "--delta", "0.01", "-o", str(rows), "--quiet"]
    assert main(["certify", str(data), *options]) == 0
    expected = certify(X, 0.5, noise=True, delta=0.01).noise
    found = pd.read_csv(rows)
    np.testing.assert_allclose(found["noise"], expected)
    np.testing.assert_allclose(found["noise_norm"], expected * 2**0.5)


def test_phases_are_those_of_the_library(data, tmp_path, capsys) -> None:
    figure = tmp_path / "phases.png"
    assert main(["certify", str(data), "--phases", "--json", "--plot", str(figure)]) == 0
    printed = json.loads(capsys.readouterr().out, parse_constant=pytest.fail)
    assert printed.items() >= phases(X).to_dict().items()
    assert figure.read_bytes().startswith(b"\x89PNG")
    assert main(["certify", str(data), "--phases", "--sigma", "1"]) == 2
    assert "--sigma" in capsys.readouterr().err
