"""The clustering study: what was published, some of it done again, and the verdict on the claim."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import isthmus
from isthmus.cli.parts.verdicts import finding
from isthmus.cli.study_figures import figures
from isthmus.errors import RunInProgressError
from isthmus.figures import Finding, Section
from isthmus.files import shipped
from isthmus.study import METHODS, Settings, Store, make_report, run
from isthmus.study.fitting import fit, prepare
from isthmus.study.metrics import METRICS
from isthmus.study.runner import QUICK
from isthmus.study.store import Row
from isthmus.study.tasks import Task

__all__ = [
    "published_results",
    "ranks_of_the_study",
    "violins_seeing_labels",
    "violins_without_labels",
]

BUNDLED = ("iris", "wine", "wisconsin_breast_cancer")
SHORT = Settings(datasets=BUNDLED, seeds=(0,), rows=1000, entries=2, limits=QUICK.limits)
"""What is run where no results were published: minutes, not hours."""
REPEATED, SECONDS, EQUAL = 24, 1.5, 1e-6
ROWS = 5000


class Results(NamedTuple):
    """Fits, and whose they are."""

    rows: Sequence[Row]
    source: str
    published: bool


def published_results() -> Path | None:
    """Where the complete study's results are."""
    results = shipped("docs/study/results")
    return results.parent if results is not None and any(results.glob("*.parquet")) else None


def ranks_of_the_study(seed: int, full: bool = False) -> Section:
    """Draw mean ranks, judge the paper's claim, and do a seeded choice of fits again."""
    results = find_results(full)
    drawn = figures(results.rows)
    figure = drawn.get("critical-difference", drawn["scores"])
    report = make_report(results.rows)
    claim = report.claim()
    repeated = repeat(results.rows, seed) if results.published else {}
    numbers: dict[str, Any] = {
        "fits": len(results.rows),
        "source": results.source,
        "claim": claim.as_dict(),
        "done_again": repeated,
    }
    again = (
        f" {repeated['fits']} short fits, chosen by the seed, were done again just now: "
        f"{repeated['equal']} gave the same scores."
        if repeated
        else ""
    )
    caption = (
        "Mean ranks of clustering methods over datasets, by the adjusted Rand index of the fit "
        "that each selects without looking at labels; methods that a bar joins are not told "
        f"apart. From {len(results.rows):,} fits {results.source}.{again} "
        "`isthmus study table` prints all of it."
    )
    findings = [
        _competitive(claim.as_dict(), group, words)
        for group, words in (
            ("supervised metrics", "scores that see the labels"),
            ("unsupervised metrics", "the silhouette, which does not"),
        )
    ]
    return Section("The study: ranks", caption, figure, numbers, tuple(findings))


def violins_seeing_labels(seed: int, full: bool = False) -> Section:
    """Draw the paper's first figure of scores."""
    return _violins("labelled", "which see the labels", full)


def violins_without_labels(seed: int, full: bool = False) -> Section:
    """Draw the paper's second figure of scores."""
    return _violins("unlabelled", "which see no labels", full)


def _violins(name: str, words: str, full: bool) -> Section:
    results = find_results(full)
    caption = (
        f"Scores, {words}, of all fits of each method that is told the number of clusters, on each "
        "dataset. A violin is the whole grid of settings, a diamond the fit that the method itself "
        f"selects, a ring the best. From {len(results.rows):,} fits {results.source}."
    )
    figure = figures(results.rows)[f"violins-given-{name}"]
    return Section(f"The study: scores {words}", caption, figure, {"fits": len(results.rows)})


def _competitive(claim: dict[str, Any], group: str, words: str) -> Finding:
    """The paper's claim for one of its two figures."""
    outcome = claim["outcomes"][group]
    supervised = group == "supervised metrics"
    names = ("rand", "ari", "ami", "nmi") if supervised else ("silhouette",)
    pairs = {name: claim["metrics"][name] for name in names if name in claim["metrics"]}
    listed = "; ".join(
        f"{name} {pair['difference']:+.3f}, {pair['verdict']} (p = {pair['p_value']:.2g} after "
        f"Holm's correction, {pair['raw_p_value']:.2g} before; {pair['datasets']} datasets)"
        for name, pair in pairs.items()
        if pair["difference"] is not None
    )
    not_behind = all(
        pair["verdict"] == "competitive" or (pair["difference"] or 0.0) > 0
        for pair in pairs.values()
    )
    correction = (
        " Where the two are not competitive, it is because ClAM+ELBO is ahead."
        if outcome != "held" and not_behind
        else ""
    )
    return finding(
        f"ClAM+ELBO is competitive with ClAM by {words}.",
        f"Mean differences to ClAM of the selected fits: {listed or 'not tested'}.{correction}",
        as_printed=outcome == "held",
        corrected=bool(pairs) and not_behind,
    )


def find_results(full: bool) -> Results:
    """All fits: run completely if asked for, else published, else of a short study done now."""
    published = published_results()
    if full or published is None:
        settings, name = (Settings(), "full") if full else (SHORT, "short")
        directory = _cache() / f"{name}-{isthmus.__version__}"
        _run(directory, settings)
        words = "of the complete study" if full else "of a short study, run now"
        return Results(Store(directory).read(), words, False)
    return Results(Store(published).read(), "of the complete study, as published", True)


def _run(directory: Path, settings: Settings) -> None:
    """Do what is missing; if another part is at it, wait for that."""
    while True:
        try:
            run(directory, settings, jobs=os.cpu_count() or 1)
            return
        except RunInProgressError:
            time.sleep(5)


def _cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "isthmus" / "reproduce-study"


def repeat(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Do some of the short fits on bundled data again, and count those with equal scores."""
    short = [
        row
        for row in rows
        if row["dataset"] in BUNDLED
        and row["status"] == "ok"
        and row["method"] in METHODS
        and row["seconds"] <= SECONDS
    ]
    order = np.random.default_rng(seed).permutation(len(short))[:REPEATED]
    data = {name: prepare(name, ROWS) for name in BUNDLED}
    unequal = []
    for row in (short[place] for place in order):
        task = Task(row["dataset"], row["method"], row["parameters"], row["seed"], ROWS)
        found = fit(task, METHODS[row["method"]], data[row["dataset"]])
        if not all(_equal(found[metric], row[metric]) for metric in METRICS):
            unequal.append(f"{row['dataset']}, {row['method']}, {row['parameters']}")
    return {"fits": len(order), "equal": len(order) - len(unequal), "unequal": unequal}


def _equal(first: float | None, second: float | None) -> bool:
    """To a millionth of their size; two missing scores are equal."""
    if first is None or second is None:
        return first is None and second is None
    return abs(first - second) <= EQUAL * max(1.0, abs(second))
