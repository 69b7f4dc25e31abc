"""The scikit-learn face of learned memories, and the one training loop."""

from __future__ import annotations

import math
import warnings
from abc import ABCMeta, abstractmethod
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Self

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.base import (
    BaseEstimator,
    ClassNamePrefixFeaturesOutMixin,
    ClusterMixin,
    TransformerMixin,
)
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from sklearn.utils.validation import _check_sample_weight, check_is_fitted, validate_data
from torch import Tensor

from isthmus.cluster.data import Frame, Rows, distinct_rows, naming_text_columns
from isthmus.cluster.persistence import load_estimator, save_estimator
from isthmus.cluster.settings import require_count, require_flag, require_number
from isthmus.dynamics.progress import progress_bar
from isthmus.dynamics.retrieve import complete
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture
from isthmus.memories.vmf import VonMisesFisherMixture
from isthmus.validation import as_count

__all__ = ["LearnedEnergy", "MemoryEstimator", "State"]

LearnedEnergy = Mixture | CRPMixture | VonMisesFisherMixture

CHUNK_ENTRIES = 2**22
# Squares of numbers beyond these, or one over them, do not fit into float32.
SMALLEST_FLOAT32, LARGEST_FLOAT32 = 1e-12, 1e15


class State:
    """What one start has learned so far. Each model has its own; all have these.

    Attributes
    ----------
    objective : float
        The value being minimised, at this state.
    """

    objective: float


class MemoryEstimator(
    ClassNamePrefixFeaturesOutMixin,
    TransformerMixin,
    ClusterMixin,
    BaseEstimator,
    metaclass=ABCMeta,
):
    """Base class of the clusterers: everything but how memories are updated.

    A subclass says where a start begins (:meth:`_starts`), what one iteration does
    (:meth:`_advance`), what an estimator keeps of the best start (:meth:`_adopt`) and which
    energy that is (:attr:`energy_`).
    """

    max_iter: int
    tol: float
    verbose: int
    warm_start: bool
    random_state: Any

    @abstractmethod
    def _starts(self, rows: Rows, generator: np.random.RandomState) -> Iterator[State]:
        """The states to train from, one after another."""

    @abstractmethod
    def _advance(self, rows: Rows, state: State) -> State:
        """One iteration."""

    @abstractmethod
    def _adopt(self, state: State) -> None:
        """Set the fitted attributes from the best state."""

    def _finished(self, rows: Rows, state: State) -> State:
        """The best state, with a last touch where a model wants one."""
        return state

    def _settle(self, rows: Rows) -> None:
        """Set what depends on all rows, once the memories stand."""

    @abstractmethod
    def _in_units(self, objectives: NDArray[Any], rows: Rows) -> NDArray[Any]:
        """Objectives in the units of the data."""

    @abstractmethod
    def _absorb(self, rows: Rows, X: NDArray[Any]) -> NDArray[Any]:
        """Learn from one batch of a stream, in the frame of the first, and label it."""

    def _check_settings(self, n_samples: int) -> None:
        """Raise on settings that make no sense."""
        require_count(self, "max_iter")
        require_number(self, "tol", 0, math.inf, ends="low")
        require_number(self, "verbose", 0, math.inf, ends="low")
        require_flag(self, "warm_start")

    @property
    @abstractmethod
    def energy_(self) -> LearnedEnergy:
        """The learned energy, in the units of the data."""

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Learn memories from the rows of X.

        Parameters
        ----------
        X : array-like (n_samples, n_features)
            NaN marks an unknown value.
        y : ignored
        sample_weight : array-like (n_samples,), optional
            A row of weight two counts as written twice, one of weight zero as absent.
        """
        X, weights = self._validated(X, sample_weight, reset=True)
        generator = check_random_state(self.random_state)
        kept = weights > 0
        values, masses = distinct_rows(X[kept], weights[kept])
        self._check_settings(int(kept.sum()))
        previous = self._warm_memories(X)
        self._set_frame(Frame.of(values, masses))
        rows = Rows.of(values, masses, self._frame)
        self._previous = None if previous is None else self._frame.into(previous)
        state, trace, converged = self._train(rows, generator)
        with torch.no_grad():
            state = self._finished(rows, state)
        trace[-1] = state.objective
        self.objective_trace_ = self._in_units(np.array(trace), rows)
        self.objective_ = float(self.objective_trace_[-1])
        self.n_iter_ = max(len(trace) - 1, 1)
        self.converged_ = converged
        self._dtype = str(X.dtype)
        with torch.no_grad():
            self._adopt(state)
            self._settle(rows)
        self.labels_ = self._labels(X)
        if not converged:
            warnings.warn(
                f"{type(self).__name__} still improved after max_iter={self.max_iter} iterations. "
                "Raise max_iter or tol.",
                ConvergenceWarning,
                stacklevel=2,
            )
        return self

    def _train(
        self, rows: Rows, generator: np.random.RandomState
    ) -> tuple[State, list[float], bool]:
        """Train every start and keep the one with the lowest objective."""
        best: tuple[State, list[float], bool] | None = None
        title, show = type(self).__name__, bool(self.verbose)
        with torch.no_grad(), progress_bar(self.max_iter, title, show) as report:
            for state in self._starts(rows, generator):
                trace, lowest, converged = [state.objective], state, False
                for iteration in range(self.max_iter):
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
        seen, masses = (X, weights) if kept.all() else (X[kept], weights[kept])
        if first:
            self._check_settings(len(seen))
            self._set_frame(Frame.of(seen, masses))
        labels = np.empty(len(X), dtype=np.int64)
        with torch.no_grad():
            labels[kept] = self._absorb(Rows.of(seen, masses, self._frame), seen)
        if len(seen) < len(X):
            labels[~kept] = self._labels(X[~kept])
        self.labels_ = labels
        return self

    def _set_frame(self, frame: Frame) -> None:
        self._centre, self._scale = frame.centre, frame.scale

    @property
    def _frame(self) -> Frame:
        return Frame(self._centre, self._scale)

    def _warm_memories(self, X: NDArray[Any]) -> NDArray[Any] | None:
        """The memories to go on from, if asked to and there are any that fit."""
        if not self.warm_start or not hasattr(self, "memories_"):
            return None
        memories: NDArray[Any] = self.memories_
        return memories.astype(X.dtype) if memories.shape[1] == X.shape[1] else None

    def _validated(
        self, X: Any, sample_weight: Any, reset: bool
    ) -> tuple[NDArray[Any], NDArray[Any]]:
        X = self._table(X, reset=reset)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64, ensure_non_negative=True)
        if not weights.any():
            raise ValueError("All sample weights are zero; at least one row must count.")
        return X, weights

    def _table(self, X: Any, reset: bool = False) -> NDArray[Any]:
        """X as a checked float32 or float64 table that may hold NaN."""
        if isinstance(X, torch.Tensor):
            X = X.detach().cpu().numpy()
        with naming_text_columns(X):
            table: NDArray[Any] = validate_data(
                self, X, reset=reset, dtype=[np.float64, np.float32], ensure_all_finite="allow-nan"
            )
        if table.dtype == np.float64:
            return table
        largest = max(np.fmax.reduce(table, None), -np.fmin.reduce(table, None))
        fits = largest == 0 or SMALLEST_FLOAT32 < largest < LARGEST_FLOAT32
        return table if fits else table.astype(np.float64)

    def _chunks(self, X: NDArray[Any], width: int) -> Iterator[NDArray[Any]]:
        size = max(CHUNK_ENTRIES // max(width, 1), 1)
        for start in range(0, len(X), size):
            yield X[start : start + size]

    @property
    def _known_energy(self) -> LearnedEnergy:
        """The energy of the known memories alone, where :attr:`energy_` has more."""
        return self.energy_

    def _responsibilities(self, energy: LearnedEnergy, X: NDArray[Any]) -> Iterator[Tensor]:
        """Posteriors from known coordinates only, a chunk of rows at a time."""
        with torch.no_grad():
            for chunk in self._chunks(X, energy.n_memories):
                yield energy.responsibilities(*_with_gaps(chunk))

    def _labels(self, X: NDArray[Any]) -> NDArray[Any]:
        parts = [part.argmax(1) for part in self._responsibilities(self._known_energy, X)]
        return torch.cat(parts).numpy()

    def predict(self, X: Any) -> NDArray[Any]:
        """The most probable memory of each row. -> (n_samples,)"""
        check_is_fitted(self, "memories_")
        return self._labels(self._table(X))

    def predict_proba(self, X: Any) -> NDArray[Any]:
        """The probability of each known memory, given that it is a known one. -> (n, K)"""
        check_is_fitted(self, "memories_")
        shares = torch.cat([*self._responsibilities(self._known_energy, self._table(X))])
        # A row whose distances overflow is nobody's more than another's.
        return shares.nan_to_num_(1 / self.n_clusters_).numpy()

    def transform(self, X: Any) -> NDArray[Any]:
        """Distance of each row to each memory, over its known coordinates. -> (n, K)"""
        check_is_fitted(self, "memories_")
        X = self._table(X)
        memories = torch.from_numpy(self.memories_.astype(X.dtype))
        parts = []
        for chunk in self._chunks(X, self.n_clusters_ + X.shape[1]):
            values = torch.from_numpy(np.array(chunk))
            gaps = torch.isnan(values)
            if bool(gaps.any()):
                kept = (~gaps).to(values.dtype)
                centre = memories.mean(0)
                inside = torch.where(gaps, 0.0, values - centre)
                centred = memories - centre
                squared = inside.square().sum(1, keepdim=True) - 2 * inside @ centred.T
                parts.append((squared + kept @ centred.square().T).clamp(min=0).sqrt())
            else:
                # Exact differences: a row on a memory is at distance zero.
                parts.append(
                    torch.cdist(values, memories, compute_mode="donot_use_mm_for_euclid_dist")
                )
        return torch.cat(parts).numpy()

    @property
    def _n_features_out(self) -> int:
        return int(self.n_clusters_)

    def score_samples(self, X: Any) -> NDArray[Any]:
        """Log-density of each row; of its known coordinates where some are not. -> (n,)"""
        check_is_fitted(self, "memories_")
        X = self._table(X)
        energy = self.energy_
        with torch.no_grad():
            parts = [energy.log_prob(*_with_gaps(chunk)).numpy() for chunk in self._chunks(X, 1)]
        return np.concatenate(parts)

    def score(self, X: Any, y: Any = None, sample_weight: Any = None) -> float:
        """Mean log-density of the rows."""
        check_is_fitted(self, "memories_")
        X = self._table(X)
        weights = _check_sample_weight(sample_weight, X, dtype=np.float64)
        return float(np.average(self.score_samples(X), weights=weights))

    def complete(self, X: Any) -> NDArray[Any]:
        """X with its unknown values, marked by NaN, filled in from the memories. -> (n, D)"""
        check_is_fitted(self, "memories_")
        X = self._table(X)
        energy = self.energy_
        parts = [complete(energy, chunk).numpy() for chunk in self._chunks(X, X.shape[1])]
        return np.where(np.isnan(X), np.concatenate(parts), X)

    def sample(self, n_samples: int = 1) -> tuple[NDArray[Any], NDArray[Any]]:
        """Draw rows from the learned density, and say which memory each belongs to.

        Returns
        -------
        X : ndarray (n_samples, n_features)
        labels : ndarray (n_samples,)
        """
        check_is_fitted(self, "memories_")
        n_samples = as_count(n_samples, "n_samples")
        seed = int(check_random_state(self.random_state).randint(2**31))
        X = self.energy_.sample(n_samples, seed=seed).numpy()
        return X, self._labels(X)

    @property
    def cluster_centers_(self) -> NDArray[Any]:
        """The memories, by the name that scikit-learn uses. (K, D)"""
        check_is_fitted(self, "memories_")
        centres: NDArray[Any] = self.memories_
        return centres

    def save(self, path: str | Path) -> None:
        """Write the fitted estimator to one file, all or nothing."""
        check_is_fitted(self, "memories_")
        save_estimator(self, Path(path))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an estimator that :meth:`save` wrote. Executes nothing from the file."""
        return load_estimator(cls, Path(path))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.transformer_tags.preserves_dtype = ["float64", "float32"]
        return tags


def _with_gaps(chunk: NDArray[Any]) -> tuple[Any, ...]:
    """The arguments that an energy takes for a chunk: its mask goes along if it has gaps."""
    gaps = np.isnan(chunk)
    return (chunk, torch.from_numpy(~gaps)) if gaps.any() else (chunk,)
