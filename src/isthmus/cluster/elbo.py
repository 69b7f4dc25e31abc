"""ClAM+ELBO: assignment logits that flow to the posterior, and the mixture that they learn."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass
from functools import partial
from typing import Any, Literal, NamedTuple

import torch
from numpy.random import RandomState
from torch import Tensor

from isthmus.cluster.data import AnyRows
from isthmus.cluster.finite import FiniteMixtureEstimator
from isthmus.cluster.statistics import ClusterStatistics, MixtureParameters, expectation
from isthmus.errors import ShapeError
from isthmus.validation import as_choice, as_count, as_number, as_points

Dynamics = Literal["exact", "mirror", "euclidean"]
DYNAMICS = ("exact", "mirror", "euclidean")


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


def _posterior(log_joint: Tensor, dynamics: Dynamics) -> Tensor:
    return elbo_flow(log_joint, dynamics).probabilities


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
    random_state : int, RandomState or None
    verbose : int
        Above zero shows a progress bar.

    Attributes
    ----------
    memories_, cluster_centers_ : ndarray (n_clusters, n_features)
    weights_ : ndarray (n_clusters,)
    beta_ : float
    objective_ : float
        In a stream, that of the last batch before it was learned from.
    objective_trace_ : ndarray
    labels_ : ndarray (n_samples,)
    energy_ : Mixture
    n_clusters_, n_iter_, n_features_in_ : int
    converged_ : bool

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
        exact = self.dynamics == "exact"
        posterior = None if exact else partial(_posterior, dynamics=self.dynamics)
        statistics = expectation(rows, parameters, posterior)
        return _ELBOState(parameters, statistics, -statistics.log_likelihood / rows.total)
