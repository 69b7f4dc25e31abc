"""Ranks of methods over datasets, and tests of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import combinations
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError, ShapeError

Verdict = Literal["competitive", "better", "worse", "undecided"]

LEVEL = 0.05
MARGIN = 0.02

# Scores that agree to this many digits are equal: the order of labels changes the last digits.
DIGITS = 10
# With more datasets than this, Wilcoxon's test uses the normal approximation.
EXACT = 50


def mean_ranks(scores: Any) -> NDArray[np.float64]:
    """Return the mean rank of each method over datasets; 1 is best, equal scores share ranks.

    Parameters
    ----------
    scores : array-like (datasets, methods)
        Higher is better. NaN, a method without a score, ranks last on that dataset.

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
    r"""Return Friedman's rank test, with the correction for ties.

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
    """Return Nemenyi's critical difference: mean ranks further apart differ at this level.

    Examples
    --------
    >>> round(critical_difference(methods=5, datasets=30), 3)
    1.114
    """
    if methods < 2 or datasets < 1:
        raise InvalidInputError("A critical difference needs at least two methods and one dataset.")
    return _quantile(methods, level) * math.sqrt(methods * (methods + 1) / (6 * datasets))


@cache
def _quantile(methods: int, level: float) -> float:
    from scipy.stats import studentized_range

    return float(studentized_range.ppf(1 - level, methods, np.inf)) / math.sqrt(2)


def groups(ranks: Mapping[str, float], width: float) -> list[tuple[str, ...]]:
    """Return the largest sets of methods whose mean ranks lie within the critical difference.

    The best come first, also within the sets. A method that differs from all others is in none.

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
    """Return p-values with Holm's correction for multiple tests.

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
    """Comparison of two methods on the datasets where both have a score."""

    first: str
    second: str
    datasets: int
    difference: float
    """Mean score of the first minus that of the second."""
    p_value: float
    """Of Wilcoxon's signed-rank test, with Holm's correction for all tested pairs."""
    raw_p_value: float | None = None
    """Before the correction: valid if this was the only pair of interest."""
    ahead: int = 0
    """Number of datasets on which the first is better."""
    behind: int = 0
    """Number of datasets on which it is worse."""
    margin: float | None = MARGIN
    """Largest difference of competitive means; None for scores without a common scale."""

    @property
    def verdict(self) -> Verdict:
        """Verdict on the first method.

        "Better" and "worse" are significant after the correction. "Competitive" means no
        significant difference, and means within the margin. All other cases are "undecided".
        """
        if self.datasets == 0 or 2.0 ** (1 - self.datasets) >= LEVEL:
            return "undecided"
        if self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        apart = self.margin is None or not abs(self.difference) <= self.margin
        return "undecided" if apart else "competitive"

    @property
    def wording(self) -> str:
        """The verdict as tables print it: scores without a common scale cannot be competitive."""
        open_ended = self.margin is None and self.verdict == "undecided"
        return "no difference shown" if open_ended else self.verdict

    def reversed(self) -> Pair:
        """Return the comparison as seen from the second method."""
        turned = replace(self, first=self.second, second=self.first, difference=-self.difference)
        return replace(turned, ahead=self.behind, behind=self.ahead)

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        difference = self.difference if math.isfinite(self.difference) else None
        fields = {**vars(self), "verdict": self.verdict, "difference": difference}
        return {name: value for name, value in fields.items() if name != "margin"}

    def __str__(self) -> str:
        raw = "" if self.raw_p_value is None else f", {self.raw_p_value:.2g} before correction"
        return (
            f"{self.first} against {self.second}: {self.verdict} (mean difference "
            f"{self.difference:+.3f}, p = {self.p_value:.2g}{raw}, {self.datasets} datasets)"
        )


def pairwise(scores: Any, methods: Sequence[str], margin: float | None = MARGIN) -> list[Pair]:
    """Return Wilcoxon's signed-rank test of every pair of methods, with Holm's correction.

    The test is exact for up to 50 datasets, also with ties: it enumerates the signs of the
    differences. Equal differences share their ranks. Zero differences are ranked with the others
    and then dropped (Pratt's method).

    Parameters
    ----------
    scores : array-like (datasets, methods)
        Higher is better. NaN excludes a dataset from the pairs of that method.
    methods : sequence of str
    margin : float or None
        Largest difference of competitive means; None for scores without a common scale.

    Examples
    --------
    >>> pair = pairwise([[0.7, 0.5]] * 4, ["a", "b"])[0]
    >>> pair.p_value, pair.verdict
    (0.125, 'undecided')
    """
    table = _table(scores)
    if table.shape[1] != len(methods):
        raise ShapeError(
            f"scores has {table.shape[1]} columns, but methods has {len(methods)} names."
        )
    pairs = []
    for (first, one), (second, other) in combinations(zip(methods, table.T, strict=True), 2):
        gaps = np.round(one - other, DIGITS)  # so that equal differences are equal
        gaps = gaps[np.isfinite(gaps)]
        mean, p_value = float(gaps.mean()) if len(gaps) else math.nan, _wilcoxon(gaps)
        counts = int((gaps > 0).sum()), int((gaps < 0).sum())
        pairs.append(Pair(first, second, len(gaps), mean, p_value, p_value, *counts, margin))
    adjusted = holm([pair.p_value for pair in pairs]).tolist()
    return [replace(pair, p_value=p) for pair, p in zip(pairs, adjusted, strict=True)]


def _wilcoxon(gaps: NDArray[np.float64]) -> float:
    """Return the two-sided p-value; zeros have ranks and no sign."""
    from scipy.stats import rankdata, wilcoxon

    if not gaps.any():  # no dataset, or no difference
        return 1.0
    if len(gaps) > EXACT:
        return float(wilcoxon(gaps, zero_method="pratt", method="approx").pvalue)
    # Shared ranks may end in a half; twice a rank is a whole number.
    doubled = np.rint(2 * rankdata(np.abs(gaps))).astype(int)
    above = int(doubled[gaps > 0].sum())
    chances = _signed_rank_chances(doubled[gaps != 0])
    return min(1.0, 2 * float(min(chances[: above + 1].sum(), chances[above:].sum())))


def _signed_rank_chances(ranks: NDArray[np.int_]) -> NDArray[np.float64]:
    """Return the probability of each sum 0, 1, ... if each rank is in it with probability 1/2."""
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
            f"scores must be (datasets, methods) with at least two methods, not {table.shape}."
        )
    return np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in table])


def _ranks(table: NDArray[np.float64]) -> NDArray[np.float64]:
    from scipy.stats import rankdata

    ranks: NDArray[np.float64] = rankdata(-np.nan_to_num(table, nan=-np.inf), axis=1)
    return ranks
