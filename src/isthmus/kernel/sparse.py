r"""Sparse attention: entmax and normmax of logits, with exact zeros and exact thresholds.

A regularised argmax over the simplex with a convex :math:`\Omega`,

.. math:: \hat p(\theta) = \arg\max_p\; \theta \cdot p - \Omega(p), \qquad
          \Omega^*(\theta) = \max_p\; \theta \cdot p - \Omega(p) ,

is sparse for the two families here. In terms of :math:`u_i = [1 + z_i - \delta]_+` with
:math:`z_i = s (\theta_i - \max_j \theta_j)` they are

======== ======================================= ========= ============= =====================
family   :math:`\Omega(p)`                       s         condition     p
======== ======================================= ========= ============= =====================
entmax   (sum p^alpha - 1) / (alpha (alpha - 1)) alpha - 1 sum u^k = 1   u^k
normmax  norm of p of order alpha, minus 1       1         sum u^k = 1   u^(k-1), normalised
======== ======================================= ========= ============= =====================

with k = 1/(alpha - 1) for entmax and alpha/(alpha - 1) for normmax. The left side of the condition
is convex and falls in :math:`\delta`, so Newton's method from 0 climbs to the root from below.
Entries more than 1/s below the largest logit can never be positive, which decides the candidates.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from isthmus.kernel.logits import BLOCK_ENTRIES, Keys, shift
from isthmus.validation import as_choice, as_number, is_transforming

__all__ = ["Separation", "SparseAttention", "attend_sparse", "entmax", "sparse_weights"]

# Below this many logits, one block holds all of them.
ONE_BLOCK = 2**18
QUERIES_AT_ONCE = 2**14
FEWEST_ROWS = 256
MOST_STEPS, STEPS_WHEN_TRACED = 100, 50
Family = Literal["entmax", "normmax"]


@dataclass(frozen=True)
class Separation:
    """A family of sparse distributions and its order: in (1, 2] for entmax, above 1 for normmax."""

    family: Family
    alpha: float

    def __post_init__(self) -> None:
        if torch.compiler.is_compiling():
            return  # the layer that is traced has checked its alpha, which may be a symbol now
        as_choice(self.family, "separation", ("entmax", "normmax"))
        if self.family == "entmax":
            as_number(self.alpha, "alpha", above=1, at_most=2)
        else:
            as_number(self.alpha, "alpha", above=1)

    @property
    def scale(self) -> float:
        """The factor s of the logits."""
        return self.alpha - 1 if self.family == "entmax" else 1.0

    @property
    def power(self) -> float:
        """The exponent k."""
        return (1.0 if self.family == "entmax" else self.alpha) / (self.alpha - 1)

    @property
    def margin(self) -> float:
        """The lead over all other logits from which on the largest one gets all the weight."""
        return 1 / self.scale


class SparseAttention(NamedTuple):
    """Result of :func:`attend_sparse`."""

    conjugate: Tensor
    """The conjugate of the regulariser at the logits, which takes the place of log-sum-exp. (Q,)"""
    mean: Tensor
    """Weighted mean of the memories. (Q, D)"""


def sparse_weights(logits: Tensor, separation: Separation) -> Tensor:
    """Return the sparse distribution over the last axis. (..., N) -> (..., N)."""
    flat = separation.scale * logits.reshape(-1, logits.shape[-1])
    scaled = flat - flat.detach().amax(1, keepdim=True)
    passes = _Passes(lambda function: function(scaled, scaled), separation)
    return passes.weights(scaled, passes.threshold(scaled)).reshape(logits.shape)


def entmax(logits: Tensor, alpha: float, dim: int = -1) -> Tensor:
    """Return alpha-entmax along `dim`: softmax at 1, sparsemax at 2 (Peters et al., 2019).

    A logit of ``-inf`` has probability zero; not all may be.

    Examples
    --------
    >>> import torch
    >>> from isthmus.kernel.sparse import entmax
    >>> entmax(torch.tensor([1.0, 0.6, -1.0]), 1.5)
    tensor([0.6400, 0.3600, 0.0000])
    """
    if alpha == 1:
        return torch.softmax(logits, dim)
    weights = sparse_weights(logits.movedim(dim, -1), Separation("entmax", alpha))
    return weights.movedim(-1, dim)


def attend_sparse(
    queries: Tensor, keys: Keys, beta: Tensor, separation: Separation
) -> SparseAttention:
    """Return the conjugate and the mean of the memories for checked queries. (Q, D)

    Memories are read in blocks, and those that no query can give weight to are left out after two
    passes; blocks are recomputed for derivatives.
    """
    parts = [_attend(some, keys, beta, separation) for some in queries.split(QUERIES_AT_ONCE)]
    if len(parts) == 1:
        return parts[0]
    return SparseAttention(*(torch.cat(column) for column in zip(*parts, strict=True)))


def _attend(queries: Tensor, keys: Keys, beta: Tensor, separation: Separation) -> SparseAttention:
    shifted, centre = shift(queries, keys, None, beta, "dot")
    beta = beta.to(shifted.dtype)
    scaled = separation.scale * beta * shifted
    rows = max(BLOCK_ENTRIES // max(len(queries), 1), FEWEST_ROWS)
    if is_transforming() or len(queries) * len(keys.memories) <= ONE_BLOCK:
        rows = len(keys.memories)
    memories, top = _candidates(scaled.detach(), keys.memories, centre, rows)

    def over_blocks(function: _Function) -> tuple[Tensor, ...]:
        def run(block: Tensor) -> tuple[Tensor, ...]:
            values = block.to(scaled.dtype)
            return function(scaled @ (values - centre).mT - top[:, None], values)

        blocks = memories.split(rows)
        if len(blocks) == 1:
            return run(memories)
        found = [
            checkpoint(run, block, use_reentrant=False) if torch.is_grad_enabled() else run(block)
            for block in blocks
        ]
        return tuple(torch.stack(sums).sum(0) for sums in zip(*found, strict=True))

    passes = _Passes(over_blocks, separation)
    delta = passes.threshold(scaled)
    conjugate, mean = passes.finish(delta)
    conjugate = conjugate + top / separation.scale + beta * (shifted @ centre)
    return SparseAttention(conjugate.to(queries.dtype), mean.to(queries.dtype))


@torch.no_grad()
def _candidates(
    scaled: Tensor, memories: Tensor, centre: Tensor, rows: int
) -> tuple[Tensor, Tensor]:
    """Return the memories that may get weight, in order, and the largest scaled logits (Q,)."""

    def logits() -> Iterator[Tensor]:
        for block in memories.detach().split(rows):
            yield scaled @ (block.to(scaled.dtype) - centre).mT

    top = torch.stack([block.amax(1) for block in logits()]).amax(0)
    if rows >= len(memories):
        return memories, top
    chosen = torch.cat([(block - top[:, None] > -1).any(0) for block in logits()])
    with torch.enable_grad():
        return memories[chosen], top


_Function = Callable[[Tensor, Tensor], tuple[Tensor, ...]]


class _Passes:
    """Sums over all logits: `over_blocks` adds up a function of scaled logits and memories."""

    def __init__(
        self, over_blocks: Callable[[_Function], tuple[Tensor, ...]], separation: Separation
    ) -> None:
        self.over_blocks, self.separation = over_blocks, separation

    def threshold(self, like: Tensor) -> Tensor:
        """Return the root delta of each row of `like`, (Q,), with first and second derivatives."""
        transforming = is_transforming()
        with torch.no_grad():
            delta = like.detach().new_zeros(like.shape[0])  # len() fixes a size that is traced
            last = torch.full_like(delta, torch.inf)
            for _ in range(STEPS_WHEN_TRACED if transforming else MOST_STEPS):
                move, excess = self._newton(delta)
                delta = delta + move.clamp(min=0)
                done = (excess <= 4 * torch.finfo(delta.dtype).eps) | (excess >= last)
                last = excess
                if not transforming and bool(done.all()):
                    break
        if transforming or torch.is_grad_enabled():
            # Two steps from the root leave it in place and give it its derivatives.
            for _ in range(2):
                delta = delta + self._newton(delta)[0]
        return delta

    def _newton(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        power = self.separation.power

        def sums(scaled: Tensor, _: Tensor) -> tuple[Tensor, ...]:
            return _raised(scaled, delta, power).sum(1), _raised(scaled, delta, power - 1).sum(1)

        total, slope = self.over_blocks(sums)
        return (total - 1) / (power * slope), total - 1

    def finish(self, delta: Tensor) -> tuple[Tensor, Tensor]:
        """Return the conjugate relative to the largest logit (Q,), and the mean (Q, D)."""
        power, alpha = self.separation.power, self.separation.alpha
        is_norm = self.separation.family == "normmax"

        def sums(scaled: Tensor, values: Tensor) -> tuple[Tensor, ...]:
            weights = _raised(scaled, delta, power - is_norm)
            higher = () if is_norm else (_raised(scaled, delta, power + 1).sum(1),)
            return weights.sum(1, keepdim=True), weights @ values, *higher

        total, mean, *higher = self.over_blocks(sums)
        conjugate = delta if is_norm else power * delta + (higher[0] - 1) / alpha
        return conjugate, mean / total

    def weights(self, scaled: Tensor, delta: Tensor) -> Tensor:
        """Return the weights themselves. (Q, N)"""
        lowered = self.separation.family == "normmax"
        weights = _raised(scaled, delta, self.separation.power - lowered)
        return weights / weights.sum(1, keepdim=True)


def _raised(scaled: Tensor, delta: Tensor, power: float) -> Tensor:
    """Return the power of [1 + z - delta]_+, with finite derivatives at its zeros. (Q, n)"""
    inside = scaled - delta[:, None]
    active = inside > -1
    logs = torch.log1p(torch.where(active, inside, 0.0))
    return torch.where(active, (power * logs).exp(), 0.0)
