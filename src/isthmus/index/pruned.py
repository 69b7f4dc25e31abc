r"""Attention over the cells of an index that can matter, with a bound on what is left out.

With logits :math:`\ell_n = -\beta \lVert q - m_n \rVert^2 + b_n`, let L be a lower bound on the
log-sum-exp of a query and :math:`\varepsilon` the tolerance. A cell whose biases are at most b may
be left out if all its points are farther from the query than R,

.. math:: \beta R^2 = \log(N/\varepsilon) - L + b ,

since each memory then weighs at most :math:`e^L \varepsilon / N`. If Z is the sum over those kept
and d the number of those left out, all of these together weigh at most
:math:`\gamma = e^{L - \log Z} \varepsilon\, d / N` times Z. Hence the log-sum-exp is short by at
most :math:`\log(1 + \gamma)`, and the mean, m over those kept, is off by at most
:math:`\gamma (R + \lVert q - m \rVert)`: :math:`t e^{-\beta t^2}` falls where
:math:`t \ge (2\beta)^{-1/2}`.

Dot products are distances with the bias :math:`\beta \lVert m_n \rVert^2 / 2`.
"""

from __future__ import annotations

import math
from typing import NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.index.cells import nearest
from isthmus.index.index import Index, is_indexable
from isthmus.kernel.attention import Attention, ErrorBound
from isthmus.kernel.fused import HEAD_WIDTH, merged
from isthmus.kernel.logits import Keys, Metric
from isthmus.validation import is_transforming

FloatArray = NDArray[np.float64]
# Queries of a tile. A tile that needs many memories is halved as long as it is wider than the radii
# of its queries times a factor.
TILE, LEAST_TILE, MANY_ROWS, WIDE = 64, 8, 2048, 1.5
# Tiles whose results are put together at once.
BATCH = 64
# Entries of gathered memories for one call of the kernel: 16 MiB in float32.
GATHERED_ENTRIES = 2**22
# A tile is computed in float64 if beta times the square of its radius is larger.
FLOAT32_TILE_LIMIT = 1024.0
FLOAT64_UNIT = 2.0**-53
# Top cells in which the leaf of a query is searched.
NEAREST_TOPS = 4
# Sample tiles that tell how many memories a set of queries needs.
SAMPLE_TILES = 8


def is_prunable(queries: Tensor, *others: Tensor | None) -> bool:
    """Return True if queries can be sent through an index: no gradients, on the CPU, not huge."""
    if is_transforming() or queries.device.type != "cpu" or not is_indexable(queries):
        return False
    tensors = [queries, *(each for each in others if each is not None)]
    return not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))


class Needed(NamedTuple):
    """The rows of neighbouring queries, and the leaves of the memories that they need."""

    rows: slice
    centre: NDArray[np.floating]  # (1, D)
    leaves: NDArray[np.int64]
    needed: int  # memories in the leaves


class Weights:
    """Biases of memories in the order of an index, in float64, with the largest of each cell.

    Logits are distances times `beta`: half that of dot products.
    """

    def __init__(self, index: Index, bias: Tensor | None, beta: float, metric: Metric) -> None:
        self.metric, self.beta = metric, beta if metric == "sqeuclidean" else 0.5 * beta
        own = None if bias is None else bias.detach().double().numpy()[index.order]
        total = own
        if metric == "dot":
            total = self.beta * index.squares
            total = total if own is None else total + own
        nothing = np.zeros(0)
        self.own = nothing if own is None else own
        self.total = nothing if total is None else total
        self.leaf_raise = self.top_raise = nothing
        self.most = self.size = 0.0
        if total is not None:
            leaf_maxima = np.maximum.reduceat(total, index.leaves.first[:-1])
            self.leaf_raise = leaf_maxima / self.beta
            top_maxima = np.maximum.reduceat(leaf_maxima, index.tops.first[:-1])
            self.top_raise = top_maxima / self.beta
            self.most = float(leaf_maxima.max())
        if own is not None:
            self.size = float(np.abs(own[own > -np.inf]).max())


class Plan:
    """Queries (Q, D) in tiles of neighbours, and the radii beyond which memories do not matter."""

    def __init__(self, queries: Tensor, index: Index, weights: Weights, tol: float) -> None:
        self.index, self.weights, self.metric, self.tol = index, weights, weights.metric, tol
        self.scale = 2 * weights.beta
        values = np.ascontiguousarray(queries.detach().numpy())
        leaves, bounds = lower_bounds_of(values, index, weights)
        self.order = np.argsort(leaves, kind="stable")
        self.queries, self.bounds = values[self.order], bounds[self.order]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (math.log(index.n_memories / tol) - self.bounds) / weights.beta
        self.squares = np.minimum(squares + 1e-12 * np.abs(squares), np.finfo(np.float64).max)
        self.unit = float(np.finfo(values.dtype).eps) / 2
        self._cells = np.empty(index.n_cells, dtype=np.int64)

    def _tiles(self, start: int, stop: int) -> list[Needed]:
        """Select memories for the sorted queries from `start` to `stop`, tile by tile."""
        waiting = [(first, min(first + TILE, stop), False) for first in range(start, stop, TILE)]
        waiting.reverse()
        tiles = []
        while waiting:
            first, last, many = waiting.pop()
            queries, reach = self.queries[first:last], np.sqrt(self.squares[first:last].clip(0))
            centre = queries[:1] + (queries - queries[:1]).mean(0)
            wide = np.square(queries - centre).sum(1).max() ** 0.5 / (reach.mean() or np.inf)
            middle, divisible = (first + last) // 2, wide > WIDE and last - first >= 2 * LEAST_TILE
            tile = None if many and divisible else self._select(slice(first, last), centre)
            if tile is None or (divisible and tile.needed > MANY_ROWS):
                waiting += [(middle, last, True), (first, middle, True)]
            else:
                tiles.append(tile)
        return tiles

    def _select(self, rows: slice, centre: NDArray[np.floating]) -> Needed:
        """Return the leaves that the queries of a tile need."""
        from isthmus.index.selection import Tile, select_leaves

        index, queries = self.index, self.queries[rows]
        turned = index.rotated(queries)
        share = 2 * self.unit + (index.dim + 4) ** 1.5 * 2.0**-50
        slack = share * np.sqrt(np.einsum("qd,qd->q", turned, turned))
        rotated = turned.astype(queries.dtype)
        tile = Tile(queries, rotated, self.squares[rows], slack, centre, self.unit)
        raises = self.weights.top_raise, self.weights.leaf_raise
        found, count = select_leaves(tile, index.tops, index.leaves, *raises, self._cells)
        return Needed(rows, centre, self._cells[:found].copy(), count)

    def kept_share(self, tiles: int = SAMPLE_TILES) -> float:
        """Return the share of memories that a few tiles need, without computing anything else."""
        total, needed, pairs = len(self.queries), 0, 0
        firsts = np.random.RandomState(0).permutation(np.arange(0, total, TILE))
        for first in firsts[:tiles].tolist():
            for tile in self._tiles(first, min(first + TILE, total)):
                pairs += tile.needed * (tile.rows.stop - tile.rows.start)
                needed += tile.rows.stop - tile.rows.start
        return pairs / max(needed * self.index.n_memories, 1)

    def attention(self, shape: torch.Size, keys: Keys) -> Attention:
        """Return the log-sum-exp and the mean about the centre of the keys, with bounds.

        `shape` (..., D) is that of the queries before they were flattened.
        """
        total, centre = len(self.queries), keys.centre
        none = centre.new_zeros(0)
        parts = [self._batch(first, centre) for first in range(0, total, TILE * BATCH)]
        parts = parts or [(none, centre.new_zeros(0, len(centre)), none, none, none)]
        back = torch.from_numpy(np.argsort(self.order))
        sums, means, *bounds = (torch.cat(column)[back] for column in zip(*parts, strict=True))
        error_bound = ErrorBound(*(bound.reshape(shape[:-1]) for bound in bounds))
        return Attention(sums.reshape(shape[:-1]), means.reshape(shape), error_bound)

    _kept = 0

    @property
    def kept(self) -> float:
        """The share of pairs of queries and memories that were computed."""
        return float(self._kept) / max(len(self.queries) * self.index.n_memories, 1)

    def _batch(self, first: int, centre: Tensor) -> tuple[Tensor, ...]:
        """Return the results of sorted queries, from the `first` on."""
        tiles = self._tiles(first, min(first + TILE * BATCH, len(self.queries)))
        rows = slice(tiles[0].rows.start, tiles[-1].rows.stop)
        queries = torch.from_numpy(self.queries[rows])
        count, dim = queries.shape
        starts = np.array([tile.rows.start - first for tile in tiles])
        sizes = torch.tensor([tile.rows.stop - tile.rows.start for tile in tiles])
        centres = torch.from_numpy(np.concatenate([tile.centre for tile in tiles]))
        about = centres.repeat_interleave(sizes, 0)
        shifted = queries - about
        limit = FLOAT32_TILE_LIMIT / (0.5 * self.scale)
        width = max(HEAD_WIDTH, dim + 2) if queries.dtype == torch.float32 else dim + 2
        heads = queries.new_zeros(count, width)
        heads[:, :dim] = queries if self.metric == "dot" else shifted
        heads[:, dim] = 1.0
        largest = np.maximum.reduceat(shifted.square().sum(1).numpy(), starts)
        sums = torch.empty(count, dtype=torch.float64)
        pooled = torch.empty(count, width, dtype=torch.float64)
        kept = torch.empty(count, dtype=torch.float64)
        unit = torch.full((count,), self.unit, dtype=torch.float64)
        exact = shifted.double()
        for tile, widest in zip(tiles, largest, strict=True):
            some = slice(tile.rows.start - first, tile.rows.stop - first)
            head = heads[some]
            if head.dtype == torch.float32 and widest > limit:
                exact[some] = queries[some].double() - about[some].double()
                head, unit[some] = head.double(), FLOAT64_UNIT
                if self.metric == "sqeuclidean":
                    head[:, :dim] = exact[some]
            sums[some], pooled[some] = self._attend(head, tile.leaves, tile.centre[0])
            kept[some] = tile.needed
        self._kept += int(kept.sum())
        return self._finish(rows, exact, about, centre, sums, pooled, kept, unit)

    def _attend(
        self, heads: Tensor, leaves: NDArray[np.int64], centre: NDArray[np.floating]
    ) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp (m,) and the pooled rows (m, W) of some leaves."""
        from isthmus.index.selection import gather

        first, width = self.index.leaves.first, heads.shape[1]
        ends = np.cumsum(first[leaves + 1] - first[leaves])
        most = max(GATHERED_ENTRIES // width, TILE)
        found, start = [], 0
        while start < len(leaves):
            before = int(ends[start - 1]) if start else 0
            stop = max(int(np.searchsorted(ends, before + most, side="right")), start + 1)
            buffer = torch.zeros(int(ends[stop - 1]) - before, width, dtype=heads.dtype)
            count = gather(
                self.index.points,
                self.weights.own,
                first,
                leaves[start:stop],
                centre,
                self.scale,
                self.metric == "dot",
                buffer.numpy(),
            )
            start = stop
            if count:
                keys = buffer[None, None, :count]
                means, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                    heads[None, None], keys, keys, scale=self.scale
                )
                found.append((sums[0, 0], means[0, 0]))
        if len(found) == 1:
            return found[0]
        return merged(*(torch.stack(column) for column in zip(*found, strict=True)))

    def _finish(
        self,
        rows: slice,
        shifted: Tensor,
        about: Tensor,
        centre: Tensor,
        sums: Tensor,
        pooled: Tensor,
        kept: Tensor,
        unit: Tensor,
    ) -> tuple[Tensor, ...]:
        """Return the log-sum-exp, the mean about `centre`, and the three bounds of a batch."""
        dim, scale, dtype = shifted.shape[1], self.scale, about.dtype
        about = about.double()
        mean, spread = pooled[:, :dim], pooled[:, dim + 1].clamp(min=0)
        if self.metric == "dot":
            exact = torch.from_numpy(self.queries[rows]).double()
            row, squares = scale * (exact * about).sum(1), exact.square().sum(1)
            distance_row = 0.5 * scale * squares
            products = squares.sqrt() * spread.sqrt()
        else:
            row = -0.5 * scale * shifted.square().sum(1)
            distance_row = torch.zeros_like(row)
            products = torch.linalg.vector_norm(shifted, dim=1) * spread.sqrt() + 0.5 * spread
        total = sums + row
        rounding = (dim + 4) * unit * scale * products
        rounding += unit * (2 * sums.abs() + 2 * row.abs() + 2 * self.weights.size + 64)
        rounding += unit * kept / 512 + torch.finfo(dtype).eps * total.abs()
        # Log-sum-exps of distances, as the lower bounds are.
        heights = total - distance_row
        left_out = (self.index.n_memories - kept) / self.index.n_memories
        excess = torch.from_numpy(self.bounds[rows]) - heights + rounding
        share = self.tol * excess.clamp(max=0.0).exp() * left_out
        squares = torch.from_numpy(self.squares[rows]) + self.weights.most / self.weights.beta
        radius = squares.clamp(min=0.5 / self.weights.beta).sqrt()
        step = torch.linalg.vector_norm(mean - shifted, dim=1)
        error = torch.where(share > 0, share * (radius + step), 0.0)
        moved = mean + (about - centre.double())
        found = total, moved, torch.log1p(share), error, rounding
        return tuple(each.to(dtype) for each in found)


def _scaled(points: NDArray[np.floating], centre: FloatArray, scale: float) -> Tensor:
    return torch.from_numpy(((points - centre) / scale).astype(np.float32))


def lower_bounds_of(
    queries: NDArray[np.floating], index: Index, weights: Weights
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the leaf about nearest to each query, and a lower bound from its memories. (Q,), (Q,)

    The bounds are on log-sum-exps of distances.
    """
    from isthmus.index.selection import lower_bounds, nearest_leaves

    tops = np.zeros((len(queries), 1), dtype=np.int64)
    if len(index.tops.radii) > 1:
        scale, count = index.extent or 1.0, min(NEAREST_TOPS, len(index.tops.radii))
        centres = _scaled(index.tops.centres, index.centre, scale)
        blocks = [queries[start : start + 2**16] for start in range(0, len(queries), 2**16)]
        found = [nearest(_scaled(each, index.centre, scale), centres, count) for each in blocks]
        tops = torch.cat(found).numpy() if found else tops
    leaves = np.empty(len(queries), dtype=np.int64)
    nearest_leaves(queries, tops, index.tops.first, index.leaves.centres, leaves)
    bounds = np.empty(len(queries))
    first, points = index.leaves.first, index.points
    lower_bounds(queries, leaves, first, points, weights.total, weights.beta, bounds)
    return leaves, bounds
