"""The errata table: every number against a closed form, or the value that theory gives."""

import math
from collections.abc import Callable
from operator import eq, lt

import pytest

from isthmus.paper.report.parts import energies, errata
from isthmus.paper.report.parts.errata import Erratum

approx = pytest.approx
LEAST = math.exp(-4) / sum(math.exp(-term) for term in (1, 2, 3, 4))


@pytest.fixture(scope="module")
def found() -> dict[int, Erratum]:
    return {int(each.name[1:]): each for each in errata.all_errata(0)}


@pytest.fixture(scope="module")
def numbers(found: dict[int, Erratum]) -> dict[int, dict[str, float]]:
    return {number: dict(each.numbers) for number, each in found.items()}


def test_all_are_confirmed_and_four_are_notation_only(found: dict[int, Erratum]) -> None:
    assert list(found) == list(range(1, 36))
    for number, each in found.items():
        notation = number in (21, 23, 24, 35)
        assert (each.kind == "notation") == notation
        assert each.confirmed is (None if notation else True)


@pytest.mark.parametrize(
    ("number", "name", "compare", "value"),
    [
        (1, "needed_degrees", eq, approx(90)),
        (1, "reached_degrees", eq, approx(41, abs=1.5)),
        (1, "first_dimension_above_half_weight", eq, 8),
        (1, "base_per_dimension", eq, approx(3.402, abs=1e-3)),
        # The mirror flow halves the distance of logits in each step of 0.5.
        (4, "mirror_steps", lt, 26),
        # Not moved: the posterior of the wrong memory is softmax(-1, -2, -3, -4)[3].
        (4, "printed_distance_left_from_20", eq, approx(1 - LEAST, abs=1e-3)),
        (8, "inflation_in_2_dimensions", eq, approx(11)),
        (8, "log10_inflation_in_54_dimensions", eq, approx(27 * math.log10(11))),
        # exp(-kappa |x|^2) has the mass pi / kappa on a plane, a known cluster's pi / beta.
        (8, "mass_printed", eq, approx(1 + 1 / 0.5, rel=1e-6)),
        (8, "mass_corrected", eq, approx(1, rel=1e-6)),
        (9, "printed", eq, approx(0.1733, abs=1e-4)),
        (9, "by_stated_covariances", eq, approx(0.0433, abs=1e-4)),
        (11, "weight", eq, approx(-0.2)),
        (11, "sum_of_weights", eq, 8),
        (12, "integral_printed", eq, approx(0.5, abs=1e-6)),
        # 20 patterns of length 6: sigma^2 / (N M). Towards another, half the way to it.
        (16, "radius_by_formula", eq, approx(1 / 120)),
        (16, "radius_measured", eq, approx(6 * math.sqrt(2) / 2, rel=0.02)),
        (17, "log10_sigma_1", eq, approx(math.log10(4.82e7), abs=0.01)),
        (18, "length_in_8_dimensions", eq, approx(math.sqrt(8))),
        (18, "length_in_64_dimensions", eq, approx(8)),
        (18, "length_in_512_dimensions", eq, approx(math.sqrt(512))),
        # sqrt(d / D) with heads of width 16 in 64 dimensions.
        (19, "share_of_concentration_without_factors", eq, approx(0.5)),
        (22, "temperature_of_the_printed_pair", eq, approx(1.58e-5, rel=0.01)),
        (25, "printed_measure_changes_by", eq, approx(0.1, abs=1e-6)),
        (26, "energies_along_a_memory", eq, approx([-2.5, -250.0, -25_000.0])),
        (26, "diagonal_adds", eq, -1.5),
        # A quarter of 4 entries hidden, each with the variance of a standard normal number.
        (27, "masked_loss_without_dynamics", eq, approx(1, abs=0.25)),
        (32, "separation", eq, approx(2.02**2 / 2)),
        (32, "needed", eq, approx(1 + math.log(4 * 1.01**2))),
        (33, "integral_on_a_plane", eq, approx(3 * math.pi / 8, abs=1e-3)),
        (34, "log_loss_predictive", eq, approx(0.010, abs=0.002)),
        (33, "constant_on_a_plane", eq, approx(2 / math.pi)),
    ],
)
def test_numbers_are_those_of_theory(
    number: int, name: str, compare: Callable[..., bool], value: object, numbers
) -> None:
    assert compare(numbers[number][name], value)


def test_variance_of_langevin_is_that_of_its_recursion(numbers) -> None:
    # v = (1 - a)^2 v + 2 a T has the fixed point T / (1 - a / 2).
    step = energies.BOWL_STEP
    error = 4 * math.sqrt(2 / energies.CHAINS)
    assert numbers[22]["variance_corrected"] == approx(1 / (1 - step / 2), abs=error)
    cold = 0.01**2 / (2 * step) / (1 - step / 2)
    assert numbers[22]["variance_with_the_printed_noise"] == approx(cold, rel=error)
