"""One fit and its judgement, in the process that calls."""

from __future__ import annotations

import time
import warnings
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.datasets import load
from isthmus.study.methods import Method
from isthmus.study.metrics import judge
from isthmus.study.tasks import Task

__all__ = ["Prepared", "fit", "prepare"]


@dataclass(frozen=True)
class Prepared:
    """A dataset as the methods get it: some rows, features of mean zero and variance one."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    n_available: int
    """How many rows the dataset has."""

    def first(self, rows: int | None) -> Prepared:
        """At most so many rows. They come in random order, so the first are a subsample."""
        if rows is None or rows >= len(self.X):
            return self
        return Prepared(self.X[:rows], self.y[:rows], self.n_available)


def prepare(dataset: str, rows: int, data_home: str | Path | None = None) -> Prepared:
    """Load a dataset, take a fixed random subsample of larger ones, and standardise it.

    Rows come in random order, always the same. Constant columns become zero.
    """
    X, y = load(dataset, data_home, progress=False)
    available = len(X)
    kept = np.random.default_rng(0).permutation(available)[: rows or None]
    X, y = X[kept], y[kept]
    X = X.astype(np.float64)
    X -= X.mean(0)
    spread = X.std(0)
    X /= np.where(spread > 1e-12 * np.abs(X).max(initial=1.0), spread, np.inf)
    return Prepared(X, y, available)


def fit(task: Task, method: Method, data: Prepared) -> dict[str, Any]:
    """Fit and judge; what is returned are columns of the results."""
    data = data.first(method.max_rows)
    n_classes = len(np.unique(data.y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence; that is recorded
        model = method.estimator(task.settings, n_classes, task.seed, data.X)
        start = time.process_time()
        labels = np.asarray(model.fit_predict(data.X))
        seconds = time.process_time() - start
        objective = np.nan if method.objective is None else method.objective(model, data.X)
        scores = judge(data.X, data.y, labels)
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "n_rows": len(data.X),
        "n_available": data.n_available,
        "n_features": data.X.shape[1],
        "n_classes": n_classes,
        **scores,
        "n_clusters": len(sizes),
        "largest_share": float(sizes.max() / len(labels)),
        "objective": float(objective) if np.isfinite(objective) else None,
        "converged": _converged(model),
        "seconds": seconds,
    }


def _converged(model: Any) -> bool | None:
    """Whether the fit ended by itself; None where the method does not say."""
    told = getattr(model, "converged_", None)
    if told is None and hasattr(model, "n_iter_") and hasattr(model, "max_iter"):
        told = bool(np.max(model.n_iter_) < model.max_iter)
    return None if told is None else bool(told)
