"""Summary of the fits of a study: methods, failures, versions of the code, and rows."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pandas as pd
from pandas import DataFrame

from isthmus.paper.study.comparison import CELL, table
from isthmus.paper.study.methods import Method

# A fit that took more than this share of the time limit might be stopped on a slower machine.
NEARLY = 0.8


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
    return {
        "methods": [
            _counts(name, fits, methods) for name, fits in frame.groupby("method", sort=False)
        ],
        "not_ok": failures.reset_index().to_dict("records"),
        "samples": samples,
        "versions": versions,
        "time_limit": float(limit) if limited else None,
        "nearly_stopped": int((times > NEARLY * limit).sum()) if limited else 0,
    }


def summary_text(summary: Mapping[str, Any]) -> str:
    """Return a summary as Markdown."""
    parts = [table(summary["methods"])]
    if summary["time_limit"] is not None:
        parts.append(
            f"{summary['nearly_stopped']} of the successful fits took more than {NEARLY:.0%} of "
            f"the time limit of {summary['time_limit']:.0f} s. A slower machine may stop them, "
            "which changes the results."
        )
    if summary["not_ok"]:
        parts += ["Fits that failed or were stopped:", table(summary["not_ok"])]
    samples = []
    for each in summary["samples"]:
        most, *fewer = sorted(each["used"], reverse=True)
        rows = {count: each["used"][count] for count in fewer}
        samples.append({**each, "used": most, "fewer": rows})
    return "\n\n".join([*parts, table(summary["versions"]), table(samples)])


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
