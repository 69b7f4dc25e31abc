"""The clustering study: published results, a repetition of some fits, and the verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure

import isthmus
from isthmus.paper.report.registry import WORDS, compose, recorded
from isthmus.paper.report.section import Section
from isthmus.paper.study.comparison import Comparison
from isthmus.paper.study.figures import study_figures
from isthmus.paper.study.fitting import BOUNDED, LABELLED, METRICS, UNLABELLED, fit, prepare
from isthmus.paper.study.methods import METHODS
from isthmus.paper.study.runner import run
from isthmus.paper.study.settings import Settings, Task
from isthmus.paper.study.statistics import MARGIN, Pair
from isthmus.paper.study.store import Row, Store
from isthmus.paper.study.verdict import CLAIMS, FACTOR, GROWING, Claim, make_report

BUNDLED = ("iris", "wine", "wisconsin_breast_cancer")
# Verdicts use the scores with a common scale.
GROUPS = {
    "Labels seen": [name for name in LABELLED if name in BOUNDED],
    "Labels not seen": [name for name in UNLABELLED if name in BOUNDED],
    "All": [name for name in METRICS if name in BOUNDED],
}
# Other outcomes are open.
OUTCOMES = {"held": True, "did not hold": False}
RIVAL = "BayesianGaussianMixture"
REPEATED, SECONDS, EQUAL = 24, 1.5, 1e-6
ROWS = 5000


def _study(full: bool) -> tuple[Path, str]:
    """Return the directory of the fits, the published ones or those run with `full`, in words."""
    if not full:
        return recorded("study-ranks").parent, "of the complete study, as published"
    home = os.environ.get("XDG_CACHE_HOME")
    cache = (Path(home) if home else Path.home() / ".cache") / "isthmus" / "reproduce-study"
    return cache / f"full-{isthmus.__version__}", "of the complete study"


def ensure_fits(seed: int, full: bool = False) -> None:
    """With `full`, run what is missing of the study that the parts on it read."""
    if full:
        run(_study(full)[0], Settings(), jobs=None)


def _drawn(figure: str, full: bool) -> tuple[Sequence[Row], str, Figure]:
    """Return all fits, their source, and a figure of them."""
    directory, source = _study(full)
    rows = Store(directory).read()
    return rows, source, study_figures(rows, [figure])[figure]


def ranks_of_the_study(seed: int, full: bool = False) -> Section:
    """Draw mean ranks, judge claims of equivalence, and repeat a seeded choice of fits."""
    rows, source, drawn = _drawn("critical-difference", full)
    report = make_report(rows)
    paper, from_kmeans, against, _ = claims = [report.claim(statement=each) for each in CLAIMS]
    repeated = {} if full else repeat(rows, seed)
    again = (
        f" {repeated['fits']} short fits, chosen by the seed, were repeated: {repeated['equal']} "
        "gave the same scores."
        if repeated
        else ""
    )
    labelled, unlabelled = (_competitive(paper, each) for each in (LABELLED, UNLABELLED))
    return compose(
        "study-ranks",
        drawn,
        {
            "fits": len(rows),
            "source": source,
            "done_again": repeated,
            "claim_under_scores_with_a_common_scale": {
                f"{words}: {_listed(scores)}": paper.outcome(scores)
                for words, scores in GROUPS.items()
            },
            "difference_by_claim_and_score": {
                claim.statement: {name: _numbers(pair) for name, pair in claim.pairs.items()}
                for claim in claims
            },
        },
        {"labelled": labelled[0], "unlabelled": unlabelled[0]},
        again=again,
        scores=_listed(GROUPS["All"]),
        margin=MARGIN,
        labelled=labelled[1],
        unlabelled=unlabelled[1],
        beside_kmeans=_competitive(against, LABELLED)[1],
        labelled_from_kmeans=_competitive(from_kmeans, LABELLED)[1],
        unlabelled_from_kmeans=_competitive(from_kmeans, UNLABELLED)[1],
    )


def _violins(name: str, figure: str, seed: int, full: bool = False) -> Section:
    """Draw the scores of all fits."""
    rows, source, drawn = _drawn(figure, full)
    return compose(name, drawn, {"fits": len(rows)}, source=source)


# The paper's two figures of scores, and the second for methods that find the number of clusters.
violins_seeing_labels = partial(_violins, "study-labelled", "violins-given-labelled")
violins_without_labels = partial(_violins, "study-unlabelled", "violins-given-unlabelled")
violins_without_labels_or_k = partial(
    _violins, "study-unknown-unlabelled", "violins-unknown-unlabelled"
)


def violins_seeing_labels_without_k(seed: int, full: bool = False) -> Section:
    """Draw the scores with labels of methods that find the number of clusters, and compare."""
    rows, source, drawn = _drawn("violins-unknown-labelled", full)
    report = make_report(rows)
    comparison = report.comparison("K unknown", "ari")
    pairs = {name: comparison.pair(name, RIVAL) for name in GROWING}
    compared = {name: pair for name, pair in pairs.items() if pair is not None and pair.datasets}
    numbers = {each.method: each for each in report.cluster_numbers}
    growing = numbers[GROWING[0]]
    return compose(
        "study-unknown-labelled",
        drawn,
        {
            "fits": len(rows),
            "mean_rank_by_method": comparison.ranks,
            f"ari_less_that_of_{RIVAL}_by_method": {
                name: _numbers(pair) for name, pair in compared.items()
            },
            "numbers_of_clusters_by_method": {
                name: each.as_dict() for name, each in numbers.items()
            },
        },
        {"count": OUTCOMES.get(growing.outcome)},
        source=source,
        factor=FACTOR,
        count=f"{growing}",
        others="; ".join(str(each) for name, each in numbers.items() if name != growing.method),
        **_growing(comparison, compared),
    )


def _growing(comparison: Comparison, pairs: Mapping[str, Pair]) -> dict[str, Any]:
    """Compare memories that grow with the mixture that grows, by the adjusted Rand index."""
    against = (
        f"{name} {pair.difference:+.3f} on average, ahead on {pair.ahead} of {pair.datasets} and "
        f"behind on {pair.behind}, {pair.verdict} ({_p_values(pair)})"
        for name, pair in pairs.items()
    )
    ranks = sorted((rank, name) for name, rank in comparison.ranks.items())
    return {
        "growing": [*pairs],
        "datasets": len(comparison.ranked),
        "ranks": [f"{name} {rank:.2f}" for rank, name in ranks],
        "rival": RIVAL,
        "against": "; ".join(against),
    }


def _competitive(claim: Claim, metrics: Sequence[str]) -> tuple[bool | None, str]:
    """Check a claim for one of the paper's two figures, by scores with a common scale.

    Returns whether it holds, None if that is open, and the evidence.
    """
    pairs = {
        name: pair
        for name in metrics
        if (pair := claim.pairs.get(name)) is not None and math.isfinite(pair.difference)
    }
    counted = {name: pair for name, pair in pairs.items() if name in BOUNDED}
    others = {name: pair for name, pair in pairs.items() if name not in BOUNDED}
    outcome = claim.outcome(name for name in metrics if name in BOUNDED)
    because = f"{_differences(counted) or 'not tested'}."
    if others:
        because += (
            " In logarithms, without a common scale and not part of the verdict: "
            f"{_differences(others)}."
        )
    return OUTCOMES.get(outcome), because


def _differences(pairs: Mapping[str, Pair]) -> str:
    return "; ".join(
        f"{WORDS.get(name, name)} {pair.difference:+.3f}, {pair.wording} ({_p_values(pair)}; "
        f"{pair.datasets} datasets)"
        for name, pair in pairs.items()
    )


def _p_values(pair: Pair) -> str:
    words = f"p = {pair.p_value:.2g} after Holm's correction, {pair.raw_p_value:.2g} before"
    return (
        words if pair.margin is None else f"{words}; equivalence p = {pair.equivalence_p_value:.2g}"
    )


def _numbers(pair: Pair) -> dict[str, Any]:
    scale = "logarithmic" if pair.margin is None else "linear"
    return {**pair.as_dict(), "scale": scale, "verdict": pair.wording}


def _listed(metrics: Sequence[str]) -> str:
    return ", ".join(WORDS.get(name, name) for name in metrics)


def repeat(rows: Sequence[Row], seed: int) -> dict[str, Any]:
    """Repeat some of the short fits on bundled data, and count those with equal scores."""
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
        if not all(equal(found[metric], row[metric]) for metric in METRICS):
            unequal.append(f"{row['dataset']}, {row['method']}, {row['parameters']}")
    return {"fits": len(order), "equal": len(order) - len(unequal), "unequal": unequal}


def equal(first: float | None, second: float | None) -> bool:
    """Return whether two scores agree to a millionth of their size, or of 1."""
    if first is None or second is None:
        return first is second
    return math.isclose(first, second, rel_tol=EQUAL, abs_tol=EQUAL)
