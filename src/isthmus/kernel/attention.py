"""Log-sum-exp attention for checked arguments, plain or fused."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.kernel.fused import fused_attention, has_kernel
from isthmus.kernel.logits import Keys, Metric, in_blocks, observed_as_dot, plain_attention
from isthmus.validation import is_transforming

# Below this many logits and entries of memories, plain torch operations are faster than setting
# up the fused pass.
PLAIN_LOGITS = 2**16


class ErrorBound(NamedTuple):
    """Bounds on the error of attention over an index, for each query."""

    logsumexp: Tensor
    """The log-sum-exp is too small by at most this, because of memories left out. (...)"""
    mean: Tensor
    """Distance of the mean from that over all memories, because of those left out. (...)"""
    rounding: Tensor
    """Estimate from above of the rounding error of the log-sum-exp, to first order. (...)"""


class ConfidenceBound(NamedTuple):
    """Bounds on the error of sampled attention, beside those of :class:`ErrorBound`.

    For each query they hold together with probability at least ``1 - delta`` over the draws.
    """

    logsumexp: Tensor
    """The log-sum-exp is off by at most this, in either direction. (...)"""
    mean: Tensor
    """Distance of the mean from that over all memories. (...)"""
    delta: float
    """The probability, for each query, that an error is larger."""


class _Attention(NamedTuple):
    logsumexp: Tensor
    """Log of the sum over n of exp(logit_n). (...)"""
    mean: Tensor
    """Softmax-weighted mean of the memories. (..., D)"""


class Attention(_Attention):
    """Result of :func:`isthmus.attend`: a pair of tensors, and bounds on their errors.

    ``error_bound`` is what memories left out can have changed, if an index was used, and
    ``confidence_bound`` what memories not drawn can have changed, if `delta` was given.
    """

    error_bound: ErrorBound | None = None
    confidence_bound: ConfidenceBound | None = None

    def __new__(
        cls,
        logsumexp: Tensor,
        mean: Tensor,
        error_bound: ErrorBound | None = None,
        confidence_bound: ConfidenceBound | None = None,
    ) -> Attention:
        """Return a pair that carries the bounds as attributes."""
        pair = super().__new__(cls, logsumexp, mean)
        pair.error_bound, pair.confidence_bound = error_bound, confidence_bound
        return pair


def attend_centred(
    queries: Tensor,
    keys: Keys,
    beta: Tensor,
    bias: Tensor | None = None,
    metric: Metric = "sqeuclidean",
    observed: Tensor | None = None,
) -> Attention:
    """Return :func:`isthmus.attend` for checked arguments, with the mean relative to the centre."""
    beta = beta.to(keys.memories)
    flat = queries if queries.ndim == 2 else queries.reshape(-1, queries.shape[-1])
    size = max(flat.shape[0] * keys.memories.shape[0], keys.memories.numel())
    inputs = (queries, keys.memories, bias, beta)
    graph = torch.is_grad_enabled() and any(x is not None and x.requires_grad for x in inputs)
    if observed is not None:
        seen = observed.reshape(flat.shape)
        doubled_queries, doubled, own = observed_as_dot(flat, keys, bias, beta, seen)
        both = Keys(doubled)
        found = attend_centred(doubled_queries, both, beta, bias, "dot")
        logsumexp = (found.logsumexp - own).to(queries.dtype)
        mean = (found.mean + both.centre)[:, : queries.shape[-1]].to(queries.dtype)
    elif is_transforming() or flat.shape[0] == 0 or size <= PLAIN_LOGITS:
        logsumexp, mean = plain_attention(flat, keys, bias, beta, metric)
    elif not graph and has_kernel(keys.memories):
        logsumexp, mean = fused_attention(flat, keys, bias, beta, metric)
    else:
        logsumexp, mean = in_blocks(
            lambda block: plain_attention(block, keys, bias, beta, metric), flat, keys
        )
    if queries.ndim == 2:
        return Attention(logsumexp, mean)
    return Attention(logsumexp.reshape(queries.shape[:-1]), mean.reshape(queries.shape))
