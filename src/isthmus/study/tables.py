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

__all__ = ["VIEWS", "Scores", "View", "distribution", "score_table"]

View = Literal["grid", "selected", "oracle"]

VIEWS: dict[View, str] = {
    "grid": "median over the whole grid",
    "selected": "selected by the method's own objective, no labels seen",
    "oracle": "best of the grid, chosen with the labels: an upper bound, not a result",
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

    @property
    def oriented(self) -> NDArray[np.float64]:
        """The values, turned so that higher is better."""
        return -self.values if self.metric in LOWER_IS_BETTER else self.values

    def __str__(self) -> str:
        title = f"{self.metric}, {self.kind}: {VIEWS[self.view]}"
        lines = [title, "", f"| dataset | {' | '.join(self.methods)} |"]
        lines.append(f"|---{'|---' * len(self.methods)}|")
        for name, values in zip(self.datasets, self.values, strict=True):
            lines.append(f"| {name} | {' | '.join(map(_cell, values))} |")
        return "\n".join(lines)


def _cell(value: float) -> str:
    return f"{value:.3f}" if np.isfinite(value) else "none"


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
        method's own, or that of its first settings if it has none; no label is looked at. Or, for
        each seed, the best fit, which nobody without labels could have chosen. The latter two
        are averaged over seeds.
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
    values = [[_score(cells[d, m], metric, view) for m in methods] for d in datasets]
    table = np.array(values, dtype=np.float64).reshape(len(datasets), len(methods))
    return Scores(metric, view, kind, datasets, methods, table)


def _score(fits: list[Row], metric: str, view: View) -> float:
    sign = -1.0 if metric in LOWER_IS_BETTER else 1.0
    ended = [fit for fit in fits if fit["status"] == "ok"]
    if view == "grid":
        return _mean(np.median, [fit[metric] for fit in ended])
    seeds: dict[int, list[Row]] = defaultdict(list)
    for fit in ended:
        seeds[fit["seed"]].append(fit)
    if view == "selected":
        chosen = [_selected(each) for each in seeds.values()]
        return _mean(np.mean, [fit[metric] for fit in chosen])
    best = []
    for each in seeds.values():
        scored = [sign * fit[metric] for fit in each if fit[metric] is not None]
        best += [sign * max(scored)] if scored else []
    return _mean(np.mean, best)


def _selected(fits: list[Row]) -> Row:
    """The lowest objective; among fits without one, the first settings that ended well."""
    judged = [fit for fit in fits if fit["objective"] is not None]
    if judged:
        return min(judged, key=lambda fit: (fit["objective"], fit["entry"]))
    return min(fits, key=lambda fit: fit["entry"])


def _mean(kind: Any, values: list[float | None]) -> float:
    kept = [value for value in values if value is not None]
    return float(kind(kept)) if kept else float("nan")
