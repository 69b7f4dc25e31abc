"""Comparison of methods: scores, ranks and tests for one metric."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, product
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray
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


@dataclass(frozen=True)
class Scores:
    """One score for each dataset and method. Prints as a Markdown table.

    Attributes
    ----------
    values : ndarray (datasets, methods)
        NaN where no fit has a score.
    attempts : ndarray (datasets, methods)
        Number of fits, with or without a score.
    """

    metric: str
    view: View
    kind: Kind
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    values: NDArray[np.float64]
    attempts: NDArray[np.int64]

    @property
    def oriented(self) -> NDArray[np.float64]:
        """The values with the sign that makes higher better."""
        return -self.values if self.metric in LOWER_IS_BETTER else self.values

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """(datasets,); True where every method was run and at least one has a score."""
        return np.asarray((self.attempts > 0).all(1) & np.isfinite(self.values).any(1))

    @property
    def fits(self) -> dict[tuple[str, str], int]:
        """Number of fits by dataset and method, without those that were not run."""
        counts = zip(product(self.datasets, self.methods), self.attempts.flat, strict=True)
        return {cell: int(count) for cell, count in counts if count}

    @property
    def cells(self) -> dict[tuple[str, str], float]:
        """Scores by dataset and method, without those that were not run."""
        return dict(zip(self.fits, self.values[self.attempts > 0].tolist(), strict=True))

    def __str__(self) -> str:
        cells, records = self.cells, []
        for name in self.datasets:
            scores = {each: cells.get((name, each), "not run") for each in self.methods}
            records.append({"dataset": name, **scores})
        return f"{self.metric}, {self.kind}: {VIEWS[self.view]}\n\n{table(records)}"


def table(records: Sequence[Mapping[str, Any]]) -> str:
    """Return records with the same keys as a Markdown table."""
    heads = [name.replace("_", " ") for name in (records or [{}])[0]]
    rows = [heads, *(map(_cell, each.values()) for each in records)]
    first, *rest = (f"| {' | '.join(row)} |" for row in rows)
    return "\n".join([first, f"|{'---|' * len(heads)}", *rest])


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_cell(each)}" for key, each in value.items())
    if isinstance(value, list | tuple):
        return ", ".join(value)
    if isinstance(value, float) and math.isfinite(value):
        return f"{value:,.3f}"
    text = "none" if isinstance(value, float) else " ".join(str(value).replace("|", "/").split())
    return text if len(text) <= CELL_LENGTH else f"{text[: CELL_LENGTH - 1]}…"


def distribution(
    rows: Iterable[Row], metric: str, kind: Kind
) -> dict[tuple[str, str], list[float]]:
    """Return the scores of all fits of each (dataset, method), as violins show them."""
    frame = as_frame(rows)
    scored = frame[frame.kind == kind].dropna(subset=metric)
    return {cell: fits.tolist() for cell, fits in scored.groupby(CELL, sort=False)[metric]}


def score_table(rows: Iterable[Row], metric: str, kind: Kind, view: View = "selected") -> Scores:
    """Return one score for each dataset and method.

    Parameters
    ----------
    rows : iterable of mapping
        See :meth:`Store.read`.
    metric : str
    kind : {"K given", "K unknown"}
        The two questions are never mixed.
    view : {"grid", "selected", "oracle"}
        "grid": the median over all fits. "selected": for each seed, the fit with the lowest value
        of the method's own objective, or the fit of its first settings if it has none, averaged
        over seeds; labels are not used. "oracle": the best of all fits by the metric itself, an
        upper bound of the other two that cannot be found without labels.
    """
    as_choice(metric, "metric", METRICS)
    as_choice(view, "view", tuple(VIEWS))
    frame = as_frame(rows)
    frame = frame[frame.kind == kind]
    datasets, methods = (tuple(frame[name].unique()) for name in CELL)
    best = "min" if metric in LOWER_IS_BETTER else "max"
    reduction = {"grid": "median", "selected": "mean", "oracle": best}[view]
    kept = selected(frame) if view == "selected" else frame[frame.status == "ok"]
    cells, shape = list(product(datasets, methods)), (len(datasets), len(methods))
    values = kept.groupby(CELL)[metric].agg(reduction).reindex(cells)
    attempts = frame.groupby(CELL).size().reindex(cells, fill_value=0)
    arrays = values.to_numpy(np.float64).reshape(shape), attempts.to_numpy(np.int64).reshape(shape)
    return Scores(metric, view, kind, datasets, methods, *arrays)


@dataclass(frozen=True)
class Comparison:
    """Ranks and tests of methods from one table of scores. Prints as Markdown.

    Ranks are over the datasets on which every method was run; a method that was run and has no
    score ranks last. A pair is compared on the datasets where both have a score. There are no
    `ranks`, the mean ranks by method, if there is nothing to rank; `critical_difference` is
    Nemenyi's, at level 0.05.
    """

    scores: Scores
    pairs: tuple[st.Pair, ...] = ()
    ranks: dict[str, float] = field(default_factory=dict)
    friedman: st.Friedman | None = None
    critical_difference: float | None = None

    @property
    def ranked(self) -> tuple[str, ...]:
        """Datasets that the ranks are over."""
        return tuple(compress(self.scores.datasets, self.scores.comparable))

    @property
    def left_out(self) -> tuple[str, ...]:
        """Datasets on which a method was not run, or none has a score."""
        return tuple(compress(self.scores.datasets, ~self.scores.comparable))

    @cached_property
    def groups(self) -> list[tuple[str, ...]]:
        """Sets of methods whose mean ranks do not differ significantly."""
        return st.groups(self.ranks, self.critical_difference or 0.0)

    def pair(self, first: str, second: str) -> st.Pair | None:
        """Return the comparison of two methods, or None if one of them is missing."""
        for each in self.pairs:
            if {each.first, each.second} == {first, second}:
                return each if each.first == first else each.reversed()
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
        scores, test = self.scores, self.friedman
        return {
            "question": scores.kind,
            "metric": scores.metric,
            "view": scores.view,
            "datasets": list(scores.datasets),
            "methods": list(scores.methods),
            "scores": [[_finite(value) for value in row] for row in scores.values],
            "fits": scores.attempts.tolist(),
            "not_ranked": list(self.left_out),
            "means": {name: _finite(self.mean(name)) for name in scores.methods},
            "datasets_in_mean": {name: self.covered(name) for name in scores.methods},
            "mean_ranks": self.ranks,
            "friedman": test and {"statistic": test.statistic, "p_value": test.p_value},
            "critical_difference": self.critical_difference,
            "not_told_apart": [list(each) for each in self.groups],
            "pairs": [pair.as_dict() for pair in self.pairs],
        }

    def __str__(self) -> str:
        lines, names = [str(self.scores)], self.scores.methods
        if not self.ranks:
            words = "there is only one method, or no dataset on which all methods were run."
            return f"{lines[0]}\n\nNothing to rank: {words}"
        if self.scores.metric in BOUNDED:  # means over other datasets cannot be compared
            whole = {name: self.covered(name) == len(self.ranked) for name in names}
            means = (f"{self.mean(name):.3f}" if whole[name] else "none" for name in names)
            lines.append(f"| **mean** | {' | '.join(means)} |")
        ranks = (f"{self.ranks[name]:.2f}" for name in names)
        lines.append(f"| **mean rank** | {' | '.join(ranks)} |")
        return "\n".join([*lines, "", *self._remarks()])

    def _remarks(self) -> Iterator[str]:
        assert self.friedman is not None
        words = "differ" if self.friedman.p_value < st.LEVEL else "do not differ significantly"
        yield f"{self.friedman}: the methods {words}."
        together = "; ".join(", ".join(each) for each in self.groups) or "none"
        yield (
            f"Nemenyi's critical difference of mean ranks is {self.critical_difference:.2f}. "
            f"Not significantly different: {together}."
        )
        differing = [pair for pair in self.pairs if pair.p_value < st.LEVEL]
        differing = [pair if pair.difference > 0 else pair.reversed() for pair in differing]
        different = "; ".join(
            f"{pair.first} above {pair.second} (p = {pair.p_value:.2g})" for pair in differing
        )
        yield f"Pairs that differ (Wilcoxon, Holm): {different or 'none'}."
        if self.scores.metric in BOUNDED:
            equal = [f"{p.first} and {p.second}" for p in self.pairs if p.verdict == "competitive"]
            yield (
                f"Pairs that are equivalent within {st.MARGIN:g} (two one-sided tests): "
                f"{'; '.join(equal) or 'none'}."
            )
        if self.left_out:
            names = ", ".join(self.left_out)
            yield f"Not ranked, because a method was not run or none has a score: {names}."


def compare(rows: Iterable[Row], metric: str, kind: Kind, view: View = "selected") -> Comparison:
    """Rank methods by their scores and test which of them differ.

    See :func:`score_table` for the parameters.
    """
    scores = score_table(rows, metric, kind, view)
    table, methods = scores.oriented, scores.methods
    if len(methods) < 2:
        return Comparison(scores)
    if metric in BOUNDED:
        pairs = st.pairwise(table, methods)
    else:  # differences of logarithms do not depend on units
        sizes = np.log(np.maximum(np.abs(table), SMALLEST))
        pairs = st.pairwise(np.where(np.signbit(table), -sizes, sizes), methods, None)
    ranked = table[scores.comparable]
    if not len(ranked):
        return Comparison(scores, tuple(pairs))
    ranks = dict(zip(methods, st.mean_ranks(ranked).tolist(), strict=True))
    width = st.critical_difference(len(methods), len(ranked))
    return Comparison(scores, tuple(pairs), ranks, st.friedman(ranked), width)


def _finite(value: float) -> float | None:
    """Return the number, or None, as JSON has no NaN."""
    return float(value) if math.isfinite(value) else None
