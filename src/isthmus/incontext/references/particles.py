"""Weighted partitions of sequences into the components of a mixture, for many tasks."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor

from isthmus.incontext.references.clusters import ClusterLaw, SufficientStatistics

__all__ = ["Particles"]


class Particles:
    """Assignments of the first n points of every sequence to K components, with weights.

    While :attr:`complete`, there is one particle for each distinct partition, and the sum of the
    weights is the exact evidence. After that, they are a sample of fixed size.

    Attributes
    ----------
    labels : Tensor (R, P, n)
    clusters : SufficientStatistics of (R, P, K)
    log_nodes : Tensor (R, P, K, J)
        Log-likelihood of each cluster at each width, the width's prior weight included.
    log_weights : Tensor (R, P)
        Their log-sum-exp is the log-evidence of the n points.
    """

    def __init__(
        self,
        law: ClusterLaw,
        sequence: Tensor,
        limit: int,
        labels: Tensor,
        clusters: SufficientStatistics,
        log_weights: Tensor,
    ) -> None:
        self.law, self.sequence, self.limit = law, sequence, limit
        self.labels, self.clusters, self.log_weights = labels, clusters, log_weights
        self.log_nodes = law.over_nodes(clusters)
        self.complete = True

    @classmethod
    def empty(cls, law: ClusterLaw, sequence: Tensor, limit: int) -> Particles:
        """Return one particle without assignments for each row of sequence (R, N, D)."""
        rows, _, dim = sequence.shape
        shape = (rows, 1, law.prior.components)
        clusters = SufficientStatistics(
            sequence.new_zeros(shape), sequence.new_zeros(*shape, dim), sequence.new_zeros(shape)
        )
        labels = torch.zeros((rows, 1, 0), dtype=torch.long)
        return cls(law, sequence, limit, labels, clusters, sequence.new_zeros(rows, 1))

    def observe(self, index: int, sweeps: int, generator: torch.Generator) -> None:
        """Assign the point at `index`, the first without a label."""
        if self.complete and int(self._ways()[0].count_nonzero()) > self.limit:
            self.complete = False
            self._resample(torch.ones(len(self.sequence), dtype=torch.bool), generator)
        x = self.sequence[:, index, None, None]  # (R, 1, 1, D)
        log_nodes = self.law.over_nodes(self.clusters.plus(x))
        log_ratio = torch.logsumexp(log_nodes, -1) - torch.logsumexp(self.log_nodes, -1)
        ways = self._ways()
        log_choice = (
            log_ratio + ways.double().log() - math.log(self.law.prior.components)
        )  # (R, P, K)
        if self.complete:
            # All rows have all partitions, so they have the same choices.
            parent, choice = ways[0].nonzero(as_tuple=True)
            self._copy(parent.expand(len(x), -1))
            self.log_weights = self.log_weights + log_choice[:, parent, choice]
            self._assign(choice.expand(len(x), -1), x, log_nodes[:, parent])
            return
        self.log_weights = self.log_weights + torch.logsumexp(log_choice, dim=-1)
        self._assign(_categorical(log_choice, generator), x, log_nodes)
        effective = self.log_weights.softmax(-1).square().sum(-1).reciprocal()
        uneven = effective < self.limit / 2
        if bool(uneven.any()):
            self._resample(uneven, generator)
            for _ in range(sweeps):
                self._sweep(uneven.nonzero()[:, 0], generator)

    def draw_stds(self, generator: torch.Generator) -> Tensor:
        """Draw the width of every cluster given its points. (R, P, K)."""
        return self.law.stds[_categorical(self.log_nodes, generator)]

    def _ways(self) -> Tensor:
        """Return the number of components that each choice represents: (R, P, K).

        Empty components are interchangeable: the first represents all of them.
        """
        empty = self.clusters.counts == 0
        first = empty & (empty.cumsum(-1) == 1)
        return torch.where(first, empty.sum(-1, keepdim=True), (~empty).long())

    def _assign(self, choice: Tensor, x: Tensor, log_nodes: Tensor) -> None:
        """Put point x (R, 1, 1, D) into the cluster `choice` (R, P) of each particle."""
        chosen = F.one_hot(choice, self.law.prior.components).bool()  # (R, P, K)
        old, new = self.clusters, self.clusters.plus(x)
        self.clusters = SufficientStatistics(
            torch.where(chosen, new.counts, old.counts),
            torch.where(chosen[..., None], new.sums, old.sums),
            torch.where(chosen, new.squares, old.squares),
        )
        self.log_nodes = torch.where(chosen[..., None], log_nodes, self.log_nodes)
        self.labels = torch.cat([self.labels, choice[..., None]], dim=-1)

    def _copy(self, parent: Tensor) -> None:
        """Replace particle p of row r by a copy of particle parent[r, p]. (R, P)."""
        row = torch.arange(len(parent))[:, None]
        self.labels, self.log_nodes = self.labels[row, parent], self.log_nodes[row, parent]
        self.log_weights = self.log_weights[row, parent]
        self.clusters = SufficientStatistics(*(part[row, parent] for part in self.clusters))

    def _resample(self, uneven: Tensor, generator: torch.Generator) -> None:
        """Resample the marked rows systematically. (R,) bool."""
        weights = self.log_weights.softmax(-1)
        offset = torch.rand((len(weights), 1), generator=generator, dtype=weights.dtype)
        ladder = (torch.arange(self.limit) + offset) / self.limit
        parent = torch.searchsorted(weights.cumsum(-1), ladder).clamp(max=weights.shape[-1] - 1)
        parent = torch.where(uneven[:, None], parent, torch.arange(self.limit))
        level = torch.logsumexp(self.log_weights, -1, keepdim=True) - math.log(self.limit)
        self._copy(parent)
        self.log_weights = torch.where(uneven[:, None], level, self.log_weights)

    def _sweep(self, rows: Tensor, generator: torch.Generator) -> None:
        """Do a Gibbs sweep in some rows: draw widths, then means, then labels."""
        clusters = SufficientStatistics(*(part[rows] for part in self.clusters))
        stds = self.law.stds[_categorical(self.log_nodes[rows], generator)]  # (r, P, K)
        means = self.law.draw_means(clusters, stds, generator)  # (r, P, K, D)
        seen = self.sequence[rows, : self.labels.shape[-1]]  # (r, n, D)
        squares = sum(
            (seen[:, None, :, None, d] - means[:, :, None, :, d]).square()
            for d in range(seen.shape[-1])
        )  # (r, P, n, K)
        precision = stds.square().reciprocal()[:, :, None]
        log_choice = self.law.prior.dim / 2 * precision.log() - squares * precision / 2
        labels = _categorical(log_choice, generator)
        chosen = F.one_hot(labels, stds.shape[-1]).to(seen.dtype)  # (r, P, n, K)
        clusters = SufficientStatistics(
            chosen.sum(2),
            torch.einsum("rpnk,rnd->rpkd", chosen, seen),
            torch.einsum("rpnk,rn->rpk", chosen, seen.square().sum(-1)),
        )
        self.labels[rows] = labels
        self.log_nodes[rows] = self.law.over_nodes(clusters)
        for mine, new in zip(self.clusters, clusters, strict=True):
            mine[rows] = new


def _categorical(logits: Tensor, generator: torch.Generator) -> Tensor:
    """Draw one index from each softmax over the last axis. (..., K) -> (...)."""
    levels = logits.softmax(-1).cumsum(-1)
    unit = torch.rand(logits.shape[:-1], generator=generator, dtype=logits.dtype)
    return (levels < unit[..., None]).sum(-1).clamp(max=logits.shape[-1] - 1)
