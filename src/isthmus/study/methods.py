"""The methods of the study: each has a name, an estimator and a grid of settings."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from itertools import product
from pkgutil import resolve_name
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from isthmus.errors import InvalidInputError
from isthmus.validation import as_choice

Kind = Literal["K given", "K unknown"]
Settings = dict[str, Any]


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
    objective : callable, optional
        ``objective(fitted, X)``, lower is better: the method's own criterion, which does not use
        labels. Without one, the selected fit is that of the first settings.
    selects_by : str
        Name of the criterion, for the tables.
    seeded : bool
        False if the result does not depend on a seed; the method is then run with one only.
    adapt : callable, optional
        ``adapt(settings, X)`` converts settings relative to the data into absolute ones.
    max_rows : int, optional
        Largest number of rows: a fixed random subsample of larger datasets is used.

    Examples
    --------
    >>> from sklearn.cluster import Birch
    >>> from isthmus.study import Method, combinations
    >>> birch = Method("Birch", Birch, combinations(threshold=[0.5, 0.3, 0.7]), seeded=False)
    >>> birch.estimator({"threshold": 0.3}, n_clusters=4, seed=0)
    Birch(n_clusters=4, threshold=0.3)
    """

    name: str
    factory: Callable[..., Any] | str
    grid: tuple[Settings, ...] = field(default=({},), repr=False)
    kind: Kind = "K given"
    objective: Callable[[Any, NDArray[Any]], float] | None = field(default=None, repr=False)
    selects_by: str = ""
    seeded: bool = True
    adapt: Callable[[Settings, NDArray[Any]], Settings] | None = field(default=None, repr=False)
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
            settings = self.adapt(settings, X)
        factory = resolve_name(self.factory) if isinstance(self.factory, str) else self.factory
        model = factory(**settings)
        known = model.get_params()
        late: Settings = {"random_state": seed} if "random_state" in known else {}
        if self.kind == "K given":
            word = "n_clusters" if "n_clusters" in known else "n_components"
            late[word] = n_clusters
        return model.set_params(**late)


def _left_out_surprise(model: Any, X: NDArray[Any]) -> float:
    from isthmus.memories.bandwidth import left_out_log_density

    return -left_out_log_density(X, model.bandwidth_)


def _share_of_widest(settings: Settings, X: NDArray[Any]) -> Settings:
    """Convert a bandwidth from units of the largest standard deviation in any direction.

    At a bandwidth of about one unit, few densities have more than one mode. Scott's rule averages
    over directions: with many features it makes every row a cluster of its own.
    """
    widest = float(np.linalg.norm(X, ord=2)) / np.sqrt(len(X)) or 1.0
    return {"bandwidth": settings["share"] * widest}


def _gamma_per_feature(settings: Settings, X: NDArray[Any]) -> Settings:
    """Divide the kernel coefficient by the number of features, which have unit variance."""
    if "gamma" not in settings:
        return settings
    return {**settings, "gamma": settings["gamma"] / X.shape[1]}


def _clam(name: str, grid: tuple[Settings, ...], selects_by: str, kind: Kind = "K given") -> Method:
    """Return a clusterer of isthmus, which has an objective of its own."""
    factory = f"isthmus.cluster:{name.replace('+', '')}"
    return Method(name, factory, grid, kind, lambda model, X: model.objective_, selects_by)


def _silhouette(model: Any, X: NDArray[Any]) -> float:
    """Return the silhouette with its sign turned; NaN for a single cluster."""
    from isthmus.study.fitting import silhouette

    value = silhouette(X, model.labels_)
    return np.nan if value is None else -value


_CRP_GRID = combinations(alpha=[1.0, 0.01, 0.1, 10.0], discount=[0.0, 0.25])

# Fits over all these numbers of clusters, as the violins of the paper show them.
_SWEEP = {"n_clusters": [8, 2, 3, 5, 12, 16, 24, 40]}
_BY_SILHOUETTE: dict[str, Any] = {"objective": _silhouette, "selects_by": "silhouette"}

# Grids of eight settings each: diverse, and about the same number of fits, as in the paper. That of
# Saha et al. is their own, of which a run may take eight.
METHODS: dict[str, Method] = {
    method.name: method
    for method in (
        _clam(
            "ClAM",
            combinations(
                schedule=["fixed", "annealed"],
                learning_rate=[0.01, 0.03],
                weights=["uniform", "learned"],
            ),
            "reconstruction error",
        ),
        _clam(
            "ClAM+ELBO",
            combinations(
                weights=["uniform", "learned"], init=["k-means", "k-means++"], n_init=[10, 1]
            ),
            "ELBO",
        ),
        Method(
            "ClAM (Saha et al.)",
            "isthmus.study.estimators:SahaClAM",
            combinations(
                mask_value=["mean", "min", "max"],
                learning_rate=[0.01, 0.1, 0.001],
                beta=[1.1, 1.5, 1.9, 2.4],
            ),
            **_BY_SILHOUETTE,
        ),
        Method(
            "ClAM+ELBO (random start)",
            "isthmus.cluster:ClAMELBO",
            combinations(weights=["uniform", "learned"], n_init=[10, 1], init=["random"]),
            objective=lambda model, X: model.objective_,
            selects_by="ELBO",
        ),
        Method(
            "KMeans",
            "sklearn.cluster:KMeans",
            combinations(n_init=[10, 1, 3, 30], init=["k-means++", "random"]),
            objective=lambda model, X: model.inertia_,
            selects_by="inertia",
        ),
        Method(
            "GaussianMixture",
            "sklearn.mixture:GaussianMixture",
            combinations(
                covariance_type=["full", "tied", "diag", "spherical"], reg_covar=[1e-3, 1e-1]
            ),
            objective=lambda model, X: model.bic(X),
            selects_by="BIC",
        ),
        Method(
            "Agglomerative",
            "sklearn.cluster:AgglomerativeClustering",
            (
                *combinations(linkage=["ward", "average", "complete", "single"]),
                *combinations(metric=["l1", "cosine"], linkage=["average", "complete"]),
            ),
            seeded=False,
        ),
        Method(
            "Spectral",
            "sklearn.cluster:SpectralClustering",
            (
                *combinations(affinity=["nearest_neighbors"], n_neighbors=[10, 5, 20, 40]),
                *combinations(affinity=["rbf"], gamma=[1.0, 0.3, 3.0, 10.0]),
            ),
            adapt=_gamma_per_feature,
            max_rows=3000,
        ),
        _clam("ClAM+CRP", _CRP_GRID, "log evidence", "K unknown"),
        _clam("ClAM+CRP+ELBO", _CRP_GRID, "log evidence", "K unknown"),
        Method(
            "GaussianMeanShift",
            "isthmus.cluster:GaussianMeanShift",
            combinations(share=[0.5, 0.2, 0.3, 0.4, 0.6, 0.65, 0.7, 0.8]),
            "K unknown",
            objective=_left_out_surprise,
            selects_by="left-out likelihood",
            seeded=False,
            adapt=_share_of_widest,
        ),
        Method(
            "BayesianGaussianMixture",
            "sklearn.mixture:BayesianGaussianMixture",
            combinations(
                covariance_type=["full", "diag"],
                weight_concentration_prior=[1e-1, 1e-3, 1.0, 1e2],
                n_components=[30],
                reg_covar=[1e-3],
                max_iter=[300],
            ),
            "K unknown",
            objective=lambda model, X: -model.lower_bound_,
            selects_by="ELBO",
        ),
        Method(
            "HDBSCAN",
            "sklearn.cluster:HDBSCAN",
            combinations(
                min_cluster_size=[5, 10, 20, 50],
                cluster_selection_method=["eom", "leaf"],
                copy=[True],
            ),
            "K unknown",
            seeded=False,
        ),
        Method(
            "DP-means",
            "isthmus.study.estimators:DPMeans",
            combinations(penalty=[1.0, 0.25, 0.5, 0.75, 1.5, 2.0, 3.0, 5.0]),
            "K unknown",
        ),
        Method(
            "KMeans over K",
            "sklearn.cluster:KMeans",
            combinations(**_SWEEP, n_init=[10]),
            "K unknown",
            **_BY_SILHOUETTE,
        ),
        Method(
            "GaussianMixture over K",
            "sklearn.mixture:GaussianMixture",
            combinations(
                n_components=_SWEEP["n_clusters"], covariance_type=["diag"], reg_covar=[1e-3]
            ),
            "K unknown",
            objective=lambda model, X: model.bic(X),
            selects_by="BIC",
        ),
        Method(
            "ClAM+ELBO over K",
            "isthmus.cluster:ClAMELBO",
            combinations(**_SWEEP),
            "K unknown",
            **_BY_SILHOUETTE,
        ),
        Method(
            "ClAM (Saha et al.) over K",
            "isthmus.study.estimators:SahaClAM",
            combinations(**_SWEEP),
            "K unknown",
            **_BY_SILHOUETTE,
        ),
    )
}
"""The methods of the study by name, each with its grid of settings."""
