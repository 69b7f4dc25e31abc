"""One fit, and the scores of its partition: four that use the labels, three that do not."""

from __future__ import annotations

import socket
import time
import warnings
from dataclasses import dataclass
from functools import lru_cache, partial
from importlib import import_module
from pathlib import Path
from typing import Any

import cloudpickle
import numpy as np
from numpy.typing import NDArray

from isthmus.errors import IsthmusError
from isthmus.paper.datasets.loading import load
from isthmus.paper.processes import Call, Limits
from isthmus.paper.study.methods import Method
from isthmus.paper.study.settings import Task
from isthmus.scaling import Scaling

# Imported once, not in the process of every fit.
COMMON = (
    "isthmus.cluster.resolution",
    "sklearn.cluster",
    "sklearn.metrics",
    "sklearn.mixture",
)


@dataclass(frozen=True)
class Prepared:
    """Rows of a dataset, in random order, with features of mean zero and variance one."""

    X: NDArray[np.float64]
    y: NDArray[np.int64]
    n_available: int
    """Number of rows of the whole dataset."""


def prepare(dataset: str, rows: int, data_home: str | Path | None = None) -> Prepared:
    """Load a dataset, take a fixed random subsample of at most `rows`, and standardise it.

    Zero `rows` stand for all. Constant columns become zero.
    """
    X, y = load(dataset, data_home, progress=False)
    kept = np.random.default_rng(0).permutation(len(X))[: rows or None]
    sample = X[kept].astype(np.float64)
    return Prepared(Scaling.of(sample).into(sample), y[kept], len(X))


def fit(task: Task, method: Method, data: Prepared) -> dict[str, Any]:
    """Fit a method and return the columns of its result."""
    X, y = data.X[: method.max_rows], data.y[: method.max_rows]
    n_classes = len(np.unique(y))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # about convergence, which is recorded
        model = method.estimator(task.settings, n_classes, task.seed, X)
        start = time.process_time()
        labels = np.asarray(model.fit_predict(X))
        seconds = time.process_time() - start
        objective = np.nan if method.objective is None else method.objective(model, X)
        scores = judge(X, y, labels)
    sizes = np.unique(labels, return_counts=True)[1]
    return {
        "n_rows": len(X),
        "n_available": data.n_available,
        "n_features": X.shape[1],
        "n_classes": n_classes,
        **scores,
        "n_clusters": len(sizes),
        "largest_share": float(sizes.max() / len(labels)),
        "objective": float(objective) if np.isfinite(objective) else None,
        "converged": _converged(model),
        "seconds": seconds,
    }


def _converged(model: Any) -> bool | None:
    """Return True if the fit converged, None if the method does not report it."""
    converged = getattr(model, "converged_", None)
    if converged is None and hasattr(model, "n_iter_") and hasattr(model, "max_iter"):
        converged = bool(np.max(model.n_iter_) < model.max_iter)
    return None if converged is None else bool(converged)


def as_call(task: Task, method: bytes, data_home: str | None, limits: Limits) -> Call:
    """Return the call that does a task in a process of its own, with the method pickled.

    Its value is the columns of the result, or an IsthmusError if the fit could not be started, for
    example because the dataset is missing on that machine. That is not a result of the method.
    """
    place = (task.dataset, task.rows, data_home)
    return Call(task.id, _fit, (task, method, place), limits, warm=partial(_warm, *place))


def _fit(task: Task, pickled: bytes, place: tuple[Any, ...]) -> dict[str, Any] | IsthmusError:
    try:
        data, method = _prepared(*place), cloudpickle.loads(pickled)
    except Exception as error:
        kind, words = IsthmusError, f"{type(error).__name__}: {error}"
        if isinstance(error, IsthmusError):
            kind, words = type(error), str(error)
        name, host = f"{task.method} on {task.dataset}", socket.gethostname()
        return kind(f"{name} could not be started on {host}: {words}")
    return fit(task, method, data)


def _warm(*place: Any) -> None:
    for module in COMMON:
        import_module(module)
    _prepared(*place)


# Shared by the fits on one dataset.
_prepared = lru_cache(maxsize=2)(prepare)


LABELLED = ("rand", "ari", "ami", "nmi")
UNLABELLED = ("calinski_harabasz", "davies_bouldin", "silhouette")
METRICS = (*LABELLED, *UNLABELLED)
LOWER_IS_BETTER = frozenset({"davies_bouldin"})
BOUNDED = frozenset({*LABELLED, "silhouette"})
"""Scores with a common scale, for which a difference of 0.02 has a meaning."""

# The silhouette compares all pairs; for more rows than this, a fixed subsample is used.
SILHOUETTE_ROWS = 2000


def judge(X: NDArray[Any], y: NDArray[Any], labels: NDArray[Any]) -> dict[str, float | None]:
    """Return the seven scores of clusters against known classes; None if undefined.

    Noise, the label -1 of some methods, counts as one more cluster.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([0, 0, 1, 1])
    >>> scores = judge(X, y, 1 - y)
    >>> scores["ari"], round(scores["silhouette"], 2)
    (1.0, 0.98)
    """
    from sklearn import metrics

    return {
        "rand": float(metrics.rand_score(y, labels)),
        "ari": float(metrics.adjusted_rand_score(y, labels)),
        "ami": float(metrics.adjusted_mutual_info_score(y, labels)),
        "nmi": float(metrics.normalized_mutual_info_score(y, labels)),
        "calinski_harabasz": _finite(metrics.calinski_harabasz_score, X, labels),
        "davies_bouldin": _finite(metrics.davies_bouldin_score, X, labels),
        "silhouette": silhouette(X, labels),
    }


def silhouette(X: NDArray[Any], labels: NDArray[Any]) -> float | None:
    """Return the silhouette on a fixed subsample of at most 2,000 rows; None if undefined."""
    from sklearn.metrics import silhouette_score

    if len(X) > SILHOUETTE_ROWS:
        kept = np.random.default_rng(0).permutation(len(X))[:SILHOUETTE_ROWS]
        X, labels = X[kept], labels[kept]
    return _finite(silhouette_score, X, labels)


def _finite(score: Any, X: NDArray[Any], labels: NDArray[Any]) -> float | None:
    sensible = 2 <= len(np.unique(labels)) < len(X)
    value = float(score(X, labels)) if sensible else np.nan
    return value if np.isfinite(value) else None
