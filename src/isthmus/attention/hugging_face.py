"""Read attention layers of Hugging Face models without importing transformers.

Classes are recognised by name: a user with such a layer has the package loaded already.
"""

from __future__ import annotations

import sys
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.attention.projections import Heads, split_heads
from isthmus.errors import ShapeError, UnsupportedOperationError

__all__ = [
    "hugging_face_heads",
    "is_hugging_face",
    "is_rms_norm",
    "sliding_window",
    "split_block",
]

LLAMA_KINDS = ("Llama", "Mistral", "Qwen2")
ATTENTION = {"GPT2Attention", *(f"{kind}Attention" for kind in LLAMA_KINDS)}
# Where each block keeps its norm and its attention.
BLOCKS = {
    "GPT2Block": ("ln_1", "attn"),
    **{f"{kind}DecoderLayer": ("input_layernorm", "self_attn") for kind in LLAMA_KINDS},
}
RMS_NORMS = {f"{kind}RMSNorm" for kind in LLAMA_KINDS}


def is_hugging_face(attention: object) -> bool:
    """Return True if :func:`hugging_face_heads` can read the module."""
    return _class_of(attention) in ATTENTION


def is_rms_norm(module: object) -> bool:
    """Return True for the root-mean-square norms of Llama, Mistral and Qwen2."""
    return _class_of(module) in RMS_NORMS


def split_block(block: object) -> tuple[nn.Module, nn.Module] | None:
    """Return a block's norm and attention, or None if it is not one of these."""
    names = BLOCKS.get(_class_of(block))
    return None if names is None else (getattr(block, names[0]), getattr(block, names[1]))


def sliding_window(attention: Any) -> int | None:
    """Return the length of the sliding window of a layer, or None if it has none."""
    if not is_hugging_face(attention):
        return None
    # Mistral has one for all layers; Qwen2 says for each.
    owner = attention.config if _class_of(attention) == "MistralAttention" else attention
    window: int | None = getattr(owner, "sliding_window", None)
    return window


def hugging_face_heads(attention: Any, key: Tensor, position_ids: Tensor | None) -> Heads:
    """Read an attention module whose keys are made from `key`. (B, T, D)."""
    if _class_of(attention) == "GPT2Attention":
        if position_ids is not None:
            raise UnsupportedOperationError(
                "GPT-2 adds positions to its embeddings, not in attention: leave out position_ids."
            )
        return _gpt2_heads(attention, key)
    return _llama_heads(attention, key, position_ids)


def _gpt2_heads(attention: Any, key: Tensor) -> Heads:
    if attention.is_cross_attention:
        raise UnsupportedOperationError(
            "GPT-2's cross-attention is not supported; pass block.attn."
        )
    width, n_heads = attention.embed_dim, attention.num_heads
    # Conv1D keeps its weight as (in, out).
    query_weight, key_weight, _ = attention.c_attn.weight.mT.split(width)
    query_bias, key_bias, _ = attention.c_attn.bias.split(width)
    scale = attention.head_dim**-0.5 if attention.scale_attn_weights else 1.0
    if attention.scale_attn_by_inverse_layer_idx:
        scale /= attention.layer_idx + 1
    return Heads(
        query_weight.unflatten(0, (n_heads, -1)),
        query_bias.unflatten(0, (n_heads, -1)),
        split_heads(nn.functional.linear(key, key_weight, key_bias), n_heads),
        scale,
    )


def _llama_heads(attention: Any, key: Tensor, position_ids: Tensor | None) -> Heads:
    """Read a layer with rotary positions, with the rotation of the query moved to the keys.

    Since (R_p q) . (R_j k) = q . (R_p' R_j k), the key, and with it the component, depends on the
    position p of the query. Groups of queries share keys.
    """
    config, groups = attention.config, attention.num_key_value_groups
    keys = split_heads(attention.k_proj(key), config.num_key_value_heads)
    cosine, sine = _rotation(attention, key, position_ids)
    turned = (keys * cosine + _turn_half(keys) * sine).repeat_interleave(groups, 1)
    across = turned[:, :, None]
    keys = across * cosine[..., None, :] - _turn_half(across * sine[..., None, :])
    n_heads = config.num_attention_heads
    weight, bias = attention.q_proj.weight, attention.q_proj.bias
    bias = weight.new_zeros(len(weight)) if bias is None else bias
    return Heads(
        weight.unflatten(0, (n_heads, -1)),
        bias.unflatten(0, (n_heads, -1)),
        keys,
        attention.scaling,
    )


def _rotation(attention: Any, key: Tensor, position_ids: Tensor | None) -> tuple[Tensor, Tensor]:
    """Return cosines and sines of the model's rotary embedding. (B or 1, 1, T, d) each."""
    batch, length = key.shape[:2]
    if position_ids is None:
        position_ids = torch.arange(length, device=key.device)[None]
    if position_ids.shape not in ((1, length), (batch, length)):
        raise ShapeError(
            f"position_ids must be ({batch}, {length}), not {tuple(position_ids.shape)}."
        )
    family = sys.modules[type(attention).__module__]
    kind = _class_of(attention).removesuffix("Attention")
    embedding = getattr(family, f"{kind}RotaryEmbedding")(attention.config).to(key.device)
    cosine, sine = embedding(key, position_ids)
    return cosine[:, None], sine[:, None]


def _turn_half(x: Tensor) -> Tensor:
    """Rotate each pair of coordinates, half a head apart, by a right angle. (..., d)."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _class_of(module: object) -> str:
    """Return the class name of a module of transformers, or an empty string."""
    kind = type(module)
    return kind.__name__ if kind.__module__.startswith("transformers.models.") else ""
