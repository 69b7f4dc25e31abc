"""Expected counts, sums and likelihoods of rows under a mixture: one blocked pass."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from isthmus.cluster.data import Rows

__all__ = ["Parameters", "Statistics", "expectation", "log_joint"]

Posterior = Callable[[Tensor], Tensor]


@dataclass(frozen=True)
class Parameters:
    """A mixture of round Gaussians, in internal units.

    Attributes
    ----------
    means : Tensor (K, D)
    beta : float
        Components have covariance I / (2 beta).
    log_weights : Tensor (K,)
        Normalised.
    """

    means: Tensor
    beta: float
    log_weights: Tensor


@dataclass(frozen=True)
class Statistics:
    """What one pass over rows leaves behind: all that a closed-form update needs.

    Attributes
    ----------
    counts : Tensor (K,) float64
        Expected weight of each memory.
    sums : Tensor (K, D) float64
        Expected sum of its rows.
    masses : Tensor (K, D) or None
        Expected weight per coordinate, where some are unknown.
    square : float
        Weighted sum of squared lengths of all rows.
    coordinates : float
        Weighted number of known coordinates.
    log_likelihood : float
        Weighted sum of log-likelihoods under the parameters of the pass.
    labels : Tensor (N,) or None
        The most probable memory of each row, where a pass was asked for it.
    """

    counts: Tensor
    sums: Tensor
    masses: Tensor | None
    square: float
    coordinates: float
    log_likelihood: float
    labels: Tensor | None = None

    def scaled(self, factor: float) -> Statistics:
        """The same, as if every weight were `factor` times as large."""
        return Statistics(
            self.counts * factor,
            self.sums * factor,
            None if self.masses is None else self.masses * factor,
            self.square * factor,
            self.coordinates * factor,
            self.log_likelihood * factor,
        )

    def __add__(self, other: Statistics) -> Statistics:
        masses = self.masses
        if masses is not None or other.masses is not None:
            masses = self.full_masses() + other.full_masses()
        return Statistics(
            self.counts + other.counts,
            self.sums + other.sums,
            masses,
            self.square + other.square,
            self.coordinates + other.coordinates,
            self.log_likelihood + other.log_likelihood,
        )

    def full_masses(self) -> Tensor:
        """Weight per memory and coordinate. (K, D)"""
        if self.masses is not None:
            return self.masses
        return self.counts[:, None].expand_as(self.sums)

    def means(self, fallback: Tensor) -> Tensor:
        """The best memories; those that no row wants stay at `fallback`. (K, D) float64"""
        masses = self.full_masses()
        # Below this share of a row, a ratio of two roundings would decide.
        wanted = masses > 1e-12 * masses.sum().clamp(min=1e-300)
        return torch.where(wanted, self.sums / torch.where(wanted, masses, 1.0), fallback.double())

    def residual(self, means: Tensor) -> float:
        """Expected weighted squared distance of rows to their memories, were these `means`."""
        means = means.double()
        cross = (means * self.sums).sum()
        own = (self.full_masses() * means.square()).sum()
        return max(float(self.square - 2 * cross + own), 0.0)


def log_joint(rows: Rows, parameters: Parameters) -> Tensor:
    """log p(x, z = k) but for a term per row. (n, K)"""
    means, beta = parameters.means, parameters.beta
    if rows.observed is None:
        offset = parameters.log_weights - beta * means.square().sum(1)
        return torch.addmm(offset, rows.values, means.T, alpha=2 * beta)
    logits = torch.addmm(parameters.log_weights, rows.values, means.T, alpha=2 * beta)
    return logits.addmm_(rows.observed, means.square().T, alpha=-beta)


def row_terms(rows: Rows, beta: float) -> Tensor:
    """What :func:`log_joint` leaves out: the same for all memories. (n,)"""
    return 0.5 * math.log(beta / math.pi) * rows.coordinates() - beta * rows.squares


def expectation(
    rows: Rows,
    parameters: Parameters,
    posterior: Posterior | None = None,
    with_labels: bool = False,
) -> Statistics:
    """One pass over all rows.

    Parameters
    ----------
    posterior : callable, optional
        From log-joints (n, K) to assignment probabilities (n, K); exact if not given.
    """
    n_memories = len(parameters.means)
    counts = torch.zeros(n_memories, dtype=torch.float64)
    sums = torch.zeros(n_memories, rows.dim, dtype=torch.float64)
    masses = None if rows.observed is None else torch.zeros_like(sums)
    log_likelihood = square = coordinates = 0.0
    labels = torch.empty(len(rows), dtype=torch.int64) if with_labels else None
    for where, block in rows.blocks(n_memories + rows.dim):
        logits = log_joint(block, parameters)
        # numpy finds the largest of each row in a quarter of the time that torch needs.
        best = torch.from_numpy(logits.numpy().argmax(1))
        top = logits.gather(1, best[:, None])
        if labels is not None:
            labels[where] = best
        shares, total = _weighted_shares(logits, top, block.weights, posterior)
        counts += shares.sum(0)
        sums += shares.T @ block.values
        if masses is not None and block.observed is not None:
            masses += shares.T @ block.observed
        total += row_terms(block, parameters.beta)
        log_likelihood += float(block.weights @ total)
        square += float(block.weights @ block.squares)
        coordinates += float(block.weights @ block.coordinates())
    return Statistics(counts, sums, masses, square, coordinates, log_likelihood, labels)


def _weighted_shares(
    logits: Tensor, top: Tensor, weights: Tensor, posterior: Posterior | None
) -> tuple[Tensor, Tensor]:
    """Assignment probabilities times weights (n, K), and log-sum-exps (n,).

    One exponential serves both; the logits are overwritten.
    """
    if posterior is not None:
        return posterior(logits) * weights[:, None], torch.logsumexp(logits, 1)
    shares = logits.sub_(top).exp_()
    mass = shares.sum(1)
    total = mass.log().add_(top[:, 0])
    return shares.mul_((weights / mass)[:, None]), total
