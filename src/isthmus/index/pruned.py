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
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.index.cells import nearest
from isthmus.index.index import Index, is_indexable
from isthmus.kernel.attention import HEAD_WIDTH, Attention, ErrorBound, merged
from isthmus.kernel.logits import Keys, Metric
from isthmus.validation import is_transforming

FloatArray = NDArray[np.float64]
# Neighbouring queries that share their cells. A tile that needs many memories is halved as long as
# it is wider than the radii of its queries times a factor.
TILE, LEAST_TILE, MANY_ROWS, WIDE = 64, 8, 2048, 1.5
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
    if is_transforming() or queries.device.type != "cpu" or queries.numel() == 0:
        return False
    if not is_indexable(queries):
        return False
    tensors = [queries, *(each for each in others if each is not None)]
    return not (torch.is_grad_enabled() and any(each.requires_grad for each in tensors))


class Weights:
    """Biases of memories in the order of an index, in float64, with the largest of each cell.

    Logits are distances times `beta`: half that of dot products.
    """

    def __init__(self, index: Index, bias: Tensor | None, beta: float, metric: Metric) -> None:
        self.metric, self.beta = metric, beta if metric == "sqeuclidean" else 0.5 * beta
        self.own = np.zeros(index.n_memories)
        if bias is not None:
            self.own = bias.detach().double().numpy()[index.order]
        self.total = self.own + self.beta * index.squares if metric == "dot" else self.own
        self.size = float(np.abs(self.own[self.own > -np.inf]).max())
        leaf_maxima = np.maximum.reduceat(self.total, index.leaves.first[:-1])
        top_maxima = np.maximum.reduceat(leaf_maxima, index.tops.first[:-1])
        self.leaf_raise, self.top_raise = leaf_maxima / self.beta, top_maxima / self.beta
        self.most = float(leaf_maxima.max())


class Plan:
    """Queries (Q, D) in tiles of neighbours, and the radii beyond which memories do not matter."""

    kept = 0.0
    """The share of pairs of queries and memories that were computed."""

    def __init__(self, queries: Tensor, index: Index, weights: Weights, tol: float) -> None:
        self.index, self.weights, self.tol = index, weights, tol
        self.scale = 2 * weights.beta
        values = np.ascontiguousarray(queries.detach().numpy())
        leaves, bounds = lower_bounds_of(values, index, weights)
        self.order = np.argsort(leaves, kind="stable")
        self.queries, self.bounds = values[self.order], bounds[self.order]
        with np.errstate(over="ignore", invalid="ignore"):
            squares = (math.log(index.n_memories / tol) - self.bounds) / weights.beta
        self.squares = np.minimum(squares + 1e-12 * np.abs(squares), np.finfo(np.float64).max)
        starts = range(0, len(values), TILE)
        self.tiles = [slice(start, min(start + TILE, len(values))) for start in starts]

    def _parts(self, rows: slice) -> list[tuple[slice, NDArray[np.int64], int]]:
        """Return the parts of a tile, the leaves that each needs, and the number of memories."""
        from isthmus.index.loops import near_balls

        tops, leaves, weights = self.index.tops, self.index.leaves, self.weights
        tile, all_tops = (self.queries[rows], self.squares[rows]), np.arange(len(tops.radii))
        found = near_balls(*tile, tops, weights.top_raise, all_tops)
        found = near_balls(*tile, leaves, weights.leaf_raise, _spans(tops.first, found))
        needed, size = int((leaves.first[found + 1] - leaves.first[found]).sum()), len(tile[0])
        if needed > MANY_ROWS and size >= 2 * LEAST_TILE:
            width = np.linalg.norm(tile[0] - tile[0].mean(0), axis=1).max()
            if width > WIDE * np.sqrt(tile[1].clip(0)).mean():
                middle = rows.start + size // 2
                halves = slice(rows.start, middle), slice(middle, rows.stop)
                return [part for half in halves for part in self._parts(half)]
        return [(rows, found, needed)]

    def kept_share(self, tiles: int = SAMPLE_TILES) -> float:
        """Return the share of memories that a few tiles need, without computing anything else."""
        some = np.random.RandomState(0).permutation(len(self.tiles))[:tiles]
        parts = [part for place in some for part in self._parts(self.tiles[place])]
        sizes, needed = np.array([(rows.stop - rows.start, count) for rows, _, count in parts]).T
        return float(sizes @ needed) / (sizes.sum() * self.index.n_memories)

    def attention(self, shape: torch.Size, keys: Keys) -> Attention:
        """Return the log-sum-exp and the mean about the centre of the keys, with bounds.

        `shape` (..., D) is that of the queries before they were flattened.
        """
        (count, dim), queries = self.queries.shape, torch.from_numpy(self.queries)
        parts = [part for tile in self.tiles for part in self._parts(tile)]
        sizes = torch.tensor([rows.stop - rows.start for rows, _, _ in parts], dtype=torch.int64)
        kept = torch.tensor([needed for _, _, needed in parts], dtype=torch.float64)
        kept = kept.repeat_interleave(sizes)
        self.kept = float(kept.mean()) / self.index.n_memories
        tiles = queries.split(sizes.tolist())
        centres = [tile[0] + (tile - tile[0]).mean(0) for tile in tiles]
        about = torch.stack(centres).repeat_interleave(sizes, 0)
        shifted, is_dot = queries - about, self.weights.metric == "dot"
        exact, squares = shifted.double(), shifted.square().sum(1)
        pooled = torch.empty(count, dim + 2, dtype=torch.float64)
        sums, unit = torch.empty(2, count, dtype=torch.float64)
        for (rows, leaves, _), centre in zip(parts, centres, strict=True):
            heads = (queries if is_dot else shifted)[rows]
            if float(squares[rows].max()) > FLOAT32_TILE_LIMIT / (0.5 * self.scale):
                exact[rows] = queries[rows].double() - centre.double()
                heads = (queries if is_dot else exact)[rows].double()
            unit[rows] = torch.finfo(heads.dtype).eps / 2
            sums[rows], pooled[rows] = self._attend(heads, leaves, centre.numpy())
        about = about.double()
        row, products, heights = self._rows(exact, about, pooled[:, dim + 1].clamp(min=0))
        total = sums + row
        rounding = (dim + 4) * unit * self.scale * products
        rounding += unit * (2 * sums.abs() + 2 * row.abs() + 2 * self.weights.size + 64)
        rounding += unit * kept / 512 + torch.finfo(queries.dtype).eps * total.abs()
        # Log-sum-exps of distances, as the lower bounds are.
        excess = torch.from_numpy(self.bounds) - (total - heights) + rounding
        share = excess.clamp(max=0.0).exp() * (self.tol * (1 - kept / self.index.n_memories))
        squares = torch.from_numpy(self.squares) + self.weights.most / self.weights.beta
        radius = squares.clamp(min=0.5 / self.weights.beta).sqrt()
        step = torch.linalg.vector_norm(pooled[:, :dim] - exact, dim=1)
        error = torch.where(share > 0, share * (radius + step), 0.0)
        mean = pooled[:, :dim] + (about - keys.centre.double())
        back = torch.from_numpy(np.argsort(self.order))
        found = (
            each.to(queries.dtype)[back] for each in (total, torch.log1p(share), error, rounding)
        )
        logsumexp, *bounds = (each.reshape(shape[:-1]) for each in found)
        return Attention(
            logsumexp, mean.to(queries.dtype)[back].reshape(shape), ErrorBound(*bounds)
        )

    def _rows(self, shifted: Tensor, about: Tensor, spread: Tensor) -> tuple[Tensor, ...]:
        """Return terms of queries: of their logits, of the size of products, and of distances."""
        if self.weights.metric == "sqeuclidean":
            row = -0.5 * self.scale * shifted.square().sum(1)
            lengths = torch.linalg.vector_norm(shifted, dim=1)
            return row, lengths * spread.sqrt() + 0.5 * spread, torch.zeros_like(row)
        queries = torch.from_numpy(self.queries).double()
        squares = queries.square().sum(1)
        row = self.scale * (queries * about).sum(1)
        return row, (squares * spread).sqrt(), 0.5 * self.scale * squares

    def _attend(
        self, heads: Tensor, leaves: NDArray[np.int64], centre: NDArray[Any]
    ) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp of a tile (m,), and means of memories and of their squares."""
        from isthmus.index.loops import gather

        bias, dim, dtype = self.weights.own, heads.shape[1], heads.dtype
        memories = _spans(self.index.leaves.first, leaves)
        memories = memories[bias[memories] > -np.inf]
        is_dot = self.weights.metric == "dot"
        # Narrower heads are slower in float32.
        width = max(HEAD_WIDTH, dim + 2) if dtype == torch.float32 else dim + 2
        queries = heads.new_zeros(len(heads), width)
        queries[:, :dim], queries[:, dim] = heads, 1.0
        most = max(GATHERED_ENTRIES // width, TILE)
        found = []
        for start in range(0, len(memories), most):
            rows = memories[start : start + most]
            keys = queries.new_zeros(1, 1, len(rows), width)
            gather(self.index.points, bias, self.scale, is_dot, centre, rows, keys[0, 0].numpy())
            means, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
                queries[None, None], keys, keys, scale=self.scale
            )
            found.append((sums[0, 0], means[0, 0, :, : dim + 2]))
        return merged(*(torch.stack(column) for column in zip(*found, strict=True)))


def _spans(first: NDArray[np.int64], chosen: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the rows from first[c] to first[c + 1] of each chosen c."""
    sizes = first[chosen + 1] - first[chosen]
    return np.repeat(first[chosen] - np.cumsum(sizes) + sizes, sizes) + np.arange(sizes.sum())


def _scaled(points: NDArray[np.floating], centre: FloatArray, scale: float) -> Tensor:
    return torch.from_numpy(((points - centre) / scale).astype(np.float32))


def lower_bounds_of(
    queries: NDArray[np.floating], index: Index, weights: Weights
) -> tuple[NDArray[np.int64], FloatArray]:
    """Return the leaf about nearest to each query, and a lower bound from its memories. (Q,), (Q,)

    The bounds are on log-sum-exps of distances.
    """
    from isthmus.index.loops import lower_bounds, nearest_leaves

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
