"""The report of the two roles of keys, against numpy, and where it has no answer."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from isthmus.attention import PreNormAttention, entanglement, vmf_view
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
