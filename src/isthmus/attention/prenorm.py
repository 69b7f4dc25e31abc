"""PreNormAttention: a norm, then attention, as one layer."""

from __future__ import annotations

from copy import deepcopy
from typing import Self, final

import torch
from torch import Tensor, nn

from isthmus.attention.base import (
    NormedAttention,
    NormKind,
    copy_into,
    has_bias,
    make_norm,
    projections_of,
    read_pair,
)
from isthmus.attention.projections import Heads, optional, split_heads

__all__ = ["PreNormAttention"]


@final
class PreNormAttention(NormedAttention):
    r"""A norm followed by multi-head attention, with ``nn.MultiheadAttention``'s forward.

    .. math:: \mathrm{softmax}_i\bigl( (W_Q y) \cdot (W_K y_i) / \sqrt d \bigr), \qquad
        y = \gamma \odot \tilde x + \delta .

    With ``qk_norm`` every head normalises its queries and keys again, which bounds the logits
    (Dehghani et al. 2023); components then lie on a sphere in the d dimensions of each head.

    Parameters
    ----------
    embed_dim, num_heads : int
    dropout : float
        Dropout rate of attention weights in training.
    bias : bool
        Add a bias to the projections.
    batch_first : bool
        Inputs are (B, S, D) instead of (S, B, D).
    norm : {"layer", "rms"}
    qk_norm : bool
    eps : float
        Epsilon of all norms.

    Examples
    --------
    >>> import torch
    >>> from isthmus.attention import PreNormAttention, vmf_view
    >>> layer = PreNormAttention(16, 4, batch_first=True, qk_norm=True)
    >>> x = torch.randn(2, 5, 16)
    >>> output, weights = layer(x, x, x)
    >>> output.shape, weights.shape
    (torch.Size([2, 5, 16]), torch.Size([2, 5, 5]))
    >>> vmf_view(layer, x)
    VMFMixture(2 sequences, 4 heads, 5 components, 5 queries, on a sphere in 3 dimensions)
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        dropout: float = 0.0,
        bias: bool = True,
        *,
        batch_first: bool = False,
        norm: NormKind = "layer",
        qk_norm: bool = False,
        eps: float = 1e-5,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first)
        self.norm = make_norm(norm, embed_dim, eps, affine=True)
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.key_proj = nn.Linear(embed_dim, embed_dim, bias=bias)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()
        self.qk_norm = bool(qk_norm)
        if qk_norm:
            self.query_norm = make_norm(norm, self.head_dim, eps, affine=True)
            self.key_norm = make_norm(norm, self.head_dim, eps, affine=True)

    @classmethod
    def from_prenorm(cls, norm: nn.Module, attention: nn.Module, *, qk_norm: bool = False) -> Self:
        """Return the layer equal to ``attention`` after ``norm``, with the same weights.

        Outputs are equal up to rounding, except with ``qk_norm=True``: the added norms remove the
        lengths of queries and keys in each head and, with LayerNorm, their means.

        Parameters
        ----------
        norm : nn.LayerNorm or nn.RMSNorm
        attention : nn.MultiheadAttention
            Must have kdim = vdim = embed_dim and neither add_bias_kv nor add_zero_attn.
        qk_norm : bool
        """
        parts, source = read_pair(norm, attention)
        weights, biases = projections_of(source)
        layer = cls(
            source.embed_dim,
            source.num_heads,
            source.dropout,
            has_bias(source),
            batch_first=source.batch_first,
            norm="layer" if parts.centred else "rms",
            qk_norm=qk_norm,
        ).to(weights[0])
        layer.norm = deepcopy(norm)
        for name, weight, bias in zip(("query", "key", "value"), weights, biases, strict=True):
            copy_into(getattr(layer, f"{name}_proj"), weight, bias)
        layer.out_proj.load_state_dict(source.out_proj.state_dict())
        return layer.train(source.training)

    def project_queries(self, normed: Tensor) -> Tensor:
        """Return queries of each head before the second norm. (B, S, D) -> (B, H, S, d)."""
        return split_heads(self.query_proj(normed), self.num_heads)

    def project_keys(self, normed: Tensor) -> Tensor:
        """Return keys of each head, after the second norm if any. (B, T, D) -> (B, H, T, d)."""
        keys: Tensor = self.key_norm(split_heads(self.key_proj(normed), self.num_heads))
        return keys

    def factors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, S, d) and keys (B, H, T, d) whose products are the logits."""
        queries = self.query_norm(self.project_queries(query))
        return queries * self.scale, self.project_keys(key)

    def heads(self, key: Tensor) -> Heads:
        """Return the logits as a function of the output of the last norm."""
        keys = self.project_keys(key)
        if self.qk_norm:
            one = torch.eye(self.head_dim).to(keys).expand(self.num_heads, -1, -1)
            return Heads(one, keys.new_zeros(self.num_heads, self.head_dim), keys, self.scale)
        bias = optional(self.query_proj, "bias")
        bias = keys.new_zeros(self.embed_dim) if bias is None else bias
        return Heads(
            self.query_proj.weight.unflatten(0, (self.num_heads, -1)),
            bias.unflatten(0, (self.num_heads, -1)),
            keys,
            self.scale,
        )
