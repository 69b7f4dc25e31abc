"""The errata table: every number against a closed form, or the value that theory gives."""

import json
import math

import numpy as np
import pytest
import torch
from scipy import stats
from scipy.special import ive

from isthmus.capacity import capacity_bound
from isthmus.report.parts import capacity, clustering, energies, errata
from isthmus.report.parts.errata import Erratum


@pytest.fixture(scope="module")
def found() -> dict[int, Erratum]:
    return {int(each.name[1:]): each for each in errata.all_errata(0)}


@pytest.fixture(scope="module")
def numbers(found: dict[int, Erratum]) -> dict[int, dict[str, float]]:
    return {number: dict(each.numbers) for number, each in found.items()}


def test_there_are_thirty_and_three_are_notation_only(found: dict[int, Erratum]) -> None:
    assert list(found) == list(range(1, 31))
    assert [number for number, each in found.items() if each.confirmed is None] == [21, 23, 24]
    assert [number for number, each in found.items() if each.kind == "notation"] == [21, 23, 24]
    assert [each.name for each in found.values() if each.confirmed is False] == []


def test_the_capacity_claim_passes_the_ceiling_at_eight_dimensions(numbers, found) -> None:
    assert numbers[1]["needed_degrees"] == pytest.approx(90)
    assert numbers[1]["reached_degrees"] == pytest.approx(41, abs=1.5)
    assert numbers[1]["first_dimension_above_ceiling"] == 8
    assert numbers[1]["base_per_dimension"] == pytest.approx(3.402, abs=1e-3)
    assert "keep half of their own weight" in found[1].shown
    assert "keep half of their own weight" in found[1].right
    # The ceiling at D = 8, by its formula: 2 / A_0, with scipy's scaled Bessel function.
    kappa = 4 * 7
    mean = math.gamma(4) * (2 / kappa) ** 3 * ive(3, kappa)
    assert 2 / mean < 4**7
    assert capacity_bound(8, kind="ceiling") == pytest.approx(2 / mean)


def test_entropy_has_the_other_sign(numbers) -> None:
    assert numbers[2]["gradient_off_corrected"] < 1e-12
    assert numbers[2]["gradient_off_printed"] > 0.1
    assert numbers[2]["largest_probability_after_descent_on_printed"] > 0.999


def test_flow_and_fixed_points(numbers) -> None:
    assert numbers[3]["largest_entry"] < 1e-15
    # The mirror flow halves the distance of logits in each step of 0.5.
    assert numbers[4]["mirror_steps"] <= 25
    # Not moved: the posterior of the wrong memory is softmax(-1, -2, -3, -4)[3].
    weights = np.exp([-1.0, -2.0, -3.0, -4.0])
    least = weights[3] / weights.sum()
    assert numbers[4]["printed_distance_left_from_20"] == pytest.approx(1 - least, abs=1e-3)
    assert numbers[5] == {"resting_points_of_clam": 3, "resting_points_of_assignments": 1}


def test_conventions_of_clam(numbers) -> None:
    assert numbers[6]["spread_of_log_ratio_corrected"] < 1e-12
    assert numbers[6]["spread_of_log_ratio_printed"] > 1
    assert numbers[7]["smallest_ratio"] == pytest.approx(2, abs=1e-9)


@pytest.mark.parametrize(("dim", "power"), [(2, math.log10(11)), (13, 6.77), (54, 28.1)])
def test_inflation_of_the_new_cluster(dim: int, power: float) -> None:
    assert math.log10(clustering.inflation(dim)) == pytest.approx(power, abs=0.02)


def test_masses_of_the_new_cluster() -> None:
    # exp(-kappa |x|^2) has the mass pi / kappa on a plane, a known cluster's pi / beta.
    kappa = 1 / (1 / 1.0 + 1 / 0.5)
    assert clustering.mass_of_the_new_cluster(False) == pytest.approx(1 / kappa, rel=1e-6)
    assert clustering.mass_of_the_new_cluster(True) == pytest.approx(1, rel=1e-6)


def test_restaurant_numbers(numbers) -> None:
    assert numbers[9]["printed"] == pytest.approx(0.1733, abs=1e-4)
    assert numbers[9]["by_stated_covariances"] == pytest.approx(0.0433, abs=1e-4)
    assert numbers[10]["force_off_corrected"] < 1e-12
    assert numbers[11]["weight"] == pytest.approx(-0.2)
    assert numbers[11]["sum_of_weights"] == 8


def test_kernels_on_planes_and_spheres(numbers) -> None:
    assert numbers[12]["integral_printed"] == pytest.approx(0.5, abs=1e-6)
    assert numbers[12]["integral_corrected"] == pytest.approx(1, abs=1e-6)
    assert numbers[13]["difference_on_sphere"] < 1e-12
    assert numbers[13]["difference_off_sphere"] > 0.1
    assert numbers[14]["difference_on_sphere"] < 1e-12
    assert numbers[15]["fixed_points_in_the_ball"] == 2


def test_radius_of_the_cross_polytope(numbers) -> None:
    # 20 patterns of length 6: sigma^2 / (N M). In the direction of another, half the way to it.
    assert numbers[16]["radius_by_formula"] == pytest.approx(1 / 120)
    assert numbers[16]["radius_measured"] == pytest.approx(6 * math.sqrt(2) / 2, rel=0.02)


def test_distance_that_returns_is_half_way_between_two_patterns() -> None:
    patterns = torch.tensor([[-3.0, 0.0], [3.0, 0.0]], dtype=torch.float64)
    assert capacity.distance_that_returns(patterns, 1.0, seed=0) == pytest.approx(3, abs=0.01)


def test_only_the_ratio_of_radius_and_bandwidth_counts(numbers) -> None:
    assert numbers[17]["log10_sigma_3_radius_scaled"] == pytest.approx(numbers[17]["log10_sigma_1"])
    assert numbers[17]["log10_sigma_1"] == pytest.approx(math.log10(4.82e7), abs=0.01)
    assert numbers[25]["ratio_changes_by"] == pytest.approx(1, abs=1e-6)
    assert numbers[25]["printed_measure_changes_by"] == pytest.approx(0.1, abs=1e-6)


def test_attention_numbers(numbers) -> None:
    for dim in (8, 64, 512):
        assert numbers[18][f"length_in_{dim}_dimensions"] == pytest.approx(math.sqrt(dim))
    assert numbers[19]["posterior_off"] < 1e-12
    # sqrt(d / D) with heads of width 16 in 64 dimensions.
    assert numbers[19]["share_of_concentration_without_factors"] == pytest.approx(0.5)
    assert numbers[20]["spread_of_log_normaliser"] > 0.1
    assert numbers[30]["off_corrected"] < 1e-12


def test_variance_of_langevin_is_that_of_its_recursion(numbers) -> None:
    # v = (1 - a)^2 v + 2 a T has the fixed point T / (1 - a / 2).
    step = energies.BOWL_STEP
    error = 4 * math.sqrt(2 / energies.CHAINS)
    assert numbers[22]["variance_corrected"] == pytest.approx(1 / (1 - step / 2), abs=error)
    cold = 0.01**2 / (2 * step) / (1 - step / 2)
    assert numbers[22]["variance_with_noise_0.01"] == pytest.approx(cold, rel=error)
    assert numbers[22]["temperature_of_the_printed_pair"] == pytest.approx(1.58e-5, rel=0.01)


def test_energies_and_densities(numbers) -> None:
    assert numbers[26] == {"energy_at_100_lengths": -25_000.0, "diagonal_adds": -1.5}
    assert numbers[27]["printed_loss_without_dynamics"] == 0
    # A quarter of 4 entries hidden, each with the variance of a standard normal number.
    assert numbers[27]["masked_loss_without_dynamics"] == pytest.approx(1, abs=0.25)
    assert numbers[28]["total_variation_corrected"] < 1e-9
    assert numbers[29]["printed_point_moves_by"] > 0.01


def test_the_section_is_a_table_that_json_can_hold(
    found: dict[int, Erratum], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errata, "all_errata", lambda seed: list(found.values()))
    section = errata.table_of_errata(0)
    assert section.figure is None
    assert section.table is not None
    assert len(section.table.rows) == 30
    assert all(len(row) == len(section.table.columns) for row in section.table.rows)
    json.dumps(section.numbers, allow_nan=False)
    assert section.findings[0].verdict == "held with a correction"
    # What is harmless, or right on a condition, did not fail.
    wrong, loose, harmless = section.findings[0].because.split(";")
    assert "failing" in wrong
    assert all(f"{name}," in wrong for name in ("E2", "E8", "E28"))
    assert all(f"{name}," in loose for name in ("E9", "E11", "E13"))
    assert "(E3)" in harmless
    assert section.numbers["wrong"] + section.numbers["loose"] + section.numbers["harmless"] == 27


@pytest.mark.parametrize(
    ("kinds", "all_confirmed", "expected"),
    [
        ({}, True, (True, True)),
        ({"harmless": ["E3"]}, True, (True, True)),
        ({"loose": ["E4"]}, True, (False, True)),
        ({"wrong": ["E2"], "loose": ["E4"]}, True, (False, True)),
        ({"wrong": ["E2"]}, False, (False, False)),
    ],
)
def test_formulas_hold_unless_an_erratum_that_matters_is_confirmed(
    kinds: dict[str, list[str]], all_confirmed: bool, expected: tuple[bool, bool]
) -> None:
    by_kind = {kind: kinds.get(kind, []) for kind in ("wrong", "loose", "harmless")}
    check, because = errata._formulas(by_kind, all_confirmed)
    assert check == expected
    for names in kinds.values():
        assert f"({', '.join(names)})" in because


def test_an_erratum_that_is_not_confirmed_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    false = [
        Erratum("E1", "wrong", "here", "a", "b", "c", {}, False),
        Erratum("E2", "notation", "there", "a", "b", "c"),
    ]
    monkeypatch.setattr(errata, "all_errata", lambda seed: false)
    section = errata.table_of_errata(0)
    assert section.table is not None
    assert [row[-1] for row in section.table.rows] == ["not confirmed", "notation only"]
    assert section.findings[0].verdict == "held"


def test_stated_covariance_of_components_by_scipy(numbers) -> None:
    # With the printed covariance the log-ratio is -beta d^2 + d^2 beta / 4, up to a constant.
    points = torch.randn(50, 3, generator=_replayed(), dtype=torch.float64).numpy()
    squared = np.square(points).sum(1)
    expected = np.ptp(-1.3 * squared * (1 - 1 / 4))
    fresh = clustering.covariance_of_components(_replayed())
    assert fresh.numbers["spread_of_log_ratio_printed"] == pytest.approx(expected)
    assert stats.chi2(3).sf(squared.max()) > 1e-6  # and the points are what they should be


def _replayed() -> torch.Generator:
    return torch.Generator().manual_seed(5)
