"""The methods of the study, each with a grid of settings, and the scores of their partitions."""

from __future__ import annotations

import math
import tomllib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pathlib import Path
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.validation import as_choice

Kind = Literal["K given", "K unknown"]
Settings = dict[str, Any]

LABELLED = ("rand", "ari", "ami", "nmi")
UNLABELLED = ("calinski_harabasz", "davies_bouldin", "silhouette")
METRICS = (*LABELLED, *UNLABELLED)
LOWER_IS_BETTER = frozenset({"davies_bouldin"})
# Scores with a common scale, for which a difference of 0.05 has a meaning.
BOUNDED = frozenset({*LABELLED, "silhouette"})
# The silhouette compares all pairs; for more rows than this, a fixed subsample is used.
SILHOUETTE_ROWS = 2000


def combinations(**choices: Sequence[Any]) -> tuple[Settings, ...]:
    """Return every combination of the choices, starting with the first of each.

    Examples
    --------
    >>> combinations(a=[1, 2], b=["x"])
    ({'a': 1, 'b': 'x'}, {'a': 2, 'b': 'x'})
    """
    return tuple(dict(zip(choices, values, strict=True)) for values in product(*choices.values()))


@dataclass(frozen=True)
class Method:
    """One method of the study.

    Parameters
    ----------
    name : str
    factory : callable or str
        Called with the settings of a grid entry; returns a scikit-learn clusterer. Its
        `random_state`, if it has one, and its `n_clusters` or `n_components`, if the number of
        clusters is given, are set afterwards. A string such as ``"sklearn.cluster:KMeans"`` is
        imported on first use.
    grid : tuple of dict
        The settings to try. The first are the defaults of the method.
    kind : {"K given", "K unknown"}
        "K given" if the method gets the number of classes.
    objective : callable or str, optional
        ``objective(fitted, X)``, lower is better: the method's own criterion, which does not use
        labels; or the name of such a function, ``"module:name"``, or of an attribute or method of
        the fitted clusterer, after a minus if higher is better. Without one, the selected fit is
        that of the first settings.
    selects_by : str
        Name of the criterion, for the tables.
    seeded : bool
        False if the study runs the method with one seed only, because the result does not depend
        on it or the grid is long enough.
    adapt : callable or str, optional
        ``adapt(settings, X)`` converts settings relative to the data into absolute ones; or the
        name of such a function.
    max_rows : int, optional
        Largest number of rows: a fixed random subsample of larger datasets is used.

    Examples
    --------
    >>> from sklearn.cluster import Birch
    >>> birch = Method("Birch", Birch, combinations(threshold=[0.5, 0.3, 0.7]), seeded=False)
    >>> birch.estimator({"threshold": 0.3}, n_clusters=4, seed=0)
    Birch(n_clusters=4, threshold=0.3)
    """

    name: str
    factory: Callable[..., Any] | str
    grid: tuple[Settings, ...] = field(default=({},), repr=False)
    kind: Kind = "K given"
    objective: Callable[[Any, NDArray[Any]], float] | str | None = field(default=None, repr=False)
    selects_by: str = ""
    seeded: bool = True
    adapt: Callable[[Settings, NDArray[Any]], Settings] | str | None = field(
        default=None, repr=False
    )
    max_rows: int | None = None

    def __post_init__(self) -> None:
        as_choice(self.kind, "kind", ("K given", "K unknown"))
        if not self.grid:
            raise InvalidInputError(f"The grid of {self.name} is empty; ({{}},) means defaults.")
        if not self.selects_by:
            words = "its first settings" if self.objective is None else "its objective"
            object.__setattr__(self, "selects_by", words)

    def estimator(
        self, settings: Settings, n_clusters: int, seed: int, X: NDArray[Any] | None = None
    ) -> Any:
        """Return an unfitted estimator with these settings."""
        if self.adapt is not None and X is not None:
            settings = _named(self.adapt)(settings, X)
        model = _named(self.factory)(**settings)
        known = model.get_params()
        late: Settings = {"random_state": seed} if "random_state" in known else {}
        if self.kind == "K given":
            late["n_clusters" if "n_clusters" in known else "n_components"] = n_clusters
        return model.set_params(**late)

    def judged(self, model: Any, X: NDArray[Any]) -> float:
        """Return the objective of a fitted estimator, NaN without one."""
        if self.objective is None:
            return math.nan
        if not isinstance(self.objective, str) or ":" in self.objective:
            return float(_named(self.objective)(model, X))
        value = getattr(model, self.objective.removeprefix("-"))
        value = value(X) if callable(value) else value
        return float(-value if self.objective.startswith("-") else value)


def _named(function: Callable[..., Any] | str) -> Any:
    return resolve_name(function) if isinstance(function, str) else function


def judge(X: NDArray[Any], y: NDArray[Any], labels: NDArray[Any]) -> dict[str, float | None]:
    """Return the seven scores of clusters against known classes; None if undefined.

    Noise, the label -1 of some methods, counts as one more cluster.

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


def left_out_surprise(model: Any, X: NDArray[Any]) -> float:
    """Return minus the mean log-density of rows under the kernels of all others."""
    from isthmus.bandwidth import left_out_log_density

    return -left_out_log_density(X, model.bandwidth_)


def silhouette_of(model: Any, X: NDArray[Any]) -> float:
    """Return minus the silhouette, NaN for a single cluster."""
    value = silhouette(X, model.labels_)
    return np.nan if value is None else -value


def share_of_widest(settings: Settings, X: NDArray[Any]) -> Settings:
    """Convert a bandwidth from units of the largest standard deviation in any direction.

    At a bandwidth of about one unit, few densities have more than one mode. Scott's rule averages
    over directions: with many features it makes every row a cluster of its own.
    """
    widest = float(np.linalg.norm(X, ord=2)) / np.sqrt(len(X)) or 1.0
    return {"bandwidth": settings["share"] * widest}


def gamma_per_feature(settings: Settings, X: NDArray[Any]) -> Settings:
    """Divide the kernel coefficient by the number of features, which have unit variance."""
    if "gamma" not in settings:
        return settings
    return {**settings, "gamma": settings["gamma"] / X.shape[1]}


_LISTED = tomllib.loads(Path(__file__).with_name("methods.toml").read_text(encoding="utf-8"))
METHODS: dict[str, Method] = {
    name: Method(name, **fields | {"grid": sum((combinations(**c) for c in fields["grid"]), ())})
    for name, fields in _LISTED.items()
}
"""The methods of the study by name, each with its grid of settings."""
