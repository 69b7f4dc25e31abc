"""The figures of a study."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Literal

from matplotlib.figure import Figure

from isthmus.paper.figures.study import (
    MetricColumn,
    Ranking,
    critical_difference_diagram,
    grid_violins,
    score_map,
)
from isthmus.paper.study.comparison import distribution
from isthmus.paper.study.methods import BOUNDED, LABELLED, UNLABELLED, Kind
from isthmus.paper.study.store import Row
from isthmus.paper.study.verdict import Report, make_report

QUESTIONS: dict[Kind, str] = {"K given": "given", "K unknown": "not given"}
TITLES = {
    "rand": "Rand",
    "ari": "ARI",
    "ami": "AMI",
    "nmi": "NMI",
    "calinski_harabasz": "Calinski-Harabasz",
    "davies_bouldin": "Davies-Bouldin (lower is better)",
    "silhouette": "Silhouette",
}
OURS = ("ClAM", "ClAM+ELBO", "ClAM+CRP", "ClAM+CRP+ELBO", "BasinFlow")


def study_figures(rows: Sequence[Row], only: Collection[str] | None = None) -> dict[str, Figure]:
    """Return the figures of a study by name.

    Parameters
    ----------
    rows : sequence of mapping
        See :meth:`isthmus.study.Store.read`.
    only : collection of str, optional
        Names of the figures to draw. Default: all for which there are rows.
    """
    report = make_report(rows)
    drawn: dict[str, Figure] = {}
    tables, rankings = {}, {}
    for kind, word in QUESTIONS.items():
        comparison, title = report.comparison(kind, "ari"), f"The number of clusters is {word}"
        scores, test = comparison.scores, comparison.friedman
        if not scores.methods:
            continue
        tables[title] = scores.cells
        for metrics, group in ((LABELLED, "labelled"), (UNLABELLED, "unlabelled")):
            name = f"violins-{kind.removeprefix('K ')}-{group}"
            if only is None or name in only:
                columns = [_column(report, rows, kind, metric) for metric in metrics]
                drawn[name] = grid_violins(columns, scores.datasets, scores.methods)
        if test is not None and comparison.critical_difference is not None:
            note = (
                f"ARI of the selected fit (datasets: {test.datasets}); Friedman p = "
                f"{test.p_value:.2g}. Bars join methods that do not differ significantly."
            )
            width, joined = comparison.critical_difference, comparison.groups
            rankings[title] = Ranking(comparison.ranks, width, joined, note, OURS)
    if rankings and (only is None or "critical-difference" in only):
        drawn["critical-difference"] = critical_difference_diagram(rankings)
    if only is None or "scores" in only:
        datasets = sorted({dataset for table in tables.values() for dataset, _ in table})
        drawn["scores"] = score_map(tables, datasets, "ARI of the fit selected without labels")
    return drawn


def _column(report: Report, rows: Sequence[Row], kind: Kind, metric: str) -> MetricColumn:
    selected = report.comparison(kind, metric, "selected").scores
    oracle = report.comparison(kind, metric, "oracle").scores
    fits = distribution(rows, metric, kind)
    scale: Literal["shared", "log"] = "shared" if metric in BOUNDED else "log"
    return MetricColumn(TITLES[metric], fits, selected.cells, oracle.cells, scale, selected.fits)
