"""Copy the weights of a trained norm and ``nn.MultiheadAttention``."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from isthmus.attention.norms import Norm, read_norm
from isthmus.attention.projections import optional
from isthmus.errors import ShapeError, UnsupportedOperationError

__all__ = ["copy_into", "has_bias", "projections_of", "read_pair"]


def read_pair(norm: nn.Module, attention: nn.Module) -> tuple[Norm, nn.MultiheadAttention]:
    """Check that a norm and an attention can be converted together, and return both."""
    if not isinstance(attention, nn.MultiheadAttention):
        raise UnsupportedOperationError(
            f"{type(attention).__name__} cannot be converted; nn.MultiheadAttention can."
        )
    width = attention.embed_dim
    if attention.kdim != width or attention.vdim != width:
        raise UnsupportedOperationError(
            "Only attention with kdim = vdim = embed_dim can be converted, because queries, keys "
            "and values must share one norm."
        )
    if optional(attention, "bias_k") is not None or attention.add_zero_attn:
        raise UnsupportedOperationError(
            "Attention with add_bias_kv or add_zero_attn cannot be converted."
        )
    if not isinstance(norm, nn.LayerNorm | nn.RMSNorm):
        raise UnsupportedOperationError(
            f"{type(norm).__name__} cannot be converted; nn.LayerNorm and nn.RMSNorm can."
        )
    parts = read_norm(norm, attention.out_proj.weight)
    if parts.dim != width:
        raise ShapeError(
            f"The norm is over {parts.dim} coordinates, but the attention takes {width}."
        )
    return parts, attention


def has_bias(attention: nn.MultiheadAttention) -> bool:
    """Return True if the projections have a bias."""
    return optional(attention, "in_proj_bias") is not None


def projections_of(attention: nn.MultiheadAttention) -> tuple[list[Tensor], list[Tensor]]:
    """Return weights (D, D) and biases (D,) of queries, keys and values, or zero biases."""
    weights = list(attention.in_proj_weight.detach().chunk(3))
    if not has_bias(attention):
        return weights, [weights[0].new_zeros(attention.embed_dim)] * 3
    return weights, list(attention.in_proj_bias.detach().chunk(3))


@torch.no_grad()
def copy_into(linear: nn.Linear, weight: Tensor, bias: Tensor) -> None:
    """Set a projection to a weight and, if it has one, a bias."""
    linear.weight.copy_(weight)
    if optional(linear, "bias") is not None:
        linear.bias.copy_(bias)
