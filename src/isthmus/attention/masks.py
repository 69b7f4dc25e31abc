"""Merge attention masks into one additive mask."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import pad

from isthmus.errors import DtypeError, ShapeError


def merge_masks(
    mask: Tensor | None,
    key_padding_mask: Tensor | None,
    is_causal: bool,
    shape: tuple[int, int, int, int],
    like: Tensor,
    always_seen: int = 0,
) -> Tensor | None:
    """Return one mask to be added to logits of `shape` (B, H, S, T), or None.

    Parameters
    ----------
    mask : Tensor, optional
        Boolean, True where a query may not see a key, or numbers to add to the logits:
        (S, T), (B * H, S, T) or anything that broadcasts to (B, H, S, T).
    key_padding_mask : Tensor (B, T), optional
        The same for whole keys; (T,) where there is no batch.
    is_causal : bool
        If True, query s sees keys 0 to s only, in addition to the masks.
    always_seen : int
        The number of keys, at the end, that no mask applies to.
    """
    batch, n_heads, n_queries, n_keys = shape
    n_keys -= always_seen
    parts = []
    if mask is not None:
        added = _additive(mask, "mask", like)
        if added.ndim == 3 and added.shape[0] == batch * n_heads:
            added = added.unflatten(0, (batch, n_heads))
        parts.append(_fitting(added, "mask", (batch, n_heads, n_queries, n_keys)))
    if key_padding_mask is not None:
        added = torch.atleast_2d(_additive(key_padding_mask, "key_padding_mask", like))
        parts.append(_fitting(added, "key_padding_mask", (batch, n_keys)).unflatten(0, (-1, 1, 1)))
    if is_causal:
        later = torch.ones(n_queries, n_keys, dtype=torch.bool, device=like.device).triu(1)
        parts.append(_additive(later, "mask", like)[None, None])
    if not parts:
        return None
    merged = parts[0]
    for part in parts[1:]:
        merged = merged + part
    return pad(merged.expand(*merged.shape[:-1], n_keys), (0, always_seen))


def safe_softmax(logits: Tensor) -> Tensor:
    """Softmax over the last axis, all zeros where every logit is -inf."""
    nothing = (logits == -torch.inf).all(-1, keepdim=True)
    return torch.softmax(logits.masked_fill(nothing, 0), -1).masked_fill(nothing, 0)


def _additive(mask: Tensor, name: str, like: Tensor) -> Tensor:
    if mask.dtype == torch.bool:
        hidden = mask.to(like.device)
        return torch.zeros(mask.shape, dtype=like.dtype, device=like.device).masked_fill(
            hidden, -torch.inf
        )
    if not mask.is_floating_point():
        raise DtypeError(
            f"{name} holds {str(mask.dtype).removeprefix('torch.')} numbers. Pass a boolean mask, "
            "True where a key may not be seen, or floating-point numbers to add to the logits."
        )
    return mask.to(like)


def _fitting(mask: Tensor, name: str, shape: tuple[int, ...]) -> Tensor:
    """Return the mask with as many axes as `shape`, which it must broadcast to."""
    missing = len(shape) - mask.ndim
    fits = missing >= 0 and all(
        own in (1, needed) for own, needed in zip(mask.shape, shape[missing:], strict=True)
    )
    if not fits:
        raise ShapeError(f"{name} of shape {tuple(mask.shape)} does not fit {shape}.")
    return mask[(None,) * missing]
