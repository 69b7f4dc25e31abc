"""Densities and draws of the mixture against sums and quadrature, and its report against numpy."""

import math

import numpy as np
import pytest
import torch
from helpers import draw, randomized
from torch import nn
from torch.testing import assert_close

from isthmus.attention import PreNormAttention, VMFMixture, entanglement, vmf_view
from isthmus.special import log_vmf_normalizer

DOUBLE = torch.float64
DIMENSIONS = [2, 3, 10, 64, 1000, 10_000]
CONCENTRATIONS = [1e-8, 1e-3, 0.7, 30.0, 1e4, 1e6]


def on_sphere(*shape: int, centred: bool = False, seed: int = 1) -> torch.Tensor:
    points = draw(*shape, seed=seed)
    points = points - points.mean(-1, keepdim=True) if centred else points
    return nn.functional.normalize(points, dim=-1)


def mixture(directions, kappa, log_weight, queries=None, centred=False, mask=None) -> VMFMixture:
    """One head of one sequence with these components. (T, D), (T,), (T,)."""
    queries = directions if queries is None else queries
    return VMFMixture(
        concentration=torch.as_tensor(kappa, dtype=DOUBLE)[None, None],
        coordinates=directions[None, None],
        log_weight=torch.as_tensor(log_weight, dtype=DOUBLE)[None, None],
        query_direction=queries[None],
        query_radius=queries.new_ones(1, len(queries)),
        centred=centred,
        mask=mask,
    )


@pytest.mark.parametrize("centred", [False, True])
@pytest.mark.parametrize("dim", DIMENSIONS)
def test_density_and_normalizer_are_sums_over_components(dim, centred):
    """From nearly uniform to nearly a point; one component's constant is tested with mpmath."""
    directions = on_sphere(len(CONCENTRATIONS), dim + centred, centred=centred)
    near = directions + 1e-3 * on_sphere(*directions.shape, centred=centred, seed=2)
    near = nn.functional.normalize(near, dim=-1)
    log_weight = torch.tensor([0.3, -2.0, 5.0, 0.0, 1.0, -4.0], dtype=DOUBLE)
    kappa = torch.tensor(CONCENTRATIONS, dtype=DOUBLE)
    view = mixture(directions, kappa, log_weight, near, centred)
    assert view.sphere_dim == dim
    masses = log_weight - log_vmf_normalizer(dim, kappa)
    log_z = masses.logsumexp(0)
    assert_close(view.log_normalizer().flatten(), log_z[None], rtol=1e-12, atol=1e-12)
    assert_close(view.log_mixing[0, 0], masses - log_z, rtol=1e-12, atol=1e-10)
    expected = (log_weight + kappa * (near @ directions.mT)).logsumexp(-1) - log_z
    assert_close(view.log_prob()[0, 0], expected, rtol=1e-12, atol=1e-8)


def test_the_density_of_a_layers_head_integrates_to_one():
    """LayerNorm of three coordinates leaves a circle, RMSNorm of two another."""
    angle = 2 * math.pi * torch.arange(2000, dtype=DOUBLE) / 2000
    circle = torch.stack([angle.cos(), angle.sin()], 1)
    plane = torch.tensor([[1.0, -1.0, 0.0], [1.0, 1.0, -2.0]], dtype=DOUBLE)
    plane = nn.functional.normalize(plane, dim=1)
    for norm, points in ((nn.LayerNorm(3), circle @ plane), (nn.RMSNorm(2), circle)):
        attention = nn.MultiheadAttention(points.shape[1], 1, batch_first=True)
        attention, norm = randomized(attention, 3, scale=0.8), randomized(norm)
        view = vmf_view(norm, attention, draw(1, 5, points.shape[1]))
        total = view.log_prob(points).exp().mean(-1) * 2 * math.pi
        assert total.item() == pytest.approx(1, abs=1e-10)


def about_means(values: torch.Tensor) -> np.ndarray:
    """Each sequence about its own mean, all in one row. (B, T) -> (B * T,)."""
    return (values - values.mean(-1, keepdim=True)).flatten().numpy()


def test_statistics_are_those_of_numpy_within_sequences():
    layer, x = randomized(PreNormAttention(12, 3, batch_first=True)), draw(4, 20, 12)
    view = vmf_view(layer, x)
    report = entanglement(view)
    mass = view.log_weight - log_vmf_normalizer(view.sphere_dim, view.concentration)
    for head in range(3):
        kappa, weight = (
            about_means(view.concentration[:, head]),
            about_means(view.log_weight[:, head]),
        )
        expected = np.corrcoef(kappa, weight)[0, 1]
        assert report.correlation[head].item() == pytest.approx(expected)
        expected = np.corrcoef(kappa, about_means(mass[:, head]))[0, 1]
        assert report.mixing_correlation[head].item() == pytest.approx(expected)
        assert report.slope[head].item() == pytest.approx(np.polyfit(kappa, weight, 1)[0])
        assert report.concentration_spread[head].item() == pytest.approx(kappa.std())
        assert report.weight_spread[head].item() == pytest.approx(weight.std())
    assert_close(report.mean_concentration, view.concentration.mean((0, 2)))
    assert report.n_keys == 80


def test_keys_that_nobody_sees_do_not_count():
    layer, x = randomized(PreNormAttention(12, 3, batch_first=True)), draw(1, 20, 12)
    padding = torch.zeros(1, 20, dtype=torch.bool)
    padding[:, 15:] = True
    masked = entanglement(vmf_view(layer, x, key_padding_mask=padding))
    alone = entanglement(vmf_view(layer, x[:, :15]))
    assert masked.n_keys == alone.n_keys == 15
    assert_close(masked.correlation, alone.correlation)
    causal = entanglement(vmf_view(layer, x, is_causal=True))
    assert_close(causal.correlation, entanglement(vmf_view(layer, x)).correlation)
