"""The mixture's posterior is the layer's own attention, for every kind of torch layer."""

import math

import pytest
import torch
from helpers import draw, randomized
from torch import nn
from torch.testing import assert_close

from isthmus.attention import VMFMixture, vmf_view

DOUBLE = torch.float64
WIDTH, HEADS, LENGTH, BATCH = 12, 3, 7, 2


def own_weights(norm, attention, x, **masks):
    """What nn.MultiheadAttention itself says. (B, H, S, T)."""
    y = norm(x)
    return attention(y, y, y, need_weights=True, average_attn_weights=False, **masks)[1]


def assert_equal(found: torch.Tensor, expected: torch.Tensor) -> None:
    assert found.shape == expected.shape
    assert_close(found, expected, rtol=0, atol=1e-12)


def all_masks():
    """Arguments for the layer, and for the view, of each kind."""
    generator = torch.Generator().manual_seed(5)
    hidden = torch.rand(LENGTH, LENGTH, generator=generator) < 0.4
    hidden.fill_diagonal_(False)
    causal = torch.ones(LENGTH, LENGTH, dtype=torch.bool).triu(1)
    padding = torch.zeros(BATCH, LENGTH, dtype=torch.bool)
    padding[0, -2:] = True
    added = torch.randn(LENGTH, LENGTH, generator=generator, dtype=DOUBLE)
    each = torch.randn(BATCH * HEADS, LENGTH, LENGTH, generator=generator, dtype=DOUBLE)
    minus = torch.zeros(BATCH, LENGTH, dtype=DOUBLE).masked_fill(padding, -torch.inf)
    return {
        "none": ({}, {}),
        "boolean": ({"attn_mask": hidden}, {"mask": hidden}),
        "additive": ({"attn_mask": added}, {"mask": added}),
        "per-head": ({"attn_mask": each}, {"mask": each}),
        "four-axes": ({"attn_mask": each}, {"mask": each.unflatten(0, (BATCH, HEADS))}),
        "causal": ({"attn_mask": causal}, {"is_causal": True}),
        "padding": ({"key_padding_mask": padding}, {"key_padding_mask": padding}),
        "additive-padding": (
            {"key_padding_mask": minus, "attn_mask": added},
            {"key_padding_mask": minus, "mask": added},
        ),
        "all": (
            {"attn_mask": hidden | causal, "key_padding_mask": padding},
            {"mask": hidden, "is_causal": True, "key_padding_mask": padding},
        ),
    }


MASKS = all_masks()


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", MASKS)
def test_responsibilities_are_attention_weights(make_norm, bias, kind):
    norm = make_norm(WIDTH)
    attention = randomized(nn.MultiheadAttention(WIDTH, HEADS, bias=bias, batch_first=True), 3)
    x = draw(BATCH, LENGTH, WIDTH)
    theirs, ours = MASKS[kind]
    view = vmf_view(norm, attention, x, **ours)
    assert isinstance(view, VMFMixture)
    assert_equal(view.responsibilities(), own_weights(norm, attention, x, **theirs))


OPTIONS = {
    "value-width": {"vdim": 5},
    "extra-key": {"add_bias_kv": True},
    "zero-key": {"add_zero_attn": True},
    "both-extra-keys": {"add_bias_kv": True, "add_zero_attn": True},
    "one-head": {"num_heads": 1},
    "heads-of-one": {"num_heads": WIDTH},
}


@pytest.mark.parametrize("option", OPTIONS)
@pytest.mark.parametrize("kind", ["none", "boolean", "causal", "padding"])
def test_every_setting_of_multihead_attention(option, kind):
    settings = {"num_heads": HEADS, **OPTIONS[option]}
    attention = randomized(nn.MultiheadAttention(WIDTH, batch_first=True, **settings), 3)
    norm = randomized(nn.LayerNorm(WIDTH))
    x = draw(BATCH, LENGTH, WIDTH)
    theirs, ours = MASKS[kind]
    y = norm(x)
    value = draw(BATCH, LENGTH, attention.vdim)
    _, weights = attention(y, y, value, average_attn_weights=False, **theirs)
    assert_equal(vmf_view(norm, attention, x, **ours).responsibilities(), weights)


@pytest.mark.parametrize("kdim", [5, WIDTH])
def test_cross_attention_takes_its_keys_from_elsewhere(kdim):
    attention = nn.MultiheadAttention(WIDTH, HEADS, kdim=kdim, batch_first=True)
    attention, norm = randomized(attention, 3), randomized(nn.LayerNorm(WIDTH))
    x, memory = draw(BATCH, LENGTH, WIDTH), draw(BATCH, 4, kdim, seed=2)
    value = draw(BATCH, 4, WIDTH)
    _, weights = attention(norm(x), memory, value, average_attn_weights=False)
    assert_equal(vmf_view(norm, attention, x, key=memory).responsibilities(), weights)


def test_layouts_of_the_layer_are_followed():
    norm, x = randomized(nn.LayerNorm(WIDTH)), draw(BATCH, LENGTH, WIDTH)
    first = randomized(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), 3)
    last = randomized(nn.MultiheadAttention(WIDTH, HEADS, batch_first=False), 3)
    expected = own_weights(norm, first, x)
    assert_equal(vmf_view(norm, last, x.transpose(0, 1)).responsibilities(), expected)
    assert_equal(vmf_view(norm, first, x[0]).responsibilities(), expected[:1])
    assert_equal(vmf_view(norm, last, x[0].numpy()).responsibilities(), expected[:1])


@pytest.mark.parametrize("kind", [nn.TransformerEncoderLayer, nn.TransformerDecoderLayer])
def test_a_whole_block_can_be_passed(kind):
    block = randomized(kind(WIDTH, HEADS, 16, norm_first=True, batch_first=True))
    x = draw(BATCH, LENGTH, WIDTH)
    expected = own_weights(block.norm1, block.self_attn, x)
    for view in (
        vmf_view(block, x),
        vmf_view(block, x=x),
        vmf_view(block.norm1, block.self_attn, x),
    ):
        assert_equal(view.responsibilities(), expected)


@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
def test_components_follow_the_corrected_theorem(kind):
    """E18 and E19, written out by hand for one head and one key at a time."""
    norm = randomized(kind(WIDTH))
    attention = randomized(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), 3)
    x = draw(1, LENGTH, WIDTH)
    view = vmf_view(norm, attention, x)
    shift = norm.bias if kind is nn.LayerNorm else torch.zeros(WIDTH, dtype=DOUBLE)
    width = WIDTH // HEADS
    query_weight, key_weight, _ = attention.in_proj_weight.chunk(3)
    query_bias, key_bias, _ = attention.in_proj_bias.chunk(3)
    for head in range(HEADS):
        rows = slice(head * width, (head + 1) * width)
        for i in range(LENGTH):
            key = key_weight[rows] @ norm(x)[0, i] + key_bias[rows]
            effective = norm.weight * (query_weight[rows].T @ key) / math.sqrt(width)
            if kind is nn.LayerNorm:
                effective = effective - effective.mean()
            kappa = math.sqrt(WIDTH) * torch.linalg.vector_norm(effective)
            log_weight = key @ (query_weight[rows] @ shift + query_bias[rows]) / math.sqrt(width)
            assert_close(view.concentration[0, head, i], kappa)
            assert_close(
                view.mean_direction[0, head, i], effective / torch.linalg.vector_norm(effective)
            )
            assert_close(view.log_weight[0, head, i], log_weight)


def test_a_row_that_sees_nothing_has_zeros_and_no_nan():
    norm = randomized(nn.LayerNorm(WIDTH))
    attention = randomized(nn.MultiheadAttention(WIDTH, HEADS, batch_first=True), 3)
    x = draw(BATCH, LENGTH, WIDTH)
    hidden = torch.zeros(LENGTH, LENGTH, dtype=torch.bool)
    hidden[2] = True
    view = vmf_view(norm, attention, x, mask=hidden)
    weights = view.responsibilities()
    assert not weights[:, :, 2].any()
    assert_equal(weights[:, :, 3:], own_weights(norm, attention, x, attn_mask=hidden)[:, :, 3:])
    assert (view.log_mixing[:, :, 2] == -torch.inf).all()
    assert (view.log_prob()[:, :, 2] == -torch.inf).all()
    assert (view.log_normalizer()[:, :, 2] == -torch.inf).all()
    nobody = torch.ones(BATCH, LENGTH, dtype=torch.bool)
    unseen = vmf_view(norm, attention, x, key_padding_mask=nobody)
    assert not unseen.responsibilities().any()
    assert (unseen.log_prob() == -torch.inf).all()


def test_keys_and_queries_without_a_direction_are_harmless():
    norm = nn.LayerNorm(WIDTH).double()
    attention = nn.MultiheadAttention(WIDTH, HEADS, batch_first=True).double()
    nn.init.zeros_(attention.in_proj_bias)
    x = draw(1, LENGTH, WIDTH)
    x[0, 3] = 2.5  # has no variance: the norm makes it zero, as a key and as a query
    view = vmf_view(norm, attention, x)
    assert not view.concentration[:, :, 3].any()
    assert not view.query_radius[:, 3].any()
    assert_close(torch.linalg.vector_norm(view.mean_direction, dim=-1)[0, 0, 3].item(), 1.0)
    assert view.mean_direction.sum(-1).abs().max() < 1e-12
    assert_equal(view.responsibilities(), own_weights(norm, attention, x))
