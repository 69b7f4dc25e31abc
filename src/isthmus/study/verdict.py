"""From fits to a verdict: what the study says on the paper's claim, and on what it left open."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Literal

from isthmus.errors import InvalidInputError
from isthmus.study.account import Account, account
from isthmus.study.comparison import Comparison, compare, plain
from isthmus.study.methods import METHODS, Kind, Method
from isthmus.study.metrics import BOUNDED, METRICS, UNLABELLED
from isthmus.study.statistics import LEVEL, MARGIN, Pair
from isthmus.study.store import Row
from isthmus.study.tables import VIEWS, View, markdown, newest

__all__ = ["Claim", "Report", "make_report"]

KINDS: tuple[Kind, ...] = ("K given", "K unknown")
TITLE = "# Tables of the study"
CLAIM = "ClAM+ELBO is competitive with ClAM across benchmarks"
CLAIMED: tuple[str, str] = ("ClAM+ELBO", "ClAM")
GROWING = ("ClAM+CRP", "ClAM+CRP+ELBO")
DEFINITION = (
    f'"Competitive" means no significant difference (Wilcoxon\'s signed-rank test over datasets, '
    f"level {LEVEL:g}, after Holm's correction for all pairs of methods), and "
    f'mean scores within {MARGIN:g} of each other. "Better" and "worse" are significant after the '
    f'correction. All else is "undecided", and with fewer than 6 datasets nothing can be decided.'
)

Outcome = Literal["held", "did not hold", "undecided", "not tested"]


@dataclass(frozen=True)
class Claim:
    """The paper's claim, seen one way."""

    view: View
    comparisons: tuple[Comparison, ...]
    """One for each metric."""

    @property
    def pairs(self) -> dict[str, Pair]:
        """ClAM+ELBO against ClAM, by metric; empty if one of them is missing."""
        found = {each.scores.metric: each.pair(*CLAIMED) for each in self.comparisons}
        return {metric: pair for metric, pair in found.items() if pair is not None}

    def outcome(self, metrics: Iterable[str]) -> Outcome:
        """Held if competitive or better under all of these, not if worse under one."""
        verdicts = [self.pairs[name].verdict for name in metrics if name in self.pairs]
        if not verdicts:
            return "not tested"
        if "worse" in verdicts:
            return "did not hold"
        return "undecided" if "undecided" in verdicts else "held"

    @property
    def outcomes(self) -> dict[str, Outcome]:
        """For the paper's two figures, and for both: of scores with a common scale."""
        bounded = [name for name in METRICS if name in BOUNDED]
        return {
            "supervised metrics": self.outcome([m for m in bounded if m not in UNLABELLED]),
            "unsupervised metrics": self.outcome([m for m in bounded if m in UNLABELLED]),
            "all of them": self.outcome(bounded),
        }

    def as_dict(self) -> dict[str, Any]:
        """The same for machines."""
        return {
            "claim": CLAIM,
            "view": self.view,
            "outcomes": self.outcomes,
            "metrics": {name: _as_dict(pair) for name, pair in self.pairs.items()},
        }

    def __str__(self) -> str:
        first, second = CLAIMED
        heads = ["metric", first, second, "difference", "ahead / even / behind"]
        heads += ["p", "p, Holm", "verdict"]
        words = "; ".join(f"{name}: **{outcome}**" for name, outcome in self.outcomes.items())
        words = f"The claim by scores with a common scale, under {words}"
        lines = [f"{VIEWS[self.view].capitalize()}. {words}.", ""]
        return "\n".join([*lines, markdown(heads, map(self._cells, self.comparisons))])

    def _cells(self, comparison: Comparison) -> list[str]:
        metric, pair = comparison.scores.metric, comparison.pair(*CLAIMED)
        if pair is None:
            return [metric, *["not run"] * 7]
        means = [comparison.mean(*CLAIMED), comparison.mean(*reversed(CLAIMED))]
        bounded = pair.margin is not None
        verdict = pair.verdict
        return [
            metric,
            *(f"{mean:.3f}" if bounded else "" for mean in means),
            f"{pair.difference:+.3f}" if bounded else f"{pair.difference:+.3f} (log)",
            f"{pair.ahead} / {pair.datasets - pair.ahead - pair.behind} / {pair.behind}",
            f"{pair.raw_p_value:.2g}",
            f"{pair.p_value:.2g}",
            verdict if bounded or verdict != "undecided" else "no difference shown",
        ]


@dataclass(frozen=True)
class Report:
    """All that a study says. Prints as Markdown; :meth:`to_json` is for machines."""

    comparisons: tuple[Comparison, ...]
    account: Account

    def comparison(self, kind: Kind, metric: str, view: View = "selected") -> Comparison:
        """The one on this question, under this metric, in this view."""
        for each in self.comparisons:
            if (each.scores.kind, each.scores.metric, each.scores.view) == (kind, metric, view):
                return each
        raise InvalidInputError(
            f"There is no comparison of {kind!r}, {metric!r}, {view!r}. Questions are "
            f"{', '.join(KINDS)}; metrics {', '.join(METRICS)}; views {', '.join(VIEWS)}."
        )

    def claim(self, view: View = "selected") -> Claim:
        """The paper's claim: ClAM+ELBO is competitive with ClAM across benchmarks."""
        return Claim(view, tuple(self.comparison("K given", name, view) for name in METRICS))

    def growing(self, view: View = "selected") -> dict[tuple[str, str], dict[str, Pair]]:
        """ClAM+CRP and ClAM+CRP+ELBO against all others that are not told K, by metric."""
        found: dict[tuple[str, str], dict[str, Pair]] = {}
        for metric in (name for name in METRICS if name in BOUNDED):
            comparison = self.comparison("K unknown", metric, view)
            for first in GROWING:
                for second in comparison.scores.methods:
                    pair = comparison.pair(first, second)
                    if pair is not None and (second, first) not in found:
                        found.setdefault((first, second), {})[metric] = pair
        return found

    def as_dict(
        self,
        metrics: Iterable[str] = METRICS,
        kinds: Iterable[Kind] = KINDS,
        views: Iterable[View] = tuple(VIEWS),
    ) -> dict[str, Any]:
        """The same for machines; comparisons of these metrics, questions and views."""
        wanted = set(metrics), set(kinds), set(views)
        return {
            "definition": DEFINITION,
            "claims": [self.claim(view).as_dict() for view in VIEWS],
            "growing": [
                {"first": first, "second": second, "metrics": _by_metric(pairs)}
                for (first, second), pairs in self.growing().items()
            ],
            "comparisons": [each.as_dict() for each in self._chosen(*wanted)],
            "account": self.account.as_dict(),
        }

    def to_json(self, **chosen: Any) -> str:
        """:meth:`as_dict` as text."""
        return json.dumps(self.as_dict(**chosen), allow_nan=False, indent=1) + "\n"

    def text(
        self,
        metrics: Iterable[str] = METRICS,
        kinds: Iterable[Kind] = KINDS,
        views: Iterable[View] = tuple(VIEWS),
    ) -> str:
        """The report as a page of Markdown, with tables of these metrics, questions and views."""
        done = f"{self.account.ended_well:,} of {self.account.fits:,} fits ended well"
        datasets = len({name for each in self.comparisons for name in each.scores.datasets})
        sizes = f"{len(self.account.works)} methods, {datasets} datasets"
        parts = [TITLE, f"{done}: {sizes}.", DEFINITION]
        parts += [f"## The paper's claim: {CLAIM}", *map(str, map(self.claim, VIEWS))]
        parts += ["## ClAM+CRP and ClAM+CRP+ELBO, which find the number of clusters"]
        parts += [self._growing_text()]
        for each in self._chosen(set(metrics), set(kinds), set(views)):
            scores = each.scores
            parts += [f"## {scores.kind}: {scores.metric}, {scores.view}", str(each)]
        return "\n\n".join([*parts, "## Methods, fits and rows", str(self.account)]) + "\n"

    def __str__(self) -> str:
        return self.text()

    def _chosen(self, metrics: set[str], kinds: set[Kind], views: set[View]) -> list[Comparison]:
        return [
            each
            for each in self.comparisons
            if each.scores.metric in metrics
            and each.scores.kind in kinds
            and each.scores.view in views
        ]

    def _growing_text(self) -> str:
        found = self.growing()
        if not found:
            return "They were not run beside another method of their kind."
        metrics = [name for name in METRICS if name in BOUNDED]
        tables = {name: self.comparison("K unknown", name).scores for name in metrics}
        most = {name: len(table.datasets) for name, table in tables.items()}
        rows = [
            [f"{first} against {second}", *(_cell(pairs[name], most[name]) for name in metrics)]
            for (first, second), pairs in found.items()
        ]
        note = (
            f"{VIEWS['selected'].capitalize()}. In brackets p, and p after Holm's correction; "
            '"on n" where only n of the datasets have scores of both.'
        )
        return f"{note}\n\n{markdown(['', *metrics], rows)}"


def make_report(rows: Iterable[Row], methods: Mapping[str, Method] = METHODS) -> Report:
    """Judge a study.

    Parameters
    ----------
    rows : iterable of mapping
        Of :meth:`Store.read`.
    methods : mapping of str to Method
        The methods of the study, for their order and for how each selects. Others come last.

    Returns
    -------
    Report

    Examples
    --------
    >>> from isthmus.study import Store, make_report
    >>> report = make_report(Store("docs/study").read())  # doctest: +SKIP
    >>> print(report.claim())  # doctest: +SKIP
    >>> print(report.comparison("K unknown", "ari"))  # doctest: +SKIP
    """
    order = {name: place for place, name in enumerate(methods)}
    kept = sorted(newest(rows), key=lambda row: order.get(row["method"], len(order)))
    if not kept:
        raise InvalidInputError("There are no results yet; `isthmus study run` makes some.")
    return Report(
        tuple(
            compare(kept, metric, kind, view)
            for kind in KINDS
            for metric in METRICS
            for view in VIEWS
        ),
        account(kept, methods),
    )


def _cell(pair: Pair, datasets: int) -> str:
    if not pair.datasets:
        return "no dataset"
    covered = f" on {pair.datasets}" if pair.datasets < datasets else ""
    p_values = f"({pair.raw_p_value:.2g}, {pair.p_value:.2g})"
    return f"{pair.verdict}, {pair.difference:+.3f}{covered} {p_values}"


def _by_metric(pairs: Mapping[str, Pair]) -> dict[str, Any]:
    return {metric: _as_dict(pair) for metric, pair in pairs.items()}


def _as_dict(pair: Pair) -> dict[str, Any]:
    return {
        "verdict": pair.verdict,
        "difference": plain(pair.difference),
        "p_value": pair.p_value,
        "raw_p_value": pair.raw_p_value,
        "datasets": pair.datasets,
        "ahead": pair.ahead,
        "behind": pair.behind,
    }
