"""Summary of a study: the statuses, rows, times and failures of its fits."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from isthmus.study.methods import Kind, Method
from isthmus.study.store import Row
from isthmus.study.tables import markdown

__all__ = ["FailureSummary", "MethodSummary", "RowsUsed", "Summary", "summarize"]

# A fit that took more than this share of the time limit might be stopped on a slower machine.
NEARLY = 0.8
MESSAGE_LENGTH = 100


@dataclass(frozen=True)
class MethodSummary:
    """The fits of one method."""

    method: str
    kind: Kind
    entries: int
    """Number of settings of the grid that were run."""
    selects_by: str
    """The criterion that selects one of them without labels."""
    fits: int
    ended: dict[str, int]
    """Number of fits by status."""
    not_converged: int
    """Number of successful fits that stopped before they converged."""
    median_seconds: float | None
    """Median CPU time of successful fits."""
    total_seconds: float
    """CPU time of all fits."""
    stopped_seconds: float
    """CPU time of the fits that failed or were stopped."""
    untimed: int
    """Number of failed or stopped fits without a recorded time."""


@dataclass(frozen=True)
class FailureSummary:
    """The fits of one method on one dataset that ended with the same failure."""

    dataset: str
    method: str
    status: str
    fits: int
    of: int
    message: str
    """Message of the first of them."""


@dataclass(frozen=True)
class RowsUsed:
    """The numbers of rows of a dataset that methods were given."""

    dataset: str
    available: int
    used: dict[int, tuple[str, ...]]
    """The methods, by number of rows."""

    def __str__(self) -> str:
        most = max(self.used)
        text = f"{most:,} of {self.available:,} rows" if most < self.available else f"all {most:,}"
        fewer = (
            f"{', '.join(names)}: {count:,}"
            for count, names in sorted(self.used.items(), reverse=True)
            if count < most
        )
        return "; ".join([text, *fewer])


@dataclass(frozen=True)
class Summary:
    """Methods, failures and rows of a study. Prints as Markdown."""

    methods: tuple[MethodSummary, ...]
    failures: tuple[FailureSummary, ...]
    samples: tuple[RowsUsed, ...]
    time_limit: float | None = None
    """CPU seconds after which fits were stopped; None if the results do not show it."""
    nearly_stopped: int = 0
    """Number of successful fits that took more than 80 % of the time limit."""

    @property
    def fits(self) -> int:
        """Number of fits."""
        return sum(each.fits for each in self.methods)

    @property
    def succeeded(self) -> int:
        """Number of fits with a result."""
        return sum(each.ended.get("ok", 0) for each in self.methods)

    def as_dict(self) -> dict[str, Any]:
        """Return the summary for JSON."""
        found = asdict(self)
        return {"methods": found["methods"], "not_ok": found.pop("failures"), **found}

    def __str__(self) -> str:
        parts = [_method_table(self.methods), "", *self._times(), ""]
        if self.failures:
            heads = ["dataset", "method", "status", "fits", "first message"]
            rows = [
                [each.dataset, each.method, each.status, f"{each.fits} of {each.of}", _short(each)]
                for each in self.failures
            ]
            parts += ["Fits that failed or were stopped:", "", markdown(heads, rows), ""]
        else:
            parts += ["All fits succeeded.", ""]
        rows = [[sample.dataset, str(sample)] for sample in self.samples]
        return "\n".join([*parts, markdown(["dataset", "rows"], rows)])

    def _times(self) -> Iterable[str]:
        total = sum(each.total_seconds for each in self.methods)
        stopped = sum(each.stopped_seconds for each in self.methods)
        untimed = sum(each.untimed for each in self.methods)
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

    Parameters
    ----------
    rows : sequence of mapping
        See :meth:`Store.read`.
    methods : mapping of str to Method
        The methods, for their selection criteria. The criteria of others follow from the rows.
    """
    limit, nearly = _time_limit(rows)
    samples = (_rows_used(*item) for item in _grouped(rows, lambda row: row["dataset"]))
    return Summary(
        tuple(
            _summarize_method(name, fits, methods.get(name))
            for name, fits in _grouped(rows, lambda row: row["method"])
        ),
        tuple(
            failure
            for _, fits in _grouped(rows, lambda row: (row["dataset"], row["method"]))
            for failure in _failures(fits)
        ),
        tuple(sample for sample in samples if sample is not None),
        limit,
        nearly,
    )


def _grouped(rows: Iterable[Row], key: Callable[[Row], Any]) -> Iterable[tuple[Any, list[Row]]]:
    groups: dict[Any, list[Row]] = defaultdict(list)
    for row in rows:
        groups[key(row)].append(row)
    return groups.items()


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


def _summarize_method(name: str, fits: list[Row], method: Method | None) -> MethodSummary:
    successful = [fit for fit in fits if fit["status"] == "ok"]
    seconds = [fit["seconds"] for fit in successful]
    others = [fit["seconds"] for fit in fits if fit["status"] != "ok"]
    stopped = [each for each in others if each is not None]
    judged = any(fit["objective"] is not None for fit in successful)
    criterion = "its objective" if judged else "its first settings"
    return MethodSummary(
        name,
        fits[0]["kind"],
        entries=len({fit["parameters"] for fit in fits}),
        selects_by=criterion if method is None else method.selects_by,
        fits=len(fits),
        ended=dict(Counter(fit["status"] for fit in fits)),
        not_converged=sum(fit["converged"] is False for fit in successful),
        median_seconds=median(seconds) if seconds else None,
        total_seconds=sum(seconds) + sum(stopped),
        stopped_seconds=sum(stopped),
        untimed=len(others) - len(stopped),
    )


def _failures(fits: list[Row]) -> Iterable[FailureSummary]:
    failed = [fit for fit in fits if fit["status"] != "ok"]
    for status, each in _grouped(failed, lambda row: row["status"]):
        first, counts = each[0], (len(each), len(fits))
        cell = (first["dataset"], first["method"])
        yield FailureSummary(*cell, status, *counts, first["message"] or "")


def _rows_used(dataset: str, fits: list[Row]) -> RowsUsed | None:
    known = [fit for fit in fits if fit["n_rows"] is not None]
    used = {
        count: tuple(dict.fromkeys(fit["method"] for fit in each))
        for count, each in _grouped(known, lambda row: row["n_rows"])
    }
    return RowsUsed(dataset, known[0]["n_available"], used) if known else None


def _method_table(methods: Iterable[MethodSummary]) -> str:
    heads = ["method", "question", "settings", "selected by", "fits", "succeeded"]
    heads += ["did not converge", "median CPU s", "total CPU s", "of which stopped"]
    rows = [
        [
            each.method,
            each.kind,
            str(each.entries),
            each.selects_by,
            str(each.fits),
            str(each.ended.get("ok", 0)),
            str(each.not_converged),
            "none" if each.median_seconds is None else f"{each.median_seconds:.2f}",
            f"{each.total_seconds:.0f}",
            f"{each.stopped_seconds:.0f}",
        ]
        for each in methods
    ]
    return markdown(heads, rows)


def _short(failure: FailureSummary) -> str:
    message = " ".join(failure.message.replace("|", "/").split())
    return message if len(message) <= MESSAGE_LENGTH else f"{message[: MESSAGE_LENGTH - 1]}…"
