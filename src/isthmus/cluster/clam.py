"""ClAM: memories learned by gradient descent through the dynamics of retrieval."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from typing import Any, Literal, NamedTuple

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from torch import Tensor

from isthmus.cluster.base import PATIENCE, LearnedEnergy
from isthmus.cluster.data import AnyRows, Rows, require_in_memory
from isthmus.cluster.elbo import FiniteMixtureEstimator
from isthmus.cluster.statistics import ClusterStatistics, MixtureParameters
from isthmus.errors import InvalidInputError
from isthmus.kernel.logits import distance_logits
from isthmus.memories.vmf import VonMisesFisherMixture
from isthmus.validation import as_choice, as_count, as_number

Objective = Literal["reconstruction", "masked"]
Likelihood = Literal["gaussian", "vmf"]
Schedule = Literal["fixed", "annealed", "learned"]

# An iteration makes at least this many updates, however few rows there are.
UPDATES_PER_ITERATION = 10
# Annealing starts at this share of beta and reaches it after this many iterations.
ANNEALING_START, ANNEALING_ITERATIONS = 0.1, 20


def summed_loss(
    rows: Rows, hidden: Tensor | None, parameters: MixtureParameters, steps: int, rate: float
) -> Tensor:
    """Return the weighted sum over rows of the squared distance between their end and start.

    Steps are x <- x + rate * (sum_k r_k mu_k - x). With hidden coordinates (n, D), the loss is that
    of ClAM's code: those start at their mean, and only they move and count. Unknown coordinates
    never count.
    """
    x, moving, scored = rows.values, None, rows.observed
    means, beta, log_weights = parameters
    if hidden is not None:
        x, moving, scored = x * (1 - hidden), hidden, hidden
        if rows.observed is not None:
            moving, scored = torch.maximum(hidden, 1 - rows.observed), hidden * rows.observed
    for _ in range(steps):
        mean = torch.softmax(distance_logits(x, means, log_weights, beta), 1) @ means
        x = torch.lerp(x, mean, rate) if moving is None else x + rate * moving * (mean - x)
    away = (x - rows.values).square()
    return rows.weights @ (away if scored is None else away * scored).sum(1)


class _Learned(NamedTuple):
    """What Adam moves; beta on a logarithmic scale, so that it stays above zero."""

    means: Tensor
    log_beta: Tensor
    log_weights: Tensor

    def parameters(self) -> MixtureParameters:
        beta: Any = self.log_beta.exp()
        return MixtureParameters(self.means, beta, self.log_weights)


@dataclass(frozen=True)
class _ClAMState:
    """One start of the training: `hidden` (N, D) is for evaluating, `noise` draws batches."""

    parameters: MixtureParameters
    adam: torch.optim.Adam
    learned: _Learned
    iteration: int
    hidden: Tensor | None
    noise: torch.Generator
    objective: float


@dataclass(eq=False, repr=False)
class ClAM(FiniteMixtureEstimator):
    r"""Clustering by associative memory (ClAM), with beta = 1 / (2 sigma^2).

    Rows move on the energy of a :class:`isthmus.Mixture` for `n_steps` steps,
    :math:`x \leftarrow x + \eta (\sum_k r_k \mu_k - x)`, and the memories descend the loss
    that this leaves, by gradients through all steps (Adam, mini-batches).
    ``objective="reconstruction"`` is the paper's loss, the squared distance to the start of the
    row; ``"masked"`` is that of ClAM's authors: some coordinates are hidden, and only they move
    and count (erratum E27; unlike in the authors' code, every coordinate may be hidden).

    Training starts from k-means and keeps that solution as a candidate. The estimator exists for
    fidelity to the paper: on labels it is about as good as k-means, and :class:`ClAMELBO` learns
    the same kind of model faster.

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
    n_steps, rate : int, float
        T and :math:`\eta`; ClAM's authors use 10 and 0.1.
    mask_fraction : float
        Share of the coordinates that the masked objective hides.
    learning_rate : float
        Step size of Adam, in units of the standard deviation of the data.
    batch_size : int
    weights, init, n_init, max_iter, tol, warm_start, random_state, verbose
        As in :class:`ClAMELBO`. Training stops when the objective has fallen by no more than
        the share `tol` in five iterations.

    Notes
    -----
    Attributes are as in :class:`ClAMELBO`. ``objective_`` is the mean loss per row, in squared
    units. A stream is learned as by :class:`ClAMELBO`; the rows of a fit must be in memory. See
    Saha et al., "End-to-end Differentiable Clustering with Associative Memories", ICML 2023.

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

    @property
    def _n_parameters(self) -> int:
        return super()._n_parameters - self._is_spherical * self.n_clusters_

    def _projected(self, means: Tensor) -> Tensor:
        lengths = torch.linalg.vector_norm(means, dim=1, keepdim=True).clamp(min=1e-30)
        return means / lengths if self._is_spherical else means

    def _rows_of(self, X: Any, sample_weight: Any) -> AnyRows:
        require_in_memory(X, "ClAM")
        return super()._rows_of(X, sample_weight)

    def _starts(
        self, rows: AnyRows, generator: RandomState, given: Tensor | None
    ) -> Iterator[_ClAMState]:
        assert isinstance(rows, Rows)
        noise = torch.Generator().manual_seed(int(generator.randint(2**31)))
        hidden = self._mask(rows, noise)
        for parameters in self._initial_parameters(rows, generator, given):
            means, beta, log_weights = parameters
            learned = _Learned(means.clone(), means.new_tensor(beta).log(), log_weights.clone())
            moved = [learned.means, *[learned.log_beta] * (self.schedule == "learned")]
            moved += [learned.log_weights] * self._learns_weights
            adam = torch.optim.Adam([each.requires_grad_() for each in moved])
            loss = self._loss(rows, hidden, parameters)
            yield _ClAMState(parameters, adam, learned, 0, hidden, noise, loss)

    def _mask(self, rows: Rows, noise: torch.Generator) -> Tensor | None:
        """Draw the hidden coordinates of the masked objective, at least one in every row."""
        if self.objective != "masked":
            return None
        chance = torch.rand(rows.values.shape, generator=noise, dtype=rows.values.dtype)
        lowest = chance.amin(1, keepdim=True)
        return ((chance < self.mask_fraction) | (chance == lowest)).to(chance.dtype)

    def _loss(self, rows: Rows, hidden: Tensor | None, parameters: MixtureParameters) -> float:
        """Return the objective over all rows; hidden coordinates are the same every time."""
        steps, rate = int(self.n_steps), float(self.rate)
        losses = (
            summed_loss(block, None if hidden is None else hidden[where], parameters, steps, rate)
            for where, block in rows.blocks(len(parameters.means) + rows.dim)
        )
        return float(sum(losses)) / rows.total

    def _advance(self, rows: AnyRows, state: _ClAMState) -> _ClAMState:
        assert isinstance(rows, Rows)
        learned, adam, beta = state.learned, state.adam, state.parameters.beta
        if self.schedule == "annealed":
            done = min(state.iteration / ANNEALING_ITERATIONS, 1.0)
            learned.log_beta.fill_(math.log(beta * ANNEALING_START ** (1 - done)))
        # The step size falls over the iterations.
        adam.param_groups[0]["lr"] = self.learning_rate / math.sqrt(1 + state.iteration)
        for batch in self._batches(len(rows), state.noise):
            part = rows if batch is None else rows.take(batch)
            hidden, steps = self._mask(part, state.noise), int(self.n_steps)
            adam.zero_grad()
            with torch.enable_grad():
                loss = summed_loss(part, hidden, learned.parameters(), steps, float(self.rate))
                (loss / part.total).backward()
            adam.step()
            learned.means.copy_(self._projected(learned.means))
            learned.log_weights.copy_(torch.log_softmax(learned.log_weights, 0))
        if self.schedule == "learned":
            beta = float(learned.log_beta.exp())
        means, log_weights = (
            each.detach().clone() for each in (learned.means, learned.log_weights)
        )
        parameters = MixtureParameters(means, beta, log_weights)
        total = self._loss(rows, state.hidden, parameters)
        return replace(state, parameters=parameters, iteration=state.iteration + 1, objective=total)

    def _batches(self, n_rows: int, noise: torch.Generator) -> Iterator[Any]:
        """Yield at least ten batches: whole passes in a new random order if rows are many."""
        size = int(self.batch_size)
        if n_rows <= size:
            for _ in range(UPDATES_PER_ITERATION):
                yield None
            return
        for _ in range(max(1, UPDATES_PER_ITERATION * size // n_rows)):
            yield from torch.randperm(n_rows, generator=noise).split(size)

    def _batch_objective(
        self, rows: Rows, parameters: MixtureParameters, statistics: ClusterStatistics
    ) -> float:
        hidden = self._mask(rows, torch.Generator().manual_seed(self.n_steps_))
        return self._loss(rows, hidden, parameters)

    def _has_converged(self, trace: list[float]) -> bool:
        fewest = PATIENCE + ANNEALING_ITERATIONS * (self.schedule == "annealed")
        return len(trace) > fewest and min(trace[:-PATIENCE]) - min(
            trace[-PATIENCE:]
        ) <= self.tol * abs(trace[0])

    def _in_units(self, objectives: NDArray[Any], rows: AnyRows) -> NDArray[Any]:
        return objectives * self._units.scale**2

    @property
    def energy_(self) -> LearnedEnergy:
        """The learned energy in the units of the data: a Mixture, or one on the sphere."""
        if self._is_spherical:
            return VonMisesFisherMixture(self.memories_, 2 * self.beta_, self._log_weights)
        return super().energy_
