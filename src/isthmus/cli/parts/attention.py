"""Attention: the heads of a trained transformer, as mixtures on the sphere."""

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
    compare_variants,
    train_on_digits,
)
from isthmus.attention.transformer import PatchTransformer, digit_patches
from isthmus.cli.parts.verdicts import finding
from isthmus.figures import Finding, Section, attention_experiment, attention_sphere
from isthmus.files import shipped

__all__ = ["heads_as_mixtures", "training_at_high_rates"]

STEPS, PICTURES = 100, 40
EXACT = 1e-9
# Concentration and mixing proportion are tied if they correlate by so much in every head.
TIED = 0.8
RATES, RUN_STEPS, RUN_SEEDS = (0.01, 0.1, 0.3), 100, 3
FULL_STEPS, FULL_SEEDS = 200, 5
HIGH_RATE = 0.1
# Runs are done again at one of these; above them, rounding decides where a run goes.
SAFE_RATES, SIMILAR = (0.001, 0.01), 0.05
# Of two equally good ways one wins so many of the pairs or more by chance this often at most.
LEVEL = 0.05


def heads_as_mixtures(seed: int, full: bool = False) -> Section:
    """Train a small transformer on digits, and read its second block."""
    model = PatchTransformer("pre-norm", seed=seed)
    losses = train_on_digits(model, 0.01, steps=STEPS, seed=seed)
    model = model.double().eval()
    patches = digit_patches()[2][:PICTURES].double()
    layer, x = model.layers(patches)[-1]
    _, weights = layer(x, x, x, average_attn_weights=False)
    view = vmf_view(layer, x)
    report = entanglement(view)
    numbers: dict[str, Any] = {
        "loss": losses[-1],
        "largest_difference_to_attention_weights": largest_difference(
            view.responsibilities(), weights
        ),
        "largest_difference_as_printed": largest_difference(
            as_printed(view, layer.head_dim), weights
        ),
        "mean_concentration_by_head": report.mean_concentration.tolist(),
        "correlation_with_log_weight_by_head": report.correlation.tolist(),
        "correlation_with_log_mixing_by_head": report.mixing_correlation.tolist(),
        "spread_of_concentration_by_head": report.concentration_spread.tolist(),
        "spread_of_log_weight_by_head": report.weight_spread.tolist(),
    }
    caption = (
        "The four heads of a block of a small transformer, trained on digits cut into 16 patches, "
        "as mixtures of von Mises-Fisher distributions; here for one picture. Their posteriors "
        "are the layer's attention weights, to "
        f"{numbers['largest_difference_to_attention_weights']:.0e}; with the paper's query of "
        "length 1 and without 1/sqrt(d) they would be off by up to "
        f"{numbers['largest_difference_as_printed']:.2f}. Across keys, a component's concentration "
        f"correlates by {_listed(report.correlation)} in the four heads with the bare log-weight, "
        "which the paper takes for the mixing proportion, and by "
        f"{_listed(report.mixing_correlation)} with the true one, which has the normaliser."
    )
    return Section(caption, attention_sphere(view), numbers, _theorem(numbers))


def _theorem(numbers: dict[str, Any]) -> tuple[Finding, ...]:
    """What the layer says of the paper's reading of attention."""
    off = numbers["largest_difference_to_attention_weights"]
    printed = numbers["largest_difference_as_printed"]
    mixing, weight = (
        min(map(abs, numbers[f"correlation_with_log_{name}_by_head"]))
        for name in ("mixing", "weight")
    )
    return (
        finding(
            "Normalisation followed by self-attention clusters on the sphere, by a mixture of "
            "von Mises-Fisher distributions.",
            f"With queries of length sqrt(D), projections and 1/sqrt(d), the posterior is the "
            f"layer's attention to {off:.0e}; by the printed formula it is off by up to "
            f"{printed:.2f} (E18, E19).",
            as_printed=printed <= EXACT,
            corrected=off <= EXACT,
        ),
        finding(
            "Each key controls both the concentration and the mixing proportion of its cluster.",
            "With the normaliser that belongs to it, log-mixing correlates with concentration by "
            f"{mixing:.2f} or more in every head; the printed exp(k.delta) by {weight:.2f} in the "
            "least (E20).",
            as_printed=weight >= TIED,
            corrected=mixing >= TIED,
        ),
    )


def runs_of_the_experiment(seed: int, full: bool) -> tuple[Experiment, str, dict[str, int]]:
    """All runs, whose they are, and how many of those done again agree with what is recorded.

    Done now if asked for; else as recorded; else a smaller experiment, done now.
    """
    if full:
        found = compare_variants(seeds=FULL_SEEDS, steps=FULL_STEPS, progress=False)
        return found, f"{FULL_SEEDS} seeds of {FULL_STEPS} steps, trained now", {}
    path = shipped("benchmarks/results/attention.json")
    if path is None:
        found = compare_variants(
            learning_rates=RATES, seeds=RUN_SEEDS, steps=RUN_STEPS, progress=False
        )
        return found, f"{RUN_SEEDS} seeds of {RUN_STEPS} steps, trained now", {}
    found = Experiment.load(path)
    rate = float(np.random.default_rng(seed).choice(SAFE_RATES))
    again = compare_variants(learning_rates=[rate], seeds=1, steps=FULL_STEPS, progress=False)
    agree = sum(
        abs((run.loss or 0) - (found.of(run.variant, rate)[0].loss or 0))
        <= SIMILAR * (run.loss or 0)
        for run in again.runs
    )
    words = "all runs of `python benchmarks/attention.py`, as recorded"
    return found, words, {"runs": len(again.runs), "agree": agree}


def training_at_high_rates(seed: int, full: bool = False) -> Section:
    """Compare three kinds of attention in one transformer, up to rates that are too high."""
    found, source, again = runs_of_the_experiment(seed, full)
    rates = found.learning_rates
    pairs = {
        variant: found.pairs_lower("loss", variant, "pre-norm") for variant in ("QK-norm", "SALN")
    }
    numbers: dict[str, Any] = {
        "runs": len(found.runs),
        "source": source,
        "done_again": again,
        "training_loss_below_pre_norm": {
            variant: {"pairs": total, "lower": lower} for variant, (lower, total) in pairs.items()
        },
        **{
            f"{measure}_by_variant_and_rate": {
                variant: {
                    f"{rate:g}": _finite(found.median(measure, variant, rate)) for rate in rates
                }
                for variant in found.variants
            }
            for measure in ("loss", "test_loss", "largest_logit", "entanglement")
        },
        "share_diverged_by_variant_and_rate": {
            variant: {f"{rate:g}": found.fraction_diverged(variant, rate) for rate in rates}
            for variant in found.variants
        },
    }
    caption = (
        "The same small transformer on digits with plain pre-norm attention, with queries and keys "
        "normalised again (QK-norm), and with the layer that a draft of the paper proposes (SALN: "
        "no gain, and a log-weight of its own for each key). Medians over "
        f"seeds; {source}."
        + (
            f" {again['runs']} runs at a rate chosen by the seed were done again just now: the "
            f"training losses of {again['agree']} agree to {SIMILAR:.0%}."
            if again
            else ""
        )
    )
    figure = attention_experiment(found)
    findings = _stability(found, pairs)
    return Section(caption, figure, numbers, findings)


def _stability(found: Experiment, pairs: dict[str, tuple[int, int]]) -> tuple[Finding, ...]:
    """What the experiment says of QK-norm, which others found, and of SALN."""
    high = [rate for rate in found.learning_rates if rate >= HIGH_RATE]
    logits = {
        variant: max(found.median("largest_logit", variant, rate) for rate in high)
        for variant in found.variants
    }
    # Above the high rates nothing is learned, and the correlation is of noise.
    low = [rate for rate in found.learning_rates if rate < HIGH_RATE]
    tied = {
        variant: fmean(found.median("entanglement", variant, rate) for rate in low)
        for variant in found.variants
    }
    lower, total = pairs["QK-norm"]
    less, of = pairs["SALN"]
    chance = binomtest(lower, total, alternative="greater").pvalue
    saln_chance = binomtest(less, of, alternative="greater").pvalue
    return (
        finding(
            "Norms on queries and keys stabilise training at large learning rates.",
            f"At rates from {HIGH_RATE:g} up, logits reach {logits['QK-norm']:.3g} with QK-norm "
            f"and {logits['pre-norm']:.3g} without. Its training loss is lower in {lower} of "
            f"{total} pairs of equal rate and seed (by chance with p = {chance:.2g}).",
            as_printed=logits["QK-norm"] < 0.1 * logits["pre-norm"] and chance < LEVEL,
        ),
        finding(
            "A layer that gives each key a weight of its own (SALN, in a draft) trains better.",
            f"Its training loss is below pre-norm's in {less} of {of} pairs (by chance with "
            f"p = {saln_chance:.2g}); its logits reach {logits['SALN']:.3g}.",
            as_printed=saln_chance < LEVEL,
        ),
        finding(
            "A layer that gives each key a weight of its own (SALN) frees concentration and weight "
            "from each other.",
            f"At rates below {HIGH_RATE:g} the absolute correlation of the two across keys is "
            f"{tied['SALN']:.2f} with SALN and {tied['pre-norm']:.2f} with pre-norm; half would "
            "count as freed.",
            as_printed=tied["SALN"] < 0.5 * tied["pre-norm"],
        ),
    )


def _finite(value: float) -> float | None:
    return value if math.isfinite(value) else None


def as_printed(view: VMFMixture, head_dim: int) -> Tensor:
    """Attention by the paper's formula: a query of length 1, and no 1 / sqrt(d). (B, H, S, T)."""
    factor = math.sqrt(head_dim / view.dim)
    cosine = torch.einsum("bsd,bhtd->bhst", view.query_direction, view.mean_direction)
    log_weight = math.sqrt(head_dim) * view.log_weight
    logits = factor * view.concentration[:, :, None] * cosine + log_weight[:, :, None]
    return torch.softmax(logits, -1)


def largest_difference(first: Tensor, second: Tensor) -> float:
    """Return the largest absolute one."""
    return float((first - second).detach().abs().max())


def _listed(values: Tensor) -> str:
    return ", ".join(f"{value:.2f}" for value in values.tolist())
