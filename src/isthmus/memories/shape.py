"""The shape of Gaussian kernels: a metric that they share, and a precision of each."""

from __future__ import annotations

import math
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.index.policy import Kernel, Pruning
from isthmus.kernel.attention import Attention, attend_centred
from isthmus.kernel.logits import (
    Keys,
    attention_logits,
    far_queries,
    in_blocks,
    pooled,
    split_far,
    squares_apart,
)
from isthmus.validation import is_transforming


class Pull(NamedTuple):
    """What the memories do to points: the log-sum-exp of their kernels, the force and a step."""

    logsumexp: Tensor  # (...)
    force: Tensor  # minus the gradient of the energy, in a unit of the memory's. (..., D)
    target: Tensor  # where a step leads. (..., D)
    precision: Tensor | None = None  # mean of the kernels', up to a factor, if full. (..., D, D)


class Shape:
    r"""Kernels :math:`w_n |P_n|^{1/2} e^{-(z - z_n)^\top P_n (z - z_n) / 2}` of z = R^-1 (x - c).

    R is `root`: standard deviations (D,), or the lower Cholesky factor (D, D) of a covariance. P is
    `precision`: round (N, 1), diagonal (N, D) or full (N, D, D); the identity if None.
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
        if precision is not None and memories.device.type != "mps":
            # Logits are small differences of products that float32 does not resolve.
            memories, centre, root = memories.double(), centre.double(), root.double()
            precision = precision.double()
            log_weights = None if log_weights is None else log_weights.double()
        self.centre, self.root, self.precision = centre, root, precision
        self.log_weights, self.dim = log_weights, memories.shape[1]
        if root.ndim == 2:
            identity = torch.eye(self.dim, dtype=root.dtype, device=root.device)
            self.inverse = torch.linalg.solve_triangular(root, identity, upper=False)
        self.mapped = self.to_round(memories)
        self.half = 0.5 * memories.new_ones(())
        # The largest factor of a squared coordinate in a logit, or nearly so.
        self.steepest = self.half if precision is None else 0.5 * precision.detach().amax()
        self.bias = log_weights
        if precision is None:
            self.keys = Keys(self.mapped)
            return
        if precision.ndim == 3:
            log_volume = torch.linalg.slogdet(precision)[1]
        else:
            log_volume = self.dim * precision.log().mean(1)
        linear = _times(precision, self.mapped)
        self.bias = 0.5 * (log_volume - (linear * self.mapped).sum(1))
        if log_weights is not None:
            self.bias = self.bias + log_weights
        self.keys = Keys(torch.cat([linear, -0.5 * precision.flatten(1)], 1))

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

    def _features(self, z: Tensor) -> Tensor:
        """Return the coordinates and their squares or products, of which logits are linear."""
        assert self.precision is not None
        if self.precision.ndim == 3:
            squares = (z[..., :, None] * z[..., None, :]).flatten(-2)
        else:
            squares = z.square()
            squares = squares.sum(-1, keepdim=True) if self.precision.shape[1] == 1 else squares
        return torch.cat([z, squares], -1)

    def pull(self, x: Tensor) -> Pull:
        """Return the log-sum-exp of the kernels and its gradient. x: (..., D)."""
        z, mean_precision = self.to_round(x), None
        if self.precision is None:
            kernel: Kernel = (self.half, self.bias, "sqeuclidean")
            attend = attend_centred if self.pruning is None else self.pruning.attend
            found = attend(z, self.keys, *kernel)
            force = move = found.mean - (z - self.keys.centre)
        else:
            flat = z.reshape(-1, self.dim)
            total, mean = self.attend(flat)
            mean = mean.reshape(*z.shape[:-1], mean.shape[1])
            found = Attention(total.reshape(z.shape[:-1]), mean)
            mean_precision = -2 * mean[..., self.dim :]
            if self.precision.ndim == 3:
                mean_precision = mean_precision.unflatten(-1, (self.dim, self.dim))
            force = mean[..., : self.dim] - _times(mean_precision, z)
            if self.precision.ndim == 3:
                move = torch.linalg.solve(mean_precision, force[..., None])[..., 0]
            else:
                move, mean_precision = force / mean_precision, None
        if self.root.ndim == 1:
            parts = found.logsumexp, force / self.root, x + move * self.root
        else:
            parts = found.logsumexp, force @ self.inverse, x + move @ self.root.mT
            mean_precision = self.inverse.mT @ self.inverse
        precision = None if mean_precision is None else mean_precision.to(x.dtype)
        logsumexp, force, target = (part.to(x.dtype) for part in parts)
        return Pull(logsumexp, force, target, precision)

    def _far(self, z: Tensor) -> Tensor | None:
        """Return which points (Q, D) are so far off that products lose digits, if any."""
        return far_queries(z, torch.zeros_like(z[:1]), self.steepest)

    def attend(
        self, z: Tensor, seen: Tensor | None = None, values: Tensor | None = None
    ) -> tuple[Tensor, ...]:
        """Return the log-sum-exp of the kernels, and the mean of values (N, V): (Q, V).

        The values are linear parts and precisions by default.
        """

        def near(z: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
            if values is None:
                queries = self._features(z)
                found = attend_centred(queries, self.keys, 2 * self.half, self.bias, "dot")
                return found.logsumexp, found.mean + self.keys.centre
            if mask:
                return _pooled(*self._seen_features(z, *mask), self.log_weights, values)
            if self.precision is not None:
                return _pooled(self._features(z), self.keys.memories, self.bias, values)
            wide = torch.float32 if z.device.type == "mps" else torch.float64
            z, mapped = z.to(wide), self.mapped.to(wide)
            bias = -0.5 * mapped.square().sum(1)
            bias = bias if self.bias is None else bias + self.bias
            total, mean = _pooled(z, mapped, bias, values)
            return total - 0.5 * z.square().sum(-1), mean

        def off(z: Tensor, *mask: Tensor) -> tuple[Tensor, ...]:
            kept = self.keys.memories if values is None else values.double()
            return pooled(self._logits_apart(z, *mask), kept)

        masks = () if seen is None else (seen,)
        return split_far(self._far(z), near, partial(in_blocks, off, self.keys), z, *masks)

    def _logits_apart(self, z: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the logarithms of kernels from differences. (Q, D) -> (Q, N)"""
        z, mapped, volume = z.double(), self.mapped.double(), z.new_zeros(())
        if self.precision is None:
            squares = squares_apart(z, mapped, seen)
        elif self.precision.ndim == 3:
            apart = z[:, None] - mapped
            squares = torch.einsum("qnd,nde,qne->qn", apart, self.precision, apart)
            volume = torch.linalg.slogdet(self.precision)[1]
        else:
            own = self.precision.expand_as(mapped)
            squares = squares_apart(z, mapped, seen, own)
            known = torch.ones_like(z[:1]) if seen is None else seen.to(own)
            volume = known @ own.log().mT
        logits: Tensor = 0.5 * (volume - squares)
        return logits if self.log_weights is None else logits + self.log_weights

    def logits(self, x: Tensor, seen: Tensor | None) -> Tensor:
        """Return the logarithms of kernels over the coordinates seen, up to a term per point."""
        z = self.to_round(x) if seen is None else torch.where(seen, self.to_round(x), 0.0)
        if self.precision is None:
            return attention_logits(z, self.keys, self.bias, self.half, "sqeuclidean", seen)
        flat = z.reshape(-1, self.dim)
        if self._far(flat) is not None:
            mask = None if seen is None else seen.reshape(flat.shape)
            return self._logits_apart(flat, mask).reshape(*z.shape[:-1], len(self.mapped))
        if seen is None:
            return attention_logits(self._features(z), self.keys, self.bias, 2 * self.half, "dot")
        queries, keys = self._seen_features(z, seen)
        return attention_logits(queries, Keys(keys), self.log_weights, 2 * self.half, "dot")

    def spread(self, noise: Tensor, chosen: Tensor) -> Tensor:
        """Return displacements from the chosen memories (n,), of standard normal noise (n, D)."""
        dtype = noise.dtype
        if self.precision is not None:
            own = self.precision[chosen]
            if own.ndim == 3:
                root = torch.linalg.cholesky(own).mT
                noise = torch.linalg.solve_triangular(root, noise[..., None], upper=True)[..., 0]
            else:
                noise = noise / own.sqrt()
        return self.to_data(noise).to(dtype)

    def marginal(self, x: Tensor, seen: Tensor) -> Attention:
        """Return the log-sum-exp of normalised kernels over coordinates, and the mean about c."""
        z = torch.where(seen, self.to_round(x), 0.0)
        log_scale = seen.to(z.dtype) @ (self.root.log() + 0.5 * math.log(2 * math.pi))
        if self.precision is None:
            found = attend_centred(z, self.keys, self.half, self.bias, "sqeuclidean", seen)
            mean = found.mean + self.keys.centre
        else:
            flat, mask = z.reshape(-1, self.dim), seen.reshape(-1, self.dim)
            parts = self.attend(flat, mask, self.mapped)
            total, mean = (each.reshape((*z.shape[:-1], *each.shape[1:])) for each in parts)
            found = Attention(total, mean)
        mean = (mean * self.root).to(x.dtype)
        return Attention((found.logsumexp - log_scale).to(x.dtype), mean)

    def _seen_features(self, z: Tensor, seen: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries and keys whose products are logits of the coordinates seen."""
        assert self.precision is not None
        own = self.precision.expand_as(self.mapped)
        constant = 0.5 * (own.log() - own * self.mapped.square())
        keys = torch.cat([own * self.mapped, -0.5 * own, constant], 1)
        return torch.cat([z, z.square(), seen.to(z.dtype)], -1), keys


def _times(precision: Tensor, z: Tensor) -> Tensor:
    """Return P z of diagonal or full precisions. (..., 1), (..., D) or (..., D, D) -> (..., D)"""
    full = precision.ndim > z.ndim
    return (precision @ z[..., None])[..., 0] if full else precision * z


def _pooled(
    queries: Tensor, keys: Tensor, bias: Tensor | None, values: Tensor
) -> tuple[Tensor, Tensor]:
    """Attend with values that are not the keys: more columns, in which queries are zero."""
    padded = torch.cat([queries, queries.new_zeros(len(queries), values.shape[1])], 1)
    both = Keys(torch.cat([keys, values], 1))
    found = attend_centred(padded, both, queries.new_ones(()), bias, "dot")
    return found.logsumexp, (found.mean + both.centre)[:, queries.shape[1] :]


def root_of(covariance: Tensor) -> Tensor:
    """Return the lower Cholesky factor of covariances (..., D, D), in their dtype."""
    exact = covariance if covariance.device.type == "mps" else covariance.double()
    root, failed = torch.linalg.cholesky_ex(0.5 * (exact + exact.mT))
    if not is_transforming() and bool(failed.any()):
        raise InvalidInputError(
            "covariance must be positive definite. Add a small multiple of the identity, or let "
            "isthmus.bandwidth.choose find one."
        )
    return root.to(covariance.dtype)
