r"""The kernel under every memory: log-sum-exp attention, fused and chunked.

For queries :math:`q` and memories :math:`m_n` with logits

.. math::
    \ell_n(q) = \beta\, q \cdot m_n + b_n
    \quad\text{or}\quad
    \ell_n(q) = -\beta\, \lVert q - m_n \rVert^2 + b_n ,

:func:`attend` returns :math:`\log\sum_n e^{\ell_n}` and
:math:`\sum_n \mathrm{softmax}(\ell)_n m_n`. Both come out of one pass of flash attention:
the bias rides along as one more column of the keys (:math:`q' = [\beta q, 1]`,
:math:`k' = [m, b]`), and memories are taken in blocks whose results are merged, so that
neither a Q x N matrix nor a second copy of the memories is ever held. The backward pass is
flash attention's own, with the gradient of the log-sum-exp riding along in the same column.
"""

from __future__ import annotations

from typing import Any, Literal, NamedTuple, cast

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.validation import (
    as_log_weights,
    as_mask,
    as_points,
    as_positive,
    is_transforming,
)

__all__ = ["Attention", "Metric", "attend", "attention_logits", "needs_float64"]

Metric = Literal["dot", "sqeuclidean"]
"""How a query is compared with a memory: by dot product, or by minus the squared distance."""

# Below this many logits, plain torch operations are faster than setting up the fused pass.
PLAIN_LOGITS = 2**16
# Entries of one block of augmented keys: 16 MiB in float32.
BLOCK_ENTRIES = 2**22
# Logits are sums of terms of this size at most before float32 rounding (6e-8 of it) would show.
FLOAT32_LOGIT_LIMIT = 4096.0


class Attention(NamedTuple):
    """What :func:`attend` returns."""

    logsumexp: Tensor
    """Log of the sum over n of exp(logit_n). (...)"""
    mean: Tensor
    """Softmax-weighted mean of the memories. (..., D)"""


def attend(
    queries: Any,
    memories: Any,
    *,
    beta: float | Tensor = 1.0,
    bias: Any = None,
    metric: Metric = "dot",
    observed: Any = None,
) -> Attention:
    r"""Log-sum-exp and softmax-weighted mean of `memories`, as seen from `queries`.

    Parameters
    ----------
    queries : (..., D)
    memories : (N, D)
    beta : float or scalar tensor
        Inverse temperature, above zero.
    bias : (N,), optional
        Added to each memory's logit; ``-inf`` leaves a memory out.
    metric : {"dot", "sqeuclidean"}
        :math:`\beta q \cdot m` or :math:`-\beta \lVert q - m \rVert^2`.
    observed : (..., D) bool, optional
        Take the squared distance over these coordinates of each query only; the mean still
        has all D. Only with ``metric="sqeuclidean"``.

    Returns
    -------
    Attention
        ``logsumexp`` (...) and ``mean`` (..., D), differentiable in queries, memories, bias
        and beta. First derivatives are fused as well; second derivatives are exact too, but
        hold a Q x N matrix.

    Notes
    -----
    Data are centred on the memories first. Where float32 could not hold the logits to about
    1e-3 all the same (a large beta, a query far away), they are computed in float64.

    Examples
    --------
    >>> import torch
    >>> from isthmus.attend import attend
    >>> memories = torch.tensor([[0.0, 0.0], [4.0, 0.0]])
    >>> attend(torch.tensor([[3.0, 0.0]]), memories, metric="sqeuclidean").mean
    tensor([[3.9987, 0.0000]])
    """
    memories = as_points(memories, "memories")
    if memories.ndim != 2 or memories.shape[0] == 0:
        raise ShapeError(f"memories must be (N, D) with N > 0, not {tuple(memories.shape)}.")
    queries = as_points(
        queries, "queries", dim=memories.shape[1], like=memories, allow_nan=observed is not None
    )
    beta = as_positive(beta, "beta", memories)
    if metric not in ("dot", "sqeuclidean"):
        raise InvalidInputError(f"metric must be 'dot' or 'sqeuclidean', not {metric!r}.")
    if bias is None:
        bias = memories.new_zeros(memories.shape[0])
    bias = as_log_weights(bias, "bias", memories)
    flat = queries.reshape(-1, memories.shape[1])
    if observed is None:
        logsumexp, mean = _attend(flat, memories, bias, beta, metric)
    elif metric == "dot":
        raise InvalidInputError("observed needs metric='sqeuclidean'.")
    else:
        seen = as_mask(observed, "observed", queries).reshape(flat.shape)
        logsumexp, mean = _attend_observed(flat, memories, bias, beta, seen)
    return Attention(logsumexp.reshape(queries.shape[:-1]), mean.reshape(queries.shape))


def attention_logits(
    queries: Tensor,
    memories: Tensor,
    bias: Tensor | None,
    beta: Tensor,
    metric: Metric,
    observed: Tensor | None = None,
) -> Tensor:
    """The logits themselves, for when a Q x N matrix is wanted. (Q, D), (N, D) -> (Q, N).

    They come in float64 where float32 could not hold them.
    """
    if bias is None:
        bias = memories.new_zeros(memories.shape[0])
    if observed is not None:
        queries, memories, own = _observed_as_dot(queries, memories, bias, beta, observed)
        logits, row, _, _ = _centred_logits(queries, memories, bias, beta, "dot")
        return logits + (row - own)[:, None]
    logits, row, _, _ = _centred_logits(queries, memories, bias, beta, metric)
    return logits + row[:, None]


def _attend(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor]:
    if is_transforming() or queries.shape[0] * memories.shape[0] <= PLAIN_LOGITS:
        return _plain(queries, memories, bias, beta, metric)
    fused = _Fused.apply(queries, memories, bias, beta, metric)
    return cast("tuple[Tensor, Tensor]", fused)


def _attend_observed(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor]:
    doubled_queries, doubled, own = _observed_as_dot(queries, memories, bias, beta, observed)
    logsumexp, mean = _attend(doubled_queries, doubled, bias, beta, "dot")
    mean = mean[:, : memories.shape[1]] + memories.detach().mean(0)
    return (logsumexp - own).to(queries.dtype), mean.to(queries.dtype)


def _observed_as_dot(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, observed: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Distances over observed coordinates, as dot products in twice the dimensions.

    sum_d o_d (q_d - m_d)^2 = sum_d o_d q_d^2 - [2 o q, -o] . [m, m^2], so one call serves
    rows that each miss other coordinates. Returns both factors and beta times the first sum.
    """
    centre = memories.detach().mean(0)
    shifted = torch.where(observed, queries, centre) - centre
    centred = memories - centre
    if needs_float64(shifted, centred, bias, beta, "sqeuclidean"):
        shifted, centred = shifted.double(), centred.double()
    return (
        torch.cat([2 * shifted, -observed.to(shifted.dtype)], 1),
        torch.cat([centred, centred.square()], 1),
        beta * shifted.square().sum(1),
    )


def _plain(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor]:
    """The same results by ordinary, any-times differentiable operations; holds Q x N."""
    logits, row, centred, centre = _centred_logits(queries, memories, bias, beta, metric)
    logsumexp = torch.logsumexp(logits, 1) + row
    mean = torch.softmax(logits, 1) @ centred + centre
    return logsumexp.to(queries.dtype), mean.to(queries.dtype)


def _centred_logits(
    queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Logits (Q, N) but for a term per query (Q,); the centred memories and their centre."""
    centre = memories.detach().mean(0)
    shifted = queries - centre if metric == "sqeuclidean" else queries
    centred = memories - centre
    if needs_float64(shifted, centred, bias, beta, metric):
        return _centred_logits(queries.double(), memories.double(), bias, beta, metric)
    beta, bias = beta.to(shifted.dtype), bias.to(shifted.dtype)
    if metric == "sqeuclidean":
        row = -beta * shifted.square().sum(1)
        offset = bias - beta * centred.square().sum(1)
        return torch.addmm(offset, 2 * beta * shifted, centred.mT), row, centred, centre
    row = beta * (shifted @ centre)
    return torch.addmm(bias, beta * shifted, centred.mT), row, centred, centre


@torch.no_grad()
def needs_float64(
    shifted: Tensor, centred: Tensor, bias: Tensor, beta: Tensor, metric: Metric
) -> bool:
    """Whether float32 would lose more of a logit than about 1e-3.

    `shifted` (Q, D) and `centred` (N, D) are queries and memories about a common centre.
    """
    if is_transforming() or shifted.dtype == torch.float64 or shifted.device.type == "mps":
        return False
    query, memory = _largest_norm(shifted), _largest_norm(centred)
    size = query * memory if metric == "dot" else max(query, memory) ** 2
    largest_bias = bias.masked_fill(bias == -torch.inf, 0).abs().max().item()
    return max(float(beta) * size, largest_bias) > FLOAT32_LOGIT_LIMIT


def _largest_norm(points: Tensor) -> float:
    return torch.linalg.vector_norm(points, dim=1).max().item() if points.shape[0] else 0.0


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


class _Fused(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, queries: Tensor, memories: Tensor, bias: Tensor, beta: Tensor, metric: Metric
    ) -> tuple[Tensor, Tensor]:
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
        queries, memories, bias, beta, logsumexp, mean = ctx.saved_tensors
        inputs = (queries, memories, bias, beta)
        if torch.is_grad_enabled():  # a second derivative is wanted
            needed = ctx.needs_input_grad[:4]
            with torch.enable_grad():
                outputs = _plain(*inputs, ctx.metric)
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
