"""Summary of the fits of a study: methods, failures, versions of the code, and rows."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import pandas as pd
from pandas import DataFrame

from isthmus.paper.study.comparison import CELL, table
from isthmus.paper.study.methods import Method

# A fit that took more than this share of the time limit might be stopped on a slower machine.
NEARLY = 0.8


@dataclass(frozen=True)
class Summary:
    """Methods, failures and rows of a study, as records for JSON. Prints as Markdown.

    Attributes
    ----------
    methods, failures, samples, versions : list of dict
        Of each method; of each dataset, method and status other than "ok"; of each dataset; and of
        each version of the code.
    time_limit : float or None
        CPU seconds after which fits were stopped; None if the results do not show it.
    nearly_stopped : int
        Number of successful fits that took more than 80 % of the time limit.
    """

    methods: list[dict[str, Any]]
    failures: list[dict[str, Any]]
    samples: list[dict[str, Any]]
    versions: list[dict[str, Any]]
    time_limit: float | None = None
    nearly_stopped: int = 0

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
        parts = [table(self.methods)]
        if self.time_limit is not None:
            parts.append(
                f"{self.nearly_stopped} of the successful fits took more than {NEARLY:.0%} of the "
                f"time limit of {self.time_limit:.0f} s. A slower machine may stop them, which "
                "changes the results."
            )
        if self.failures:
            parts += ["Fits that failed or were stopped:", table(self.failures)]
        samples = []
        for each in self.samples:
            most, *fewer = sorted(each["used"], reverse=True)
            rows = {count: each["used"][count] for count in fewer}
            samples.append({**each, "used": most, "fewer": rows})
        return "\n\n".join([*parts, table(self.versions), table(samples)])


def summarize(frame: DataFrame, methods: Mapping[str, Method]) -> Summary:
    """Count the fits of a study by method, dataset, status and version of the code."""
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
    versions = [
        {
            "version": version,
            "fits": len(fits),
            "methods": list(fits.method.unique()),
            "first": fits.day.min(),
            "last": fits.day.max(),
        }
        for version, fits in frame.groupby("version", sort=False)
    ]
    samples = [
        {
            "dataset": name,
            "available": int(fits.n_available.max()),
            "used": {
                int(count): tuple(each.method.unique())
                for count, each in fits.groupby("n_rows", sort=False)
            },
        }
        for name, fits in frame.dropna(subset="n_rows").groupby("dataset", sort=False)
    ]
    return Summary(
        [_counts(name, fits, methods) for name, fits in frame.groupby("method", sort=False)],
        failures.reset_index().to_dict("records"),
        samples,
        versions,
        float(limit) if limited else None,
        int((times > NEARLY * limit).sum()) if limited else 0,
    )


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
