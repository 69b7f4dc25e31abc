"""The clustering study: what was published, some of it done again, and the verdict on the claim."""

from __future__ import annotations

import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

import isthmus
from isthmus.cli.parts.verdicts import finding
from isthmus.cli.study_figures import figures
from isthmus.errors import RunInProgressError
from isthmus.figures import Finding, Section
from isthmus.files import shipped
from isthmus.study import METHODS, QUICK, Settings, Store, make_report, run
from isthmus.study.comparison import Comparison
from isthmus.study.fitting import fit, prepare
from isthmus.study.metrics import BOUNDED, LABELLED, METRICS, UNLABELLED
from isthmus.study.settings import Task
from isthmus.study.statistics import Pair
from isthmus.study.store import Row
from isthmus.study.verdict import GROWING, Claim

__all__ = [
    "published_results",
    "ranks_of_the_study",
    "violins_seeing_labels",
    "violins_seeing_labels_without_k",
    "violins_without_labels",
    "violins_without_labels_or_k",
]

BUNDLED = ("iris", "wine", "wisconsin_breast_cancer")
SHORT = Settings(datasets=BUNDLED, seeds=(0,), rows=1000, entries=2, limits=QUICK.limits)
"""What is run where no results were published: minutes, not hours."""
NAMES = {
    "rand": "Rand",
    "ari": "ARI",
    "ami": "AMI",
    "nmi": "NMI",
    "calinski_harabasz": "Calinski-Harabasz",
    "davies_bouldin": "Davies-Bouldin",
    "silhouette": "silhouette",
}
# Scores with a common scale, which verdicts are by.
SEEN = tuple(name for name in LABELLED if name in BOUNDED)
UNSEEN = tuple(name for name in UNLABELLED if name in BOUNDED)
RIVAL = "BayesianGaussianMixture"
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
    drawn = figures(results.rows, ("critical-difference", "scores"))
    figure = drawn.get("critical-difference", drawn["scores"])
    claim = make_report(results.rows).claim()
    repeated = repeat(results.rows, seed) if results.published else {}
    groups = {"Labels seen": SEEN, "Labels not seen": UNSEEN, "All": (*SEEN, *UNSEEN)}
    numbers: dict[str, Any] = {
        "fits": len(results.rows),
        "source": results.source,
        "done_again": repeated,
        "claim_under_scores_with_a_common_scale": {
            f"{words}: {_listed(scores)}": claim.outcome(scores) for words, scores in groups.items()
        },
        "clam_elbo_less_clam_by_score": {
            name: _pair(name, pair) for name, pair in claim.pairs.items()
        },
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
        f"apart. From {len(results.rows):,} fits {results.source}.{again} Verdicts on ClAM+ELBO "
        f"are by scores with a common scale: {_listed((*SEEN, *UNSEEN))}. "
        "`isthmus study table` prints all of it."
    )
    findings = (
        _competitive(claim, LABELLED, "see the labels"),
        _competitive(claim, UNLABELLED, "do not see the labels"),
    )
    return Section(caption, figure, numbers, findings)


def violins_seeing_labels(seed: int, full: bool = False) -> Section:
    """Draw the paper's first figure of scores."""
    return _violins("given-labelled", full)


def violins_without_labels(seed: int, full: bool = False) -> Section:
    """Draw the paper's second figure of scores."""
    return _violins("given-unlabelled", full)


def violins_seeing_labels_without_k(seed: int, full: bool = False) -> Section:
    """Draw the same for methods that find the number of clusters, and say how ours do."""
    section = _violins("unknown-labelled", full)
    comparison = make_report(find_results(full).rows).comparison("K unknown", "ari")
    pairs = {name: comparison.pair(name, RIVAL) for name in GROWING}
    compared = {name: pair for name, pair in pairs.items() if pair is not None and pair.datasets}
    numbers = {
        **section.numbers,
        "mean_rank_by_method": comparison.ranks,
        f"ari_less_that_of_{RIVAL}_by_method": {
            name: _pair("ari", pair) for name, pair in compared.items()
        },
    }
    return replace(section, numbers=numbers, observations=_growing(comparison, compared))


def violins_without_labels_or_k(seed: int, full: bool = False) -> Section:
    """Draw the same for methods that find the number of clusters, by scores without labels."""
    return _violins("unknown-unlabelled", full)


def _violins(name: str, full: bool) -> Section:
    results = find_results(full)
    kind, _, metrics = name.partition("-")
    told = "is told" if kind == "given" else "has to find"
    words = "see the labels" if metrics == "labelled" else "see no labels"
    caption = (
        f"Scores that {words}, of all fits of each method that {told} the number of clusters, on "
        "each dataset. A violin is the whole grid of settings, a diamond the fit that the method "
        f"itself selects, a ring the best. From {len(results.rows):,} fits {results.source}."
    )
    [figure] = figures(results.rows, [f"violins-{name}"]).values()
    return Section(caption, figure, {"fits": len(results.rows)})


def _growing(comparison: Comparison, pairs: Mapping[str, Pair]) -> tuple[str, ...]:
    """How the memories that grow do beside the mixture that does, by the adjusted Rand index."""
    if not (comparison.ranks and pairs):
        return ()
    order = sorted(comparison.ranks, key=lambda name: comparison.ranks[name])
    ranks = ", ".join(f"{name} {comparison.ranks[name]:.2f}" for name in order)
    against = "; ".join(
        f"{name} {pair.difference:+.3f} on average, ahead on {pair.ahead} of {pair.datasets} and "
        f"behind on {pair.behind}, {pair.verdict} ({_chances(pair)})"
        for name, pair in pairs.items()
    )
    datasets = len(comparison.ranked)
    return (
        f"The paper tests {' and '.join(pairs)} on no dataset. Mean ranks by the ARI of the "
        f"selected fit over {datasets} datasets, 1 the best: {ranks}.",
        f"By ARI beside {RIVAL}, a Dirichlet-process mixture: {against}. The defaults of ClAM+CRP "
        "were chosen on some of these datasets with labels in hand (see docs/study.md).",
    )


def _competitive(claim: Claim, metrics: Sequence[str], words: str) -> Finding:
    """The paper's claim for one of its two figures; its verdict is by scores of a common scale."""
    pairs = {
        name: pair
        for name in metrics
        if (pair := claim.pairs.get(name)) is not None and math.isfinite(pair.difference)
    }
    counted = {name: pair for name, pair in pairs.items() if name in BOUNDED}
    others = {name: pair for name, pair in pairs.items() if name not in BOUNDED}
    outcome = claim.outcome(name for name in metrics if name in BOUNDED)
    not_behind = all(
        pair.verdict == "competitive" or pair.difference > 0 for pair in counted.values()
    )
    because = (
        "Mean differences to ClAM of the selected fits, by scores with a common scale: "
        f"{_told(counted) or 'not tested'}."
    )
    if others:
        because += (
            f" In logarithms, without a common scale and not in the verdict: {_told(others)}."
        )
    if outcome != "held" and counted and not_behind:
        because += " Where the two are not competitive, it is because ClAM+ELBO is ahead."
    return finding(
        f"ClAM+ELBO is competitive with ClAM by scores that {words}.",
        because,
        as_printed=outcome == "held",
        corrected=bool(counted) and not_behind,
    )


def _told(pairs: Mapping[str, Pair]) -> str:
    return "; ".join(
        f"{NAMES[name]} {pair.difference:+.3f}, {_word(name, pair)} ({_chances(pair)}; "
        f"{pair.datasets} datasets)"
        for name, pair in pairs.items()
    )


def _chances(pair: Pair) -> str:
    return f"p = {pair.p_value:.2g} after Holm's correction, {pair.raw_p_value:.2g} before"


def _word(metric: str, pair: Pair) -> str:
    """What became of a pair, as `isthmus study table` says it."""
    open_ended = metric not in BOUNDED and pair.verdict == "undecided"
    return "no difference shown" if open_ended else pair.verdict


def _pair(metric: str, pair: Pair) -> dict[str, Any]:
    return {
        "difference": pair.difference if math.isfinite(pair.difference) else None,
        "scale": "linear" if metric in BOUNDED else "logarithmic",
        "p": pair.raw_p_value,
        "p_after_holm": pair.p_value,
        "ahead": pair.ahead,
        "behind": pair.behind,
        "datasets": pair.datasets,
        "verdict": _word(metric, pair),
    }


def _listed(metrics: Sequence[str]) -> str:
    return ", ".join(NAMES[name] for name in metrics)


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
