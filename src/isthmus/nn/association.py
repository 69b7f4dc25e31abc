"""The association of states with stored patterns: attention, repeated, in any number of heads."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn.functional import dropout, scaled_dot_product_attention

from isthmus.errors import DtypeError, InvalidInputError, ShapeError
from isthmus.kernel.sparse import entmax
from isthmus.validation import as_number, is_transforming

SEPARATIONS = {"softmax": 1.0, "entmax": 1.5, "sparsemax": 2.0}


def as_alpha(separation: str | float) -> float:
    """Return the alpha of entmax for a name, or a number from 1 to 2."""
    if isinstance(separation, str):
        if separation not in SEPARATIONS:
            names = ", ".join(map(repr, SEPARATIONS))
            raise InvalidInputError(
                f"separation must be {names}, or a number from 1 to 2, not {separation!r}."
            )
        return SEPARATIONS[separation]
    return as_number(separation, "separation", at_least=1, at_most=2)


def merge_masks(
    padding: Tensor | None, association: Tensor | None, shape: tuple[int, ...]
) -> tuple[Tensor | None, Tensor | None]:
    """Return both masks as one, for weights of `shape` (..., H, L, S), and the states alive.

    `padding` is (..., S); `association` is (L, S), (..., L, S) or (..., H, L, S). Which states see
    any pattern is returned only while torch traces, when values cannot be read.
    """
    *batch, _, states, stored = shape
    hidden = None
    if padding is not None:
        _require_mask("stored_pattern_padding_mask", padding, [(*batch, stored)])
        hidden = padding[..., None, None, :]
    if association is not None:
        allowed = [(states, stored), (*batch, states, stored), shape]
        _require_mask("association_mask", association, allowed)
        if 2 < association.ndim < len(shape):
            association = association[..., None, :, :]
        hidden = association if hidden is None else hidden | association
    if hidden is None:
        return None, None
    empty = hidden.all(-1, keepdim=True)
    if is_transforming() or hidden.is_meta:
        return hidden & ~empty, ~empty
    if count := int(empty.sum()):
        raise InvalidInputError(
            f"{count} of {empty.numel()} bags or states see no stored pattern: all are masked. "
            "Leave out empty bags, or give them one pattern."
        )
    return hidden, None


def _require_mask(name: str, mask: Tensor, shapes: list[tuple[int, ...]]) -> None:
    if not isinstance(mask, Tensor):
        raise DtypeError(f"{name} must be a boolean tensor, not of {type(mask).__name__}.")
    if mask.dtype != torch.bool:
        raise DtypeError(f"{name} must be boolean, True for a hidden pattern, not {mask.dtype}.")
    if tuple(mask.shape) not in shapes:
        words = " or ".join(str(tuple(shape)) for shape in dict.fromkeys(shapes))
        raise ShapeError(f"{name} must have shape {words}, not {tuple(mask.shape)}.")


def mixed(
    queries: Tensor,
    stored: Tensor,
    values: Tensor,
    alpha: float,
    hidden: Tensor | None,
    drop: float = 0.0,
) -> Tensor:
    """Return the means of values (..., S, v) at queries (..., L, d). (..., L, v)."""
    if alpha == 1:
        seen = None if hidden is None else ~hidden
        return scaled_dot_product_attention(
            queries.to(stored.dtype), stored, values, seen, drop, scale=1.0
        )
    weights = weights_of(queries, stored, alpha, hidden)
    return dropout(weights, drop).to(values.dtype) @ values


def weights_of(queries: Tensor, stored: Tensor, alpha: float, hidden: Tensor | None) -> Tensor:
    """Return the weights (..., L, S), at least in float32."""
    logits = queries.to(stored.dtype) @ stored.mT
    if logits.dtype in (torch.bfloat16, torch.float16):
        logits = logits.float()
    if hidden is not None:
        logits = logits.masked_fill(hidden, -torch.inf)
    return entmax(logits, alpha)
