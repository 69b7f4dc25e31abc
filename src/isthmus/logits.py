"""Logits of queries against memories, about a centre that keeps them exact."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from isthmus.validation import is_transforming

__all__ = [
    "Metric",
    "attention_logits",
    "needs_float64",
    "observed_as_dot",
    "plain_attention",
]

Metric = Literal["dot", "sqeuclidean"]
"""How a query is compared with a memory: by dot product, or by minus the squared distance."""

# Logits are sums of terms of this size at most before float32 rounding (6e-8 of it) would show.
FLOAT32_LOGIT_LIMIT = 4096.0


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
        queries, memories, own = observed_as_dot(queries, memories, bias, beta, observed)
        logits, row, _, _ = _centred_logits(queries, memories, bias, beta, "dot")
        return logits + (row - own)[:, None]
    logits, row, _, _ = _centred_logits(queries, memories, bias, beta, metric)
    return logits + row[:, None]


def plain_attention(
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


def observed_as_dot(
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
