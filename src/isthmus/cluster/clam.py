"""ClAM: memories learned by gradient descent through the dynamics of retrieval."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.cluster.base import PATIENCE, LearnedEnergy
from isthmus.cluster.data import AnyRows, MixtureParameters, Rows, Units
from isthmus.cluster.elbo import FiniteMixtureEstimator
from isthmus.errors import InvalidInputError
from isthmus.logits import distance_logits
from isthmus.memories.vmf import VonMisesFisherMixture
from isthmus.validation import as_choice, as_count, as_number

Objective = Literal["reconstruction", "masked"]
Likelihood = Literal["gaussian", "vmf"]
Schedule = Literal["fixed", "annealed", "learned"]

# An iteration makes at least this many updates, however few rows there are.
UPDATES_PER_ITERATION = 10
# Annealing starts at this share of beta and reaches it after this many iterations.
ANNEALING_START, ANNEALING_ITERATIONS = 0.1, 20

# The exact gradient through T steps is written by hand; a test compares it with autograd. If all
# coordinates move, the steps need not visit them: the state is a share of the row plus a mixture of
# memories, so its K logits follow from one another, and coordinates are needed at both ends only.


class Reconstruction(NamedTuple):
    """A problem for the dynamics: where rows (n, D) start and where they should arrive.

    `moving` is one for coordinates that may move (None: all), `scored` the weight of each in the
    loss (None: one).
    """

    start: Tensor
    target: Tensor
    moving: Tensor | None
    scored: Tensor | None
    weights: Tensor

    @classmethod
    def of(cls, rows: Rows, hidden: Tensor | None) -> Reconstruction:
        """Return the paper's problem: rows move and should return to where they began.

        With hidden coordinates (n, D), return that of ClAM's code: those start at their mean, and
        only they move and count. Unknown coordinates never count.
        """
        if hidden is None:
            return cls(rows.values, rows.values, None, rows.observed, rows.weights)
        scored = hidden if rows.observed is None else hidden * rows.observed
        moving = hidden if rows.observed is None else torch.maximum(hidden, 1 - rows.observed)
        return cls(rows.values * (1 - hidden), rows.values, moving, scored, rows.weights)

    def residual(self, x: Tensor) -> Tensor:
        """Return the scored differences from the target. (n, D)"""
        away = x - self.target
        return away if self.scored is None else away * self.scored

    def loss(self, x: Tensor) -> float:
        """Return the weighted sum over rows of the squared distance to the target."""
        return float(self.weights @ self.residual(x).mul(x - self.target).sum(1))


class Gradient(NamedTuple):
    """The derivatives of the summed loss."""

    means: Tensor
    beta: Tensor
    log_weights: Tensor


def reconstruct(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> Tensor:
    """Return x(T) of x <- x + rate * moving * (sum_k r_k mu_k - x). (n, D)"""
    if _logits_suffice(problem, parameters):
        return _flow_of_logits(problem, parameters, steps, rate)[0]
    last = deque(_flow(problem, parameters, steps, rate), maxlen=1)
    return last[0][2]


def reconstruction_gradient(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> Gradient:
    """Return the gradient of the loss of :func:`reconstruct`."""
    backward = _back_by_logits if _logits_suffice(problem, parameters) else _back
    by_means, by_scaled, by_offset = backward(problem, parameters, steps, rate)
    means, beta = parameters.means, parameters.beta
    return Gradient(
        by_means + 2 * beta * by_scaled - 2 * beta * by_offset[:, None] * means,
        2 * (by_scaled * means).sum() - by_offset @ means.square().sum(1),
        by_offset,
    )


def _logits_suffice(problem: Reconstruction, parameters: MixtureParameters) -> bool:
    n_memories, dim = parameters.means.shape
    return problem.moving is None and n_memories <= 2 * dim


def _logits(x: Tensor, parameters: MixtureParameters) -> Tensor:
    return distance_logits(x, parameters.means, parameters.log_weights, parameters.beta)


def _flow(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
    """Yield x, its posteriors (n, K) and the next x, for each step."""
    x = problem.start
    for _ in range(steps):
        shares = torch.softmax(_logits(x, parameters), 1)
        mean = shares @ parameters.means
        if problem.moving is None:
            moved = torch.lerp(x, mean, rate)
        else:
            moved = x + rate * problem.moving * (mean - x)
        yield x, shares, moved
        x = moved


def _back(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return derivatives by the means, and by `scaled` and offset of logits offset + x . scaled."""
    means, scaled, moving = parameters.means, 2 * parameters.beta * parameters.means, problem.moving
    path = list(_flow(problem, parameters, steps, rate))
    upstream = 2 * problem.residual(path[-1][2]) * problem.weights[:, None]
    by_means = torch.zeros_like(means)
    by_offset = means.new_zeros(len(means))
    by_scaled = torch.zeros_like(means)
    for x, shares, _ in reversed(path):
        pull = upstream if moving is None else upstream * moving
        by_means.addmm_(shares.T, pull, alpha=rate)
        by_shares = pull @ means.T
        by_logits = torch._softmax_backward_data(by_shares, shares, 1, shares.dtype).mul_(rate)
        by_offset += by_logits.sum(0)
        by_scaled.addmm_(by_logits.T, x)
        kept = (1 - rate) * upstream if moving is None else upstream - rate * pull
        upstream = torch.addmm(kept, by_logits, scaled)
    return by_means, by_scaled, by_offset


def _flow_of_logits(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> tuple[Tensor, list[Tensor], Tensor]:
    """Return x(T), the posteriors (n, K) of each step, and the blend (n, K) of memories.

    x(T) = (1 - rate)^T x(0) + blend @ means, so that only logits need to be followed.
    """
    logits = _logits(problem.start, parameters)
    between = _logits(parameters.means, parameters)
    blend = torch.zeros_like(logits)
    shares: list[Tensor] = []
    for step in range(steps):
        if step:
            logits.addmm_(shares[-1], between, beta=1 - rate, alpha=rate)
        shares.append(torch.softmax(logits, 1))
        blend.lerp_(shares[-1], rate)
    x = torch.addmm(problem.start, blend, parameters.means, beta=(1 - rate) ** steps)
    return x, shares, blend


def _back_by_logits(
    problem: Reconstruction, parameters: MixtureParameters, steps: int, rate: float
) -> tuple[Tensor, Tensor, Tensor]:
    """Return the same as :func:`_back` if all coordinates move."""
    means, scaled = parameters.means, 2 * parameters.beta * parameters.means
    x, shares, blend = _flow_of_logits(problem, parameters, steps, rate)
    upstream = 2 * problem.residual(x) * problem.weights[:, None]
    by_shares = rate * upstream @ means.T
    between = scaled @ means.T
    by_offset = means.new_zeros(len(means))
    crossed = torch.zeros_like(between)
    # Derivatives by the logits of all later steps, discounted to the present one.
    later = torch.zeros_like(blend)
    for step in reversed(range(steps)):
        crossed.addmm_(later.T, shares[step], alpha=rate)
        by_logits = torch._softmax_backward_data(by_shares, shares[step], 1, blend.dtype)
        by_offset += by_logits.sum(0)
        later = torch.add(by_logits, later, alpha=1 - rate)
        if step:
            by_shares.addmm_(by_logits, between, beta=1 - rate, alpha=rate)
    by_means = torch.addmm(blend.T @ upstream, crossed.T, scaled)
    by_scaled = torch.addmm(later.T @ problem.start, crossed, means)
    return by_means, by_scaled, by_offset


class _Summed(NamedTuple):
    """Tensors that are added one by one."""

    parts: tuple[Tensor, ...]

    def __add__(self, other: Any) -> _Summed:
        return _Summed(tuple(a + b for a, b in zip(self.parts, other.parts, strict=True)))


@torch.no_grad()
def _whole_gradient(rows: Rows, parameters: MixtureParameters, steps: int, rate: float) -> _Summed:
    problem = Reconstruction.of(rows, None)
    return _Summed(tuple(reconstruction_gradient(problem, parameters, steps, rate)))


@torch.no_grad()
def _summed_loss(
    rows: Rows, hidden: Tensor | None, parameters: MixtureParameters, steps: int, rate: float
) -> float:
    total = 0.0
    for where, block in rows.blocks(len(parameters.means) + rows.dim):
        problem = Reconstruction.of(block, None if hidden is None else hidden[where])
        total += problem.loss(reconstruct(problem, parameters, steps, rate))
    return total


class _Adam(NamedTuple):
    """The running moments of the gradients by means, log beta and log-weights."""

    first: list[Tensor]
    second: list[Tensor]
    updates: int = 0

    def updated(self, gradients: list[Tensor]) -> _Adam:
        """Add the gradients of one update."""
        first = [0.9 * m + 0.1 * g for m, g in zip(self.first, gradients, strict=True)]
        second = [0.999 * v + 0.001 * g**2 for v, g in zip(self.second, gradients, strict=True)]
        return _Adam(first, second, self.updates + 1)

    def moves(self, rate: float) -> list[Tensor]:
        """Return the decrease of each parameter in this update."""
        bias, square_bias = 1 - 0.9**self.updates, 1 - 0.999**self.updates
        pairs = zip(self.first, self.second, strict=True)
        return [rate * (m / bias) / ((v / square_bias).sqrt() + 1e-8) for m, v in pairs]


@dataclass(frozen=True)
class _ClAMState:
    """One start of the training.

    `final_beta` ends a schedule, `hidden` (N, D) are the coordinates that the masked objective
    hides whenever it is evaluated, and `noise` draws batches and masks.
    """

    parameters: MixtureParameters
    adam: _Adam
    iteration: int
    final_beta: float
    hidden: Tensor | None
    noise: torch.Generator
    objective: float


@dataclass(eq=False, repr=False)
class ClAM(FiniteMixtureEstimator):
    r"""Clustering by associative memory (ClAM).

    Rows move on the energy of a :class:`isthmus.Mixture` for `n_steps` steps,
    :math:`x \leftarrow x + \eta (\sum_k r_k \mu_k - x)`, and the memories descend the loss
    that this leaves, by exact gradients through all steps (Adam, mini-batches).
    ``objective="reconstruction"`` is the paper's loss, the squared distance to the start of the
    row; ``"masked"`` is that of ClAM's authors: some coordinates are hidden, and only they move
    and count (erratum E27; unlike in the authors' code, every coordinate may be hidden).

    Training starts from k-means and keeps that solution as a candidate, so the objective is
    never worse than that of k-means. The estimator exists for fidelity to the paper: on labels
    it is about as good as k-means, and :class:`ClAMELBO` learns the same kind of model faster.

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
        Keep beta, raise it from a tenth of its value in the first 20 iterations, or learn it.
    weights : "uniform", "learned" or array (n_clusters,)
        Mixing proportions.
    n_steps, rate : int, float
        T and :math:`\eta`; ClAM's authors use 10 and 0.1.
    mask_fraction : float
        Share of the coordinates that the masked objective hides.
    learning_rate : float
        Step size of Adam, in units of the standard deviation of the data.
    batch_size : int
    init, n_init, max_iter, tol, warm_start, random_state, verbose
        As in :class:`ClAMELBO`. Training stops when the objective has fallen by no more than
        the share `tol` in five iterations.

    Notes
    -----
    Attributes are as in :class:`ClAMELBO`. ``objective_`` is the mean loss per row, in squared
    units, also in a stream, whose updates are those of :class:`ClAMELBO`.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAM
    >>> X = np.array([[0.0, 0.1], [0.2, 0.0], [4.0, 4.1], [4.2, 4.0]])
    >>> sorted(ClAM(2, random_state=0).fit(X).memories_.round(1)[:, 0].tolist())
    [0.1, 4.1]
    """

    _: KW_ONLY
    objective: Objective = "reconstruction"
    likelihood: Likelihood = "gaussian"
    schedule: Schedule = "fixed"
    n_steps: int = 10
    rate: float = 0.1
    mask_fraction: float = 0.2
    learning_rate: float = 0.01
    batch_size: int = 1024
    tol: float = 1e-3

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        as_choice(self.objective, "objective", ("reconstruction", "masked"))
        as_choice(self.likelihood, "likelihood", ("gaussian", "vmf"))
        as_choice(self.schedule, "schedule", ("fixed", "annealed", "learned"))
        as_count(self.n_steps, "n_steps")
        as_count(self.batch_size, "batch_size")
        as_number(self.rate, "rate", above=0, at_most=1)
        as_number(self.mask_fraction, "mask_fraction", above=0, below=1)
        as_number(self.learning_rate, "learning_rate", above=0)

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
            raise InvalidInputError(
                "likelihood='vmf' clusters directions: rows must be complete and not all zero."
            )
        return table / lengths

    def _units_of(self, X: NDArray[Any], weights: NDArray[Any]) -> Units:
        units = super()._units_of(X, weights)
        return Units(np.zeros_like(units.centre), 1.0) if self._is_spherical else units

    @property
    def _dof_of_memories(self) -> int:
        return super()._dof_of_memories - self._is_spherical * self.n_clusters_

    def _projected(self, means: Tensor) -> Tensor:
        if not self._is_spherical:
            return means
        return means / torch.linalg.vector_norm(means, dim=1, keepdim=True).clamp(min=1e-30)

    def _starts(
        self, rows: AnyRows, generator: np.random.RandomState, given: Tensor | None
    ) -> Iterator[_ClAMState]:
        noise = torch.Generator().manual_seed(int(generator.randint(2**31)))
        hidden = self._mask(rows, noise) if isinstance(rows, Rows) else None
        for parameters in self._initial_parameters(rows, generator, given):
            means, beta, log_weights = parameters
            zeros = [torch.zeros_like(means), means.new_zeros(()), torch.zeros_like(log_weights)]
            loss = self._loss(rows, hidden, parameters)
            yield _ClAMState(parameters, _Adam(zeros, zeros), 0, beta, hidden, noise, loss)

    def _mask(self, rows: Rows, noise: torch.Generator) -> Tensor | None:
        """Draw the hidden coordinates of the masked objective, at least one in every row."""
        if self.objective != "masked":
            return None
        chance = torch.rand(rows.values.shape, generator=noise, dtype=rows.values.dtype)
        lowest = chance.amin(1, keepdim=True)
        return ((chance < self.mask_fraction) | (chance == lowest)).to(chance.dtype)

    def _loss(self, rows: AnyRows, hidden: Tensor | None, parameters: MixtureParameters) -> float:
        """Return the objective over all rows; hidden coordinates are the same every time."""
        return float(
            rows.reduce(_summed_loss, hidden, parameters, int(self.n_steps), self.rate) / rows.total
        )

    def _advance(self, rows: AnyRows, state: _ClAMState) -> _ClAMState:
        parameters, adam = state.parameters, state.adam
        if self.schedule == "annealed":
            done = min(state.iteration / ANNEALING_ITERATIONS, 1.0)
            parameters = parameters._replace(beta=state.final_beta * ANNEALING_START ** (1 - done))
        # The step size falls over the iterations.
        rate = self.learning_rate / math.sqrt(1 + state.iteration)
        if len(rows) > int(self.batch_size) and not isinstance(rows, Rows):
            raise InvalidInputError(
                f"On rows in blocks, ClAM takes all of them in every update: set batch_size to "
                f"{len(rows)} or more, or use partial_fit or ClAMELBO."
            )
        for batch in self._batches(len(rows), state.noise):
            found, total = self._gradient(rows, batch, parameters, state.noise)
            # beta is learned on a logarithmic scale, so that it stays above zero.
            gradients = found._replace(beta=parameters.beta * found.beta)
            adam = adam.updated([each / total for each in gradients])
            parameters = self._moved(parameters, adam.moves(rate))
        if self.schedule != "learned":
            parameters = parameters._replace(beta=state.final_beta)
        loss = self._loss(rows, state.hidden, parameters)
        iteration = state.iteration + 1
        return replace(state, parameters=parameters, adam=adam, iteration=iteration, objective=loss)

    def _gradient(
        self, rows: Any, batch: Any, parameters: MixtureParameters, noise: torch.Generator
    ) -> tuple[Gradient, float]:
        """Return the summed gradient of some rows, and their weight; None stands for all rows."""
        settings = int(self.n_steps), self.rate
        if batch is None and self.objective != "masked":
            summed = rows.reduce(_whole_gradient, parameters, *settings)
            return Gradient(*summed.parts), rows.total
        part = rows if batch is None else rows.take(batch)
        problem = Reconstruction.of(part, self._mask(part, noise))
        found = reconstruction_gradient(problem, parameters, *settings)
        return found, float(part.weights.sum())

    def _require_blocks(self) -> None:
        if self.objective == "masked" or self._is_spherical:
            raise InvalidInputError(
                "On rows in blocks, ClAM learns by objective='reconstruction' and "
                "likelihood='gaussian'. Gather the rows, or use partial_fit or ClAMELBO."
            )

    def _batches(self, n_rows: int, noise: torch.Generator) -> Iterator[Any]:
        """Yield at least ten batches: whole passes in a new random order if rows are many."""
        size = int(self.batch_size)
        if n_rows <= size:
            for _ in range(UPDATES_PER_ITERATION):
                yield None
            return
        for _ in range(max(1, UPDATES_PER_ITERATION * size // n_rows)):
            yield from torch.randperm(n_rows, generator=noise).split(size)

    def _moved(self, parameters: MixtureParameters, moves: list[Tensor]) -> MixtureParameters:
        """Return the parameters after one update by Adam."""
        means, beta, log_weights = parameters
        means = self._projected(means - moves[0])
        if self.schedule == "learned":
            beta = beta * math.exp(-float(moves[1]))
        if self._learns_weights:
            log_weights = torch.log_softmax(log_weights - moves[2], 0)
        return MixtureParameters(means, beta, log_weights)

    def _batch_objective(
        self, rows: Rows, parameters: MixtureParameters, log_likelihood: float
    ) -> float:
        hidden = self._mask(rows, torch.Generator().manual_seed(self.n_steps_))
        return self._loss(rows, hidden, parameters) * self._units.scale**2

    def _has_converged(self, trace: list[float]) -> bool:
        annealing = ANNEALING_ITERATIONS if self.schedule == "annealed" else 0
        if len(trace) <= annealing + PATIENCE:
            return False
        return min(trace[:-PATIENCE]) - min(trace[-PATIENCE:]) <= self.tol * abs(trace[0])

    def _in_units(self, objectives: NDArray[Any], rows: AnyRows) -> NDArray[Any]:
        return objectives * self._units.scale**2

    @property
    def energy_(self) -> LearnedEnergy:
        """The learned energy in the units of the data: a Mixture, or one on the sphere."""
        if self._is_spherical:
            return VonMisesFisherMixture(self.memories_, 2 * self.beta_, self._log_weights)
        return super().energy_
