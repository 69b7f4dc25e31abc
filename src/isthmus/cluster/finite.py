"""The template of clusterers that learn a mixture with a given number of memories."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from typing import Any

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.cluster import KMeans, kmeans_plusplus
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils import check_random_state
from torch import Tensor

from isthmus.cluster.base import LearnedEnergy, MemoryEstimator, as_number_or
from isthmus.cluster.data import AnyRows, Rows
from isthmus.cluster.statistics import ClusterStatistics, MixtureParameters, expectation, labelled
from isthmus.errors import InvalidInputError
from isthmus.memories.mixture import Mixture
from isthmus.printing import counted
from isthmus.validation import as_choice, as_count, as_numbers

# With n_init="auto", data of at most this many distinct rows get ten starts, larger ones one.
SMALL_DATA = 20_000
# Online updates: the weight of a batch falls from 1 no lower than this share of what came before.
SMALLEST_RATE = 0.05
# The memories of a stream start from this many rows each of its first batch.
ROWS_PER_SEED = 40
# Weights are at least this before their logarithm is taken.
SMALLEST_WEIGHT = 1e-300


@dataclass(eq=False, repr=False)
class FiniteMixtureEstimator(MemoryEstimator):
    """A clusterer that learns a finite mixture with a given number of memories."""

    n_clusters: int = 8
    _: KW_ONLY
    weights: Any = "uniform"

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        n_clusters = as_count(self.n_clusters, "n_clusters")
        if n_samples < n_clusters:
            raise InvalidInputError(
                f"X has {counted(n_samples, 'row')} to learn from, but n_clusters={n_clusters}. "
                f"Use at most {counted(n_samples, 'cluster')}."
            )
        if isinstance(self.init, str):
            as_choice(self.init, "init", ("k-means", "k-means++", "random"))
        if self.n_init != "auto":
            as_count(self.n_init, "n_init")
        if isinstance(self.weights, str):
            as_choice(self.weights, "weights", ("learned", "uniform"))
        as_number_or(self.beta, "beta", ("auto", "learned"), above=0)

    def _initial_means(
        self, rows: AnyRows, generator: RandomState, given: Tensor | None
    ) -> Iterator[Tensor]:
        """Yield the means of each start; k-means runs all of its own and gives the best."""
        n_clusters = int(self.n_clusters)
        if given is not None:
            yield given
            return
        few = rows.sample()
        if len(few) <= n_clusters:  # a memory for every distinct row
            yield few.values[torch.arange(n_clusters) % len(few)]
            return
        n_init = self.n_init
        if n_init == "auto":
            n_init = 10 if len(rows) <= SMALL_DATA else 1
        # Unknown coordinates count as their column mean.
        values, weights = few.values.numpy(), few.weights.numpy()
        if self.init == "k-means":
            with warnings.catch_warnings():
                warnings.simplefilter("ignore", ConvergenceWarning)
                kmeans = KMeans(n_clusters, n_init=n_init, random_state=generator)
                yield torch.from_numpy(kmeans.fit(values, sample_weight=weights).cluster_centers_)
            return
        shares = weights / weights.sum(dtype=np.float64)
        for _ in range(n_init):
            if self.init == "random":
                chosen = generator.choice(len(few), n_clusters, replace=False, p=shares)
            else:
                weighted = {"sample_weight": weights, "random_state": generator}
                chosen = kmeans_plusplus(values, n_clusters, **weighted)[1]
            yield few.values[chosen]

    def _initial_parameters(
        self, rows: AnyRows, generator: RandomState, given: Tensor | None
    ) -> Iterator[MixtureParameters]:
        """Yield the parameters of each start; an unknown beta is that of hard clusters."""
        for means in self._initial_means(rows, generator, given):
            if self._learns_beta:
                sharp = MixtureParameters(means, 1e8, means.new_zeros(len(means)))
                statistics = expectation(rows, sharp)
                beta = 0.5 / statistics.variance(means, rows.smallest_variance)
            else:
                beta = float(self.beta) * self._units.scale**2
            yield MixtureParameters(self._projected(means), beta, self._initial_log_weights(means))

    def _projected(self, means: Tensor) -> Tensor:
        """Return the nearest valid means. (K, D)"""
        return means

    def _initial_log_weights(self, means: Tensor) -> Tensor:
        if self.weights is None or isinstance(self.weights, str):
            return means.new_full((len(means),), -math.log(len(means)))
        weights = as_numbers(self.weights, "weights")
        if weights.shape != (len(means),) or not (weights > 0).all():
            raise InvalidInputError(
                f"weights must be {len(means)} numbers above zero, one per memory."
            )
        return torch.from_numpy(np.log(weights / weights.sum())).to(means.dtype)

    @property
    def _learns_weights(self) -> bool:
        return isinstance(self.weights, str) and self.weights == "learned"

    def _maximised(
        self, rows: AnyRows, statistics: ClusterStatistics, old: MixtureParameters
    ) -> MixtureParameters:
        """Return the closed-form best parameters for given expected assignments."""
        means, beta, log_weights = statistics.means(old.means), old.beta, old.log_weights
        if self._learns_beta:
            beta = 0.5 / statistics.variance(means, rows.smallest_variance)
        if self._learns_weights:
            share = statistics.counts / statistics.counts.sum()
            log_weights = share.clamp(min=SMALLEST_WEIGHT).log().to(means.dtype)
        dtype = old.means.dtype
        return MixtureParameters(means.to(dtype), beta, log_weights.to(dtype))

    def _adopt_parameters(self, parameters: MixtureParameters) -> None:
        means = self._projected(parameters.means)
        self.memories_ = self._units.back(means.numpy()).astype(means.numpy().dtype)
        self.beta_ = parameters.beta / self._units.scale**2
        self.weights_ = parameters.log_weights.double().softmax(0).numpy()
        self.n_clusters_ = len(self.memories_)

    def _parameters(self, rows: AnyRows) -> MixtureParameters:
        """Return the fitted attributes in internal units."""
        means = torch.from_numpy(self._units.into(self.memories_.astype(np.float64)))
        log_weights = torch.from_numpy(self._log_weights).to(rows.dtype)
        beta = self.beta_ * self._units.scale**2
        return MixtureParameters(means.to(rows.dtype), beta, log_weights)

    def _adopt(self, rows: AnyRows, state: Any) -> float:
        """Also set statistics that count as many batches of a stream."""
        self._adopt_parameters(state.parameters)
        statistics = expectation(rows, self._parameters(rows))
        self._statistics = statistics.scaled(1 / rows.total)
        self.n_steps_ = round(1 / SMALLEST_RATE)
        return float(state.objective)

    def _absorb(self, rows: Rows, X: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Do one step of online EM; return the labels that rows had on arrival."""
        if not hasattr(self, "memories_"):
            generator = check_random_state(0 if self.random_state is None else self.random_state)
            few = rows.take(slice(0, max(ROWS_PER_SEED * int(self.n_clusters), 1000)))
            given = self._given_means(few)
            self._adopt_parameters(next(self._initial_parameters(few, generator, given)))
            self.n_steps_ = 0
        parameters = self._parameters(rows)
        statistics, labels = labelled(rows, parameters)
        rate = max(1 / (self.n_steps_ + 1), SMALLEST_RATE)
        running = statistics.scaled(rate / rows.total)
        if self.n_steps_:
            running = self._statistics.scaled(1 - rate) + running
        self._statistics = running
        self.n_steps_ += 1
        self.n_iter_ = self.n_steps_
        self._adopt_parameters(self._maximised(rows, running, parameters))
        return labels.numpy(), self._batch_objective(rows, parameters, statistics)

    def _batch_objective(
        self, rows: Rows, parameters: MixtureParameters, statistics: ClusterStatistics
    ) -> float:
        """Return the objective of a batch before it is learned from."""
        return -statistics.log_likelihood / rows.total

    def _in_units(self, objectives: NDArray[Any], rows: AnyRows) -> NDArray[Any]:
        # Of a mean negative log-density.
        return objectives + rows.known_total / rows.total * math.log(self._units.scale)

    @property
    def energy_(self) -> LearnedEnergy:
        """The learned energy: a :class:`isthmus.Mixture` in the units of the data."""
        return Mixture(self.memories_, self.beta_, self._log_weights)

    @property
    def _log_weights(self) -> NDArray[Any]:
        """The logarithms of the weights, in the precision of the memories. (K,)"""
        return np.log(np.maximum(self.weights_, SMALLEST_WEIGHT)).astype(self.memories_.dtype)
