"""Whether methods differ: ranks over datasets, and tests that say how sure one can be."""

from __future__ import annotations

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError, ShapeError

__all__ = [
    "Friedman",
    "Pair",
    "critical_difference",
    "friedman",
    "holm",
    "mean_ranks",
    "pairwise",
]

Verdict = Literal["competitive", "better", "worse", "undecided"]

LEVEL = 0.05
MARGIN = 0.02


def mean_ranks(scores: Any) -> NDArray[np.float64]:
    """Mean rank of each method over datasets; 1 is best, equal scores share their ranks.

    Parameters
    ----------
    scores : array-like (datasets, methods)
        Higher is better. NaN, a method that could not do a dataset, ranks last there.

    Examples
    --------
    >>> mean_ranks([[0.9, 0.5, 0.1], [0.9, 0.9, 0.1]])
    array([1.25, 1.75, 3.  ])
    """
    return _ranks(_table(scores)).mean(0)


@dataclass(frozen=True)
class Friedman:
    """Friedman's test that all methods are equally good."""

    statistic: float
    p_value: float
    datasets: int
    methods: int

    def __str__(self) -> str:
        sizes = f"{self.methods} methods, {self.datasets} datasets"
        return f"Friedman chi2 = {self.statistic:.2f}, p = {self.p_value:.2g} ({sizes})"


def friedman(scores: Any) -> Friedman:
    r"""Friedman's rank test, with the correction for ties.

    .. math:: \chi^2 = \frac{(k - 1) \sum_j (R_j - N (k + 1) / 2)^2}{\sum_{ij} r_{ij}^2 - N k (k + 1)^2 / 4}

    Parameters
    ----------
    scores : array-like (N datasets, k methods)
    """  # noqa: E501
    from scipy.stats import chi2

    ranks = _ranks(_table(scores))
    n, k = ranks.shape
    between = float(((ranks.sum(0) - n * (k + 1) / 2) ** 2).sum())
    spread = float((ranks**2).sum()) - n * k * (k + 1) ** 2 / 4
    statistic = (k - 1) * between / spread if spread > 0 else 0.0
    return Friedman(statistic, float(chi2.sf(statistic, k - 1)), n, k)


def critical_difference(methods: int, datasets: int, level: float = LEVEL) -> float:
    """Nemenyi: mean ranks further apart than this differ, at this level.

    Examples
    --------
    >>> round(critical_difference(methods=5, datasets=30), 3)
    1.114
    """
    from scipy.stats import studentized_range

    if methods < 2 or datasets < 1:
        raise InvalidInputError("A critical difference takes two methods and a dataset at least.")
    quantile = float(studentized_range.ppf(1 - level, methods, np.inf)) / math.sqrt(2)
    return quantile * math.sqrt(methods * (methods + 1) / (6 * datasets))


def holm(p_values: Any) -> NDArray[np.float64]:
    """Holm's correction: p-values as they count when so many were looked at.

    Examples
    --------
    >>> holm([0.01, 0.04, 0.03])
    array([0.03, 0.06, 0.06])
    """
    raw = np.asarray(p_values, dtype=np.float64)
    order = np.argsort(raw, kind="stable")
    stepped = np.maximum.accumulate(raw[order] * np.arange(len(raw), 0, -1))
    adjusted = np.empty_like(raw)
    adjusted[order] = np.minimum(stepped, 1.0)
    return adjusted


@dataclass(frozen=True)
class Pair:
    """One method against another, over the datasets that both could do."""

    first: str
    second: str
    datasets: int
    difference: float
    """Mean score of the first minus that of the second."""
    p_value: float
    """Of Wilcoxon's signed-rank test, corrected by Holm."""

    @property
    def verdict(self) -> Verdict:
        """Of the first.

        "Competitive" means no significant difference, and means within 0.02. Where the means are
        further apart but the test cannot tell, the data do not decide.
        """
        if self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        return "competitive" if abs(self.difference) <= MARGIN else "undecided"

    def __str__(self) -> str:
        return (
            f"{self.first} against {self.second}: {self.verdict} (mean difference "
            f"{self.difference:+.3f}, p = {self.p_value:.2g}, {self.datasets} datasets)"
        )


def pairwise(scores: Any, methods: list[str]) -> list[Pair]:
    """Wilcoxon's signed-rank test of every pair of methods, with Holm's correction.

    Parameters
    ----------
    scores : array-like (datasets, methods)
        On a scale where 0.02 is little. NaN leaves a dataset out of that method's pairs.
    methods : list of str
    """
    table = _table(scores)
    if table.shape[1] != len(methods):
        raise ShapeError(f"scores has {table.shape[1]} columns, but methods {len(methods)} names.")
    found = []
    for first, second in combinations(range(len(methods)), 2):
        gaps = table[:, first] - table[:, second]
        gaps = gaps[np.isfinite(gaps)]
        mean = float(gaps.mean()) if len(gaps) else math.nan
        found.append((methods[first], methods[second], len(gaps), mean, _wilcoxon(gaps)))
    adjusted = holm([each[-1] for each in found])
    return [Pair(*each[:-1], float(p)) for each, p in zip(found, adjusted, strict=True)]


def _wilcoxon(gaps: NDArray[np.float64]) -> float:
    from scipy.stats import wilcoxon

    if not gaps.any():  # no dataset, or no difference on any
        return 1.0
    # Exact where it can be: with ties or zeros it cannot, and the normal approximation is used.
    distinct = len(np.unique(np.abs(gaps))) == len(gaps) and bool((gaps != 0).all())
    method = "exact" if distinct and len(gaps) <= 50 else "approx"
    return float(wilcoxon(gaps, zero_method="pratt", method=method).pvalue)


def _table(scores: Any) -> NDArray[np.float64]:
    table = np.asarray(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise ShapeError(
            f"scores must be (datasets, methods) with two methods at least, not {table.shape}."
        )
    return table


def _ranks(table: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    ranks: NDArray[np.float64] = rankdata(-np.nan_to_num(table, nan=-np.inf), axis=1)
    return ranks
