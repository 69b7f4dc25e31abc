"""Clusters as basins of leave-one-out retrieval, for an unknown number of clusters."""

from __future__ import annotations

from dataclasses import KW_ONLY, dataclass
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.spatial.distance import cdist
from scipy.special import expit, logsumexp, softmax
from sklearn.cluster import kmeans_plusplus
from sklearn.utils import check_random_state

from isthmus.bandwidth import leave_one_out, left_out_log_density
from isthmus.cluster.base import DensityEstimator, as_number_or
from isthmus.cluster.data import counted, fits_float32, in_blocks, measured, one_block
from isthmus.cluster.retrieval_graph import (
    LEARNING_ROWS,
    FloatArray,
    IntArray,
    Memories,
    cluster_shares,
    components,
    flux_ratios,
    leaving,
    merge_tree,
    nearest,
    recall,
    recollection,
)
from isthmus.distributed.blocks import TableBlock
from isthmus.dynamics.retrieve import complete
from isthmus.errors import InvalidInputError
from isthmus.memories.mixture import Mixture
from isthmus.validation import as_count, as_number

if TYPE_CHECKING:  # the compiled parts are imported by the first fit
    from isthmus.cluster.resolution import Choice

BANDWIDTH_ROWS = 1000
# Rows farther away than so many deviations recall what their direction does, and their squares
# would lose the differences between memories to rounding.
FARTHEST = 1e6
FILLING_ROUNDS = 2
# How often there is one cluster more than the tests show, beside several clusters and beside one:
# so probabilities are right as often as they say (`benchmarks/one_cluster.py --calibration`).
HIDDEN = 0.05, 0.2
# Budgets of computation: rows of both densities, further starts, and iterations.
GAUSSIAN_ROWS, KERNEL_ROWS, GAUSSIAN_STARTS, GAUSSIAN_STEPS = 5000, 1000, 10, 300


def _sums(
    X: NDArray[Any], weights: NDArray[Any], labels: NDArray[Any], size: int
) -> NDArray[np.float64]:
    """Return weights of groups, and sums and weights of their known values. (K, 1 + 2 D)"""
    members = csr_array((weights, labels, np.arange(len(labels) + 1)), (len(labels), size))
    columns = np.ones((len(X), 1)), np.nan_to_num(X.astype(np.float64)), ~np.isnan(X)
    sums: NDArray[np.float64] = members.T @ np.hstack(columns)
    return sums


def _means(sums: NDArray[Any]) -> NDArray[Any]:
    """Return the means (K, D) of known values; NaN without any."""
    dim = sums.shape[1] // 2
    with np.errstate(invalid="ignore"):
        means: NDArray[Any] = sums[:, 1 : dim + 1] / sums[:, dim + 1 :]
    return means


def _sums_of(block: TableBlock, model: BasinFlow) -> NDArray[np.float64] | None:
    X, weights = counted(block)
    return _sums(X, weights, model._labels(X), model.n_clusters_) if len(X) else None


@dataclass(eq=False, repr=False)
class BasinFlow(DensityEstimator):
    r"""Clustering by the flow of retrieval, with an unknown number of clusters.

    Each row, left out of the memory, recalls its nearest stored rows: a softmax whose width is set
    by its entropy. The steps of this retrieval are a random walk between rows, and a cluster is a
    set of rows that the walk seldom leaves. A partition at resolution :math:`\gamma` has the energy

    .. math:: E_\gamma = \Pr[\text{a step leaves its cluster}]
              + \gamma \Pr[\text{two independent rows share a cluster}].

    One level, alpha, decides on their number. Groups that a column or the first principal component
    shows to be apart, by the dip test or an empty gap, are split, and so are their parts. In up to
    three principal components, clusters are modes of the density in each group. In more, they are
    the partition whose energy lies furthest below that of tables of unimodal columns in each group
    with the rank correlations of the data, by more than chance and a factor of `min_separation`.
    Categories that depend on no other column are left out.

    So "one cluster" means one mode, not one Gaussian. The energy is modularity with a resolution
    (Reichardt and Bornholdt 2006), its minimiser Louvain's moves, the choice a gap statistic
    (Tibshirani, Walther and Hastie 2001) and the modes those of ToMATo (Chazal et al. 2013).

    Posteriors are those of Gaussians with one covariance, fitted from the clusters on, if these
    have a higher likelihood than kernels. Otherwise they are the mass that a row retrieves from a
    cluster, and a stored row recalls itself with share 1/2.

    Parameters
    ----------
    n_clusters, resolution : int, float, optional
        The number of clusters, or gamma, if one is known. A larger gamma gives more clusters.
    min_cluster_size : int
        Smaller clusters join the neighbour that they exchange most flow with.
    alpha : float
        Level of the tests by which the number of clusters is found.
    min_separation : float
        How many times lower than in tables of unimodal columns the energy of a partition must be
        in more than three dimensions. Uniform balls and bent densities reach 1.15.
    n_memories : "auto", "all" or int
        "all" stores every row. A number of memories is learned from the rows instead; "auto" does
        so above 5,000 distinct rows, with 1,500 memories.
    random_state : int, RandomState or None

    Attributes
    ----------
    labels_ : ndarray (n_samples,)
        Numbered from 0, largest cluster first.
    n_clusters_ : int
    cluster_centers_ : ndarray (n_clusters, n_features)
        Means of the clusters.
    resolution_, gap_, objective_ : float
        The resolution (NaN if the clusters are modes or groups, or if there is one), the gap (the
        largest, if no resolution was chosen by it), and the energy of the partition.
    chosen_by_ : {"gap", "modes", "n_clusters", "resolution"}
        What decided on the number of clusters.
    k_probabilities_ : ndarray
        The probability of 1, 2, ... clusters: the share of draws with this number if their test
        statistics were normal around those of the data, of which a part, which makes it right as
        often as it says on mixtures of known K, is that of one cluster more, too close to be seen.
        1 for a number that was given.
    separation_ : ndarray (n_clusters,)
        How many times less often than by chance retrieval leaves each cluster; infinite if never,
        NaN if there is one cluster.
    gap_curve_ : dict of ndarray
        "resolution", "n_clusters" and "gap" at each resolution tried, finest first. The gap is
        NaN where a partition has one cluster or too many.
    barriers_ : ndarray (n_clusters, n_clusters)
        -log of the flow between two clusters over its value by chance; infinite without flow.
    linkage_ : ndarray (n_clusters - 1, 4)
        Tree of merges for `scipy.cluster.hierarchy`: at height h, two clusters join if the
        resolution falls to ``resolution_ * exp(-h)``, or to ``exp(-h)`` if it is NaN.
    memories_ : ndarray (n_memories, n_features)
    energy_ : Mixture
        The density of the stored patterns, one kernel each, round in standardised columns.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.cluster import BasinFlow
    >>> two = np.random.default_rng(0).normal(size=(200, 2)) + 9 * np.arange(2).repeat(100)[:, None]
    >>> model = BasinFlow(random_state=0).fit(two)
    >>> model.n_clusters_, len(set(model.predict([[0, 0], [9, 9]])))
    (2, 2)
    """

    n_clusters: int | None = None
    _: KW_ONLY
    resolution: float | None = None
    min_cluster_size: int = 1
    alpha: float = 0.01
    min_separation: float = 1.25
    n_memories: Any = "auto"
    random_state: Any = None

    def fit(self, X: Any, y: Any = None, sample_weight: Any = None) -> Self:
        """Find the clusters of the rows of X, which are given as to :meth:`ClAMELBO.fit`.

        They are found on 10,000 of the distinct rows if there are more, and all are assigned.
        """
        from isthmus.cluster.resolution import choose

        generator = check_random_state(self.random_state)
        blocks = in_blocks(X, sample_weight)
        if blocks is None:
            blocks = one_block(*self._validated(X, sample_weight, reset=True))
        else:
            self._set_columns(blocks)
        names = getattr(self, "feature_names_in_", None)
        _, sample, self._units = measured(blocks, names, by_column=True)
        self._check_settings(len(sample))
        sample = sample.sample(LEARNING_ROWS)
        rows, masses = sample.table, sample.weights.numpy().astype(np.float64)
        masses *= blocks.total(lambda block: float(counted(block)[1].sum())) / masses.sum()
        table = self._units.into(rows.astype(np.float64))
        gaps = np.isnan(table)
        table[gaps] = 0.0
        if gaps.any() and len(rows) > 1:
            self._fill(table, gaps, masses, generator)
        choice = choose(self, table, masses, generator)
        filled = self._adopt(rows, table, masses, choice)
        sums = blocks.total(_sums_of, self)
        order = np.argsort(-sums[:, 0], kind="stable")
        self._renumber(order)
        means = _means(sums)
        self.cluster_centers_ = np.where(np.isfinite(means), means, filled)[order]
        self._describe(choice)
        self._set_labels(X)
        return self

    @property
    def _categories(self) -> list[slice]:
        """The indicators of each category of a mixed data frame."""
        coding = self.__dict__.get("_coding")
        return [] if coding is None else [coding.places[place] for place in coding.categories]

    def _check_settings(self, n_rows: int) -> None:
        as_count(self.min_cluster_size, "min_cluster_size")
        as_number(self.alpha, "alpha", above=0, below=1)
        as_number(self.min_separation, "min_separation", at_least=1)
        if self.resolution is not None:
            as_number(self.resolution, "resolution", above=0)
            if self.n_clusters is not None:
                raise InvalidInputError("Give n_clusters or resolution, not both.")
        if self.n_clusters is not None and as_count(self.n_clusters, "n_clusters") > n_rows:
            raise InvalidInputError(
                f"n_clusters={self.n_clusters} is more than the {n_rows} distinct rows of X."
            )
        words = ("auto", "all")
        if as_number_or(self.n_memories, "n_memories", words) not in words:
            as_count(self.n_memories, "n_memories", at_least=2)

    def _fill(
        self,
        table: NDArray[Any],
        gaps: NDArray[Any],
        weights: NDArray[Any],
        generator: np.random.RandomState,
    ) -> None:
        """Fill gaps, at first with means, by the means of the memories that a row recalls."""
        known = ~gaps * weights[:, None]
        for _ in range(FILLING_ROUNDS):
            points = table @ components(table, generator, weights)
            memories = Memories.of(points, weights, self.n_memories, generator)
            own = len(memories.patterns) == len(points)
            shares, _ = recall(points, *memories[:3], others=own)
            held = shares.T @ known
            means = (shares.T @ (known * table)) / np.maximum(held, 1e-12)
            parts = shares @ (held > 1e-12)
            table[gaps] = ((shares @ means) / np.maximum(parts, 1e-12))[gaps]

    def _adopt(
        self, rows: NDArray[Any], table: NDArray[Any], weights: NDArray[Any], choice: Choice
    ) -> NDArray[Any]:
        """Set what predictions need; return the means of clusters, gaps filled."""
        memories = choice.memories
        self._rotation = choice.rotation
        inside, self._weights = table, weights
        if len(memories.patterns) < len(table):
            owners = nearest(table @ self._rotation, memories.patterns, 1)[:, 0]
            sums = _sums(table, weights, owners, len(memories.patterns))
            inside, self._weights = np.nan_to_num(_means(sums)), sums[:, 0]
        narrow = not fits_float32(self._units.scale.min())
        stored = self._units.back(inside).astype(np.float64 if narrow else rows.dtype)
        is_row = len(inside) == len(rows)
        self.memories_ = np.where(np.isnan(rows), stored, rows) if is_row else stored
        size, dim = inside.shape
        few = inside[np.random.RandomState(0).permutation(size)[:BANDWIDTH_ROWS]]
        shrinks = float((len(few) / size) ** (1 / (dim + 4)))
        width = leave_one_out(few) * shrinks if size > 1 else 1.0
        self.beta_ = 0.5 / (self._units.scale * width) ** 2
        self._patterns, self._pattern_weights, self._neighbours = memories[:3]
        points = self._points(rows)
        shares = recollection(points, *memories[:3])

        redraws, counts = np.unique(choice.redraws, axis=0, return_counts=True)
        others = [self._without_small(each, memories, shares, weights).max() for each in redraws]
        found = np.append(np.bincount(others, counts) / counts.sum(), 0.0)
        hidden = found * np.where(np.arange(len(found)) > 0, *HIDDEN) * (len(choice.redraws) > 1)
        found += np.roll(hidden, 1) - hidden
        self.k_probabilities_ = np.trim_zeros(found, "b")
        labels = self._without_small(choice.labels, memories, shares, weights)
        found = cluster_shares(shares, labels).argmax(1)
        self.n_clusters_ = int(labels.max()) + 1
        # The graph prefers clusters of one size, where their number is given.
        starts = GAUSSIAN_STARTS if choice.reason == "n_clusters" else 0
        logits = gaussian_logits(points, weights, found, starts)
        if logits is not None:
            parts, own = (
                gaussian_posteriors(each, logits).argmax(1) for each in (memories.patterns, points)
            )
            sizes = np.bincount(own, weights, minlength=self.n_clusters_)
            if len(set(parts)) == len(sizes) and sizes.min() >= self._least_size:
                labels, found = parts, own
            else:
                logits = None
        # Clusters of one size are in the order of their first rows, which depends on values only.
        order = np.argsort(np.unique(found, return_index=True)[1])
        self._pattern_labels, self._logits = labels, logits
        self._renumber(order)
        means = _means(_sums(table, weights, found, self.n_clusters_))[order]
        return self._units.back(means)

    def _renumber(self, order: NDArray[Any]) -> None:
        self._pattern_labels = np.argsort(order)[self._pattern_labels]
        if self._logits is not None:
            self._logits = self._logits[:, order]

    def _describe(self, choice: Choice) -> None:
        self.resolution_, self.gap_, self.gap_curve_ = choice.resolution, choice.gap, choice.curve
        self.chosen_by_ = choice.reason
        gamma = 1.0 if np.isnan(choice.resolution) else choice.resolution
        graph = choice.memories.graph
        self.objective_ = graph.energy(self._pattern_labels, gamma)
        flow = graph.flow(self._pattern_labels)
        with np.errstate(divide="ignore"):
            self.barriers_ = -np.log(flux_ratios(flow))
            self.separation_ = 1 / leaving(flow) if len(flow) > 1 else np.array([np.nan])
        np.fill_diagonal(self.barriers_, 0.0)
        self.linkage_ = merge_tree(flow, gamma)

    @property
    def _least_size(self) -> float:
        return self.min_cluster_size if self.min_cluster_size > 1 else 1e-300

    def _without_small(
        self, labels: NDArray[Any], memories: Memories, shares: Any, weights: NDArray[Any]
    ) -> NDArray[Any]:
        """Join small clusters, and empty ones, to the one that they exchange most flow with."""
        while True:
            own = cluster_shares(shares, labels).argmax(1)
            sizes = np.bincount(own, weights, minlength=labels.max() + 1)
            small = int(sizes.argmin())
            if len(sizes) == 1 or sizes[small] >= self._least_size:
                return labels
            ratios = flux_ratios(memories.graph.flow(labels))[small]
            ratios[small] = -1.0
            labels = np.where(labels == small, ratios.argmax(), labels)
            labels = labels - (labels > small)

    @property
    def energy_(self) -> Mixture:
        """The density of the stored patterns: an :class:`isthmus.Mixture` in data units."""
        with np.errstate(divide="ignore"):
            log_weights = np.log(self._weights).astype(self.memories_.dtype)
        return Mixture(
            self.memories_,
            log_weights=log_weights,
            covariance=self._variances.astype(self.memories_.dtype),
            covariance_type="tied",
        )

    @property
    def _variances(self) -> FloatArray:
        """The variance of kernels in each column; older files have one for all. (D,)"""
        return np.broadcast_to(0.5 / self.beta_, self.memories_.shape[1:])

    def _points(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return the principal components of rows, gaps filled by their conditional means."""
        if np.isnan(X).any():
            X = np.where(np.isnan(X), complete(self.energy_, X, how="mean"), X)
        return self._inside(X) @ self._rotation

    def _inside(self, X: NDArray[Any]) -> NDArray[Any]:
        """Return rows in internal units, at most FARTHEST from the centre."""
        inside = self._units.into(X.astype(np.float64))
        sizes = np.fmax.reduce(np.abs(inside), 1, keepdims=True, initial=FARTHEST)
        return inside * (FARTHEST / sizes)

    def _posteriors(self, X: NDArray[Any]) -> NDArray[Any]:
        points, logits = self._points(X), getattr(self, "_logits", None)  # which older files lack
        if logits is not None:
            return gaussian_posteriors(points, logits)
        kept = self._patterns, self._pattern_weights, self._neighbours
        return cluster_shares(recollection(points, *kept), self._pattern_labels)

    def novelty(self, X: Any) -> NDArray[Any]:
        """Return the probability that each row comes from no stored pattern. -> (n_samples,)

        The alternative is one further pattern from a Gaussian of twice the deviation of each
        column, with the weight of one row. A row that is stored is judged without itself.
        """
        X = self._table(X)
        inside = self._inside(X) / 2
        known = ~np.isnan(inside)
        broad = -0.5 * np.where(known, inside**2, 0.0).sum(1)
        broad -= known.sum(1) * np.log(2 * np.sqrt(2 * np.pi)) + self._units.log_volume(inside)
        rows = self._units.back(2 * inside).astype(X.dtype)
        log_density, total = self._log_density(rows), self._weights.sum()
        with np.errstate(over="ignore"):  # memories are rows but for rounding
            stored = {row.tobytes(): n for n, row in enumerate(self.memories_.astype(np.float32))}
            places = np.array([stored.get(row.tobytes(), -1) for row in X.astype(np.float32)])
        own = places >= 0
        log_density[own] = self._without(X[own], places[own])
        return expit(broad - log_density - np.log(np.maximum(total - own, 1e-300)))

    def _without(self, X: NDArray[Any], places: NDArray[Any]) -> NDArray[Any]:
        """Return log-densities of stored rows, each without one row of its own memory."""
        weights, root = self._weights.astype(np.float64), np.sqrt(self._variances)
        found = np.empty(len(X))
        for start in range(0, len(X), BANDWIDTH_ROWS):
            some = slice(start, start + BANDWIDTH_ROWS)
            logits = -0.5 * cdist(X[some] / root, self.memories_ / root, "sqeuclidean")
            shares = np.broadcast_to(weights, logits.shape).copy()
            shares[np.arange(len(shares)), places[some]] -= 1
            found[some] = logsumexp(logits, axis=1, b=np.maximum(shares, 0))
        found -= np.log(np.sqrt(2 * np.pi) * root).sum()
        return found - np.log(max(weights.sum() - 1, 1e-300))


def gaussian_posteriors(points: FloatArray, logits: FloatArray) -> FloatArray:
    """Return the probability of each Gaussian. (n, d), (d + 1, K) -> (n, K)"""
    return np.asarray(softmax(points @ logits[:-1] + logits[-1], axis=1))


def gaussian_logits(
    points: FloatArray, weights: FloatArray, labels: IntArray, starts: int = 0
) -> FloatArray | None:
    """Return the logits (d + 1, K) of Gaussians, one for each cluster, with one covariance.

    They are fitted from the clusters on, and from further starts by k-means++, of which the most
    probable is taken. None, if kernels around the rows have the higher density of rows left out:
    then the clusters are not of this form. The last entry of the logits is added to the product of
    the first with a row.
    """
    size, dim = int(labels.max()) + 1, points.shape[1]
    order = np.random.RandomState(0).permutation(len(points))[:GAUSSIAN_ROWS]
    points, shares = points[order], weights[order] / weights[order].sum()
    n_free = size * (dim + 1) - 1 + dim * (dim + 1) // 2
    spare = len(points) - n_free - 1
    if size == 1 or spare <= 0:
        return None
    first = [labels[order]]
    for seed in range(starts):
        seeds, _ = kmeans_plusplus(points, size, sample_weight=shares, random_state=seed)
        first.append(nearest(points, seeds, 1)[:, 0])
    fits = (_fitted_gaussians(points, shares, np.eye(size)[each]) for each in first)
    log_density, logits = max(fits, key=lambda fit: float(shares @ fit[0]))
    few = points[:KERNEL_ROWS]
    kernels = left_out_log_density(few, leave_one_out(few))
    # Each parameter costs as much as in Akaike's criterion, corrected for few rows.
    return logits if log_density[: len(few)].mean() - n_free / spare > kernels else None


def _fitted_gaussians(
    points: FloatArray, shares: FloatArray, parts: FloatArray
) -> tuple[FloatArray, FloatArray]:
    """Return the log-density (n,) and the logits of Gaussians, by expectation maximisation."""
    dim, last, total = points.shape[1], -np.inf, (points.T * shares) @ points
    for _ in range(GAUSSIAN_STEPS):
        masses = shares @ parts + 1e-300
        means = (parts.T * shares) @ points / masses[:, None]
        within = total - (means.T * masses) @ means
        within += 1e-9 * np.trace(total) / dim * np.eye(dim)
        precision = np.linalg.inv(within)
        biases = np.log(masses) - 0.5 * np.einsum("kd,de,ke->k", means, precision, means)
        logits = np.vstack([precision @ means.T, biases])
        scores = points @ logits[:-1] + logits[-1]
        sums = logsumexp(scores, 1)
        parts = np.exp(scores - sums[:, None])
        log_density = sums - 0.5 * np.einsum("nd,de,ne->n", points, precision, points)
        log_density -= 0.5 * (np.linalg.slogdet(within)[1] + dim * np.log(2 * np.pi))
        gain, last = shares @ log_density - last, shares @ log_density
        if gain < 1e-6:
            break
    return log_density, logits
