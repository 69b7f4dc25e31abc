"""The errata table: every number against a closed form, or the value that theory gives."""

import math
from collections.abc import Callable
from operator import eq, lt

import pytest

from isthmus.paper.report.parts import errata
from isthmus.paper.report.parts.errata import Erratum

approx = pytest.approx
LEAST = math.exp(-4) / sum(math.exp(-term) for term in (1, 2, 3, 4))


@pytest.fixture(scope="module")
def found() -> dict[int, Erratum]:
    return {int(each.name[1:]): each for each in errata.all_errata(0)}


@pytest.fixture(scope="module")
def numbers(found: dict[int, Erratum]) -> dict[int, dict[str, float]]:
    return {number: dict(each.numbers) for number, each in found.items()}


def test_each_is_measured_or_proved_but_for_four_of_notation(found: dict[int, Erratum]) -> None:
    assert list(found) == list(range(1, 36))
    for number, each in found.items():
        assert (each.kind == "notation") == (number in (21, 23, 24, 35))
        assert each.shown
        assert each.confirmed is (True if each.numbers else None)


@pytest.mark.parametrize(
    ("number", "name", "compare", "value"),
    [
        # The mirror flow halves the distance of logits in each step of 0.5.
        (4, "mirror_steps", lt, 26),
        # Not moved: the posterior of the wrong memory is softmax(-1, -2, -3, -4)[3].
        (4, "printed_distance_left_from_20", eq, approx(1 - LEAST, abs=1e-3)),
        (8, "inflation_in_2_dimensions", eq, approx(11)),
        (8, "log10_inflation_in_54_dimensions", eq, approx(27 * math.log10(11))),
        # exp(-kappa |x|^2) has the mass pi / kappa on a plane, a known cluster's pi / beta.
        (8, "mass_printed", eq, approx(1 + 1 / 0.5, rel=1e-6)),
        (8, "mass_corrected", eq, approx(1, rel=1e-6)),
        # 20 patterns of length 6: sigma^2 / (N M). Towards another, half the way to it.
        (16, "radius_by_formula", eq, approx(1 / 120)),
        (16, "radius_measured", eq, approx(6 * math.sqrt(2) / 2, rel=0.02)),
        # sqrt(d / D) with heads of width 16 in 64 dimensions.
        (19, "share_of_concentration_without_factors", eq, approx(0.5)),
        (34, "log_loss_predictive", eq, approx(0.010, abs=0.002)),
    ],
)
def test_numbers_are_those_of_theory(
    number: int, name: str, compare: Callable[..., bool], value: object, numbers
) -> None:
    assert compare(numbers[number][name], value)
