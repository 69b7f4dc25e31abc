"""What clusters of a table are told as: numbers for machines, and a page for people."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from isthmus.cli.models import Scaling, TableModel
from isthmus.cli.outputs import counted
from isthmus.cli.tables import Table

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

__all__ = ["Clusters", "agreement", "report", "summarise"]

# A row is called sure above this probability, and new above the other.
SURE, NEW = 0.9, 0.5
LISTED_CLUSTERS, LISTED_FEATURES, LISTED_ROWS = 25, 3, 8
# A mean this far from that of all rows, in standard deviations, sets a cluster apart.
APART = 0.25


@dataclass(frozen=True)
class Clusters:
    """What a model says about the rows of a table.

    Attributes
    ----------
    labels : ndarray (n,)
        From 0.
    posteriors : ndarray (n, K) or None
        None for mean shift, which has none.
    novelty : ndarray (n,) or None
        The probability of belonging to no known cluster; None where K is fixed.
    log_density : ndarray (n,)
        In the units of the table: of a row's known values.
    memories : ndarray (K, D)
        In the units of the table.
    """

    labels: NDArray[np.int64]
    posteriors: NDArray[np.float64] | None
    novelty: NDArray[np.float64] | None
    log_density: NDArray[np.float64]
    memories: NDArray[np.float64]

    @property
    def certainty(self) -> NDArray[np.float64]:
        """The probability of each row's own cluster. (n,)"""
        import numpy as np

        if self.posteriors is None:
            return np.ones(len(self.labels))
        best: NDArray[np.float64] = self.posteriors.max(1)
        return best


def summarise(
    table: Table, X: NDArray[np.float64], model: TableModel, found: Clusters
) -> dict[str, Any]:
    """Everything that the report says, as plain numbers and words."""
    import numpy as np

    memories = found.memories
    sizes = np.bincount(found.labels, minlength=len(memories))
    summary: dict[str, Any] = {
        "rows": len(X),
        "features": X.shape[1],
        "missing": int(np.isnan(X).sum()),
        "method": model.name,
        "standardised": bool((model.scaling.scale != 1).any() or (model.scaling.centre != 0).any()),
        "n_clusters": len(memories),
        "mean_log_density": float(found.log_density.mean()),
    }
    if found.posteriors is not None:
        summary["mean_certainty"] = float(found.certainty.mean())
        summary["share_sure"] = float((found.certainty >= SURE).mean())
    if found.novelty is not None:
        new = np.flatnonzero(found.novelty > NEW)
        new = new[np.argsort(-found.novelty[new], kind="stable")]
        summary["new_rows"] = len(new)
        summary["new_ids"] = table.ids[new[:LISTED_ROWS]].tolist()
    if table.label is not None:
        summary["agreement"] = agreement(table, found.labels)
    apart = _set_apart(X, found.labels, len(memories), model.columns)
    summary["clusters"] = [
        {
            "cluster": number + 1,
            "size": int(size),
            "share": float(size / len(X)),
            "certainty": float(found.certainty[found.labels == number].mean())
            if size and found.posteriors is not None
            else None,
            "set_apart_by": apart[number],
            "memory": dict(zip(model.columns, memories[number].tolist(), strict=True)),
        }
        for number, size in enumerate(sizes)
    ]
    return summary


def _set_apart(
    X: NDArray[np.float64], labels: NDArray[np.int64], clusters: int, columns: tuple[str, ...]
) -> list[dict[str, float]]:
    """Of each cluster, the features whose mean is farthest from all rows', and how far."""
    import numpy as np

    Z = Scaling.of(X, standardise=True).into(X) if not np.isnan(X).all(0).any() else X
    known = ~np.isnan(Z)
    filled = np.where(known, Z, 0.0)
    found = []
    for number in range(clusters):
        own = labels == number
        means = filled[own].sum(0) / np.maximum(known[own].sum(0), 1)
        largest = np.argsort(-np.abs(means), kind="stable")[:LISTED_FEATURES]
        found.append({columns[j]: float(means[j]) for j in largest if abs(means[j]) >= APART})
    return found


def agreement(table: Table, labels: NDArray[np.int64]) -> dict[str, Any]:
    """How clusters agree with the classes that are known; rows without one do not count."""
    import numpy as np
    from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score

    assert table.label is not None
    known = np.array([str(value) != "" for value in table.label])
    classes = table.label[known]
    return {
        "label": table.label_name,
        "classes": len(np.unique(classes)),
        "rows": int(known.sum()),
        "ARI": float(adjusted_rand_score(classes, labels[known])),
        "NMI": float(normalized_mutual_info_score(classes, labels[known])),
    }


def report(summary: dict[str, Any]) -> str:
    """The summary as a person reads it."""
    lines = [_opening(summary), "", *_cluster_lines(summary["clusters"]), ""]
    facts: list[tuple[str, str]] = []
    if "mean_certainty" in summary:
        words = f"{summary['share_sure']:.0%} of rows are in their cluster with probability {SURE}"
        facts.append(("how sure", f"{words} or more; {summary['mean_certainty']:.3f} on average"))
    if summary["method"].startswith("ClAMCRP"):
        words = f"{summary['n_clusters']} is a suggestion: rows without groups are split as well"
        facts.append(("how many", words))
    density = f"{summary['mean_log_density']:.2f} nats per row, in the units of the data"
    facts.append(("mean log-density", density))
    if "new_rows" in summary:
        count, ids = summary["new_rows"], summary["new_ids"]
        words = "no row looks new"
        if count:
            listed = ", ".join(map(str, ids)) + (", ..." if count > len(ids) else "")
            fit_none = "rows fit" if count > 1 else "row fits"
            words = f"{count} {fit_none} no cluster well: {listed}"
        facts.append(("novelty", words))
    if "agreement" in summary:
        match = summary["agreement"]
        words = f"ARI {match['ARI']:.3f}, NMI {match['NMI']:.3f} with {match['classes']} classes"
        facts.append((f"against {match['label']}", f"{words} (not used in the fit)"))
    names = {"output": "rows", "plot": "figure", "model": "model"}
    facts += [(f"{names[key]} written to", summary[key]) for key in names if key in summary]
    width = max(len(name) for name, _ in facts)
    lines += [f"{name:<{width}}  {words}" for name, words in facts]
    return "\n".join(lines) + "\n"


def _opening(summary: dict[str, Any]) -> str:
    count = summary["n_clusters"]
    words = f"{counted(summary['rows'], 'row')}, {counted(summary['features'], 'feature')}"
    if summary["missing"]:
        words += f", {counted(summary['missing'], 'value')} missing"
    units = "standardised" if summary["standardised"] else "as they are"
    return f"{counted(count, 'cluster')} in {words} ({units}; {summary['method']})"


def _cluster_lines(clusters: list[dict[str, Any]]) -> list[str]:
    """An aligned table, a cluster a line."""
    sure = clusters[0]["certainty"] is not None or any(c["certainty"] for c in clusters)
    head = ["cluster", "rows", "share", *(["certainty"] if sure else [])]
    cells = [
        [
            str(cluster["cluster"]),
            f"{cluster['size']:,}",
            f"{cluster['share']:.1%}",
            *([_probability(cluster["certainty"])] if sure else []),
        ]
        for cluster in clusters[:LISTED_CLUSTERS]
    ]
    widths = [max(map(len, column)) for column in zip(head, *cells, strict=True)]
    lines = []
    for row, cluster in zip([head, *cells], [None, *clusters[:LISTED_CLUSTERS]], strict=True):
        words = "set apart by (in standard deviations)"
        if cluster is not None:
            apart = cluster["set_apart_by"]
            words = ", ".join(f"{_clipped(name)} {far:+.1f}" for name, far in apart.items())
        numbers = "  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True))
        lines.append(f"{numbers}  {words or '-'}")
    if len(clusters) > LISTED_CLUSTERS:
        lines.append(f"... and {len(clusters) - LISTED_CLUSTERS} more clusters (all in --json)")
    return lines


def _probability(value: float | None) -> str:
    return "-" if value is None or math.isnan(value) else f"{value:.3f}"


def _clipped(name: str, most: int = 28) -> str:
    return name if len(name) <= most else name[: most - 3] + "..."
