"""The figures of a clustering study, from its fits."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from matplotlib.figure import Figure

from isthmus.figures.study import Ranking, critical_difference_diagram, score_map
from isthmus.figures.violins import MetricColumn, grid_violins
from isthmus.study.methods import Kind
from isthmus.study.metrics import BOUNDED, LABELLED, UNLABELLED
from isthmus.study.store import Row
from isthmus.study.tables import Scores, distribution, newest
from isthmus.study.verdict import Report, make_report

__all__ = ["study_figures"]

WORDS: dict[Kind, str] = {"K given": "given", "K unknown": "unknown"}
TITLES = {
    "rand": "Rand",
    "ari": "ARI",
    "ami": "AMI",
    "nmi": "NMI",
    "calinski_harabasz": "Calinski-Harabasz",
    "davies_bouldin": "Davies-Bouldin (lower is better)",
    "silhouette": "Silhouette",
}
OURS = ("ClAM", "ClAM+ELBO", "ClAM+CRP", "ClAM+CRP+ELBO")


def study_figures(rows: Sequence[Row], only: Collection[str] | None = None) -> dict[str, Figure]:
    """Return the figures of a study by name.

    Parameters
    ----------
    rows : sequence of mapping
        See :meth:`isthmus.study.Store.read`.
    only : collection of str, optional
        Names of the figures to draw. Default: all for which there are rows.
    """

    def wanted(name: str) -> bool:
        return only is None or name in only

    report = make_report(rows)
    drawn: dict[str, Figure] = {}
    tables = {}
    for kind, word in WORDS.items():
        scores = report.comparison(kind, "ari").scores
        if not scores.methods:
            continue
        tables[_title(kind)] = _cells(scores)
        for metrics, group in ((LABELLED, "labelled"), (UNLABELLED, "unlabelled")):
            if wanted(name := f"violins-{word}-{group}"):
                columns = [_column(report, rows, kind, metric) for metric in metrics]
                drawn[name] = grid_violins(columns, scores.datasets, scores.methods)
    if wanted("critical-difference") and (rankings := _rankings(report)):
        drawn["critical-difference"] = critical_difference_diagram(rankings)
    if wanted("scores"):
        datasets = sorted({dataset for table in tables.values() for dataset, _ in table})
        words = "ARI of the fit selected without labels"
        drawn["scores"] = score_map(tables, datasets, words)
    return drawn


def _title(kind: Kind) -> str:
    return f"The number of clusters is {'given' if kind == 'K given' else 'not given'}"


def _column(report: Report, rows: Sequence[Row], kind: Kind, metric: str) -> MetricColumn:
    selected = report.comparison(kind, metric, "selected").scores
    return MetricColumn(
        TITLES[metric],
        distribution(newest(rows), metric, kind),
        _cells(selected),
        _cells(report.comparison(kind, metric, "oracle").scores),
        "shared" if metric in BOUNDED else "log",
        {cell: int(selected.attempts[place]) for cell, place in _places(selected).items()},
    )


def _cells(scores: Scores) -> dict[tuple[str, str], float]:
    """Return scores by dataset and method, where there were fits."""
    return {cell: float(scores.values[place]) for cell, place in _places(scores).items()}


def _places(scores: Scores) -> dict[tuple[str, str], tuple[int, int]]:
    """Return the row and column of each dataset and method that has fits."""
    return {
        (dataset, method): (row, column)
        for row, dataset in enumerate(scores.datasets)
        for column, method in enumerate(scores.methods)
        if scores.attempts[row, column]
    }


def _rankings(report: Report) -> dict[str, Ranking]:
    found = {}
    for kind in WORDS:
        comparison = report.comparison(kind, "ari")
        if comparison.friedman is None or comparison.critical_difference is None:
            continue
        test = comparison.friedman
        datasets = f"{test.datasets} dataset{'s' if test.datasets > 1 else ''}"
        note = f"ARI of the selected fit on {datasets}; Friedman p = "
        note += f"{test.p_value:.2g}. Bars join methods that do not differ significantly."
        found[_title(kind)] = Ranking(
            comparison.ranks, comparison.critical_difference, comparison.groups, note, OURS
        )
    return found
