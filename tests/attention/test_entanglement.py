"""The report of the two roles of keys, against numpy, and where it has no answer."""

import numpy as np
import pytest
import torch
from torch import nn
from torch.testing import assert_close

from isthmus.attention import PreNormAttention, VMFMixture, entanglement, vmf_view
from isthmus.special import log_vmf_normalizer

WIDTH, HEADS = 12, 3


def layer_and_data(randomize, draw, kind=PreNormAttention, batch=4, length=20, **settings):
    layer = randomize(kind(WIDTH, HEADS, batch_first=True, **settings))
    return layer, draw(batch, length, WIDTH)


def centred(values: torch.Tensor) -> np.ndarray:
    """Each sequence about its own mean, all in one row. (B, T) -> (B * T,)."""
    return (values - values.mean(-1, keepdim=True)).flatten().numpy()


def test_statistics_are_those_of_numpy_within_sequences(randomize, draw):
    layer, x = layer_and_data(randomize, draw)
    view = vmf_view(layer, x)
    report = entanglement(view)
    mass = view.log_weight - log_vmf_normalizer(view.sphere_dim, view.concentration)
    for head in range(HEADS):
        kappa, weight = centred(view.concentration[:, head]), centred(view.log_weight[:, head])
        expected = np.corrcoef(kappa, weight)[0, 1]
        assert report.correlation[head].item() == pytest.approx(expected)
        expected = np.corrcoef(kappa, centred(mass[:, head]))[0, 1]
        assert report.mixing_correlation[head].item() == pytest.approx(expected)
        assert report.slope[head].item() == pytest.approx(np.polyfit(kappa, weight, 1)[0])
        assert report.concentration_spread[head].item() == pytest.approx(kappa.std())
        assert report.weight_spread[head].item() == pytest.approx(weight.std())
    assert_close(report.mean_concentration, view.concentration.mean((0, 2)))
    assert report.n_keys == 80


def test_keys_that_nobody_sees_do_not_count(randomize, draw):
    layer, x = layer_and_data(randomize, draw, batch=1)
    padding = torch.zeros(1, 20, dtype=torch.bool)
    padding[:, 15:] = True
    masked = entanglement(vmf_view(layer, x, key_padding_mask=padding))
    alone = entanglement(vmf_view(layer, x[:, :15]))
    assert masked.n_keys == alone.n_keys == 15
    assert_close(masked.correlation, alone.correlation)
    causal = entanglement(vmf_view(layer, x, is_causal=True))
    assert_close(causal.correlation, entanglement(vmf_view(layer, x)).correlation)


def test_mixtures_that_differ_by_query_count_each_pair_once(draw):
    """As rotary positions make them; a causal mask leaves half of the pairs."""
    view = VMFMixture(
        concentration=draw(1, 2, 5, 5).abs(),
        coordinates=nn.functional.normalize(draw(1, 2, 5, 5, 3), dim=-1),
        log_weight=draw(1, 2, 5, 5, seed=3),
        query_direction=nn.functional.normalize(draw(1, 5, 3), dim=-1),
        query_radius=torch.ones(1, 5, dtype=torch.float64),
        centred=False,
        mask=torch.full((1, 1, 5, 5), -torch.inf, dtype=torch.float64).triu(1),
    )
    report = entanglement(view)
    assert report.n_keys == 15
    rows = [
        (view.concentration[0, 1, s, : s + 1], view.log_weight[0, 1, s, : s + 1]) for s in range(5)
    ]
    kappa = np.concatenate([centred(k[None]) for k, _ in rows])
    weight = np.concatenate([centred(w[None]) for _, w in rows])
    expected = (kappa @ weight) / np.sqrt((kappa @ kappa) * (weight @ weight))
    assert report.correlation[1].item() == pytest.approx(expected)
