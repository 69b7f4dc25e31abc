"""From fits to one score for each dataset and method, by a rule that is stated."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.study.methods import Kind
from isthmus.study.metrics import LOWER_IS_BETTER, METRICS
from isthmus.study.store import Row

__all__ = ["VIEWS", "Scores", "View", "distribution", "markdown", "newest", "score_table"]

View = Literal["grid", "selected", "oracle"]

VIEWS: dict[View, str] = {
    "selected": "selected by the method's own objective, no labels seen",
    "grid": "median over the whole grid",
    "oracle": "best of all settings and seeds by this score: an upper bound, not a result",
}


@dataclass(frozen=True)
class Scores:
    """One score for each dataset and method. Prints as a Markdown table."""

    metric: str
    view: View
    kind: Kind
    datasets: tuple[str, ...]
    methods: tuple[str, ...]
    values: NDArray[np.float64]
    """(datasets, methods); NaN where no fit gave a score."""
    attempts: NDArray[np.int64]
    """(datasets, methods); how many fits there are, however they ended."""

    @property
    def oriented(self) -> NDArray[np.float64]:
        """The values, turned so that higher is better."""
        return -self.values if self.metric in LOWER_IS_BETTER else self.values

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """(datasets,); where every method was tried, and one at least got a score.

        A method that was tried and failed stays in: that is a result. One that was not tried yet
        must not count as the worst.
        """
        tried = np.all(self.attempts > 0, axis=1)
        return np.asarray(tried & np.isfinite(self.values).any(1))

    def __str__(self) -> str:
        lines = [f"{self.metric}, {self.kind}: {VIEWS[self.view]}", ""]
        rows = [
            [name, *map(_cell, values, attempts)]
            for name, values, attempts in zip(
                self.datasets, self.values, self.attempts, strict=True
            )
        ]
        return "\n".join([*lines, markdown(["dataset", *self.methods], rows)])


def _cell(value: float, attempts: int) -> str:
    if not attempts:
        return "not run"
    return f"{value:.3f}" if np.isfinite(value) else "none"


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Text in rows and columns as a Markdown table.

    Examples
    --------
    >>> print(markdown(["name", "size"], [["iris", "150"]]))
    | name | size |
    |---|---|
    | iris | 150 |
    """
    heads = list(heads)
    lines = [heads, ["---"] * len(heads), *map(list, rows)]
    table = [f"| {' | '.join(cells)} |" for cells in lines]
    table[1] = table[1].replace(" ", "")
    return "\n".join(table)


def newest(rows: Iterable[Row]) -> list[Row]:
    """One row for each dataset, method, settings and seed: the last one that was done.

    A directory holds the same fit twice if it was run on different numbers of rows.
    """
    found: dict[tuple[Any, ...], Row] = {}
    for row in rows:
        key = tuple(row[name] for name in ("dataset", "method", "parameters", "seed"))
        if key not in found or row["finished"] >= found[key]["finished"]:
            found[key] = row
    return list(found.values())


def distribution(
    rows: Iterable[Row], metric: str, kind: Kind
) -> dict[tuple[str, str], list[float]]:
    """The scores of all fits of each (dataset, method): what a violin shows."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["kind"] == kind and row.get(metric) is not None:
            found[row["dataset"], row["method"]].append(row[metric])
    return dict(found)


def score_table(rows: Iterable[Row], metric: str, kind: Kind, view: View = "selected") -> Scores:
    """One score for each dataset and method.

    Parameters
    ----------
    rows : iterable of mapping
        Of :meth:`Store.read`.
    metric : str
    kind : {"K given", "K unknown"}
        The two questions are never mixed.
    view : {"grid", "selected", "oracle"}
        The median over all fits. Or, for each seed, the fit with the lowest objective of the
        method's own, or that of its first settings if it has none, averaged over seeds; no label
        is looked at. Or the best of all fits by the metric itself, which nobody without labels
        could have chosen: neither of the others is above it.
    """
    if metric not in METRICS:
        raise InvalidInputError(f"There is no metric {metric!r}; there are {', '.join(METRICS)}.")
    if view not in VIEWS:
        raise InvalidInputError(f"view must be one of {', '.join(VIEWS)}, not {view!r}.")
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == kind:
            cells[row["dataset"], row["method"]].append(row)
    datasets = tuple(dict.fromkeys(dataset for dataset, _ in cells))
    methods = tuple(dict.fromkeys(method for _, method in cells))
    shape = (len(datasets), len(methods))
    values = [_score(cells[d, m], metric, view) for d in datasets for m in methods]
    attempts = [len(cells[d, m]) for d in datasets for m in methods]
    return Scores(
        metric,
        view,
        kind,
        datasets,
        methods,
        np.array(values, dtype=np.float64).reshape(shape),
        np.array(attempts, dtype=np.int64).reshape(shape),
    )


def _score(fits: list[Row], metric: str, view: View) -> float:
    ended = [fit for fit in fits if fit["status"] == "ok"]
    if view == "grid":
        return _reduced(np.median, [fit[metric] for fit in ended])
    if view == "oracle":
        best = np.min if metric in LOWER_IS_BETTER else np.max
        return _reduced(best, [fit[metric] for fit in ended])
    seeds: dict[int, list[Row]] = defaultdict(list)
    for fit in ended:
        seeds[fit["seed"]].append(fit)
    chosen = [_selected(each) for each in seeds.values()]
    return _reduced(np.mean, [fit[metric] for fit in chosen])


def _selected(fits: list[Row]) -> Row:
    """The lowest objective; among fits without one, the first settings that ended well."""
    judged = [fit for fit in fits if fit["objective"] is not None]
    if judged:
        return min(judged, key=lambda fit: (fit["objective"], fit["entry"]))
    return min(fits, key=lambda fit: fit["entry"])


def _reduced(how: Any, values: list[float | None]) -> float:
    kept = [value for value in values if value is not None]
    return float(how(kept)) if kept else float("nan")
