"""Attention: the heads of a trained transformer, as mixtures on the sphere."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from isthmus.attention import VMFMixture, entanglement, vmf_view
from isthmus.attention.experiment import train_on_digits
from isthmus.attention.transformer import PatchTransformer, digit_patches
from isthmus.figures import Section, attention_sphere

__all__ = ["heads_as_mixtures"]

STEPS, PICTURES = 100, 40


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
        "mean_concentration": report.mean_concentration.tolist(),
        "correlation_with_log_weight": report.correlation.tolist(),
        "correlation_with_log_mixing": report.mixing_correlation.tolist(),
        "spread_of_concentration": report.concentration_spread.tolist(),
        "spread_of_log_weight": report.weight_spread.tolist(),
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
    return Section("Attention as clustering", caption, attention_sphere(view), numbers)


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
