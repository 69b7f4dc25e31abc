"""Attention as clustering: heads as mixtures, training at high rates, and errata."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd
import torch
from scipy.stats import binomtest
from torch import Tensor, nn

from isthmus.attention import PreNormAttention, SALNAttention, VMFMixture, entanglement, vmf_view
from isthmus.paper.attention import (
    PatchTransformer,
    compare_variants,
    digit_patches,
    load_runs,
    train_on_digits,
)
from isthmus.paper.figures import attention_experiment, keys_of_heads
from isthmus.paper.report.parts.errata import (
    EXACT,
    Check,
    corrected_by,
    erratum,
    largest_gap,
    normal,
)
from isthmus.paper.report.registry import recorded
from isthmus.paper.report.section import Section, judged, listed

STEPS, PICTURES = 100, 40
WIDTH, HEADS, LENGTH = 64, 4, 12
COST_DIM = 32
# Significance level of the sign tests.
LEVEL = 0.05


def attention_heads(seed: int, full: bool = False) -> Section:
    """Train a small transformer on digits and analyse its second block; the same with SALN."""
    layers = {}
    for variant in ("pre-norm", "SALN"):
        model = PatchTransformer(variant, seed=seed)
        losses = train_on_digits(model, 0.01, steps=STEPS, seed=seed)
        patches = digit_patches()[2][:PICTURES].double()
        layers[variant] = (*model.double().eval().layers(patches)[-1], losses[-1])
    views = {variant: vmf_view(*each[:2]) for variant, each in layers.items()}
    tied = entanglement(views["pre-norm"])
    alone = {variant: weight_without_key(each).tolist() for variant, each in views.items()}
    root_mean_square = posterior_gap(*_random_layer(seed, nn.RMSNorm))
    bound, free = max(alone["pre-norm"]), alone["SALN"]
    plain, saln = (
        [sum(each.numel() for each in kind(COST_DIM, h).parameters()) for h in (2, 4)]
        for kind in (PreNormAttention, SALNAttention)
    )
    return Section(
        "The keys of four heads in one block of a small transformer, trained on digits cut into "
        "16 patches: concentrations and log-weights of their von Mises-Fisher components. Below, "
        "those of the same block with SALN.",
        keys_of_heads(views),
        {
            "loss": layers["pre-norm"][-1],
            "mean_concentration_by_head": tied.mean_concentration.tolist(),
            "correlation_with_log_weight_by_head": tied.correlation.tolist(),
            "share_of_log_weight_without_the_key_by_variant": alone,
        },
        (
            corrected_by("vmf", projections_and_scale(torch.Generator().manual_seed(seed))),
            judged(
                "rms-norm",
                f"After RMSNorm the posterior equals the attention to {root_mean_square:.0e}.",
                root_mean_square <= EXACT,
            ),
            judged(
                "key-controls-both",
                f"In every head a linear function of the keys leaves at most {bound:.0e} of the "
                "variance of log-weights (see E20).",
                bound <= EXACT,
            ),
            judged(
                "saln-frees",
                f"In SALN, the keys leave {min(free):.1%} to {max(free):.1%} of that variance.",
                min(free) > EXACT,
            ),
            judged(
                "saln-cost",
                f"With D = {COST_DIM} and {listed((2, 4))} heads, a LayerNorm with attention has "
                f"{listed(plain, ',')} parameters, SALN {listed(saln, ',')}; operations as many.",
                saln[0] >= plain[0] and saln[1] >= plain[1],
                corrected=saln[1] >= plain[1],
            ),
        ),
    )


def weight_without_key(view: VMFMixture) -> Tensor:
    """Return the share of the variance of log-weights that no linear map of the keys gives. (H,)"""
    by_head = (view.concentration[..., None] * view.mean_direction).transpose(0, 1)
    keys, weight = by_head.flatten(1, 2), view.log_weight.transpose(0, 1).flatten(1)[..., None]
    left = weight - keys @ torch.linalg.lstsq(keys, weight, driver="gelsd").solution
    return (left.square().sum(1) / (weight - weight.mean(1, keepdim=True)).square().sum(1))[:, 0]


def runs_of_the_experiment(full: bool) -> tuple[pd.DataFrame, str]:
    """Return all runs, and their source."""
    if full:
        return compare_variants(progress=False), "trained now"
    found = load_runs(recorded("benchmarks/results/attention.json"))
    return found, "`python benchmarks/attention.py`, as recorded"


def attention_training(seed: int, full: bool = False) -> Section:
    """Compare three kinds of attention in one transformer, up to very high learning rates."""
    found, source = runs_of_the_experiment(full)
    runs = found.groupby(["learning_rate", "variant"])
    measures = ["loss", "test_loss", "largest_logit", "entanglement"]
    medians, diverged = runs[measures].median().unstack(), runs["diverged"].mean().unstack()
    best = float(medians["loss"]["pre-norm"].idxmin())
    logits = medians["largest_logit"][medians.index > best].max()
    # Runs of one seed start from the same weights and see the same batches, so only seeds are
    # independent of each other.
    high = found[found["learning_rate"] > best]
    losses = high.groupby(["seed", "variant"])["loss"].mean().unstack()
    p, below = {}, {}
    for name in ("QK-norm", "SALN"):
        won = int((losses[name] < losses["pre-norm"]).sum())
        p[name] = binomtest(won, len(losses), alternative="greater").pvalue
        below[name] = (
            f"Above a rate of {best:g}, where pre-norm does best, the mean training loss of {name} "
            f"is below pre-norm's for {won} of {len(losses)} seeds (sign test: p = {p[name]:.2g}); "
            f"largest median logits are {logits[name]:.3g} and {logits['pre-norm']:.3g}."
        )
    more = (diverged["QK-norm"] > diverged["pre-norm"])[diverged.index > best]
    rates = listed(more.index[more], "g") or "no rate"
    calm = logits["QK-norm"] < 0.1 * logits["pre-norm"] and p["QK-norm"] < LEVEL
    return Section(
        "The same small transformer on digits with pre-norm attention, with queries and keys "
        f"normalised again (QK-norm), and with SALN; {source}.",
        attention_experiment(found),
        {
            "runs": len(found),
            "source": source,
            **{f"median_{name}_by_variant_and_rate": _by_rate(medians[name]) for name in measures},
            "share_diverged_by_variant_and_rate": _by_rate(diverged),
        },
        (
            judged(
                "qk-norm",
                f"{below['QK-norm']} It diverged more often at {rates}.",
                calm and not more.any(),
                corrected=calm,
            ),
        ),
        observations=(below["SALN"],),
    )


def _by_rate(table: pd.DataFrame) -> dict[str, dict[str, float | None]]:
    """Return a table by variant and rate; None where a value is not finite."""
    return {
        str(variant): {
            f"{rate:g}": value if math.isfinite(value) else None for rate, value in column.items()
        }
        for variant, column in table.items()
    }


def _random_layer(
    seed: int, kind: type[nn.Module] = nn.LayerNorm
) -> tuple[Any, nn.MultiheadAttention, Tensor]:
    """Return a norm with gain and shift, attention with biases, and inputs (2, 12, 64)."""
    generator = torch.Generator().manual_seed(seed)
    norm: Any = kind(WIDTH).double()
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    with torch.no_grad():
        norm.weight.copy_(1 + 0.3 * normal(generator, WIDTH))
        if kind is nn.LayerNorm:
            norm.bias.copy_(0.3 * normal(generator, WIDTH))
        attention.in_proj_weight.copy_(normal(generator, 3 * WIDTH, WIDTH) / math.sqrt(WIDTH))
        attention.in_proj_bias.copy_(0.1 * normal(generator, 3 * WIDTH))
        attention.out_proj.weight.copy_(normal(generator, WIDTH, WIDTH) / math.sqrt(WIDTH))
    return norm, attention, normal(generator, 2, LENGTH, WIDTH)


@torch.no_grad()
def posterior_gap(norm: nn.Module, attention: nn.MultiheadAttention, x: Tensor) -> float:
    """Return the largest difference of a mixture's posterior from the layer's attention."""
    y = norm(x)
    _, weights = attention(y, y, y, average_attn_weights=False)
    return largest_gap(vmf_view(norm, attention, x).responsibilities(), weights)


@erratum("E19")
@torch.no_grad()
def projections_and_scale(generator: torch.Generator) -> Check:
    """Compare a mixture's posterior, and the softmax of k·q as printed, with attention."""
    norm, attention, x = layer = _random_layer(generator.initial_seed())
    y, off = norm(x), posterior_gap(*layer)
    _, weights = attention(y, y, y, average_attn_weights=False)
    heads = (HEADS, WIDTH // HEADS)
    bias = attention.in_proj_bias[WIDTH : 2 * WIDTH]
    keys = (y @ attention.in_proj_weight.chunk(3)[1].T + bias).unflatten(-1, heads)
    plain = torch.softmax(torch.einsum("bthe,bshe->bhst", keys, y.unflatten(-1, heads)), -1)
    off_plain = largest_gap(plain, weights)
    numbers = {"posterior_off": off, "attention_off_as_printed": off_plain}
    return numbers, off < EXACT and off_plain > 0.01
