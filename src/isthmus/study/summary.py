"""Summary of a study: the statuses, rows, times and failures of its fits."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any

from isthmus.study.comparison import grouped, markdown
from isthmus.study.methods import Method
from isthmus.study.store import Row

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

    Parameters
    ----------
    rows : sequence of mapping
        See :meth:`Store.read`.
    methods : mapping of str to Method
        The methods, for their selection criteria. The criteria of others follow from the rows.
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
