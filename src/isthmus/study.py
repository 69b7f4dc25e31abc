"""The clustering study: methods on datasets, a resumable runner, statistics and a verdict."""

from isthmus.paper.processes import Limits
from isthmus.paper.study import methods as methods
from isthmus.paper.study import settings as settings
from isthmus.paper.study.comparison import Comparison
from isthmus.paper.study.estimators import DPMeans, SahaClAM
from isthmus.paper.study.figures import study_figures
from isthmus.paper.study.methods import METHODS, Method, combinations
from isthmus.paper.study.runner import Progress, Run, run, status
from isthmus.paper.study.settings import QUICK, Settings
from isthmus.paper.study.store import Store
from isthmus.paper.study.verdict import Claim, Report, make_report

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
    "Settings",
    "Store",
    "combinations",
    "make_report",
    "run",
    "status",
    "study_figures",
]
