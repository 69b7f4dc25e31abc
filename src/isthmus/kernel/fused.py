"""Log-sum-exp attention that reads the memories once, and its gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.kernel.logits import (
    BLOCK_ENTRIES,
    FLOAT32_LOGIT_LIMIT,
    Keys,
    Metric,
    largest_norm,
    plain_attention,
    shift,
)

# Up to this many queries, torch's kernel would run in one thread, so memories are shared out among
# threads instead, and blocks that are copied should stay in the cache: 1 MiB in float32.
FEW_QUERIES = 32
CACHED_ENTRIES = 2**18
# Narrower heads are padded with zeros in float32, which torch's kernel reads faster.
HEAD_WIDTH = 16

# Memories are centred if their centre is farther from the origin than this many times their radius:
# three binary digits of their differences from it would be lost.
MAX_OFF_CENTRE = 8.0


# Called by this name, so that a test can put its own in place.
_efficient_attention = torch.ops.aten._scaled_dot_product_efficient_attention


class _Problem(NamedTuple):
    """Queries and keys in the dtype of the computation, and the terms of their logits."""

    queries: Tensor
    keys: Keys
    bias: Tensor | None
    beta: Tensor
    metric: Metric
    centre: Tensor

    @classmethod
    def of(
        cls, queries: Tensor, keys: Keys, bias: Tensor | None, beta: Tensor, metric: Metric
    ) -> _Problem:
        shifted, centre = shift(queries, keys, bias, beta, metric)
        # The flash kernel misreads tensors that are not in row-major order.
        return cls(shifted.contiguous(), keys, bias, beta.to(centre.dtype), metric, centre)

    @property
    def scale(self) -> Tensor:
        return 2 * self.beta if self.metric == "sqeuclidean" else self.beta

    def row(self) -> Tensor:
        """Return the term of the logits that is the same for all memories. (Q,)."""
        if self.metric == "sqeuclidean":
            return -self.beta * self.queries.square().sum(1)
        return self.beta * (self.queries @ self.centre)

    def offset(self) -> Tensor | None:
        """Return the term of the logits that is the same for all queries. (N,)."""
        bias = self.bias
        if bias is not None:
            bias = bias.to(self.centre.dtype).clamp(min=torch.finfo(torch.float32).min / 4)
        if self.metric == "dot":
            return bias
        offset = self.keys.scaled_squares(-self.beta)
        return offset if bias is None else offset + bias

    def slices(self) -> list[slice]:
        count, dim = self.keys.memories.shape
        few = self.queries.shape[0] <= FEW_QUERIES
        entries = min(CACHED_ENTRIES, BLOCK_ENTRIES) if few else BLOCK_ENTRIES
        rows = max(entries // max(dim + 1, HEAD_WIDTH), 256)
        return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]

    def centred(self, block: slice) -> Tensor:
        """Return one block of memories about the centre. (rows, D)."""
        return (self.keys.memories[block].to(self.centre.dtype) - self.centre).contiguous()

    def _exact_without_centring(self) -> bool:
        """Return True if products with memories that are not centred lose no digits that count."""
        keys, dtype = self.keys, self.centre.dtype
        if keys.memories.dtype != dtype or keys.off_centre > MAX_OFF_CENTRE * keys.radius:
            return False
        if dtype == torch.float64 or keys.off_centre <= keys.radius:
            return True
        largest = largest_norm(self.scale * self.queries) * (keys.off_centre + keys.radius)
        return largest <= FLOAT32_LOGIT_LIMIT

    def attend(self) -> tuple[Tensor, Tensor]:
        """Return the log-sum-exp without the rows' term (Q,) and the mean about the centre (Q, D).

        Memories are taken as they are where that loses no digits, and otherwise copied and
        centred block by block.
        """
        queries, offset, memories = self.scale * self.queries, self.offset(), self.keys.memories
        as_they_are = self._exact_without_centring()
        # Padding copies memories, so they are taken block by block.
        whole = as_they_are and _has_flash_kernel(memories) and not _is_padded(queries)
        found: tuple[Tensor, Tensor] | None = None
        for block in [slice(None)] if whole else self.slices():
            part = _flash(
                queries,
                memories[block].contiguous() if as_they_are else self.centred(block),
                None if offset is None else offset[block],
            )
            if found is not None:
                both = zip(found, part, strict=True)
                part = merged(*(torch.stack(each) for each in both))
            found = part
        assert found is not None
        logsumexp, mean = found
        if as_they_are:
            return logsumexp - queries @ self.centre, mean - self.centre
        return logsumexp, mean


class FusedAttention(torch.autograd.Function):
    """The log-sum-exp (Q,) and the mean about the centre (Q, D), with their gradients."""

    @staticmethod
    def forward(
        ctx: Any,
        queries: Tensor,
        memories: Tensor,
        bias: Tensor | None,
        beta: Tensor,
        metric: Metric,
        keys: Keys,
    ) -> tuple[Tensor, Tensor]:
        """Compute both results; `keys` are those of `memories`."""
        problem = _Problem.of(queries, keys, bias, beta, metric)
        logsumexp, mean = problem.attend()
        ctx.metric, ctx.keys = metric, keys
        ctx.save_for_backward(queries, memories, bias, beta, logsumexp, mean)
        return (logsumexp + problem.row()).to(queries.dtype), mean.to(queries.dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Compute gradients block by block, or by plain operations for second derivatives."""
        queries, memories, bias, beta, logsumexp, mean = ctx.saved_tensors
        inputs, needed = (queries, memories, bias, beta), ctx.needs_input_grad[:4]
        if torch.is_grad_enabled():
            with torch.enable_grad():
                outputs = plain_attention(queries, Keys(memories), bias, beta, ctx.metric)
            wanted = [value for value, need in zip(inputs, needed, strict=True) if need]
            by_wanted = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
            return (*(next(by_wanted) if need else None for need in needed), None, None)
        problem = _Problem.of(queries, ctx.keys, bias, beta, ctx.metric)
        found = _fused_gradients(problem, logsumexp, mean, *grads)
        typed = (
            None if value is None else gradient.to(value.dtype)
            for value, gradient in zip(inputs, found, strict=True)
        )
        return (*typed, None, None)


def _fused_gradients(
    problem: _Problem, logsumexp: Tensor, mean: Tensor, grad_logsumexp: Tensor, grad_mean: Tensor
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Return the gradients by queries, memories, bias and beta, block by block."""
    # Flash attention's backward forms P * (grad_out . value - grad_out . out). With values [m, 1],
    # grad_out [grad_mean, grad_logsumexp] and out [mean, 0], that is the gradient by the logits of
    # both results. The offset is one more column of the keys, so that it gets its gradient too.
    memories, beta, metric = problem.keys.memories, problem.beta, problem.metric
    queries = torch.cat([problem.scale * problem.queries, torch.ones_like(mean[:, :1])], 1)
    upstream = torch.cat([grad_mean, grad_logsumexp[:, None]], 1).to(mean.dtype)
    out = torch.cat([mean, torch.zeros_like(mean[:, :1])], 1)
    offset = problem.offset()
    grad_queries = torch.zeros_like(mean)
    grad_memories = torch.empty_like(memories)
    grad_bias = mean.new_empty(memories.shape[0])
    grad_beta = (grad_logsumexp * problem.row() / beta).sum()
    for block in problem.slices():
        centred = problem.centred(block)
        last = torch.zeros_like(centred[:, 0]) if offset is None else offset[block]
        by_query, by_key, by_value = _flash_backward(
            upstream,
            queries,
            torch.cat([centred, last[:, None]], 1),
            torch.cat([centred, torch.ones_like(last)[:, None]], 1),
            out,
            logsumexp,
        )
        grad_queries += by_query[:, :-1]
        by_memory, by_offset = by_key[:, :-1] + by_value[:, :-1], by_key[:, -1]
        if metric == "sqeuclidean":
            by_memory -= 2 * beta * by_offset[:, None] * centred
            grad_beta = grad_beta - by_offset @ centred.square().sum(1)
        grad_memories[block] = by_memory
        grad_bias[block] = by_offset
    by_scale = (grad_queries * problem.queries).sum()
    if metric == "sqeuclidean":
        grad_beta = grad_beta + 2 * by_scale
        by_row = -2 * beta * problem.queries
    else:
        grad_beta = grad_beta + by_scale
        by_row = beta * problem.centre
    grad_queries = problem.scale * grad_queries + grad_logsumexp[:, None] * by_row
    return grad_queries, grad_memories, grad_bias, grad_beta


def _has_flash_kernel(tensor: Tensor) -> bool:
    """Return True if torch has a flash kernel here that also returns the log-sum-exp."""
    return tensor.device.type == "cpu"


def _has_efficient_kernel(tensor: Tensor) -> bool:
    """Return True on CUDA, whose memory-efficient kernel returns the log-sum-exp."""
    return tensor.device.type == "cuda" and tensor.dtype == torch.float32


def _efficient(queries: Tensor, keys: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return both results by CUDA's kernel; the offset is one more column of the keys."""
    count, dim = queries.shape
    last = keys.new_zeros(len(keys)) if offset is None else offset
    wide = (0, -(dim + 1) % 8)
    heads = pad(torch.cat([keys, last[:, None]], 1), wide)[None, None]
    rows = pad(torch.cat([queries, torch.ones_like(queries[:, :1])], 1), wide)[None, None]
    means, sums, *_ = _efficient_attention(rows, heads, heads, None, True, 0.0, False, scale=1.0)
    return sums[0, 0, :count], means[0, 0, :, :dim]


def _flash(queries: Tensor, keys: Tensor, offset: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return the log-sum-exp and the mean softmax(q k^T + offset) k."""
    if _has_efficient_kernel(queries):
        return _efficient(queries, keys, offset)
    if not _has_flash_kernel(queries):
        bias = keys.new_zeros(()) if offset is None else offset
        sums, means = [], []
        for part in _query_parts(queries, keys):
            logits = torch.addmm(bias, queries[part], keys.mT)
            sums.append(torch.logsumexp(logits, 1))
            means.append(torch.softmax(logits, 1) @ keys)
        return torch.cat(sums), torch.cat(means)
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


def _flash_backward(
    upstream: Tensor, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by queries, keys and values, given the log-sum-exp over all blocks."""
    if _has_flash_kernel(queries):
        inputs = (upstream, queries, keys, values, out, logsumexp)
        tensors = (tensor.contiguous()[None, None] for tensor in inputs)
        grads = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            *tensors, 0.0, False, scale=1.0
        )
        return grads[0][0, 0], grads[1][0, 0], grads[2][0, 0]
    by_query = torch.empty_like(queries)
    by_key, by_value = torch.zeros_like(keys), torch.zeros_like(values)
    for part in _query_parts(queries, keys):
        weights = torch.exp(queries[part] @ keys.mT - logsumexp[part, None])
        own = (upstream[part] * out[part]).sum(1, keepdim=True)
        by_logit = weights * (upstream[part] @ values.mT - own)
        by_query[part] = by_logit @ keys
        by_key += by_logit.mT @ queries[part]
        by_value += weights.mT @ upstream[part]
    return by_query, by_key, by_value


def _query_parts(queries: Tensor, keys: Tensor) -> list[slice]:
    """Parts of the queries whose logits against one block of keys stay small."""
    rows = max(BLOCK_ENTRIES // keys.shape[0], 1)
    return [slice(start, start + rows) for start in range(0, queries.shape[0], rows)]
