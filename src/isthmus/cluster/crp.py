"""ClAM+CRP and ClAM+CRP+ELBO: the number of memories is inferred from the data."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import KW_ONLY, dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.random import RandomState
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from torch import Tensor

from isthmus.cluster.base import PATIENCE, LearnedEnergy, MemoryEstimator, as_number_or
from isthmus.cluster.crp_inference import (
    SMALLEST_COUNT,
    CRPPrior,
    reassign,
    sequential_pass,
    settle,
)
from isthmus.cluster.data import AnyRows, Rows
from isthmus.cluster.statistics import ClusterStatistics
from isthmus.errors import InvalidInputError
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture
from isthmus.validation import LARGEST_SQUARED, as_choice, as_count, as_flag

# With beta="auto": the shares of the variance that clusters may keep inside them, of which those
# above the second number are always tried, and how many rows are used to choose one.
INNER_SHARES, TRIED = 0.6 * (0.17 / 0.6) ** (np.arange(36) / 7), 0.16
CHOOSING_ROWS = 2000
# Beside the index of as many parts of a line, that of finer clusters must be so many times as high:
# parts of uniform lines and of curves reach 1.2, far clusters 5 and more.
LINES = 2.0
# There is one cluster unless the evidence per row, in nats, is higher by this than in every one of
# so many sets of rows drawn from one Gaussian with the covariance of the data.
SMALLEST_GAP, NULLS = 0.15, 10
# Smaller clusters dissolve, unless they have half of the mean size.
SMALLEST_SHARE = 0.01
# Means keep at least this share of the variance, so that the prior on them stays proper.
SMALLEST_OUTER_SHARE = 0.05


@dataclass(frozen=True)
class _CRPState:
    clusters: ClusterStatistics
    prior: CRPPrior

    @cached_property
    def objective(self) -> float:
        """The negative log evidence per row, in units in which the data have variance one."""
        return -self.prior.log_evidence(self.clusters) / float(self.clusters.counts.sum())


@dataclass(eq=False, repr=False)
class ClAMCRP(MemoryEstimator):
    """Clustering with an unknown number of memories (ClAM+CRP), beta = 1 / (2 sigma^2).

    A row joins the memory with the largest posterior or, if the new cluster of a Chinese
    restaurant process has a larger one, opens a memory: the decision is by responsibility, not by
    flowing to the origin (erratum E10), and terms are normalised (erratum E8). After a sequential
    pass in a seeded order, memories are merged, opened and assigned anew until the evidence
    converges. Standardise features first. The number of clusters is indicative.

    Parameters
    ----------
    alpha, discount : "auto" or float
        Concentration (auto: 1), of which larger values open more memories, and the Pitman-Yor
        discount in [0, 1) (auto: 0).
    beta : "auto" or float
        Memories have covariance I / (2 beta). Auto tries clusters that keep 0.6 to 0.17 of the
        variance inside them, and takes the best by Calinski-Harabasz, on at most 2,000 rows;
        less only where the index is at least twice as high, beside that of as many parts of a
        line. Likelihoods are then raised to the power of the square root of the share of
        dimensions in use (participation ratio), because correlated features would count
        repeatedly. If alpha and discount are automatic, too, there is one cluster unless the log
        evidence per row exceeds that of each of 10 draws from one Gaussian with the covariance of
        the data by 0.15 nats.
    rho : "auto" or float
        Means have covariance I / (2 rho) about the centre of the data; auto is the variance that
        beta leaves.
    normalized : bool
        False is the paper's printed energy, without the normaliser of the new cluster; it opens
        far too many memories in more than a few dimensions.
    min_cluster_size : "auto" or float
        Memories of less weight are dissolved at the end; auto is the lesser of a hundredth of all
        rows and half of the mean size, but at least 3 rows. In a stream, auto dissolves those
        that a batch of 100 rows or more also gives less than a hundredth of its own.
    init, n_init : "sequential" or array (K, n_features), int
        Initial memories (default: none), and the number of row orders to try.
    max_iter, tol, warm_start, random_state, verbose
        As in :class:`ClAMELBO`. The objective is the negative log evidence per row, in units in
        which the data have variance 1; in a stream, of all rows so far.

    Attributes
    ----------
    memories_ : ndarray (n_clusters, n_features)
        Largest first. A stream leaves those that stay in their order and adds new ones at the end.
    counts_, rho_, alpha_, discount_
        The parameters of `energy_`, an :class:`isthmus.CRPMixture`. The other attributes are as in
        :class:`ClAMELBO`.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAMCRP
    >>> noise = np.random.default_rng(0).normal(size=(90, 2))
    >>> model = ClAMCRP(random_state=0).fit(np.repeat([[0, 0], [9, 0], [0, 9]], 30, 0) + noise)
    >>> model.n_clusters_, model.novelty([[0.0, 0.0], [40.0, 40.0]]).round(1)
    (3, array([0., 1.]))
    """

    _soft: ClassVar[bool] = False  # rows are not divided among memories

    _: KW_ONLY
    alpha: Any = "auto"
    discount: Any = "auto"
    rho: Any = "auto"
    normalized: bool = True
    min_cluster_size: Any = "auto"
    init: Any = "sequential"
    n_init: int = 3

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        for name in ("beta", "rho"):
            as_number_or(getattr(self, name), name, ("auto",), above=0)
        # Of alpha only the logarithm is taken, so that its square may underflow.
        as_number_or(self.alpha, "alpha", ("auto",), at_least=np.finfo(float).tiny)
        as_number_or(self.discount, "discount", ("auto",), at_least=0, below=1)
        as_number_or(self.min_cluster_size, "min_cluster_size", ("auto",), at_least=0)
        if isinstance(self.init, str):
            as_choice(self.init, "init", ("sequential",))
        as_count(self.n_init, "n_init")
        as_flag(self.normalized, "normalized")

    def _chosen_opening(
        self, rows: AnyRows, generator: RandomState
    ) -> tuple[ClusterStatistics, CRPPrior]:
        """Return the best of several values of beta and row orders, by Calinski-Harabasz."""
        few = rows.sample()
        complete = len(few) <= CHOOSING_ROWS
        if not complete:
            few = few.take(torch.from_numpy(generator.permutation(len(few))[:CHOOSING_ROWS]))
        # The share of directions in use: the participation ratio of the covariance.
        values = few.values.double() * few.weights.double().sqrt()[:, None]
        spread = torch.linalg.svdvals(values).square()
        in_use = float(spread.sum() ** 2 / spread.square().sum()) if values.any() else 1.0
        temper = math.sqrt(in_use / rows.dim)
        limit = max(100, len(few) // 20)
        tries: list[tuple[float, _CRPState, _CRPState]] = []
        finer, along = [], -math.inf
        for _ in range(int(self.n_init)):
            order, highest = generator.permutation(len(few)), (-math.inf, 1)
            for share in INNER_SHARES.tolist():
                prior = self._prior_of(share, temper)
                opened = sequential_pass(few, order, prior)
                if len(opened) > limit and tries:
                    break  # a larger beta would open even more clusters
                found = _CRPState(settle(few, opened, prior, self._soft), prior)
                kept = self._without_small(few, found)
                score, size = kept.clusters.calinski_harabasz(), len(kept.clusters)
                on_line = score / ((size + 1) * max(few.total - size, 1e-9))
                if share > TRIED:
                    tries.append((score, found, kept))
                    along = max(along, on_line)
                elif size > highest[1] and score < highest[0]:
                    break  # clusters are split
                else:
                    finer.append((on_line, (score, found, kept)))
                highest = max(highest, (score, size))
        # Cuts of a line, or of a curve, raise the index with their number, all by the same factor.
        tries += [states for on_line, states in finer if on_line > LINES * along]
        # Several values of beta often find the same clusters: a larger one separates new clusters
        # of a stream better from known ones, but beyond this it splits them.
        best, sharp = max(score for score, _, _ in tries), temper * 0.5 / TRIED
        equals = [states for score, *states in tries if score >= best * (1 - 1e-9)]
        found, kept = min(equals, key=lambda states: abs(math.log(states[0].prior.beta / sharp)))
        chosen = found if complete else kept
        asks = len(found.clusters) > 1 and self.alpha == self.discount == "auto"
        if asks and self._is_found_in_a_null(few, found, generator):
            one = ClusterStatistics.of_shares(few, few.weights[:, None]).with_totals_of(few)
            chosen = _CRPState(one, self._prior_of(1.0, temper, outer=1.0))
        return chosen.clusters.scaled(rows.total / few.total), chosen.prior

    def _is_found_in_a_null(self, rows: Rows, found: _CRPState, generator: RandomState) -> bool:
        """Return True if rows drawn from one Gaussian have clusters that are nearly as probable."""
        for _ in range(NULLS):
            null = rows.without_clusters(CHOOSING_ROWS, generator)
            opened = sequential_pass(null, generator.permutation(len(null)), found.prior)
            clusters = settle(null, opened, found.prior, self._soft)
            if _CRPState(clusters, found.prior).objective < found.objective + SMALLEST_GAP:
                return True
        return False

    def _prior_of(self, inner: float, temper: float, outer: float = 0.0) -> CRPPrior:
        """Return the prior for clusters that keep the share `inner` of the variance."""
        if inner < 1 / LARGEST_SQUARED:
            raise InvalidInputError("beta is too large: its square overflows in standard units.")
        outer = max(outer, 1 - inner, SMALLEST_OUTER_SHARE)
        rho = 0.5 / outer if self.rho == "auto" else float(self.rho) * self._units.scale**2
        return CRPPrior(
            beta=temper * 0.5 / inner,
            rho=temper * rho,
            alpha=1.0 if self.alpha == "auto" else float(self.alpha),
            discount=0.0 if self.discount == "auto" else float(self.discount),
            temper=temper,
            normalized=bool(self.normalized),
        )

    def _starts(
        self, rows: AnyRows, generator: RandomState, given: Tensor | None
    ) -> Iterator[_CRPState]:
        few = rows.sample()
        for _ in range(1 if self.beta == "auto" else int(self.n_init)):
            if self.beta == "auto":
                clusters, prior = self._chosen_opening(rows, generator)
            else:
                prior = self._prior_of(0.5 / (float(self.beta) * self._units.scale**2), 1.0)
                opened = sequential_pass(few, generator.permutation(len(few)), prior)
                clusters = opened.scaled(rows.total / few.total)
            if given is not None:  # each with an equal share of the rows
                counts = given.new_full((len(given),), rows.total / len(given)).double()
                masses = counts[:, None].expand(-1, rows.dim)
                clusters = ClusterStatistics(counts, given.double() * masses, masses)
            yield self._reassigned(rows, clusters, prior)

    def _reassigned(
        self, rows: AnyRows, clusters: ClusterStatistics, prior: CRPPrior, opens: bool = True
    ) -> _CRPState:
        if self.beta == "auto":
            # One cluster stays the only one. Clusters that the rows for choosing beta do not show
            # would be too small to keep.
            all_chose = len(rows) <= CHOOSING_ROWS or self.min_cluster_size != "auto"
            opens = opens and all_chose and len(clusters) > 1
        return _CRPState(reassign(rows, clusters, prior, self._soft, opens=opens), prior)

    def _advance(self, rows: AnyRows, state: _CRPState) -> _CRPState:
        return self._reassigned(rows, state.prior.merged(state.clusters), state.prior)

    def _has_converged(self, trace: list[float]) -> bool:
        """Also return True if clusters that open and merge again form a cycle."""
        if super()._has_converged(trace):
            return True
        return len(trace) > PATIENCE and (
            min(trace[:-PATIENCE]) - min(trace[-PATIENCE:]) <= self.tol
        )

    def _without_small(self, rows: AnyRows, state: _CRPState) -> _CRPState:
        """Dissolve the clusters that are too small to keep, until none is."""
        counts, smallest = state.clusters.counts, self.min_cluster_size
        # At most one cluster per row stays.
        allowed = counts.argsort(descending=True, stable=True).argsort() < len(rows)
        kept = (counts >= (_smallest_size(counts) if smallest == "auto" else smallest)) & allowed
        all_small = not bool(kept.any())
        if all_small:  # only those that hold next to nothing go
            kept = (counts >= SMALLEST_COUNT * rows.total / len(rows)) & allowed
        if bool(kept.all()) or not bool(kept.any()):
            return state
        fewer = self._reassigned(rows, state.clusters.select(kept), state.prior, opens=False)
        return fewer if all_small else self._without_small(rows, fewer)

    def _adopt(self, rows: AnyRows, state: _CRPState) -> float:
        state = self._without_small(rows, self._advance(rows, state))
        # The largest first, and equal ones by their place, which rounding does not change.
        shares = (state.clusters.counts / rows.total).round(decimals=12)
        places = state.prior.means(state.clusters).round(decimals=9).flip(1)
        order = np.lexsort([*places.T.numpy(), -shares.numpy()])
        ordered = replace(state, clusters=state.clusters.select(torch.from_numpy(order)))
        self._adopt_clusters(rows, ordered, rows.sample().values.numpy().dtype)
        return state.objective

    def _adopt_clusters(self, rows: AnyRows, state: _CRPState, dtype: Any) -> None:
        clusters, prior = state.clusters, state.prior
        self._statistics, self._prior = replace(clusters, entropy=0.0), prior
        means = prior.means(clusters)
        self.memories_ = self._units.back(means.numpy()).astype(dtype)
        self.n_clusters_ = len(self.memories_)
        self.counts_ = clusters.counts.clamp(min=prior.discount + 1e-3).numpy()
        self.weights_ = self.counts_ / self.counts_.sum()
        self.alpha_, self.discount_ = prior.alpha, prior.discount
        # The beta and rho of the learned energy are given, or fitted to the clusters.
        variance = clusters.variance(means, rows.dtype)
        if self.beta != "auto":
            variance = 0.5 / (float(self.beta) * self._units.scale**2)
        self.beta_ = 0.5 / variance / self._units.scale**2
        spread = clusters.square / max(clusters.coordinates, 1e-300)
        alone = len(clusters) == 1 and self.beta == "auto"
        outer = 1.0 if alone else max(spread - variance, SMALLEST_OUTER_SHARE)
        self.rho_ = 0.5 / outer / self._units.scale**2 if self.rho == "auto" else float(self.rho)

    def _absorb(self, rows: Rows, X: NDArray[Any]) -> tuple[NDArray[Any], float]:
        """Assign one batch, opening clusters as needed, and merge clusters."""
        generator = check_random_state(self.random_state)
        if not hasattr(self, "memories_"):
            state = self._train(rows, generator, self._given_means(rows))[0]
            objective = self._adopt(rows, state)
        else:
            prior, before = self._prior, self._statistics
            # Means as far apart as the stream is wide, these rows included.
            coordinates = max(before.coordinates + rows.known_total, 1e-300)
            outer = (before.square + rows.square) / coordinates - 0.5 * prior.temper / prior.beta
            if self.rho == "auto" and 0.5 * prior.temper < outer * prior.rho:
                prior = replace(prior, rho=0.5 * prior.temper / outer)
            order = generator.permutation(len(rows))
            clusters = sequential_pass(rows, order, prior, before)
            # Small clusters that the batch adds little to join their neighbours.
            gained = clusters.counts.clone()
            gained[: len(before)] -= before.counts
            small = (clusters.counts < _smallest_size(clusters.counts)) & (
                gained < SMALLEST_SHARE * rows.total
            )
            if self.min_cluster_size == "auto" and rows.total >= 1 / SMALLEST_SHARE:
                gains = prior.merge_gains(clusters).masked_fill_(small, -torch.inf)
                nearest = torch.where(small, gains.argmax(1), torch.arange(len(clusters)))
                clusters = clusters.grouped(nearest)
            state = _CRPState(prior.merged(clusters), prior)
            self._adopt_clusters(rows, state, self.memories_.dtype)
            objective = state.objective
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        return self._labels(X), objective

    def novelty(self, X: Any) -> NDArray[Any]:
        """Return the probability that each row belongs to no known memory. -> (n_samples,)

        It is that of the predictive of the Chinese restaurant process, where the mean of a memory
        of n rows is uncertain: its variance is larger by 1 / (2 (beta n + rho)) than that of its
        kernel in `energy_`, which takes the mean as known (erratum E34).
        """
        predictive = self.energy_.predictive(self._statistics.masses)
        # Squares of rows farther away would overflow.
        X = np.clip(self._table(X), -LARGEST_SQUARED, LARGEST_SQUARED).astype(self.memories_.dtype)

        def newness(x: Tensor, *known: Tensor) -> Tensor:
            shares = predictive._responsibilities(x.double(), *known)
            # A row whose distances overflow is near no memory.
            return torch.where((shares == 0).all(1), 1, shares[:, -1]).to(x.dtype)

        return self._by_chunk(newness, X, len(predictive.means))

    @property
    def _known_energy(self) -> LearnedEnergy:
        # Beside a new cluster that is far more probable, the shares of all others would be zero.
        log_weights = np.log(self.counts_ - self.discount_).astype(self.memories_.dtype)
        return Mixture(self.memories_, self.beta_, log_weights)

    @property
    def energy_(self) -> CRPMixture:
        """The learned energy: a :class:`isthmus.CRPMixture` in the units of the data."""
        dtype = self.memories_.dtype
        return CRPMixture(
            self.memories_,
            self.counts_.astype(dtype),
            beta=self.beta_,
            rho=self.rho_,
            alpha=self.alpha_,
            discount=self.discount_,
            normalized=self.normalized,
            prior_mean=self._units.centre.astype(dtype),
        )


class ClAMCRPELBO(ClAMCRP):
    """Clustering by posteriors with an unknown number of memories (ClAM+CRP+ELBO).

    Each row is divided among memories in proportion to its posterior, the fixed point of the
    ELBO's dynamics. As in :class:`ClAMCRP`, whose parameters and attributes it has, rows for which
    the new cluster is the most probable open memories first. The probability of a memory that no
    row has opened is divided among the others, so that the counts add up to the rows.
    """

    _soft = True


def _smallest_size(counts: Tensor) -> float:
    """Return the weight that a cluster needs to stay if no least size is given."""
    mean, total = float(counts.mean()), float(counts.sum())
    return max(3.0, min(0.5 * mean, SMALLEST_SHARE * total))
