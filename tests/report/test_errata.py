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
        # exp(-kappa |x|^2) has the mass pi / kappa on a plane, a known cluster's pi / beta.
        (8, "mass_printed", eq, approx(1 + 1 / 0.5, rel=1e-6)),
        (8, "mass_corrected", eq, approx(1, rel=1e-6)),
        (16, "radius_by_formula", eq, approx(1 / 120)),
        # Half-way to another pattern is too far.
        (16, "radius_certified", lt, 6 * math.sqrt(2) / 2),
    ],
)
def test_numbers_are_those_of_theory(
    number: int, name: str, compare: Callable[..., bool], value: object, numbers
) -> None:
    assert compare(numbers[number][name], value)
