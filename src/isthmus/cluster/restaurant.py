"""The Chinese restaurant process at work: seating rows, opening and merging clusters."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from scipy.special import betaln, gammaln
from torch import Tensor

from isthmus.cluster.data import Rows
from isthmus.cluster.statistics import Parameters, log_joint

__all__ = [
    "SMALLEST_PORTION",
    "Clusters",
    "House",
    "partition_log_prior",
    "seat",
    "seat_in_order",
]

# Rows seated together in the first pass; within a block, only rows that open clusters wait.
BLOCK_ROWS = 1024
# A cluster's count never falls closer to the discount than this, so that its logarithm exists.
SMALLEST_EXCESS = 1e-3
# A cluster that holds less than this share of one row, all its small portions together, closes.
SMALLEST_PORTION = 0.5


@dataclass(frozen=True)
class House:
    """The rules: how tight clusters are, how wide their means lie, how readily new ones open.

    Attributes
    ----------
    beta, rho : float
        Clusters have covariance I / (2 beta), their means I / (2 rho) about the origin.
    alpha, discount : float
    dim : float
        How many coordinates count in normalisers. The number of features, or fewer where
        features repeat each other (then beta and rho are tempered by the same factor).
    normalized : bool
        Whether the new cluster carries its normaliser; False is the paper's print.
    """

    beta: float
    rho: float
    alpha: float
    discount: float
    dim: float
    normalized: bool

    @property
    def kappa(self) -> float:
        """Concentration of the new cluster about the origin."""
        return 1 / (1 / self.beta + 1 / self.rho)

    def log_opening(self, n_clusters: int) -> float:
        """Log prior weight of a cluster that is not there yet."""
        return _log_opening(n_clusters, self.alpha, self.discount)

    def new_logits(self, rows: Rows, n_clusters: int) -> Tensor:
        """Logit of the new cluster, on the scale of :func:`log_joint`. (n,)"""
        logits = (self.beta - self.kappa) * rows.squares + self.log_opening(n_clusters)
        if self.normalized:
            share = 0.5 * self.dim / rows.dim * math.log(self.kappa / self.beta)
            logits += share * rows.coordinates()
        return logits

    def log_rest(self, square: float, coordinates: float, dim: int) -> float:
        """What the log evidence has beside :meth:`Clusters.log_evidence`: no partition changes it.

        Without it, the evidence of tighter and of wider clusters would not compare.

        Parameters
        ----------
        square, coordinates : float
            Sums over rows of squared lengths and of known coordinates, weighted.
        dim : int
            Features of a row.
        """
        share = 0.5 * self.dim / dim
        return share * coordinates * math.log(self.beta / math.pi) - self.beta * square

    def means(self, masses: Tensor, sums: Tensor) -> Tensor:
        """Posterior means of clusters. (K, D) float64"""
        return self.beta * sums / (self.beta * masses + self.rho)


@dataclass(frozen=True)
class Clusters:
    """Sufficient statistics of all clusters, in float64.

    Attributes
    ----------
    counts : Tensor (K,)
    sums : Tensor (K, D)
    masses : Tensor (K, D)
        Weight of known coordinates; the counts again where nothing is missing.
    entropy : float
        Of the assignments that the rest is the expectation of; zero where rows sit whole.
    """

    counts: Tensor
    sums: Tensor
    masses: Tensor
    entropy: float = 0.0

    @classmethod
    def none(cls, dim: int) -> Clusters:
        """An empty house."""
        empty = torch.zeros(0, dim, dtype=torch.float64)
        return cls(torch.zeros(0, dtype=torch.float64), empty, empty)

    def __len__(self) -> int:
        return len(self.counts)

    def parameters(self, house: House, dtype: torch.dtype) -> Parameters:
        """The clusters as a mixture; weights are logarithms of counts less the discount."""
        means = house.means(self.masses, self.sums).to(dtype)
        excess = (self.counts - house.discount).clamp(min=SMALLEST_EXCESS)
        return Parameters(means, house.beta, excess.log().to(dtype))

    def scaled(self, factor: float) -> Clusters:
        """The same, as if every row weighed `factor` times as much."""
        return Clusters(self.counts * factor, self.sums * factor, self.masses * factor)

    def select(self, kept: Tensor) -> Clusters:
        """Some of the clusters."""
        return Clusters(self.counts[kept], self.sums[kept], self.masses[kept])

    def worth_keeping(self, least: float) -> Clusters:
        """Those that hold at least so much; all, if none does.

        Rows that are spread never leave a cluster entirely, and every cluster that is there
        counts in the prior, with a large alpha to its favour. Without this they would only ever
        become more.
        """
        kept = self.counts >= least
        return self.select(kept) if bool(kept.any()) else self

    def with_rows(self, rows: Rows, labels: Tensor, n_clusters: int) -> Clusters:
        """The clusters after whole rows were added to them."""
        grown = self.padded(n_clusters)
        weights = rows.weights.double()
        counts = grown.counts.index_add(0, labels, weights)
        weighted = rows.values.double() * weights[:, None]
        sums = grown.sums.index_add(0, labels, weighted)
        known = weights[:, None].expand_as(weighted)
        if rows.observed is not None:
            known = rows.observed.double() * weights[:, None]
        masses = grown.masses.index_add(0, labels, known)
        return Clusters(counts, sums, masses)

    def padded(self, n_clusters: int) -> Clusters:
        """With empty clusters at the end, up to `n_clusters`."""
        extra = n_clusters - len(self)
        if extra <= 0:
            return self
        rows = self.sums.new_zeros(extra, self.sums.shape[1])
        return Clusters(
            torch.cat([self.counts, self.counts.new_zeros(extra)]),
            torch.cat([self.sums, rows]),
            torch.cat([self.masses, rows]),
        )

    def merged(self, house: House) -> Clusters:
        """Clusters joined, pair by pair, for as long as the evidence rises."""
        clusters = self
        while len(clusters) > 1:
            gains = clusters.merge_gains(house)
            best, partner = gains.max(1)
            everyone = torch.arange(len(clusters))
            mutual = (partner[partner] == everyone) & (best > 0) & (everyone < partner)
            if not bool(mutual.any()):
                break
            into = everyone.clone()
            into[partner[mutual]] = everyone[mutual]
            _, labels = torch.unique(into, return_inverse=True)
            empty = Clusters.none(self.sums.shape[1]).padded(int(labels.max()) + 1)
            clusters = Clusters(
                empty.counts.index_add(0, labels, clusters.counts),
                empty.sums.index_add(0, labels, clusters.sums),
                empty.masses.index_add(0, labels, clusters.masses),
            )
        return clusters

    def merge_gains(self, house: House) -> Tensor:
        """By how much the log evidence rises if two clusters become one. (K, K)"""
        counts = self.counts
        # Unknown coordinates count as if they sat at their cluster's mean.
        sums = torch.where(self.masses > 0, self.sums / self.masses.clamp(min=1e-300), 0.0)
        sums = sums * counts[:, None]
        squares = sums.square().sum(1)
        joint = counts[:, None] + counts
        joint_squares = squares[:, None] + squares + 2 * sums @ sums.T
        alone = _log_evidence(counts, squares, house)
        gains = _log_evidence(joint, joint_squares, house) - alone[:, None] - alone
        gains -= house.log_opening(len(self) - 1)
        return gains.fill_diagonal_(-torch.inf)

    def log_evidence(self, house: House) -> float:
        """Log of p(rows, partition), up to :meth:`House.log_rest`, which no partition changes.

        For soft assignments q, that of their expectations and the entropy of q: without it,
        the posterior would not be what scores best (erratum E2).
        """
        spread = 0.5 * house.dim / self.sums.shape[1]
        fit = house.beta**2 * self.sums.square() / (house.beta * self.masses + house.rho)
        penalty = spread * torch.log1p(self.masses * house.beta / house.rho)
        prior = partition_log_prior(self.counts, house.alpha, house.discount)
        return float((fit - penalty).sum()) + prior + self.entropy


def partition_log_prior(sizes: Any, alpha: float, discount: float = 0.0) -> float:
    r"""Log-probability that a Pitman-Yor process gives to a partition.

    .. math::
        p = \frac{\prod_{k=0}^{K-1} (\alpha + k d)}{\prod_{i=0}^{n-1} (\alpha + i)}
            \prod_k \frac{\Gamma(n_k - d)}{\Gamma(1 - d)}

    Without discount it is a Chinese restaurant process, and this is the Ewens formula.

    Parameters
    ----------
    sizes : array or Tensor (K,)
        How many rows each cluster has; fractions, as of weighted rows, are fine, but less
        than one row counts as one.
    alpha, discount : float

    Examples
    --------
    >>> import math
    >>> from isthmus.cluster.restaurant import partition_log_prior
    >>> round(math.exp(partition_log_prior([2, 1], alpha=1.0)), 6)  # 1/1 * 1/2 * 1/3
    0.166667
    """
    counts = torch.as_tensor(sizes, dtype=torch.float64)
    total = float(counts.sum())
    if total == 0:
        return 0.0
    openings = sum(_log_opening(k, alpha, discount) for k in range(len(counts)))
    # log Gamma(alpha) / Gamma(alpha + n), without the cancellation of a large alpha.
    seatings = float(betaln(alpha, total) - gammaln(total))
    return float(_log_rising(counts, discount).sum()) + openings + seatings


def _log_opening(n_clusters: int, alpha: float, discount: float) -> float:
    mass = alpha + n_clusters * discount
    return math.log(mass) if mass > 0 else -math.inf


def _log_evidence(counts: Tensor, squares: Tensor, house: House) -> Tensor:
    fit = house.beta**2 * squares / (house.beta * counts + house.rho)
    penalty = 0.5 * house.dim * torch.log1p(counts * house.beta / house.rho)
    return fit - penalty + _log_rising(counts, house.discount)


def _log_rising(counts: Tensor, discount: float) -> Tensor:
    """log Gamma(n - d) / Gamma(1 - d): the weight of a cluster that gathered n rows."""
    # The gamma function's pole at n = d would reward clusters for being nearly empty.
    return torch.lgamma(counts.clamp(min=1) - discount) - float(gammaln(1 - discount))


def seat_in_order(
    rows: Rows, order: np.ndarray, house: House, clusters: Clusters | None = None
) -> Clusters:
    """One sequential pass: every row joins a cluster or opens one, seeing those before it.

    Rows are taken in blocks. Within a block, rows for which the new cluster wins open
    clusters one after another; all others are seated together.
    """
    clusters = clusters or Clusters.none(rows.dim)
    for start in range(0, len(order), BLOCK_ROWS):
        block = rows.take(torch.from_numpy(order[start : start + BLOCK_ROWS]))
        labels, size = _place(block, clusters, house)
        clusters = clusters.with_rows(block, labels, size)
    return clusters


def _place(rows: Rows, clusters: Clusters, house: House) -> tuple[Tensor, int]:
    """A cluster for each row, new ones numbered after those known; and how many there are."""
    size = len(clusters)
    new = house.new_logits(rows, size)
    if size:
        logits = log_joint(rows, clusters.parameters(house, rows.values.dtype))
        best, labels = logits.max(1)
    else:
        best, labels = torch.full_like(new, -torch.inf), torch.zeros(len(rows), dtype=torch.int64)
    waiting = torch.nonzero(new > best)[:, 0]
    while len(waiting):
        group = rows.take(waiting)
        founder = group.take(slice(0, 1))
        opened = Clusters.none(rows.dim).with_rows(founder, torch.zeros(1, dtype=torch.int64), 1)
        joins = log_joint(group, opened.parameters(house, rows.values.dtype))[:, 0]
        joined = joins >= house.new_logits(group, size + 1)
        joined[0] = True
        labels[waiting[joined]] = size
        waiting = waiting[~joined]
        size += 1
    return labels, size


def seat(rows: Rows, clusters: Clusters, house: House, soft: bool) -> Clusters:
    """Seat all rows anew, whole or in proportion to the posterior; drop empty clusters."""
    if soft:
        clusters = clusters.worth_keeping(SMALLEST_PORTION * rows.total / len(rows))
    parameters = clusters.parameters(house, rows.values.dtype)
    known = len(clusters)
    fresh = Clusters.none(rows.dim).padded(known)
    opened = Clusters.none(rows.dim)
    entropy = 0.0
    for _, block in rows.blocks(known + rows.dim):
        logits = log_joint(block, parameters)
        new = house.new_logits(block, known)
        lost = new > logits.amax(1)
        settled = block.take(~lost) if bool(lost.any()) else block
        logits = logits[~lost] if bool(lost.any()) else logits
        if soft:
            shares = torch.softmax(logits, 1)
            surprise = torch.logsumexp(logits, 1) - (shares * logits).sum(1)
            entropy += float(settled.weights @ surprise)
            shares *= settled.weights[:, None]
        else:
            shares = torch.zeros_like(logits)
            shares.scatter_(1, logits.argmax(1, keepdim=True), settled.weights[:, None])
        fresh = _with_shares(fresh, settled, shares)
        if bool(lost.any()):
            strangers = block.take(lost)
            labels, size = _place(strangers, opened, house)
            opened = opened.with_rows(strangers, labels, size)
    if len(opened):
        fresh = Clusters(
            torch.cat([fresh.counts, opened.counts]),
            torch.cat([fresh.sums, opened.sums]),
            torch.cat([fresh.masses, opened.masses]),
        )
    return replace(fresh.select(fresh.counts > 1e-6), entropy=entropy)


def _with_shares(clusters: Clusters, rows: Rows, shares: Tensor) -> Clusters:
    counts = shares.sum(0).double()
    sums = (shares.T @ rows.values).double()
    masses = counts[:, None].expand_as(sums)
    if rows.observed is not None:
        masses = (shares.T @ rows.observed).double()
    return replace(
        clusters,
        counts=clusters.counts + counts,
        sums=clusters.sums + sums,
        masses=clusters.masses + masses,
    )
