"""Errata of the attention section."""

from __future__ import annotations

import math

import torch
from torch import nn

from isthmus.attention import vmf_view
from isthmus.cli.parts.errata.erratum import Erratum

__all__ = ["attention_errata"]

EXACT = 1e-9
WIDTH, HEADS, LENGTH = 64, 4, 12


def attention_errata(seed: int) -> list[Erratum]:
    """E18 to E21 and E30."""
    generator = torch.Generator().manual_seed(seed)
    return [
        length_of_the_query(generator),
        projections_and_scale(seed),
        normalisers_of_components(seed),
        Erratum(
            21,
            "notation",
            "self-attention",
            "V softmax(K q)",
            "keys are the rows of K and values the columns of V",
            "Nothing to measure: shapes only.",
        ),
        product_not_sum(generator),
    ]


def length_of_the_query(generator: torch.Generator) -> Erratum:
    """E18: LayerNorm leaves vectors of length sqrt(D), across the ones."""
    lengths, across = {}, 0.0
    for dim in (8, 64, 512):
        x = torch.randn(20, dim, generator=generator, dtype=torch.float64)
        y = nn.functional.layer_norm(x, (dim,), eps=0.0)
        lengths[dim] = float(torch.linalg.vector_norm(y, dim=1).mean())
        across = max(across, float(y.sum(1).abs().max()))
    off = max(abs(length - math.sqrt(dim)) for dim, length in lengths.items())
    return Erratum(
        18,
        "wrong",
        "length of a normalised query",
        "|q̃| ≈ 1",
        "|q̃| = sqrt(D), and q̃ is orthogonal to the ones: a sphere in D − 1 dimensions",
        "LayerNorm's outputs have lengths "
        + ", ".join(f"{length:.2f}" for length in lengths.values())
        + f" for D = 8, 64, 512; their coordinates add up to {across:.0e} at most.",
        {f"length_in_{dim}_dimensions": length for dim, length in lengths.items()},
        off < 1e-6 and across < 1e-6,
    )


def _random_layer(seed: int) -> tuple[nn.LayerNorm, nn.MultiheadAttention, torch.Tensor]:
    """A norm with gain and shift, attention with biases, and inputs (2, 12, 64)."""
    generator = torch.Generator().manual_seed(seed)

    def noise(*shape: int) -> torch.Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    norm = nn.LayerNorm(WIDTH).double()
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * noise(WIDTH))
        norm.bias.copy_(0.3 * noise(WIDTH))
        attention.in_proj_weight.copy_(noise(3 * WIDTH, WIDTH) / math.sqrt(WIDTH))
        attention.in_proj_bias.copy_(0.1 * noise(3 * WIDTH))
        attention.out_proj.weight.copy_(noise(WIDTH, WIDTH) / math.sqrt(WIDTH))
    return norm, attention, noise(2, LENGTH, WIDTH)


@torch.no_grad()
def projections_and_scale(seed: int) -> Erratum:
    """E19: W_Q and 1 / sqrt(d) belong to the concentration and to the weight."""
    norm, attention, x = _random_layer(seed)
    view = vmf_view(norm, attention, x)
    y = norm(x)
    _, weights = attention(y, y, y, average_attn_weights=False)
    off = float((view.responsibilities() - weights).abs().max())
    # By hand: keys of each head, taken back through the query's projection, gain included.
    head_dim = WIDTH // HEADS
    query_weight, key_weight, _ = attention.in_proj_weight.chunk(3)
    keys = (y @ key_weight.T + attention.in_proj_bias[WIDTH : 2 * WIDTH]).unflatten(
        -1, (HEADS, head_dim)
    )
    back = torch.einsum("bthe,hed->bhtd", keys, query_weight.unflatten(0, (HEADS, head_dim)))
    back = back * norm.weight
    centred = back - back.mean(-1, keepdim=True)
    without = torch.linalg.vector_norm(centred, dim=-1)
    ratio = float((without / view.concentration).mean())
    plain = torch.softmax(torch.einsum("bthe,bshe->bhst", keys, _split(y)), -1)
    off_plain = float((plain - weights).abs().max())
    return Erratum(
        19,
        "wrong",
        "attention as clustering",
        "exp(k·q), with no W_Q and no 1/sqrt(d)",
        "κ = sqrt(D/d) |P(γ ⊙ W_Qᵀ k)| and log w = k·(W_Q δ + b_Q)/sqrt(d)",
        f"With them the mixture's posterior is the layer's attention to {off:.0e} (D = 64, "
        f"d = 16). Without sqrt(D) and 1/sqrt(d), κ is {ratio:.2f} of the true one; with none of "
        f"it, attention is off by up to {off_plain:.2f}.",
        {
            "posterior_off": off,
            "share_of_concentration_without_factors": ratio,
            "attention_off_as_printed": off_plain,
        },
        off < EXACT and abs(ratio - 1) > 0.1 and off_plain > 0.01,
    )


def _split(x: torch.Tensor) -> torch.Tensor:
    """Heads of a vector: (B, S, D) -> (B, S, H, d)."""
    return x.unflatten(-1, (HEADS, WIDTH // HEADS))


@torch.no_grad()
def normalisers_of_components(seed: int) -> Erratum:
    """E20: mixing proportions have the components' normalisers in them."""
    view = vmf_view(*_random_layer(seed))
    # log pi + log C(kappa) = log w + constant, so the difference of the two is -log C.
    gap = view.log_mixing - view.log_weight
    spread = float((gap.amax(-1) - gap.amin(-1)).mean())
    one = view.responsibilities()
    total = float((one.sum(-1) - 1).abs().max())
    return Erratum(
        20,
        "wrong",
        "mixing proportions",
        "π = exp(k·δ)",
        "π ∝ exp(k·δ) / C(κ): the normaliser of a von Mises-Fisher density depends on κ",
        f"log C differs by {spread:.2f} across the keys of a head, on average. The posterior is "
        "the same in both readings.",
        {"spread_of_log_normaliser": spread, "posterior_sums_off_by": total},
        spread > 0.05 and total < EXACT,
    )


def product_not_sum(generator: torch.Generator) -> Erratum:
    """E30: k . q is a product of lengths."""
    keys = torch.randn(6, 8, generator=generator, dtype=torch.float64)
    query = 2 * torch.randn(8, generator=generator, dtype=torch.float64)
    sizes, size = torch.linalg.vector_norm(keys, dim=1), torch.linalg.vector_norm(query)
    cosine = (keys / sizes[:, None]) @ (query / size)
    true = torch.softmax(keys @ query, 0)
    corrected = torch.softmax(sizes * size * cosine, 0)
    printed = torch.softmax(sizes * cosine + size, 0)
    off, off_printed = (float((guess - true).abs().max()) for guess in (corrected, printed))
    return Erratum(
        30,
        "wrong",
        "the poster: factors of exp(k·q)",
        "exp(κ m·q/|q|) exp(|q|), the second the same for all keys",
        "κ = |k||q|: k·q is a product of the lengths, not a sum",
        f"Attention weights by the corrected form are off by {off:.0e}, by the printed one by "
        f"{off_printed:.2f}.",
        {"off_corrected": off, "off_printed": off_printed},
        off < EXACT and off_printed > 0.01,
    )
