"""Tests of differences, against scipy, published numbers and hand computations."""

import numpy as np
import pytest
from scipy import stats

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.study.statistics import (
    Pair,
    critical_difference,
    friedman,
    holm,
    mean_ranks,
    pairwise,
)

SCORES = np.random.default_rng(0).random((12, 5))


def test_friedman_is_that_of_scipy_with_and_without_ties() -> None:
    for scores in (SCORES, SCORES.round(1)):
        expected = stats.friedmanchisquare(*scores.T)
        found = friedman(scores)
        assert found.statistic == pytest.approx(expected.statistic)
        assert found.p_value == pytest.approx(expected.pvalue)
    assert "5 methods, 12 datasets" in str(found)


def test_methods_that_are_all_equal_do_not_differ() -> None:
    assert friedman(np.ones((6, 3))).p_value == 1.0
    assert all(pair.verdict == "competitive" for pair in pairwise(np.ones((6, 3)), list("abc")))


def test_ranks_of_a_hand_computed_table_with_a_method_that_could_not() -> None:
    np.testing.assert_allclose(
        mean_ranks([[0.9, 0.5, 0.7], [np.nan, 0.2, 0.1]]), [(1 + 3) / 2, (3 + 1) / 2, 2]
    )


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_have_the_published_quantiles(methods: int, quantile: float) -> None:
    # Table 5 of Demsar (2006), level 0.05.
    expected = quantile * np.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, rel=1e-3)


def test_holm_of_a_hand_computed_example() -> None:
    np.testing.assert_allclose(holm([0.01, 0.02, 0.03, 0.005]), [0.03, 0.04, 0.04, 0.02])
    np.testing.assert_allclose(holm([0.9, 0.8]), [1.0, 1.0])


def test_pairs_are_those_of_scipy_before_correction() -> None:
    pair = pairwise(SCORES[:, :2], ["a", "b"])[0]
    assert pair.p_value == pytest.approx(stats.wilcoxon(SCORES[:, 0], SCORES[:, 1]).pvalue)
    assert pair.difference == pytest.approx((SCORES[:, 0] - SCORES[:, 1]).mean())
    assert len(pairwise(SCORES, list("abcde"))) == 10


def test_a_pair_counts_the_datasets_that_both_could_do() -> None:
    scores = SCORES[:, :2].copy()
    scores[0, 0] = np.nan
    pair = pairwise(scores, ["a", "b"])[0]
    assert pair.datasets == 11
    assert pair.p_value == pytest.approx(stats.wilcoxon(SCORES[1:, 0], SCORES[1:, 1]).pvalue)


@pytest.mark.parametrize(
    ("difference", "p_value", "verdict"),
    [
        (0.01, 0.5, "competitive"),
        (-0.02, 0.05, "competitive"),
        (-0.05, 0.5, "undecided"),
        (0.01, 0.01, "better"),
        (-0.3, 0.01, "worse"),
    ],
)
def test_competitive_is_no_significant_difference_and_means_within_two_hundredths(
    difference: float, p_value: float, verdict: str
) -> None:
    pair = Pair("a", "b", 15, difference, p_value)
    assert pair.verdict == verdict
    assert verdict in str(pair)


def test_tables_that_allow_no_comparison_are_refused() -> None:
    with pytest.raises(ShapeError, match="two methods"):
        friedman(np.ones((3, 1)))
    with pytest.raises(ShapeError, match="5 columns, but methods 1"):
        pairwise(SCORES, ["a"])
    with pytest.raises(InvalidInputError, match="two methods"):
        critical_difference(1, 5)
