"""Scores of a partition: four that use the labels, three that do not."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

LABELLED = ("rand", "ari", "ami", "nmi")
UNLABELLED = ("calinski_harabasz", "davies_bouldin", "silhouette")
METRICS = (*LABELLED, *UNLABELLED)
LOWER_IS_BETTER = frozenset({"davies_bouldin"})
BOUNDED = frozenset({*LABELLED, "silhouette"})
"""Scores with a common scale, for which a difference of 0.02 has a meaning."""

# The silhouette compares all pairs; for more rows than this, a fixed subsample is used.
SILHOUETTE_ROWS = 2000


def judge(X: NDArray[Any], y: NDArray[Any], labels: NDArray[Any]) -> dict[str, float | None]:
    """Return the seven scores of a partition; None if undefined, as with one cluster.

    Parameters
    ----------
    X : ndarray (n, D)
    y : ndarray (n,)
        The known classes.
    labels : ndarray (n,)
        The clusters. Noise, the label -1 of some methods, counts as one more cluster.

    Examples
    --------
    >>> import numpy as np
    >>> X, y = np.array([[0.0], [0.1], [5.0], [5.1]]), np.array([0, 0, 1, 1])
    >>> scores = judge(X, y, 1 - y)
    >>> scores["ari"], round(scores["silhouette"], 2)
    (1.0, 0.98)
    """
    from sklearn import metrics

    scores: dict[str, float | None] = {
        "rand": float(metrics.rand_score(y, labels)),
        "ari": float(metrics.adjusted_rand_score(y, labels)),
        "ami": float(metrics.adjusted_mutual_info_score(y, labels)),
        "nmi": float(metrics.normalized_mutual_info_score(y, labels)),
    }
    clusters = len(np.unique(labels))
    sensible = 2 <= clusters < len(X)
    scores["calinski_harabasz"] = _finite(metrics.calinski_harabasz_score, X, labels, sensible)
    scores["davies_bouldin"] = _finite(metrics.davies_bouldin_score, X, labels, sensible)
    if len(X) > SILHOUETTE_ROWS:
        kept = np.random.default_rng(0).permutation(len(X))[:SILHOUETTE_ROWS]
        X, labels = X[kept], labels[kept]
        sensible = 2 <= len(np.unique(labels)) < len(X)
    scores["silhouette"] = _finite(metrics.silhouette_score, X, labels, sensible)
    return scores


def _finite(score: Any, X: NDArray[Any], labels: NDArray[Any], sensible: bool) -> float | None:
    value = float(score(X, labels)) if sensible else np.nan
    return value if np.isfinite(value) else None
