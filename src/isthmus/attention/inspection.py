"""Read norms, attention layers and masks of PyTorch and Hugging Face as the parts of a mixture."""

from __future__ import annotations

import sys
from dataclasses import dataclass
from functools import reduce
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn
from torch.nn.functional import linear, pad

from isthmus.errors import DtypeError, ShapeError, UnsupportedOperationError
from isthmus.validation import as_flag, require_values


@dataclass(frozen=True, eq=False)
class Heads:
    """Logits of every head, ``scale * (query_weight @ y + query_bias) . key + log_offset``.

    Here y is the normed query, and the last `always_seen` keys are never masked.
    """

    query_weight: Tensor  # (H * d, D)
    query_bias: Tensor | None  # (H * d,)
    keys: Tensor  # (B, H, T, d), or (B, H, S, T, d) where they depend on the query's place
    scale: float
    log_offset: Tensor | None = None  # (B, H, T)
    always_seen: int = 0


def split_heads(x: Tensor, n_heads: int) -> Tensor:
    """Split the last axis into heads. (B, S, H * d) -> (B, H, S, d)."""
    return x.unflatten(-1, (n_heads, -1)).transpose(1, 2)


def torch_heads(attention: Any, key: Tensor) -> Heads:
    """Return the heads of ``nn.MultiheadAttention`` for inputs `key` (B, T, kdim) of the keys."""
    width, n_heads = attention.embed_dim, attention.num_heads
    if key.shape[-1] != attention.kdim:
        raise ShapeError(
            f"The layer computes keys from {attention.kdim} coordinates (kdim), but got "
            f"{key.shape[-1]}. Pass the input of its keys as key=."
        )
    query_weight, key_weight = attention.q_proj_weight, attention.k_proj_weight
    if attention.in_proj_weight is not None:
        query_weight, key_weight, _ = attention.in_proj_weight.chunk(3)
    bias = attention.in_proj_bias
    query_bias, key_bias = (None, None) if bias is None else bias.chunk(3)[:2]
    keys = linear(key, key_weight, key_bias)
    # Keys that belong to the layer: a learned one and a zero one.
    own = [] if attention.bias_k is None else [attention.bias_k.expand(len(keys), 1, width)]
    own += [keys.new_zeros(len(keys), 1, width)] * attention.add_zero_attn
    keys = split_heads(torch.cat([keys, *own], 1), n_heads)
    scale = (width // n_heads) ** -0.5
    return Heads(query_weight, query_bias, keys, scale, always_seen=len(own))


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


def split_block(block: Any) -> list[nn.Module]:
    """Return a block's norm and attention, or nothing if it is not one of these."""
    return [getattr(block, name) for name in BLOCKS.get(_class_of(block), ())]


def sliding_window(attention: Any) -> int | None:
    """Return the length of the sliding window of a layer, or None if it has none."""
    if not is_hugging_face(attention):
        return None
    # Mistral has one for all layers; Qwen2 says for each.
    owner = attention.config if _class_of(attention) == "MistralAttention" else attention
    return getattr(owner, "sliding_window", None)


def hugging_face_heads(attention: Any, key: Tensor, position_ids: Tensor | None) -> Heads:
    """Read an attention module whose keys are made from `key`. (B, T, D)."""
    if _class_of(attention) != "GPT2Attention":
        return _llama_heads(attention, key, position_ids)
    if position_ids is not None or attention.is_cross_attention:
        raise UnsupportedOperationError(
            "GPT-2's layers have no position_ids, and its cross-attention is not supported; pass "
            "block.attn."
        )
    # Conv1D keeps its weight as (in, out).
    query_weight, key_weight, _ = attention.c_attn.weight.mT.chunk(3)
    query_bias, key_bias, _ = attention.c_attn.bias.chunk(3)
    scale = attention.head_dim**-0.5 if attention.scale_attn_weights else 1.0
    if attention.scale_attn_by_inverse_layer_idx:
        scale /= attention.layer_idx + 1
    keys = split_heads(linear(key, key_weight, key_bias), attention.num_heads)
    return Heads(query_weight, query_bias, keys, scale)


def _llama_heads(attention: Any, key: Tensor, position_ids: Tensor | None) -> Heads:
    """Read a layer with rotary positions, with the rotation of the query moved to the keys.

    Since (R_p q) . (R_j k) = q . (R_p' R_j k), the key, and with it the component, depends on the
    position p of the query. Groups of queries share keys.
    """
    batch, length = key.shape[:2]
    if position_ids is None:
        position_ids = torch.arange(length, device=key.device)[None]
    if position_ids.shape not in ((1, length), (batch, length)):
        raise ShapeError(
            f"position_ids must be ({batch}, {length}), not {tuple(position_ids.shape)}."
        )
    kind = type(attention)
    rotary = f"{kind.__name__.removesuffix('Attention')}RotaryEmbedding"
    embedding = getattr(sys.modules[kind.__module__], rotary)(attention.config).to(key.device)
    cosine, sine = (each[:, None] for each in embedding(key, position_ids))  # (B or 1, 1, T, d)
    keys = split_heads(attention.k_proj(key), attention.config.num_key_value_heads)
    turned = keys * cosine + _turn_half(keys) * sine
    across = turned.repeat_interleave(attention.num_key_value_groups, 1)[:, :, None]
    keys = across * cosine[..., None, :] - _turn_half(across * sine[..., None, :])
    return Heads(attention.q_proj.weight, attention.q_proj.bias, keys, attention.scaling)


def _turn_half(x: Tensor) -> Tensor:
    """Rotate each pair of coordinates, half a head apart, by a right angle. (..., d)."""
    first, second = x.chunk(2, -1)
    return torch.cat([-second, first], -1)


def _class_of(module: object) -> str:
    """Return the class name of a module of transformers, or an empty string."""
    kind = type(module)
    return kind.__name__ if kind.__module__.startswith("transformers.models.") else ""


SUPPORTED = (
    "Supported norms are nn.LayerNorm and nn.RMSNorm over the last axis, and the RMS norms of "
    "Hugging Face's Llama, Mistral and Qwen2. Supported attention is nn.MultiheadAttention, "
    "PreNormAttention, SALNAttention, and that of Hugging Face's GPT-2, Llama, Mistral and Qwen2. "
    "Supported blocks are nn.TransformerEncoderLayer and nn.TransformerDecoderLayer with "
    "norm_first=True, and the blocks of those four."
)


@dataclass(frozen=True, eq=False)
class Norm:
    """The parts of a norm over D coordinates: ``module(x) = gain * standardize(x) + shift``.

    The gain and shift (D,) are the paper's gamma and delta; ones and zeros where the norm has
    none. A centred norm subtracts the mean, so its sphere is orthogonal to the vector of ones.
    """

    module: Any
    dim: int
    centred: bool
    gain: Tensor
    shift: Tensor

    def standardize(self, x: Tensor) -> Tensor:
        """Run the norm without gain and shift, rounded as the module itself rounds. (..., D)."""
        named = self.module.named_parameters()
        neutral = {name: torch.full_like(each, float(name == "weight")) for name, each in named}
        standardized: Tensor = torch.func.functional_call(self.module, neutral, (x,))
        return standardized


def read_norm(module: Any, like: Tensor, width: int) -> Norm:
    """Return the parts of a norm over `width` coordinates, in the dtype and place of `like`."""
    if isinstance(module, nn.LayerNorm):
        centred = True
    elif isinstance(module, nn.RMSNorm) or _class_of(module) in RMS_NORMS:
        centred = False
    else:
        raise UnsupportedOperationError(
            f"Attention is a mixture on a sphere only after a norm, and "
            f"{type(module).__name__} is not a supported norm. {SUPPORTED}"
        )
    weight, bias = getattr(module, "weight", None), getattr(module, "bias", None)
    shape = tuple(getattr(module, "normalized_shape", weight.shape if weight is not None else ()))
    if len(shape) != 1:
        raise ShapeError(f"The norm is over the last {len(shape)} axes; it must be over one.")
    (dim,) = shape
    if dim != width:
        raise ShapeError(
            f"The norm is over {dim} coordinates, but the attention takes {width}. Pass the norm "
            "that stands in front of it."
        )
    if dim < 1 + centred:
        raise ShapeError(f"A norm over {dim} coordinate{'s' * (dim != 1)} leaves no direction.")
    gain = like.new_ones(dim) if weight is None else weight.detach().to(like)
    shift = like.new_zeros(dim) if bias is None else bias.detach().to(like)
    return Norm(module, dim, centred, gain, shift)


def merge_masks(
    mask: Any,
    key_padding_mask: Any,
    is_causal: bool,
    shape: tuple[int, int, int, int],
    like: Tensor,
    always_seen: int = 0,
) -> Tensor | None:
    """Return one mask to be added to logits of `shape` (B, H, S, T), or None.

    No mask applies to the last `always_seen` keys.
    """
    batch, n_heads, n_queries, n_keys = shape
    n_keys -= always_seen
    masks = []
    if mask is not None:
        given = _additive(mask, "mask", like)
        if given.ndim == 3 and given.shape[0] == batch * n_heads:
            given = given.unflatten(0, (batch, n_heads))
        masks.append(_fitting(given, "mask", (batch, n_heads, n_queries, n_keys)))
    if key_padding_mask is not None:
        padding = torch.atleast_2d(_additive(key_padding_mask, "key_padding_mask", like))
        padding = _fitting(padding, "key_padding_mask", (batch, n_keys))
        masks.append(padding.unflatten(0, (-1, 1, 1)))
    if as_flag(is_causal, "is_causal"):
        masks.append(like.new_full((1, 1, n_queries, n_keys), -torch.inf).triu(1))
    if not masks:
        return None
    merged = reduce(torch.add, masks)
    return pad(merged.expand(*merged.shape[:-1], n_keys), (0, always_seen))


def safe_softmax(logits: Tensor) -> Tensor:
    """Softmax over the last axis, all zeros where every logit is -inf."""
    nothing = (logits == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(logits.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)


def _additive(mask: Any, name: str, like: Tensor) -> Tensor:
    wanted = f"{name} must be boolean, True for a hidden key, or floating-point numbers to add."
    if not isinstance(mask, Tensor):
        try:
            mask = torch.from_numpy(np.array(mask))
        except (TypeError, ValueError):
            raise DtypeError(wanted) from None
    require_values(mask, name)
    if mask.dtype == torch.bool:
        return like.new_zeros(mask.shape).masked_fill(mask.to(like.device), -torch.inf)
    if not mask.is_floating_point():
        raise DtypeError(wanted)
    return mask.to(like)


def _fitting(mask: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the mask with as many axes as `shape`, which it must broadcast to."""
    missing = len(shape) - mask.ndim
    sizes = zip(mask.shape, shape[missing:], strict=True)
    if missing < 0 or any(own not in (1, n) for own, n in sizes):
        raise ShapeError(f"{name} of shape {tuple(mask.shape)} does not fit {shape}.")
    return mask[(None,) * missing]
