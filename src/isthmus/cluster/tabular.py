"""Clusters of a table: an estimator with the names and the scaling of the columns it learned."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open

from isthmus.cluster.clam import ClAM
from isthmus.cluster.crp import ClAMCRP, ClAMCRPELBO
from isthmus.cluster.elbo import ClAMELBO
from isthmus.cluster.mean_shift import GaussianMeanShift
from isthmus.cluster.table_clusters import TableClusters
from isthmus.errors import InvalidInputError
from isthmus.printing import listed
from isthmus.scaling import Scaling, as_table
from isthmus.validation import as_choice

__all__ = ["METHODS", "TableModel"]

METHODS: dict[str, Any] = {
    "crp": ClAMCRP,
    "crp-elbo": ClAMCRPELBO,
    "elbo": ClAMELBO,
    "clam": ClAM,
    "mean-shift": GaussianMeanShift,
}
"""Estimators by the names that `isthmus cluster --method` takes."""

# Methods that find the number of clusters, and those that need it.
FINDS_K, NEEDS_K = ("crp", "crp-elbo"), ("elbo", "clam")
SAVED = {kind.__name__: kind for kind in METHODS.values() if kind is not GaussianMeanShift}


@dataclass(frozen=True)
class TableModel:
    """A fitted estimator, the scaling that it was fitted in, and the names of its columns.

    Attributes
    ----------
    estimator : ClAM, ClAMELBO, ClAMCRP, ClAMCRPELBO or GaussianMeanShift
        Fitted in standard units.
    scaling : Scaling
    columns : tuple of str
    notes : tuple of str
        Remarks on the table, such as columns that are constant.

    Examples
    --------
    >>> from isthmus.cluster import TableModel
    >>> X = [[1.0, 10.0], [1.1, 11.0], [5.0, 90.0], [5.2, 93.0]]
    >>> model = TableModel.fit(X, columns=["height", "weight"], n_clusters=2)
    >>> print(model.describe(X))
    2 clusters in 4 rows, 2 features (standardised; ClAMELBO)
    ...
    """

    estimator: Any
    scaling: Scaling
    columns: tuple[str, ...]
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the estimator."""
        return type(self.estimator).__name__

    @classmethod
    def fit(
        cls,
        X: Any,
        *,
        columns: Sequence[str] | None = None,
        method: str | None = None,
        n_clusters: int | None = None,
        alpha: float | None = None,
        bandwidth: float | None = None,
        standardise: bool = True,
        random_state: int = 0,
        verbose: int = 0,
    ) -> TableModel:
        """Fit an estimator to a table, by default in standard units.

        Parameters
        ----------
        X : array or data frame (n, D)
            NaN marks missing values, which every method but "mean-shift" allows.
        columns : sequence of str, optional
            Default: the names of a data frame, else x1, x2, ...
        method : {"crp", "crp-elbo", "elbo", "clam", "mean-shift"}, optional
            Default: "elbo" if `n_clusters` is given, else "crp".
        n_clusters : int, optional
            Needed by "elbo" and "clam".
        alpha : float, optional
            Concentration of "crp" and "crp-elbo".
        bandwidth : float, optional
            Of "mean-shift". Default: Scott's rule.
        standardise : bool
            Fit to columns of mean 0 and variance 1.
        random_state, verbose : int
            Passed to the estimator.
        """
        rows, names = as_table(X, columns)
        if method is None:
            method = "crp" if n_clusters is None else "elbo"
        method = as_choice(method, "method", METHODS)
        _check_settings(method, rows, n_clusters, alpha, bandwidth)
        given = {"n_clusters": n_clusters, "alpha": alpha, "bandwidth": bandwidth}
        options: dict[str, Any] = {name: one for name, one in given.items() if one is not None}
        if method != "mean-shift":
            options |= {"random_state": random_state, "verbose": verbose}
        scaling = Scaling.of(rows, standardise)
        estimator = METHODS[method](**options).fit(scaling.into(rows))
        if method != "mean-shift":
            estimator.set_params(verbose=0)
        notes = [*_constant_columns(rows, names), *(_binary_columns(rows, names, standardise))]
        return cls(estimator, scaling, names, tuple(notes))

    def select(self, X: Any, columns: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Return the columns that the model knows, in its order. (n, E) -> (n, D)

        A table of D columns without names has the columns of the model.
        """
        named = columns is not None or hasattr(X, "columns")
        rows, names = as_table(X, columns)
        if not named and len(names) == len(self.columns):
            return rows
        absent = [name for name in self.columns if name not in names]
        if absent:
            raise InvalidInputError(
                f"The table has no column of numbers called {', '.join(map(repr, absent[:5]))}, "
                "which the model learned from."
            )
        return rows[:, [names.index(name) for name in self.columns]]

    def describe(
        self,
        X: Any,
        *,
        columns: Sequence[str] | None = None,
        ids: Any = None,
        classes: Any = None,
        id_name: str = "row",
        class_name: str = "class",
    ) -> TableClusters:
        """Return the cluster, its probability and the density of each row of a table.

        Parameters
        ----------
        X : array or data frame (n, E)
            Contains the columns of the model, in any order.
        columns : sequence of str, optional
            Default: the names of a data frame, else those of the model.
        ids : array (n,), optional
            Default: 1, 2, ...
        classes : array (n,), optional
            Known classes to compare with; empty where unknown.
        id_name, class_name : str
        """
        rows = self.select(X, columns)
        Z = self.scaling.into(rows)
        proba = getattr(self.estimator, "predict_proba", None)
        novelty = getattr(self.estimator, "novelty", None)
        return TableClusters(
            X=rows,
            columns=self.columns,
            estimator=self.name,
            scaling=self.scaling,
            ids=np.arange(1, len(rows) + 1) if ids is None else np.asarray(ids),
            id_name=id_name,
            labels=self.estimator.predict(Z),
            posteriors=None if proba is None else proba(Z),
            novelty=None if novelty is None else novelty(Z),
            log_density=self.estimator.score_samples(Z) - self.scaling.log_volume(rows),
            memories=self.scaling.back(self.estimator.cluster_centers_),
            classes=None if classes is None else np.asarray(classes),
            class_name=class_name,
        )

    def save(self, path: str | Path) -> None:
        """Write the estimator, its columns and their scaling to one safetensors file."""
        if self.name not in SAVED:
            raise InvalidInputError(f"A {self.name} stores all rows and cannot be saved.")
        estimator = copy.copy(self.estimator)
        estimator.table_centre_ = self.scaling.centre
        estimator.table_scale_ = self.scaling.scale
        estimator.table_columns_ = np.array(self.columns, dtype=object)
        estimator.save(path)

    @classmethod
    def load(cls, path: str | Path) -> TableModel:
        """Read a file that :meth:`save` wrote."""
        try:
            with safe_open(path, framework="numpy") as file:
                name = (file.metadata() or {}).get("estimator", "")
        except (SafetensorError, OSError, ValueError) as error:
            raise InvalidInputError(f"{path} is not a readable isthmus model: {error}") from None
        if name not in SAVED:
            raise InvalidInputError(f"{path} is not an isthmus model that was saved from a table.")
        estimator: Any = SAVED[name].load(path)
        if not hasattr(estimator, "table_columns_"):
            raise InvalidInputError(
                f"{path} holds a {name}, but not the columns it learned from; save one with "
                "TableModel.save or `isthmus cluster DATA --save FILE`."
            )
        scaling = Scaling(estimator.table_centre_, estimator.table_scale_)
        return cls(estimator, scaling, tuple(map(str, estimator.table_columns_)))


def _check_settings(
    method: str,
    rows: NDArray[np.float64],
    n_clusters: int | None,
    alpha: float | None,
    bandwidth: float | None,
) -> None:
    """Raise if a setting does not belong to the method, or the rows do not suit it."""
    if method in NEEDS_K and n_clusters is None:
        raise InvalidInputError(f"Method {method} needs the number of clusters, n_clusters (-k N).")
    if method not in NEEDS_K and n_clusters is not None:
        raise InvalidInputError(
            f"Method {method} finds the number of clusters itself; n_clusters (-k) is for elbo "
            "and clam."
        )
    if n_clusters is not None and n_clusters > len(rows):
        raise InvalidInputError(f"{n_clusters} clusters are more than the {len(rows)} rows.")
    if method not in FINDS_K and alpha is not None:
        raise InvalidInputError("alpha is for the methods crp and crp-elbo.")
    if method != "mean-shift" and bandwidth is not None:
        raise InvalidInputError("bandwidth is for the method mean-shift.")
    if method == "mean-shift" and np.isnan(rows).any():
        raise InvalidInputError(
            "Method mean-shift needs complete rows; fill the gaps first (isthmus complete), or "
            "use another method."
        )


def _constant_columns(rows: NDArray[np.float64], names: tuple[str, ...]) -> Iterator[str]:
    """Yield a note on columns that are constant, or on a table without any variation."""
    with np.errstate(invalid="ignore"):
        constant = ~(np.fmax.reduce(rows, 0) > np.fmin.reduce(rows, 0))
    if constant.all():
        what = "all rows are equal" if len(rows) > 1 else "there is one row"
        yield f"{what}, so there is one cluster, and its density has no meaning."
    elif constant.any():
        yield f"constant columns, which do not affect the clusters: {_named(names, constant)}."


def _binary_columns(
    rows: NDArray[np.float64], names: tuple[str, ...], standardise: bool
) -> Iterator[str]:
    """Yield a note on columns of two values, which are far apart in standard units."""
    lowest, highest = np.fmin.reduce(rows, 0), np.fmax.reduce(rows, 0)
    low, high = (np.equal(rows, ends).sum(0) for ends in (lowest, highest))
    binary = (low + high == (~np.isnan(rows)).sum(0)) & (np.minimum(low, high) > 1)
    binary &= lowest < highest
    if standardise and binary.any() and not binary.all():
        yield (
            f"columns of two values, which may split clusters in two: {_named(names, binary)}. "
            "Consider dropping them."
        )


def _named(names: tuple[str, ...], chosen: NDArray[np.bool_]) -> str:
    return listed([name for name, is_chosen in zip(names, chosen, strict=True) if is_chosen])
