"""The clustering study: methods on datasets, resumable, with statistics that give a verdict."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from isthmus.study.isolation import Limits
from isthmus.study.methods import METHODS, Method, combinations
from isthmus.study.runner import QUICK, Progress, Run, Settings, run, status
from isthmus.study.store import Store

if TYPE_CHECKING:
    from isthmus.study.dp_means import DPMeans

__all__ = [
    "METHODS",
    "QUICK",
    "DPMeans",
    "Limits",
    "Method",
    "Progress",
    "Run",
    "Settings",
    "Store",
    "combinations",
    "run",
    "status",
]


def __getattr__(name: str) -> Any:
    if name == "DPMeans":  # scikit-learn is imported only by those who need it
        return import_module("isthmus.study.dp_means").DPMeans
    raise AttributeError(f"module 'isthmus.study' has no attribute {name!r}")
