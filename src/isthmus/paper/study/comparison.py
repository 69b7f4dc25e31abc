"""Comparison of methods: scores, ranks and tests for one metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Literal

import numpy as np
from pandas import DataFrame

from isthmus.paper.study import statistics as st
from isthmus.paper.study.methods import BOUNDED, LOWER_IS_BETTER, METRICS, Kind
from isthmus.paper.study.store import COLUMNS, Row
from isthmus.validation import as_choice

View = Literal["grid", "selected", "oracle"]

VIEWS: dict[View, str] = {
    "selected": "selected by the method's own objective, without labels",
    "grid": "median over the whole grid",
    "oracle": "best of all settings and seeds by this score: an upper bound, not a result",
}
# Scores without a common scale are compared by their logarithms; zero is replaced by this.
SMALLEST = 1e-12
CELL_LENGTH = 100
CELL = ["dataset", "method"]


def as_frame(rows: Iterable[Row]) -> DataFrame:
    """Return results as a table, NaN where a number is missing, each fit once: the newest.

    A directory holds a fit twice if it was run on different numbers of rows.
    """
    if isinstance(rows, DataFrame):
        return rows
    numbers = [name for name, kind in COLUMNS.items() if kind in (int, float)]
    frame = DataFrame(list(rows), columns=list(COLUMNS)).astype(dict.fromkeys(numbers, float))
    by_age = frame.sort_values("finished", kind="stable")
    fit = [*CELL, "parameters", "entry", "seed"]
    return by_age.drop_duplicates(fit, keep="last").sort_index()


def selected(frame: DataFrame) -> DataFrame:
    """Return the fit with the lowest objective for each dataset, method and seed.

    Without objectives, it is that of the first settings.
    """
    best_first = frame[frame.status == "ok"].sort_values(["objective", "entry"], kind="stable")
    return best_first.drop_duplicates([*CELL, "seed"])


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records with the same keys as a Markdown table."""
    heads = [name.replace("_", " ") for name in (records or [{}])[0]]
    rows = [heads, *(map(_cell, each.values()) for each in records)]
    first, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, f"|{'---|' * len(heads)}", *rest])


def _cell(value: Any) -> str:
    text = " ".join(_words(value).replace("|", "/").split())
    return text if len(text) <= CELL_LENGTH else f"{text[: CELL_LENGTH - 1]}…"


def _words(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_words(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(map(_words, value))
    if isinstance(value, float):
        small = 0 < abs(value) < 0.01
        return "none" if math.isnan(value) else f"{value:.2g}" if small else f"{value:,.3f}"
    return "" if value is None else str(value)


@dataclass(frozen=True, eq=False)
class Comparison:
    """Scores of methods by one metric, their ranks, and tests. Prints as Markdown.

    Ranks are over the datasets on which every method was run; a method that was run and has no
    score ranks last. A pair is compared on the datasets where both have a score.

    Attributes
    ----------
    scores : DataFrame (datasets, methods)
        One score for each dataset and method; NaN where no fit has a score.
    fits : DataFrame (datasets, methods)
        Number of fits, with or without a score.
    """

    metric: str
    view: View
    kind: Kind
    scores: DataFrame
    fits: DataFrame

    @property
    def methods(self) -> tuple[str, ...]:
        """Names of the methods."""
        return tuple(self.scores.columns)

    @property
    def oriented(self) -> DataFrame:
        """The scores with the sign that makes higher better."""
        return -self.scores if self.metric in LOWER_IS_BETTER else self.scores

    @cached_property
    def ranked(self) -> DataFrame:
        """The scores of the datasets that ranks are over: all methods were run, one has a score."""
        return self.oriented[(self.fits > 0).all(axis=1) & self.scores.notna().any(axis=1)]

    @property
    def left_out(self) -> list[str]:
        """Datasets on which a method was not run, or none has a score."""
        return [name for name in self.scores.index if name not in self.ranked.index]

    @cached_property
    def pairs(self) -> list[st.Pair]:
        """The comparison of each two methods."""
        if self.metric in BOUNDED:
            return st.pairwise(self.oriented, self.methods)
        # Differences of logarithms do not depend on units.
        sizes = np.log(np.maximum(np.abs(self.oriented), SMALLEST))
        signed = np.where(np.signbit(self.oriented), -sizes, sizes)
        return st.pairwise(signed, self.methods, None)

    @cached_property
    def ranks(self) -> dict[str, float]:
        """Mean ranks by method; empty if there is nothing to rank."""
        if len(self.methods) < 2 or self.ranked.empty:
            return {}
        return dict(zip(self.methods, st.ranks_of(self.ranked).mean(0).tolist(), strict=True))

    @cached_property
    def friedman(self) -> st.Friedman | None:
        """Friedman's test that all methods are equally good."""
        return st.friedman(self.ranked) if self.ranks else None

    @cached_property
    def critical_difference(self) -> float | None:
        """Nemenyi's critical difference of mean ranks, at level 0.05."""
        return st.critical_difference(len(self.ranks), len(self.ranked)) if self.ranks else None

    @property
    def groups(self) -> list[tuple[str, ...]]:
        """Sets of methods whose mean ranks do not differ significantly."""
        return st.groups(self.ranks, self.critical_difference or 0.0)

    def pair(self, first: str, second: str) -> st.Pair | None:
        """Return the comparison of two methods, or None if one of them is missing."""
        for each in self.pairs:
            if {each.first, each.second} == {first, second}:
                return each if each.first == first else each.reversed()
        return None

    def as_dict(self) -> dict[str, Any]:
        """Return the comparison for JSON."""
        counted = self.scores.loc[self.ranked.index]
        return {
            "question": self.kind,
            "metric": self.metric,
            "view": self.view,
            "datasets": list(self.scores.index),
            "methods": list(self.methods),
            "scores": _without_nan(self.scores).to_numpy().tolist(),
            "fits": self.fits.to_numpy().tolist(),
            "not_ranked": self.left_out,
            "means": _without_nan(counted.mean()).to_dict(),
            "datasets_in_mean": counted.count().to_dict(),
            "mean_ranks": self.ranks,
            "friedman": self.friedman and self.friedman._asdict(),
            "critical_difference": self.critical_difference,
            "not_told_apart": [list(each) for each in self.groups],
            "pairs": [pair.as_dict() for pair in self.pairs],
        }

    def __str__(self) -> str:
        cells = self.scores.astype(object).where(self.fits > 0, "not run")
        records = cells.rename_axis("dataset").reset_index().to_dict("records")
        test, bounded = self.friedman, self.metric in BOUNDED
        if test is not None:
            if bounded:  # means over other datasets cannot be compared
                means = self.scores.loc[self.ranked.index].mean(skipna=False)
                records.append({"dataset": "**mean**", **means})
            records.append({"dataset": "**mean rank**", **self.ranks})
        lines = [f"{self.metric}, {self.kind}: {VIEWS[self.view]}\n\n{table(records)}\n"]
        if test is None:
            lines.append("There is one method, or no dataset on which all were run: no ranks.")
            return "\n".join(lines)
        together = "; ".join(", ".join(each) for each in self.groups) or "none"
        differing = [pair for pair in self.pairs if pair.p_value < st.LEVEL]
        differing = [pair if pair.difference > 0 else pair.reversed() for pair in differing]
        different = [f"{p.first} above {p.second} (p = {p.p_value:.2g})" for p in differing]
        equal = [f"{p.first} and {p.second}" for p in self.pairs if p.verdict == "competitive"]
        lines += [
            f"Friedman chi2 = {test.statistic:.2f}, p = {test.p_value:.2g} ({len(self.ranks)} "
            f"methods, {len(self.ranked)} datasets): the methods "
            f"{'differ' if test.p_value < st.LEVEL else 'do not differ significantly'}.",
            f"Nemenyi's critical difference of mean ranks is {self.critical_difference:.2f}. "
            f"Not significantly different: {together}.",
            f"Pairs that differ (Wilcoxon, Holm): {'; '.join(different) or 'none'}.",
        ]
        if bounded:
            lines.append(f"Pairs equivalent within {st.MARGIN:g}: {'; '.join(equal) or 'none'}.")
        if self.left_out:
            names = ", ".join(self.left_out)
            lines.append(f"Not ranked, because a method was not run or none has a score: {names}.")
        return "\n".join(lines)


def compare(rows: Iterable[Row], metric: str, kind: Kind, view: View = "selected") -> Comparison:
    """Compare methods by one score for each dataset; the two questions are never mixed.

    "grid" is the median over all fits; "selected" the mean over seeds of the fit that
    :func:`selected` returns, without labels; "oracle" the best of all fits by the metric itself.
    """
    as_choice(metric, "metric", METRICS)
    as_choice(view, "view", tuple(VIEWS))
    as_choice(kind, "kind", ("K given", "K unknown"))
    frame = as_frame(rows)
    frame = frame[frame.kind == kind]
    datasets, methods = (frame[name].unique() for name in CELL)
    best = "min" if metric in LOWER_IS_BETTER else "max"
    reduction = {"grid": "median", "selected": "mean", "oracle": best}[view]
    kept = selected(frame) if view == "selected" else frame[frame.status == "ok"]
    scores = kept.groupby(CELL)[metric].agg(reduction).unstack().reindex(datasets, columns=methods)
    fits = frame.groupby(CELL).size().unstack(fill_value=0).reindex(datasets, columns=methods)
    return Comparison(metric, view, kind, scores, fits)


def _without_nan(values: Any) -> Any:
    """Return a frame or a series with None in place of NaN, which JSON does not have."""
    return values.astype(object).where(values.notna(), None)
