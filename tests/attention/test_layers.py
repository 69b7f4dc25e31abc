"""PreNormAttention and SALNAttention against torch's own layers and against their formulas."""

import pytest
import torch
from helpers import draw, randomized
from torch import nn
from torch.testing import assert_close

from isthmus.attention import PreNormAttention, SALNAttention, vmf_view

DOUBLE = torch.float64
WIDTH, HEADS, LENGTH, BATCH = 12, 3, 6, 2
KINDS = [PreNormAttention, SALNAttention]


def reference(norm, attention, x, **masks):
    y = norm(x)
    return attention(y, y, y, average_attn_weights=False, **masks)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("need_weights", [True, False])
@pytest.mark.parametrize("masked", [False, True])
def test_converted_weights_give_equal_outputs(make_norm, kind, bias, need_weights, masked):
    norm = make_norm(WIDTH)
    attention = randomized(nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True), 3)
    layer = kind.from_prenorm(norm, attention)
    x = draw(BATCH, LENGTH, WIDTH)
    masks = {}
    if masked:
        padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
        padding[1, -1] = True
        hidden = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
        masks = {"attn_mask": hidden, "key_padding_mask": padding}
    expected, expected_weights = reference(norm, attention, x, **masks)
    output, weights = layer(x, x, x, need_weights=need_weights, average_attn_weights=False, **masks)
    assert_close(output, expected, rtol=0, atol=1e-10)
    if need_weights:
        assert_close(weights, expected_weights, rtol=0, atol=1e-10)
    else:
        assert weights is None
    assert_close(
        vmf_view(layer, x, mask=masks.get("attn_mask")).responsibilities(),
        vmf_view(norm, attention, x, mask=masks.get("attn_mask")).responsibilities(),
        rtol=0,
        atol=1e-10,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_forward_is_that_of_multihead_attention(kind):
    """Layouts, averaging, cross-attention and masks for each head."""
    norm = randomized(nn.LayerNorm(WIDTH))
    attention = randomized(nn.MultiheadAttention(WIDTH, HEADS, batch_first=False), 3)
    layer = kind.from_prenorm(norm, attention)
    query, key = draw(LENGTH, BATCH, WIDTH), draw(4, BATCH, WIDTH, seed=2)
    value = draw(4, BATCH, WIDTH, seed=3)
    mask = draw(BATCH * HEADS, LENGTH, 4, seed=4)
    for inputs, options in (
        ((query, key, value), {"attn_mask": mask}),
        ((query, key, value), {"attn_mask": mask, "average_attn_weights": False}),
        ((query[:, 0], key[:, 0], value[:, 0]), {}),
        ((query[:, 0], key[:, 0], value[:, 0]), {"key_padding_mask": torch.eye(4)[1].bool()}),
    ):
        expected, expected_weights = attention(*map(norm, inputs), **options)
        output, weights = layer(*inputs, **options)
        assert_close(output, expected, rtol=0, atol=1e-10)
        assert_close(weights, expected_weights, rtol=0, atol=1e-10)
        fast, none = layer(*inputs, need_weights=False, **options)
        assert_close(fast, expected, rtol=0, atol=1e-10)
        assert none is None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_row_that_sees_nothing_is_not_nan_nor_are_its_gradients(kind, need_weights):
    layer = kind(WIDTH, HEADS, batch_first=True).double()
    x = draw(BATCH, LENGTH, WIDTH).requires_grad_()
    hidden = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    hidden[1] = True
    output, weights = layer(x, x, x, attn_mask=hidden, need_weights=need_weights)
    assert_close(output[:, 1], layer.out_proj.bias.expand(BATCH, -1))
    if weights is not None:
        assert not weights[:, 1].any()
    output.sum().backward()
    assert x.grad.isfinite().all()


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_saln_is_the_formula_of_the_draft(norm):
    """softmax(k_i . q + delta_i), delta_i one more coordinate of the key, written out."""
    layer = SALNAttention(WIDTH, HEADS, batch_first=True, norm=norm, eps=1e-3).double()
    assert not list(layer.norm.parameters())  # gamma is gone, and so is delta
    x = draw(1, LENGTH, WIDTH)
    centred = x[0] - x[0].mean(-1, keepdim=True) if norm == "layer" else x[0]
    standardized = centred / (centred.square().mean(-1, keepdim=True) + 1e-3).sqrt()
    _, weights = layer(x, x, x, average_attn_weights=False)
    width = WIDTH // HEADS
    for head in range(HEADS):
        rows = slice(head * width, (head + 1) * width)
        keys = slice(head * (width + 1), (head + 1) * (width + 1))
        query = standardized @ layer.query_proj.weight[rows].T
        whole = standardized @ layer.key_proj.weight[keys].T + layer.key_proj.bias[keys]
        key, delta = whole[:, :width], whole[:, width]
        expected = torch.softmax(query @ key.T / width**0.5 + delta, -1)
        assert_close(weights[0, head], expected)
        assert_close(vmf_view(layer, x).log_weight[0, head], delta)


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("masked", [False, True])
def test_with_qk_norm_components_are_on_each_heads_own_sphere(norm, masked):
    layer = randomized(PreNormAttention(WIDTH, HEADS, batch_first=True, norm=norm, qk_norm=True))
    x = draw(BATCH, LENGTH, WIDTH)
    _, weights = layer(x, x, x, average_attn_weights=False, is_causal=masked)
    view = vmf_view(layer, x, is_causal=masked)
    assert_close(view.responsibilities(), weights, rtol=0, atol=1e-12)
    width = WIDTH // HEADS
    assert view.sphere_dim == width - (norm == "layer")
    assert view.query_direction.shape == (BATCH, HEADS, LENGTH, width)
    assert view.mean_direction.shape == (BATCH, HEADS, LENGTH, width)
    assert view.log_prob().shape == (BATCH, HEADS, LENGTH)
