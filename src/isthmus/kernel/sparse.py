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
Entries more than 1/s below the largest logit can never be positive.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from isthmus.kernel.logits import Keys, in_blocks, shift
from isthmus.validation import as_choice, as_number, is_transforming

__all__ = ["Separation", "SparseAttention", "attend_sparse", "entmax", "sparse_weights"]

# From this many logits on, columns without weight are left out.
MANY_LOGITS = 2**14
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
        as_number(self.alpha, "alpha", above=1, at_most=2 if self.family == "entmax" else None)

    @property
    def scale(self) -> float:
        """The factor s of the logits."""
        return self.alpha - 1 if self.family == "entmax" else 1.0

    @property
    def power(self) -> float:
        """The exponent k."""
        return (1.0 if self.family == "entmax" else self.alpha) / (self.alpha - 1)

    @property
    def weight_power(self) -> float:
        """The exponent of weights that are not normalised."""
        return self.power - (self.family == "normmax")

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
    weights = _raised(scaled, _threshold(scaled, separation.power), separation.weight_power)
    return (weights / weights.sum(1, keepdim=True)).reshape(logits.shape)


def entmax(logits: Tensor, alpha: float) -> Tensor:
    """Return alpha-entmax over the last axis: softmax at 1, sparsemax at 2; ``-inf`` weighs 0."""
    if alpha == 1:
        return torch.softmax(logits, -1)
    return sparse_weights(logits, Separation("entmax", alpha))


def attend_sparse(
    queries: Tensor, keys: Keys, beta: Tensor, separation: Separation
) -> SparseAttention:
    """Return the conjugate and the mean of the memories for checked queries. (Q, D)

    Queries are taken in blocks, which are computed again for derivatives.
    """
    shifted, centre = shift(queries, keys, None, beta, "dot")
    beta, memories = beta.to(shifted.dtype), keys.memories.to(shifted.dtype)
    centred = memories.detach() - centre

    def attend(block: Tensor) -> tuple[Tensor, Tensor]:
        scaled_queries, values = separation.scale * beta * block, memories
        with torch.no_grad():
            logits = scaled_queries @ centred.mT
            top = logits.amax(1, keepdim=True)
        if not is_transforming() and logits.numel() >= MANY_LOGITS:
            values = memories[(logits > top - 1).any(0)]
        scaled = scaled_queries @ (values - centre).mT - top
        delta = _threshold(scaled, separation.power)
        weights = _raised(scaled, delta, separation.weight_power)
        conjugate = delta
        if separation.family == "entmax":
            higher = _raised(scaled, delta, separation.power + 1).sum(1)
            conjugate = separation.power * delta + (higher - 1) / separation.alpha
        conjugate = conjugate + top[:, 0] / separation.scale + beta * (block @ centre)
        return conjugate, weights @ values / weights.sum(1, keepdim=True)

    conjugate, mean = in_blocks(attend, keys, shifted)
    return SparseAttention(conjugate.to(queries.dtype), mean.to(queries.dtype))


def _threshold(scaled: Tensor, power: float) -> Tensor:
    """Return the root delta of each row (Q,), with first and second derivatives."""

    def newton(delta: Tensor) -> tuple[Tensor, Tensor]:
        excess = _raised(scaled, delta, power).sum(1) - 1
        return excess / (power * _raised(scaled, delta, power - 1).sum(1)), excess

    transforming = is_transforming()
    with torch.no_grad():
        delta = scaled.detach().new_zeros(scaled.shape[0])  # len() fixes a size that is traced
        last = torch.full_like(delta, torch.inf)
        for _ in range(STEPS_WHEN_TRACED if transforming else MOST_STEPS):
            move, excess = newton(delta)
            delta = delta + move.clamp(min=0)
            done = (excess <= 4 * torch.finfo(delta.dtype).eps) | (excess >= last)
            last = excess
            if not transforming and bool(done.all()):
                break
    if transforming or torch.is_grad_enabled():
        # Two steps from the root leave it in place and give it its derivatives.
        for _ in range(2):
            delta = delta + newton(delta)[0]
    return delta


def _raised(scaled: Tensor, delta: Tensor, power: float) -> Tensor:
    """Return the power of [1 + z - delta]_+, with finite derivatives at its zeros. (Q, n)"""
    inside = scaled - delta[:, None]
    active = inside > -1
    logs = torch.log1p(torch.where(active, inside, 0.0))
    return torch.where(active, (power * logs).exp(), 0.0)
