"""Errata of the attention section."""

from __future__ import annotations

import math

import torch
from torch import nn

from isthmus.attention import vmf_view
from isthmus.report.parts.errata.erratum import Check, erratum, normal

EXACT = 1e-9
WIDTH, HEADS, LENGTH = 64, 4, 12


@erratum("E18")
def length_of_the_query(generator: torch.Generator) -> Check:
    """Measure LayerNorm's outputs: of length sqrt(D), orthogonal to the ones."""
    lengths, across = {}, 0.0
    for dim in (8, 64, 512):
        y = nn.functional.layer_norm(normal(generator, 20, dim), (dim,), eps=0.0)
        lengths[dim] = float(torch.linalg.vector_norm(y, dim=1).mean())
        across = max(across, float(y.sum(1).abs().max()))
    off = max(abs(length - math.sqrt(dim)) for dim, length in lengths.items())
    return Check(
        {f"length_in_{dim}_dimensions": length for dim, length in lengths.items()},
        off < 1e-6 and across < 1e-6,
        {"across": across},
    )


def _random_layer(seed: int) -> tuple[nn.LayerNorm, nn.MultiheadAttention, torch.Tensor]:
    """Return a norm with gain and shift, attention with biases, and inputs (2, 12, 64)."""
    generator = torch.Generator().manual_seed(seed)
    norm = nn.LayerNorm(WIDTH).double()
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * normal(generator, WIDTH))
        norm.bias.copy_(0.3 * normal(generator, WIDTH))
        attention.in_proj_weight.copy_(normal(generator, 3 * WIDTH, WIDTH) / math.sqrt(WIDTH))
        attention.in_proj_bias.copy_(0.1 * normal(generator, 3 * WIDTH))
        attention.out_proj.weight.copy_(normal(generator, WIDTH, WIDTH) / math.sqrt(WIDTH))
    return norm, attention, normal(generator, 2, LENGTH, WIDTH)


@erratum("E19")
@torch.no_grad()
def projections_and_scale(generator: torch.Generator) -> Check:
    """Measure the effect of W_Q and 1 / sqrt(d) on concentration and weight."""
    norm, attention, x = _random_layer(generator.initial_seed())
    view = vmf_view(norm, attention, x)
    y = norm(x)
    _, weights = attention(y, y, y, average_attn_weights=False)
    off = float((view.responsibilities() - weights).abs().max())
    # By hand: keys of each head, mapped back through the query's projection and the gain.
    heads = (HEADS, WIDTH // HEADS)
    query_weight, key_weight, _ = attention.in_proj_weight.chunk(3)
    keys = (y @ key_weight.T + attention.in_proj_bias[WIDTH : 2 * WIDTH]).unflatten(-1, heads)
    back = torch.einsum("bthe,hed->bhtd", keys, query_weight.unflatten(0, heads)) * norm.weight
    without = torch.linalg.vector_norm(back - back.mean(-1, keepdim=True), dim=-1)
    ratio = float((without / view.concentration).mean())
    plain = torch.softmax(torch.einsum("bthe,bshe->bhst", keys, y.unflatten(-1, heads)), -1)
    off_plain = float((plain - weights).abs().max())
    return Check(
        {
            "posterior_off": off,
            "share_of_concentration_without_factors": ratio,
            "attention_off_as_printed": off_plain,
        },
        off < EXACT and abs(ratio - 1) > 0.1 and off_plain > 0.01,
    )


@erratum("E20")
@torch.no_grad()
def normalisers_of_components(generator: torch.Generator) -> Check:
    """Measure how much the components' normalisers differ across keys."""
    view = vmf_view(*_random_layer(generator.initial_seed()))
    # log pi + log C(kappa) = log w + constant, so the difference of the two is -log C.
    gap = view.log_mixing - view.log_weight
    spread = float((gap.amax(-1) - gap.amin(-1)).mean())
    total = float((view.responsibilities().sum(-1) - 1).abs().max())
    return Check(
        {"spread_of_log_normaliser": spread, "posterior_sums_off_by": total},
        spread > 0.05 and total < EXACT,
    )


@erratum("E30")
def product_not_sum(generator: torch.Generator) -> Check:
    """Compare both factorisations of exp(k . q)."""
    keys, query = normal(generator, 6, 8), 2 * normal(generator, 8)
    sizes, size = torch.linalg.vector_norm(keys, dim=1), torch.linalg.vector_norm(query)
    cosine = (keys / sizes[:, None]) @ (query / size)
    true = torch.softmax(keys @ query, 0)
    off, off_printed = (
        float((torch.softmax(logits, 0) - true).abs().max())
        for logits in (sizes * size * cosine, sizes * cosine + size)
    )
    return Check(
        {"off_corrected": off, "off_printed": off_printed}, off < EXACT and off_printed > 0.01
    )
