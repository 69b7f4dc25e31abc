"""Report of a study: the verdict on the paper's claim, and all comparisons."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import product
from typing import Any, Literal

from isthmus.errors import InvalidInputError
from isthmus.study.comparison import VIEWS, Comparison, View, compare, markdown, newest
from isthmus.study.methods import METHODS, Kind, Method
from isthmus.study.metrics import BOUNDED, METRICS, UNLABELLED
from isthmus.study.statistics import LEVEL, MARGIN, Pair
from isthmus.study.store import Row
from isthmus.study.summary import Summary, summarize

KINDS: tuple[Kind, ...] = ("K given", "K unknown")
SCALED = tuple(metric for metric in METRICS if metric in BOUNDED)
CLAIM = "ClAM+ELBO is competitive with ClAM across benchmarks"
CLAIMED = ("ClAM+ELBO", "ClAM")
GROWING = ("ClAM+CRP", "ClAM+CRP+ELBO")
DEFINITION = (
    f'"Competitive" means no significant difference (Wilcoxon\'s signed-rank test over datasets, '
    f"level {LEVEL:g}, after Holm's correction for all pairs of methods), and "
    f'mean scores within {MARGIN:g} of each other. "Better" and "worse" are significant after the '
    f'correction. All else is "undecided", and with fewer than 6 datasets nothing can be decided.'
)

ClaimOutcome = Literal["held", "did not hold", "undecided", "not tested"]


@dataclass(frozen=True)
class Claim:
    """Test of the paper's claim in one view."""

    view: View
    comparisons: tuple[Comparison, ...]
    """One for each metric."""

    @property
    def pairs(self) -> dict[str, Pair]:
        """ClAM+ELBO against ClAM, by metric; empty if one of them is missing."""
        found = {each.scores.metric: each.pair(*CLAIMED) for each in self.comparisons}
        return {metric: pair for metric, pair in found.items() if pair is not None}

    def outcome(self, metrics: Iterable[str]) -> ClaimOutcome:
        """Return "held" if competitive or better by all metrics, "did not hold" if worse by one."""
        verdicts = [self.pairs[name].verdict for name in metrics if name in self.pairs]
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
        return {
            "claim": CLAIM,
            "view": self.view,
            "outcomes": self.outcomes,
            "metrics": {name: pair.as_dict() for name, pair in self.pairs.items()},
        }

    def __str__(self) -> str:
        heads = ["metric", *CLAIMED, "difference", "ahead / even / behind"]
        heads += ["p", "p, Holm", "verdict"]
        outcomes = "; ".join(f"{name}: **{outcome}**" for name, outcome in self.outcomes.items())
        title = f"{VIEWS[self.view].capitalize()}. The claim by scores with a common scale"
        return (
            f"{title}, under {outcomes}.\n\n{markdown(heads, map(self._cells, self.comparisons))}"
        )

    def _cells(self, comparison: Comparison) -> list[str]:
        metric, pair = comparison.scores.metric, comparison.pair(*CLAIMED)
        if pair is None:
            return [metric, *["not run"] * 7]
        means = [comparison.mean(*CLAIMED), comparison.mean(*reversed(CLAIMED))]
        scaled = metric in BOUNDED
        return [
            metric,
            *(f"{mean:.3f}" if scaled else "" for mean in means),
            f"{pair.difference:+.3f}{'' if scaled else ' (log)'}",
            f"{pair.ahead} / {pair.datasets - pair.ahead - pair.behind} / {pair.behind}",
            f"{pair.raw_p_value:.2g}",
            f"{pair.p_value:.2g}",
            pair.wording,
        ]


@dataclass(frozen=True)
class Report:
    """All results of a study. Prints as Markdown; :meth:`to_json` is for machines."""

    comparisons: tuple[Comparison, ...]
    summary: Summary

    def comparison(self, kind: Kind, metric: str, view: View = "selected") -> Comparison:
        """Return the comparison for a question, a metric and a view."""
        for each in self._chosen([metric], [kind], [view]):
            return each
        raise InvalidInputError(
            f"There is no comparison of {kind!r}, {metric!r}, {view!r}. Questions are "
            f"{', '.join(KINDS)}; metrics {', '.join(METRICS)}; views {', '.join(VIEWS)}."
        )

    def claim(self, view: View = "selected") -> Claim:
        """Return the test of the paper's claim that ClAM+ELBO is competitive with ClAM."""
        return Claim(view, tuple(self.comparison("K given", name, view) for name in METRICS))

    def growing(self, view: View = "selected") -> dict[tuple[str, str], dict[str, Pair]]:
        """Compare ClAM+CRP and ClAM+CRP+ELBO with all methods that find K, by metric."""
        found: dict[tuple[str, str], dict[str, Pair]] = {}
        for metric in SCALED:
            comparison = self.comparison("K unknown", metric, view)
            for first in GROWING:
                for second in comparison.scores.methods:
                    pair = comparison.pair(first, second)
                    if pair is not None and (second, first) not in found:
                        found.setdefault((first, second), {})[metric] = pair
        return found

    def as_dict(self, **chosen: Iterable[str]) -> dict[str, Any]:
        """Return the report for JSON; see :meth:`text` for the parameters."""
        return {
            "definition": DEFINITION,
            "claims": [self.claim(view).as_dict() for view in VIEWS],
            "growing": [
                {
                    "first": first,
                    "second": second,
                    "metrics": {metric: pair.as_dict() for metric, pair in pairs.items()},
                }
                for (first, second), pairs in self.growing().items()
            ],
            "comparisons": [each.as_dict() for each in self._chosen(**chosen)],
            "account": self.summary.as_dict(),
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
        datasets = len({name for each in self.comparisons for name in each.scores.datasets})
        sizes = f"{len(self.summary.methods)} methods, {datasets} datasets"
        parts = ["# Tables of the study"]
        parts += [f"{self.summary.succeeded:,} of {self.summary.fits:,} fits succeeded: {sizes}."]
        parts += [DEFINITION, f"## The paper's claim: {CLAIM}"]
        parts += [str(self.claim(view)) for view in VIEWS]
        parts += ["## ClAM+CRP and ClAM+CRP+ELBO, which find the number of clusters"]
        parts += [self._growing_text()]
        for each in self._chosen(**chosen):
            scores = each.scores
            parts += [f"## {scores.kind}: {scores.metric}, {scores.view}", str(each)]
        return "\n\n".join([*parts, "## Methods, fits and rows", str(self.summary)]) + "\n"

    def __str__(self) -> str:
        return self.text()

    def _chosen(
        self,
        metrics: Iterable[str] = METRICS,
        kinds: Iterable[str] = KINDS,
        views: Iterable[str] = tuple(VIEWS),
    ) -> list[Comparison]:
        wanted = set(product(metrics, kinds, views))
        tables = [(each.scores, each) for each in self.comparisons]
        return [each for s, each in tables if (s.metric, s.kind, s.view) in wanted]

    def _growing_text(self) -> str:
        found = self.growing()
        if not found:
            return "They were not run together with another method of their kind."
        tables = {name: self.comparison("K unknown", name).scores for name in SCALED}
        rows = [
            [
                f"{first} against {second}",
                *(_cell(pairs[name], len(tables[name].datasets)) for name in SCALED),
            ]
            for (first, second), pairs in found.items()
        ]
        note = (
            f"{VIEWS['selected'].capitalize()}. In brackets p, and p after Holm's correction; "
            '"on n" if only n of the datasets have scores of both.'
        )
        return f"{note}\n\n{markdown(['', *SCALED], rows)}"


def make_report(rows: Iterable[Row], methods: Mapping[str, Method] = METHODS) -> Report:
    """Compare the methods of a study and test the paper's claim.

    Parameters
    ----------
    rows : iterable of mapping
        See :meth:`Store.read`.
    methods : mapping of str to Method
        The methods of the study, for their order and their selection criteria. Others come last.

    Returns
    -------
    Report

    Examples
    --------
    >>> from isthmus.study import Store, make_report
    >>> report = make_report(Store("docs/study").read())  # doctest: +SKIP
    >>> print(report.claim(), report.comparison("K unknown", "ari"))  # doctest: +SKIP
    """
    order = {name: place for place, name in enumerate(methods)}
    kept = sorted(newest(rows), key=lambda row: order.get(row["method"], len(order)))
    if not kept:
        raise InvalidInputError("There are no results yet; `isthmus study run` makes some.")
    comparisons = (
        compare(kept, metric, kind, view) for kind in KINDS for metric in METRICS for view in VIEWS
    )
    return Report(tuple(comparisons), summarize(kept, methods))


def _cell(pair: Pair, datasets: int) -> str:
    if not pair.datasets:
        return "no dataset"
    covered = f" on {pair.datasets}" if pair.datasets < datasets else ""
    p_values = f"({pair.raw_p_value:.2g}, {pair.p_value:.2g})"
    return f"{pair.verdict}, {pair.difference:+.3f}{covered} {p_values}"
