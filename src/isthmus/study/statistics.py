"""Whether methods differ: ranks over datasets, and tests that say how sure one can be."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError, ShapeError

__all__ = [
    "LEVEL",
    "MARGIN",
    "Friedman",
    "Pair",
    "Verdict",
    "critical_difference",
    "friedman",
    "groups",
    "holm",
    "mean_ranks",
    "pairwise",
]

Verdict = Literal["competitive", "better", "worse", "undecided"]

LEVEL = 0.05
MARGIN = 0.02

# Scores that agree to so many digits are the same: labels in another order change the last ones.
DIGITS = 10
# With more datasets than this, Wilcoxon's test takes the normal approximation.
EXACT = 50


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
    if methods < 2 or datasets < 1:
        raise InvalidInputError("A critical difference takes two methods and a dataset at least.")
    return _quantile(methods, level) * math.sqrt(methods * (methods + 1) / (6 * datasets))


@cache
def _quantile(methods: int, level: float) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - level, methods, np.inf)) / math.sqrt(2)


def groups(ranks: Mapping[str, float], width: float) -> list[tuple[str, ...]]:
    """The largest sets of methods whose mean ranks all lie within the critical difference.

    Parameters
    ----------
    ranks : mapping of str to float
        The mean rank of each method.
    width : float
        The critical difference.

    Returns
    -------
    list of tuple of str
        Best first, in the sets too. A method that differs from all others is in none.

    Examples
    --------
    >>> groups({"a": 1.0, "b": 1.6, "c": 2.2, "d": 4.0}, 1.0)
    [('a', 'b'), ('b', 'c')]
    """
    order = sorted(ranks, key=lambda name: ranks[name])
    found: list[tuple[str, ...]] = []
    reached = 0
    for start, name in enumerate(order):
        end = start + sum(ranks[other] - ranks[name] <= width for other in order[start:])
        if end > reached and end - start > 1:
            found.append(tuple(order[start:end]))
        reached = max(reached, end)
    return found


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
    """Of Wilcoxon's signed-rank test, corrected by Holm for all pairs that were looked at."""
    raw_p_value: float | None = None
    """Before the correction: what counts if this was the one pair to ask about."""
    ahead: int = 0
    """On how many datasets the first is better."""
    behind: int = 0
    """On how many it is worse."""
    margin: float | None = MARGIN
    """How far apart means may be to count as close; None where scores have no common scale."""

    @property
    def verdict(self) -> Verdict:
        """Of the first.

        "Better" or "worse" is significant after the correction. "Competitive" means that there is
        no significant difference, and that the means are within the margin. All else is
        undecided: means further apart than the test can tell, and datasets so few that no test
        could, whatever p is said to be. The more pairs are looked at, the less is significant;
        see `raw_p_value`.
        """
        if self.datasets == 0 or 2.0 ** (1 - self.datasets) >= LEVEL:
            return "undecided"
        if self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        apart = self.margin is None or not abs(self.difference) <= self.margin
        return "undecided" if apart else "competitive"

    def __str__(self) -> str:
        raw = "" if self.raw_p_value is None else f", {self.raw_p_value:.2g} before correction"
        return (
            f"{self.first} against {self.second}: {self.verdict} (mean difference "
            f"{self.difference:+.3f}, p = {self.p_value:.2g}{raw}, {self.datasets} datasets)"
        )


def pairwise(scores: Any, methods: Sequence[str], margin: float | None = MARGIN) -> list[Pair]:
    """Wilcoxon's signed-rank test of every pair of methods, with Holm's correction.

    The test is exact for up to 50 datasets, with ties too: all signs of the differences are
    equally likely. Equal differences share their ranks. Those of zero are ranked with the others,
    and then left out (Pratt's way).

    Parameters
    ----------
    scores : array-like (datasets, methods)
        Higher is better. NaN leaves a dataset out of that method's pairs.
    methods : sequence of str
    margin : float or None
        How far apart the means of competitive methods may be; None where the scores have no scale
        on which that means anything.

    Examples
    --------
    >>> pair = pairwise([[0.7, 0.5]] * 4, ["a", "b"])[0]
    >>> pair.p_value, pair.verdict
    (0.125, 'undecided')
    """
    table = _table(scores)
    if table.shape[1] != len(methods):
        raise ShapeError(f"scores has {table.shape[1]} columns, but methods {len(methods)} names.")
    columns = list(combinations(range(len(methods)), 2))
    gaps = [_gaps(table[:, first], table[:, second]) for first, second in columns]
    raw = [_wilcoxon(each) for each in gaps]
    return [
        Pair(
            methods[first],
            methods[second],
            datasets=len(each),
            difference=float(each.mean()) if len(each) else math.nan,
            p_value=float(p_value),
            raw_p_value=float(raw_p_value),
            ahead=int((each > 0).sum()),
            behind=int((each < 0).sum()),
            margin=margin,
        )
        for (first, second), each, raw_p_value, p_value in zip(
            columns, gaps, raw, holm(raw), strict=True
        )
    ]


def _gaps(first: NDArray[np.float64], second: NDArray[np.float64]) -> NDArray[np.float64]:
    """Differences where both have a score; those that differ by rounding only are made equal."""
    gaps = np.round(first - second, DIGITS)
    return gaps[np.isfinite(gaps)]


def _wilcoxon(gaps: NDArray[np.float64]) -> float:
    """The two-sided p-value; zeros have their ranks, and no sign."""
    from scipy.stats import rankdata, wilcoxon

    if not gaps.any():  # no dataset, or no difference on any
        return 1.0
    if len(gaps) > EXACT:
        return float(wilcoxon(gaps, zero_method="pratt", method="approx").pvalue)
    # Ranks that are shared end in a half: twice a rank is a whole number.
    doubled = np.rint(2 * rankdata(np.abs(gaps))).astype(int)
    above = int(doubled[gaps > 0].sum())
    chances = _signed_rank_chances(doubled[gaps != 0])
    return min(1.0, 2 * float(min(chances[: above + 1].sum(), chances[above:].sum())))


def _signed_rank_chances(ranks: NDArray[np.int_]) -> NDArray[np.float64]:
    """The chance of each sum from zero on, if each rank is in it or not by the toss of a coin."""
    chances = np.zeros(int(ranks.sum()) + 1)
    chances[0] = 1.0
    for rank in ranks:
        chances /= 2
        chances[rank:] += chances[:-rank].copy()
    return chances


def _table(scores: Any) -> NDArray[np.float64]:
    table = np.array(scores, dtype=np.float64)
    if table.ndim != 2 or table.shape[0] < 1 or table.shape[1] < 2:
        raise ShapeError(
            f"scores must be (datasets, methods) with two methods at least, not {table.shape}."
        )
    return _rounded(table)


def _rounded(table: NDArray[np.float64]) -> NDArray[np.float64]:
    """The numbers to as many digits as mean something; equal ones are then equal."""
    return np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in table])


def _ranks(table: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    ranks: NDArray[np.float64] = rankdata(-np.nan_to_num(table, nan=-np.inf), axis=1)
    return ranks
