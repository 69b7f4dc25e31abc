"""What the two clusterers with a given number of memories share."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from isthmus.cluster.base import MemoryEstimator
from isthmus.cluster.data import Rows
from isthmus.cluster.seeding import k_means, k_means_plus_plus, random_rows
from isthmus.cluster.settings import require_choice, require_count, require_number
from isthmus.cluster.statistics import Parameters, Statistics, expectation

__all__ = ["ParametricEstimator", "Start"]

Init = Literal["k-means", "k-means++", "random"]

# With n_init="auto", data of at most so many rows get ten starts, larger ones a single one.
SMALL_DATA = 20_000
# Online updates: the weight of a batch falls from 1 no lower than this share of what came before.
SMALLEST_RATE = 0.05
# A stream's memories start from so many rows each of its first batch.
ROWS_PER_SEED = 40


@dataclass(frozen=True)
class Start:
    """Where training begins: seeds, and the within-cluster variance there."""

    means: Tensor
    variance: float


class ParametricEstimator(MemoryEstimator):
    """A clusterer with a given number of memories, which is a finite mixture."""

    n_clusters: int
    init: Any
    n_init: Any
    weights: Any
    beta: Any

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        require_count(self, "n_clusters")
        if n_samples < self.n_clusters:
            raise ValueError(f"n_samples={n_samples} should be >= n_clusters={self.n_clusters}.")
        require_choice(self, "init", ("k-means", "k-means++", "random"), "an array")
        require_count(self, "n_init", "auto")
        require_choice(self, "weights", ("learned", "uniform"), "an array")
        require_number(self, "beta", 0, math.inf, words=("auto", "learned"))

    def _initial_means(self, rows: Rows, generator: np.random.RandomState) -> Iterator[Start]:
        """Seeds of each start; k-means runs all of its own and gives the best."""
        if self._previous is not None and len(self._previous) == self.n_clusters:
            yield self._start(rows, torch.from_numpy(self._previous))
            return
        if not isinstance(self.init, str):
            yield self._start(rows, self._given_means(rows))
            return
        n_init = self.n_init
        if n_init == "auto":
            n_init = 10 if len(rows) <= SMALL_DATA else 1
        if self.init == "k-means":
            tries = (
                k_means(rows, k_means_plus_plus(rows, self.n_clusters, generator))
                for _ in range(n_init)
            )
            yield self._start(rows, min(tries, key=lambda found: found[1])[0])
            return
        seeding = random_rows if self.init == "random" else k_means_plus_plus
        for _ in range(n_init):
            yield self._start(rows, self._enough(seeding(rows, self.n_clusters, generator)))

    def _enough(self, seeds: Tensor) -> Tensor:
        """Seeds repeated where there are fewer distinct rows than memories."""
        return seeds[torch.arange(self.n_clusters) % len(seeds)]

    def _given_means(self, rows: Rows) -> Tensor:
        given = np.asarray(self.init, dtype=rows.values.numpy().dtype)
        expected = (self.n_clusters, rows.dim)
        if given.shape != expected or not np.isfinite(given).all():
            raise ValueError(
                f"init has shape {given.shape}; it should hold finite means of shape {expected}."
            )
        return torch.from_numpy(self._frame.into(given))

    def _start(self, rows: Rows, means: Tensor) -> Start:
        sharp = Parameters(means, 1e8, means.new_zeros(len(means)))
        statistics = expectation(rows, sharp)
        variance = statistics.residual(means) / max(statistics.coordinates, 1e-300)
        return Start(means, max(variance, self._smallest_variance(rows)))

    def _smallest_variance(self, rows: Rows) -> float:
        """Below this share of the data's variance, rounding would decide."""
        return 1e-10 if rows.values.dtype == torch.float64 else 1e-6

    def _initial_log_weights(self, rows: Rows) -> Tensor:
        if self.weights is None or isinstance(self.weights, str):
            return rows.values.new_full((self.n_clusters,), -math.log(self.n_clusters))
        weights = np.asarray(self.weights, dtype=float)
        if weights.shape != (self.n_clusters,) or not (weights > 0).all():
            raise ValueError(
                f"weights must be {self.n_clusters} numbers above zero, one per memory."
            )
        return torch.from_numpy(np.log(weights / weights.sum())).to(rows.values.dtype)

    @property
    def _learns_weights(self) -> bool:
        return isinstance(self.weights, str) and self.weights == "learned"

    def _maximised(self, statistics: Statistics, old: Parameters, smallest: float) -> Parameters:
        """The closed-form best parameters for given expected assignments."""
        means = statistics.means(old.means)
        beta = old.beta
        if self._learns_beta:
            beta = 0.5 / max(statistics.residual(means) / statistics.coordinates, smallest)
        log_weights = old.log_weights
        if self._learns_weights:
            share = statistics.counts / statistics.counts.sum()
            log_weights = share.clamp(min=1e-300).log().to(old.means.dtype)
        return Parameters(means.to(old.means.dtype), beta, log_weights)

    @property
    def _learns_beta(self) -> bool:
        return isinstance(self.beta, str)

    def _fixed_beta(self) -> float:
        """The given beta, in internal units."""
        return float(self.beta) * self._scale**2

    def _adopt_parameters(self, parameters: Parameters) -> None:
        dtype = parameters.means.numpy().dtype
        self.memories_ = self._frame.back(parameters.means).astype(dtype)
        self.beta_ = parameters.beta / self._scale**2
        self.weights_ = parameters.log_weights.double().softmax(0).numpy()
        self.n_clusters_ = len(self.memories_)

    def _parameters(self, like: Tensor) -> Parameters:
        """The fitted attributes, back in internal units."""
        means = torch.from_numpy(self._frame.into(self.memories_.astype(like.numpy().dtype)))
        log_weights = torch.from_numpy(np.log(np.maximum(self.weights_, 1e-300))).to(like.dtype)
        return Parameters(means, self.beta_ * self._scale**2, log_weights)

    def _absorb(self, rows: Rows, X: NDArray[Any]) -> NDArray[Any]:
        """Online EM: blend the batch's expected statistics into the running ones.

        Labels are those that the rows got on arrival.
        """
        smallest = self._smallest_variance(rows)
        if not hasattr(self, "memories_"):
            self._previous = None
            generator = check_random_state(0 if self.random_state is None else self.random_state)
            few = rows.take(slice(0, max(ROWS_PER_SEED * self.n_clusters, 1000)))
            start = next(self._initial_means(few, generator))
            beta = 0.5 / start.variance if self._learns_beta else self._fixed_beta()
            self._adopt_parameters(Parameters(start.means, beta, self._initial_log_weights(rows)))
            self.n_steps_ = 0
        parameters = self._parameters(rows.values)
        found = expectation(rows, parameters, with_labels=True)
        batch = found.scaled(1 / rows.total)
        rate = max(1 / (self.n_steps_ + 1), SMALLEST_RATE)
        running = batch.scaled(rate)
        if self.n_steps_:
            running = self._running().scaled(1 - rate) + running
        self._remember(running)
        self.n_steps_ += 1
        self._adopt_parameters(self._maximised(running, parameters, smallest))
        self.objective_trace_ = np.append(
            getattr(self, "objective_trace_", np.zeros(0))[-999:],
            self._in_units(np.array([-batch.log_likelihood]), rows),
        )
        self.objective_ = float(self.objective_trace_[-1])
        self.n_iter_ = self.n_steps_
        self.converged_ = False
        assert found.labels is not None
        return found.labels.numpy()

    def _settle(self, rows: Rows) -> None:
        """Leave statistics behind that a stream can go on from, as if they were many batches."""
        self._remember(expectation(rows, self._parameters(rows.values)).scaled(1 / rows.total))
        self.n_steps_ = round(1 / SMALLEST_RATE)

    def _remember(self, running: Statistics) -> None:
        self._counts = running.counts.numpy()
        self._sums = running.sums.numpy()
        self._masses = running.full_masses().contiguous().numpy()
        self._moments = np.array([running.square, running.coordinates])

    def _running(self) -> Statistics:
        square, coordinates = map(float, self._moments)
        return Statistics(
            torch.from_numpy(self._counts),
            torch.from_numpy(self._sums),
            torch.from_numpy(self._masses),
            square,
            coordinates,
            0.0,
        )

    def _log_density_in_units(self, objectives: NDArray[Any], rows: Rows) -> NDArray[Any]:
        """Negative log-densities per row, from internal units to those of the data."""
        coordinates = float(rows.weights @ rows.coordinates()) / rows.total
        return objectives + coordinates * math.log(self._scale)
