"""ClAM: memories learned by gradient descent through the dynamics of retrieval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.cluster.base import State
from isthmus.cluster.data import Frame, Rows
from isthmus.cluster.gradient import Task, reconstruct, reconstruction_gradient, squared_loss
from isthmus.cluster.parametric import ParametricEstimator
from isthmus.cluster.settings import require_choice, require_count, require_number
from isthmus.cluster.statistics import Parameters
from isthmus.memories.mixture import Mixture
from isthmus.memories.vmf import VonMisesFisherMixture

__all__ = ["ClAM"]

Objective = Literal["reconstruction", "masked"]
Likelihood = Literal["gaussian", "vmf"]
Schedule = Literal["fixed", "annealed", "learned"]

# An iteration makes at least so many updates, however few rows there are.
UPDATES_PER_ITERATION = 10
# Annealing starts at this share of beta and reaches it after so many iterations.
ANNEALING_START, ANNEALING_ITERATIONS = 0.1, 20
# Improvements are judged over so many iterations, since stochastic ones are not monotone.
PATIENCE = 5


@dataclass(frozen=True)
class _ClAMState(State):
    """Parameters, and Adam's memory of their gradients."""

    parameters: Parameters
    first: tuple[Tensor, ...]
    second: tuple[Tensor, ...]
    updates: int
    iteration: int
    final_beta: float
    objective: float


class ClAM(ParametricEstimator):
    r"""Clustering by associative memory (ClAM).

    Rows move on the energy of a :class:`isthmus.Mixture` for `n_steps` steps,
    :math:`x \leftarrow x + \eta (\sum_k r_k \mu_k - x)`, and the memories descend the loss
    that this leaves, by exact gradients through all steps (Adam, mini-batches).
    ``objective="reconstruction"`` is the paper's loss, the squared distance to where the row
    began; ``"masked"`` is that of ClAM's authors: some coordinates are hidden, only they move
    and only they are judged (erratum E27; unlike the authors' code, every coordinate may be
    hidden).

    Training starts from k-means and keeps that solution as a candidate, so the stated
    objective is never worse than it. It is here for fidelity to the paper: on labels it is
    about as good as k-means, and :class:`ClAMELBO` learns the same kind of model in less time.

    Parameters
    ----------
    n_clusters : int
    objective : {"reconstruction", "masked"}
    likelihood : {"gaussian", "vmf"}
        ``"vmf"`` clusters directions: rows are scaled to unit length, and so are memories.
    beta : "auto" or float
        Components have covariance I / (2 beta); for ``"vmf"`` the concentration is 2 beta.
        Auto takes the spread that k-means leaves inside clusters.
    schedule : {"fixed", "annealed", "learned"}
        Keep beta, raise it from a tenth over the first 20 iterations, or learn it.
    weights : "uniform", "learned" or array (n_clusters,)
        Weighted clustering.
    n_steps, rate : int, float
        T and :math:`\eta`; the original has 10 and 0.1.
    mask_fraction : float
        How many coordinates the masked objective hides.
    learning_rate : float
        Adam's, in units of the data's spread.
    batch_size : int
    init, n_init, max_iter, tol, warm_start, random_state, verbose
        As in :class:`ClAMELBO`. Training stops when the objective has fallen by no more than
        the share `tol` in five iterations.

    Notes
    -----
    Attributes are as in :class:`ClAMELBO`. ``objective_`` is the mean loss per row, in squared
    units.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAM
    >>> X = np.array([[0.0, 0.1], [0.2, 0.0], [4.0, 4.1], [4.2, 4.0]])
    >>> sorted(ClAM(2, random_state=0).fit(X).memories_.round(1)[:, 0].tolist())
    [0.1, 4.1]
    """

    def __init__(
        self,
        n_clusters: int = 8,
        *,
        objective: Objective = "reconstruction",
        likelihood: Likelihood = "gaussian",
        beta: Any = "auto",
        schedule: Schedule = "fixed",
        weights: Any = "uniform",
        n_steps: int = 10,
        rate: float = 0.1,
        mask_fraction: float = 0.2,
        learning_rate: float = 0.01,
        batch_size: int = 1024,
        init: Any = "k-means",
        n_init: Any = "auto",
        max_iter: int = 100,
        tol: float = 1e-3,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.n_clusters = n_clusters
        self.objective = objective
        self.likelihood = likelihood
        self.beta = beta
        self.schedule = schedule
        self.weights = weights
        self.n_steps = n_steps
        self.rate = rate
        self.mask_fraction = mask_fraction
        self.learning_rate = learning_rate
        self.batch_size = batch_size
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        require_choice(self, "objective", ("reconstruction", "masked"))
        require_choice(self, "likelihood", ("gaussian", "vmf"))
        require_choice(self, "schedule", ("fixed", "annealed", "learned"))
        require_count(self, "n_steps")
        require_count(self, "batch_size")
        require_number(self, "rate", 0, 1, ends="high")
        require_number(self, "mask_fraction", 0, 1)
        require_number(self, "learning_rate", 0, math.inf)

    @property
    def _is_spherical(self) -> bool:
        return self.likelihood == "vmf"

    def _table(self, X: Any, reset: bool = False) -> NDArray[Any]:
        table = super()._table(X, reset=reset)
        if not self._is_spherical:
            return table
        # At a largest entry of one, squares of huge or tiny numbers stay in range.
        largest = np.abs(table).max(1, keepdims=True)
        table = table / np.where(largest > 0, largest, 1)
        lengths = np.linalg.norm(table, axis=1, keepdims=True)
        if not (lengths > 0).all():
            raise ValueError(
                "likelihood='vmf' clusters directions: rows must be complete and not all zero."
            )
        return table / lengths

    def _set_frame(self, frame: Frame) -> None:
        if self._is_spherical:
            frame = Frame(np.zeros_like(frame.centre), 1.0)
        super()._set_frame(frame)

    def _starts(self, rows: Rows, generator: np.random.RandomState) -> Iterator[State]:
        self._noise = torch.Generator().manual_seed(int(generator.randint(2**31)))
        self._hidden = self._mask(rows.values) if self.objective == "masked" else None
        for start in self._initial_means(rows, generator):
            means = self._projected(start.means)
            beta = 0.5 / start.variance if self._learns_beta else self._fixed_beta()
            parameters = Parameters(means, beta, self._initial_log_weights(rows))
            zeros = tuple(torch.zeros_like(value) for value in _learnable(parameters))
            loss = self._loss(rows, parameters)
            yield _ClAMState(parameters, zeros, zeros, 0, 0, beta, loss)

    def _projected(self, means: Tensor) -> Tensor:
        if not self._is_spherical:
            return means
        return means / torch.linalg.vector_norm(means, dim=1, keepdim=True).clamp(min=1e-30)

    def _mask(self, values: Tensor) -> Tensor:
        """One for hidden coordinates: each by chance, and at least one in every row."""
        chance = torch.rand(values.shape, generator=self._noise, dtype=values.dtype)
        lowest = chance.amin(1, keepdim=True)
        return ((chance < self.mask_fraction) | (chance == lowest)).to(values.dtype)

    def _task(self, rows: Rows, hidden: Tensor | None) -> Task:
        return Task.reconstruction(rows) if hidden is None else Task.masked(rows, hidden)

    def _loss(self, rows: Rows, parameters: Parameters) -> float:
        """The objective over all rows; hidden coordinates are the same every time."""
        total = 0.0
        for block, part in rows.blocks(self.n_clusters + rows.dim):
            hidden = None if self._hidden is None else self._hidden[block]
            task = self._task(part, hidden)
            total += squared_loss(task, reconstruct(task, parameters, self.n_steps, self.rate))
        return total / rows.total

    def _advance(self, rows: Rows, state: State) -> State:
        assert isinstance(state, _ClAMState)
        parameters, first, second = state.parameters, state.first, state.second
        updates = state.updates
        parameters = Parameters(parameters.means, self._beta_now(state), parameters.log_weights)
        for batch in self._batches(len(rows)):
            part = rows.take(batch)
            task = self._task(part, None if self._hidden is None else self._mask(part.values))
            gradient = reconstruction_gradient(task, parameters, self.n_steps, self.rate)
            mean = 1 / float(part.weights.sum())
            # beta is learned on a logarithmic scale, so that it stays above zero.
            found = (gradient.means, parameters.beta * gradient.beta, gradient.log_weights)
            updates += 1
            first = tuple(0.9 * m + 0.1 * mean * g for m, g in zip(first, found, strict=True))
            second = tuple(
                0.999 * v + 0.001 * (mean * g) ** 2 for v, g in zip(second, found, strict=True)
            )
            parameters = self._updated(parameters, first, second, updates, state.iteration)
        final = parameters
        if self.schedule != "learned":
            final = Parameters(parameters.means, state.final_beta, parameters.log_weights)
        loss = self._loss(rows, final)
        return _ClAMState(
            final, first, second, updates, state.iteration + 1, state.final_beta, loss
        )

    def _beta_now(self, state: _ClAMState) -> float:
        if self.schedule != "annealed":
            return state.parameters.beta
        progress = min(state.iteration / ANNEALING_ITERATIONS, 1.0)
        return state.final_beta * ANNEALING_START ** (1 - progress)

    def _batches(self, n_rows: int) -> Iterator[Any]:
        """At least ten updates; whole passes in a new random order where rows are many."""
        if n_rows <= self.batch_size:
            for _ in range(UPDATES_PER_ITERATION):
                yield slice(None)
            return
        passes = max(1, UPDATES_PER_ITERATION * self.batch_size // n_rows)
        for _ in range(passes):
            order = torch.randperm(n_rows, generator=self._noise)
            yield from order.split(self.batch_size)

    def _updated(
        self,
        parameters: Parameters,
        first: tuple[Tensor, ...],
        second: tuple[Tensor, ...],
        updates: int,
        iteration: int,
    ) -> Parameters:
        """One Adam update, slower and slower over the iterations."""
        rate = self.learning_rate / math.sqrt(1 + iteration)
        moves = [
            rate * (m / (1 - 0.9**updates)) / ((v / (1 - 0.999**updates)).sqrt() + 1e-8)
            for m, v in zip(first, second, strict=True)
        ]
        means = self._projected(parameters.means - moves[0])
        beta = parameters.beta
        if self.schedule == "learned":
            beta = beta * math.exp(-float(moves[1]))
        log_weights = parameters.log_weights
        if self._learns_weights:
            log_weights = torch.log_softmax(log_weights - moves[2], 0)
        return Parameters(means, beta, log_weights)

    def _has_converged(self, trace: list[float]) -> bool:
        if self.schedule == "annealed" and len(trace) <= ANNEALING_ITERATIONS + PATIENCE:
            return False
        if len(trace) <= PATIENCE:
            return False
        return min(trace[:-PATIENCE]) - min(trace[-PATIENCE:]) <= self.tol * abs(trace[0])

    def _adopt(self, state: State) -> None:
        assert isinstance(state, _ClAMState)
        self._adopt_parameters(state.parameters)
        del self._noise, self._hidden

    def _adopt_parameters(self, parameters: Parameters) -> None:
        means = self._projected(parameters.means)
        super()._adopt_parameters(replace(parameters, means=means))

    def _in_units(self, objectives: NDArray[Any], rows: Rows) -> NDArray[Any]:
        return objectives * self._scale**2

    @property
    def energy_(self) -> Mixture | VonMisesFisherMixture:
        """The learned energy in the units of the data: a Mixture, or one on the sphere."""
        log_weights = np.log(np.maximum(self.weights_, 1e-300)).astype(self.memories_.dtype)
        if self._is_spherical:
            return VonMisesFisherMixture(self.memories_, 2 * self.beta_, log_weights)
        return Mixture(self.memories_, self.beta_, log_weights)


def _learnable(parameters: Parameters) -> tuple[Tensor, Tensor, Tensor]:
    means = parameters.means
    return means, means.new_zeros(()), parameters.log_weights
