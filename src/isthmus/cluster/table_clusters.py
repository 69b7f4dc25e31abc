"""The clusters of a table: labels and probabilities of its rows, and a summary that prints well."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

from isthmus.printing import aligned, counted, definitions
from isthmus.scaling import Scaling

__all__ = ["TableClusters"]

# A row is certain above this probability, and new above the other.
CERTAIN, NEW = 0.9, 0.5
LISTED_CLUSTERS, LISTED_FEATURES, LISTED_ROWS = 25, 3, 8
# A cluster differs in a feature if its mean is this far from the overall mean, in deviations.
DIFFERENT = 0.25
# Above this many clusters, posteriors are columns of the result on request only.
FEW_CLUSTERS = 30


@dataclass(frozen=True, eq=False, repr=False)
class TableClusters:
    """The clusters of the rows of a table. ``print`` shows a summary.

    Attributes
    ----------
    X : ndarray (n, D)
        The rows, in the units of the table.
    columns : tuple of str
    estimator : str
        The name of the estimator.
    scaling : Scaling
    ids : ndarray (n,)
    labels : ndarray (n,)
        From 0.
    posteriors : ndarray (n, K) or None
        None for mean shift, which has none.
    novelty : ndarray (n,) or None
        The probability of belonging to no known cluster; None where K is fixed.
    log_density : ndarray (n,)
        Of each row's known values, in the units of the table.
    memories : ndarray (K, D)
        In the units of the table.
    classes : ndarray (n,) or None
        Known classes, empty where unknown.
    id_name, class_name : str
    """

    X: NDArray[np.float64]
    columns: tuple[str, ...]
    estimator: str
    scaling: Scaling
    ids: NDArray[Any]
    labels: NDArray[np.int64]
    posteriors: NDArray[np.float64] | None
    novelty: NDArray[np.float64] | None
    log_density: NDArray[np.float64]
    memories: NDArray[np.float64]
    classes: NDArray[Any] | None = None
    id_name: str = "row"
    class_name: str = "class"

    @property
    def certainty(self) -> NDArray[np.float64]:
        """The probability of each row's own cluster. (n,)"""
        if self.posteriors is None:
            return np.ones(len(self.labels))
        best: NDArray[np.float64] = self.posteriors.max(1)
        return best

    def to_columns(self, posteriors: bool = False) -> dict[str, Any]:
        """Return the ids, the known classes and the results as columns (n,) by name.

        Clusters are numbered from 1. Posteriors p1, p2, ... are included for up to 30 clusters,
        or if `posteriors` asks for them.
        """
        results: dict[str, Any] = {"cluster": self.labels + 1}
        if self.posteriors is not None:
            results["certainty"] = self.certainty
        if self.novelty is not None:
            results["novelty"] = self.novelty
        results["log_density"] = self.log_density
        if self.posteriors is not None and (posteriors or len(self.memories) <= FEW_CLUSTERS):
            for number, share in enumerate(self.posteriors.T, 1):
                results[f"p{number}"] = share
        own: dict[str, Any] = {self.id_name: self.ids}
        if self.classes is not None:
            own[self.class_name] = self.classes
        return {
            f"{name}_given" if name in results else name: values for name, values in own.items()
        } | results

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The contents of the printed summary as plain numbers and words, for JSON."""
        found: dict[str, Any] = {
            "rows": len(self.X),
            "features": self.X.shape[1],
            "missing": int(np.isnan(self.X).sum()),
            "method": self.estimator,
            "standardised": self.scaling.standardises,
            "n_clusters": len(self.memories),
            "mean_log_density": float(self.log_density.mean()),
        }
        if self.posteriors is not None:
            found["mean_certainty"] = float(self.certainty.mean())
            found["share_sure"] = float((self.certainty >= CERTAIN).mean())
        if self.novelty is not None:
            new = np.flatnonzero(self.novelty > NEW)
            new = new[np.argsort(-self.novelty[new], kind="stable")]
            found["new_rows"] = len(new)
            found["new_ids"] = self.ids[new[:LISTED_ROWS]].tolist()
        if self.classes is not None:
            found["agreement"] = self._agreement(self.classes)
        found["clusters"] = [self._cluster(number) for number in range(len(self.memories))]
        return found

    def _cluster(self, number: int) -> dict[str, Any]:
        own = self.labels == number
        size = int(own.sum())
        sure = size > 0 and self.posteriors is not None
        return {
            "cluster": number + 1,
            "size": size,
            "share": size / len(self.X),
            "certainty": float(self.certainty[own].mean()) if sure else None,
            "set_apart_by": self._differences(own),
            "memory": dict(zip(self.columns, self.memories[number].tolist(), strict=True)),
        }

    def _differences(self, own: NDArray[np.bool_]) -> dict[str, float]:
        """Return the features whose mean is farthest from that of all rows, in deviations."""
        known = ~np.isnan(self._standard[own])
        means = np.where(known, self._standard[own], 0.0).sum(0) / np.maximum(known.sum(0), 1)
        largest = np.argsort(-np.abs(means), kind="stable")[:LISTED_FEATURES]
        return {
            self.columns[place]: float(means[place])
            for place in largest
            if abs(means[place]) >= DIFFERENT
        }

    @cached_property
    def _standard(self) -> NDArray[np.float64]:
        empty = np.isnan(self.X).all(0).any()
        return self.X if empty else Scaling.of(self.X).into(self.X)

    def _agreement(self, classes: NDArray[Any]) -> dict[str, Any]:
        """Compare with known classes; rows without one do not count."""
        known = np.array([str(value) != "" for value in classes])
        labels = self.labels[known]
        return {
            "label": self.class_name,
            "classes": len(np.unique(classes[known])),
            "rows": int(known.sum()),
            "ARI": float(adjusted_rand_score(classes[known], labels)),
            "NMI": float(normalized_mutual_info_score(classes[known], labels)),
        }

    def __str__(self) -> str:
        summary = self.summary
        lines = [_opening(summary), "", *_cluster_lines(summary["clusters"]), ""]
        return "\n".join([*lines, *definitions(_facts(summary))])

    __repr__ = __str__


def _opening(summary: dict[str, Any]) -> str:
    words = f"{counted(summary['rows'], 'row')}, {counted(summary['features'], 'feature')}"
    if summary["missing"]:
        words += f", {counted(summary['missing'], 'value')} missing"
    units = "standardised" if summary["standardised"] else "not standardised"
    clusters = counted(summary["n_clusters"], "cluster")
    return f"{clusters} in {words} ({units}; {summary['method']})"


def _facts(summary: dict[str, Any]) -> dict[str, str]:
    """Return the lines below the table of clusters."""
    facts = {}
    if "mean_certainty" in summary:
        text = f"{summary['share_sure']:.0%} of rows belong to their cluster with probability"
        text = f"{text} {CERTAIN} or more; mean {summary['mean_certainty']:.3f}"
        facts["certainty"] = text
    if summary["method"].startswith("ClAMCRP"):
        text = f"{summary['n_clusters']} is an estimate; data without groups may be split, too"
        facts["clusters"] = text
    density = f"{summary['mean_log_density']:.2f} nats per row, in the units of the data"
    facts["mean log-density"] = density
    if "new_rows" in summary:
        count, ids = summary["new_rows"], summary["new_ids"]
        text = "no row looks new"
        if count:
            listed = ", ".join(map(str, ids)) + (", ..." if count > len(ids) else "")
            text = f"{count} {'rows fit' if count > 1 else 'row fits'} no cluster well: {listed}"
        facts["novelty"] = text
    if "agreement" in summary:
        match = summary["agreement"]
        text = f"ARI {match['ARI']:.3f}, NMI {match['NMI']:.3f} with {match['classes']} classes"
        facts[f"against {match['label']}"] = f"{text} (not used in the fit)"
    return facts


def _cluster_lines(clusters: list[dict[str, Any]]) -> list[str]:
    """Return an aligned table with a line for each cluster."""
    sure = any(cluster["certainty"] is not None for cluster in clusters)
    rows = [
        [
            "cluster",
            "rows",
            "share",
            *(["certainty"] if sure else []),
            "differs in (standard deviations)",
        ]
    ]
    for one in clusters[:LISTED_CLUSTERS]:
        certainty = "-" if one["certainty"] is None else f"{one['certainty']:.3f}"
        differences = [f"{_clipped(name)} {far:+.1f}" for name, far in one["set_apart_by"].items()]
        rows.append(
            [
                str(one["cluster"]),
                f"{one['size']:,}",
                f"{one['share']:.1%}",
                *([certainty] if sure else []),
                ", ".join(differences) or "-",
            ]
        )
    lines = aligned(rows, left=(len(rows[0]) - 1,))
    if len(clusters) > LISTED_CLUSTERS:
        lines.append(f"... and {len(clusters) - LISTED_CLUSTERS} more clusters")
    return lines


def _clipped(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."
