"""PreNormAttention and SALNAttention: attention layers that normalise their own input."""

from __future__ import annotations

from copy import deepcopy
from typing import Any, ClassVar, Literal, Self, final

import torch
from torch import Tensor, nn
from torch.nn.functional import dropout, pad, scaled_dot_product_attention

from isthmus.attention import inspection
from isthmus.attention.inspection import Heads, Norm, safe_softmax, split_heads
from isthmus.errors import ShapeError, UnsupportedOperationError
from isthmus.validation import as_choice, as_count, as_flag, as_number

NormKind = Literal["layer", "rms"]


class NormedAttention(nn.Module):
    """A norm and the attention after it, with the forward method of ``nn.MultiheadAttention``."""

    qk_norm = False
    weighs: ClassVar[bool] = False
    """True if the norm has no gain, and each key has one more coordinate, its log-weight."""

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
        super().__init__()
        self.embed_dim = width = as_count(embed_dim, "embed_dim")
        self.num_heads = as_count(num_heads, "num_heads")
        if width % self.num_heads:
            raise ShapeError(f"embed_dim {width} is not a multiple of num_heads {num_heads}.")
        self.head_dim = width // self.num_heads
        self.dropout = as_number(dropout, "dropout", at_least=0, below=1)
        self.batch_first, bias = as_flag(batch_first, "batch_first"), as_flag(bias, "bias")
        self.value_proj = nn.Linear(width, width, bias=bias)
        self.out_proj = nn.Linear(width, width, bias=bias)
        self.norm = make_norm(norm, width, eps, affine=not self.weighs)
        self.query_proj = nn.Linear(width, width, bias=bias and not self.weighs)
        self.key_proj = nn.Linear(width, width + self.weighs * self.num_heads, bias=bias)
        self.query_norm: nn.Module = nn.Identity()
        self.key_norm: nn.Module = nn.Identity()

    @property
    def scale(self) -> float:
        """The factor 1 / sqrt(d) of the logits."""
        return self.head_dim**-0.5

    def project_queries(self, normed: Tensor) -> Tensor:
        """Return queries of each head before any second norm. (B, S, D) -> (B, H, S, d)."""
        return split_heads(self.query_proj(normed), self.num_heads)

    def project_keys(self, normed: Tensor) -> Tensor:
        """Return keys of each head, and their log-weights if any. (B, T, D) -> (B, H, T, c)."""
        keys: Tensor = self.key_norm(split_heads(self.key_proj(normed), self.num_heads))
        return keys

    def factors(self, query: Tensor, key: Tensor) -> tuple[Tensor, Tensor]:
        """Return queries (B, H, S, c) and keys (B, H, T, c) whose products are the logits."""
        queries = self.query_norm(self.project_queries(query)) * self.scale
        keys = self.project_keys(key)
        return pad(queries, (0, keys.shape[-1] - self.head_dim), value=1.0), keys

    def heads(self, key: Tensor) -> Heads:
        """Return the logits as a function of the last norm's output, for :func:`vmf_view`."""
        whole = self.project_keys(key)
        keys = whole[..., : self.head_dim]
        if self.qk_norm:
            one = torch.eye(self.head_dim).to(keys).repeat(self.num_heads, 1)
            return Heads(one, None, keys, self.scale)
        offset = whole[..., self.head_dim] if self.weighs else None
        return Heads(self.query_proj.weight, self.query_proj.bias, keys, self.scale, offset)

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

        The signature and the results are those of ``nn.MultiheadAttention``. In masks, True hides a
        key. ``is_causal`` needs no mask, and a query that sees no key returns zeros instead of NaN.
        """
        unbatched = query.ndim == 2
        inputs = [x[None] if unbatched else x for x in (query, key, value)]
        if not (unbatched or self.batch_first):
            inputs = [x.transpose(0, 1) if x.ndim == 3 else x for x in inputs]
        if any(x.ndim != 3 or x.shape[-1] != self.embed_dim for x in inputs):
            raise ShapeError(
                f"query, key and value must be (B, S, {self.embed_dim}) or (S, {self.embed_dim})."
            )
        normed = self.norm(inputs[0])
        others = zip((key, value), inputs[1:], strict=True)
        source, valued = (normed if given is query else self.norm(x) for given, x in others)
        queries, keys = self.factors(normed, source)
        values = split_heads(self.value_proj(valued), self.num_heads)
        shape = (len(queries), self.num_heads, queries.shape[-2], keys.shape[-2])
        rate = self.dropout if self.training else 0.0
        causal = as_flag(is_causal, "is_causal")
        causal_only = causal and not need_weights and attn_mask is key_padding_mask is None
        masks = attn_mask, key_padding_mask, causal and not causal_only
        mask, weights = inspection.merge_masks(*masks, shape, queries), None
        if need_weights:
            logits = queries @ keys.mT
            weights = safe_softmax(logits if mask is None else logits + mask)
            mixed = dropout(weights, rate) @ values
        else:
            # The fast kernels want values as wide as keys.
            values = pad(values, (0, keys.shape[-1] - self.head_dim))
            mixed = scaled_dot_product_attention(
                queries, keys, values, mask, rate, is_causal=causal_only, scale=1.0
            )[..., : self.head_dim]
        output: Tensor = self.out_proj(mixed.transpose(1, 2).flatten(2))
        if weights is not None and average_attn_weights:
            weights = weights.mean(1)
        if unbatched:
            return output[0], None if weights is None else weights[0]
        return output if self.batch_first else output.transpose(0, 1), weights

    def extra_repr(self) -> str:
        """Return the settings shown by repr."""
        return f"{self.embed_dim}, num_heads={self.num_heads}, batch_first={self.batch_first}"


def make_norm(kind: NormKind, dim: int, eps: float | None, affine: bool) -> nn.Module:
    """Return a LayerNorm or an RMSNorm over `dim` coordinates."""
    if as_choice(kind, "norm", ("layer", "rms")) == "rms":
        return nn.RMSNorm(dim, eps=eps, elementwise_affine=affine)
    return nn.LayerNorm(dim, eps=as_number(eps, "eps", at_least=0), elementwise_affine=affine)


def read_source(
    norm: Any, attention: Any
) -> tuple[Norm, list[Tensor], list[Tensor], dict[str, Any]]:
    """Check that a norm and an attention can be converted together, and read both.

    Returns the norm, the weights (D, D) and biases (D,) of queries, keys and values, and options.
    """
    for module, kinds in ((attention, nn.MultiheadAttention), (norm, nn.LayerNorm | nn.RMSNorm)):
        if not isinstance(module, kinds):
            raise UnsupportedOperationError(
                f"{type(module).__name__} cannot be converted: pass an nn.LayerNorm or nn.RMSNorm, "
                "and an nn.MultiheadAttention."
            )
    width = attention.embed_dim
    added = attention.bias_k is not None or attention.add_zero_attn
    if attention.kdim != width or attention.vdim != width or added:
        raise UnsupportedOperationError(
            "Only attention with kdim = vdim = embed_dim, and without add_bias_kv or "
            "add_zero_attn, can be converted: queries, keys and values share one norm."
        )
    parts = inspection.read_norm(norm, attention.out_proj.weight, width)
    weights, bias = attention.in_proj_weight.detach(), attention.in_proj_bias
    biases = weights.new_zeros(len(weights)) if bias is None else bias.detach()
    names = ("embed_dim", "num_heads", "dropout", "batch_first")
    options = {name: getattr(attention, name) for name in names}
    options |= {"norm": "layer" if parts.centred else "rms", "bias": bias is not None}
    return parts, list(weights.chunk(3)), list(biases.chunk(3)), options


@torch.no_grad()
def copy_into(linear: Any, weight: Tensor, bias: Tensor | None) -> None:
    """Set a projection to a weight and, if it has one, to a bias, by default zero."""
    linear.weight.copy_(weight)
    if linear.bias is not None:
        linear.bias.copy_(torch.zeros_like(linear.bias) if bias is None else bias)


@final
class PreNormAttention(NormedAttention):
    r"""A norm followed by multi-head attention, with ``nn.MultiheadAttention``'s forward.

    .. math:: \mathrm{softmax}_i\bigl( (W_Q y) \cdot (W_K y_i) / \sqrt d \bigr), \qquad
        y = \gamma \odot \tilde x + \delta .

    With ``qk_norm`` every head normalises its queries and keys again, which bounds the logits
    (Dehghani et al. 2023).

    Parameters
    ----------
    embed_dim, num_heads, dropout, bias, batch_first
        As in ``nn.MultiheadAttention``.
    norm : {"layer", "rms"}
    qk_norm : bool
    eps : float
        Epsilon of all norms.

    Examples
    --------
    >>> import torch
    >>> from isthmus.attention import PreNormAttention, vmf_view
    >>> layer, x = PreNormAttention(16, 4, batch_first=True, qk_norm=True), torch.randn(2, 5, 16)
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
        options: Any = {"batch_first": batch_first, "norm": norm, "eps": eps}
        super().__init__(embed_dim, num_heads, dropout, bias, **options)
        self.qk_norm = as_flag(qk_norm, "qk_norm")
        if self.qk_norm:
            self.query_norm = make_norm(norm, self.head_dim, eps, affine=True)
            self.key_norm = make_norm(norm, self.head_dim, eps, affine=True)

    @classmethod
    def from_prenorm(
        cls, norm: nn.Module, attention: nn.MultiheadAttention, *, qk_norm: bool = False
    ) -> Self:
        """Return the layer equal to ``attention`` after ``norm``, with the same weights.

        Outputs are equal up to rounding, except with ``qk_norm=True``. The norm is an
        ``nn.LayerNorm`` or ``nn.RMSNorm``, and the attention must have kdim = vdim = embed_dim and
        neither add_bias_kv nor add_zero_attn.
        """
        _, weights, biases, options = read_source(norm, attention)
        layer = cls(**options, qk_norm=qk_norm).to(weights[0])
        layer.norm = deepcopy(norm)
        projections = layer.query_proj, layer.key_proj, layer.value_proj
        for projection, weight, bias in zip(projections, weights, biases, strict=True):
            copy_into(projection, weight, bias)
        layer.out_proj.load_state_dict(attention.out_proj.state_dict())
        return layer.train(attention.training)


@final
class SALNAttention(NormedAttention):
    r"""Self-Attention Layer-Normalization: each key has a log-weight of its own.

    .. math:: \mathrm{softmax}_i\bigl( (W_Q \tilde x) \cdot k_i / \sqrt d + \delta_i \bigr),
        \qquad (k_i, \delta_i) = W_K \tilde x_i + b_K .

    The standardised input :math:`\tilde x` has no gain, which keys can take up. In the mixture that
    the layer is, :math:`\delta_i` alone sets a component's log-weight, and :math:`k_i` alone its
    direction and concentration.

    Parameters
    ----------
    embed_dim, num_heads, dropout, batch_first, norm
        As in :class:`PreNormAttention`.
    bias : bool
        Of keys, values and the output; that of queries would be a part of :math:`\delta_i`.
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

    weighs = True

    @classmethod
    @torch.no_grad()
    def from_prenorm(cls, norm: nn.Module, attention: nn.MultiheadAttention) -> Self:
        r"""Return the layer equal to ``attention`` after ``norm``.

        Outputs are equal up to rounding: :math:`\gamma` goes into all projections, :math:`\delta`
        into the biases of keys and values, and
        :math:`\delta_i = k_i \cdot (W_Q \delta + b_Q) / \sqrt d`. Attention without a bias gets one
        if the norm has a shift. The arguments are those of :meth:`PreNormAttention.from_prenorm`.
        """
        parts, weights, biases, options = read_source(norm, attention)
        options["bias"] |= bool(parts.shift.any())
        layer = cls(**options, eps=parts.module.eps).to(weights[0])
        shifted = [w @ parts.shift + b for w, b in zip(weights, biases, strict=True)]
        queries, keys, values = (weight * parts.gain for weight in weights)
        # Each head's (d, D + 1) projection of keys with its bias, and the row that makes delta_i.
        per_head = torch.cat([keys, shifted[1][:, None]], 1).unflatten(0, (layer.num_heads, -1))
        constant = layer.scale * shifted[0].unflatten(0, (layer.num_heads, 1, -1))  # (H, 1, d)
        whole = torch.cat([per_head, constant @ per_head], 1).flatten(0, 1)
        copy_into(layer.query_proj, queries, None)
        copy_into(layer.key_proj, whole[:, :-1], whole[:, -1])
        copy_into(layer.value_proj, values, shifted[2])
        copy_into(layer.out_proj, attention.out_proj.weight, attention.out_proj.bias)
        return layer.train(attention.training)
