"""Rows in internal units (centred, unit variance, gaps marked) and statistics of clusters."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, NamedTuple, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.preprocessing import StandardScaler
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.logits import distance_logits
from isthmus.printing import listed

# Entries of one block of rows: small enough to stay in a core's cache.
BLOCK_ENTRIES = 2**19
# Starts of a training are found on at most this many distinct rows.
SAMPLE_ROWS = 50_000
# Scales of data whose squares, and the inverses of these, are far from overflow.
SMALLEST_SCALE = 1e-140


def require_observed(observed: NDArray[np.bool_]) -> None:
    """Raise if columns of X (D,) have no observed value, and name them."""
    if observed.all():
        return
    empty = listed([str(column) for column in np.flatnonzero(~observed)])
    if (~observed).sum() == 1:
        found = f"Column {empty} of X has no observed value", "it"
    else:
        found = f"Columns {empty} of X have no observed value", "them"
    raise InvalidInputError(
        f"{found[0]}, so nothing can be learned about {found[1]}. Leave {found[1]} out."
    )


@dataclass(frozen=True)
class Units:
    """The change of units x = centre + scale * internal, which keeps arithmetic in range."""

    centre: NDArray[Any]
    scale: float

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any]) -> Units:
        """Centre on the weighted mean of X and scale to a mean variance of 1 per feature."""
        require_observed(~np.isnan(X).all(0))
        # Numbers are brought near 1 first, so that squares of huge ones do not overflow, and into
        # one order in memory, on which the rounding of a product depends.
        size = largest_value(X)
        scaler = StandardScaler().fit(np.ascontiguousarray(X) / size, sample_weight=weights)
        variance = float(scaler.var_.mean())
        scale = math.sqrt(variance) * size if variance > 1e-30 else size
        if not SMALLEST_SCALE < scale < 1 / SMALLEST_SCALE:
            raise InvalidInputError(
                f"Rows of X are {scale:.3g} apart, which cannot be squared in double precision. "
                "Rescale the columns."
            )
        return cls(scaler.mean_ * size, scale)

    def to_internal(self, X: NDArray[Any]) -> NDArray[Any]:
        """Convert from the units of the user. (N, D) -> (N, D)"""
        inside = np.subtract(X, self.centre.astype(X.dtype))
        inside *= X.dtype.type(1 / self.scale)
        return inside

    def to_user(self, points: Tensor) -> NDArray[Any]:
        """Convert to the units of the user, in float64. (K, D) -> (K, D)"""
        return points.double().numpy() * self.scale + self.centre


@dataclass(frozen=True)
class Rows:
    """The data of a fit, in internal units.

    `values` (N, D) are zero where unknown, `observed` (N, D) is one where known (None: everywhere).
    `keys` (N,) are the hashes of distinct rows.
    """

    values: Tensor
    weights: Tensor
    observed: Tensor | None
    squares: Tensor
    keys: Tensor | None = None

    @classmethod
    def of(
        cls,
        X: NDArray[Any],
        weights: NDArray[Any],
        units: Units,
        keys: NDArray[Any] | None = None,
    ) -> Rows:
        """Convert a table in which NaN marks unknown values."""
        inside = units.to_internal(X)
        observed = None
        if np.isnan(inside.sum()):
            gaps = np.isnan(inside)
            inside[gaps] = 0
            observed = torch.from_numpy((~gaps).astype(inside.dtype))
        values = torch.from_numpy(np.ascontiguousarray(inside))
        squares = torch.linalg.vector_norm(values, dim=1).square()
        masses = torch.from_numpy(weights.astype(inside.dtype))
        return cls(
            values, masses, observed, squares, None if keys is None else torch.from_numpy(keys)
        )

    @classmethod
    def joined(cls, first: Rows, second: Rows) -> Rows:
        """Return the rows of both, equal ones as one, in an order that depends on values only."""
        assert first.keys is not None
        assert second.keys is not None
        keys, group = torch.unique(torch.cat([first.keys, second.keys]), return_inverse=True)
        chosen = torch.empty(len(keys), dtype=torch.int64)
        chosen[group] = torch.arange(len(group))
        weights = torch.cat([first.weights, second.weights])
        values = torch.cat([first.values, second.values])[chosen]
        observed = None
        if first.observed is not None or second.observed is not None:
            both = (
                torch.ones_like(r.values) if r.observed is None else r.observed
                for r in (first, second)
            )
            observed = torch.cat(list(both))[chosen]
        masses = torch.zeros(len(keys), dtype=weights.dtype).index_add_(0, group, weights)
        squares = torch.cat([first.squares, second.squares])[chosen]
        return cls(values, masses, observed, squares, keys)

    def __len__(self) -> int:
        return self.values.shape[0]

    @property
    def dim(self) -> int:
        """The number of features D."""
        return self.values.shape[1]

    @property
    def dtype(self) -> torch.dtype:
        """Float32 or float64."""
        return self.values.dtype

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``function(rows, *arguments)``: these rows are one block."""
        return function(self, *arguments)

    def sample(self) -> Rows:
        """Return a random choice of distinct rows, or all of them if they are few."""
        if self.keys is None or len(self) <= SAMPLE_ROWS:
            return self
        return self.take(torch.from_numpy(chosen_by_key(self.keys.numpy())))

    @property
    def smallest_variance(self) -> float:
        """The variance below which rounding errors would decide."""
        return 1e-10 if self.values.dtype == torch.float64 else 1e-6

    @cached_property
    def total(self) -> float:
        """The sum of weights."""
        return float(self.weights.double().sum())

    @cached_property
    def square(self) -> float:
        """The weighted sum of squared lengths."""
        return float(self.weights.double() @ self.squares.double())

    @cached_property
    def known_total(self) -> float:
        """The weighted number of known coordinates."""
        return float(self.weights.double() @ self.coordinates().double())

    def coordinates(self) -> Tensor:
        """Return the number of known coordinates of each row. (N,)"""
        if self.observed is None:
            return self.values.new_full((len(self),), self.dim)
        return self.observed.sum(1)

    def hard_shares(self, labels: Tensor, n_clusters: int) -> Tensor:
        """Return a matrix that gives the weight of each row to the cluster of its label. (N, K)"""
        shares = self.values.new_zeros(len(self), n_clusters)
        return shares.scatter_(1, labels[:, None], self.weights[:, None])

    def take(self, index: Any) -> Rows:
        """Return the rows at a slice or an index."""
        observed = None if self.observed is None else self.observed[index]
        keys = None if self.keys is None else self.keys[index]
        return Rows(self.values[index], self.weights[index], observed, self.squares[index], keys)

    def without_clusters(self, most: int, generator: np.random.RandomState) -> Rows:
        """Draw up to `most` rows of the same covariance, gaps and weight from one Gaussian.

        Their sample covariance is that of the rows: given it, rows of one Gaussian are equally
        likely to be any such draw.
        """
        size = max(len(self), min(round(self.total), most))
        weights = self.weights.double()
        places = torch.arange(size, dtype=torch.float64).add_(0.5) * self.total / size
        # Gaps are those of the rows, in proportion to their weights.
        like = self.take(torch.searchsorted(weights.cumsum(0), places).clamp_(max=len(self) - 1))
        root = torch.linalg.qr(self.values.double() * weights.sqrt()[:, None], mode="r").R
        draws = torch.from_numpy(generator.standard_normal((size, len(root))))
        values = torch.linalg.qr(draws - draws.mean(0)).Q @ root
        if like.observed is not None:
            values *= like.observed
        values *= math.sqrt(size * self.square / self.total) / max(float(values.norm()), 1e-300)
        values = values.to(self.values.dtype)
        shares = values.new_full((size,), self.total / size)
        return Rows(values, shares, like.observed, values.square().sum(1))

    def blocks(self, width: int) -> Iterator[tuple[slice, Rows]]:
        """Yield consecutive blocks of rows, small enough for `width` numbers each in cache."""
        size = max(BLOCK_ENTRIES // max(width, 1), 64)
        for start in range(0, len(self), size):
            block = slice(start, min(start + size, len(self)))
            yield block, self.take(block)


@dataclass(frozen=True)
class RowSample:
    """Distinct rows (n, D) in their canonical order, their weights, and their hashes (n,)."""

    values: NDArray[Any]
    weights: NDArray[Any]
    keys: NDArray[np.int64]

    @classmethod
    def of(cls, X: NDArray[Any], weights: NDArray[Any]) -> RowSample:
        """Join equal rows of a table."""
        values, masses, _, keys = distinct_rows(X, weights)
        return cls(values, masses, keys)

    def __add__(self, other: RowSample) -> RowSample:
        parts = zip(vars(self).values(), vars(other).values(), strict=True)
        values, weights, _ = (np.concatenate(pair) for pair in parts)
        return RowSample.of(values, weights).cut()

    def cut(self) -> RowSample:
        """Return a random choice of rows if there are too many; it depends on their values only."""
        if len(self.keys) <= SAMPLE_ROWS:
            return self
        kept = chosen_by_key(self.keys)
        return RowSample(self.values[kept], self.weights[kept], self.keys[kept])

    def rows(self, units: Units) -> Rows:
        """Return the rows in internal units."""
        return Rows.of(self.values, self.weights, units, self.keys)


def chosen_by_key(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the places of the lowest hashes, in ascending order.

    Which rows are chosen does not depend on their order, or on the blocks they are in.
    """
    chosen: NDArray[np.int64] = np.sort(np.argsort(keys)[:SAMPLE_ROWS])
    return chosen


def row_hashes(X: NDArray[Any]) -> NDArray[np.int64]:
    """Return a hash of the values of each row, in which all NaN, and both zeros, are alike. (n,)"""
    hashes = np.zeros(len(X), dtype=np.uint64)
    for column in X.T:
        values = column.astype(np.float64) + 0.0
        values[np.isnan(values)] = np.nan
        hashes += np.uint64(0x9E3779B97F4A7C15)
        hashes ^= values.view(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            hashes ^= hashes >> np.uint64(shift)  # the finaliser of splitmix64
            hashes *= np.uint64(factor)
        hashes ^= hashes >> np.uint64(31)
    return hashes.view(np.int64)


def projected(X: NDArray[Any]) -> NDArray[np.float64]:
    """Return the projection of each row on one random direction; unknown values are 0. (n,)"""
    direction = np.random.RandomState(0).uniform(0.5, 1.5, X.shape[1])
    places = np.zeros(len(X))
    # Column by column, unlike in a matrix product, rounding does not depend on where a row stands.
    with np.errstate(over="ignore", invalid="ignore"):
        for column, factor in zip(X.T, direction, strict=True):
            places += factor * np.nan_to_num(column.astype(np.float64))
    return places


def distinct_rows(X: NDArray[Any], weights: NDArray[Any]) -> tuple[NDArray[Any], ...]:
    """Return the distinct rows, their weights, where each row went, and their hashes.

    Their order depends on their values only, and, up to rounding, not on the unit of the table.
    """
    keys, first, group = np.unique(row_hashes(X), return_index=True, return_inverse=True)
    order = np.argsort(projected(X[first]), kind="stable")
    masses = np.bincount(group, weights)[order]
    return X[first[order]], masses, np.argsort(order)[group], keys[order]


def largest_value(X: NDArray[Any]) -> float:
    """Return the largest absolute value, or 1 if there is none above 0."""
    return max(float(np.fmax.reduce(X, None)), -float(np.fmin.reduce(X, None))) or 1.0


class AnyRows(Protocol):
    """Rows in memory or in blocks: what statistics over all of them need, as in :class:`Rows`."""

    def __len__(self) -> int: ...

    @property
    def dim(self) -> int:
        """The number of features D."""
        ...

    @property
    def dtype(self) -> torch.dtype:
        """Float32 or float64."""
        ...

    @property
    def smallest_variance(self) -> float:
        """The variance below which rounding errors would decide."""
        ...

    @property
    def total(self) -> float:
        """The sum of weights."""
        ...

    @property
    def square(self) -> float:
        """The weighted sum of squared lengths."""
        ...

    @property
    def known_total(self) -> float:
        """The weighted number of known coordinates."""
        ...

    def sample(self) -> Rows:
        """Return a random choice of distinct rows, or all of them if they are few."""
        ...

    def reduce(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """Return the sum over blocks of ``function(rows, *arguments)``."""
        ...


class MixtureParameters(NamedTuple):
    """The parameters of an :class:`isthmus.Mixture` (K, D), in internal units."""

    means: Tensor
    beta: float
    log_weights: Tensor

    def log_joint(self, rows: Rows) -> Tensor:
        """Return log p(x, z = k) without the term that all memories share. (n, K)"""
        return distance_logits(rows.values, self.means, self.log_weights, self.beta, rows.observed)

    def row_terms(self, rows: Rows) -> Tensor:
        """Return the term that :meth:`log_joint` leaves out. (n,)"""
        return 0.5 * math.log(self.beta / math.pi) * rows.coordinates() - self.beta * rows.squares


@dataclass(frozen=True)
class ClusterStatistics:
    """Sufficient statistics of rows that are divided among clusters, in float64.

    Of each cluster: the weight of its rows, their weighted sum, and the weight of known
    coordinates. Of all rows: the weighted sums of squared lengths and of known coordinates, and
    the entropy of the assignments.
    """

    counts: Tensor
    sums: Tensor
    masses: Tensor
    square: float = 0.0
    coordinates: float = 0.0
    entropy: float = 0.0

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

    def with_totals_of(self, rows: AnyRows, added: bool = False) -> ClusterStatistics:
        """Set the totals over all rows, or add to them."""
        square, coordinates = (self.square, self.coordinates) if added else (0.0, 0.0)
        return replace(
            self, square=square + rows.square, coordinates=coordinates + rows.known_total
        )

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

    def residual(self, means: Tensor) -> float:
        """Return the weighted sum of squared distances of rows to `means` (K, D)."""
        means = means.double()
        cross, own = (means * self.sums).sum(), (self.masses * means.square()).sum()
        return max(float(self.square - 2 * cross + own), 0.0)

    def variance(self, means: Tensor, smallest: float) -> float:
        """Return the mean squared distance per known coordinate, at least `smallest`."""
        return max(self.residual(means) / max(self.coordinates, 1e-300), smallest)

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
    posterior: Callable[[Tensor], Tensor] | None = None,
) -> tuple[ClusterStatistics, float]:
    """Divide all rows among the memories; return statistics and the log-likelihood.

    `posterior` maps log-joints (n, K) to assignment probabilities (n, K); default: exact.
    """
    found = rows.reduce(_divided, parameters, posterior)
    return found.statistics.with_totals_of(rows), found.log_likelihood


def labelled(rows: Rows, parameters: MixtureParameters) -> tuple[ClusterStatistics, float, Tensor]:
    """Return the :func:`expectation` of rows in memory, and their most probable memories (N,)."""
    labels = torch.empty(len(rows), dtype=torch.int64)
    found = _divided(rows, parameters, None, labels)
    return found.statistics.with_totals_of(rows), found.log_likelihood, labels


@dataclass(frozen=True)
class Division:
    """The statistics of rows that are divided among memories, and their log-likelihood."""

    statistics: ClusterStatistics
    log_likelihood: float

    def __add__(self, other: Division) -> Division:
        return Division(
            self.statistics + other.statistics, self.log_likelihood + other.log_likelihood
        )


@torch.no_grad()
def _divided(
    rows: Rows,
    parameters: MixtureParameters,
    posterior: Callable[[Tensor], Tensor] | None,
    labels: Tensor | None = None,
) -> Division:
    statistics = None
    log_likelihood = 0.0
    for where, block in rows.blocks(len(parameters.means) + rows.dim):
        logits = parameters.log_joint(block)
        # numpy finds the largest of each row in a quarter of the time that torch needs.
        best = torch.from_numpy(logits.numpy().argmax(1))
        if labels is not None:
            labels[where] = best
        top = logits.gather(1, best[:, None])
        if posterior is None:  # one exponential serves shares and log-sum-exps
            shares = logits.sub_(top).exp_()
            mass = shares.sum(1)
            total = mass.log().add_(top[:, 0])
            shares.mul_((block.weights / mass)[:, None])
        else:
            shares = posterior(logits) * block.weights[:, None]
            total = torch.logsumexp(logits, 1)
        part = ClusterStatistics.of_shares(block, shares)
        statistics = part if statistics is None else statistics + part
        log_likelihood += float(block.weights @ total.add_(parameters.row_terms(block)))
    assert statistics is not None
    return Division(statistics, log_likelihood)
