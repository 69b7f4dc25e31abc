"""ClAM+CRP and ClAM+CRP+ELBO: as many memories as the data ask for."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.utils import check_random_state
from sklearn.utils.validation import check_is_fitted

from isthmus.cluster.base import LearnedEnergy, MemoryEstimator, State
from isthmus.cluster.data import Rows
from isthmus.cluster.restaurant import (
    SMALLEST_PORTION,
    Clusters,
    House,
    seat,
    seat_in_order,
)
from isthmus.cluster.settings import (
    require_choice,
    require_count,
    require_flag,
    require_number,
)
from isthmus.cluster.tightness import calinski_harabasz, effective_dimension, settled
from isthmus.memories.crp import CRPMixture
from isthmus.memories.mixture import Mixture

__all__ = ["ClAMCRP", "ClAMCRPELBO"]

# With beta="auto": the shares of the variance that clusters may keep inside them, and how many
# rows are looked at to choose one.
INNER_SHARES = tuple(np.geomspace(0.6, 0.17, 8))
CHOOSING_ROWS = 5000
# Improvements are judged over so many iterations, since opening a cluster may not be one.
PATIENCE = 5
# Means keep at least this share of the variance, so that the prior on them stays proper.
SMALLEST_OUTER_SHARE = 0.05


@dataclass(frozen=True)
class _CRPState(State):
    clusters: Clusters
    house: House
    objective: float


class _CRPEstimator(MemoryEstimator):
    """What the two share: all but whether rows sit whole or in proportion."""

    soft: ClassVar[bool]

    def __init__(
        self,
        *,
        alpha: Any = "auto",
        discount: Any = "auto",
        beta: Any = "auto",
        rho: Any = "auto",
        normalized: bool = True,
        min_cluster_size: Any = "auto",
        init: Any = "sequential",
        n_init: int = 3,
        max_iter: int = 100,
        tol: float = 1e-4,
        warm_start: bool = False,
        random_state: Any = None,
        verbose: int = 0,
    ) -> None:
        self.alpha = alpha
        self.discount = discount
        self.beta = beta
        self.rho = rho
        self.normalized = normalized
        self.min_cluster_size = min_cluster_size
        self.init = init
        self.n_init = n_init
        self.max_iter = max_iter
        self.tol = tol
        self.warm_start = warm_start
        self.random_state = random_state
        self.verbose = verbose

    def _check_settings(self, n_samples: int) -> None:
        super()._check_settings(n_samples)
        for name in ("alpha", "beta", "rho"):
            require_number(self, name, 0, math.inf, words=("auto",))
        require_number(self, "discount", 0, 1, ends="low", words=("auto",))
        require_number(self, "min_cluster_size", 0, math.inf, ends="low", words=("auto",))
        require_choice(self, "init", ("sequential",), "an array")
        require_count(self, "n_init")
        require_flag(self, "normalized")

    def _openings(
        self, rows: Rows, generator: np.random.RandomState
    ) -> Iterator[tuple[Clusters, House]]:
        """First clusters, and the rules in internal units, where the data have variance one."""
        if self.beta == "auto":
            yield self._chosen_opening(rows, generator)
            return
        house = self._rules(0.5 / (float(self.beta) * self._scale**2), 1.0, rows.dim)
        for _ in range(self.n_init):
            yield seat_in_order(rows, generator.permutation(len(rows)), house), house

    def _chosen_opening(
        self, rows: Rows, generator: np.random.RandomState
    ) -> tuple[Clusters, House]:
        """The best of several tightnesses and row orders, by Calinski-Harabasz on some rows."""
        few = rows
        if len(rows) > CHOOSING_ROWS:
            few = rows.take(torch.from_numpy(generator.permutation(len(rows))[:CHOOSING_ROWS]))
        temper = math.sqrt(effective_dimension(few) / rows.dim)
        limit = max(100, len(few) // 20)
        tries: list[tuple[float, Clusters, House]] = []
        for _ in range(self.n_init):
            order = generator.permutation(len(few))
            for share in INNER_SHARES:
                house = self._rules(share, temper, rows.dim)
                opened = seat_in_order(few, order, house)
                if len(opened) > limit and tries:
                    break  # tighter clusters still would be more, and none of them any use
                clusters = settled(few, opened, house, self.soft)
                kept = self._without_small(few, clusters, house)
                tries.append((calinski_harabasz(few, kept), clusters, house))
        # Several tightnesses often find the same clusters. The tightest of them is the best
        # at telling new ones, in a stream, from those that are known.
        best = max(score for score, _, _ in tries)
        equals = [found for found in tries if found[0] >= best * (1 - 1e-9)]
        _, clusters, house = max(equals, key=lambda found: found[2].beta)
        return clusters.scaled(rows.total / few.total), house

    def _rules(self, inner: float, temper: float, dim: int) -> House:
        """Rules for clusters that keep the share `inner` of the variance, tempered."""
        outer = max(1 - inner, SMALLEST_OUTER_SHARE)
        rho = 0.5 / outer if self.rho == "auto" else float(self.rho) * self._scale**2
        return House(
            beta=temper * 0.5 / inner,
            rho=temper * rho,
            alpha=1.0 if self.alpha == "auto" else float(self.alpha),
            discount=0.0 if self.discount == "auto" else float(self.discount),
            dim=temper * dim,
            normalized=self.normalized,
        )

    def _starts(self, rows: Rows, generator: np.random.RandomState) -> Iterator[State]:
        given = self._given_clusters(rows)
        for clusters, house in self._openings(rows, generator):
            opened = seat(rows, clusters if given is None else given, house, self.soft)
            yield self._judged(rows, opened, house)

    def _given_clusters(self, rows: Rows) -> Clusters | None:
        """Clusters to begin with, each as heavy as an equal share of the rows."""
        means = self._previous
        if means is None and not isinstance(self.init, str):
            given = np.asarray(self.init, dtype=rows.values.numpy().dtype)
            if given.ndim != 2 or given.shape[1] != rows.dim or not np.isfinite(given).all():
                raise ValueError(
                    f"init has shape {given.shape}; it should hold finite means of shape "
                    f"(K, {rows.dim})."
                )
            means = self._frame.into(given)
        if means is None:
            return None
        counts = torch.full((len(means),), rows.total / len(means), dtype=torch.float64)
        masses = counts[:, None].expand(-1, rows.dim)
        return Clusters(counts, torch.from_numpy(means).double() * masses, masses)

    def _advance(self, rows: Rows, state: State) -> State:
        assert isinstance(state, _CRPState)
        clusters = seat(rows, state.clusters.merged(state.house), state.house, self.soft)
        return self._judged(rows, clusters, state.house)

    def _has_converged(self, trace: list[float]) -> bool:
        """Also when clusters that open and merge again only go in circles."""
        if super()._has_converged(trace):
            return True
        return len(trace) > PATIENCE and (
            min(trace[:-PATIENCE]) - min(trace[-PATIENCE:]) <= self.tol
        )

    def _judged(self, rows: Rows, clusters: Clusters, house: House) -> _CRPState:
        objective = _surprise(clusters, house, _moments(rows))
        return _CRPState(clusters, house, objective)

    def _finished(self, rows: Rows, state: State) -> State:
        """Without the clusters that are too small to keep."""
        assert isinstance(state, _CRPState)
        merged = seat(rows, state.clusters.merged(state.house), state.house, self.soft)
        return self._judged(rows, self._without_small(rows, merged, state.house), state.house)

    def _without_small(self, rows: Rows, clusters: Clusters, house: House) -> Clusters:
        smallest = self.min_cluster_size
        if smallest == "auto":
            smallest = max(3.0, 0.1 * float(clusters.counts.mean()))
        kept = clusters.counts >= smallest
        if not bool(kept.any()):  # all are small; those that hold next to nothing go all the same
            kept = clusters.counts >= SMALLEST_PORTION * rows.total / len(rows)
        if bool(kept.all()) or not bool(kept.any()):
            return clusters
        closed = replace(house, alpha=0.0, discount=0.0)
        return seat(rows, clusters.select(kept), closed, self.soft)

    def _adopt(self, state: State) -> None:
        assert isinstance(state, _CRPState)
        self._adopt_clusters(_largest_first(state.clusters), state.house)

    def _adopt_clusters(self, clusters: Clusters, house: House) -> None:
        means = house.means(clusters.masses, clusters.sums)
        self.memories_ = self._frame.back(means).astype(self._dtype)
        self.n_clusters_ = len(self.memories_)
        self.counts_ = clusters.counts.clamp(min=house.discount + 1e-3).numpy()
        self.weights_ = self.counts_ / self.counts_.sum()
        self.alpha_, self.discount_ = house.alpha, house.discount
        self._sums, self._masses = clusters.sums.numpy(), clusters.masses.contiguous().numpy()
        self._rule = np.array(
            [house.beta, house.rho, house.alpha, house.discount, house.dim, house.normalized]
        )

    def _set_temperature(self, rows_square: float, coordinates: float) -> None:
        """The beta and rho of the learned energy: given, or those that fit the clusters best."""
        masses, sums = torch.from_numpy(self._masses), torch.from_numpy(self._sums)
        house = House(*self._rule.tolist())
        means = house.means(masses, sums)
        residual = rows_square - 2 * float((means * sums).sum()) + float((masses * means**2).sum())
        floor = 1e-10 if self._dtype == "float64" else 1e-6
        variance = max(residual / max(coordinates, 1e-300), floor)
        if self.beta != "auto":
            variance = 0.5 / (float(self.beta) * self._scale**2)
        self.beta_ = 0.5 / variance / self._scale**2
        outer = max(1 - variance, SMALLEST_OUTER_SHARE)
        self.rho_ = 0.5 / outer / self._scale**2 if self.rho == "auto" else float(self.rho)

    def _settle(self, rows: Rows) -> None:
        self._moments = _moments(rows)
        self._set_temperature(*self._moments.tolist())

    def _absorb(self, rows: Rows, X: NDArray[Any]) -> NDArray[Any]:
        """Seat one batch, opening clusters as it asks for them; merge what belongs together."""
        generator = check_random_state(self.random_state)
        if not hasattr(self, "memories_"):
            self._dtype = str(rows.values.numpy().dtype)
            clusters, house = next(self._openings(rows, generator))
            clusters = _largest_first(seat(rows, clusters, house, self.soft))
            self._moments = np.zeros(2)
        else:
            house = House(*self._rule.tolist())
            sums, masses = torch.from_numpy(self._sums), torch.from_numpy(self._masses)
            clusters = Clusters(torch.from_numpy(self.counts_), sums, masses)
            clusters = seat_in_order(rows, generator.permutation(len(rows)), house, clusters)
        clusters = clusters.merged(house)
        self._adopt_clusters(clusters, house)
        self._moments = self._moments + _moments(rows)
        self._set_temperature(*self._moments.tolist())
        self.n_iter_ = getattr(self, "n_iter_", 0) + 1
        self.objective_ = _surprise(clusters, house, self._moments)
        self.objective_trace_ = np.append(
            getattr(self, "objective_trace_", np.zeros(0))[-999:], self.objective_
        )
        self.converged_ = False
        return self._labels(X)

    def _in_units(self, objectives: NDArray[Any], rows: Rows) -> NDArray[Any]:
        return objectives

    def novelty(self, X: Any) -> NDArray[Any]:
        """The probability that a row belongs to no known memory. -> (n_samples,)"""
        check_is_fitted(self, "memories_")
        parts = [part[:, -1] for part in self._responsibilities(self.energy_, self._table(X))]
        # A row whose distances overflow is near no memory.
        return torch.cat(parts).nan_to_num_(1.0).numpy()

    @property
    def _known_energy(self) -> LearnedEnergy:
        # Where the new cluster wins by far, the others' shares beside it would all be zero.
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
            prior_mean=self._centre.astype(dtype),
        )


class ClAMCRP(_CRPEstimator):
    """Clustering by associative memory that opens new memories as the data ask for them.

    A row joins the memory with the largest posterior or, where the new cluster's term of a
    Chinese restaurant process wins, opens a memory of its own: decided by responsibility, not
    by flowing to the origin (erratum E10), with normalised terms (erratum E8). One sequential
    pass in a seeded order is followed by merging, reseating and opening until the evidence
    settles. The result is the same for a seed whatever the order of the rows.

    Features should be on comparable scales (standardise first). The number of clusters found
    is indicative: on real data there is often no true one.

    Parameters
    ----------
    alpha : "auto" or float
        How readily new memories open; auto is 1.
    discount : "auto" or float in [0, 1)
        Pitman-Yor discount; auto is 0.
    beta : "auto" or float
        Memories have covariance I / (2 beta). Auto tries clusters that keep from 0.17 to 0.6
        of the variance inside them, on at most 5,000 rows, and takes the best by
        Calinski-Harabasz. There, likelihoods are tempered by the square root of the share of
        dimensions that are really in use (participation ratio), since correlated features
        would otherwise count many times over.
    rho : "auto" or float
        Means have covariance I / (2 rho) about the centre of the data; auto is what beta
        leaves of the variance.
    normalized : bool
        False is the paper's printed energy, without the new cluster's normaliser; it opens
        far too many memories in more than a few dimensions.
    min_cluster_size : "auto" or float
        Memories of less weight are dissolved in the end; auto is a tenth of the mean, at
        least 3.
    init : "sequential" or array (K, n_features)
        Memories to begin with instead of none.
    n_init : int
        Orders of the rows that are tried.
    max_iter, tol : int, float
        Stop when the objective (minus the log evidence per row) changes by no more than `tol`.
    warm_start, random_state, verbose
        As in :class:`ClAMELBO`.

    Attributes
    ----------
    memories_, cluster_centers_ : ndarray (n_clusters, n_features)
        Largest first. A stream leaves them in their places and adds new ones at the end.
    counts_, weights_ : ndarray (n_clusters,)
    beta_, rho_, alpha_, discount_, objective_ : float
    labels_, objective_trace_ : ndarray
    energy_ : CRPMixture
    n_clusters_, n_iter_, n_features_in_ : int
    converged_ : bool

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAMCRP
    >>> noise = np.random.default_rng(0).normal(size=(90, 2))
    >>> X = np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0) + noise
    >>> model = ClAMCRP(random_state=0).fit(X)
    >>> model.n_clusters_
    3
    >>> model.novelty([[0.0, 0.0], [40.0, 40.0]]).round(1)
    array([0., 1.])
    """

    soft = False


class ClAMCRPELBO(_CRPEstimator):
    """ClAM+CRP with explicit posteriors: rows sit in proportion to their probabilities.

    The same as :class:`ClAMCRP`, but every row spreads over all memories by its posterior
    over existing and new ones, the fixed point of the ELBO's dynamics, rather than joining
    one. Parameters and attributes are those of :class:`ClAMCRP`.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import ClAMCRPELBO
    >>> noise = np.random.default_rng(0).normal(size=(90, 2))
    >>> X = np.repeat([[0, 0], [9, 0], [0, 9]], 30, axis=0) + noise
    >>> ClAMCRPELBO(random_state=0).fit(X).n_clusters_
    3
    """

    soft = True


def _moments(rows: Rows) -> NDArray[np.float64]:
    """Weighted sum of squared lengths, and weighted number of known coordinates. (2,)"""
    weights = rows.weights.double()
    square, coordinates = weights @ rows.squares.double(), weights @ rows.coordinates().double()
    return np.array([float(square), float(coordinates)])


def _surprise(clusters: Clusters, house: House, moments: NDArray[np.float64]) -> float:
    """Minus the log evidence per row, in units where the data have variance one."""
    square, coordinates = moments.tolist()
    rest = house.log_rest(square, coordinates, clusters.sums.shape[1])
    return -(clusters.log_evidence(house) + rest) / float(clusters.counts.sum())


def _largest_first(clusters: Clusters) -> Clusters:
    return clusters.select(torch.argsort(clusters.counts, descending=True, stable=True))
