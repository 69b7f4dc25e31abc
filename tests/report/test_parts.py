"""The parts of `isthmus reproduce`: verdicts that follow numbers, and numbers that are right."""

import math
from functools import cache
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats

from isthmus.paper.attention import Experiment, TrainingRun
from isthmus.paper.report.builder import make
from isthmus.paper.report.parts import attention, capacity, clustering, engrams
from isthmus.paper.report.parts.energies import energy_distance
from isthmus.paper.report.registry import text_of
from isthmus.report import Section

CORRECTED = "held with a correction"


def verdicts(section: Section) -> list[str]:
    return [each.verdict for each in section.findings]


@cache
def section_of(name: str) -> Section:
    """Return the section of a part, made here."""
    return make(text_of(name).function, 0, False)


def numbers_of(name: str) -> dict[str, Any]:
    return dict(section_of(name).numbers)


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("landscapes-1d", [CORRECTED, "held"]),
        ("basins-merging", ["held", "held"]),
        ("hopfield-equivalence", ["held", "did not hold"]),
        ("four-models", ["held"]),
        ("elbo-dynamics", [CORRECTED, CORRECTED, "did not hold"]),
        pytest.param("engrams", [CORRECTED], marks=pytest.mark.slow),
    ],
)
def test_verdicts(part: str, expected: list[str]) -> None:
    assert verdicts(section_of(part)) == expected


def test_energy_gap_by_hand() -> None:
    # Off the sphere E_MCHN - sigma^2 E_KDE of one pattern is -|x_1|^2 / 2 wherever one looks.
    one = torch.tensor([[2.0, 0.0]], dtype=torch.float64)
    queries = torch.randn(5, 2, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    assert capacity.energy_gap(one, queries, 0.7) < 1e-12
    two = torch.tensor([[2.0, 0.0], [0.0, 1.0]], dtype=torch.float64)
    far = torch.tensor([[50.0, 0.0], [0.0, 50.0]], dtype=torch.float64)
    # Far out along either pattern only that one counts: 4/2 - 1/2.
    assert capacity.energy_gap(two, far, 1.0) == pytest.approx(1.5)


def test_a_pattern_at_a_saddle_is_not_stored() -> None:
    vertex = 2 * math.sqrt(3) * capacity.SYMMETRIC[4]()
    assert capacity.first_is_stored(vertex)
    assert not capacity.first_is_stored(0.5 * vertex)  # too close to each other
    beside = [[x, y, 0.0] for x in (-2.0, 2.0) for y in (-0.3, -0.1, 0.1, 0.3)]
    assert not capacity.first_is_stored(np.array([[0.0, 0.0, 0.0], *beside]))


@pytest.mark.slow
def test_the_claimed_number_is_open(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(capacity, "MEASURED", (("spread", 0.95, (2,)),))
    monkeypatch.setattr(capacity, "MOST", 8)
    section = capacity.bounds_on_capacity(0)
    assert verdicts(section) == ["open", "held", "did not hold"]
    assert section.numbers["certified_growth_by_M"] == pytest.approx(
        {"2.0": 3.28, "1.7": 2.9}, abs=0.05
    )
    assert section.numbers["first_dimension_above_half_weight"] == 8


def _run(variant: str, rate: float, seed: int, loss: float, diverged: bool = False) -> TrainingRun:
    logit = 5.0 if variant == "QK-norm" else 100.0
    return TrainingRun(variant, rate, seed, loss, loss, 0.5, diverged, logit, 0.4)


def _experiment(qk: float = 0.5, diverging: float = 0.0) -> Experiment:
    """Five seeds at two rates; pre-norm does best at 0.01, QK-norm diverges at the rate given."""
    losses = {"pre-norm": 1.0, "QK-norm": qk, "SALN": 0.5}
    return Experiment(
        tuple(
            _run(name, rate, seed, loss + rate, name == "QK-norm" and rate == diverging)
            for name, loss in losses.items()
            for rate in (0.01, 0.3)
            for seed in range(5)
        )
    )


@pytest.mark.parametrize(
    ("settings", "verdict"),
    [
        ({}, "held"),
        ({"diverging": 0.01}, "held"),
        ({"diverging": 0.3}, CORRECTED),
        ({"qk": 1.5}, "did not hold"),
    ],
)
def test_training_is_judged_above_the_best_rate_of_plain_attention(
    settings: dict[str, float], verdict: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    found = _experiment(**settings)
    monkeypatch.setattr(attention, "runs_of_the_experiment", lambda *_: (found, "here", {}))
    section = attention.training_at_high_rates(0)
    assert verdicts(section) == [verdict]
    assert "5 of 5 seeds" in section.observations[0]


@pytest.mark.slow
@pytest.mark.parametrize("alpha", clustering.ALPHAS)
def test_new_points_do_not_flow_to_the_origin(alpha: float) -> None:
    axis = clustering.REACH * (np.arange(40) - 19.5) / 20
    x = np.stack(np.meshgrid(axis, axis), -1).reshape(-1, 1, 2)
    beta, rho = clustering.BETA, clustering.RHO
    kappa = beta * rho / (beta + rho)
    centres = np.array([*clustering.MEANS, [0.0, 0.0]])
    widths = np.array([beta] * 3 + [kappa])
    weights = np.array([*clustering.COUNTS, alpha * kappa / beta])

    def shares(x):
        terms = np.log(weights) - widths * np.square(x - centres).sum(-1)
        terms = np.exp(terms - terms.max(1, keepdims=True))
        return terms / terms.sum(1, keepdims=True)

    new = shares(x).argmax(1) == 3
    for _ in range(3000):  # descent by hand, with all pulls in their own strength
        x = x + ((shares(x) * widths / beta)[..., None] * (centres - x)).sum(1, keepdims=True)
    nearest = np.square(x - centres).sum(-1).argmin(1)
    found = clustering.flow_to_the_origin(alpha)
    assert found == pytest.approx((new.mean(), (nearest[new] == 3).mean()))
    assert found[0] > 0.45
    assert found[1] == 0


@pytest.mark.slow
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
    # The dynamics end at a mode, whose error is above that of the conditional mean.
    assert numbers["rms_error_of_completion"] > 1.02 * numbers["rms_error_of_conditional_mean"]
    assert numbers["share_with_the_right_digit"] > 0.8


@pytest.mark.slow
def test_samplers_are_about_as_close_to_the_density_as_exact_draws() -> None:
    numbers = numbers_of("samples")
    distances = numbers["energy_distance_to_exact_draws"]
    for name in ("Langevin", "MALA", "HMC"):
        assert distances[name] < 1.5 * numbers["largest_energy_distance_of_exact_draws"], name
    assert verdicts(section_of("samples")) == ["did not hold"]  # the printed step and noise


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


def test_memories_respond_to_evidence_and_states_with_opposite_signs() -> None:
    log_joint = torch.tensor([0.5, 0.3, 0.2], dtype=torch.float64).log()
    step = 1e-6 * torch.eye(3, dtype=torch.float64)
    moved = [engrams.flow(log_joint, log_joint + one) for one in step]
    by_evidence = torch.stack(moved, 1) / 1e-6
    by_state = torch.stack([engrams.flow(log_joint + one, log_joint) for one in step], 1) / 1e-6
    expected = torch.tensor([[0.25, -0.15, -0.1], [-0.15, 0.21, -0.06], [-0.1, -0.06, 0.16]])
    torch.testing.assert_close(by_evidence, expected.double(), atol=1e-5, rtol=0)
    torch.testing.assert_close(by_state, -expected.double(), atol=1e-5, rtol=0)


def test_energy_distance_on_a_line_is_that_of_scipy() -> None:
    generator = np.random.default_rng(0)
    first, second = generator.normal(size=50), generator.normal(0.5, 2, size=70)
    ours = energy_distance(torch.from_numpy(first)[:, None], torch.from_numpy(second)[:, None])
    assert math.sqrt(ours) == pytest.approx(stats.energy_distance(first, second))
