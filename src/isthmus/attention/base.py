"""NormedAttention: the base class of attention layers that normalise their own input."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention

from isthmus.attention.masks import merge_masks, safe_softmax
from isthmus.attention.norms import Norm, read_norm
from isthmus.attention.projections import Heads, optional, split_heads
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.validation import as_count

__all__ = [
    "NormKind",
    "NormedAttention",
    "copy_into",
    "has_bias",
    "make_norm",
    "projections_of",
    "read_pair",
]

NormKind = Literal["layer", "rms"]


class NormedAttention(nn.Module, ABC):
    """A norm and the attention after it, with the forward method of ``nn.MultiheadAttention``.

    A subclass supplies the queries and keys whose products are the logits.
    """

    norm: nn.Module

    def __init__(
        self, embed_dim: int, num_heads: int, dropout: float, bias: bool, batch_first: bool
    ) -> None:
        super().__init__()
        self.embed_dim = as_count(embed_dim, "embed_dim")
        self.num_heads = as_count(num_heads, "num_heads")
        if embed_dim % num_heads:
            raise ShapeError(f"embed_dim {embed_dim} is not a multiple of num_heads {num_heads}.")
        if not 0 <= dropout < 1:
            raise InvalidInputError(f"dropout must be at least 0 and below 1, not {dropout!r}.")
        self.head_dim = self.embed_dim // self.num_heads
        self.dropout = float(dropout)
        self.batch_first = bool(batch_first)
        self.value_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=bias)
        self.out_proj = nn.Linear(self.embed_dim, self.embed_dim, bias=bias)

    @property
    def scale(self) -> float:
        """The factor 1 / sqrt(d) of the logits."""
        return self.head_dim**-0.5

    @abstractmethod
    def factors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, S, c) and keys (B, H, T, c) whose products are the logits."""

    @abstractmethod
    def heads(self, key: Tensor) -> Heads:
        """Return the logits as a function of the normed query, for :func:`vmf_view`."""

    def forward(
        self,
        query: Tensor,
        key: Tensor,
        value: Tensor,
        key_padding_mask: Tensor | None = None,
        need_weights: bool = True,
        attn_mask: Tensor | None = None,
        average_attn_weights: bool = True,
        is_causal: bool = False,
    ) -> tuple[Tensor, Tensor | None]:
        """Apply the norm to all three inputs, then attend.

        The signature is that of ``nn.MultiheadAttention``. For self-attention, pass x three times.
        In masks, True hides a key. ``is_causal`` needs no mask, and a query that sees no key
        returns zeros instead of NaN. With ``need_weights=False`` it runs on
        ``torch.nn.functional.scaled_dot_product_attention``.

        Returns
        -------
        output : Tensor like query
        weights : Tensor (B, S, T), or (B, H, S, T) if not averaged, or None
        """
        unbatched = query.ndim == 2
        inputs = [x[None] if unbatched else self._batch_first(x) for x in (query, key, value)]
        if any(x.ndim != 3 or x.shape[-1] != self.embed_dim for x in inputs):
            raise ShapeError(
                f"query, key and value must be (B, S, {self.embed_dim}) or (S, {self.embed_dim})."
            )
        normed = [self.norm(inputs[0])]
        for given, x in ((key, inputs[1]), (value, inputs[2])):
            normed.append(normed[0] if given is query else self.norm(x))
        queries, keys = self.factors(normed[0], normed[1])
        values = split_heads(self.value_proj(normed[2]), self.num_heads)
        shape = (len(queries), self.num_heads, queries.shape[-2], keys.shape[-2])
        rate = self.dropout if self.training else 0.0
        weights = None
        if need_weights:
            mask = merge_masks(attn_mask, key_padding_mask, is_causal, shape, queries)
            logits = queries @ keys.mT
            weights = safe_softmax(logits if mask is None else logits + mask)
            mixed = dropout(weights, rate) @ values
        else:
            causal_only = is_causal and attn_mask is None and key_padding_mask is None
            mask = merge_masks(
                attn_mask, key_padding_mask, is_causal and not causal_only, shape, queries
            )
            # The fast kernels want values as wide as keys.
            values = pad(values, (0, keys.shape[-1] - self.head_dim))
            mixed = scaled_dot_product_attention(
                queries, keys, values, mask, rate, is_causal=causal_only, scale=1.0
            )[..., : self.head_dim]
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if unbatched:
            output = output[0]
        elif not self.batch_first:
            output = output.transpose(0, 1)
        if weights is not None:
            weights = weights.mean(1) if average_attn_weights else weights
            weights = weights[0] if unbatched else weights
        return output, weights

    def _batch_first(self, x: Tensor) -> Tensor:
        return x if self.batch_first or x.ndim != 3 else x.transpose(0, 1)

    def extra_repr(self) -> str:
        """Return the settings shown by repr."""
        return f"{self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def make_norm(kind: NormKind, dim: int, eps: float | None, affine: bool) -> nn.Module:
    """Return a LayerNorm or an RMSNorm over `dim` coordinates."""
    if kind not in ("layer", "rms"):
        raise InvalidInputError(f"norm must be 'layer' or 'rms', not {kind!r}.")
    if kind == "rms":
        return nn.RMSNorm(dim, eps=eps, elementwise_affine=affine)
    if eps is None:
        raise InvalidInputError("A LayerNorm needs a number for eps; an RMSNorm has its own.")
    return nn.LayerNorm(dim, eps=eps, elementwise_affine=affine)


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
