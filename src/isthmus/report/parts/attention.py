"""Attention as clustering: heads as mixtures on the sphere, and training at high rates."""

from __future__ import annotations

import math
from statistics import fmean
from typing import Any

import numpy as np
import torch
from scipy.stats import binomtest
from torch import Tensor

from isthmus.attention import VMFMixture, entanglement, vmf_view
from isthmus.attention.experiment import (
    Experiment,
    PatchTransformer,
    compare_variants,
    digit_patches,
    train_on_digits,
)
from isthmus.figures import attention_experiment, attention_sphere
from isthmus.files import shipped
from isthmus.report.registry import compose
from isthmus.report.section import Section

STEPS, PICTURES = 100, 40
EXACT = 1e-9
# Concentration and mixing proportion are tied if they correlate this much in every head.
TIED = 0.8
RATES, RUN_STEPS, RUN_SEEDS = (0.01, 0.1, 0.3), 100, 3
FULL_STEPS, FULL_SEEDS = 200, 5
HIGH_RATE = 0.1
# Runs are repeated at one of these rates; at higher ones rounding decides the outcome.
SAFE_RATES, SIMILAR = (0.001, 0.01), 0.05
# Significance level of the sign tests.
LEVEL = 0.05


def heads_as_mixtures(seed: int, full: bool = False) -> Section:
    """Train a small transformer on digits and analyse its second block."""
    model = PatchTransformer("pre-norm", seed=seed)
    losses = train_on_digits(model, 0.01, steps=STEPS, seed=seed)
    model = model.double().eval()
    layer, x = model.layers(digit_patches()[2][:PICTURES].double())[-1]
    _, weights = layer(x, x, x, average_attn_weights=False)
    view = vmf_view(layer, x)
    tied = entanglement(view)
    off = largest_difference(view.responsibilities(), weights)
    printed = largest_difference(as_printed(view, layer.head_dim), weights)
    weight, mixing = (
        min(map(abs, values.tolist())) for values in (tied.correlation, tied.mixing_correlation)
    )
    return compose(
        "attention-heads",
        attention_sphere(view),
        {
            "loss": losses[-1],
            "largest_difference_to_attention_weights": off,
            "largest_difference_as_printed": printed,
            "mean_concentration_by_head": tied.mean_concentration.tolist(),
            "correlation_with_log_weight_by_head": tied.correlation.tolist(),
            "correlation_with_log_mixing_by_head": tied.mixing_correlation.tolist(),
            "spread_of_concentration_by_head": tied.concentration_spread.tolist(),
            "spread_of_log_weight_by_head": tied.weight_spread.tolist(),
        },
        {"mixture": (printed <= EXACT, off <= EXACT), "tied": (weight >= TIED, mixing >= TIED)},
        weights=_listed(tied.correlation),
        mixings=_listed(tied.mixing_correlation),
        weight=weight,
        mixing=mixing,
    )


def runs_of_the_experiment(seed: int, full: bool) -> tuple[Experiment, str, dict[str, int]]:
    """Return all runs, their source, and how many repeated runs agree with the recorded ones.

    With `full`, all runs are trained now. Otherwise they are read from the recorded experiment,
    or, if there is none, a smaller experiment is trained now.
    """
    path = shipped("benchmarks/results/attention.json")
    if full or path is None:
        seeds, steps = (FULL_SEEDS, FULL_STEPS) if full else (RUN_SEEDS, RUN_STEPS)
        rates: dict[str, Any] = {} if full else {"learning_rates": RATES}
        found = compare_variants(**rates, seeds=seeds, steps=steps, progress=False)
        return found, f"{seeds} seeds of {steps} steps, trained now", {}
    found = Experiment.load(path)
    rate = float(np.random.default_rng(seed).choice(SAFE_RATES))
    again = compare_variants(learning_rates=[rate], seeds=1, steps=FULL_STEPS, progress=False)
    agree = sum(
        abs((run.loss or 0) - (found.of(run.variant, rate)[0].loss or 0))
        <= SIMILAR * (run.loss or 0)
        for run in again.runs
    )
    source = "all runs of `python benchmarks/attention.py`, as recorded"
    return found, source, {"runs": len(again.runs), "agree": agree}


def training_at_high_rates(seed: int, full: bool = False) -> Section:
    """Compare three kinds of attention in one transformer, up to very high learning rates."""
    found, source, again = runs_of_the_experiment(seed, full)
    pairs = {
        variant: found.pairs_lower("loss", variant, "pre-norm") for variant in ("QK-norm", "SALN")
    }

    def table(measure: Any) -> dict[str, dict[str, float | None]]:
        return {
            variant: {
                f"{rate:g}": value if math.isfinite(value := measure(variant, rate)) else None
                for rate in found.learning_rates
            }
            for variant in found.variants
        }

    numbers: dict[str, Any] = {
        "runs": len(found.runs),
        "source": source,
        "done_again": again,
        "training_loss_below_pre_norm": {
            variant: {"pairs": total, "lower": lower} for variant, (lower, total) in pairs.items()
        },
        **{
            f"{name}_by_variant_and_rate": table(
                lambda variant, rate, name=name: found.median(name, variant, rate)
            )
            for name in ("loss", "test_loss", "largest_logit", "entanglement")
        },
        "share_diverged_by_variant_and_rate": table(found.fraction_diverged),
    }
    repeated = (
        f" {again['runs']} runs at a rate chosen by the seed were repeated: the training losses "
        f"of {again['agree']} agree to {SIMILAR:.0%}."
        if again
        else ""
    )
    checks, values = _stability(found, pairs)
    figure = attention_experiment(found)
    return compose("attention-training", figure, numbers, checks, repeated=repeated, **values)


def _stability(
    found: Experiment, pairs: dict[str, tuple[int, int]]
) -> tuple[dict[str, bool], dict[str, Any]]:
    """Check QK-norm, which others proposed, and SALN."""
    high = [rate for rate in found.learning_rates if rate >= HIGH_RATE]
    logits = {
        variant: max(found.median("largest_logit", variant, rate) for rate in high)
        for variant in found.variants
    }
    # At the high rates nothing is learned, and the correlation is one of noise.
    low = [rate for rate in found.learning_rates if rate < HIGH_RATE]
    tied = {
        variant: fmean(found.median("entanglement", variant, rate) for rate in low)
        for variant in found.variants
    }
    p = {name: binomtest(*pair, alternative="greater").pvalue for name, pair in pairs.items()}
    checks = {
        "stable": logits["QK-norm"] < 0.1 * logits["pre-norm"] and p["QK-norm"] < LEVEL,
        "saln": p["SALN"] < LEVEL,
        "freed": tied["SALN"] < 0.5 * tied["pre-norm"],
    }
    values = {"high_rate": HIGH_RATE, "logits": logits, "tied": tied, "pairs": pairs, "p": p}
    return checks, values


def as_printed(view: VMFMixture, head_dim: int) -> Tensor:
    """Return attention by the paper's formula: query of length 1, no 1 / sqrt(d). (B, H, S, T)."""
    factor = math.sqrt(head_dim / view.dim)
    cosine = torch.einsum("bsd,bhtd->bhst", view.query_direction, view.mean_direction)
    log_weight = math.sqrt(head_dim) * view.log_weight
    logits = factor * view.concentration[:, :, None] * cosine + log_weight[:, :, None]
    return torch.softmax(logits, -1)


def largest_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest absolute difference of two tensors."""
    return float((first - second).detach().abs().max())


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in values.tolist())
