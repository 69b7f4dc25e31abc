"""Inference in a Chinese-restaurant-process mixture: assigning rows, opening, merging clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from functools import reduce
from operator import add
from typing import Any

import numpy as np
import torch
from scipy.special import betaln, gammaln
from torch import Tensor

from isthmus.cluster.data import AnyRows, Rows, projected
from isthmus.cluster.statistics import ClusterStatistics, MixtureParameters

# Rows that a sequential pass assigns together; within a block, only rows that open clusters wait.
BLOCK_ROWS = 1024
# The count of a cluster minus the discount is at least this, so that its logarithm exists.
SMALLEST_EXCESS = 1e-3
# A cluster that holds less than this share of an average row closes.
SMALLEST_COUNT = 0.5
# Passes that settle clusters while beta is being chosen.
SETTLING_PASSES = 20


def partition_log_prior(sizes: Any, alpha: float, discount: float = 0.0) -> float:
    r"""Return the log-probability of a partition under a Pitman-Yor process.

    .. math:: p = \prod_{k<K} (\alpha + k d) \prod_k \frac{\Gamma(n_k - d)}{\Gamma(1 - d)}
        \Big/ \prod_{i<n} (\alpha + i)

    Sizes (K,) may be fractions, as of weighted rows; less than one row counts as one.
    """
    counts = torch.as_tensor(sizes, dtype=torch.float64)
    total = float(counts.sum())
    if total == 0:
        return 0.0
    opened = sum(_log_new_mass(k, alpha, discount) for k in range(len(counts)))
    # log Gamma(alpha) / Gamma(alpha + n), without the cancellation of a large alpha.
    ordering = float(betaln(alpha, total) - gammaln(total))
    return float(_log_rising(counts, discount).sum()) + opened + ordering


def _log_new_mass(n_clusters: int, alpha: float, discount: float) -> float:
    mass = alpha + n_clusters * discount
    return math.log(mass) if mass > 0 else -math.inf


def _log_rising(counts: Tensor, discount: float) -> Tensor:
    """Return log Gamma(n - d) / Gamma(1 - d), the weight of a cluster of n rows."""
    # The gamma function's pole at n = d would reward clusters for being nearly empty.
    return torch.lgamma(counts.clamp(min=1) - discount) - float(gammaln(1 - discount))


@dataclass(frozen=True)
class CRPPrior:
    """The fixed parameters of a :class:`isthmus.CRPMixture` about the origin, in internal units.

    Likelihoods are raised to the power `temper`, which beta and rho contain already.
    """

    beta: float
    rho: float
    alpha: float
    discount: float
    temper: float = 1.0
    normalized: bool = True

    def means(self, clusters: ClusterStatistics) -> Tensor:
        """Return the posterior means of clusters. (K, D) float64"""
        return self.beta * clusters.sums / (self.beta * clusters.masses + self.rho)

    def parameters(self, clusters: ClusterStatistics, dtype: torch.dtype) -> MixtureParameters:
        """Return the clusters as a mixture whose log-weights are log(count - discount)."""
        excess = (clusters.counts - self.discount).clamp(min=SMALLEST_EXCESS)
        return MixtureParameters(self.means(clusters).to(dtype), self.beta, excess.log().to(dtype))

    def new_logits(self, rows: Rows, n_clusters: int) -> Tensor:
        """Return the logit of the new cluster on the scale of ``log_joint``. (n,)"""
        known: Any = rows.dim if rows.observed is None else rows.coordinates()
        kappa = 1 / (1 / self.beta + 1 / self.rho)
        # The printed form lacks the normaliser; integrating coordinates out adds some of it.
        coordinates = self.temper * (known if self.normalized else known - rows.dim)
        log_mass = _log_new_mass(n_clusters, self.alpha, self.discount)
        constant = log_mass + 0.5 * coordinates * math.log(kappa / self.beta)
        return (self.beta - kappa) * rows.squares + constant

    def log_evidence(self, clusters: ClusterStatistics) -> float:
        """Return log p(rows, partition), means integrated out, plus the entropy (erratum E2)."""
        half = 0.5 * self.temper
        fit = self.beta**2 * clusters.sums.square() / (self.beta * clusters.masses + self.rho)
        penalty = half * torch.log1p(clusters.masses * self.beta / self.rho)
        prior = partition_log_prior(clusters.counts, self.alpha, self.discount)
        rows = half * clusters.coordinates * math.log(self.beta / math.pi)
        rows -= self.beta * clusters.square
        return float((fit - penalty).sum()) + prior + clusters.entropy + rows

    def merge_gains(self, clusters: ClusterStatistics) -> Tensor:
        """Return by how much the log evidence rises if two clusters become one. (K, K)"""
        counts, dim = clusters.counts, clusters.sums.shape[1]
        # Unknown coordinates count as if they were at the mean of their cluster.
        known = clusters.masses > 0
        sums = torch.where(known, clusters.sums / clusters.masses.clamp(min=1e-300), 0.0)
        sums = sums * counts[:, None]
        squares = sums.square().sum(1)

        def evidence(counts: Tensor, squares: Tensor) -> Tensor:
            fit = self.beta**2 * squares / (self.beta * counts + self.rho)
            penalty = 0.5 * self.temper * dim * torch.log1p(counts * self.beta / self.rho)
            return fit - penalty + _log_rising(counts, self.discount)

        alone = evidence(counts, squares)
        gains = evidence(
            counts[:, None] + counts, squares[:, None] + squares + 2 * sums @ sums.T
        ).sub_(alone[:, None] + alone)
        gains -= _log_new_mass(len(clusters) - 1, self.alpha, self.discount)
        return gains.fill_diagonal_(-torch.inf)

    def merged(self, clusters: ClusterStatistics) -> ClusterStatistics:
        """Merge pairs of clusters for as long as the evidence rises."""
        while len(clusters) > 1:
            best, partner = self.merge_gains(clusters).max(1)
            everyone = torch.arange(len(clusters))
            mutual = (partner[partner] == everyone) & (best > 0) & (everyone < partner)
            if not bool(mutual.any()):
                break
            groups = everyone.clone()
            groups[partner[mutual]] = everyone[mutual]
            clusters = clusters.grouped(groups)
        return clusters


def sequential_pass(
    rows: Rows, order: np.ndarray, prior: CRPPrior, clusters: ClusterStatistics | None = None
) -> ClusterStatistics:
    """Assign rows one after another, each to a cluster of earlier rows or to a new one."""
    clusters = clusters or ClusterStatistics.empty(0, rows.dim)
    for start in range(0, len(order), BLOCK_ROWS):
        block = rows.take(torch.from_numpy(order[start : start + BLOCK_ROWS]))
        labels, size = _assigned_in_order(block, clusters, prior)
        clusters = clusters.with_rows(block, labels, size)
    return clusters


def _assigned_in_order(
    rows: Rows, clusters: ClusterStatistics, prior: CRPPrior
) -> tuple[Tensor, int]:
    """Return the cluster of each row (n,), new ones last, and the number of clusters."""
    size, dtype = len(clusters), rows.values.dtype
    new = prior.new_logits(rows, size)
    if size:
        best, labels = prior.parameters(clusters, dtype).log_joint(rows).max(1)
    else:
        best, labels = torch.full_like(new, -torch.inf), torch.zeros(len(rows), dtype=torch.int64)
    waiting = torch.nonzero(new > best)[:, 0]
    while len(waiting):
        group = rows.take(waiting)
        founder = group.take(slice(0, 1))
        opened = ClusterStatistics.of_shares(founder, founder.weights[:, None])
        joins = prior.parameters(opened, dtype).log_joint(group)[:, 0]
        joined = joins >= prior.new_logits(group, size + 1)
        joined[0] = True
        labels[waiting[joined]] = size
        waiting = waiting[~joined]
        size += 1
    return labels, size


@dataclass(frozen=True)
class Assigned:
    """Rows divided among clusters, and rows that belong to none."""

    clusters: ClusterStatistics
    strangers: Rows | None

    def __add__(self, other: Assigned) -> Assigned:
        strangers = [each for each in (self.strangers, other.strangers) if each is not None]
        joined = reduce(add, strangers) if strangers else None
        return Assigned(self.clusters + other.clusters, joined)


@torch.no_grad()
def _assigned(
    rows: Rows, clusters: ClusterStatistics, prior: CRPPrior, soft: bool, opens: bool
) -> Assigned:
    """Divide rows among clusters; with `opens`, set those apart that are more probably new."""
    parameters = prior.parameters(clusters, rows.dtype)
    assigned, outside = ClusterStatistics.empty(len(clusters), rows.dim), torch.zeros(len(rows)) > 0
    for where, block in rows.blocks(len(clusters) + rows.dim):
        logits = parameters.log_joint(block)
        if opens:
            outside[where] = strange = prior.new_logits(block, len(clusters)) > logits.amax(1)
            if bool(strange.any()):
                block, logits = block.take(~strange), logits[~strange]
        entropy = 0.0
        if not soft:
            shares = block.hard_shares(logits.argmax(1), len(clusters))
        else:
            shares = torch.softmax(logits, 1)
            surprise = torch.logsumexp(logits, 1) - (shares * logits).sum(1)
            entropy = float(block.weights @ surprise)
            shares *= block.weights[:, None]
        assigned = assigned + replace(ClusterStatistics.of_shares(block, shares), entropy=entropy)
    return Assigned(assigned, rows.take(outside) if bool(outside.any()) else None)


def reassign(
    rows: AnyRows, clusters: ClusterStatistics, prior: CRPPrior, soft: bool, *, opens: bool = True
) -> ClusterStatistics:
    """Assign all rows anew, opening clusters unless `opens` is False, and drop empty ones."""
    kept = clusters.counts >= SMALLEST_COUNT * rows.total / len(rows)
    if soft and bool(kept.any()):
        # Soft assignments never leave a cluster entirely, and a large alpha favours every cluster
        # that exists, so without this the number of clusters would only grow.
        clusters = clusters.select(kept)
    found: Assigned = rows.reduce(_assigned, clusters, prior, soft, opens)
    assigned = found.clusters
    if found.strangers is not None:
        # The same order whether or not the rows are in blocks.
        order = np.argsort(projected(found.strangers.values.numpy()), kind="stable")
        opened = sequential_pass(found.strangers, order, prior)
        if soft:
            return reassign(rows, clusters.joined(opened), prior, soft, opens=False)
        assigned = assigned.joined(opened)
    return assigned.select(assigned.counts > 1e-6).with_totals_of(rows)


def settle(
    rows: Rows, clusters: ClusterStatistics, prior: CRPPrior, soft: bool
) -> ClusterStatistics:
    """Merge and reassign until the evidence changes no more."""
    evidence = prior.log_evidence(clusters)
    for _ in range(SETTLING_PASSES):
        clusters = reassign(rows, prior.merged(clusters), prior, soft)
        before, evidence = evidence, prior.log_evidence(clusters)
        if abs(before - evidence) <= 1e-6 * abs(evidence):
            break
    return clusters
