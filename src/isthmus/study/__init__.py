"""The clustering study: methods on datasets, a resumable runner, statistics and a verdict."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isthmus.processes import Limits
from isthmus.study.methods import METHODS, Method, combinations
from isthmus.study.runner import Progress, Run, run, status
from isthmus.study.settings import QUICK, Settings
from isthmus.study.store import Store

if TYPE_CHECKING:
    from isthmus.study.comparison import Comparison, compare
    from isthmus.study.dp_means import DPMeans
    from isthmus.study.figures import study_figures
    from isthmus.study.statistics import (
        critical_difference,
        friedman,
        holm,
        mean_ranks,
        pairwise,
    )
    from isthmus.study.tables import Scores, distribution, score_table
    from isthmus.study.verdict import Claim, Report, make_report

__all__ = [
    "METHODS",
    "QUICK",
    "Claim",
    "Comparison",
    "DPMeans",
    "Limits",
    "Method",
    "Progress",
    "Report",
    "Run",
    "Scores",
    "Settings",
    "Store",
    "combinations",
    "compare",
    "critical_difference",
    "distribution",
    "friedman",
    "holm",
    "make_report",
    "mean_ranks",
    "pairwise",
    "run",
    "score_table",
    "status",
    "study_figures",
]

# Imported on first use: processes that do fits do not need them.
_LATER = {
    "DPMeans": "dp_means",
    "study_figures": "figures",
    **dict.fromkeys(("Comparison", "compare"), "comparison"),
    **dict.fromkeys(
        ("critical_difference", "friedman", "holm", "mean_ranks", "pairwise"), "statistics"
    ),
    **dict.fromkeys(("Scores", "distribution", "score_table"), "tables"),
    **dict.fromkeys(("Claim", "Report", "make_report"), "verdict"),
}


def __getattr__(name: str) -> Any:
    if name in _LATER:
        return getattr(import_module(f"isthmus.study.{_LATER[name]}"), name)
    raise AttributeError(f"module 'isthmus.study' has no attribute {name!r}")
