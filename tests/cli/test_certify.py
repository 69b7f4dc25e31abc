"""`isthmus certify`: options reach certify_table, and its results reach files and stdout."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from matplotlib.image import imread

from isthmus.capacity import certify_table
from isthmus.cli.main import main

X = np.random.default_rng(3).uniform(-8, 8, (30, 2))


def written(path: Path, table: np.ndarray, names: str = "east,north") -> Path:
    np.savetxt(path, table, delimiter=",", header=names, comments="", fmt="%.17g")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "points.csv", X)


@pytest.mark.parametrize(
    ("options", "settings"),
    [
        ([], {}),
        (["--sigma", "auto", "--stored", "0.5"], {"stored": 0.5}),
        (["--sigma", "0.8", "--standardise"], {"sigma": 0.8, "standardise": True}),
        (["--model", "hopfield", "--beta", "2"], {"model": "hopfield", "beta": 2}),
        (["--sigma", "9", "--iterate", "none"], {"sigma": 9, "iterate": "none"}),
    ],
)
def test_the_summary_is_that_of_the_library(
    data: Path, options: list[str], settings: dict, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = certify_table(X, columns=["east", "north"], **settings)
    assert main(["certify", str(data), *options]) == 0
    assert capsys.readouterr().out == f"{expected}\n"
    assert main(["certify", str(data), *options, "--json", "--quiet", "--seed", "3"]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    printed = json.loads(streams.out, parse_constant=pytest.fail)
    assert printed == expected.summary | {"left_out": []}


def test_rows_have_ids_and_go_to_a_file_or_to_stdout(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    lines = [f"p{row},{a:.17g},{b:.17g}" for row, (a, b) in enumerate(X)]
    named, out = tmp_path / "named.csv", tmp_path / "rows.csv"
    named.write_text("basin,east,north\n" + "\n".join(lines))
    command = ["certify", str(named), "--id", "basin", "--sigma", "0.5", "-o"]
    assert main([*command, str(out)]) == 0
    assert f"rows written to  {out}" in capsys.readouterr().out
    rows = pd.read_csv(out)
    assert list(rows.pop("basin_given")) == [f"p{row}" for row in range(30)]
    for name, values in certify_table(X, sigma=0.5).to_columns().items():
        expected = pd.Series(values)
        pd.testing.assert_series_equal(rows[name], expected, check_names=False, check_dtype=False)
    assert main([*command, "-"]) == 0
    assert capsys.readouterr().out == out.read_text()


def test_one_row_is_stored_and_has_no_radius(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = written(tmp_path / "one.csv", X[:1]), tmp_path / "one.json"
    assert main(["certify", str(data), "-o", str(out)]) == 0
    assert capsys.readouterr().out.startswith("1 of 1 row is stored (100.0%)")
    row = json.loads(out.read_text(), parse_constant=pytest.fail)[0]
    assert row["guaranteed_radius"] is None
    assert row["stored"] is True


def test_notes_are_printed(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    data = written(tmp_path / "uneven.csv", X * [1000, 1])
    assert main(["certify", str(data), "--sigma", "1"]) == 0
    assert "--standardise" in capsys.readouterr().err


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_the_figure_shows_rows_of_any_number_of_columns(columns: int, tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(12, columns))
    data = written(tmp_path / "points.csv", table, ",".join("abc"[:columns]))
    figure = tmp_path / "rows.png"
    command = ["certify", str(data), "--sigma", "0.3", "--plot", str(figure), "--quiet"]
    assert main(command) == 0
    assert imread(figure).shape[1] == 1600


IMPOSSIBLE = {
    "no data": (["{tmp}/none.csv"], "cannot be read"),
    "text": (["{tmp}/text.csv"], "no column of numbers"),
    "gap": (["{tmp}/gap.csv"], "missing"),
    "infinite": (["{tmp}/infinite.csv"], "infinite"),
    "negative": (["{data}", "--sigma", "-1"], "must be a finite number above 0, not -1"),
    "words": (["{data}", "--sigma", "wide"], "'wide' is not a number"),
    "share": (["{data}", "--stored", "1.5"], "at most 1, not 1.5"),
    "two of one": (["{data}", "--sigma", "1", "--beta", "1"], "give one"),
    "no beta": (["{data}", "--model", "hopfield"], "needs beta"),
    "no such model": (["{data}", "--model", "gpt"], "gpt"),
    "nowhere": (["{data}", "-o", "{tmp}/no/rows.csv"], "{tmp}/no"),
    "what format": (["{data}", "-o", "{tmp}/rows.docx"], ".parquet"),
    "the data": (["{data}", "-o", "{data}"], "the data itself"),
    "no picture": (["{data}", "--plot", "{tmp}/rows.txt"], ".png"),
    "one file twice": (["{data}", "-o", "{tmp}/a.csv", "--plot", "{data}"], ".png"),
    "too large": (["{tmp}/huge.csv"], "too large"),
    "too small": (["{tmp}/tiny.csv"], "too small"),
    "no place for a picture": (["{data}", "--plot", "{tmp}/no/a.png"], "--plot {tmp}/no/a.png:"),
    "two on stdout": (["{data}", "-o", "-", "--json"], "choose one"),
    "duplicates": (["{tmp}/twins.csv"], "exact duplicate"),
}


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_bad_input_is_one_clear_line_and_leaves_no_file(
    case: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.csv").write_text("name,place\nAda,London\n")
    (tmp_path / "gap.csv").write_text("x,y\n1,2\n3,\n4,nan\n")
    (tmp_path / "infinite.csv").write_text("x,y\n1,2\n3,inf\n")
    (tmp_path / "huge.csv").write_text("x,y\n1e200,2\n3,4\n")
    (tmp_path / "tiny.csv").write_text("x,y\n1e-200,2\n3e-201,4\n")
    (tmp_path / "twins.csv").write_text("who,x,y\na,1,200\nb,1,200\nc,2,0\nd,2,0\n")
    before = sorted(tmp_path.iterdir())
    arguments, words = IMPOSSIBLE[case]
    out = [] if "-o" in arguments else ["-o", "{tmp}/out.csv"]
    command = [word.format(tmp=tmp_path, data=data) for word in (*arguments, *out)]
    assert main(["certify", *command]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.startswith("isthmus: ")
    assert streams.err.count("\n") == 1
    assert words.format(tmp=tmp_path) in streams.err
    assert sorted(tmp_path.iterdir()) == before
