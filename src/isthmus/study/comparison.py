"""Comparison of all methods by one metric: scores, ranks and tests."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.study.methods import Kind
from isthmus.study.metrics import BOUNDED
from isthmus.study.statistics import (
    LEVEL,
    MARGIN,
    Friedman,
    Pair,
    critical_difference,
    friedman,
    groups,
    mean_ranks,
    pairwise,
)
from isthmus.study.store import Row
from isthmus.study.tables import Scores, View, score_table

__all__ = ["Comparison", "compare", "plain"]

# Scores without a common scale are compared by their logarithms; zero is replaced by this.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Comparison:
    """Ranks and tests of methods from one table of scores. Prints as Markdown.

    Ranks are over the datasets on which every method was run; a method that was run and has no
    score ranks last. A pair is compared on the datasets where both have a score.
    """

    scores: Scores
    ranks: dict[str, float]
    """Mean rank of each method; empty if there is nothing to rank."""
    friedman: Friedman | None
    critical_difference: float | None
    """Nemenyi's, at level 0.05."""
    pairs: tuple[Pair, ...]

    @property
    def ranked(self) -> tuple[str, ...]:
        """Datasets that the ranks are over."""
        kept = self.scores.comparable
        return tuple(name for name, keep in zip(self.scores.datasets, kept, strict=True) if keep)

    @property
    def left_out(self) -> tuple[str, ...]:
        """Datasets on which a method was not run, or none has a score."""
        return tuple(name for name in self.scores.datasets if name not in self.ranked)

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Sets of methods whose mean ranks do not differ significantly."""
        return groups(self.ranks, self.critical_difference) if self.critical_difference else []

    def pair(self, first: str, second: str) -> Pair | None:
        """Return the comparison of two methods, or None if one of them is missing."""
        for each in self.pairs:
            if (each.first, each.second) == (first, second):
                return each
            if (each.first, each.second) == (second, first):
                return each.reversed()
        return None

    def mean(self, method: str, other: str | None = None) -> float:
        """Return the mean score over the ranked datasets, or over those of a pair of methods.

        Datasets on which the method has no score are excluded; see `covered`.
        """
        names = [method] if other is None else [method, other]
        columns = self.scores.values[:, [self.scores.methods.index(name) for name in names]]
        if other is None:
            columns = columns[self.scores.comparable]
        kept = columns[np.isfinite(columns).all(1), 0]
        return float(kept.mean()) if len(kept) else math.nan

    def covered(self, method: str) -> int:
        """Return the number of ranked datasets on which the method has a score."""
        column = self.scores.values[self.scores.comparable, self.scores.methods.index(method)]
        return int(np.isfinite(column).sum())

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        scores = self.scores
        return {
            "question": scores.kind,
            "metric": scores.metric,
            "view": scores.view,
            "datasets": list(scores.datasets),
            "methods": list(scores.methods),
            "scores": [[plain(value) for value in row] for row in scores.values],
            "fits": scores.attempts.tolist(),
            "not_ranked": list(self.left_out),
            "means": {name: plain(self.mean(name)) for name in scores.methods},
            "datasets_in_mean": {name: self.covered(name) for name in scores.methods},
            "mean_ranks": self.ranks,
            "friedman": None
            if self.friedman is None
            else {"statistic": self.friedman.statistic, "p_value": self.friedman.p_value},
            "critical_difference": self.critical_difference,
            "not_told_apart": [list(each) for each in self.groups],
            "pairs": [pair.as_dict() for pair in self.pairs],
        }

    def __str__(self) -> str:
        lines = [str(self.scores)]
        if not self.ranks:
            words = (
                "Nothing to rank: there is only one method, or no dataset on which all methods "
                "were run."
            )
            return "\n".join([*lines, "", words])
        names = self.scores.methods
        ranks = (f"{self.ranks[name]:.2f}" for name in names)
        if self.scores.metric in BOUNDED:
            lines.append(f"| **mean** | {' | '.join(map(self._mean_cell, names))} |")
        lines.append(f"| **mean rank** | {' | '.join(ranks)} |")
        return "\n".join([*lines, "", *self._remarks()])

    def _mean_cell(self, method: str) -> str:
        """Return the mean, marked if it does not cover all ranked datasets."""
        covered, mean = self.covered(method), self.mean(method)
        if not covered:
            return "none"
        return f"{mean:.3f}" if covered == len(self.ranked) else f"{mean:.3f} ({covered})"

    def _remarks(self) -> Iterable[str]:
        assert self.friedman is not None
        short = [name for name in self.scores.methods if self.covered(name) < len(self.ranked)]
        if short and self.scores.metric in BOUNDED:
            yield (
                f"(n): mean over only n of the {len(self.ranked)} datasets, those on which the "
                "method has a score; not comparable with the other means."
            )
        words = "differ" if self.friedman.p_value < LEVEL else "do not differ significantly"
        yield f"{self.friedman}: the methods {words}."
        together = "; ".join(", ".join(each) for each in self.groups) or "none"
        yield (
            f"Nemenyi's critical difference of mean ranks is {self.critical_difference:.2f}. "
            f"Not significantly different: {together}."
        )
        different = (_sentence(pair) for pair in self.pairs if pair.p_value < LEVEL)
        words = "; ".join(different) or "none"
        yield f"Pairs that differ (Wilcoxon, Holm): {words}."
        if self.left_out:
            names = ", ".join(self.left_out)
            yield f"Not ranked, because a method was not run or none has a score: {names}."


def compare(rows: Iterable[Row], metric: str, kind: Kind, view: View = "selected") -> Comparison:
    """Rank methods by their scores and test which of them differ.

    Parameters
    ----------
    rows : iterable of mapping
        See :meth:`Store.read`.
    metric, kind, view
        See :func:`score_table`.
    """
    scores = score_table(rows, metric, kind, view)
    table = scores.oriented
    if len(scores.methods) < 2:
        return Comparison(scores, {}, None, None, ())
    scaled, margin = (table, MARGIN) if metric in BOUNDED else (_logarithms(table), None)
    pairs = tuple(pairwise(scaled, scores.methods, margin))
    ranked = table[scores.comparable]
    if not len(ranked):
        return Comparison(scores, {}, None, None, pairs)
    ranks = dict(zip(scores.methods, mean_ranks(ranked).tolist(), strict=True))
    width = critical_difference(len(scores.methods), len(ranked))
    return Comparison(scores, ranks, friedman(ranked), width, pairs)


def plain(value: float) -> float | None:
    """Return the number, or None if it is not finite and JSON cannot hold it."""
    return float(value) if math.isfinite(value) else None


def _logarithms(oriented: NDArray[np.float64]) -> NDArray[np.float64]:
    """Return signed logarithms of scores: their differences do not depend on units."""
    sizes = np.log(np.maximum(np.abs(oriented), SMALLEST))
    return np.where(np.signbit(oriented), -sizes, sizes)


def _sentence(pair: Pair) -> str:
    better = pair if pair.difference > 0 else pair.reversed()
    return f"{better.first} above {better.second} (p = {better.p_value:.2g})"
