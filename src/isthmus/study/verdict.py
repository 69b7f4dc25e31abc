"""Report of a study: the verdict on the paper's claim, comparisons, and a summary of fits."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from statistics import median
from typing import Any, Literal

from isthmus.errors import InvalidInputError
from isthmus.study.comparison import VIEWS, Comparison, View, compare, markdown
from isthmus.study.fitting import BOUNDED, METRICS, UNLABELLED
from isthmus.study.methods import METHODS, Kind, Method
from isthmus.study.statistics import LEVEL, MARGIN, Pair
from isthmus.study.store import Row, grouped, newest

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


# A fit that took more than this share of the time limit might be stopped on a slower machine.
NEARLY = 0.8
MESSAGE_LENGTH = 100


@dataclass(frozen=True)
class Summary:
    """Methods, failures and rows of a study. Prints as Markdown."""

    methods: list[dict[str, Any]]
    """For each method: the number of settings ("entries"), the criterion that selects one of them,
    the numbers of fits by status and of those that did not converge, the CPU seconds of all fits
    and of those that failed or were stopped, and the number of the latter without a time."""
    failures: list[dict[str, Any]]
    """For each dataset, method and status other than "ok": the number of fits, and the message of
    the first of them."""
    samples: list[dict[str, Any]]
    """For each dataset: the number of rows, and the methods by the number of rows they used."""
    time_limit: float | None = None
    """CPU seconds after which fits were stopped; None if the results do not show it."""
    nearly_stopped: int = 0
    """Number of successful fits that took more than 80 % of the time limit."""

    @property
    def fits(self) -> int:
        """Number of fits."""
        return sum(each["fits"] for each in self.methods)

    @property
    def succeeded(self) -> int:
        """Number of fits with a result."""
        return sum(each["ended"].get("ok", 0) for each in self.methods)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        found = dict(vars(self))
        return {"methods": found["methods"], "not_ok": found.pop("failures"), **found}

    def __str__(self) -> str:
        heads = ["method", "question", "settings", "selected by", "fits", "succeeded"]
        heads += ["did not converge", "median CPU s", "total CPU s", "of which stopped"]
        parts = [markdown(heads, map(_method_cells, self.methods)), "", *self._times(), ""]
        if self.failures:
            heads = ["dataset", "method", "status", "fits", "first message"]
            parts += ["Fits that failed or were stopped:", ""]
            parts += [markdown(heads, map(_failure_cells, self.failures)), ""]
        else:
            parts += ["All fits succeeded.", ""]
        rows = [[each["dataset"], _rows_text(**each)] for each in self.samples]
        return "\n".join([*parts, markdown(["dataset", "rows"], rows)])

    def _times(self) -> Iterable[str]:
        names = ("total_seconds", "stopped_seconds", "untimed")
        total, stopped, untimed = (sum(each[name] for each in self.methods) for name in names)
        text = f"All fits took {total:,.0f} s of CPU time"
        if self.failures:
            text += f", including {stopped:,.0f} s of fits that failed or were stopped"
        if untimed:
            text += f" and excluding {untimed} of those, whose time was not recorded"
        yield f"{text}."
        if self.time_limit is not None:
            yield (
                f"{self.nearly_stopped} of the successful fits took more than {NEARLY:.0%} of the "
                f"time limit of {self.time_limit:.0f} s. A slower machine may stop them, which "
                "changes the results."
            )


def summarize(rows: Sequence[Row], methods: Mapping[str, Method]) -> Summary:
    """Count the fits of a study by method, dataset and status.

    The selection criteria are those of `methods`; those of other methods follow from the rows.
    """
    cells = grouped(rows, "dataset", "method").values()
    return Summary(
        [_method(fits, methods.get(name)) for (name,), fits in grouped(rows, "method").items()],
        [failure for fits in cells for failure in _failures(fits)],
        [used for (name,), fits in grouped(rows, "dataset").items() for used in _used(name, fits)],
        *_time_limit(rows),
    )


def _time_limit(rows: Sequence[Row]) -> tuple[float | None, int]:
    """Return the time limit, and the number of successful fits that came close to it.

    The limit is the longest time of a stopped fit. If a successful fit took longer, the stopped
    fits were waiting rather than working, and the limit is unknown.
    """
    stopped = [row["seconds"] for row in rows if row["status"] == "timeout"]
    limit = max((each for each in stopped if each is not None), default=None)
    times = [row["seconds"] for row in rows if row["status"] == "ok"]
    if limit is None or max(times, default=0.0) > limit:
        return None, 0
    return limit, sum(each > NEARLY * limit for each in times)


def _method(fits: list[Row], method: Method | None) -> dict[str, Any]:
    successful = [fit for fit in fits if fit["status"] == "ok"]
    seconds = [fit["seconds"] for fit in successful]
    others = [fit["seconds"] for fit in fits if fit["status"] != "ok"]
    stopped = [each for each in others if each is not None]
    judged = any(fit["objective"] is not None for fit in successful)
    criterion = "its objective" if judged else "its first settings"
    return {
        "method": fits[0]["method"],
        "kind": fits[0]["kind"],
        "entries": len({fit["parameters"] for fit in fits}),
        "selects_by": criterion if method is None else method.selects_by,
        "fits": len(fits),
        "ended": dict(Counter(fit["status"] for fit in fits)),
        "not_converged": sum(fit["converged"] is False for fit in successful),
        "median_seconds": median(seconds) if seconds else None,
        "total_seconds": sum(seconds) + sum(stopped),
        "stopped_seconds": sum(stopped),
        "untimed": len(others) - len(stopped),
    }


def _failures(fits: list[Row]) -> Iterable[dict[str, Any]]:
    for (status,), each in grouped(fits, "status").items():
        if status != "ok":
            cell = {name: each[0][name] for name in ("dataset", "method", "status")}
            message = each[0]["message"] or ""
            yield {**cell, "fits": len(each), "of": len(fits), "message": message}


def _used(dataset: str, fits: list[Row]) -> Iterable[dict[str, Any]]:
    known = [fit for fit in fits if fit["n_rows"] is not None]
    used = {
        count: tuple(dict.fromkeys(fit["method"] for fit in each))
        for (count,), each in grouped(known, "n_rows").items()
    }
    if known:
        yield {"dataset": dataset, "available": known[0]["n_available"], "used": used}


def _rows_text(dataset: str, available: int, used: Mapping[int, Iterable[str]]) -> str:
    most = max(used)
    text = f"{most:,} of {available:,} rows" if most < available else f"all {most:,}"
    fewer = [f"{', '.join(used[n])}: {n:,}" for n in sorted(used, reverse=True) if n < most]
    return "; ".join([text, *fewer])


def _method_cells(each: Mapping[str, Any]) -> list[str]:
    middle = each["median_seconds"]
    return [
        *(str(each[name]) for name in ("method", "kind", "entries", "selects_by", "fits")),
        str(each["ended"].get("ok", 0)),
        str(each["not_converged"]),
        "none" if middle is None else f"{middle:.2f}",
        f"{each['total_seconds']:.0f}",
        f"{each['stopped_seconds']:.0f}",
    ]


def _failure_cells(each: Mapping[str, Any]) -> list[str]:
    message = " ".join(each["message"].replace("|", "/").split())
    if len(message) > MESSAGE_LENGTH:
        message = f"{message[: MESSAGE_LENGTH - 1]}…"
    counts = f"{each['fits']} of {each['of']}"
    return [each["dataset"], each["method"], each["status"], counts, message]
