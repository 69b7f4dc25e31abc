"""The clustering study: methods on datasets, a resumable runner, statistics and a verdict."""

from isthmus.processes import Limits
from isthmus.study.comparison import Comparison, Scores, compare, distribution, score_table
from isthmus.study.estimators import DPMeans, SahaClAM
from isthmus.study.figures import study_figures
from isthmus.study.methods import METHODS, Method, combinations
from isthmus.study.runner import Progress, Run, run, status
from isthmus.study.settings import QUICK, Settings
from isthmus.study.statistics import critical_difference, friedman, holm, mean_ranks, pairwise
from isthmus.study.store import Store
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
    "SahaClAM",
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
