"""Log-sum-exp attention for checked arguments, plain or in one pass of flash attention."""

from __future__ import annotations

from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.kernel.logits import (
    BLOCK_ENTRIES,
    FLOAT32_LOGIT_LIMIT,
    Keys,
    Metric,
    far_queries,
    in_blocks,
    largest_norm,
    observed_as_dot,
    plain_attention,
    shift,
    split_far,
)
from isthmus.validation import is_transforming

# Below this many logits and entries of memories, plain torch operations are faster than setting
# up the fused pass.
PLAIN_LOGITS = 2**16
# Up to this many queries, torch's kernel would run in one thread, so memories are shared out among
# threads instead, and blocks that are copied should stay in the cache: 1 MiB in float32.
FEW_QUERIES = 32
CACHED_ENTRIES = 2**18
# Narrower heads are padded with zeros in float32, which torch's kernel reads faster.
HEAD_WIDTH = 16

# Memories are centred if their centre is farther from the origin than this many times their radius:
# three binary digits of their differences from it would be lost.
MAX_OFF_CENTRE = 8.0

# The flash kernel takes no mask of -inf alone.
LOWEST_BIAS = torch.finfo(torch.float32).min / 4


class ErrorBound(NamedTuple):
    """Bounds on the error of attention over an index or compressed memories, for each query."""

    logsumexp: Tensor
    """The log-sum-exp is off by at most this: too small, as memories were left out, or in either
    direction, as they are compressed. (...)"""
    mean: Tensor
    """Distance of the mean from that over all memories, for the same reason. (...)"""
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


def has_kernel(tensor: Tensor) -> bool:
    """Return True if torch has a flash kernel here that also returns the log-sum-exp."""
    return tensor.device.type == "cpu" and not is_transforming()


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

    def plain(block: Tensor, *seen: Tensor) -> tuple[Tensor, Tensor]:
        return plain_attention(block, keys, bias, beta, metric, *seen)

    def near(block: Tensor, *seen: Tensor) -> tuple[Tensor, ...]:
        if seen:
            doubled_queries, doubled, own = observed_as_dot(block, keys, bias, beta, *seen)
            both = Keys(doubled)
            found = attend_centred(doubled_queries, both, beta, bias, "dot")
            mean = (found.mean + both.centre)[:, : block.shape[1]]
            return (found.logsumexp - own).to(block.dtype), mean.to(block.dtype)
        if has_kernel(block) and not graph and size > PLAIN_LOGITS and len(block):
            return fused_attention(block, keys, bias, beta, metric)
        whole = is_transforming() or size <= PLAIN_LOGITS
        return plain(block) if whole else in_blocks(plain, keys, block)

    masks: list[Tensor] = [] if observed is None else [observed.reshape(flat.shape)]
    known = torch.where(masks[0], flat, keys.centre) if masks else flat
    far = far_queries(known, keys.centre, beta) if metric == "sqeuclidean" else None
    logsumexp, mean = split_far(far, near, partial(in_blocks, plain, keys), known, *masks)
    if queries.ndim == 2:
        return Attention(logsumexp, mean)
    return Attention(logsumexp.reshape(queries.shape[:-1]), mean.reshape(queries.shape))


def fused_attention(
    queries: Tensor, keys: Keys, bias: Tensor | None, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp (Q,) and the mean about the centre (Q, D), on the CPU.

    Memories are taken as they are where that loses no digits, and otherwise copied and centred
    block by block.
    """
    shifted, centre = shift(queries, keys, bias, beta, metric)
    dtype, memories, beta = centre.dtype, keys.memories, beta.to(centre.dtype)
    # Terms that are the same for all memories (Q,), and for all queries (N,).
    offset = None if bias is None else bias.to(dtype).clamp(min=LOWEST_BIAS)
    if metric == "sqeuclidean":
        row, scaled = -beta * shifted.square().sum(1), 2 * beta * shifted
        own = keys.scaled_squares(-beta)
        offset = own if offset is None else own + offset
    else:
        row, scaled = beta * (shifted @ centre), beta * shifted
    # The flash kernel misreads tensors that are not in row-major order.
    scaled = scaled.contiguous()
    as_they_are = _exact_without_centring(scaled, keys, dtype)
    # Padding copies memories, so they are taken block by block.
    whole = as_they_are and not _is_padded(scaled)
    count, dim = memories.shape
    entries = min(CACHED_ENTRIES, BLOCK_ENTRIES) if len(queries) <= FEW_QUERIES else BLOCK_ENTRIES
    rows = count if whole else max(entries // max(dim + 1, HEAD_WIDTH), 256)
    parts = []
    for start in range(0, count, rows):
        block = slice(start, start + rows)
        some = memories[block] if as_they_are else memories[block].to(dtype) - centre
        parts.append(flash(scaled, some.contiguous(), None if offset is None else offset[block]))
        if len(parts) == 2:
            parts = [merged(*(torch.stack(each) for each in zip(*parts, strict=True)))]
    logsumexp, mean = parts[0]
    if as_they_are:
        logsumexp, mean = logsumexp - scaled @ centre, mean - centre
    return (logsumexp + row).to(queries.dtype), mean.to(queries.dtype)


def _exact_without_centring(scaled: Tensor, keys: Keys, dtype: torch.dtype) -> bool:
    """Return True if products with memories that are not centred lose no digits that count."""
    if keys.memories.dtype != dtype or keys.off_centre > MAX_OFF_CENTRE * keys.radius:
        return False
    if dtype == torch.float64 or keys.off_centre <= keys.radius:
        return True
    return largest_norm(scaled) * (keys.off_centre + keys.radius) <= FLOAT32_LOGIT_LIMIT


def flash(queries: Tensor, keys: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the mean softmax(q k^T + offset) k."""
    few = queries.shape[0] <= FEW_QUERIES
    parts = min(torch.get_num_threads(), keys.shape[0]) if few else 1
    shared = keys.shape[0] // parts * parts
    by_part = _flash_heads(queries, keys[:shared], offset, parts)
    if shared < keys.shape[0]:
        rest = None if offset is None else offset[shared:]
        last = _flash_heads(queries, keys[shared:], rest, 1)
        return merged(torch.cat([by_part[0], last[0]]), torch.cat([by_part[1], last[1]]))
    return merged(*by_part)


def _flash_heads(
    queries: Tensor, keys: Tensor, offset: Tensor | None, parts: int
) -> tuple[Tensor, Tensor]:
    """Return both results for each of `parts` equal shares of the keys. (P, Q), (P, Q, D)."""
    count, dim = keys.shape
    if _is_padded(queries):
        queries, keys = (pad(each, (0, HEAD_WIDTH - dim)) for each in (queries, keys))
    heads = keys.view(1, parts, -1, keys.shape[1])
    mask = None if offset is None else offset[:count].view(1, parts, 1, -1)
    means, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
        queries.expand(1, parts, *queries.shape), heads, heads, attn_mask=mask, scale=1.0
    )
    return sums[0], means[0, ..., :dim]


def _is_padded(queries: Tensor) -> bool:
    """Return True if heads are narrow, and queries enough to pay for a wider copy of the keys."""
    narrow = queries.dtype == torch.float32 and queries.shape[1] < HEAD_WIDTH
    return narrow and queries.shape[0] > FEW_QUERIES


def merged(sums: Tensor, means: Tensor) -> tuple[Tensor, Tensor]:
    """Join the results of parts of the memories. (P, Q), (P, Q, D) -> (Q,), (Q, D)."""
    if sums.shape[0] == 1:
        return sums[0], means[0]
    total = torch.logsumexp(sums, 0)
    return total, ((sums - total).exp_()[..., None] * means).sum(0)
