"""The scikit-learn interface of learned memories, and their training loop."""

from __future__ import annotations

import copy
import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Callable, Iterator
from dataclasses import KW_ONLY, dataclass, fields
from functools import partial
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted
from torch import Tensor

from isthmus.cluster.crp_inference import CRPPrior
from isthmus.cluster.data import (
    AnyRows,
    BlockRows,
    Rows,
    fits_float32,
    in_blocks,
    largest_value,
    measured,
    require_in_memory,
    units_of,
)
from isthmus.cluster.statistics import ClusterStatistics
from isthmus.distributed.blocks import Blocks, is_dask
from isthmus.dynamics.retrieve import complete
from isthmus.energy import as_arrays
from isthmus.errors import InvalidInputError
from isthmus.io.archive import decoded, read_archive, write_described
from isthmus.io.reading import reading
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture
from isthmus.memories.vmf import VonMisesFisherMixture
from isthmus.plotting import Plottable
from isthmus.progress import progress
from isthmus.rows import checked_table
from isthmus.scaling import Scaling
from isthmus.tables.encoding import Coding, encoded
from isthmus.validation import LARGEST_SQUARED, as_count, as_flag, as_number, as_numbers, as_tensor

LearnedEnergy = Mixture | CRPMixture | VonMisesFisherMixture

CHUNK_ENTRIES = 2**22
# Models whose objective may rise are judged over this many iterations.
PATIENCE = 5
# Entries of `objective_trace_` that a stream keeps.
STREAM_TRACE = 1000
FORMAT, OLD_FORMAT = "isthmus-estimator-2", "isthmus-estimator-1"
# The only classes that a file may name.
RECORDS = {record.__name__: record for record in (ClusterStatistics, Coding, CRPPrior, Scaling)}
RECORDS["Units"] = Scaling  # as older files call it


def as_number_or(value: Any, name: str, words: tuple[str, ...], **bounds: float) -> Any:
    """Return a number within bounds as a float, or one of the words."""
    if not isinstance(value, str):
        return as_number(value, name, **bounds)
    if value not in words:
        listed = " or ".join(map(repr, words))
        raise InvalidInputError(f"{name} must be {listed} or a number, not {value!r}.")
    return value


class DensityEstimator(Plottable, ClusterMixin, BaseEstimator, metaclass=ABCMeta):
    """Base class of clusterers that learn an energy: everything that follows from it.

    A subclass defines `fit`, which sets `memories_`, the energy and the labels of rows.
    """

    memories_: NDArray[Any]
    random_state: Any

    @property
    @abstractmethod
    def energy_(self) -> LearnedEnergy:
        """The learned energy, in the units of the data."""

    @abstractmethod
    def _posteriors(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the probability of each cluster for each row. -> (n, K)"""

    def _labels(self, X: NDArray[Any]) -> NDArray[Any]:
        return self._posteriors(X).argmax(1)

    def _validated(
        self, X: Any, sample_weight: Any, reset: bool = False
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        X = self._table(X, reset=reset)
        if sample_weight is not None:
            given = as_numbers(sample_weight, "sample_weight")
            sample_weight = given if given.ndim else float(given)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not 0 < weights.sum() < np.inf:
            raise InvalidInputError("sample_weight must be finite, with a sum above zero.")
        return X, weights

    def _table(self, X: Any, reset: bool = False) -> NDArray[Any]:
        """Return X as a checked float32 or float64 table that may hold NaN."""
        require_in_memory(X, type(self).__name__)
        if not reset:
            check_is_fitted(self, "memories_")
        kinds = [np.float64, np.float32]
        X = encoded(self, X, reset)
        table = checked_table(self, X, reset=reset, dtype=kinds, ensure_all_finite="allow-nan")
        return table if fits_float32(largest_value(table)) else table.astype(np.float64, copy=False)

    def _set_columns(self, blocks: Blocks) -> None:
        names = blocks.layout.columns
        self.n_features_in_ = blocks.layout.dim
        self.__dict__.pop("feature_names_in_", None)
        if names is not None and all(isinstance(name, str) for name in names):
            self.feature_names_in_ = np.array(names, dtype=object)

    def _set_labels(self, X: Any) -> None:
        """Set the labels of the rows of a fit; those of a file are not kept."""
        self.__dict__.pop("labels_", None)
        if not isinstance(X, Blocks):
            self.labels_ = self.predict(X)

    def _lazily(self, method: str, X: Any) -> Any:
        """Return a Dask array of what a method says of each row, not yet computed."""
        check_is_fitted(self, "memories_")
        array = X.to_dask_array() if hasattr(X, "to_dask_array") else X
        if array.ndim == 2 and array.numblocks[1] > 1:
            array = array.rechunk({1: -1})
        plain = copy.copy(self)
        plain.__dict__.pop("labels_", None)  # which is of other rows, and may hold all of them
        empty = _on_block(plain, method, self.memories_[:0])
        shape = {"chunks": (array.chunks[0], empty.shape[1:])} if empty.ndim > 1 else {}
        drop = None if shape else 1
        function = partial(_on_block, plain, method)
        return array.map_blocks(function, dtype=empty.dtype, meta=empty, drop_axis=drop, **shape)

    def _by_chunk(
        self, function: Callable[..., Tensor], X: NDArray[Any], width: int
    ) -> NDArray[Any]:
        """Apply a function to chunks of rows; gaps are zero, and their mask the last argument."""
        size = max(CHUNK_ENTRIES // max(width, 1), 1)
        parts = []
        with torch.no_grad():
            for chunk in as_tensor(X.astype(self.memories_.dtype, copy=False), "X").split(size):
                gaps = chunk.isnan()
                known = [~gaps] if bool(gaps.any()) else []
                parts.append(function(chunk.masked_fill(gaps, 0) if known else chunk, *known))
        return torch.cat(parts).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """Return the most probable cluster of each row. -> (n_samples,)

        Like `predict_proba` and `score_samples`, it returns a Dask array for a Dask collection, not
        yet computed.
        """
        return self._lazily("predict", X) if is_dask(X) else self._labels(self._table(X))

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """Return the probability of each cluster, given that a row belongs to one. -> (n, K)"""
        return self._lazily("predict_proba", X) if is_dask(X) else self._posteriors(self._table(X))

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Return the log-density of the known coordinates of each row. -> (n,)"""
        return self._lazily("score_samples", X) if is_dask(X) else self._log_density(self._table(X))

    def _log_density(self, X: NDArray[Any]) -> NDArray[Any]:
        return self._by_chunk(self.energy_._log_prob, X, 1)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Return the mean log-density of the rows."""
        X, weights = self._validated(X, sample_weight)
        return float(np.average(self._log_density(X), weights=weights))

    def complete(self, X: Any, how: str = "mean") -> NDArray[Any]:
        """Fill unknown values, marked by NaN. -> (n, D)

        `how` is "mean", the mean given the known values, which has the least squared error, or
        "mode", the memory or other minimum of the energy that it slides to.
        """
        X = self._table(X)
        return np.where(np.isnan(X), complete(self.energy_, X, how=how), X)

    def sample(self, n_samples: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw rows from the learned density.

        Returns them (n_samples, n_features), and the most probable memory of each (n_samples,).
        """
        check_is_fitted(self, "memories_")
        n_samples = as_count(n_samples, "n_samples")
        seed = int(check_random_state(self.random_state).randint(2**31))
        X = as_arrays(self.energy_.sample(n_samples, seed=seed))
        return X, self._labels(X)

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one file. An interrupted write leaves no partial file."""
        check_is_fitted(self, "memories_")
        parameters = self.get_params(deep=False)
        # Labels of a Dask collection stand for rows elsewhere.
        state = {k: v for k, v in vars(self).items() if k not in parameters and not is_dask(v)}
        content = {"parameters": parameters, "state": state}
        write_described(Path(path), FORMAT, content, _encoded, estimator=type(self).__name__)

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an estimator that :meth:`save` wrote. Executes nothing from the file."""
        metadata, arrays = read_archive(Path(path), (FORMAT, OLD_FORMAT))
        name = metadata.get("estimator")
        if name != cls.__name__:
            raise InvalidInputError(f"{path} holds a {name}. Load it with {name}.load.")
        with reading(path, cls.__name__, "This version of isthmus cannot read it."):
            content = decoded(metadata["content"], arrays, _decoded)
            estimator, state = cls(**content["parameters"]), content["state"]
            state = _upgraded(state) if metadata["format"] == OLD_FORMAT else state
            estimator.__dict__.update(state)
        return estimator

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        if tags.transformer_tags is not None:
            tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


@dataclass(eq=False, repr=False)
class MemoryEstimator(ClassNamePrefixFeaturesOutMixin, TransformerMixin, DensityEstimator):
    """Base class of the clusterers: everything except how memories are updated.

    The abstract methods are what a subclass defines. A state of the training is a record of its
    own, with the value that is minimised as `objective`.
    """

    _: KW_ONLY
    beta: Any = "auto"
    init: Any = "k-means"
    n_init: Any = "auto"
    max_iter: int = 100
    tol: float = 1e-4
    warm_start: bool = False
    random_state: Any = None
    verbose: int = 0

    @abstractmethod
    def _starts(self, rows: AnyRows, generator: RandomState, given: Tensor | None) -> Iterator[Any]:
        """Yield the states to train from, at the memories `given` (K, D) if there are any."""

    @abstractmethod
    def _advance(self, rows: AnyRows, state: Any) -> Any:
        """Return the state after one iteration."""

    @abstractmethod
    def _adopt(self, rows: AnyRows, state: Any) -> float:
        """Set the fitted attributes from the best state; return their objective."""

    def _in_units(self, objectives: NDArray[Any], rows: AnyRows) -> NDArray[Any]:
        """Convert objectives to the units of the data."""
        return objectives

    @abstractmethod
    def _absorb(self, rows: Rows, X: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Learn from one batch of a stream; return its labels and its objective."""

    def _check_settings(self, n_samples: int) -> None:
        as_count(self.max_iter, "max_iter")
        as_number(self.tol, "tol", at_least=0)
        as_number(self.verbose, "verbose", at_least=0)
        as_flag(self.warm_start, "warm_start")

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn memories from the rows of X.

        Parameters
        ----------
        X : array-like (n_samples, n_features), Dask array or Dask DataFrame
            NaN marks an unknown value. Categories of a data frame are read as
            :func:`isthmus.tables.encode` writes them. The blocks of a Dask collection stay on its
            workers, and ``labels_`` is then a Dask array, not yet computed.
        y : ignored
        sample_weight : array-like (n_samples,), optional
            A row of weight two counts as written twice, one of weight zero as absent.
        """
        generator = check_random_state(self.random_state)
        rows = self._rows_of(X, sample_weight)
        with torch.no_grad():
            state, trace, converged = self._train(rows, generator, self._given_means(rows))
            trace[-1] = self._adopt(rows, state)
        self.objective_trace_ = self._in_units(np.array(trace), rows)
        self.objective_ = float(self.objective_trace_[-1])
        self.n_iter_ = max(len(trace) - 1, 1)
        self.converged_ = converged
        self._set_labels(X)
        if not converged:
            warnings.warn(
                f"{type(self).__name__} still improved after max_iter={self.max_iter} iterations. "
                "Raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _rows_of(self, X: Any, sample_weight: Any) -> AnyRows:
        """Return the rows of a fit in internal units, in memory or in blocks."""
        blocks = in_blocks(X, sample_weight)
        if blocks is not None:
            self._set_columns(blocks)
            n_rows, few, self._units = measured(blocks, getattr(self, "feature_names_in_", None))
            self._check_settings(n_rows)
            return BlockRows.of(blocks, n_rows, few, self._units)
        X, weights = self._validated(X, sample_weight, reset=True)
        kept = weights > 0
        self._check_settings(int(kept.sum()))
        distinct = Rows.distinct(X[kept], weights[kept]).in_order()
        own, names = distinct.weights.numpy(), getattr(self, "feature_names_in_", None)
        self._units = units_of(distinct.table, own, self._is_spherical, names)
        return distinct.into(self._units)

    def _train(
        self, rows: AnyRows, generator: RandomState, given: Tensor | None
    ) -> tuple[Any, list[float], bool]:
        """Train every start and keep the one with the lowest objective."""
        best: tuple[Any, list[float], bool] | None = None
        max_iter = int(self.max_iter)
        with progress(type(self).__name__, max_iter, show=bool(self.verbose)) as report:
            for state in self._starts(rows, generator, given):
                trace, lowest, converged = [state.objective], state, False
                for iteration in range(max_iter):
                    state = self._advance(rows, state)
                    trace.append(state.objective)
                    report(iteration + 1)
                    lowest = min(lowest, state, key=lambda candidate: candidate.objective)
                    if self._has_converged(trace):
                        converged = True
                        break
                trace[-1] = lowest.objective
                if best is None or lowest.objective < best[0].objective:
                    best = lowest, trace, converged
        assert best is not None
        return best

    def _has_converged(self, trace: list[float]) -> bool:
        return abs(trace[-2] - trace[-1]) <= self.tol

    def partial_fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn from one more batch of a stream. The first sets the units and the start."""
        first = not hasattr(self, "memories_")
        X, weights = self._validated(X, sample_weight, reset=first)
        kept = weights > 0
        seen, masses = X[kept], weights[kept]
        if first:
            self._check_settings(len(seen))
            names = getattr(self, "feature_names_in_", None)
            self._units = units_of(seen, masses, self._is_spherical, names)
        rows = Rows.of(seen, masses, self._units)
        labels = np.empty(len(X), dtype=np.int64)
        with torch.no_grad():
            labels[kept], objective = self._absorb(rows, seen)
        if len(seen) < len(X):
            labels[~kept] = self._labels(X[~kept])
        self.labels_ = labels
        trace = getattr(self, "objective_trace_", np.zeros(0))[1 - STREAM_TRACE :]
        self.objective_ = float(self._in_units(np.array(objective), rows))
        self.objective_trace_ = np.append(trace, self.objective_)
        self.converged_ = False
        return self

    def _given_means(self, rows: AnyRows) -> Tensor | None:
        """Return the means of the previous fit or of `init`, in internal units, if any. (K, D)"""
        n_clusters = getattr(self, "n_clusters", None)
        given: Any = getattr(self, "memories_", None) if self.warm_start else None
        if given is None or given.shape != (n_clusters or len(given), rows.dim):
            if isinstance(self.init, str):
                return None
            given = as_numbers(self.init, "init")
            expected = (n_clusters or len(np.atleast_1d(given)), rows.dim)
            inside = np.abs(given) < LARGEST_SQUARED
            if given.shape != expected or not len(given) or not inside.all():
                raise InvalidInputError(
                    f"init has shape {given.shape}; it should hold finite means of shape "
                    f"({n_clusters or 'K'}, {rows.dim})."
                )
        return torch.from_numpy(self._units.into(given.astype(np.float64))).to(rows.dtype)

    @property
    def _is_spherical(self) -> bool:
        """True if rows are directions, whose units are given."""
        return False

    @property
    def _known_energy(self) -> LearnedEnergy:
        """The energy of the known memories alone, without the new cluster of a CRP."""
        return self.energy_

    def _labels(self, X: NDArray[Any]) -> NDArray[Any]:
        energy, width = self._known_energy, self.n_clusters_
        return self._by_chunk(lambda *rows: energy._responsibilities(*rows).argmax(1), X, width)

    def _posteriors(self, X: NDArray[Any]) -> NDArray[Any]:
        shares = self._by_chunk(self._known_energy._responsibilities, X, self.n_clusters_)
        # A row whose distances overflow is equally far from all memories.
        return np.nan_to_num(shares, copy=False, nan=1 / self.n_clusters_)

    def bic(self, X: Any) -> float:
        """Return the Bayesian information criterion of the rows; lower is better."""
        return self._criterion(X, math.log)

    def aic(self, X: Any) -> float:
        """Return Akaike's information criterion of the rows; lower is better."""
        return self._criterion(X, lambda n_rows: 2.0)

    def _criterion(self, X: Any, price: Callable[[int], float]) -> float:
        """Return -2 log-likelihood plus a price for each free parameter."""
        log_density = np.asarray(self.score_samples(X))
        return price(len(log_density)) * self._n_parameters - 2 * float(log_density.sum())

    @property
    def _n_parameters(self) -> int:
        """The numbers of memories, and their proportions and width unless these are given."""
        proportions = (self.n_clusters_ - 1) * self._learns_weights
        return int(self.memories_.size + proportions + self._learns_beta)

    @property
    def _learns_weights(self) -> bool:
        return True

    @property
    def _learns_beta(self) -> bool:
        return isinstance(self.beta, str)

    def transform(self, X: Any) -> NDArray[Any]:
        """Return the distance of each row to each memory, over known coordinates. -> (n, K)"""
        X = self._table(X).astype(self.memories_.dtype, copy=False)
        distances = [np.sqrt(np.nansum(np.square(X - each), 1)) for each in self.memories_]
        return np.stack(distances, 1)

    @property
    def _n_features_out(self) -> int:
        return int(self.n_clusters_)

    @property
    def cluster_centers_(self) -> NDArray[Any]:
        """The memories, under their name in scikit-learn. (K, D)"""
        check_is_fitted(self, "memories_")
        return self.memories_


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"names": [str(entry) for entry in value]}
    if type(value).__name__ in RECORDS:
        record = {field.name: getattr(value, field.name) for field in fields(value)}
        return {"record": type(value).__name__, "fields": record}
    if isinstance(value, np.random.RandomState):
        raise InvalidInputError("random_state is a stream. Use an integer seed to save the model.")
    raise InvalidInputError(f"{value!r} cannot be saved without pickle.")


def _decoded(value: dict[str, Any]) -> Any:
    if "names" in value:
        return np.array(value["names"], dtype=object)
    if "record" in value:
        return RECORDS[value["record"]](**value["fields"])
    return value.get("settings", value)  # the first format marked the settings of scikit-learn


def _upgraded(state: dict[str, Any]) -> dict[str, Any]:
    """Convert the state of the first format, which kept records as separate arrays."""
    counts = state["counts_"] if "counts_" in state else state.pop("_counts")
    parts: Any = map(torch.from_numpy, (counts, state.pop("_sums"), state.pop("_masses")))
    state["_statistics"] = ClusterStatistics(*parts, *state.pop("_moments").tolist())
    state["_units"] = Scaling(state.pop("_centre"), state.pop("_scale"))
    if "_rule" in state:
        beta, rho, alpha, discount, dim, normalized = state.pop("_rule").tolist()
        temper = dim / len(state["_units"].centre)
        state["_prior"] = CRPPrior(beta, rho, alpha, discount, temper, bool(normalized))
    for name in ("_dtype", "_previous"):
        state.pop(name, None)
    return state


def _on_block(estimator: Any, method: str, X: NDArray[Any]) -> NDArray[Any]:
    with warnings.catch_warnings():
        # Blocks have no names of columns.
        warnings.filterwarnings("ignore", "X does not have valid feature names")
        found = getattr(estimator, method)(X if len(X) else estimator.memories_[:1])
    return np.asarray(found[: len(X)])
