"""All methods on one question, under one metric: scores, ranks, and which of them differ."""

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

# Scores without a common scale are compared by their logarithms; zero has none.
SMALLEST = 1e-12


@dataclass(frozen=True)
class Comparison:
    """What can be said on the methods from one table of scores. Prints as Markdown.

    Ranks are over the datasets on which every method was tried; where one was tried and has no
    score, it ranks last. A pair is compared on the datasets where both have a score.
    """

    scores: Scores
    ranks: dict[str, float]
    """The mean rank of each method; empty if there is nothing to rank."""
    friedman: Friedman | None
    critical_difference: float | None
    """Nemenyi's, at the level 0.05."""
    pairs: tuple[Pair, ...]

    @property
    def ranked(self) -> tuple[str, ...]:
        """The datasets that ranks are over."""
        kept = self.scores.comparable
        return tuple(name for name, keep in zip(self.scores.datasets, kept, strict=True) if keep)

    @property
    def left_out(self) -> tuple[str, ...]:
        """The datasets on which some method was not tried, or none got a score."""
        return tuple(name for name in self.scores.datasets if name not in self.ranked)

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Sets of methods that their mean ranks do not tell apart."""
        return groups(self.ranks, self.critical_difference) if self.critical_difference else []

    def pair(self, first: str, second: str) -> Pair | None:
        """The one method against the other, seen from the first; None if one is not there."""
        for each in self.pairs:
            if (each.first, each.second) == (first, second):
                return each
            if (each.first, each.second) == (second, first):
                return _turned(each)
        return None

    def mean(self, method: str, other: str | None = None) -> float:
        """The mean score over the ranked datasets; or, beside another, over those of the pair.

        Datasets on which a method has no score are not in its mean; see `covered`.
        """
        names = [method] if other is None else [method, other]
        columns = self.scores.values[:, [self.scores.methods.index(name) for name in names]]
        if other is None:
            columns = columns[self.scores.comparable]
        kept = columns[np.isfinite(columns).all(1), 0]
        return float(kept.mean()) if len(kept) else math.nan

    def covered(self, method: str) -> int:
        """On how many of the ranked datasets the method has a score: those of its mean."""
        column = self.scores.values[self.scores.comparable, self.scores.methods.index(method)]
        return int(np.isfinite(column).sum())

    def as_dict(self) -> dict[str, Any]:
        """The same for machines."""
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
            "pairs": [_pair_as_dict(pair) for pair in self.pairs],
        }

    def __str__(self) -> str:
        lines = [str(self.scores)]
        if not self.ranks:
            words = (
                "Nothing to rank: there is no dataset on which all methods were run, or only one "
                "method."
            )
            return "\n".join([*lines, "", words])
        names = self.scores.methods
        ranks = (f"{self.ranks[name]:.2f}" for name in names)
        if self.scores.metric in BOUNDED:
            lines.append(f"| **mean** | {' | '.join(map(self._mean_cell, names))} |")
        lines.append(f"| **mean rank** | {' | '.join(ranks)} |")
        return "\n".join([*lines, "", *self._remarks()])

    def _mean_cell(self, method: str) -> str:
        """The mean, marked if it is not over all ranked datasets."""
        covered, mean = self.covered(method), self.mean(method)
        if not covered:
            return "none"
        return f"{mean:.3f}" if covered == len(self.ranked) else f"{mean:.3f} ({covered})"

    def _remarks(self) -> Iterable[str]:
        assert self.friedman is not None
        short = [name for name in self.scores.methods if self.covered(name) < len(self.ranked)]
        if short and self.scores.metric in BOUNDED:
            yield (
                f"(n): this mean is over n of the {len(self.ranked)} datasets only, those on which "
                "the method has a score, so it does not compare with the others."
            )
        surely = "differ" if self.friedman.p_value < LEVEL else "are not shown to differ"
        yield f"{self.friedman}: the methods {surely}."
        together = "; ".join(", ".join(each) for each in self.groups) or "none"
        yield (
            f"Nemenyi's critical difference of mean ranks is {self.critical_difference:.2f}. "
            f"Not told apart: {together}."
        )
        told = [pair for pair in self.pairs if pair.p_value < LEVEL]
        words = "; ".join(_sentence(pair) for pair in told) or "none"
        yield f"Pairs that differ (Wilcoxon, Holm): {words}."
        if self.left_out:
            names = ", ".join(self.left_out)
            yield f"Not ranked, for not every method was run there, or none has a score: {names}."


def compare(rows: Iterable[Row], metric: str, kind: Kind, view: View = "selected") -> Comparison:
    """Make the table of scores, rank the methods, and test which of them differ.

    Parameters
    ----------
    rows : iterable of mapping
        Of :meth:`Store.read`.
    metric, kind, view
        As in :func:`score_table`.
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


def plain(value: float | None) -> float | None:
    """A number that JSON has, or None."""
    return None if value is None or not math.isfinite(value) else float(value)


def _logarithms(oriented: NDArray[np.float64]) -> NDArray[np.float64]:
    """Scores of either sign whose sizes differ from dataset to dataset: their ratios do not."""
    sizes = np.log(np.maximum(np.abs(oriented), SMALLEST))
    return np.where(np.signbit(oriented), -sizes, sizes)


def _turned(pair: Pair) -> Pair:
    return Pair(
        pair.second,
        pair.first,
        pair.datasets,
        -pair.difference,
        pair.p_value,
        pair.raw_p_value,
        pair.behind,
        pair.ahead,
        pair.margin,
    )


def _sentence(pair: Pair) -> str:
    better = pair if pair.difference > 0 else _turned(pair)
    return f"{better.first} above {better.second} (p = {better.p_value:.2g})"


def _pair_as_dict(pair: Pair) -> dict[str, Any]:
    return {
        "first": pair.first,
        "second": pair.second,
        "datasets": pair.datasets,
        "difference": plain(pair.difference),
        "ahead": pair.ahead,
        "behind": pair.behind,
        "p_value": pair.p_value,
        "raw_p_value": pair.raw_p_value,
        "verdict": pair.verdict,
    }
