"""Tables of scores: one score for each dataset and method."""

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
from isthmus.validation import as_choice

__all__ = ["VIEWS", "Scores", "View", "distribution", "markdown", "newest", "score_table"]

View = Literal["grid", "selected", "oracle"]

VIEWS: dict[View, str] = {
    "selected": "selected by the method's own objective, without labels",
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
    """(datasets, methods); NaN where no fit has a score."""
    attempts: NDArray[np.int64]
    """(datasets, methods); number of fits, with or without a score."""

    @property
    def oriented(self) -> NDArray[np.float64]:
        """The values with the sign that makes higher better."""
        return -self.values if self.metric in LOWER_IS_BETTER else self.values

    @property
    def comparable(self) -> NDArray[np.bool_]:
        """(datasets,); True where every method was run and at least one has a score.

        A method that was run and failed is a result. A method that was not run yet must not count
        as the worst.
        """
        return np.asarray((self.attempts > 0).all(1) & np.isfinite(self.values).any(1))

    def __str__(self) -> str:
        table = zip(self.datasets, self.values, self.attempts, strict=True)
        rows = [[name, *map(_cell, values, attempts)] for name, values, attempts in table]
        title = f"{self.metric}, {self.kind}: {VIEWS[self.view]}"
        return f"{title}\n\n{markdown(['dataset', *self.methods], rows)}"


def _cell(value: float, attempts: int) -> str:
    if not attempts:
        return "not run"
    return f"{value:.3f}" if np.isfinite(value) else "none"


def markdown(heads: Iterable[str], rows: Iterable[Iterable[str]]) -> str:
    """Return a Markdown table.

    Examples
    --------
    >>> print(markdown(["name", "size"], [["iris", "150"]]))
    | name | size |
    |---|---|
    | iris | 150 |
    """
    heads = list(heads)
    first, *rest = [f"| {' | '.join(cells)} |" for cells in (heads, *rows)]
    return "\n".join([first, f"|{'---|' * len(heads)}", *rest])


def newest(rows: Iterable[Row]) -> list[Row]:
    """Return the newest row of each dataset, method, settings and seed.

    A directory holds a fit twice if it was run on different numbers of rows.
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
    """Return the scores of all fits of each (dataset, method), as violins show them."""
    found: dict[tuple[str, str], list[float]] = defaultdict(list)
    for row in rows:
        if row["kind"] == kind and row.get(metric) is not None:
            found[row["dataset"], row["method"]].append(row[metric])
    return dict(found)


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
    if metric not in METRICS:
        raise InvalidInputError(f"There is no metric {metric!r}; there are {', '.join(METRICS)}.")
    as_choice(view, "view", tuple(VIEWS))
    cells: dict[tuple[str, str], list[Row]] = defaultdict(list)
    for row in rows:
        if row["kind"] == kind:
            cells[row["dataset"], row["method"]].append(row)
    datasets = tuple(dict.fromkeys(dataset for dataset, _ in cells))
    methods = tuple(dict.fromkeys(method for _, method in cells))
    fits = [cells[dataset, method] for dataset in datasets for method in methods]
    shape = (len(datasets), len(methods))
    values = np.array([_score(each, metric, view) for each in fits], dtype=np.float64)
    attempts = np.array([len(each) for each in fits], dtype=np.int64)
    tables = values.reshape(shape), attempts.reshape(shape)
    return Scores(metric, view, kind, datasets, methods, *tables)


def _score(fits: list[Row], metric: str, view: View) -> float:
    successful = [fit for fit in fits if fit["status"] == "ok"]
    if view == "grid":
        return _reduce(np.median, successful, metric)
    if view == "oracle":
        return _reduce(np.min if metric in LOWER_IS_BETTER else np.max, successful, metric)
    seeds = dict.fromkeys(fit["seed"] for fit in successful)
    chosen = [_selected([fit for fit in successful if fit["seed"] == seed]) for seed in seeds]
    return _reduce(np.mean, chosen, metric)


def _selected(fits: list[Row]) -> Row:
    """Return the fit with the lowest objective; without objectives, that of the first settings."""
    judged = [fit for fit in fits if fit["objective"] is not None]
    return min(judged or fits, key=lambda fit: (fit["objective"] or 0.0, fit["entry"]))


def _reduce(function: Any, fits: Iterable[Row], metric: str) -> float:
    values = [fit[metric] for fit in fits if fit[metric] is not None]
    return float(function(values)) if values else float("nan")
