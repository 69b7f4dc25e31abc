r"""Attention over compressed memories, corrected by a random sample, with an error that is likely.

Memories are held as codes of one byte for each coordinate. From the code of a memory, a logit is
known up to a slack g, by the Cauchy-Schwarz inequality, so that its weight w and the weight E from
the code have a ratio X = w / E in :math:`[e^{-g}, e^g]`. The groups of neighbours that weigh most
are computed from the memories themselves. Of all others, n memories are drawn with probabilities in
proportion to E; the mean of their ratios, times the sum of E, is an unbiased estimate of their
weight. Its error is bounded by an empirical Bernstein inequality (Waudby-Smith and Ramdas, 2024),
and that of the mean by Bernstein's inequality for vectors (Pinelis, 1994), with the second moment
bounded from the same sample. No memory can hide: a weight is at most :math:`e^g` times that of its
code.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.index.pruned import Plan, lower_bounds_of
from isthmus.kernel.attention import Attention, ConfidenceBound, ErrorBound, attend_centred
from isthmus.kernel.logits import Keys, Metric, needs_float64

if TYPE_CHECKING:
    from isthmus.index.loops import Heads

FloatArray = NDArray[np.float64]
# Codes and queries of one product: their weights stay in the cache.
BLOCK_ROWS, MOST_QUERIES = 2**11, 64
# Narrower memories are read as fast as their codes.
LEAST_DIM, LEAST_MEMORIES = 64, 10_000
# Cells are used if the first queries need at most this share of the memories.
KEPT = 0.1
# Groups with more than this share of the weight are computed from their memories.
NEAR_SHARE = 2.0**-8
# Draws that plan the sample, and the least and the largest sample, as a share of the memories.
PILOT, LEAST_DRAWS, MOST_DRAWN = 256, 512, 0.03
# The plan allows for a pilot that found too small a variance.
MARGIN = 1.5
# Largest weight of a draw in the empirical Bernstein bound, below 1.
LARGEST_WEIGHT = 0.9
# Codes that leave weights more uncertain than by this exponent are of no use.
LARGEST_SLACK = 8.0
# Weights too small for float32 are less than 1e-20 of a sum above this one.
LEAST_SUM = 1e-6
# Share of the draws that go to other memories than they should: probabilities are quotients of sums
# of a few weights in float32, and weights are computed twice.
SUM_ROUNDING = 64 * 2.0**-24
FLOAT32_UNIT = 2.0**-24


class _Tile(NamedTuple):
    """Weights of groups of codes for a few queries, on a scale of their own, and their slack."""

    heads: Heads
    sums: NDArray[np.float32]  # (Q, groups)
    shifts: FloatArray  # (Q,): log of the scale
    slack: FloatArray  # (Q,)
    rounding: FloatArray  # (Q,): part of the slack that may differ if weights are computed again


def sampled_attention(
    plan: Plan, queries: Tensor, keys: Keys, bias: Tensor | None, delta: float, seed: int
) -> Attention:
    """Return attention for queries (..., D), from cells where they tell memories apart."""
    index, shape = plan.index, queries.shape[:-1]
    small = index.dim < LEAST_DIM or index.n_memories < LEAST_MEMORIES
    if small or plan.kept_share(1) <= KEPT:
        cells = plan.attention(queries.shape, keys)
        zero = torch.zeros_like(cells.logsumexp)
        likely = ConfidenceBound(zero, zero, delta)
        return Attention(cells.logsumexp, cells.mean, cells.error_bound, likely)
    flat = queries.reshape(-1, queries.shape[-1])
    found = Sampling(plan, delta, seed).attention(flat, keys, bias)
    found = [each.reshape(*shape, *each.shape[1:]) for each in found]
    total, mean, off_total, off_mean, rounding = found
    zero = torch.zeros_like(total)
    exact = ErrorBound(zero, zero, rounding)
    return Attention(total, mean, exact, ConfidenceBound(off_total, off_mean, delta))


class Sampling:
    """Queries (Q, D) against the codes of an index, at a tolerance and a level."""

    def __init__(self, plan: Plan, delta: float, seed: int) -> None:
        from isthmus.index.loops import Memories

        self.index, self.weights, self.tol, self.seed = plan.index, plan.weights, plan.tol, seed
        index, weights = plan.index, plan.weights
        self.codes = codes = index.codes
        # Four events share delta: two ends of the sum, the mean, and its second moment.
        self.level = math.log(8 / delta)
        offset = weights.total - weights.beta * codes.squares
        self.largest = float(np.abs(offset[offset > -np.inf]).max())
        self.most_draws = max(int(MOST_DRAWN * index.n_memories), LEAST_DRAWS)
        exact = index.points, weights.total, weights.beta
        self.memories = Memories(
            *exact, codes.values.numpy(), codes.rows, offset.astype(np.float32)
        )

    def attention(self, queries: Tensor, keys: Keys, bias: Tensor | None) -> list[Tensor]:
        """Return the log-sum-exp, the mean about the centre, bounds on both errors, and rounding.

        Queries (Q, D) whose sample would be too large are answered from all memories.
        """
        values = queries.detach().double().numpy()
        _, bounds = lower_bounds_of(queries.detach().numpy(), self.index, self.weights)
        bounds[~np.isfinite(bounds)] = 0.0
        answers = []
        for start in range(0, len(values), MOST_QUERIES):
            rows = slice(start, start + MOST_QUERIES)
            tile = self._weigh(values[rows], bounds[rows])
            for place, query in enumerate(values[rows]):
                answers.append(self._answer(query, tile, place, start + place))
        done = [answer is not None for answer in answers]
        nothing = 0.0, np.zeros(values.shape[1]), 0.0, 0.0
        columns = zip(*(answer or nothing for answer in answers), strict=True)
        results = [torch.from_numpy(np.array(column, dtype=np.float64)) for column in columns]
        beta = self.memories.beta
        if self.weights.metric == "dot":
            results[0] += beta * torch.from_numpy(np.square(values).sum(1))
            beta *= 2
        results[1] -= keys.centre.double()
        results = [each.to(queries.dtype) for each in results]
        left = ~torch.tensor(done)
        rounding = torch.full_like(results[0], 64.0 + self.index.dim)
        if left.any():
            kernel = queries.new_tensor(beta), bias, self.weights.metric
            exact = attend_centred(queries[left], keys, *kernel)
            results[0][left], results[1][left] = exact.logsumexp, exact.mean
            rounding[left] += self._products(queries[left], keys, *kernel)
        rounding = torch.finfo(queries.dtype).eps * (rounding + 4 * results[0].abs())
        return [*results, rounding]

    def _products(
        self, queries: Tensor, keys: Keys, beta: Tensor, bias: Tensor | None, metric: Metric
    ) -> Tensor:
        """Return how many units of rounding the logits of all memories may be off by. (Q,)"""
        apart = queries if metric == "dot" else queries - keys.centre
        if needs_float64(apart, keys, bias, beta, metric):
            return torch.zeros_like(apart[:, 0])
        size = torch.linalg.vector_norm(apart, dim=1)
        if metric == "dot":
            size = size * (keys.radius + keys.off_centre)
        else:
            size = 2 * size * keys.radius + keys.radius**2
        return 0.5 * (self.index.dim + 4) * beta * size

    def _weigh(self, queries: FloatArray, bounds: FloatArray) -> _Tile:
        """Return the weights of groups of codes for some queries; infinite ones are of no use."""
        from isthmus.index.loops import EXP_ERROR, GROUP, Heads, weigh_codes

        codes, beta = self.codes, self.memories.beta
        apart = queries - self.index.centre
        scaled = apart * codes.columns
        steps = np.maximum(np.abs(scaled).max(1), np.finfo(np.float64).tiny) / 127
        rounded = np.rint(scaled / steps[:, None])
        missed = np.linalg.norm(scaled - rounded * steps[:, None], axis=1)
        norms = np.linalg.norm(apart, axis=1)
        factor, shift = 2 * beta * steps, -beta * norms**2 - bounds
        slack = 2 * beta * (norms * codes.error + missed * codes.length) * (1 + 1e-9)
        largest = factor * codes.length * np.linalg.norm(rounded, axis=1) + np.abs(shift)
        # A few roundings of a logit and of its exponent.
        rounding = 8 * FLOAT32_UNIT * (largest + self.largest + 128)
        slack += EXP_ERROR + rounding
        heads = Heads(rounded.astype(np.int8), *(x.astype(np.float32) for x in (factor, shift)))
        left, count = torch.from_numpy(heads.codes), self.index.n_memories
        out = np.empty((len(queries), BLOCK_ROWS), np.float32)
        sums = np.empty((len(queries), -(-count // GROUP)), np.float32)
        for start in range(0, count, BLOCK_ROWS):
            block = slice(start, start + BLOCK_ROWS)
            products = torch._int_mm(left, codes.values[block].mT).numpy()
            groups = sums[:, start // GROUP : (start + BLOCK_ROWS) // GROUP]
            weigh_codes(
                products, heads, codes.rows[block], self.memories.offset[block], out, groups
            )
        return _Tile(heads, sums, bounds, slack, rounding)

    def _answer(
        self, query: FloatArray, tile: _Tile, place: int, number: int
    ) -> tuple[float, FloatArray, float, float] | None:
        """Return the log-sum-exp, the mean and their errors, or None if the sample is too small."""
        from isthmus.index.loops import GROUP, Heads, draw_ratios

        sums, shift, slack = tile.sums[place], float(tile.shifts[place]), float(tile.slack[place])
        index, total = self.index, float(sums.sum(dtype=np.float64))
        if not (LEAST_SUM < total < math.inf and slack < LARGEST_SLACK):
            return None
        near = np.flatnonzero(sums > NEAR_SHARE * total)
        rows = (near[:, None] * GROUP + np.arange(GROUP)).ravel()
        rows = rows[rows < index.n_memories]
        apart = index.points[rows].astype(np.float64) - query
        logits = self.weights.total[rows] - self.weights.beta * np.square(apart).sum(1)
        weights = np.exp(logits - shift)
        exact, pull = float(weights.sum()), weights @ apart
        sums[near] = 0.0
        ends = np.cumsum(sums, dtype=np.float64)
        rest = float(ends[-1])
        if rest <= 0:
            return shift + math.log(exact), query + pull / exact, 0.0, 0.0
        seeds = np.random.SeedSequence((self.seed, number)).generate_state(2, np.uint64)
        codes, factors, shifts = tile.heads
        one = slice(place, place + 1)
        head = Heads(codes[one], factors[one], shifts[one])
        drawn_from = query, head, self.memories, shift, ends
        ratios, pulls, _ = draw_ratios(*drawn_from, query, PILOT, seeds[0])
        guess = exact + rest * float(ratios.mean())
        about = query + (pull + rest * pulls) / guess
        low, high = math.exp(-slack), math.exp(slack)
        count = self._planned(float(ratios.var()), high - low, guess / rest)
        if count > self.most_draws:
            return None
        ratios, pulls, square = draw_ratios(*drawn_from, about, count, seeds[1])
        ratio, half = bernstein(ratios, low, high, self.level)
        misplaced = SUM_ROUNDING + math.expm1(2 * float(tile.rounding[place]))
        half += misplaced * high
        weight = exact + rest * ratio
        least = exact + rest * max(ratio - half, low)
        most = exact + rest * min(ratio + half, high)
        error = math.log(max(weight / least, most / weight))
        if not error <= self.tol:
            return None
        step = (pull + exact * (query - about) + rest * pulls) / weight
        reach = high * (index.extent + float(np.linalg.norm(about - index.centre)))
        extra = reach**2 * self.level / (2 * count)
        moment = math.sqrt(square + extra) + math.sqrt(extra)
        off = moment * math.sqrt(2 * self.level / count) + 4 * reach * self.level / (3 * count)
        off += misplaced * reach
        off = (rest * off + (most - least) * float(np.linalg.norm(step))) / least
        return shift + math.log(weight), about + step, error, off

    def _planned(self, variance: float, spread: float, whole: float) -> int:
        """Return the draws with which the error should be below the tolerance."""
        goal, share = -math.expm1(-self.tol) * whole / spread, MARGIN * variance / spread**2
        count = LEAST_DRAWS
        while count <= self.most_draws:
            weight = min(math.sqrt(2 * self.level / (share * count + 1e-30)), LARGEST_WEIGHT)
            growth = share * count * (-math.log1p(-weight) - weight)
            if self.level + growth < goal * weight * count:
                break
            count += count // 8
        return count


def bernstein(ratios: FloatArray, low: float, high: float, level: float) -> tuple[float, float]:
    """Return the centre and the half-width of an interval for the mean of draws in [low, high].

    The empirical Bernstein interval with predictable weights (Waudby-Smith and Ramdas, 2024,
    Estimating means of bounded random variables by betting, theorem 2), which fails with
    probability 2 exp(-level). Weights depend on earlier draws only.
    """
    x, numbers = (ratios - low) / (high - low), np.arange(1, len(ratios) + 1)
    means = np.append(0.5, (0.5 + np.cumsum(x)) / (numbers + 1))
    squares = 0.25 + np.cumsum(np.square(x - means[1:]))
    variances = np.append(0.25, squares[:-1] / numbers[1:])
    weights = np.minimum(np.sqrt(2 * level / (variances * len(x))), LARGEST_WEIGHT)
    growth = np.square(x - means[:-1]) @ (-np.log1p(-weights) - weights)
    total, spread = weights.sum(), high - low
    return low + spread * float(weights @ x / total), spread * float((level + growth) / total)
