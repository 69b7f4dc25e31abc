"""`isthmus reproduce`: what its parts come to, and what happens when it is asked too much."""

import json
import math
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

import isthmus as ist
from isthmus.cli.main import main
from isthmus.report import PARTS
from isthmus.report.making import make
from isthmus.report.parts.energies import energy_distance, integral, largest_rise


@cache
def numbers_of(name: str) -> dict[str, Any]:
    """The numbers of a part, made here."""
    (part,) = [part for part in PARTS if part.name == name]
    return dict(make(part.function, 0, False).numbers)


@pytest.mark.slow
def test_all_parts_are_done(tmp_path: Path) -> None:
    assert main(["reproduce", "--out", str(tmp_path)]) == 0
    results = json.loads((tmp_path / "results.json").read_text())
    assert results["summary"]["parts"] == {"done": len(PARTS), "failed": 0, "missing": 0}
    assert sum(results["summary"]["verdicts"].values()) > 0


@pytest.mark.parametrize("part", ["landscapes-1d", "landscapes-2d"])
def test_energies_never_rise_and_densities_integrate_to_one(part: str) -> None:
    for name, numbers in numbers_of(part).items():
        assert 0 <= numbers["largest_energy_rise"] < 1e-12, name
        if name == "Hopfield":
            assert numbers["integral_of_density"] is None
        else:
            assert numbers["integral_of_density"] == pytest.approx(1, abs=1e-4), name


def test_completion_beats_filling_with_the_mean() -> None:
    numbers = numbers_of("completion")
    assert numbers["rms_error_of_completion"] < 0.9 * numbers["rms_error_of_filling_with_the_mean"]
    assert numbers["share_with_the_right_digit"] > 0.8


def test_samplers_are_about_as_close_to_the_density_as_exact_draws() -> None:
    numbers = numbers_of("samples")
    distances = numbers["energy_distance_to_exact_draws"]
    for name in ("Langevin", "MALA", "HMC"):
        assert distances[name] < 1.5 * numbers["largest_energy_distance_of_exact_draws"], name


@pytest.mark.slow
def test_energies_sharpen_in_context_and_stay_near_bayes() -> None:
    divergence = list(numbers_of("incontext-landscapes")["kl_from_truth_by_n"].values())
    assert divergence == sorted(divergence, reverse=True)
    assert divergence[-1] < 0.5 * divergence[0]
    numbers = numbers_of("incontext-likelihood")
    nll = numbers["nll_by_predictor_and_n"]
    for size, excess in numbers["nats_above_bayes_by_n"].items():
        error = numbers["standard_error_of_nats_above_bayes_by_n"][size]
        assert abs(excess) < 0.05 + 3 * error, size
        if nll["kde-best"][size] is not None:
            assert nll["model"][size] < nll["kde-best"][size], size


def test_help_says_what_exit_code_1_is(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["reproduce", "--help"])
    told = [line for line in capsys.readouterr().out.splitlines() if line.startswith("  1  ")]
    assert ["part failed" in line for line in told] == [True, False]
    assert "bug in isthmus" in told[1]


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


def test_a_directory_that_may_not_be_written_to_is_one_clear_line(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.access", lambda path, mode: False)
    assert main(["reproduce", "--out", str(tmp_path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


@pytest.mark.parametrize(
    "options",
    [
        ["--seed", "-1"],
        ["--seed", "1.5"],
        ["--seed", str(2**32)],
        ["--jobs", "0"],
        ["--limit", "0"],
        ["--limit", "nan"],
        ["--out", ""],
        ["--only"],
        ["--only", ""],
        ["everything"],
    ],
)
def test_options_that_make_no_sense_are_one_clear_line(
    options: list[str],
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["reproduce", *options]) == 2
    streams = capsys.readouterr()
    assert streams.out == ""
    assert streams.err.count("\n") == 1
    assert not list(tmp_path.iterdir())


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
