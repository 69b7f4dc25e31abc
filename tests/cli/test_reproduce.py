"""`isthmus reproduce`: one full run, and what happens when it is asked for the impossible."""

import io
import json
import math
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure
from scipy import stats

import isthmus as ist
from isthmus.cli import reproduce
from isthmus.cli.main import main
from isthmus.cli.parts.completion import leave_one_out_sigma
from isthmus.cli.parts.landscapes import integral, largest_rise
from isthmus.cli.parts.sampling import energy_distance
from isthmus.figures import Section


class Report(NamedTuple):
    out: Path
    stdout: str
    stderr: str
    parts: dict


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Report:
    out = tmp_path_factory.mktemp("run") / "deep" / "report"
    stdout, stderr = io.StringIO(), io.StringIO()
    with redirect_stdout(stdout), redirect_stderr(stderr):
        assert main(["reproduce", "--out", str(out)]) == 0
    results = json.loads((out / "results.json").read_text())
    return Report(out, stdout.getvalue(), stderr.getvalue(), results["parts"])


@pytest.fixture
def one_quick_part(monkeypatch: pytest.MonkeyPatch) -> None:
    def quick(seed: int) -> Section:
        return Section("Quick", "Nothing.", Figure(), {"seed": seed})

    monkeypatch.setattr(reproduce, "PARTS", [("quick", quick)])


def test_a_run_leaves_a_page_its_figures_and_its_numbers(report: Report) -> None:
    names = {name for name, _ in reproduce.PARTS}
    expected = {f"{name}.png" for name in names} | {"index.html", "results.json"}
    assert {path.name for path in report.out.iterdir()} == expected
    assert set(report.parts) == names
    assert (report.out / "index.html").read_text().count("<img") == len(names)


def test_stdout_is_the_path_of_the_page_and_stderr_a_line_for_each_part(report: Report) -> None:
    assert report.stdout == f"{report.out / 'index.html'}\n"
    lines = report.stderr.splitlines()
    assert [line.split()[0] for line in lines] == [name for name, _ in reproduce.PARTS]


@pytest.mark.parametrize("part", ["landscapes-1d", "landscapes-2d"])
def test_energies_never_rise_and_densities_integrate_to_one(report: Report, part: str) -> None:
    for name, numbers in report.parts[part].items():
        assert 0 <= numbers["largest_energy_rise"] < 1e-12, name
        if name == "Hopfield":
            assert numbers["integral_of_density"] is None
        else:
            assert numbers["integral_of_density"] == pytest.approx(1, abs=1e-4), name


def test_completion_beats_filling_with_the_mean(report: Report) -> None:
    numbers = report.parts["completion"]
    assert numbers["error_completed"] < 0.9 * numbers["error_mean_filling"]
    assert numbers["share_with_the_right_digit"] > 0.8


def test_samplers_are_about_as_close_to_the_density_as_exact_draws(report: Report) -> None:
    numbers = report.parts["samples"]
    for name, distance in numbers["energy_distance_to_exact_draws"].items():
        assert distance < 1.5 * numbers["largest_energy_distance_of_exact_draws"], name


def test_energies_sharpen_in_context_and_stay_near_bayes(report: Report) -> None:
    divergence = list(report.parts["incontext-landscapes"]["kl_from_truth"].values())
    assert divergence == sorted(divergence, reverse=True)
    assert divergence[-1] < 0.5 * divergence[0]
    numbers = report.parts["incontext-likelihood"]
    nll = numbers["nll"]
    for size, excess in numbers["above_bayes"].items():
        assert abs(excess) < 0.05 + 3 * numbers["standard_error_of_above_bayes"][size], size
        if nll["kde-best"][size] is not None:
            assert nll["model"][size] < nll["kde-best"][size], size


@pytest.mark.usefixtures("one_quick_part")
def test_quiet_says_nothing_on_stderr_and_the_seed_reaches_the_parts(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["reproduce", "--out", str(tmp_path), "--quiet", "--seed", "7"]) == 0
    assert capsys.readouterr().err == ""
    assert json.loads((tmp_path / "results.json").read_text())["parts"] == {"quick": {"seed": 7}}


@pytest.mark.usefixtures("one_quick_part")
def test_the_same_seed_gives_the_same_page_twice_in_a_row(tmp_path: Path) -> None:
    pages = []
    for _ in range(2):
        assert main(["reproduce", "--out", str(tmp_path), "--quiet"]) == 0
        pages.append((tmp_path / "index.html").read_bytes())
    assert pages[0] == pages[1]


@pytest.mark.usefixtures("one_quick_part")
def test_a_terminal_gets_a_bar(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("sys.stderr.isatty", lambda: True)
    assert main(["reproduce", "--out", str(tmp_path)]) == 0
    streams = capsys.readouterr()
    assert "quick" in streams.err
    assert streams.out == f"{tmp_path / 'index.html'}\n"


@pytest.mark.usefixtures("one_quick_part")
@pytest.mark.parametrize("out", ["taken", "taken/inside"])
def test_an_impossible_directory_is_one_clear_line(
    out: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "taken").write_text("mine")
    assert main(["reproduce", "--out", str(tmp_path / out)]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert str(tmp_path / out) in streams.err
    assert (tmp_path / "taken").read_text() == "mine"


@pytest.mark.usefixtures("one_quick_part")
def test_a_directory_that_may_not_be_written_to_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["reproduce", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize("seed", ["-1", "1.5", "many", str(2**32)])
def test_a_seed_that_is_none_is_refused(seed: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stop:
        main(["reproduce", "--seed", seed])
    assert stop.value.code == 2
    assert "seed" in capsys.readouterr().err


def test_leave_one_out_bandwidth_is_the_best_of_a_grid() -> None:
    points = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rest = [torch.arange(40) != row for row in range(40)]

    def likelihood(sigma: float) -> float:
        kdes = [ist.GaussianKDE(points[keep], sigma=sigma) for keep in rest]
        return sum(float(kde.log_prob(points[row])) for row, kde in enumerate(kdes))

    sigma = leave_one_out_sigma(points)
    best = likelihood(sigma)
    assert all(best >= likelihood(sigma * factor) for factor in (0.5, 0.9, 0.99, 1.01, 1.1, 2))


def test_energy_distance_on_a_line_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=50), generator.normal(0.5, 2, size=70)
    ours = energy_distance(torch.from_numpy(first)[:, None], torch.from_numpy(second)[:, None])
    assert math.sqrt(ours) == pytest.approx(stats.energy_distance(first, second))


def test_a_rise_is_seen_and_a_missing_density_is_told() -> None:
    class Climbing(ist.Energy):
        dim = 1

        def energy(self, x: torch.Tensor) -> torch.Tensor:
            return x[..., 0]

        def step(self, x: torch.Tensor, observed: torch.Tensor | None = None) -> torch.Tensor:
            return (x + 0.25).clamp(max=1)

    assert largest_rise(Climbing(), torch.zeros(2, 1)) == 0.25
    assert integral(Climbing(), reach=1.0) is None


def test_an_empty_path_is_not_the_current_directory(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit, match="2"):
        main(["reproduce", "--out", ""])
    assert "the path is empty" in capsys.readouterr().err
