"""The clustering study: published results, a repetition of some fits, and the verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from numpy.typing import NDArray
from scipy.spatial.distance import cdist

import isthmus
from isthmus.cluster import ClAMCRP
from isthmus.io.files import exclusive
from isthmus.paper.report.claims import judged
from isthmus.paper.report.registry import recorded
from isthmus.paper.report.section import Section, listed
from isthmus.paper.study.figures import TITLES, study_figures
from isthmus.paper.study.methods import BOUNDED, LABELLED, METHODS, METRICS, UNLABELLED, Method
from isthmus.paper.study.runner import fit, prepare, run
from isthmus.paper.study.settings import Settings, Task
from isthmus.paper.study.statistics import MARGIN, Pair
from isthmus.paper.study.store import Row, Store
from isthmus.paper.study.verdict import CLAIMS, FACTOR, GROWING, SCALED, Claim, make_report

BUNDLED = ("iris", "wine", "wisconsin_breast_cancer")
# Other outcomes are open.
OUTCOMES = {"held": True, "did not hold": False}
RIVAL = "BayesianGaussianMixture"
REPEATED, SECONDS, EQUAL = 24, 1.5, 1e-6
ROWS = 5000
# Seconds that a part waits for another one to run the whole study.
LONGEST = 7 * 86400.0
# Numbers and dimensions of the clusters that are drawn from a mixture.
KNOWN, KNOWN_DIMS = (1, 2, 3, 5, 8, 12, 20), (2, 5, 10)


def _drawn(figure: str, full: bool) -> tuple[Sequence[Row], str, Figure]:
    """Return all fits, where they come from in words, and a figure of them.

    They are those that were published; with `full`, those of a study that is run now, by the first
    part that needs it.
    """
    if not full:
        directory = recorded("docs/study/results").parent
        source = "of the complete study, as published"
    else:
        home = os.environ.get("XDG_CACHE_HOME")
        cache = (Path(home) if home else Path.home() / ".cache") / "isthmus" / "reproduce-study"
        directory, source = cache / f"full-{isthmus.__version__}", "of the complete study"
        cache.mkdir(parents=True, exist_ok=True)
        with exclusive(cache, wait=LONGEST):
            run(directory, Settings(), jobs=None)
    rows = Store(directory).read()
    return rows, source, study_figures(rows, [figure])[figure]


def study_ranks(seed: int, full: bool = False) -> Section:
    """Draw mean ranks, judge claims of equivalence, and repeat a seeded choice of fits."""
    rows, source, drawn = _drawn("critical-difference", full)
    report = make_report(rows)
    paper, from_kmeans, against, _ = claims = [report.claim(statement=each) for each in CLAIMS]
    repeated, again = {}, ""
    if not full:
        repeated = repeat(rows, seed)
        again = f" {repeated['equal']} of {repeated['fits']} repeated fits gave the same scores."
    findings = tuple(
        judged(
            f"competitive-{group}",
            "ClAM+ELBO from random starts less ClAM as Saha et al. train it, one pair fixed in "
            f"advance, {choice}: {_evidence(paper, scores)} If both start from k-means, which is "
            f"no part of the verdict: {_evidence(from_kmeans, scores)}",
            as_printed=OUTCOMES.get(paper.outcomes[metrics]),
        )
        for group, choice, scores, metrics in (
            ("labelled", "selected fits", LABELLED, "supervised metrics"),
            ("unlabelled", "which selects by silhouette", UNLABELLED, "unsupervised metrics"),
        )
    )
    return Section(
        "Mean ranks of clustering methods over datasets, by the adjusted Rand index of the fit "
        "that each method selects without labels; bars join methods that do not differ "
        f"significantly. From {len(rows):,} fits {source}.{again} Verdicts use scores with a "
        f'common scale: {_names(SCALED)}. "Competitive" means not inferior: a one-sided '
        f"signed-rank test over datasets excludes that the first is worse by {MARGIN:g} or more. "
        "Being better does not count against it; the test of superiority stands beside it. "
        "`isthmus study table` prints "
        "all comparisons.",
        drawn,
        {
            "fits": len(rows),
            "source": source,
            "done_again": repeated,
            "grid_by_method": {name: _grid(method) for name, method in METHODS.items()},
            "claim_under_scores_with_a_common_scale": paper.outcomes,
            "difference_by_claim_and_score": {
                claim.statement: {name: _numbers(pair) for name, pair in claim.pairs.items()}
                for claim in claims
            },
        },
        findings,
        observations=(
            "ClAM as Saha et al. train it, from random memories with masked coordinates and their "
            "grid, less k-means, by scores that see the labels, selected fits: "
            f"{_evidence(against, LABELLED)}",
        ),
    )


def _violins(scores: str, methods: str, figure: str, seed: int, full: bool = False) -> Section:
    """Draw the scores of all fits."""
    rows, source, drawn = _drawn(figure, full)
    return Section(_caption(scores, methods, rows, source), drawn, {"fits": len(rows)})


def _caption(scores: str, methods: str, rows: Sequence[Row], source: str) -> str:
    return (
        f"Scores that {scores} labels, of all fits of each method that {methods} the number of "
        "clusters, on each dataset. A violin shows the whole grid of settings, a diamond the fit "
        f"that the method itself selects, a ring the best. From {len(rows):,} fits {source}."
    )


# The paper's two figures of scores, and the second for methods that find the number of clusters.
study_labelled = partial(_violins, "see the", "is given", "violins-given-labelled")
study_unlabelled = partial(_violins, "do not see", "is given", "violins-given-unlabelled")
study_unknown_unlabelled = partial(
    _violins, "do not see", "has to find", "violins-unknown-unlabelled"
)


def study_unknown_labelled(seed: int, full: bool = False) -> Section:
    """Draw the scores with labels of methods that find the number of clusters, and compare."""
    rows, source, drawn = _drawn("violins-unknown-labelled", full)
    report = make_report(rows)
    comparison = report.comparison("K unknown", "ari")
    pairs = {name: comparison.pair(name, RIVAL) for name in GROWING}
    compared = {name: pair for name, pair in pairs.items() if pair is not None and pair.datasets}
    numbers = {each.method: each for each in report.cluster_numbers}
    growing = numbers[GROWING[0]]
    others = "; ".join(str(each) for name, each in numbers.items() if name != growing.method)
    against = "; ".join(
        f"{name} {pair.difference:+.3f} on average, ahead on {pair.ahead} of {pair.datasets} and "
        f"behind on {pair.behind}, {pair.verdict} (p = {pair.p_value:.2g} after Holm's correction, "
        f"{pair.raw_p_value:.2g} before)"
        for name, pair in compared.items()
    )
    ranks = sorted((rank, name) for name, rank in comparison.ranks.items())
    made = numbers_on_known_clusters(seed)
    right = [max(k / found, found / k) <= FACTOR for (_, k), (found, _) in made.items()]
    share = sum(right) / len(right)
    missed = [
        f"{found} of {k} at D = {dim}, where {mixed:.0%} of the rows are nearer to another centre"
        for ((dim, k), (found, mixed)), good in zip(made.items(), right, strict=True)
        if not good
    ]
    count = judged(
        "number-of-clusters",
        f"On {len(made)} sets of the kind that the model assumes (round clusters of one width, "
        f"K = {listed(KNOWN)} in {listed(KNOWN_DIMS)} dimensions), the number that ClAM+CRP finds "
        f"with its defaults is within a factor of {FACTOR:g} on {share:.0%} (three quarters count "
        "as held). beta is then chosen by Calinski-Harabasz, not by the model's evidence, which "
        f"does worse on real data (docs/paper.md); it misses {'; '.join(missed) or 'none'}. It "
        "does not find the classes of real data, which need not be clusters (46 binned prices in "
        f"Boston): {growing}. Others: {others}.",
        as_printed=share >= 0.75 and growing.outcome == "held",
        corrected=share >= 0.75,
    )
    return Section(
        _caption("see the", "has to find", rows, source),
        drawn,
        {
            "fits": len(rows),
            "mean_rank_by_method": comparison.ranks,
            f"ari_less_that_of_{RIVAL}_by_method": {
                name: _numbers(pair) for name, pair in compared.items()
            },
            "number_found_by_D_and_K": {
                dim: {k: made[dim, k][0] for k in KNOWN} for dim in KNOWN_DIMS
            },
            "numbers_of_clusters_by_method": {
                name: each.as_dict() for name, each in numbers.items()
            },
        },
        (count,),
        observations=(
            f"The paper tests {listed(compared)} on no dataset. Mean ranks by the ARI of the "
            f"selected fit over {len(comparison.ranked)} datasets, 1 the best: "
            f"{listed(f'{name} {rank:.2f}' for rank, name in ranks)}.",
            f"By ARI beside {RIVAL}, a Dirichlet-process mixture: {against}. The defaults of "
            "ClAM+CRP were chosen on some of these datasets with their labels (see docs/paper.md).",
        ),
    )


def known_clusters(dim: int, count: int, seed: int) -> tuple[NDArray[Any], NDArray[Any]]:
    """Draw rows (300, dim) about centres with four times their width: a mixture as in the model."""
    generator = np.random.default_rng([seed, count, dim])
    centres = 4 * generator.normal(size=(count, dim))
    return centres[np.arange(300) % count] + generator.normal(size=(300, dim)), centres


def numbers_on_known_clusters(seed: int) -> dict[tuple[int, int], tuple[int, float]]:
    """Return, by D and K, the number of clusters found, and the share of rows that overlap."""
    found = {}
    for dim, count in product(KNOWN_DIMS, KNOWN):
        rows, centres = known_clusters(dim, count, seed)
        nearest = cdist(rows, centres).argmin(1)
        mixed = float((nearest != np.arange(300) % count).mean())
        found[dim, count] = ClAMCRP(random_state=seed).fit(rows).n_clusters_, mixed
    return found


def _grid(method: Method) -> str:
    """Return the values that each setting of a method takes in the study."""
    values: dict[str, dict[str, None]] = {}
    for settings in method.grid:
        for name, value in settings.items():
            values.setdefault(name, {})[str(value)] = None
    return "; ".join(f"{name} {', '.join(each)}" for name, each in values.items()) or "defaults"


def _evidence(claim: Claim, metrics: Sequence[str]) -> str:
    """Return the differences behind a claim, first by scores with a common scale."""
    tests, others = [], []
    for name in metrics:
        pair = claim.pairs.get(name)
        if pair is None or not math.isfinite(pair.difference):
            continue
        difference = f"{_names([name])} {pair.difference:+.3f}"
        if name in BOUNDED:
            tests.append(
                f"{difference}, {claim.verdict(name)} (not inferior p = "
                f"{pair.not_worse_p_values[0]:.2g}, superior p = {pair.better_p_values[0]:.2g}; "
                f"{pair.datasets} datasets)"
            )
        else:
            others.append(f"{difference} (two-sided p = {pair.raw_p_value:.2g})")
    tail = " In logarithms, without a common scale and not part of the verdict: "
    return f"{'; '.join(tests) or 'not tested'}." + (
        f"{tail}{'; '.join(others)}." if others else ""
    )


def _numbers(pair: Pair) -> dict[str, Any]:
    scale = "logarithmic" if pair.margin is None else "linear"
    return {**pair.as_dict(), "scale": scale, "verdict": pair.wording}


def _names(metrics: Sequence[str]) -> str:
    return ", ".join(TITLES[name].partition(" (")[0] for name in metrics)


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
        ours, theirs = (np.array([each[m] for m in METRICS], float) for each in (found, row))
        if not np.allclose(ours, theirs, rtol=EQUAL, atol=EQUAL, equal_nan=True):
            unequal.append(f"{row['dataset']}, {row['method']}, {row['parameters']}")
    return {"fits": len(order), "equal": len(order) - len(unequal), "unequal": unequal}
