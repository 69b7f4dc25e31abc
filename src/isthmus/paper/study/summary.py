"""Summary of the fits of a study: methods, failures, versions of the code, and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas import DataFrame

from isthmus.paper.study.comparison import CELL, markdown
from isthmus.paper.study.methods import Method

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
    versions: list[dict[str, Any]]
    """For each version of the code: the number of fits, their methods, the first and last day."""
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
        parts = [markdown(heads, map(_method_cells, self.methods)), "", self._times(), ""]
        if self.failures:
            heads = ["dataset", "method", "status", "fits", "first message"]
            parts += ["Fits that failed or were stopped:", ""]
            parts += [markdown(heads, map(_failure_cells, self.failures)), ""]
        else:
            parts += ["All fits succeeded.", ""]
        if self.versions:
            heads = ["version of the code", "fits", "days (UTC)", "methods"]
            parts += [markdown(heads, map(_version_cells, self.versions)), ""]
        rows = [[each["dataset"], _rows_text(**each)] for each in self.samples]
        return "\n".join([*parts, markdown(["dataset", "rows"], rows)])

    def _times(self) -> str:
        names = ("total_seconds", "stopped_seconds", "untimed")
        total, stopped, untimed = (sum(each[name] for each in self.methods) for name in names)
        text = f"All fits took {total:,.0f} s of CPU time"
        if self.failures:
            text += f", including {stopped:,.0f} s of fits that failed or were stopped"
        if untimed:
            text += f" and excluding {untimed} of those, whose time was not recorded"
        if self.time_limit is None:
            return f"{text}."
        return (
            f"{text}.\n{self.nearly_stopped} of the successful fits took more than {NEARLY:.0%} of "
            f"the time limit of {self.time_limit:.0f} s. A slower machine may stop them, which "
            "changes the results."
        )


def summarize(frame: DataFrame, methods: Mapping[str, Method]) -> Summary:
    """Count the fits of a study by method, dataset, status and version of the code."""
    limit = frame.seconds[frame.status == "timeout"].max()
    times = frame.seconds[frame.status == "ok"]
    # The limit is the longest time of a stopped fit, unless a successful one took longer: then the
    # stopped fits were waiting rather than working.
    limited = limit >= times.max()
    bad, sampled = frame[frame.status != "ok"], frame.dropna(subset="n_rows")
    counts = frame.groupby(CELL).size()
    days = pd.to_datetime(frame.finished, unit="s").dt.date.astype(str)
    return Summary(
        [
            _method(name, fits, methods.get(name))
            for name, fits in frame.groupby("method", sort=False)
        ],
        [
            {
                **dict(zip([*CELL, "status"], cell, strict=True)),
                "fits": len(fits),
                "of": int(counts[cell[:2]]),
                "message": fits.message.fillna("").iloc[0],
            }
            for cell, fits in bad.groupby([*CELL, "status"], sort=False)
        ],
        [
            {
                "dataset": name,
                "available": int(fits.n_available.max()),
                "used": {
                    int(count): tuple(each.method.unique())
                    for count, each in fits.groupby("n_rows", sort=False)
                },
            }
            for name, fits in sampled.groupby("dataset", sort=False)
        ],
        [
            {
                "version": version,
                "fits": len(fits),
                "methods": list(fits.method.unique()),
                "first": fits.day.min(),
                "last": fits.day.max(),
            }
            for version, fits in frame.assign(day=days).groupby("version", sort=False)
        ],
        float(limit) if limited else None,
        int((times > NEARLY * limit).sum()) if limited else 0,
    )


def _method(name: Any, fits: DataFrame, method: Method | None) -> dict[str, Any]:
    ok = fits.status == "ok"
    others = fits.seconds[~ok]
    criterion = "its objective" if fits.objective[ok].notna().any() else "its first settings"
    return {
        "method": name,
        "kind": fits.kind.iloc[0],
        "entries": fits.parameters.nunique(),
        "selects_by": criterion if method is None else method.selects_by,
        "fits": len(fits),
        "ended": fits.status.value_counts().to_dict(),
        "not_converged": sum(each is False for each in fits.converged[ok]),
        "median_seconds": float(fits.seconds[ok].median()) if ok.any() else None,
        "total_seconds": float(fits.seconds.sum()),
        "stopped_seconds": float(others.sum()),
        "untimed": int(others.isna().sum()),
    }


def _rows_text(dataset: str, available: int, used: Mapping[int, tuple[str, ...]]) -> str:
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


def _version_cells(each: Mapping[str, Any]) -> list[str]:
    days = " to ".join(dict.fromkeys([each["first"], each["last"]]))
    return [each["version"], f"{each['fits']:,}", days, ", ".join(each["methods"])]
