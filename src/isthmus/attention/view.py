"""vmf_view: a layer of pre-norm attention as mixtures on the sphere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from isthmus.attention import inspection
from isthmus.attention.inspection import Heads, Norm
from isthmus.attention.layers import NormedAttention
from isthmus.attention.mixture import VMFMixture
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.validation import as_tensor, require_finite


@torch.no_grad()
def vmf_view(
    norm: Any,
    attention: Any = None,
    x: Any = None,
    *,
    mask: Tensor | None = None,
    is_causal: bool = False,
    key_padding_mask: Tensor | None = None,
    key: Any = None,
    position_ids: Tensor | None = None,
) -> VMFMixture:
    r"""Return pre-norm attention as mixtures of von Mises-Fisher distributions.

    Call it as ``vmf_view(norm, attention, x)``, or as ``vmf_view(block, x)`` for a whole
    block. With the standardised query :math:`\sqrt D\, r\, u`, a unit vector u and r = 1 up to the
    norm's epsilon, and with P the projection across the ones for LayerNorm, else the identity, the
    logit of key i is

    .. math:: \kappa_i\, m_i \cdot r u + \log w_i, \qquad
        \kappa_i m_i = \sqrt{D / d}\, P(\gamma \odot W_Q^\top k_i), \qquad
        \log w_i = k_i \cdot (W_Q \delta + b_Q) / \sqrt d .

    (The paper prints it with the errata E18 to E20.)

    Parameters
    ----------
    norm : nn.LayerNorm, nn.RMSNorm, or that of Hugging Face's Llama, Mistral or Qwen2
        Or a block, with x as the second argument: ``nn.TransformerEncoderLayer(norm_first=True)``,
        :class:`PreNormAttention`, :class:`SALNAttention`, or a block of Hugging Face's GPT-2,
        Llama, Mistral or Qwen2.
    attention : nn.MultiheadAttention, or that of Hugging Face's models
        Dropout is ignored.
    x : array or Tensor (B, S, D) or (S, D)
        Input of the norm, in the layout of the layer: (S, B, D) if it is not ``batch_first``.
    mask, key_padding_mask : Tensor, optional
        As ``nn.MultiheadAttention`` takes them: boolean, **True where a query may not see a key**,
        or numbers to add to the logits. The mask is (S, T), (B * H, S, T), or broadcasts to
        (B, H, S, T); that of padding is (B, T).
    is_causal : bool
        A query sees only keys up to its own position, as in Hugging Face's models.
    key : array or Tensor (B, T, kdim), optional
        The `key` input in cross-attention. Default: the normed x.
    position_ids : Tensor (B, S), optional
        Rotary positions. Default: 0, 1, 2, ...

    Returns
    -------
    VMFMixture
        Detached from the graph. With rotary positions each query has its own mixture.

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from isthmus.attention import vmf_view
    >>> layer = nn.TransformerEncoderLayer(16, 4, norm_first=True, batch_first=True)
    >>> view = vmf_view(layer, torch.randn(2, 6, 16))
    >>> view.responsibilities().shape  # the attention weights
    torch.Size([2, 4, 6, 6])
    """
    if not isinstance(attention, nn.Module):
        norm, attention, x = _from_block(norm, attention, x)
    if x is None:
        raise InvalidInputError("Call vmf_view(norm, attention, x), or vmf_view(block, x).")
    if inspection.is_hugging_face(attention):
        width = int(attention.config.hidden_size)
    elif isinstance(attention, nn.MultiheadAttention | NormedAttention):
        width = attention.embed_dim
    else:
        raise _unsupported(attention)
    weight = as_tensor(next(attention.parameters()).detach(), "The attention's weights")
    parts = inspection.read_norm(norm, weight, width)
    x = _as_batch(x, attention, weight)
    if x.shape[-1] != width:
        raise ShapeError(f"x has {x.shape[-1]} coordinates, but the norm is over {width}.")
    window = inspection.sliding_window(attention)
    if window is not None and mask is None and x.shape[1] > window:
        raise InvalidInputError(
            f"This layer uses a sliding window of {window} keys, which is_causal does not include. "
            "Pass the full mask."
        )
    normed = norm(x)
    source = normed if key is None else _key_source(key, attention, weight)
    if source.shape[0] != x.shape[0]:
        raise ShapeError(f"x has {x.shape[0]} sequences, but key has {source.shape[0]}.")
    if isinstance(attention, NormedAttention) and attention.qk_norm:
        # Heads norm their queries once more, so that each has a sphere of its own.
        x = attention.project_queries(normed)
        parts = inspection.read_norm(attention.query_norm, weight, attention.head_dim)
    heads: Heads
    if inspection.is_hugging_face(attention):
        heads = inspection.hugging_face_heads(attention, source, position_ids)
    elif position_ids is not None:
        raise UnsupportedOperationError("position_ids are for layers with rotary positions only.")
    elif isinstance(attention, NormedAttention):
        heads = attention.heads(source)
    else:
        heads = inspection.torch_heads(attention, source)
    shape = (x.shape[0], heads.keys.shape[1], x.shape[-2], heads.keys.shape[-2])
    masks = mask, key_padding_mask, is_causal
    merged = inspection.merge_masks(*masks, shape, weight, heads.always_seen)
    if merged is not None and not bool((merged < torch.inf).all()):
        raise InvalidInputError("The mask has NaN or +inf; it may have finite numbers and -inf.")
    return _mixture(parts, parts.standardize(x), heads, merged)


def _mixture(norm: Norm, standardized: Tensor, heads: Heads, mask: Tensor | None) -> VMFMixture:
    """Build the mixture. standardized: (B, S, D), or (B, H, S, d) if heads norm their queries."""
    root = math.sqrt(norm.dim)
    length = torch.linalg.vector_norm(standardized, dim=-1)
    unit = standardized / length.masked_fill(length == 0, 1)[..., None]
    # Columns of P(gamma * W_Q'), split into an orthonormal basis and a triangle, so that
    # directions and lengths are found in the few coordinates of a head.
    n_heads = heads.keys.shape[1]
    factor = (heads.query_weight * norm.gain).unflatten(0, (n_heads, -1)).mT  # (H, D, d)
    if norm.centred:
        factor = factor - factor.mean(-2, keepdim=True)
    basis, triangle = torch.linalg.qr(factor)  # (H, D, c), (H, c, d)
    shifted = heads.query_weight @ norm.shift
    shifted = shifted if heads.query_bias is None else shifted + heads.query_bias
    constant = shifted.unflatten(0, (n_heads, -1))[..., None]  # (H, d, 1)
    if heads.keys.ndim == 5:
        triangle, constant = triangle[:, None], constant[:, None]
    along = heads.keys @ triangle.mT
    size = torch.linalg.vector_norm(along, dim=-1)
    log_weight = heads.scale * (heads.keys @ constant)[..., 0]
    if heads.log_offset is not None:
        log_weight = log_weight + heads.log_offset
    return VMFMixture(
        concentration=root * heads.scale * size,
        coordinates=along / size.masked_fill(size == 0, 1)[..., None],
        log_weight=log_weight,
        query_direction=unit,
        query_radius=length / root,
        centred=norm.centred,
        basis=basis,
        mask=mask,
    )


def _from_block(block: Any, second: Any, third: Any) -> tuple[Any, nn.Module, Any]:
    """The norm, the attention and the input of ``vmf_view(block, x)``."""
    if second is not None and third is not None:
        raise _unsupported(second)
    x = third if second is None else second
    if isinstance(block, nn.TransformerEncoderLayer | nn.TransformerDecoderLayer):
        if not block.norm_first:
            raise UnsupportedOperationError(
                f"This {type(block).__name__} applies its norm after attention (norm_first=False), "
                f"so its queries do not lie on a sphere. {inspection.SUPPORTED}"
            )
        return block.norm1, block.self_attn, x
    if isinstance(block, NormedAttention):
        return block.norm, block, x
    if not (parts := inspection.split_block(block)):
        raise _unsupported(block)
    return *parts, x


def _unsupported(module: object) -> UnsupportedOperationError:
    return UnsupportedOperationError(
        f"{type(module).__name__}, without a norm in front of it, is not supported. "
        f"{inspection.SUPPORTED}"
    )


def _key_source(key: Any, attention: Any, like: Tensor) -> Tensor:
    """Return the input of the keys of cross-attention. (B, T, kdim)."""
    if inspection.is_hugging_face(attention):
        raise UnsupportedOperationError(
            "Cross-attention is read from nn.MultiheadAttention, PreNormAttention and "
            "SALNAttention only: leave out key."
        )
    source = _as_batch(key, attention, like, "key")
    if not isinstance(attention, NormedAttention):
        return source
    if source.shape[-1] != attention.embed_dim:
        raise ShapeError(f"key has {source.shape[-1]} coordinates, not {attention.embed_dim}.")
    normed: Tensor = attention.norm(source)
    return normed


def _as_batch(value: Any, attention: nn.Module, like: Tensor, name: str = "x") -> Tensor:
    """Return hidden states as (B, S, D), for any layout of the layer."""
    states = as_tensor(value, name).to(like)
    if states.ndim not in (2, 3) or 0 in states.shape:
        raise ShapeError(f"{name} must be (B, S, D) or (S, D), not {tuple(states.shape)}.")
    require_finite(states, name, "The layer may have diverged.")
    if states.ndim == 2:
        return states[None]
    return states if getattr(attention, "batch_first", True) else states.transpose(0, 1)
