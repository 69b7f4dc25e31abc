"""Shapes of Gaussian kernels: a linear map that makes them round, and precisions of their own."""

from __future__ import annotations

import math
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.attend import Attention, Keys, attend_centred, attention_logits
from isthmus.index.policy import Pruning


class Pull(NamedTuple):
    """The log-sum-exp of the kernels at points, and the pull of the memories on them."""

    logsumexp: Tensor
    """(...)"""
    force: Tensor
    """The gradient of the log-sum-exp, sum_n r_n P_n (m_n - x). (..., D)"""
    move: Tensor
    """The force divided by the mean precision sum_n r_n P_n. (..., D)"""
    precision: Tensor | None
    """That mean precision where it is a matrix, without a factor for each point. (..., D, D)"""


class Shape:
    r"""Kernels :math:`w_n |P_n|^{1/2} e^{-(z - z_n)^\top P_n (z - z_n) / 2}` of z = R^-1 (x - c).

    Parameters
    ----------
    memories : Tensor (N, D)
    centre : Tensor (D,)
        c
    root : Tensor (D,) or (D, D)
        R: standard deviations, or the lower Cholesky factor of a covariance.
    precision : Tensor (N,), (N, D) or (N, D, D), optional
        P of each memory: round, diagonal or full. Default: the identity for all.
    log_weights : Tensor (N,), optional
    """

    pruning: Pruning | None = None
    """Of the memories in these coordinates, if all kernels are alike in them."""

    def __init__(
        self,
        memories: Tensor,
        centre: Tensor,
        root: Tensor,
        precision: Tensor | None = None,
        log_weights: Tensor | None = None,
    ) -> None:
        self.centre, self.root, self.precision = centre, root, precision
        self.log_weights, self.dim = log_weights, memories.shape[1]
        if root.ndim == 2:
            identity = torch.eye(self.dim, dtype=root.dtype, device=root.device)
            self.inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        self.mapped = self.to_round(memories)
        self.half = 0.5 * memories.new_ones(())
        self.bias = log_weights
        if precision is None:
            self.keys = Keys(self.mapped)
            return
        linear, own = self._products(precision, self.mapped)
        if precision.ndim == 1:
            log_volume, squares = 0.5 * self.dim * precision.log(), precision[:, None]
        elif precision.ndim == 2:
            log_volume, squares = 0.5 * precision.log().sum(1), precision
        else:
            log_volume, squares = 0.5 * torch.linalg.slogdet(precision)[1], precision.flatten(1)
        self.bias = log_volume - 0.5 * own
        if log_weights is not None:
            self.bias = self.bias + log_weights
        self.keys = Keys(torch.cat([linear, -0.5 * squares], 1))

    @property
    def is_full(self) -> bool:
        """True if some axes of the kernels are not coordinates."""
        return self.root.ndim == 2 or (self.precision is not None and self.precision.ndim == 3)

    @property
    def log_scale(self) -> Tensor:
        """Log of the integral of a kernel of unit precision."""
        diagonal = self.root if self.root.ndim == 1 else self.root.diagonal()
        return diagonal.log().sum() + 0.5 * self.dim * math.log(2 * math.pi)

    def to_round(self, x: Tensor) -> Tensor:
        """Map points to coordinates in which R is the identity. (..., D) -> (..., D)"""
        shifted = x - self.centre
        return shifted / self.root if self.root.ndim == 1 else shifted @ self.inverse.mT

    def to_data(self, displacement: Tensor) -> Tensor:
        """Map displacements back. (..., D) -> (..., D)"""
        return displacement * self.root if self.root.ndim == 1 else displacement @ self.root.mT

    def _products(self, precision: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
        """Return P z and z' P z for each pair. (..., D), (...)"""
        if precision.ndim == z.ndim + 1:
            product = (precision @ z[..., None])[..., 0]
        else:
            product = (precision if precision.ndim == z.ndim else precision[..., None]) * z
        return product, (product * z).sum(-1)

    def _features(self, z: Tensor) -> Tensor:
        """Return the coordinates and their squares or products, of which logits are linear."""
        assert self.precision is not None
        if self.precision.ndim == 1:
            squares = z.square().sum(-1, keepdim=True)
        elif self.precision.ndim == 2:
            squares = z.square()
        else:
            squares = (z[..., :, None] * z[..., None, :]).flatten(-2)
        return torch.cat([z, squares], -1)

    def pull(self, x: Tensor) -> Pull:
        """Return the log-sum-exp of the kernels and its gradient. x: (..., D)."""
        z = self.to_round(x)
        if self.precision is None:
            found = self._pruned(z) or attend_centred(z, self.keys, self.half, self.bias)
            force = found.mean - (z - self.keys.centre)
            return self._pulled(found.logsumexp, force, force, None)
        found = attend_centred(self._features(z), self.keys, 2 * self.half, self.bias, "dot")
        pooled = found.mean + self.keys.centre
        mean_precision = -2 * pooled[..., self.dim :]
        if self.precision.ndim == 1:
            mean_precision = mean_precision[..., 0]
        elif self.precision.ndim == 3:
            mean_precision = mean_precision.unflatten(-1, (self.dim, self.dim))
        force = pooled[..., : self.dim] - self._products(mean_precision, z)[0]
        if self.precision.ndim == 3:
            move = torch.linalg.solve(mean_precision, force[..., None])[..., 0]
            return self._pulled(found.logsumexp, force, move, mean_precision)
        round_ = self.precision.ndim == 1
        move = force / (mean_precision[..., None] if round_ else mean_precision)
        return self._pulled(found.logsumexp, force, move, None)

    def _pruned(self, z: Tensor) -> Attention | None:
        if self.pruning is None:
            return None
        return self.pruning.attention(z, self.keys, self.half, self.bias, "sqeuclidean")

    def _pulled(
        self, logsumexp: Tensor, force: Tensor, move: Tensor, precision: Tensor | None
    ) -> Pull:
        """Return a pull in the coordinates of the data."""
        if self.root.ndim == 1:
            return Pull(logsumexp, force / self.root, move * self.root, precision)
        shared = self.inverse.mT @ self.inverse
        return Pull(logsumexp, force @ self.inverse, move @ self.root.mT, shared)

    def logits(self, x: Tensor) -> Tensor:
        """Return the logarithm of each kernel. (..., D) -> (..., N)"""
        z = self.to_round(x)
        if self.precision is None:
            return attention_logits(z, self.keys, self.bias, self.half, "sqeuclidean")
        return attention_logits(self._features(z), self.keys, self.bias, 2 * self.half, "dot")

    def pooled(self, x: Tensor, values: Tensor) -> Attention:
        """Return the log-sum-exp and the mean of values (N, V) over the memories. (..., V)"""
        z = self.to_round(x)
        if self.precision is None:
            bias = -0.5 * self.mapped.square().sum(1)
            bias = bias if self.bias is None else bias + self.bias
            return _pooled(z, self.mapped, bias, values, 0.5 * z.square().sum(-1))
        return _pooled(self._features(z), self.keys.memories, self.bias, values)

    def marginal(self, x: Tensor, seen: Tensor) -> Attention:
        """Return the log-sum-exp of normalised kernels of coordinates seen, and the mean about c.

        Kernels whose axes are coordinates only.
        """
        z = torch.where(seen, self.to_round(x), 0.0)
        log_scale = seen.to(z.dtype) @ (self.root.log() + 0.5 * math.log(2 * math.pi))
        if self.precision is None:
            found = attend_centred(z, self.keys, self.half, self.bias, "sqeuclidean", seen)
            mean = found.mean + self.keys.centre
        else:
            found = _pooled(*self._seen_features(z, seen), self.log_weights, self.mapped)
            mean = found.mean
        return Attention(found.logsumexp - log_scale, mean * self.root)

    def marginal_logits(self, x: Tensor, seen: Tensor) -> Tensor:
        """Return logits of the coordinates seen, up to a term for each point. (..., N)"""
        z = torch.where(seen, self.to_round(x), 0.0)
        if self.precision is None:
            return attention_logits(z, self.keys, self.bias, self.half, "sqeuclidean", seen)
        queries, keys = self._seen_features(z, seen)
        return attention_logits(queries, Keys(keys), self.log_weights, 2 * self.half, "dot")

    def _seen_features(self, z: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose products are logits of the coordinates seen."""
        assert self.precision is not None
        own = self.precision if self.precision.ndim == 2 else self.precision[:, None]
        own = own.expand_as(self.mapped)
        constant = 0.5 * (own.log() - own * self.mapped.square())
        keys = torch.cat([own * self.mapped, -0.5 * own, constant], 1)
        return torch.cat([z, z.square(), seen.to(z.dtype)], -1), keys


def _pooled(
    queries: Tensor, keys: Tensor, bias: Tensor | None, values: Tensor, row: Tensor | float = 0.0
) -> Attention:
    """Attend with values that are not the keys: more columns, in which queries are zero."""
    padded = torch.cat([queries, queries.new_zeros(*queries.shape[:-1], values.shape[1])], -1)
    both = Keys(torch.cat([keys, values], 1))
    found = attend_centred(padded, both, queries.new_ones(()), bias, "dot")
    mean = (found.mean + both.centre)[..., queries.shape[-1] :]
    return Attention(found.logsumexp - row, mean)
