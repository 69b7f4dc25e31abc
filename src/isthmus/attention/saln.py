"""SALNAttention: the fused norm and attention of the paper's draft."""

from __future__ import annotations

from typing import Self, cast, final

import torch
from torch import Tensor, nn
from torch.nn.functional import pad

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

__all__ = ["SALNAttention"]


@final
class SALNAttention(NormedAttention):
    r"""Self-Attention Layer-Normalization: each key has a log-weight of its own.

    .. math:: \mathrm{softmax}_i\bigl( (W_Q \tilde x) \cdot k_i / \sqrt d + \delta_i \bigr),
        \qquad (k_i, \delta_i) = W_K \tilde x_i + b_K .

    The paper's draft keeps the standardisation :math:`\tilde x`, drops :math:`\gamma`, which
    keys can take up, and slices :math:`\delta_i` off each key as one more coordinate, in place
    of :math:`k_i \cdot \delta`. The draft has one head and no :math:`W_Q`; here every head
    has its projection and its :math:`\delta_i`. In the mixture that the layer is,
    :math:`\delta_i` alone sets a component's log-weight, and :math:`k_i` alone its direction
    and concentration.

    Parameters
    ----------
    embed_dim, num_heads : int
    dropout : float
        Dropout rate of attention weights in training.
    bias : bool
        Add a bias to the projections of keys and values and to the output. Queries need none:
        its effect on the logits is part of :math:`\delta_i`.
    batch_first : bool
        Inputs are (B, S, D) instead of (S, B, D).
    norm : {"layer", "rms"}
        The norm that standardises the input.
    eps : float, or None for the default of an RMSNorm

    Examples
    --------
    >>> import torch
    >>> from torch import nn
    >>> from isthmus.attention import SALNAttention
    >>> norm = nn.LayerNorm(16).double()
    >>> attention = nn.MultiheadAttention(16, 4, batch_first=True).double()
    >>> layer = SALNAttention.from_prenorm(norm, attention)
    >>> x = torch.randn(2, 5, 16, dtype=torch.float64)
    >>> y = norm(x)
    >>> torch.allclose(layer(x, x, x)[0], attention(y, y, y)[0], rtol=0, atol=1e-10)
    True
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
        eps: float | None = 1e-5,
    ) -> None:
        super().__init__(embed_dim, num_heads, dropout, bias, batch_first)
        self.norm = make_norm(norm, embed_dim, eps, affine=False)
        self.query_proj = nn.Linear(embed_dim, embed_dim, bias=False)
        self.key_proj = nn.Linear(embed_dim, embed_dim + num_heads, bias=bias)

    @classmethod
    def from_prenorm(cls, norm: nn.Module, attention: nn.Module) -> Self:
        r"""Return the layer equal to ``attention`` after ``norm``.

        Outputs are equal up to rounding:
        :math:`\gamma` goes into all projections, :math:`\delta` into the biases of keys and
        values, and :math:`\delta_i = k_i \cdot (W_Q \delta + b_Q) / \sqrt d`. The
        converse fails in general: there :math:`\delta_i` must be this function of the key.
        Attention without a bias gets one if the norm has a shift.

        Parameters
        ----------
        norm : nn.LayerNorm or nn.RMSNorm
        attention : nn.MultiheadAttention
            Must have kdim = vdim = embed_dim and neither add_bias_kv nor add_zero_attn.
        """
        parts, source = read_pair(norm, attention)
        weights, biases = projections_of(source)
        layer = cls(
            source.embed_dim,
            source.num_heads,
            source.dropout,
            has_bias(source) or bool(parts.shift.any()),
            batch_first=source.batch_first,
            norm="layer" if parts.centred else "rms",
            eps=cast("float | None", norm.eps),
        ).to(weights[0])
        with torch.no_grad():
            n_heads, scale = source.num_heads, layer.scale
            shifted = [w @ parts.shift + b for w, b in zip(weights, biases, strict=True)]
            queries, keys, values = (weight * parts.gain for weight in weights)
            # Each head's (d, D) projection of keys, and the row that makes delta_i of it.
            per_head = keys.unflatten(0, (n_heads, -1))
            bias = shifted[1].unflatten(0, (n_heads, -1))
            constant = scale * shifted[0].unflatten(0, (n_heads, 1, -1))  # (H, 1, d)
            row, offset = constant @ per_head, (constant @ bias[..., None])[..., 0]
            copy_into(layer.query_proj, queries, shifted[0])
            copy_into(
                layer.key_proj,
                torch.cat([per_head, row], 1).flatten(0, 1),
                torch.cat([bias, offset], 1).flatten(),
            )
            copy_into(layer.value_proj, values, shifted[2])
            out = source.out_proj
            out_bias = optional(out, "bias")
            zeros = values.new_zeros(source.embed_dim)
            copy_into(layer.out_proj, out.weight, zeros if out_bias is None else out_bias)
        return layer.train(source.training)

    def factors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, S, d + 1) and keys (B, H, T, d + 1) whose products are the logits.

        The last coordinate of a key is delta_i, and that of a query is one.
        """
        queries = split_heads(self.query_proj(query), self.num_heads) * self.scale
        return pad(queries, (0, 1), value=1.0), split_heads(self.key_proj(key), self.num_heads)

    def heads(self, key: Tensor) -> Heads:
        """Return the logits as a function of the standardised query."""
        whole = split_heads(self.key_proj(key), self.num_heads)
        return Heads(
            self.query_proj.weight.unflatten(0, (self.num_heads, -1)),
            whole.new_zeros(self.num_heads, self.head_dim),
            whole[..., :-1],
            self.scale,
            log_offset=whole[..., -1],
        )
