"""Heads: the logits of an attention layer as projected queries times keys."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import linear

from isthmus.errors import ShapeError

__all__ = ["Heads", "optional", "split_heads", "torch_heads"]


@dataclass(frozen=True, eq=False)
class Heads:
    r"""Logits of every head, ``scale * (query_weight @ y + query_bias) . key + log_offset``.

    Here y is the normed query and d the width of a head.

    Attributes
    ----------
    query_weight : Tensor (H, d, D)
    query_bias : Tensor (H, d)
    keys : Tensor (B, H, T, d), or (B, H, S, T, d) where they depend on the query's place
    scale : float
        Usually :math:`1 / \sqrt d`.
    log_offset : Tensor (B, H, T), optional
    always_seen : int
        The number of keys, at the end, that belong to the layer and are never masked.
    """

    query_weight: Tensor
    query_bias: Tensor
    keys: Tensor
    scale: float
    log_offset: Tensor | None = None
    always_seen: int = 0


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split the last axis into heads. (B, S, H * d) -> (B, H, S, d)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def optional(module: nn.Module, name: str) -> Tensor | None:
    """Return a parameter that may be None, although torch annotates it as a Tensor."""
    found: Tensor | None = getattr(module, name)
    return found


def torch_heads(attention: nn.MultiheadAttention, key: Tensor) -> Heads:
    """Return the heads of ``nn.MultiheadAttention`` for inputs `key` (B, T, kdim) of the keys."""
    width, n_heads = attention.embed_dim, attention.num_heads
    if key.shape[-1] != attention.kdim:
        raise ShapeError(
            f"The layer computes keys from {attention.kdim} coordinates (kdim), but got "
            f"{key.shape[-1]}. Pass the input of its keys as key=."
        )
    together = optional(attention, "in_proj_weight")
    if together is not None:
        query_weight, key_weight, _ = together.chunk(3)
    else:
        query_weight, key_weight = attention.q_proj_weight, attention.k_proj_weight
    bias = optional(attention, "in_proj_bias")
    query_bias, key_bias = (None, None) if bias is None else bias.chunk(3)[:2]
    keys = linear(key, key_weight, key_bias)
    extra = 0
    added = optional(attention, "bias_k")
    if added is not None:
        keys, extra = torch.cat([keys, added.expand(len(keys), 1, width)], 1), 1
    if attention.add_zero_attn:
        keys, extra = torch.cat([keys, keys.new_zeros(len(keys), 1, width)], 1), extra + 1
    if query_bias is None:
        query_bias = query_weight.new_zeros(width)
    return Heads(
        query_weight.unflatten(0, (n_heads, -1)),
        query_bias.unflatten(0, (n_heads, -1)),
        split_heads(keys, n_heads),
        (width // n_heads) ** -0.5,
        always_seen=extra,
    )
