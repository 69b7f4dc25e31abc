"""The clusters of a table: labels and probabilities of its rows, and a summary that prints well."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, replace
from functools import cached_property
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linear_sum_assignment
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.metrics.cluster import contingency_matrix

from isthmus.errors import IsthmusError, ShapeError, UnsupportedOperationError
from isthmus.extras import require
from isthmus.printing import Summarised, aligned, counted, definitions
from isthmus.scaling import Scaling
from isthmus.validation import as_numbers, as_seed

if TYPE_CHECKING:
    import pandas as pd

    from isthmus.cluster.tabular import TableModel

# A row is certain above this probability, and new above the other.
CERTAIN, NEW = 0.9, 0.5
LISTED_CLUSTERS, LISTED_FEATURES, LISTED_ROWS, LISTED_ALTERNATIVES = 25, 3, 8, 3
# A cluster differs in a feature if its mean is this far from the overall mean, in deviations.
DIFFERENT = 0.25
# Above this many clusters, posteriors are columns of the result on request only.
FEW_CLUSTERS = 30
# More rows are not needed to estimate the share on which two fits agree.
REFIT_ROWS = 10_000


@dataclass(frozen=True, repr=False)
class StreamedClusters(Summarised):
    """Totals of the clusters of rows, such as those of a file. ``print`` shows a summary."""

    model: TableModel
    n_rows: int
    sizes: NDArray[np.int64]
    certainty: NDArray[np.float64]
    certain: int
    log_density: float
    notes: tuple[str, ...] = ()

    @classmethod
    def of(cls, rows: TableClusters) -> StreamedClusters:
        """Return the totals of some rows."""
        certainty, size = rows.certainty, len(rows.memories)
        sums: NDArray[Any] = np.bincount(rows.labels, certainty, minlength=size)
        certain, log_density = int((certainty >= CERTAIN).sum()), float(rows.log_density.sum())
        sizes = np.bincount(rows.labels, minlength=size)
        return cls(rows.model, len(rows.X), sizes, sums, certain, log_density)

    def __add__(self, other: StreamedClusters) -> StreamedClusters:
        names = ("n_rows", "sizes", "certainty", "certain", "log_density")
        return replace(self, **{name: getattr(self, name) + getattr(other, name) for name in names})

    @property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        model = self.model
        sure = {
            "mean_certainty": float(self.certainty.sum()) / self.n_rows,
            "share_sure": self.certain / self.n_rows,
        }
        has_posteriors = hasattr(model.estimator, "predict_proba")
        memories = model.scaling.back(model.estimator.cluster_centers_).tolist()
        rows = zip(self.sizes.tolist(), self.certainty.tolist(), memories, strict=True)
        return {
            "rows": self.n_rows,
            "features": len(model.columns),
            "method": model.name,
            "standardised": model.scaling.standardises,
            "n_clusters": len(memories),
            "mean_log_density": self.log_density / self.n_rows,
            **(sure if has_posteriors else {}),
            "clusters": [
                {
                    "cluster": number,
                    "size": size,
                    "share": size / self.n_rows,
                    "certainty": certainty / size if size and has_posteriors else None,
                    "memory": dict(zip(model.columns, memory, strict=True)),
                }
                for number, (size, certainty, memory) in enumerate(rows, 1)
            ],
        }

    def __str__(self) -> str:
        found = self.summary
        facts = {"mean log-density": f"{found['mean_log_density']:.4g}"}
        if found["n_clusters"] > 1:
            facts["certain rows"] = f"{found['share_sure']:.1%} (own cluster above {CERTAIN:g})"
        return _page(found, f"{found['method']}; read in row groups", facts)

    __repr__ = __str__


@dataclass(frozen=True, eq=False, repr=False)
class TableClusters(Summarised):
    """The clusters of the rows X (n, D) of a table, in its units. ``print`` shows a summary."""

    model: TableModel
    X: NDArray[np.float64]
    ids: NDArray[Any]
    classes: NDArray[Any] | None = None
    id_name: str = "row"
    class_name: str = "class"
    refit: bool = True

    def _by_estimator(self, method: str) -> Any:
        """Return what a method of the estimator says about the rows; None if it has none."""
        function = getattr(self.model.estimator, method, None)
        return function and function(self.model.scaling.into(self.X))

    @cached_property
    def labels(self) -> NDArray[np.int64]:
        """The cluster of each row, from 0. (n,)"""
        return self._by_estimator("predict")

    @cached_property
    def posteriors(self) -> NDArray[np.float64] | None:
        """The probability of each cluster (n, K); None for mean shift, which has none."""
        return self._by_estimator("predict_proba")

    @cached_property
    def novelty(self) -> NDArray[np.float64] | None:
        """The probability of belonging to no known cluster (n,); None where K is fixed."""
        return self._by_estimator("novelty")

    @cached_property
    def log_density(self) -> NDArray[np.float64]:
        """The log-density of each row's known values, in the units of the table. (n,)"""
        return self._by_estimator("score_samples") - self.model.scaling.log_volume(self.X)

    @property
    def memories(self) -> NDArray[np.float64]:
        """The centres of the clusters, in the units of the table. (K, D)"""
        return self.model.scaling.back(self.model.estimator.cluster_centers_)

    @property
    def certainty(self) -> NDArray[np.float64]:
        """The probability of each row's own cluster. (n,)"""
        return np.ones(len(self.X)) if self.posteriors is None else np.max(self.posteriors, 1)

    @cached_property
    def refit_agreement(self) -> float | None:
        """The share of rows on which fits to two halves agree; None if there are no such fits."""
        if not self.refit:
            return None
        return refit_agreement(self.model.estimator, self.model.scaling.into(self.X))

    def to_frame(self, posteriors: bool = False) -> pd.DataFrame:
        """Return the ids, the known classes and the results, a row for each row.

        Clusters are numbered from 1. Posteriors p1, p2, ... are included for up to 30 clusters,
        or if `posteriors` asks for them.
        """
        require("pandas")
        import pandas as pd

        results: dict[str, Any] = {"cluster": self.labels + 1}
        if self.posteriors is not None:
            results["certainty"] = self.certainty
        if self.novelty is not None:
            results["novelty"] = self.novelty
        results["log_density"] = self.log_density
        if self.posteriors is not None and (posteriors or self.posteriors.shape[1] <= FEW_CLUSTERS):
            results |= {f"p{place + 1}": one for place, one in enumerate(self.posteriors.T)}
        own = {self.id_name: self.ids}
        if self.classes is not None:
            own[self.class_name] = self.classes
        kept = {f"{name}_given" if name in results else name: each for name, each in own.items()}
        return pd.DataFrame(kept | results)

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        found = StreamedClusters.of(self).summary
        clusters = found.pop("clusters")
        found["missing"] = int(np.isnan(self.X).sum())
        if self.refit_agreement is not None:
            found["refit_agreement"] = self.refit_agreement
        found |= self._resolution()
        if self.novelty is not None:
            order = np.argsort(-self.novelty, kind="stable")
            found["new_rows"] = int((self.novelty > NEW).sum())
            found["new_ids"] = self.ids[order[: min(found["new_rows"], LISTED_ROWS)]].tolist()
        if self.classes is not None:
            import pandas as pd

            words = self.classes.astype(str)
            known = pd.notna(self.classes) & (words != "")
            classes, labels = words[known], self.labels[known]
            found["agreement"] = {
                "label": self.class_name,
                "classes": len(np.unique(classes)),
                "rows": int(known.sum()),
                "ARI": float(adjusted_rand_score(classes, labels)),
                "NMI": float(normalized_mutual_info_score(classes, labels)),
            }
        return found | {"clusters": self._explained(clusters)}

    def _resolution(self) -> dict[str, Any]:
        """Return the resolution and the gap of BasinFlow, and the best other partitions."""
        import pandas as pd

        estimator = self.model.estimator
        if not hasattr(estimator, "gap_curve_"):
            return {}
        curve = pd.DataFrame(estimator.gap_curve_).dropna().astype({"n_clusters": int})
        best = curve.sort_values("gap", ascending=False, kind="stable")
        chosen = (best.resolution == estimator.resolution_) | (
            best.n_clusters == estimator.n_clusters_
        )
        others = best[~chosen].drop_duplicates("n_clusters")
        resolution = float(estimator.resolution_)
        likely = getattr(estimator, "k_probabilities_", np.zeros(0))  # which older files lack
        return {
            "k_probabilities": {
                str(place + 1): float(likely[place]) for place in np.flatnonzero(likely)
            },
            "resolution": None if np.isnan(resolution) else resolution,
            "gap": float(estimator.gap_),
            "chosen_by": getattr(estimator, "chosen_by_", "gap"),  # which older files lack
            "alternatives": others[:LISTED_ALTERNATIVES].to_dict("records"),
        }

    def _explained(self, clusters: list[dict[str, Any]]) -> list[dict[str, Any]]:
        """Add the separation and the distinctive features of each cluster."""
        import pandas as pd

        standard = pd.DataFrame(Scaling.of(self.X).into(self.X), columns=list(self.model.columns))
        means = standard.groupby(self.labels).mean().reindex(range(len(clusters)))
        apart = getattr(self.model.estimator, "separation_", None)
        for number, one in enumerate(clusters):
            features = means.loc[number]
            farthest = features.abs().nlargest(LISTED_FEATURES)
            one["set_apart_by"] = features[farthest[farthest >= DIFFERENT].index].to_dict()
            if apart is not None:
                one["separation"] = float(apart[number]) if np.isfinite(apart[number]) else None
        return clusters

    def __str__(self) -> str:
        found = self.summary
        units = "standardised" if found["standardised"] else "not standardised"
        return _page(found, f"{units}; {found['method']}", self._facts())

    __repr__ = __str__

    def _facts(self) -> dict[str, str]:
        found, facts = self.summary, {}
        several = found["n_clusters"] > 1
        if several and "mean_certainty" in found:
            facts["certainty"] = (
                f"{found['share_sure']:.0%} of rows belong to their cluster with probability "
                f"{CERTAIN} or more; mean {found['mean_certainty']:.3f}"
            )
        agreement = found.get("refit_agreement")
        if agreement is not None and (several or agreement < 1):
            facts["agreement"] = (
                f"fits to two halves of the rows agree on the cluster of {agreement:.0%} of rows"
            )
        # Equal rows make one cluster, whose density is that of the smallest width allowed.
        if several or (self.X[:1] != self.X).any():
            if "gap" in found:
                facts |= self._reasons()
            elif "new_rows" in found:
                facts["clusters"] = f"{found['n_clusters']} is an estimate"
            density = f"{found['mean_log_density']:.2f} nats per row, in the units of the data"
            facts["mean log-density"] = density
        if "new_rows" in found:
            count, ids = found["new_rows"], ", ".join(map(str, found["new_ids"]))
            more = ", ..." if count > len(found["new_ids"]) else ""
            fits = f"{counted(count, 'row')} {'fits' if count == 1 else 'fit'} no cluster well"
            facts["novelty"] = f"{fits}: {ids}{more}" if count else "no row looks new"
        if self.classes is not None:
            match = found["agreement"]
            scores = f"ARI {match['ARI']:.3f}, NMI {match['NMI']:.3f}"
            text = f"{scores} with {match['classes']} classes (not used in the fit)"
            facts[f"against {self.class_name}"] = text
        return facts

    def _reasons(self) -> dict[str, str]:
        """Return why BasinFlow finds so many clusters, and how to get other numbers of them."""
        found, likely = self.summary, self.summary["k_probabilities"]
        alpha, at = f"level {self.model.estimator.alpha:g}", f"resolution {found['resolution']}"
        gap, count = f"{max(found['gap'], 0):.2f}", counted(found["n_clusters"], "mode")
        reason = {
            "n_clusters": "the number of clusters was given",
            "resolution": f"{at} was given",
            "modes": f"the density has {count} ({alpha})",
        }.get(found["chosen_by"], f"the gap to unimodal data is {gap} at {at} ({alpha})")
        if found["chosen_by"] == "gap" and found["resolution"] is None:
            reason = f"no partition stands out from unimodal data (largest gap {gap}; {alpha})"
        others = ", ".join(
            f"{counted(one['n_clusters'], 'cluster')} at {one['resolution']:.2g} "
            f"(gap {one['gap']:.2f})"
            for one in found["alternatives"]
        )
        facts = {"number of clusters": reason + f"; other resolutions: {others}" * bool(others)}
        if likely and found["chosen_by"] in ("gap", "modes"):
            order = sorted(likely, key=lambda size: -likely[size])[:LISTED_ALTERNATIVES]
            facts["probabilities"] = ", ".join(
                f"{counted(int(size), 'cluster')} {likely[size]:.2f}" for size in order
            )
        return facts


def _page(found: dict[str, Any], how: str, facts: dict[str, str]) -> str:
    """Return the text of a summary: a title, an aligned table of clusters, and facts."""
    gaps = f", {counted(found['missing'], 'value')} missing" if found.get("missing") else ""
    size = f"{counted(found['rows'], 'row')}, {counted(found['features'], 'feature')}{gaps}"
    clusters = found["clusters"]
    several, described = len(clusters) > 1, "set_apart_by" in clusters[0]
    apart = several and "separation" in clusters[0]
    head = ("cluster", "rows", "share", *["certainty"] * several, *["separation"] * apart)
    lines = [[*head, *["differs in (standard deviations)"] * described]]
    for one in clusters[:LISTED_CLUSTERS]:
        line = [str(one["cluster"]), f"{one['size']:,}", f"{one['share']:.1%}"]
        if several:
            line.append("-" if one["certainty"] is None else f"{one['certainty']:.3f}")
        if apart:
            line.append("full" if one["separation"] is None else f"{one['separation']:.3g}")
        if described:
            features = [f"{name[:28]} {far:+.1f}" for name, far in one["set_apart_by"].items()]
            line.append(", ".join(features) or "-")
        lines.append(line)
    more = len(clusters) - LISTED_CLUSTERS
    return "\n".join(
        [
            f"{counted(found['n_clusters'], 'cluster')} in {size} ({how})",
            "",
            *aligned(lines, left=(len(head),)),
            *[f"... and {more} more clusters"] * (more > 0),
            "",
            *definitions(facts),
        ]
    )


def refit_agreement(estimator: Any, X: NDArray[Any], *, seed: int = 0) -> float | None:
    """Return the share of rows on which fits to two random halves of the rows agree.

    Every row is new to one of the two fits, and clusters are matched one to one. The share shows
    whether other rows of the same source would give the same clusters. It is None if a half cannot
    be fitted, for example because it has fewer rows than clusters.

    Parameters
    ----------
    estimator : clusterer with `fit` and `predict`
        It is cloned.
    X : array (n, D)
        Of more than 10,000 rows, a random sample is used.
    seed : int
        Decides the halves.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAMELBO, refit_agreement
    >>> rng = np.random.default_rng(0)
    >>> blob = rng.normal(size=(300, 2))
    >>> refit_agreement(ClAMELBO(2, random_state=0), np.concatenate([blob, blob + 9]))
    1.0
    >>> refit_agreement(ClAMELBO(9, random_state=0), blob) < 0.8
    True
    """
    if not (hasattr(estimator, "fit") and hasattr(estimator, "predict")):
        raise UnsupportedOperationError("estimator must be a clusterer with fit and predict.")
    X = as_numbers(X, "X")
    if X.ndim != 2:
        raise ShapeError(f"X must be a table (n, D), not {X.shape}.")
    rows = X[np.random.default_rng(as_seed(seed)).permutation(len(X))[:REFIT_ROWS]]
    halves = rows[::2], rows[1::2]
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", ConvergenceWarning)
            first, second = (clone(estimator).fit(half).predict(rows) for half in halves)
    except (IsthmusError, ValueError):
        return None
    shared = contingency_matrix(first, second)
    return float(shared[linear_sum_assignment(shared, maximize=True)].sum() / len(rows))
