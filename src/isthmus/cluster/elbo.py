"""Mixtures with a given number of memories: their template, and ClAM+ELBO, which learns by EM."""

from __future__ import annotations

import math
import warnings
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

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
from isthmus.cluster.statistics import ClusterStatistics, MixtureParameters, expectation
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.memories.mixture import Mixture
from isthmus.printing import counted
from isthmus.validation import as_choice, as_count, as_number, as_numbers, as_points

Dynamics = Literal["exact", "mirror", "euclidean"]
DYNAMICS = ("exact", "mirror", "euclidean")
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
                beta = 0.5 / statistics.variance(means, rows.dtype)
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
            beta = 0.5 / statistics.variance(means, rows.dtype)
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
        labels = parameters.log_joint(rows).numpy().argmax(1)
        statistics = expectation(rows, parameters)
        rate = max(1 / (self.n_steps_ + 1), SMALLEST_RATE)
        running = statistics.scaled(rate / rows.total)
        if self.n_steps_:
            running = self._statistics.scaled(1 - rate) + running
        self._statistics = running
        self.n_steps_ += 1
        self.n_iter_ = self.n_steps_
        self._adopt_parameters(self._maximised(rows, running, parameters))
        return labels, self._batch_objective(rows, parameters, statistics)

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


def elbo_energy(logits: Tensor, log_joint: Tensor) -> Tensor:
    r"""Return the energy of assignment logits, the negative evidence lower bound.

    .. math:: E(q) = -\sum_k q_k \log p(x, z=k) + \sum_k q_k \log q_k, \quad q = softmax(v)

    Its minimum, at the posterior, is :math:`-\log p(x)`. The paper prints :math:`+H(q)`,
    whose descent would end at a vertex (erratum E2). Both tensors are (..., K).

    Examples
    --------
    >>> import torch
    >>> log_joint = torch.tensor([-1.0, -2.0])
    >>> float(elbo_energy(log_joint, log_joint) + torch.logsumexp(log_joint, 0))
    0.0
    """
    logits, log_joint = as_points(logits, "logits"), as_points(log_joint, "log_joint")
    try:
        torch.broadcast_shapes(logits.shape, log_joint.shape)
    except RuntimeError as error:
        raise ShapeError(f"logits and log_joint must have shapes that broadcast: {error}") from None
    if logits.shape[-1:] != log_joint.shape[-1:]:
        raise ShapeError(f"logits and log_joint must have one K: {logits.shape[-1:]} differs.")
    log_q = torch.log_softmax(logits, -1)
    return (log_q.exp() * (log_q - log_joint)).sum(-1)


class Flow(NamedTuple):
    """The end of a flow of assignment logits."""

    logits: Tensor
    """v, with mean zero. (..., K)"""
    steps: Tensor
    """The number of steps of each row. (...)"""
    converged: Tensor
    """True for rows that reached the posterior within the tolerance. (...)"""

    @property
    def probabilities(self) -> Tensor:
        """q = softmax(v). (..., K)"""
        return torch.softmax(self.logits, -1)


def elbo_flow(
    log_joint: Tensor,
    dynamics: Dynamics = "exact",
    *,
    start: Tensor | None = None,
    step_size: float = 0.5,
    tol: float = 1e-6,
    max_steps: int = 3000,
) -> Flow:
    r"""Follow the flow of assignment logits to the posterior.

    ``"exact"`` is one natural-gradient step, :math:`v \leftarrow \log p(x, z)`. ``"mirror"``
    integrates :math:`\dot v = \log p - \log q`, which is linear and never stalls.
    ``"euclidean"`` integrates the paper's
    :math:`\dot v = (\mathrm{diag}\, q - q q^\top)(\log p - \log q)`; the metric vanishes where q
    is nearly one-hot, so it stalls for a time that grows exponentially with the logits
    (erratum E4). The paper's extra :math:`-1` drops out (erratum E3).

    Parameters
    ----------
    log_joint : Tensor (..., K)
    start : Tensor (..., K), optional
        Default: zero, a uniform assignment.
    step_size : float
        Step of the integration. For ``"mirror"`` at most 2.
    tol : float
        A row stops when its probabilities are within this of the posterior.
    max_steps : int
        Rows that need more steps are reported as not converged.

    Examples
    --------
    >>> import torch
    >>> log_joint = torch.tensor([[0.3, -0.2, 0.1]])
    >>> elbo_flow(log_joint, "mirror").probabilities
    tensor([[0.4123, 0.2501, 0.3376]])
    """
    as_choice(dynamics, "dynamics", DYNAMICS)
    log_joint, max_steps = as_points(log_joint, "log_joint"), as_count(max_steps, "max_steps")
    if not log_joint.shape[-1]:
        raise ShapeError(f"log_joint has no clusters: its shape is {tuple(log_joint.shape)}.")
    step_size, tol = as_number(step_size, "step_size", above=0), as_number(tol, "tol", at_least=0)
    if start is not None:
        start = as_points(start, "start", like=log_joint)
        if start.shape != log_joint.shape:
            raise ShapeError(
                f"start must be {tuple(log_joint.shape)} as log_joint, not {tuple(start.shape)}."
            )
    target = log_joint - log_joint.mean(-1, keepdim=True)
    posterior = torch.softmax(target, -1)
    steps = torch.zeros(log_joint.shape[:-1], dtype=torch.int64, device=log_joint.device)
    if dynamics == "exact":
        return Flow(target, steps + 1, steps == 0)
    logits = torch.zeros_like(target) if start is None else start - start.mean(-1, keepdim=True)
    for done in range(max_steps + 1):
        log_q = torch.log_softmax(logits, -1)
        q = log_q.exp()
        moving = (q - posterior).abs().amax(-1) > tol
        if done == max_steps or not bool(moving.any()):
            break
        pull = target - log_q
        if dynamics == "euclidean":
            pull = q * (pull - (q * pull).sum(-1, keepdim=True))
        else:
            pull = pull - pull.mean(-1, keepdim=True)
        logits = torch.where(moving[..., None], logits + step_size * pull, logits)
        steps += moving
    return Flow(logits, steps, ~moving)


@dataclass(frozen=True)
class _ELBOState:
    parameters: MixtureParameters
    statistics: ClusterStatistics
    objective: float


@dataclass(eq=False, repr=False)
class ClAMELBO(FiniteMixtureEstimator):
    r"""Clustering by memory with posteriors (ClAM+ELBO), with beta = 1 / (2 sigma^2).

    The state of a row is its vector of assignment logits; they flow to the posterior, and
    memories, beta and weights take the closed-form values that are best for it. This is
    expectation maximisation on a mixture of round Gaussians with one variance, so the
    objective, the mean negative log-density, never rises.

    On labels it is about as good as k-means; it adds posteriors, densities, missing values and
    streams.

    Parameters
    ----------
    n_clusters : int
    dynamics : {"exact", "mirror", "euclidean"}
        The flow to the posterior; see :func:`elbo_flow`. All end at the same point.
    beta : "learned" or float
        Components have covariance I / (2 beta).
    weights : "uniform", "learned" or array (n_clusters,)
        Mixing proportions.
    init : {"k-means", "k-means++", "random"} or array (n_clusters, n_features)
        Words choose among 50,000 distinct rows if there are more.
    n_init : "auto" or int
        Number of starts; auto is 10 up to 20,000 distinct rows, else 1.
    max_iter, tol : int, float
        Stop when the objective falls by no more than `tol` (nats per row) in an iteration.
    warm_start : bool
        Continue from the memories of the previous fit.
    random_state, verbose : int, RandomState or None; int
        Above zero, `verbose` shows a progress bar.

    Attributes
    ----------
    memories_, cluster_centers_ : ndarray (n_clusters, n_features)
    weights_, beta_ : ndarray (n_clusters,), float
        The other parameters of `energy_`, a :class:`isthmus.Mixture`.
    objective_, objective_trace_ : float, ndarray
        In a stream, that of each batch before it was learned from.
    labels_ : ndarray (n_samples,)
    n_clusters_, n_iter_, n_features_in_, converged_

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAMELBO
    >>> X = np.array([[0.0, 0.1], [0.2, 0.0], [4.0, 4.1], [4.2, np.nan]])
    >>> model = ClAMELBO(2, random_state=0).fit(X)
    >>> bool(model.labels_[2] == model.labels_[3] != model.labels_[0])
    True
    >>> model.complete(X)[3].round(2)
    array([4.2, 4.1])
    """

    _: KW_ONLY
    dynamics: Dynamics = "exact"
    beta: Any = "learned"
    max_iter: int = 300

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        as_choice(self.dynamics, "dynamics", DYNAMICS)

    def _starts(
        self, rows: AnyRows, generator: RandomState, given: Tensor | None
    ) -> Iterator[_ELBOState]:
        for parameters in self._initial_parameters(rows, generator, given):
            yield self._evaluated(rows, parameters)

    def _advance(self, rows: AnyRows, state: _ELBOState) -> _ELBOState:
        return self._evaluated(rows, self._maximised(rows, state.statistics, state.parameters))

    def _evaluated(self, rows: AnyRows, parameters: MixtureParameters) -> _ELBOState:
        flow = None if self.dynamics == "exact" else partial(elbo_flow, dynamics=self.dynamics)
        statistics = expectation(rows, parameters, flow)
        return _ELBOState(parameters, statistics, -statistics.log_likelihood / rows.total)
