"""`isthmus certify`: what it says is what the library and brute force say."""

import csv
import json
from pathlib import Path

import numpy as np
import pytest
from matplotlib.image import imread

import isthmus as ist
from isthmus.capacity import certify, choose_sigma
from isthmus.cli.main import main

X = np.random.default_rng(3).uniform(-8, 8, (30, 2))


def written(path: Path, table: np.ndarray, names: str = "east,north") -> Path:
    np.savetxt(path, table, delimiter=",", header=names, comments="", fmt="%.17g")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "points.csv", X)


def summary(capsys: pytest.CaptureFixture[str], *arguments: object) -> dict:
    assert main(["certify", *map(str, arguments), "--json", "--quiet"]) == 0
    streams = capsys.readouterr()
    assert streams.err == ""
    return json.loads(streams.out, parse_constant=pytest.fail)


def test_rows_are_those_of_the_library_and_separations_those_of_brute_force(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    named = tmp_path / "named.csv"
    lines = [f"p{row},{a:.17g},{b:.17g}" for row, (a, b) in enumerate(X)]
    named.write_text("name,east,north\n" + "\n".join(lines))
    out = tmp_path / "rows.csv"
    assert main(["certify", str(named), "--id", "name", "--sigma", "0.5", "-o", str(out)]) == 0
    assert f"rows written to  {out}" in capsys.readouterr().out
    with out.open() as file:
        rows = list(csv.DictReader(file))
    assert [row["name"] for row in rows] == [f"p{row}" for row in range(30)]
    squared = ((X[:, None] - X) ** 2).sum(-1)
    np.fill_diagonal(squared, np.inf)
    found = [float(row["separation"]) for row in rows]
    np.testing.assert_allclose(found, 0.5 * squared.min(1), rtol=1e-9)
    certificate = certify(X, 0.5)
    for name in ("guaranteed_radius", "retrieval_error"):
        found = [float(row[name]) for row in rows]
        np.testing.assert_allclose(found, getattr(certificate, name), rtol=1e-9, atol=1e-12)
    bounds = [float(row["error_bound"] or "inf") for row in rows]
    np.testing.assert_allclose(bounds, certificate.error_bound)
    assert [row["stored"] == "True" for row in rows] == certificate.stored.tolist()
    assert [row["decided"] for row in rows] == certificate.decided.tolist()
    assert [int(row["basin"]) for row in rows] == certificate.basin.tolist()


def test_the_default_bandwidth_is_the_largest_that_stores_enough(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(capsys, data)
    assert found["sigma_chosen"] is True
    assert found["sigma"] == choose_sigma(X, 29 / 30).sigma  # 0.95 of 30, rounded up
    assert found["stored"] >= 29
    assert certify(X, 1.05 * found["sigma"]).stored.sum() < 29
    fewer = summary(capsys, data, "--sigma", "auto", "--stored", "0.5")
    assert fewer["sigma"] > found["sigma"]
    assert 15 <= fewer["stored"] < 29


def test_the_summary_counts_what_the_library_finds(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, certificate = summary(capsys, data, "--sigma", "0.8"), certify(X, 0.8)
    assert found["rows"] == 30
    assert found["columns"] == ["east", "north"]
    assert found["stored"] == certificate.stored.sum()
    assert found["proved"] == (certificate.decided == "proved").sum()
    assert found["proved"] + found["found_by_iterating"] == found["stored"]
    assert found["basins"] == len(set(certificate.basin))
    radii = certificate.guaranteed_radius[certificate.decided == "proved"]
    assert found["guaranteed_radius"]["median"] == pytest.approx(np.median(radii))
    assert main(["certify", str(data), "--sigma", "0.8"]) == 0
    words = capsys.readouterr().out
    assert words.startswith(f"{found['stored']} of 30 rows are stored")
    assert f"off by {np.median(radii):.3g} (median" in words
    assert "sigma 0.8" in words


def test_a_hopfield_network_is_that_of_the_library(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = summary(capsys, data, "--model", "hopfield", "--beta", "2")
    certificate = certify(ist.ModernHopfield(X, beta=2.0))
    assert found["model"] == "hopfield"
    assert found["beta"] == pytest.approx(2)
    assert found["stored"] == certificate.stored.sum()
    assert found["proved"] == (certificate.decided == "proved").sum()


def test_standardised_columns_count_alike_and_unlike_ones_are_worth_a_word(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path / "unlike.csv", X * [1000, 1])
    found = summary(capsys, data, "--standardise", "--sigma", "0.2")
    again = certify((X - X.mean(0)) / X.std(0), 0.2)
    assert found["standardised"] is True
    assert found["stored"] == again.stored.sum()
    assert main(["certify", str(data), "--sigma", "1"]) == 0
    assert "--standardise" in capsys.readouterr().err


def test_few_stored_rows_come_with_advice(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for arguments, words in {
        "--sigma 9": "--sigma auto",
        "--model hopfield --beta 0.001": "raise --beta",
        "--sigma 9 --iterate none": "leave out --iterate none",
    }.items():
        assert main(["certify", str(data), *arguments.split()]) == 0
        assert words in capsys.readouterr().out.split("\n\n")[-1]


def test_duplicates_are_told_and_the_others_stored(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    twins = np.vstack([X, X[:10]])
    found = summary(capsys, written(tmp_path / "twins.csv", twins))
    assert found["rows_with_a_twin"] == 20
    assert 19 <= found["stored"] <= 20
    data = written(tmp_path / "all.csv", np.vstack([X, X]))
    assert main(["certify", str(data)]) == 2
    assert "every row has an exact twin" in capsys.readouterr().err
    assert summary(capsys, data, "--sigma", "0.1")["stored"] == 0


def test_one_row_is_stored_whatever_the_query(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data, out = written(tmp_path / "one.csv", X[:1]), tmp_path / "one.json"
    assert main(["certify", str(data), "-o", str(out)]) == 0
    words = capsys.readouterr().out
    assert words.startswith("1 of 1 row is stored (100.0%)")
    assert "every query ends there" in words
    row = json.loads(out.read_text(), parse_constant=pytest.fail)[0]
    assert row["guaranteed_radius"] is None
    assert row["stored"] is True


def test_a_constant_column_changes_nothing(
    tmp_path: Path, data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    more = written(tmp_path / "more.csv", np.column_stack([X, np.full(30, 7.0)]), "east,north,same")
    for options in ([], ["--standardise"]):
        one, other = summary(capsys, data, *options), summary(capsys, more, *options)
        for name in ("stored", "proved", "basins"):
            assert one[name] == other[name]
        assert one["sigma"] == pytest.approx(other["sigma"])


@pytest.mark.parametrize("columns", [1, 2, 3])
def test_a_picture_of_rows_in_any_number_of_columns(columns: int, tmp_path: Path) -> None:
    table = np.random.default_rng(0).normal(size=(12, columns))
    data = written(tmp_path / "points.csv", table, ",".join("abc"[:columns]))
    picture = tmp_path / "rows.png"
    command = ["certify", str(data), "--sigma", "0.3", "--plot", str(picture), "--quiet"]
    assert main(command) == 0
    assert imread(picture).shape[1] == 1600


IMPOSSIBLE = {
    "no data": (["{tmp}/none.csv"], "cannot be read"),
    "text": (["{tmp}/text.csv"], "no column of numbers"),
    "gap": (["{tmp}/gap.csv"], "missing"),
    "infinite": (["{tmp}/infinite.csv"], "infinite"),
    "negative": (["{data}", "--sigma", "-1"], "'-1' is not a number above zero"),
    "words": (["{data}", "--sigma", "wide"], "'wide'"),
    "share": (["{data}", "--stored", "1.5"], "share"),
    "two of one": (["{data}", "--sigma", "1", "--beta", "1"], "give one"),
    "no beta": (["{data}", "--model", "hopfield"], "--beta"),
    "stored for nothing": (["{data}", "--sigma", "1", "--stored", "0.5"], "--sigma auto"),
    "no such model": (["{data}", "--model", "gpt"], "gpt"),
    "nowhere": (["{data}", "-o", "{tmp}/no/rows.csv"], "make it first"),
    "what format": (["{data}", "-o", "{tmp}/rows.xlsx"], ".parquet"),
    "the data": (["{data}", "-o", "{data}"], "the data itself"),
    "no picture": (["{data}", "--plot", "{tmp}/rows.txt"], ".png"),
    "too large": (["{tmp}/huge.csv"], "too large"),
    "too small": (["{tmp}/tiny.csv"], "too small"),
    "no place for a picture": (["{data}", "--plot", "{tmp}/no/a.png"], "--plot {tmp}/no/a.png:"),
    "two on stdout": (["{data}", "-o", "-", "--json"], "choose one"),
    "twins": (["{tmp}/twins.csv"], "exact twin"),
}


def test_rows_go_to_stdout_alone_if_asked(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = data.with_name("rows.csv")
    assert main(["certify", str(data), "-o", str(out)]) == 0
    capsys.readouterr()
    assert main(["certify", str(data), "-o", "-"]) == 0
    assert capsys.readouterr().out == out.read_text()


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_the_impossible_is_one_clear_line_and_leaves_nothing(
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
