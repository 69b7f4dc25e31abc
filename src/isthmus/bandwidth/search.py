"""Search for the shape of Gaussian kernels by leave-one-out likelihood."""

from __future__ import annotations

import math
from functools import cached_property
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.linalg import solve_triangular
from scipy.stats import norm
from sklearn.neighbors import NearestNeighbors

from isthmus.bandwidth.rules import Bandwidth, FloatArray, Kind, as_rows, by_rule
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import as_array, as_choice, as_flag, as_seed

# Rows that find the shape, rows whose left-out likelihood sets its scale, and memories of these.
SHAPE_ROWS, SCALE_ROWS, MOST_ROWS = 1000, 1000, 20_000
# Rows farther from the median than this many robust deviations, at most a share of all, are
# outliers: memories like the others, but their own likelihood does not count.
FAR, LARGEST_SHARE = 50.0, 0.05
# A kernel is at least this wide in every direction, in robust deviations of the columns, and its
# covariance is shrunk by this share towards its diagonal.
NARROWEST, SHRINKAGE = 1e-3, 1e-3
# Squared widths are averaged with the variances of the columns, which weigh (D / (D + n))^3: few
# rows cannot show that values beside theirs are rare. The power was chosen on real tables.
POWER = 3
# The width of an adaptive kernel is proportional to the distance of a near neighbour.
NEIGHBORS, FIRST_NEIGHBORS = (5, 10), 6
STEPS, GAIN = 25, 0.01
# The logarithm of the scale is searched in this interval, up to this much.
WIDEST, FINEST, MOST_STEPS = 2.5, 1e-2, 30
# Neighbours are found by a tree up to this many columns: in more, it is slower.
TREE_COLUMNS = 5
# Entries of a block of pairs, which stays in the cache.
BLOCK_ENTRIES = 2**16
# Squared distance of a row from itself, which leaves it out.
OWN = 1e30
# With fewer rows, the likelihood of rows is that under the shape that they found themselves.
FEWEST_CROSSED, LARGEST_LOSS = 20, 10.0
# Covariances are tried by "auto" up to this many columns, if there are as many rows for each, and
# refused beyond the last.
MOST_COLUMNS, ROWS_PER_COLUMN, LARGEST_COVARIANCE = 300, 5, 2000


def choose(
    X: Any,
    kind: Kind | Literal["auto"] = "auto",
    adaptive: bool | None = None,
    robust: bool = True,
    *,
    log_weights: Any = None,
    seed: int = 0,
) -> Bandwidth:
    r"""Return the bandwidth of a Gaussian KDE that makes each row most likely given the others.

    Parameters
    ----------
    X : array or Tensor (n, D)
        Exact duplicates count as one row.
    kind : {"auto", "round", "columns", "full"}
        One bandwidth, one for each column, or a covariance. "auto" takes the one under which rows
        are likeliest if other rows find the shape.
    adaptive : bool, optional
        Give each row a width in proportion to the distance of a near neighbour, in the metric of
        the kernel. Default: with "auto", if that is likelier, and else not.
    robust : bool
        Scale columns by quantiles, and do not count the likelihood of outliers, rows more than 50
        such deviations from the median (at most 5 % of all).
    log_weights : array (n,), optional
        Log-weights of the rows.
    seed : int
        Seed of the subsets: 1,000 rows find the shape; the likelihood of 1,000 rows given up to
        20,000 others sets its scale.

    Notes
    -----
    The shape H is a fixed point of EM on the left-out likelihood (Leiva-Murillo and
    Artes-Rodriguez, 2012): :math:`H = \frac1n \sum_{i \ne j} r_{ij} (x_i - x_j)(x_i - x_j)^\top /
    f_j^2`, with the responsibilities r of the other rows and their factors f. Adaptive kernels
    alternate between H and f. A last search in one dimension sets the scale.

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.bandwidth import choose
    >>> X = np.random.default_rng(0).normal(size=(500, 2)) * [1.0, 100.0]
    >>> choose(X, "columns").sigma.round(1)
    array([ 0.5, 42.1])
    """
    as_choice(kind, "kind", ("auto", *get_args(Kind)))
    as_flag(robust, "robust")
    ways = (False, True) if kind == "auto" else (False,)
    if adaptive is not None:
        ways = (as_flag(adaptive, "adaptive"),)
    table = as_rows(X)
    problem = _WidthSearch(table, log_weights, robust, seed)
    kinds: tuple[Kind, ...] = get_args(Kind) if kind == "auto" else (kind,)
    dim = table.shape[1]
    if kind == "full" and dim > LARGEST_COVARIANCE:
        raise InvalidInputError(f"A covariance of {dim} columns is too large; use kind='columns'.")
    if kind == "auto" and (dim > MOST_COLUMNS or len(problem.rows) < ROWS_PER_COLUMN * dim):
        kinds = kinds[:2]
    tried = [(each, way) for each in kinds for way in ways]
    found = [(*problem.fitted(*one), one) for one in tried]
    best, chosen = -math.inf, found[0][0]
    # Other rows find no shape under which these are likelier than under the one they found.
    for bandwidth, densities, one in sorted(found, key=lambda each: -each[0].log_likelihood):
        if len(found) == 1 or bandwidth.log_likelihood <= best:
            break
        crossed = problem.cross_fitted(densities, *one)
        if crossed > best:
            best, chosen = crossed, bandwidth
    return chosen


def named(rule: str, X: Any, log_weights: Any) -> Bandwidth:
    """Return the bandwidth that a rule finds."""
    as_choice(rule, "sigma", ("auto", "scott", "silverman"))
    weights = None if log_weights is None else as_array(log_weights, "log_weights")
    if rule == "auto":
        return choose(X, log_weights=weights)
    return by_rule(as_rows(X), rule, weights)


class _WidthSearch:
    """Distinct rows in robust units, in random order, with weights, and those that count."""

    def __init__(self, table: FloatArray, log_weights: Any, robust: bool, seed: int) -> None:
        self.table = table
        distinct, first, which = np.unique(table, axis=0, return_index=True, return_inverse=True)
        if len(distinct) == 1:
            raise InvalidInputError(
                "X has only one distinct row, so it gives no bandwidth. Pass sigma instead."
            )
        order = np.random.default_rng(as_seed(seed)).permutation(len(distinct))
        self.centre = np.median(table, 0)
        self.columns = robust_scales(table) if robust else table.std(0)
        self.columns[self.columns == 0] = 1.0
        shifted = distinct[order] - self.centre
        weights: FloatArray = np.ones(len(distinct))
        if log_weights is not None:
            given = as_array(log_weights, "log_weights")
            if given.shape != (len(table),):
                raise ShapeError(f"log_weights must be ({len(table)},), not {given.shape}.")
            shares = np.exp(given - given.max())
            weights = np.bincount(which.reshape(-1), shares).astype(np.float64)
        reach = np.abs(shifted / self.columns).max(1)
        limit = max(FAR, float(np.quantile(reach, 1 - LARGEST_SHARE))) if robust else np.inf
        self.first, self.rows = first[order], shifted
        self.weights, self.counts = weights[order], (reach <= limit) & (weights[order] > 0)
        self.scale = self.columns
        if self.counts.sum() < 2:
            raise InvalidInputError("At least two distinct rows need a weight above zero.")
        self._searches: dict[tuple[Kind, int | None], _ExpectationMaximization] = {}
        # Rows whose left-out likelihood is computed.
        self.queries = np.flatnonzero(self.counts[:MOST_ROWS])[:SCALE_ROWS]

    def fitted(self, kind: Kind, adaptive: bool) -> tuple[Bandwidth, FloatArray]:
        """Return the best bandwidth of a kind, and the left-out log-density of rows."""
        root, k = self._search(kind).shape(adaptive)
        log_factors = self._log_factors(root, k, self.table - self.centre)
        own = None if log_factors is None else log_factors[self.first]
        scale, densities = self.scaled(root, own, self.queries)
        likelihood = float(np.average(densities, weights=self.weights[self.queries]))
        factors = None if log_factors is None else np.exp(log_factors)
        if kind == "full":
            half = scale * self.scale[:, None] * root
            return Bandwidth(kind, 1.0, half @ half.T, factors, likelihood), densities
        sigma = scale * self.scale * root
        whole = float(sigma[0]) if kind == "round" else sigma
        return Bandwidth(kind, whole, None, factors, likelihood), densities

    def cross_fitted(self, densities: FloatArray, kind: Kind, adaptive: bool) -> float:
        """Return the mean left-out log-density under shapes of other rows; losses are limited."""
        chosen, weights = self.queries, self.weights[self.queries]
        if len(chosen) < FEWEST_CROSSED:
            return float(np.average(densities, weights=weights))
        crossed = densities - LARGEST_LOSS
        for part in range(2):
            root, k = self._search(kind, 1 - part).shape(adaptive)
            own = self._log_factors(root, k, self.rows[:MOST_ROWS])
            found = self.scaled(root, own, chosen[part::2])[1]
            crossed[part::2] = np.maximum(found, crossed[part::2])
        return float(np.average(crossed, weights=weights))

    def _log_factors(self, root: FloatArray, k: int | None, rows: FloatArray) -> FloatArray | None:
        """Return the log-widths of rows from the distance of a near neighbour. (n,)"""
        if k is None:
            return None
        mapped = _mapped(root, self.memories)
        way = "kd_tree" if mapped.shape[1] <= TREE_COLUMNS else "brute"
        search = NearestNeighbors(n_neighbors=min(k + 1, len(mapped)), algorithm=way).fit(mapped)
        nearest = search.kneighbors(_mapped(root, rows / self.scale))[0][:, -1]
        found: FloatArray = np.log(np.maximum(nearest, NARROWEST))
        return found - found.mean()

    def _search(self, kind: Kind, part: int | None = None) -> _ExpectationMaximization:
        """Return the search for a shape; round kernels are round in the units of the table."""
        columns = self.columns
        self.scale = np.full_like(columns, columns.mean()) if kind == "round" else columns
        self.memories = self.rows[:MOST_ROWS] / self.scale
        if (kind, part) not in self._searches:
            chosen = np.flatnonzero(self.counts)[:SHAPE_ROWS]
            chosen = chosen if part is None else self.queries[part::2]
            rows, weights = self.rows[chosen] / self.scale, self.weights[chosen]
            self._searches[kind, part] = _ExpectationMaximization(rows, weights, kind)
        return self._searches[kind, part]

    def scaled(
        self, root: FloatArray, log_factors: FloatArray | None, queries: NDArray[np.intp]
    ) -> tuple[float, FloatArray]:
        """Return the scale with the highest left-out likelihood of rows, and their densities."""
        mapped = _mapped(root, self.memories)
        count, dim = mapped.shape
        weights = self.weights[:count]
        squares = _squares(mapped[queries], mapped)
        offset = np.log(np.maximum(weights, 1e-300))
        if log_factors is not None:
            squares *= np.exp(-2 * log_factors[:count])
            offset = offset - dim * log_factors[:count]
        squares[np.arange(len(queries)), queries] = OWN
        share = weights[queries] / weights[queries].sum()
        low, high, log_scale = -WIDEST, WIDEST, 0.0
        for _ in range(MOST_STEPS):
            _, first, second = _left_out(squares, offset, math.exp(-2 * log_scale), np.float32)
            # Newton's step for the logarithm of the scale, kept where the likelihood rises.
            slope, bend = share @ (first - dim), share @ (second - first**2 - 2 * first)
            low, high = (log_scale, high) if slope > 0 else (low, log_scale)
            step = -slope / bend if bend < 0 else math.copysign(0.5, slope)
            if not low < log_scale + step < high:
                step = 0.5 * (low + high) - log_scale
            log_scale += step
            if abs(step) < FINEST:
                break
        sums, _, _ = _left_out(squares, offset, math.exp(-2 * log_scale), np.float64)
        others = np.log(weights.sum() - weights[queries])
        volume = np.log(self.scale).sum() + 0.5 * dim * math.log(2 * math.pi) + _log_det(root)
        return math.exp(log_scale), sums - others - dim * log_scale - volume


class _ExpectationMaximization:
    """EM for the second moments (D,) or (D, D) of kernels, on left-out likelihood."""

    def __init__(self, rows: FloatArray, weights: FloatArray, kind: Kind) -> None:
        self.rows, self.weights, self.kind = rows, weights / weights.sum(), kind
        count, dim = rows.shape
        self.share = (dim / (dim + count)) ** POWER
        self.variances = self.weights @ np.square(rows - self.weights @ rows)

    def shape(self, adaptive: bool) -> tuple[FloatArray, int | None]:
        """Return a root of the shape, and the neighbour whose distance sets a width, if any."""
        if not adaptive:
            return self.root(self._plain), None
        tried = {k: self.run(self._plain, k) for k in NEIGHBORS}
        k = max(tried, key=lambda each: tried[each][0])
        return self.root(self.run(tried[k][1], k)[1]), k

    @cached_property
    def _plain(self) -> FloatArray:
        return self.run(self.first())[1]

    def _moments(self, pairs: FloatArray, left: FloatArray, right: FloatArray) -> FloatArray:
        """Return the sum over pairs, times two factors, of the product of their differences."""
        rows, dim = self.rows, self.rows.shape[1]
        scaled = right[:, None] * np.column_stack([rows, np.ones(len(rows))])
        product = left[:, None] * (pairs @ scaled.astype(pairs.dtype))
        own = product[:, dim] + right * (left.astype(pairs.dtype) @ pairs)
        if self.kind == "full":
            cross = rows.T @ product[:, :dim]
            return (rows * own[:, None]).T @ rows - cross - cross.T
        return np.maximum((own[:, None] * rows**2 - 2 * rows * product[:, :dim]).sum(0), 0)

    def first(self) -> FloatArray:
        """Return the moments of the differences to the nearest neighbours."""
        squares = _squares(self.rows, self.rows)
        np.fill_diagonal(squares, np.inf)
        k = min(FIRST_NEIGHBORS, len(squares) - 1)
        nearest = np.argpartition(squares, k - 1, axis=1)[:, :k]
        pairs = np.zeros_like(squares)
        np.put_along_axis(pairs, nearest, 1.0, 1)
        return self._moments(pairs, self.weights / k, np.ones(len(squares)))

    def root(self, moments: FloatArray) -> FloatArray:
        """Return standard deviations (D,), or a Cholesky factor (D, D), away from zero."""
        least = self.share * self.variances + NARROWEST**2
        moments = (1 - self.share) * moments
        if self.kind != "full":
            found = moments + least
            return np.sqrt(np.full_like(found, found.mean()) if self.kind == "round" else found)
        diagonal = np.diag(SHRINKAGE * np.diag(moments) + least)
        return np.asarray(np.linalg.cholesky((1 - SHRINKAGE) * moments + diagonal), np.float64)

    def run(self, moments: FloatArray, k: int | None = None) -> tuple[float, FloatArray]:
        """Return the likelihood reached, with factors from k-th neighbours, and the moments."""
        (n, dim), best, log_factors = self.rows.shape, -np.inf, np.zeros(len(self.rows))
        log_weights = np.log(np.maximum(self.weights, 1e-300))
        for step in range(STEPS):
            root = self.root(moments)
            mapped = _mapped(root, self.rows)
            if k is not None and step == 0:
                squares = _squares(mapped, mapped)
                np.fill_diagonal(squares, OWN)
                nearest = np.partition(squares, min(k, n - 1) - 1, axis=1)[:, min(k, n - 1) - 1]
                log_factors = np.log(np.maximum(np.sqrt(nearest), NARROWEST))
                log_factors -= log_factors.mean()
            precision = np.exp(-2 * log_factors)
            offset = log_weights - dim * log_factors
            logits = _scaled_squares(mapped, mapped, -0.5 * precision, offset)
            np.minimum(logits, offset, out=logits)
            np.fill_diagonal(logits, -OWN)
            total, shares = _sum_out(logits)
            likelihood = float(self.weights @ total) - _log_det(root)
            if likelihood - best < GAIN:
                break
            best, kept = likelihood, moments
            moments = self._moments(shares, self.weights / shares.sum(1), precision)
        return best, kept


def robust_scales(table: FloatArray) -> FloatArray:
    """Return deviations of the columns from quantiles; from rarer ones if those are equal. (D,)"""
    found = np.zeros(table.shape[1])
    for tail in (25, 10, 5, 1):
        # Values of rows: a value between the last two would be a small part of a lone large one.
        low = np.percentile(table, tail, axis=0, method="lower")
        high = np.percentile(table, 100 - tail, axis=0, method="higher")
        found = np.where(found > 0, found, (high - low) / (2 * norm.ppf(1 - tail / 100)))
    return np.where(found > 0, found, table.std(0))


def _sum_out(logits: NDArray[Any], dtype: Any = np.float32) -> tuple[FloatArray, NDArray[Any]]:
    """Return the log-sum-exp of rows, and exponentials up to a factor of each row."""
    top = logits.max(1)
    shares = np.subtract(logits, top[:, None], dtype=dtype, casting="same_kind")
    np.exp(shares, out=shares)
    return np.log(shares.sum(1, dtype=np.float64)) + top, shares


def _left_out(
    squares: FloatArray, offset: FloatArray, precision: float, dtype: Any
) -> tuple[FloatArray, FloatArray, FloatArray]:
    """Return log-sums of kernels, and the first two moments of their scaled squares. (Q, n) -> (Q,)

    Moments are under the shares of the kernels. Blocks stay in the cache.
    """
    sums, first, second = np.empty((3, len(squares)))
    rows = max(BLOCK_ENTRIES // squares.shape[1], 1)
    for some in (slice(start, start + rows) for start in range(0, len(squares), rows)):
        scaled = np.multiply(squares[some], precision, dtype=dtype, casting="same_kind")
        sums[some], shares = _sum_out(offset.astype(dtype) - dtype(0.5) * scaled, dtype)
        total = shares.sum(1)
        shares *= scaled
        first[some] = shares.sum(1) / total
        second[some] = np.einsum("qn,qn->q", shares, scaled) / total
    return sums, first, second


def _mapped(root: FloatArray, rows: FloatArray) -> FloatArray:
    if root.ndim == 1:
        return rows / root
    return np.ascontiguousarray(solve_triangular(root, rows.T, lower=True).T)


def _log_det(root: FloatArray) -> float:
    return float(np.log(root if root.ndim == 1 else np.diag(root)).sum())


def _squares(left: FloatArray, right: FloatArray) -> FloatArray:
    """Return squared distances. (n, D), (m, D) -> (n, m)"""
    squares = _scaled_squares(left, right, np.ones(len(right)), np.zeros(len(right)))
    return np.maximum(squares, 0, out=squares)


def _scaled_squares(
    left: FloatArray, right: FloatArray, factor: FloatArray, offset: FloatArray
) -> FloatArray:
    """Return a factor times squared distances plus an offset, both (m,), by one product. (n, m)"""
    first = np.column_stack([left, np.square(left).sum(1), np.ones(len(left))])
    second = [-2 * factor[:, None] * right, factor, factor * np.square(right).sum(1) + offset]
    product: FloatArray = first @ np.column_stack(second).T
    return product
