"""The clustering study: published results, and the verdict."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

import isthmus
from isthmus.cluster import ClAMCRP
from isthmus.io.files import exclusive
from isthmus.paper.report.registry import recorded
from isthmus.paper.report.section import Section, judged, listed
from isthmus.paper.study.figures import TITLES, study_figures
from isthmus.paper.study.methods import BOUNDED, LABELLED, METHODS, UNLABELLED
from isthmus.paper.study.runner import prepare, run
from isthmus.paper.study.settings import Settings
from isthmus.paper.study.statistics import MARGIN
from isthmus.paper.study.store import Row, Store
from isthmus.paper.study.verdict import CLAIMS, FACTOR, GROWING, Claim, make_report

BUNDLED = ("iris", "wine", "wisconsin_breast_cancer")
# Other outcomes are open.
OUTCOMES = {"held": True, "did not hold": False}
ROWS = 5000
# Seconds that a part waits for another one to run the whole study.
LONGEST = 7 * 86400.0
# Numbers and dimensions of the clusters that are drawn from a mixture, and draws of each.
KNOWN, KNOWN_DIMS, KNOWN_DRAWS = (1, 2, 3, 5, 8, 12, 20), (2, 5, 10), 2
# Shares of the variance that the clusters of a beta keep.
SHARES = (0.7, 0.42, 0.25, 0.15, 0.09, 0.055, 0.033, 0.02)


def _fits(full: bool) -> tuple[Sequence[Row], str]:
    """Return all fits, and where they come from in words.

    They are those that were published; with `full`, those of a study that is run now, by the first
    part that needs it.
    """
    if not full:
        published = recorded("docs/study/results.sqlite").parent
        return Store(published).read(), "of the complete study, as published"
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    cache = cache / "isthmus" / "reproduce-study"
    directory = cache / f"full-{isthmus.__version__}"
    cache.mkdir(parents=True, exist_ok=True)
    with exclusive(cache, wait=LONGEST):
        run(directory, Settings(), jobs=None)
    return Store(directory).read(), "of the complete study"


def study_ranks(seed: int, full: bool = False) -> Section:
    """Draw mean ranks and judge claims of equivalence."""
    rows, source = _fits(full)
    report = make_report(rows)
    claims = [report.claim(statement=each) for each in CLAIMS]
    paper, from_kmeans, *_ = claims
    findings = tuple(
        judged(
            f"competitive-{group}",
            f"ClAM+ELBO from random starts less ClAM as Saha et al. train it: "
            f"{_evidence(paper, scores)} Both from k-means, which is no part of the verdict: "
            f"{_evidence(from_kmeans, scores)}",
            OUTCOMES.get(paper.outcomes[metrics]),
        )
        for group, scores, metrics in (
            ("labelled", LABELLED, "supervised metrics"),
            ("unlabelled", UNLABELLED, "unsupervised metrics"),
        )
    )
    return Section(
        "Mean ranks by the adjusted Rand index of the fit that each method selects; bars join "
        "methods that do not differ significantly. Competitive is what a one-sided signed-rank "
        f"test shows to be worse by less than {MARGIN:g}. From {len(rows):,} fits {source}.",
        study_figures(rows, ["critical-difference"])["critical-difference"],
        {
            "fits": len(rows),
            "source": source,
            "claim_under_scores_with_a_common_scale": paper.outcomes,
            "grid_by_method": {
                name: {
                    option: list(dict.fromkeys(each[option] for each in grid if option in each))
                    for option in dict.fromkeys(option for each in grid for option in each)
                }
                for name, grid in ((name, method.grid) for name, method in METHODS.items())
            },
            "difference_by_claim_and_score": {
                claim.statement: {name: pair.as_dict() for name, pair in claim.pairs.items()}
                for claim in claims
            },
        },
        findings,
    )


def _evidence(claim: Claim, metrics: Sequence[str]) -> str:
    """Return the differences behind a claim by scores with a common scale."""
    tests = [
        f"{TITLES[name].partition(' (')[0]} {pair.difference:+.3f}, {claim.verdict(name)} (not "
        f"inferior p = {pair.not_worse_p_values[0]:.2g}; {pair.datasets} datasets)"
        for name, pair in claim.pairs.items()
        if name in BOUNDED and name in metrics and math.isfinite(pair.difference)
    ]
    return f"{'; '.join(tests) or 'not tested'}."


def _violins(scores: str, methods: str, figure: str, seed: int, full: bool = False) -> Section:
    """Draw the scores of all fits."""
    rows, source = _fits(full)
    caption = (
        f"Scores that {scores} labels, of all fits of each method that {methods} the number of "
        "clusters. A violin shows the whole grid of settings, a diamond the fit that the method "
        f"itself selects, a ring the best. From {len(rows):,} fits {source}."
    )
    return Section(caption, study_figures(rows, [figure])[figure], {"fits": len(rows)})


# The paper's two figures of scores, and the second for methods that find the number of clusters.
study_labelled = partial(_violins, "see the", "is given", "violins-given-labelled")
study_unlabelled = partial(_violins, "do not see", "is given", "violins-given-unlabelled")
study_unknown_unlabelled = partial(
    _violins, "do not see", "has to find", "violins-unknown-unlabelled"
)


def study_unknown_labelled(seed: int, full: bool = False) -> Section:
    """Draw the scores with labels of methods that find the number of clusters, and count those."""
    section = _violins("see the", "has to find", "violins-unknown-labelled", seed, full)
    numbers = {each.method: each for each in make_report(_fits(full)[0]).cluster_numbers}
    growing = numbers[GROWING[0]]
    made, by_evidence = numbers_on_known_clusters(seed)
    wrong, wrong_by_evidence = (
        {
            dim: [k for k, found in row.items() for n in found if max(k / n, n / k) > FACTOR]
            for dim, row in table.items()
        }
        for table in (made, by_evidence)
    )
    sets = len(KNOWN) * len(KNOWN_DIMS) * KNOWN_DRAWS
    share, evident = (
        1 - sum(map(len, each.values())) / sets for each in (wrong, wrong_by_evidence)
    )
    missed = [f"K = {listed(dict.fromkeys(row))} at D = {dim}" for dim, row in wrong.items() if row]
    real = {name: clusters_found(prepare(name, ROWS).X, seed) for name in BUNDLED}
    default, evident_number = zip(*real.values(), strict=True)
    count = judged(
        "number-of-clusters",
        f"On {sets} sets of the kind that the model assumes (K = {listed(KNOWN)}; D = "
        f"{listed(KNOWN_DIMS)}), the number that ClAM+CRP finds with its defaults is within a "
        f"factor of {FACTOR:g} on {share:.0%} (three quarters count as held); not with "
        f"{listed(missed) or 'none'}. With the best of {len(SHARES)} betas by evidence, it "
        f"is on {evident:.0%}. But on {listed(BUNDLED)}, which are no such mixtures, evidence "
        f"finds {listed(evident_number)} clusters, the default {listed(default)}: so evidence does "
        "not choose beta. The number is not that of the classes of real data, though defaults "
        f"were chosen on some of them: {growing}.",
        share >= 0.75 and growing.outcome == "held",
        corrected=share >= 0.75,
    )
    found = {
        "numbers_found_by_D_and_K": made,
        "numbers_found_by_evidence_by_D_and_K": by_evidence,
        "numbers_found_by_default_and_evidence_by_dataset": real,
        "numbers_of_clusters_by_method": {name: each.as_dict() for name, each in numbers.items()},
    }
    return replace(section, numbers={**section.numbers, **found}, findings=(count,))


def known_clusters(dim: int, count: int, seed: int) -> NDArray[Any]:
    """Draw rows (300, dim) about centres with four times their width: a mixture as in the model."""
    generator = np.random.default_rng([seed, count, dim])
    centres = 4 * generator.normal(size=(count, dim))
    return centres[np.arange(300) % count] + generator.normal(size=(300, dim))


def numbers_on_known_clusters(seed: int) -> tuple[dict[int, dict[int, list[int]]], ...]:
    """Return, by D and K, the numbers of clusters found in each draw: by default, by evidence."""
    found: tuple[dict[int, dict[int, list[int]]], ...] = ({}, {})
    for dim, count, draw in product(KNOWN_DIMS, KNOWN, range(seed, seed + KNOWN_DRAWS)):
        numbers = clusters_found(known_clusters(dim, count, draw), seed)
        for table, number in zip(found, numbers, strict=True):
            table.setdefault(dim, {}).setdefault(count, []).append(number)
    return found


def clusters_found(X: NDArray[Any], seed: int) -> tuple[int, int]:
    """Return the numbers of clusters with the default beta, and with the one of best evidence."""
    betas = (0.5 / (share * X.var(0).mean()) for share in SHARES)
    tried = [ClAMCRP(beta=beta, random_state=seed).fit(X) for beta in betas]
    best = min(tried, key=lambda model: model.objective_)  # minus the log evidence
    return ClAMCRP(random_state=seed).fit(X).n_clusters_, best.n_clusters_
