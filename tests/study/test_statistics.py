"""Tests of differences, against scipy, published numbers and hand computations."""

from itertools import product

import numpy as np
import pytest
from scipy import stats

from isthmus.paper.study.statistics import (
    critical_difference,
    friedman,
    pairwise,
)

SCORES = np.random.default_rng(0).random((12, 5))


def test_friedman_is_that_of_scipy_with_and_without_ties() -> None:
    for scores in (SCORES, SCORES.round(1)):
        expected = stats.friedmanchisquare(*scores.T)
        found = friedman(scores)
        assert found.statistic == pytest.approx(expected.statistic)
        assert found.p_value == pytest.approx(expected.pvalue)


@pytest.mark.parametrize(("methods", "quantile"), [(2, 1.960), (3, 2.343), (5, 2.728), (10, 3.164)])
def test_critical_differences_have_the_published_quantiles(methods: int, quantile: float) -> None:
    # Table 5 of Demsar (2006), level 0.05.
    expected = quantile * np.sqrt(methods * (methods + 1) / (6 * 14))
    assert critical_difference(methods, 14) == pytest.approx(expected, rel=1e-3)


def signed_rank_p_value(gaps: np.ndarray) -> float:
    """Wilcoxon's p-value by going through all signs that the differences could have had."""
    ranks = stats.rankdata(np.abs(gaps))[gaps != 0]
    middle = ranks.sum() / 2
    found = abs(stats.rankdata(np.abs(gaps))[gaps > 0].sum() - middle)
    sums = [(ranks * signs).sum() for signs in product((0, 1), repeat=len(ranks))]
    return float(np.mean([abs(each - middle) >= found - 1e-9 for each in sums]))


@pytest.mark.parametrize("seed", range(0, 12, 3))
def test_p_values_with_ties_and_zeros_are_those_of_all_signs(seed: int) -> None:
    rng = np.random.default_rng(seed)
    gaps = rng.integers(-3, 5, size=4 + seed) / 8
    assert len(np.unique(np.abs(gaps))) < len(gaps)
    pair = pairwise(np.column_stack([gaps, 0 * gaps]), ["a", "b"])[0]
    assert pair.raw_p_value == pytest.approx(signed_rank_p_value(gaps), abs=1e-12)


@pytest.mark.parametrize("datasets", [1, 6, 15, 60])
def test_p_values_without_ties_are_the_exact_ones_of_scipy(datasets: int) -> None:
    gaps = np.random.default_rng(datasets).normal(0.3, 1, datasets)
    pair = pairwise(np.column_stack([gaps, 0 * gaps]), ["a", "b"])[0]
    exact = stats.wilcoxon(gaps, method="exact").pvalue
    assert pair.raw_p_value == pytest.approx(exact, abs=1e-12)
    assert pair.difference == pytest.approx(gaps.mean())


@pytest.mark.parametrize("shift", [0.0, -0.03, 0.2])
@pytest.mark.parametrize("datasets", [9, 15])
def test_equivalence_is_two_one_sided_tests_of_scipy(shift: float, datasets: int) -> None:
    gaps = np.random.default_rng(datasets).normal(shift, 0.03, datasets)
    pair = pairwise(np.column_stack([gaps, 0 * gaps]), ["a", "b"])[0]
    above = stats.wilcoxon(gaps + 0.05, alternative="greater", method="exact").pvalue
    below = stats.wilcoxon(gaps - 0.05, alternative="less", method="exact").pvalue
    assert pair.equivalence_p_value == pytest.approx(max(above, below))
    assert pair.reversed().equivalence_p_value == pair.equivalence_p_value
    wider = pairwise(np.column_stack([gaps, 0 * gaps]), ["a", "b"], margin=1.0)[0]
    assert wider.verdict == "competitive"
    alone = pairwise(np.column_stack([gaps, 0 * gaps]), ["a", "b"], margin=None)[0]
    assert alone.equivalence_p_value == 1.0
