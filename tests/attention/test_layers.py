"""PreNormAttention and SALNAttention against torch's own layers and against their formulas."""

import pytest
import torch
from torch import nn
from torch.nn import functional
from torch.nn.attention import SDPBackend, sdpa_kernel
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
def test_converted_weights_give_equal_outputs(
    make_norm, randomize, draw, kind, bias, need_weights, masked
):
    norm = make_norm(WIDTH)
    attention = randomize(nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True), 3)
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
def test_forward_is_that_of_multihead_attention(randomize, draw, kind):
    """Layouts, averaging, cross-attention and masks for each head."""
    norm = randomize(nn.LayerNorm(WIDTH))
    attention = randomize(nn.MultiheadAttention(WIDTH, HEADS, batch_first=False), 3)
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
def test_causal_needs_no_mask_beside_it(draw, kind, need_weights):
    layer = kind(WIDTH, HEADS, batch_first=True).double()
    x = draw(BATCH, LENGTH, WIDTH)
    later = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    by_mask, _ = layer(x, x, x, attn_mask=later)
    by_flag, _ = layer(x, x, x, need_weights=need_weights, is_causal=True)
    assert_close(by_flag, by_mask, rtol=0, atol=1e-12)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("need_weights", [True, False])
def test_a_row_that_sees_nothing_is_not_nan_nor_are_its_gradients(draw, kind, need_weights):
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


@pytest.mark.parametrize("kind", KINDS)
def test_the_fast_path_runs_on_scaled_dot_product_attention(monkeypatch, draw, kind):
    calls = []

    def watched(*arguments, **options):
        calls.append(options)
        return functional.scaled_dot_product_attention(*arguments, **options)

    monkeypatch.setattr("isthmus.attention.layers.scaled_dot_product_attention", watched)
    layer = kind(WIDTH, HEADS, batch_first=True).double()
    x = draw(BATCH, LENGTH, WIDTH)
    layer(x, x, x)
    assert not calls
    layer(x, x, x, need_weights=False, is_causal=True)
    assert [call["is_causal"] for call in calls] == [True]


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("is_causal", [False, True])
def test_the_fast_path_can_use_the_fused_kernel(draw, kind, is_causal):
    layer = kind(WIDTH, HEADS, batch_first=True).double()
    x = draw(BATCH, LENGTH, WIDTH)
    expected, _ = layer(x, x, x, is_causal=is_causal)
    with sdpa_kernel(SDPBackend.FLASH_ATTENTION):  # no other one may be used
        fused, _ = layer(x, x, x, need_weights=False, is_causal=is_causal)
    assert_close(fused, expected, rtol=0, atol=1e-12)


@pytest.mark.parametrize("norm", ["layer", "rms"])
def test_saln_is_the_formula_of_the_draft(draw, norm):
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


def test_saln_separates_what_one_key_decides_in_pre_norm_attention(draw):
    """Its delta_i can be changed with every concentration and direction as it was."""
    layer = SALNAttention(WIDTH, HEADS, batch_first=True).double()
    x = draw(BATCH, LENGTH, WIDTH)
    before = vmf_view(layer, x)
    with torch.no_grad():
        layer.key_proj.weight.unflatten(0, (HEADS, -1))[:, -1] += 1
        layer.key_proj.weight.unflatten(0, (HEADS, -1))[:, -1, 0] += 2
    after = vmf_view(layer, x)
    assert_close(after.concentration, before.concentration)
    assert_close(after.mean_direction, before.mean_direction)
    assert (after.log_weight - before.log_weight).std() > 0.1


@pytest.mark.parametrize("norm", ["layer", "rms"])
@pytest.mark.parametrize("masked", [False, True])
def test_with_qk_norm_components_are_on_each_heads_own_sphere(randomize, draw, norm, masked):
    layer = randomize(PreNormAttention(WIDTH, HEADS, batch_first=True, norm=norm, qk_norm=True))
    x = draw(BATCH, LENGTH, WIDTH)
    _, weights = layer(x, x, x, average_attn_weights=False, is_causal=masked)
    view = vmf_view(layer, x, is_causal=masked)
    assert_close(view.responsibilities(), weights, rtol=0, atol=1e-12)
    width = WIDTH // HEADS
    assert view.sphere_dim == width - (norm == "layer")
    assert view.query_direction.shape == (BATCH, HEADS, LENGTH, width)
    assert view.mean_direction.shape == (BATCH, HEADS, LENGTH, width)
    assert view.log_prob().shape == (BATCH, HEADS, LENGTH)


def test_qk_norm_bounds_the_logits_whatever_the_weights(randomize, draw):
    """With gains of one, |q . k| / sqrt(d) is at most sqrt(d)."""
    attention = randomize(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), 3, scale=50.0)
    norm = randomize(nn.LayerNorm(WIDTH))
    x = draw(BATCH, LENGTH, WIDTH)
    plain = PreNormAttention.from_prenorm(norm, attention)
    normed = PreNormAttention.from_prenorm(norm, attention, qk_norm=True)
    assert torch.equal(normed.query_proj.weight, plain.query_proj.weight)
    assert vmf_view(plain, x).logits().abs().max() > 1000
    assert vmf_view(normed, x).logits().abs().max() <= (WIDTH / HEADS) ** 0.5 + 1e-9


@pytest.mark.parametrize("kind", KINDS)
def test_conversion_copies_and_keeps_settings(randomize, kind):
    attention = nn.MultiheadAttention(WIDTH, HEADS, dropout=0.25, batch_first=True)
    norm = nn.RMSNorm(WIDTH)
    layer = kind.from_prenorm(norm, attention.train())
    assert (layer.dropout, layer.batch_first, layer.training) == (0.25, True, True)
    assert isinstance(layer.norm, nn.RMSNorm)
    before = layer.value_proj.weight.clone()
    with torch.no_grad():
        attention.in_proj_weight.zero_()
    assert torch.equal(layer.value_proj.weight, before)
    assert all(parameter.requires_grad for parameter in layer.parameters())


@pytest.mark.parametrize("kind", KINDS)
def test_dropout_is_for_training_only(draw, kind):
    layer = kind(WIDTH, HEADS, dropout=0.5, batch_first=True).double()
    x = draw(BATCH, LENGTH, WIDTH)
    for need_weights in (True, False):
        first, second = (layer.train()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert not torch.equal(first, second)
        first, second = (layer.eval()(x, x, x, need_weights=need_weights)[0] for _ in range(2))
        assert torch.equal(first, second)
