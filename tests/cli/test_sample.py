"""`isthmus sample`: draws follow the density they are said to, and a seed fixes every byte."""

import io
import json
from pathlib import Path

import numpy as np
import pytest
from scipy import stats

import isthmus as ist
from isthmus.cli import bandwidth
from isthmus.cli.bandwidth import leave_one_out_sigma
from isthmus.cli.main import main

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 3)) @ [[100, 30, 0], [0, 1, 0], [0, 0, 0.01]] + [1000, -5, 0.3]


def written(path: Path, table: np.ndarray, names: str) -> Path:
    np.savetxt(path, table, delimiter=",", header=names, comments="", fmt="%.17g")
    return path


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return written(tmp_path / "points.csv", X, "mass,charge,size")


def drawn(capsys: pytest.CaptureFixture[str], *arguments: object) -> np.ndarray:
    assert main(["sample", *map(str, arguments)]) == 0
    return np.loadtxt(io.StringIO(capsys.readouterr().out), delimiter=",", skiprows=1, ndmin=2)


def test_draws_have_the_mean_and_covariance_of_the_density_in_closed_form(
    data: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    draws = drawn(capsys, data, "-n", 20000, "--sigma", 0.5)
    scale = X.std(0)
    # A Gaussian KDE: the mean of the rows, and their covariance plus that of the kernel.
    covariance = np.cov(X.T, bias=True) + np.diag((0.5 * scale) ** 2)
    error = np.sqrt(np.diag(covariance) / 20000)
    assert (abs(draws.mean(0) - X.mean(0)) < 4 * error).all()
    np.testing.assert_allclose(
        np.cov(draws.T) / np.outer(scale, scale), covariance / np.outer(scale, scale), atol=0.06
    )


def test_draws_are_those_of_the_library(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    centre, scale = X.mean(0), X.std(0)
    memory = ist.GaussianKDE((X - centre) / scale, sigma=0.4)
    expected = memory.sample(7, seed=5).numpy() * scale + centre
    found = drawn(capsys, data, "-n", 7, "--sigma", 0.4, "--seed", 5)
    np.testing.assert_allclose(found, expected, rtol=1e-12)
    plain = ist.ModernHopfield(X / 100, beta=2.0).sample(7, seed=5).numpy()
    divided = written(data.with_name("divided.csv"), X / 100, "mass,charge,size")
    found = drawn(
        capsys,
        divided,
        "-n",
        7,
        "--energy",
        "hopfield",
        "--beta",
        2,
        "--no-standardise",
        "--seed",
        5,
    )
    np.testing.assert_allclose(found, plain, rtol=1e-9)


def test_the_same_seed_gives_the_same_bytes_and_another_does_not(
    data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    printed = []
    for seed in ("3", "3", "4"):
        assert main(["sample", str(data), "-n", "5", "--seed", seed]) == 0
        printed.append(capsys.readouterr().out)
    assert printed[0] == printed[1] != printed[2]
    assert printed[0].startswith("mass,charge,size\n")
    assert printed[0].count("\n") == 6
    out = tmp_path / "drawn.csv"
    assert main(["sample", str(data), "-n", "5", "--seed", "3", "-o", str(out)]) == 0
    assert capsys.readouterr().out == f"{out}\n"
    assert out.read_text() == printed[0]


def test_the_bandwidth_is_the_best_of_a_grid_by_leaving_each_row_out() -> None:
    table = np.random.default_rng(1).normal(size=(40, 2))
    twins = np.vstack([table, table[:15]])  # which alone would ask for a bandwidth of zero
    sigma = leave_one_out_sigma(twins)

    def likelihood(width: float) -> float:
        total = 0.0
        for row in range(40):
            others = np.delete(table, row, axis=0)
            kernels = stats.norm(others, width).pdf(table[row]).prod(1)
            total += np.log(kernels.mean())
        return total

    best = likelihood(sigma)
    assert all(best > likelihood(sigma * factor) for factor in (0.5, 0.9, 0.97, 1.03, 1.1, 2))


def test_many_rows_are_thinned_and_the_bandwidth_corrected(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    table = np.random.default_rng(2).normal(size=(1500, 2))
    whole = leave_one_out_sigma(table)
    monkeypatch.setattr(bandwidth, "MOST_PAIRED", 300)
    assert leave_one_out_sigma(table) == pytest.approx(whole, rel=0.2)
    assert leave_one_out_sigma(table, 1) == leave_one_out_sigma(table, 1)


def test_chains_follow_the_density_too_and_say_so(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = np.random.default_rng(3).normal(size=(40, 2))
    data = written(tmp_path / "round.csv", table, "a,b")
    for sampler in ("mala", "hmc", "langevin"):
        command = ["sample", str(data), "-n", "1600", "--sigma", "1", "--sampler", sampler]
        assert main([*command, "--steps", "100", "--json"]) == 0
        streams = capsys.readouterr()
        found = json.loads(streams.out)
        assert found["chains"]["largest_r_hat"] < 1.05, sampler
        assert "so they agree" in streams.err
        draws = np.array([[row["a"], row["b"]] for row in found["rows"]])
        error = draws.std(0) / np.sqrt(found["chains"]["smallest_effective_sample_size"])
        assert (abs(draws.mean(0) - table.mean(0)) < 5 * error).all()
        expected = np.diag(np.cov(table.T, bias=True)) + table.var(0)
        np.testing.assert_allclose(draws.var(0), expected, rtol=0.25)


def test_chains_that_do_not_mix_are_told(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path / "apart.csv", np.array([[0.0], [1.0], [50.0], [51.0]]), "a")
    command = ["sample", str(data), "-n", "10", "--sigma", "0.01", "--sampler", "mala"]
    assert main([*command, "--steps", "20"]) == 0
    assert "do not agree" in capsys.readouterr().err
    assert main([*command, "--quiet", "--steps", "20"]) == 0
    assert capsys.readouterr().err == ""


def test_clusters_are_drawn_from_in_the_units_of_the_data_gaps_or_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(4)
    centres = np.repeat([[0.0, 0.0], [400.0, 4.0]], 60, axis=0)
    table = centres + generator.normal(size=(120, 2)) * [10, 0.1]
    table[::7, 1] = np.nan
    data = written(tmp_path / "groups.csv", table, "a,b")
    draws = drawn(capsys, data, "--energy", "elbo", "-k", 2, "-n", 2000, "--quiet")
    right = draws[:, 0] > 200
    assert right.mean() == pytest.approx(0.5, abs=0.08)
    np.testing.assert_allclose(draws[right].mean(0), [400, 4], rtol=0.05)
    model = tmp_path / "groups.model"
    command = ["cluster", str(data), "-k", "2", "--save", str(model), "--quiet"]
    assert main([*command, "-o", str(tmp_path / "labels.csv")]) == 0
    capsys.readouterr()
    np.testing.assert_allclose(drawn(capsys, model, "-n", 2000), draws, rtol=1e-9, atol=1e-9)
    assert main(["sample", str(data)]) == 2  # a KDE needs whole rows
    assert "isthmus complete" in capsys.readouterr().err


def test_a_constant_column_stays_as_it_is(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    table = np.column_stack([X[:, 0], np.full(60, 7.25), X[:, 1]])
    data = written(tmp_path / "constant.csv", table, "mass,same,charge")
    draws = drawn(capsys, data, "-n", 50, "--sigma", 0.5)
    assert (draws[:, 1] == 7.25).all()
    without = written(tmp_path / "without.csv", table[:, [0, 2]], "mass,charge")
    np.testing.assert_array_equal(
        draws[:, [0, 2]], drawn(capsys, without, "-n", 50, "--sigma", 0.5)
    )


@pytest.mark.parametrize("rows", [1, 3])
def test_one_row_needs_a_bandwidth(
    rows: int, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = written(tmp_path / "one.csv", np.repeat(X[:1], rows, axis=0), "mass,charge,size")
    assert main(["sample", str(data)]) == 2
    assert "give --sigma" in capsys.readouterr().err
    draws = drawn(capsys, data, "-n", 4000, "--sigma", 2)
    np.testing.assert_allclose(draws.mean(0), X[0], atol=0.2)
    np.testing.assert_allclose(draws.std(0), 2, rtol=0.1)


@pytest.mark.parametrize("suffix", [".tsv", ".parquet", ".json"])
def test_every_format_holds_the_same_rows(
    suffix: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / f"drawn{suffix}"
    expected = drawn(capsys, data, "-n", 4)
    assert main(["sample", str(data), "-n", "4", "-o", str(out)]) == 0
    if suffix == ".tsv":
        found = np.loadtxt(out, skiprows=1)
    elif suffix == ".json":
        found = np.array([list(row.values()) for row in json.loads(out.read_text())])
    else:
        parquet = pytest.importorskip("pyarrow.parquet")
        found = np.column_stack([*parquet.read_table(out).to_pydict().values()])
    np.testing.assert_array_equal(found, expected)


IMPOSSIBLE = {
    "no data": (["{tmp}/none.csv"], "cannot be read"),
    "no model": (["{tmp}/none.safetensors"], "none.safetensors"),
    "not a model": (["{tmp}/fake.safetensors"], "not a readable isthmus model"),
    "text": (["{tmp}/text.csv"], "no column of numbers"),
    "none": (["{data}", "-n", "0"], "from 1 up"),
    "negative": (["{data}", "--sigma", "-1"], "above zero"),
    "no clusters": (["{data}", "--energy", "clam"], "-k N"),
    "clusters of rows": (["{data}", "-k", "2"], "--energy elbo and clam"),
    "bandwidth of clusters": (["{data}", "--energy", "crp", "--sigma", "1"], "--sigma is for"),
    "two of one": (["{data}", "--sigma", "1", "--beta", "1"], "give one"),
    "steps of exact": (["{data}", "--step-size", "1"], "--sampler langevin"),
    "diverging": (["{tmp}/two.csv", "--sampler", "langevin", "--step-size", "1e6"], "Reduce step"),
    "nowhere": (["{data}", "-o", "{tmp}/no/rows.csv"], "make it first"),
    "the data": (["{data}", "-o", "{data}"], "the data itself"),
    "two on stdout": (["{data}", "-o", "-", "--json"], "choose one"),
    "one row": (["{tmp}/one.csv"], "give --sigma"),
    "too many clusters": (["{tmp}/one.csv", "--energy", "clam", "-k", "9"], "more than the 1 row"),
}


def test_what_is_left_out_is_told_unless_quiet(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    data = tmp_path / "two.csv"
    data.write_text("name,x\nAda,1\nBob,2\n")
    for options in ([], ["--sampler", "mala", "--steps", "2"]):
        assert main(["sample", str(data), "-n", "2", *options]) == 0
        assert "not numbers: name." in capsys.readouterr().err
    assert main(["sample", str(data), "-n", "2", "--quiet"]) == 0
    assert capsys.readouterr().err == ""


def test_a_dash_is_stdout(data: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["sample", str(data), "-n", "3"]) == 0
    expected = capsys.readouterr().out
    assert main(["sample", str(data), "-n", "3", "-o", "-"]) == 0
    assert capsys.readouterr().out == expected


@pytest.mark.parametrize("case", IMPOSSIBLE)
def test_the_impossible_is_one_clear_line_and_leaves_nothing(
    case: str, data: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "text.csv").write_text("name,place\nAda,London\n")
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
