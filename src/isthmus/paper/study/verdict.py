"""Report of a study: verdicts on claims, comparisons, and numbers of clusters."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from functools import cache, cached_property, partial
from itertools import product
from typing import Any, Literal

import numpy as np
import pandas as pd
from numpy.typing import NDArray
from pandas import DataFrame

from isthmus.errors import InvalidInputError
from isthmus.paper.study.comparison import (
    CELL,
    VIEWS,
    Comparison,
    View,
    as_frame,
    compare,
    selected,
    table,
)
from isthmus.paper.study.methods import BOUNDED, METHODS, METRICS, UNLABELLED, Kind, Method
from isthmus.paper.study.statistics import LEVEL, MARGIN, Pair, Verdict
from isthmus.paper.study.store import Row

KINDS: tuple[Kind, ...] = ("K given", "K unknown")
SCALED = tuple(metric for metric in METRICS if metric in BOUNDED)
CLAIMS = {
    "ClAM+ELBO is competitive with ClAM across benchmarks": (
        "ClAM+ELBO (random start)",
        "ClAM (Saha et al.)",
    ),
    "The same if both start from k-means, which makes them alike": ("ClAM+ELBO", "ClAM"),
    "ClAM as published is competitive with k-means": ("ClAM (Saha et al.)", "KMeans"),
    "ClAM+ELBO from random starts is competitive with k-means": (
        "ClAM+ELBO (random start)",
        "KMeans",
    ),
}
"""Claims, the paper's first, and the two methods that each compares.

The paper's is tested on methods that do not start from k-means, which makes any two alike.
"""
ONE_SIDED = ("noninferiority_p_value", "superiority_p_value", "equivalence_p_value")
GROWING = ("ClAM+CRP", "ClAM+CRP+ELBO")
# A fit that took more than this share of the time limit might be stopped on a slower machine.
NEARLY = 0.8
# A number of clusters within this factor of the number of classes is right.
FACTOR = 1.5
DEFINITION = (
    f"A claim that one method is competitive with another is about one pair, fixed in advance, and "
    f"is tested without a correction. It holds where a one-sided signed-rank test over datasets at "
    f"level {LEVEL:g} excludes that the first is worse by {MARGIN:g} or more (non-inferiority); "
    f'"better" if it is also superior at that level. It does not hold where the test shows that it '
    f"is worse by the margin or more. In comparisons of all pairs, "
    f'"competitive" means equivalent: two one-sided tests exclude differences of {MARGIN:g} or '
    f'more in either direction. Otherwise "better" and "worse" are significant differences '
    f"(Wilcoxon's signed-rank test, level {LEVEL:g}, after Holm's correction for all pairs of "
    f'methods), and all else is "undecided". With fewer than 6 datasets nothing can be decided.'
)

ClaimOutcome = Literal["held", "did not hold", "undecided", "not tested"]


@dataclass(frozen=True)
class Claim:
    """Test of a claim in one view."""

    statement: str
    view: View
    comparisons: tuple[Comparison, ...]
    """One for each metric."""

    @property
    def methods(self) -> tuple[str, str]:
        """The method that the claim is about, and the one that it is compared with."""
        return CLAIMS[self.statement]

    @cached_property
    def pairs(self) -> dict[str, Pair]:
        """The two methods by metric; empty if one of them is missing."""
        found = ((each.metric, each.pair(*self.methods)) for each in self.comparisons)
        return {metric: pair for metric, pair in found if pair is not None}

    def verdict(self, metric: str) -> Verdict:
        """Test the claim by one metric: not worse by the margin, and beside it, better."""
        pair = self.pairs[metric]
        p_value = pair.not_worse_p_values[0]
        if pair.margin is None or not pair.decidable:
            return "undecided"
        if p_value < LEVEL:
            return "better" if pair.better_p_values[0] < LEVEL else "competitive"
        return "worse" if p_value > 1 - LEVEL / 2 else "undecided"

    def outcome(self, metrics: Iterable[str]) -> ClaimOutcome:
        """Return "held" if competitive or better by all metrics, "did not hold" if worse by one."""
        verdicts = [self.verdict(name) for name in metrics if name in self.pairs]
        if not verdicts:
            return "not tested"
        if "worse" in verdicts:
            return "did not hold"
        return "undecided" if "undecided" in verdicts else "held"

    @property
    def outcomes(self) -> dict[str, ClaimOutcome]:
        """Outcomes for the metrics of each of the paper's two figures, and for all.

        Only metrics with a common scale count.
        """
        return {
            "supervised metrics": self.outcome(m for m in SCALED if m not in UNLABELLED),
            "unsupervised metrics": self.outcome(m for m in SCALED if m in UNLABELLED),
            "all of them": self.outcome(SCALED),
        }

    def as_dict(self) -> dict[str, Any]:
        """Return the test for JSON."""
        metrics = {
            name: pair.as_dict() | {"verdict": self.verdict(name)}
            for name, pair in self.pairs.items()
        }
        fields = {"claim": self.statement, "view": self.view}
        return {**fields, "outcomes": self.outcomes, "metrics": metrics}

    def __str__(self) -> str:
        outcomes = "; ".join(f"{name}: **{outcome}**" for name, outcome in self.outcomes.items())
        title = f"{VIEWS[self.view].capitalize()}. The claim by scores with a common scale"
        records = [
            {"metric": name, **_tests(pair, *ONE_SIDED), "verdict": self.verdict(name)}
            for name, pair in self.pairs.items()
        ]
        return f"{title}, under {outcomes}.\n\n{table(records)}"


def _tests(pair: Pair, *p_values: str) -> dict[str, Any]:
    """Return the columns of a table of pairs, with some of the p-values."""
    columns = ("datasets", "difference", "ahead", "behind", *p_values, "verdict")
    return {name: pair.as_dict()[name] for name in columns}


@dataclass(frozen=True)
class ClusterNumbers:
    """Number of clusters of the selected fits of a method, beside the number of classes.

    `within` counts the datasets on which the two are within a factor of 1.5.
    """

    method: str
    found: dict[str, float]  # by dataset
    classes: dict[str, int]
    median_factor: float
    within: int

    @property
    def outcome(self) -> ClaimOutcome:
        """Return "held" if three quarters are within the factor, "did not hold" if under half."""
        share = self.within / len(self.found)
        if len(self.found) < 6 or 0.5 <= share < 0.75:
            return "undecided"
        return "held" if share >= 0.75 else "did not hold"

    def as_dict(self) -> dict[str, Any]:
        """Return the numbers for JSON."""
        return {**vars(self), "outcome": self.outcome}

    def __str__(self) -> str:
        return (
            f"{self.method}: median factor {self.median_factor:.2f}, within {FACTOR:g} on "
            f"{self.within} of {len(self.found)} datasets"
        )


class Report:
    """All results of a study. Prints as Markdown; :meth:`to_json` is for machines."""

    def __init__(self, frame: DataFrame, methods: Mapping[str, Method]) -> None:
        order = {name: place for place, name in enumerate(methods)}
        self._frame = frame.sort_values(
            "method", key=lambda names: names.map(order).fillna(len(order)), kind="stable"
        )
        self._compare = cache(partial(compare, self._frame))
        self.summary = summarize(self._frame, methods)

    def comparison(self, kind: Kind, metric: str, view: View = "selected") -> Comparison:
        """Return the comparison for a question, a metric and a view."""
        return self._compare(metric, kind, view)

    def fits(self, kind: Kind, metric: str) -> dict[tuple[str, str], NDArray[np.float64]]:
        """Return the scores of all fits of each (dataset, method), as violins show them."""
        scored = self._frame[self._frame.kind == kind].dropna(subset=metric)
        by_cell = scored.groupby(CELL, sort=False)[metric]
        return {cell: scores.to_numpy() for cell, scores in by_cell}

    def claim(self, view: View = "selected", statement: str = next(iter(CLAIMS))) -> Claim:
        """Return the test of a claim, by default the paper's: ClAM+ELBO is as good as ClAM."""
        comparisons = (self.comparison("K given", name, view) for name in METRICS)
        return Claim(statement, view, tuple(comparisons))

    @cached_property
    def cluster_numbers(self) -> tuple[ClusterNumbers, ...]:
        """The numbers of clusters of each method that finds them."""
        unknown = self._frame[self._frame.kind == "K unknown"]
        fits = selected(unknown).groupby(CELL)[["n_clusters", "n_classes"]].median().dropna()
        ratios = fits.n_clusters / fits.n_classes
        fits = fits.assign(factor=np.maximum(ratios, 1 / ratios)).reset_index("method")
        return tuple(
            ClusterNumbers(
                name,
                each.n_clusters.to_dict(),
                each.n_classes.astype(int).to_dict(),
                float(each.factor.median()),
                int((each.factor <= FACTOR).sum()),
            )
            for name in unknown.method.unique()
            if len(each := fits[fits.method == name])
        )

    def growing(self, view: View = "selected") -> dict[tuple[str, str], dict[str, Pair]]:
        """Compare ClAM+CRP and ClAM+CRP+ELBO with all methods that find K, by metric."""
        found: dict[tuple[str, str], dict[str, Pair]] = {}
        for metric in SCALED:
            comparison = self.comparison("K unknown", metric, view)
            for first, second in product(GROWING, comparison.methods):
                pair = comparison.pair(first, second)
                if pair is not None and (second, first) not in found:
                    found.setdefault((first, second), {})[metric] = pair
        return found

    def as_dict(self, **chosen: Iterable[str]) -> dict[str, Any]:
        """Return the report for JSON; see :meth:`text` for the parameters."""
        return {
            "definition": DEFINITION,
            "claims": [self.claim(*each).as_dict() for each in product(VIEWS, CLAIMS)],
            "numbers_of_clusters": [each.as_dict() for each in self.cluster_numbers],
            "growing": [
                {
                    "first": first,
                    "second": second,
                    "metrics": {metric: pair.as_dict() for metric, pair in pairs.items()},
                }
                for (first, second), pairs in self.growing().items()
            ],
            "comparisons": [each.as_dict() for each in self._chosen(**chosen)],
            "account": self.summary,
        }

    def to_json(self, **chosen: Iterable[str]) -> str:
        """Return :meth:`as_dict` as JSON."""
        return json.dumps(self.as_dict(**chosen), allow_nan=False, indent=1) + "\n"

    def text(self, **chosen: Iterable[str]) -> str:
        """Return the report as Markdown.

        Parameters
        ----------
        metrics, kinds, views : iterable of str, optional
            Comparisons to include. Default: all.
        """
        frame = self._frame
        count = (
            f"{(frame.status == 'ok').sum():,} of {len(frame):,} fits succeeded: "
            f"{frame.method.nunique()} methods, {frame.dataset.nunique()} datasets."
        )
        parts = ["# Tables of the study", count, DEFINITION]
        for statement in CLAIMS:
            parts += [f"## {statement}", *(str(self.claim(view, statement)) for view in VIEWS)]
        parts += ["## Numbers of clusters", self._numbers_text()]
        parts += ["## ClAM+CRP and ClAM+CRP+ELBO, which find the number of clusters"]
        parts += [self._growing_text()]
        for each in self._chosen(**chosen):
            parts += [f"## {each.kind}: {each.metric}, {each.view}", str(each)]
        parts += ["## Methods, fits and rows", _summary_text(self.summary)]
        return "\n\n".join(parts) + "\n"

    __str__ = text

    def _chosen(
        self,
        metrics: Iterable[str] = METRICS,
        kinds: Iterable[str] = KINDS,
        views: Iterable[str] = tuple(VIEWS),
    ) -> list[Comparison]:
        wanted = set(product(kinds, metrics, views))
        return [self.comparison(*each) for each in product(KINDS, METRICS, VIEWS) if each in wanted]

    def _numbers_text(self) -> str:
        numbers = self.cluster_numbers
        if not numbers:
            return "No method that finds the number of clusters was run."
        classes = {name: count for each in numbers for name, count in each.classes.items()}
        found = DataFrame({"classes": classes} | {each.method: each.found for each in numbers})
        records = found.rename_axis("dataset").reset_index().to_dict("records")
        note = "; ".join(map(str, numbers))
        return f"Clusters of the selected fit, the median over seeds. {note}.\n\n{table(records)}"

    def _growing_text(self) -> str:
        records = [
            {"first": first, "second": second, "metric": metric}
            | _tests(pair, "raw_p_value", "p_value")
            for (first, second), pairs in self.growing().items()
            for metric, pair in pairs.items()
        ]
        if not records:
            return "They were not run together with another method of their kind."
        return f"{VIEWS['selected'].capitalize()}, on datasets with both.\n\n{table(records)}"


def make_report(rows: Iterable[Row], methods: Mapping[str, Method] = METHODS) -> Report:
    """Compare the methods of a study and test the paper's claim.

    Parameters
    ----------
    rows : iterable of mapping
        See :meth:`Store.read`.
    methods : mapping of str to Method
        The methods of the study, for their order and their selection criteria. Others come last.

    Examples
    --------
    >>> from isthmus.study import Store, make_report
    >>> report = make_report(Store("docs/study").read())  # doctest: +SKIP
    >>> print(report.claim(), report.comparison("K unknown", "ari"))  # doctest: +SKIP
    """
    frame = as_frame(rows)
    if frame.empty:
        raise InvalidInputError("There are no results yet; `isthmus study run` makes some.")
    return Report(frame, methods)


def summarize(frame: DataFrame, methods: Mapping[str, Method]) -> dict[str, Any]:
    """Return records for JSON on methods, fits that are not ok, rows, and versions of the code.

    `time_limit` is the number of CPU seconds after which fits were stopped, or None if the results
    do not show it, and `nearly_stopped` counts successful fits that took more than 80 % of it.
    """
    limit = frame.seconds[frame.status == "timeout"].max()
    times = frame.seconds[frame.status == "ok"]
    # The limit is the longest time of a stopped fit, unless a successful one took longer: then the
    # stopped fits were waiting rather than working.
    limited = limit >= times.max()
    frame = frame.assign(
        day=pd.to_datetime(frame.finished, unit="s").dt.date.astype(str),
        message=frame.message.fillna(""),
        of=frame.groupby(CELL).status.transform("size"),
    )
    bad = frame[frame.status != "ok"].groupby([*CELL, "status"], sort=False)
    failures = bad.agg(fits=("of", "size"), of=("of", "first"), message=("message", "first"))
    versions = frame.groupby("version", sort=False).agg(
        fits=("day", "size"),
        methods=("method", lambda names: list(names.unique())),
        first=("day", "min"),
        last=("day", "max"),
    )
    samples = []
    for name, fits in frame.dropna(subset="n_rows").groupby("dataset", sort=False):
        by_count = fits.groupby("n_rows").method.unique()
        used = {int(count): tuple(names) for count, names in by_count.items()}
        samples.append({"dataset": name, "available": int(fits.n_available.max()), "used": used})
    return {
        "methods": [
            _counts(name, fits, methods) for name, fits in frame.groupby("method", sort=False)
        ],
        "not_ok": failures.reset_index().to_dict("records"),
        "samples": samples,
        "versions": versions.reset_index().to_dict("records"),
        "time_limit": float(limit) if limited else None,
        "nearly_stopped": int((times > NEARLY * limit).sum()) if limited else 0,
    }


def _summary_text(summary: Mapping[str, Any]) -> str:
    parts = [table(summary["methods"])]
    if summary["time_limit"] is not None:
        parts.append(
            f"{summary['nearly_stopped']} of the successful fits took more than {NEARLY:.0%} of "
            f"the time limit of {summary['time_limit']:.0f} s. A slower machine may stop them, "
            "which changes the results."
        )
    if summary["not_ok"]:
        parts += ["Fits that failed or were stopped:", table(summary["not_ok"])]
    return "\n\n".join([*parts, table(summary["versions"]), table(summary["samples"])])


def _counts(name: Any, fits: DataFrame, methods: Mapping[str, Method]) -> dict[str, Any]:
    ok = fits.status == "ok"
    others = fits.seconds[~ok]
    criterion = "its objective" if fits.objective[ok].notna().any() else "its first settings"
    return {
        "method": name,
        "kind": fits.kind.iloc[0],
        "entries": fits.parameters.nunique(),
        "selects_by": methods[name].selects_by if name in methods else criterion,
        "fits": len(fits),
        "ended": fits.status.value_counts().to_dict(),
        "not_converged": sum(each is False for each in fits.converged[ok]),
        "median_seconds": float(fits.seconds[ok].median()) if ok.any() else None,
        "total_seconds": float(fits.seconds.sum()),
        "stopped_seconds": float(others.sum()),
        "untimed": int(others.isna().sum()),
    }
