"""Ranks of methods over datasets, and tests of their differences."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import combinations
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.stats import chi2, rankdata, studentized_range

Verdict = Literal["competitive", "better", "worse", "undecided"]

LEVEL = 0.05
# Differences of scores below this do not matter.
MARGIN = 0.05
# Scores that agree to this many digits are equal: the order of labels changes the last digits.
DIGITS = 10


def _rounded(scores: Any) -> NDArray[np.float64]:
    return np.array([[float(f"{value:.{DIGITS}g}") for value in row] for row in np.array(scores)])


def ranks_of(scores: Any) -> NDArray[np.float64]:
    """Return the ranks (datasets, methods), 1 for the highest score; equal scores share ranks.

    >>> ranks_of([[0.9, 0.5, 0.1], [0.9, 0.9, np.nan]]).mean(0)
    array([1.25, 1.75, 3.  ])
    """
    ranks: NDArray[np.float64] = rankdata(-np.nan_to_num(_rounded(scores), nan=-np.inf), axis=1)
    return ranks


class Friedman(NamedTuple):
    """Friedman's test that all methods are equally good."""

    statistic: float
    p_value: float


def friedman(scores: Any) -> Friedman:
    """Return Friedman's rank test of scores (datasets, methods), with the correction for ties.

    That of SciPy needs three methods.
    """
    ranks = ranks_of(scores)
    n, k = ranks.shape
    between = float(((ranks.sum(0) - n * (k + 1) / 2) ** 2).sum())
    spread = float((ranks**2).sum()) - n * k * (k + 1) ** 2 / 4
    statistic = (k - 1) * between / spread if spread > 0 else 0.0
    return Friedman(statistic, float(chi2.sf(statistic, k - 1)))


def critical_difference(methods: int, datasets: int) -> float:
    """Return Nemenyi's critical difference: mean ranks further apart differ at level 0.05.

    >>> round(critical_difference(methods=5, datasets=30), 3)
    1.114
    """
    quantile = float(studentized_range.ppf(1 - LEVEL, methods, np.inf))
    return quantile * math.sqrt(methods * (methods + 1) / (12 * datasets))


def groups(ranks: Mapping[str, float], width: float) -> list[tuple[str, ...]]:
    """Return the largest sets of methods whose mean ranks lie within `width`, the best first.

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


def holm(p_values: Sequence[float]) -> NDArray[np.float64]:
    """Return p-values with Holm's correction for multiple tests.

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
    """Comparison of two methods on the datasets where both have a score.

    `difference` is the first's mean score minus the second's, `ahead` and `behind` count datasets
    on which the first is better and worse. `p_value` is of a difference by Wilcoxon's signed-rank
    test with Holm's correction for all pairs, `raw_p_value` before it. The others are one-sided and
    not corrected: of being better, and of not being worse by `margin` or more (None without a
    common scale), of the first method and of the second.
    """

    first: str
    second: str
    datasets: int
    difference: float
    p_value: float
    raw_p_value: float | None = None
    ahead: int = 0
    behind: int = 0
    margin: float | None = MARGIN
    better_p_values: tuple[float, float] = (1.0, 1.0)
    not_worse_p_values: tuple[float, float] = (1.0, 1.0)

    @property
    def equivalence_p_value(self) -> float:
        """Of equivalence: the larger of two one-sided signed-rank tests against the margin."""
        return max(self.not_worse_p_values)

    @property
    def decidable(self) -> bool:
        """True if there are enough datasets for a two-sided test at the level."""
        return self.datasets > 0 and 2.0 ** (1 - self.datasets) < LEVEL

    @property
    def verdict(self) -> Verdict:
        """Verdict on the first method: equivalent within the margin, or significantly different."""
        if self.decidable and self.margin is not None and self.equivalence_p_value < LEVEL:
            return "competitive"
        if self.decidable and self.p_value < LEVEL:
            return "better" if self.difference > 0 else "worse"
        return "undecided"

    def reversed(self) -> Pair:
        """Return the comparison as seen from the second method."""
        return replace(
            self,
            first=self.second,
            second=self.first,
            difference=-self.difference,
            ahead=self.behind,
            behind=self.ahead,
            better_p_values=self.better_p_values[::-1],
            not_worse_p_values=self.not_worse_p_values[::-1],
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        scaled = self.margin is not None
        fields = {name: value for name, value in vars(self).items() if "p_values" not in name}
        return {
            **fields,
            "verdict": self.verdict,
            "difference": self.difference if math.isfinite(self.difference) else None,
            "equivalence_p_value": self.equivalence_p_value if scaled else None,
            "noninferiority_p_value": self.not_worse_p_values[0] if scaled else None,
            "superiority_p_value": self.better_p_values[0],
        }


def pairwise(scores: Any, methods: Sequence[str], margin: float | None = MARGIN) -> list[Pair]:
    """Return tests of difference and of equivalence of every pair of methods over datasets.

    Scores are (datasets, methods), higher is better, NaN where a method has none.

    >>> pairwise([[0.70, 0.71], [0.5, 0.5], [0.31, 0.30]] * 3, ["a", "b"])[0].verdict
    'competitive'
    """
    pairs = []
    columns = zip(methods, _rounded(scores).T, strict=True)
    for (first, one), (second, other) in combinations(columns, 2):
        gaps = one - other
        gaps = gaps[np.isfinite(gaps)]
        worse, better = _tails(gaps)
        within = 1.0, 1.0
        if margin is not None and len(gaps):
            within = _tails(gaps + margin)[1], _tails(gaps - margin)[0]
        mean = float(gaps.mean()) if len(gaps) else math.nan
        counts = int((gaps.round(DIGITS) > 0).sum()), int((gaps.round(DIGITS) < 0).sum())
        raw = min(1, 2 * min(worse, better))
        tests = (better, worse), within
        pairs.append(Pair(first, second, len(gaps), mean, raw, raw, *counts, margin, *tests))
    adjusted = holm([pair.p_value for pair in pairs]).tolist()
    return [replace(pair, p_value=p) for pair, p in zip(pairs, adjusted, strict=True)]


def _tails(gaps: NDArray[np.float64]) -> tuple[float, float]:
    """Return the signed-rank p-values of gaps that are too low, and too high, to be around zero.

    Unlike SciPy's, this exact test allows ties: it enumerates the signs of the gaps. Zeros are
    ranked with the others and then dropped (Pratt's method).
    """
    gaps = gaps.round(DIGITS)  # so that equal differences are equal
    if not gaps.any():  # no dataset, or no difference
        return 1.0, 1.0
    # Shared ranks may end in a half; twice a rank is whole.
    doubled = np.rint(2 * rankdata(np.abs(gaps))).astype(int)
    above = int(doubled[gaps > 0].sum())
    # The probability of each sum 0, 1, ... if each rank is in it with probability 1/2.
    chances = np.zeros(int(doubled[gaps != 0].sum()) + 1)
    chances[0] = 1.0
    for rank in doubled[gaps != 0]:
        chances /= 2
        chances[rank:] += chances[:-rank].copy()
    return float(chances[: above + 1].sum()), float(chances[above:].sum())
