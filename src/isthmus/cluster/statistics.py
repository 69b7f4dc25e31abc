"""Statistics of rows that are divided among clusters, and the parameters of mixtures."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor

from isthmus.cluster.data import AnyRows, Rows
from isthmus.kernel.logits import distance_logits


class MixtureParameters(NamedTuple):
    """The parameters of an :class:`isthmus.Mixture` (K, D), in internal units."""

    means: Tensor
    beta: float
    log_weights: Tensor

    def log_joint(self, rows: Rows) -> Tensor:
        """Return log p(x, z = k) without the term that all memories share. (n, K)"""
        return distance_logits(rows.values, self.means, self.log_weights, self.beta, rows.observed)


@dataclass(frozen=True)
class ClusterStatistics:
    """Sufficient statistics of rows that are divided among clusters, in float64.

    Of each cluster: the weight of its rows, their weighted sum, and the weight of known
    coordinates. Of all rows: the weighted sums of squared lengths and of known coordinates, the
    entropy of the assignments, and the log-likelihood if it was computed.
    """

    counts: Tensor
    sums: Tensor
    masses: Tensor
    square: float = 0.0
    coordinates: float = 0.0
    entropy: float = 0.0
    log_likelihood: float = 0.0

    @classmethod
    def empty(cls, n_clusters: int, dim: int) -> ClusterStatistics:
        """Return the statistics of clusters without rows."""
        zeros = torch.zeros(n_clusters, dim, dtype=torch.float64)
        return cls(torch.zeros(n_clusters, dtype=torch.float64), zeros, zeros)

    @classmethod
    def of_shares(cls, rows: Rows, shares: Tensor) -> ClusterStatistics:
        """Return the statistics of weighted shares (n, K), without the totals over all rows."""
        counts = shares.sum(0).double()
        sums = (shares.T @ rows.values).double()
        masses = counts[:, None].expand_as(sums)
        if rows.observed is not None:
            masses = (shares.T @ rows.observed).double()
        return cls(counts, sums, masses)

    def __len__(self) -> int:
        return len(self.counts)

    def __add__(self, other: ClusterStatistics) -> ClusterStatistics:
        return ClusterStatistics(*(mine + yours for mine, yours in zip(self, other, strict=True)))

    def __iter__(self) -> Iterator[Any]:
        return iter(vars(self).values())

    def scaled(self, factor: float) -> ClusterStatistics:
        """Return the statistics of rows that weigh `factor` times as much."""
        return ClusterStatistics(*(part * factor for part in self))

    def _mapped(self, function: Callable[[Tensor], Tensor]) -> ClusterStatistics:
        """Apply a function to the counts, sums and masses of the clusters."""
        counts, sums, masses = map(function, (self.counts, self.sums, self.masses))
        return replace(self, counts=counts, sums=sums, masses=masses)

    def with_totals_of(self, rows: AnyRows) -> ClusterStatistics:
        """Set the totals over all rows."""
        return replace(self, square=rows.square, coordinates=rows.known_total)

    def with_rows(self, rows: Rows, labels: Tensor, n_clusters: int) -> ClusterStatistics:
        """Add rows to the clusters of their labels; labels may exceed the present clusters."""
        grown = self.joined(ClusterStatistics.empty(n_clusters - len(self), rows.dim))
        added = ClusterStatistics.of_shares(rows, rows.hard_shares(labels, n_clusters))
        return grown + added.with_totals_of(rows)

    def joined(self, other: ClusterStatistics) -> ClusterStatistics:
        """Return these clusters followed by those of `other`; totals stay those of self."""
        if not len(other):
            return self
        return replace(
            self,
            counts=torch.cat([self.counts, other.counts]),
            sums=torch.cat([self.sums, other.sums]),
            masses=torch.cat([self.masses, other.masses]),
        )

    def grouped(self, groups: Tensor) -> ClusterStatistics:
        """Merge clusters that have the same number in `groups` (K,)."""
        numbers, labels = torch.unique(groups, return_inverse=True)
        members = (labels == torch.arange(len(numbers))[:, None]).double()
        return self._mapped(lambda part: members @ part)

    def select(self, kept: Tensor) -> ClusterStatistics:
        """Return some of the clusters; totals stay."""
        return self._mapped(lambda part: part[kept])

    def means(self, fallback: Tensor) -> Tensor:
        """Return the weighted means; clusters without rows stay at `fallback`. (K, D) float64"""
        # Below this share of a row, a ratio of two rounding errors would decide.
        wanted = self.masses > 1e-12 * self.masses.sum().clamp(min=1e-300)
        means = self.sums / torch.where(wanted, self.masses, 1.0)
        return torch.where(wanted, means, fallback.double())

    def variance(self, means: Tensor, dtype: torch.dtype) -> float:
        """Return the mean squared distance of rows to `means` (K, D) per known coordinate.

        It is at least so large that rounding errors of rows of this type do not decide.
        """
        means, smallest = means.double(), 1e-10 if dtype == torch.float64 else 1e-6
        cross, own = (means * self.sums).sum(), (self.masses * means.square()).sum()
        return max(float(self.square - 2 * cross + own) / max(self.coordinates, 1e-300), smallest)

    def calinski_harabasz(self) -> float:
        """Return the spread between clusters over that within, each per degree of freedom."""
        total, size = float(self.counts.sum()), len(self)
        if size < 2 or total <= size:
            return -math.inf
        means = self.sums / self.masses.clamp(min=1e-300)
        explained = float((self.sums * means).sum())
        centre = float(self.sums.sum(0).square().sum()) / total
        within = max(self.square - explained, 1e-12 * self.square)
        return (explained - centre) / (size - 1) / (within / (total - size))


def expectation(
    rows: AnyRows,
    parameters: MixtureParameters,
    flow: Callable[[Tensor], Any] | None = None,
) -> ClusterStatistics:
    """Divide all rows among the memories, by the exact posterior or the end of a flow to it."""
    divided: ClusterStatistics = rows.reduce(_divided, parameters, flow)
    return divided.with_totals_of(rows)


@torch.no_grad()
def _divided(
    rows: Rows, parameters: MixtureParameters, flow: Callable[[Tensor], Any] | None
) -> ClusterStatistics:
    statistics = ClusterStatistics.empty(len(parameters.means), rows.dim)
    for _, block in rows.blocks(len(parameters.means) + rows.dim):
        logits = parameters.log_joint(block)
        if flow is None:  # one exponential serves shares and log-sum-exps
            # numpy finds the largest of each row in a quarter of the time that torch needs.
            top = torch.from_numpy(logits.numpy().max(1, keepdims=True))
            shares = logits.sub_(top).exp_()
            mass = shares.sum(1)
            total = mass.log().add_(top[:, 0])
            shares.mul_((block.weights / mass)[:, None])
        else:
            shares = flow(logits).probabilities * block.weights[:, None]
            total = torch.logsumexp(logits, 1)
        # The term of each row that log_joint leaves out.
        total += 0.5 * math.log(parameters.beta / math.pi) * block.coordinates()
        log_likelihood = float(block.weights @ (total - parameters.beta * block.squares))
        part = ClusterStatistics.of_shares(block, shares)
        statistics = statistics + replace(part, log_likelihood=log_likelihood)
    return statistics
