"""Log-sum-exp attention in one fused pass over blocks of memories, and its gradients."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from isthmus.logits import Metric, needs_float64, plain_attention

__all__ = ["FusedAttention"]

# Entries of one block of augmented keys: 16 MiB in float32.
BLOCK_ENTRIES = 2**22


class _Blocks(NamedTuple):
    """The fused pass's view of its inputs: augmented queries, and keys made block by block."""

    queries: Tensor
    memories: Tensor
    bias: Tensor
    beta: Tensor
    metric: Metric
    centre: Tensor

    @classmethod
    def of(
        cls, queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
    ) -> _Blocks:
        centre = memories.mean(0)
        shifted = queries - centre if metric == "sqeuclidean" else queries
        blocks = cls(shifted, memories, bias, beta, metric, centre)
        if not blocks.need_float64():
            return blocks
        centre = centre.double()
        shifted = queries.double()
        if metric == "sqeuclidean":
            shifted = shifted - centre
        return cls(shifted, memories, bias, beta, metric, centre)

    def need_float64(self) -> bool:
        return any(
            needs_float64(
                self.queries,
                self.memories[block] - self.centre,
                self.bias[block],
                self.beta,
                self.metric,
            )
            for block in self.slices()
        )

    @property
    def scale(self) -> Tensor:
        return 2 * self.beta if self.metric == "sqeuclidean" else self.beta

    def row(self) -> Tensor:
        """The term of the logits that is the same for all memories. (Q,)."""
        if self.metric == "sqeuclidean":
            return -self.beta * self.queries.square().sum(1)
        return self.beta * (self.queries @ self.centre)

    def slices(self) -> list[slice]:
        count, dim = self.memories.shape
        rows = max(BLOCK_ENTRIES // (dim + 1), 256)
        return [slice(start, min(start + rows, count)) for start in range(0, count, rows)]

    def keys(self, block: slice) -> Tensor:
        """[m - centre, bias] of one block. (rows, D + 1)."""
        centred = self.memories[block].to(self.centre.dtype) - self.centre
        bias = self.bias[block].clamp(min=torch.finfo(torch.float32).min / 4).to(centred.dtype)
        if self.metric == "sqeuclidean":
            bias = bias - self.beta * centred.square().sum(1)
        return torch.cat([centred, bias[:, None]], 1)

    def augmented_queries(self) -> Tensor:
        """[scale * q, 1]. (Q, D + 1)."""
        scaled = self.scale * self.queries
        return torch.cat([scaled, scaled.new_ones(scaled.shape[0], 1)], 1)


class FusedAttention(torch.autograd.Function):
    """Log-sum-exp and mean of :func:`isthmus.attend.attend`, from checked and flat tensors."""

    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
    ) -> tuple[Tensor, Tensor]:
        """Block by block, whose results are merged."""
        blocks = _Blocks.of(queries, memories, bias, beta, metric)
        augmented = blocks.augmented_queries()
        first, *others = blocks.slices()
        mean, logsumexp = _flash(augmented, blocks.keys(first))
        for block in others:
            mean_here, logsumexp_here = _flash(augmented, blocks.keys(block))
            total = torch.logaddexp(logsumexp, logsumexp_here)
            mean = mean * (logsumexp - total).exp_()[:, None]
            mean = mean + mean_here * (logsumexp_here - total).exp_()[:, None]
            logsumexp = total
        mean = mean[:, :-1]
        ctx.metric = metric
        ctx.save_for_backward(queries, memories, bias, beta, logsumexp, mean)
        dtype = queries.dtype
        return (logsumexp + blocks.row()).to(dtype), (mean + blocks.centre).to(dtype)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor | None, ...]:
        """Fused too, unless a second derivative is wanted."""
        queries, memories, bias, beta, logsumexp, mean = ctx.saved_tensors
        inputs = (queries, memories, bias, beta)
        if torch.is_grad_enabled():
            needed = ctx.needs_input_grad[:4]
            with torch.enable_grad():
                outputs = plain_attention(*inputs, ctx.metric)
            wanted = [value for value, need in zip(inputs, needed, strict=True) if need]
            found = iter(torch.autograd.grad(outputs, wanted, grads, create_graph=True))
            return (*(next(found) if need else None for need in needed), None)
        return (*_fused_gradients(*inputs, ctx.metric, logsumexp, mean, *grads), None)


def _fused_gradients(
    queries: Tensor,
    memories: Tensor,
    bias: Tensor,
    beta: Tensor,
    metric: Metric,
    logsumexp: Tensor,
    mean: Tensor,
    grad_logsumexp: Tensor,
    grad_mean: Tensor,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of the fused pass, block by block.

    Flash attention's backward forms P * (grad_out . value - grad_out . out). With values
    [m, 1], grad_out [grad_mean, grad_logsumexp] and out [mean, 0], that is exactly the
    gradient by the logits of both results.
    """
    blocks = _Blocks.of(queries, memories, bias, beta, metric)
    augmented = blocks.augmented_queries()
    upstream = torch.cat([grad_mean, grad_logsumexp[:, None]], 1).to(mean.dtype)
    out = torch.cat([mean, mean.new_zeros(mean.shape[0], 1)], 1)
    grad_queries = torch.zeros_like(mean)
    grad_memories = torch.empty_like(memories)
    grad_bias = torch.empty_like(bias)
    grad_beta = (grad_logsumexp * blocks.row() / beta).sum()
    for block in blocks.slices():
        keys = blocks.keys(block)
        values = keys.clone()
        values[:, -1] = 1
        by_query, by_key, by_value = _flash_backward(
            upstream, augmented, keys, values, out, logsumexp
        )
        grad_queries += by_query[:, :-1]
        by_memory, by_bias = by_key[:, :-1] + by_value[:, :-1], by_key[:, -1]
        if metric == "sqeuclidean":
            by_memory -= 2 * beta * by_bias[:, None] * keys[:, :-1]
            grad_beta = grad_beta - by_bias @ keys[:, :-1].square().sum(1)
        grad_memories[block] = by_memory
        grad_bias[block] = by_bias
    by_scale = (grad_queries * blocks.queries).sum()
    if metric == "sqeuclidean":
        grad_beta = grad_beta + 2 * by_scale
        by_row = -2 * beta * blocks.queries
    else:
        grad_beta = grad_beta + by_scale
        by_row = beta * blocks.centre
    grad_queries = blocks.scale * grad_queries + grad_logsumexp[:, None] * by_row
    return (
        grad_queries.to(queries.dtype),
        grad_memories,
        grad_bias,
        grad_beta.to(beta.dtype),
    )


def _has_flash_kernel(tensor: Tensor) -> bool:
    """Whether torch has a flash kernel here that also hands back the log-sum-exp."""
    return tensor.device.type == "cpu"


def _flash(queries: Tensor, keys: Tensor) -> tuple[Tensor, Tensor]:
    """The mean softmax(q k^T) k and the log-sum-exp. (Q, E), (rows, E) -> (Q, E), (Q,)."""
    if _has_flash_kernel(queries):
        out, logsumexp = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            queries[None, None], keys[None, None], keys[None, None], scale=1.0
        )
        return out[0, 0], logsumexp[0, 0]
    outs, sums = [], []
    for part in _query_parts(queries, keys):
        logits = queries[part] @ keys.mT
        sums.append(torch.logsumexp(logits, 1))
        outs.append(torch.softmax(logits, 1) @ keys)
    return torch.cat(outs), torch.cat(sums)


def _flash_backward(
    upstream: Tensor, queries: Tensor, keys: Tensor, values: Tensor, out: Tensor, logsumexp: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by queries, keys and values, given the log-sum-exp over all blocks."""
    if _has_flash_kernel(queries):
        tensors = (t[None, None] for t in (upstream, queries, keys, values, out, logsumexp))
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
