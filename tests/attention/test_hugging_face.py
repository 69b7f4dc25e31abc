"""Blocks of the GPT-2 and Llama kinds, built from configurations, nothing downloaded."""

import pytest
import torch
from helpers import randomized
from torch.nn.functional import scaled_dot_product_attention
from torch.testing import assert_close

from isthmus.attention import vmf_view
from isthmus.errors import InvalidInputError

transformers = pytest.importorskip("transformers")

WIDTH, HEADS, LENGTH, BATCH, VOCABULARY = 16, 4, 6, 2, 11
SMALL = {
    "vocab_size": VOCABULARY,
    "hidden_size": WIDTH,
    "intermediate_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": HEADS,
    "max_position_embeddings": 32,
    "initializer_range": 0.4,
    "pad_token_id": 0,
}
SCALED = {"rope_type": "linear", "factor": 3.0, "rope_theta": 500.0}


def exact_attention(module, query, key, value, attention_mask, scaling, dropout=0.0, **kwargs):
    """The layer's own attention in float64: its eager code rounds weights to float32."""
    groups = getattr(module, "num_key_value_groups", 1)
    key, value = (states.repeat_interleave(groups, 1) for states in (key, value))
    one = torch.eye(key.shape[-2], dtype=key.dtype).expand(*key.shape[:2], -1, -1)
    weights = scaled_dot_product_attention(query, key, one, attention_mask, scale=scaling)
    return (weights @ value).transpose(1, 2).contiguous(), weights


@pytest.fixture(autouse=True, scope="module")
def _registered():
    transformers.AttentionInterface.register("exact", exact_attention)
    transformers.AttentionMaskInterface.register("exact", transformers.masking_utils.eager_mask)


def build(kind: str, **changes):
    config, model = {
        "gpt2": (transformers.GPT2Config, transformers.GPT2Model),
        "llama": (transformers.LlamaConfig, transformers.LlamaModel),
        "mistral": (transformers.MistralConfig, transformers.MistralModel),
        "qwen2": (transformers.Qwen2Config, transformers.Qwen2Model),
    }[kind]
    if kind == "gpt2":
        names = {"n_embd": WIDTH, "n_head": HEADS, "n_layer": 2, "n_positions": 32}
        settings = config(vocab_size=VOCABULARY, bos_token_id=0, eos_token_id=0, **names, **changes)
    else:
        settings = config(**SMALL, **changes)
    settings._attn_implementation = "exact"
    return randomized(model(settings), scale=0.4)


KINDS = {
    "gpt2": ("gpt2", {}),
    "gpt2-unscaled": ("gpt2", {"scale_attn_weights": False}),
    "gpt2-by-layer": ("gpt2", {"scale_attn_by_inverse_layer_idx": True}),
    "llama": ("llama", {"num_key_value_heads": HEADS}),
    "llama-grouped": ("llama", {"num_key_value_heads": 2}),
    "llama-one-key-head": ("llama", {"num_key_value_heads": 1, "attention_bias": True}),
    "llama-wide-heads": ("llama", {"num_key_value_heads": 2, "head_dim": 8}),
    "llama-scaled-rope": ("llama", {"num_key_value_heads": 2, "rope_parameters": SCALED}),
    "mistral": ("mistral", {"num_key_value_heads": 2, "sliding_window": None}),
    "qwen2": ("qwen2", {"num_key_value_heads": 2}),
}


def blocks_of(model):
    return model.h if hasattr(model, "h") else model.layers


@pytest.fixture(params=KINDS)
def model(request):
    kind, changes = KINDS[request.param]
    return build(kind, **changes)


def run(model, **arguments):
    """Hidden states before each block, and each block's own weights."""
    tokens = torch.randint(
        1, VOCABULARY, (BATCH, LENGTH), generator=torch.Generator().manual_seed(0)
    )
    with torch.no_grad():
        found = model(tokens, output_hidden_states=True, output_attentions=True, **arguments)
    return found.hidden_states, found.attentions


def test_responsibilities_are_the_attention_weights_of_every_block(model):
    states, weights = run(model)
    for block, x, expected in zip(blocks_of(model), states[:-1], weights, strict=True):
        assert expected.dtype == torch.float64
        view = vmf_view(block, x, is_causal=True)
        assert_close(view.responsibilities(), expected, rtol=0, atol=1e-12)
        assert_close(view.responsibilities().sum(-1).min().item(), 1.0)


@pytest.mark.parametrize("kind", ["gpt2", "llama-grouped"])
def test_padding_and_places_are_those_of_the_model(kind):
    name, changes = KINDS[kind]
    model = build(name, **changes)
    seen = torch.ones(BATCH, LENGTH, dtype=torch.long)
    seen[0, :2] = 0  # padded on the left
    places = (seen.cumsum(1) - 1).clamp(min=0)
    states, weights = run(model, attention_mask=seen, position_ids=places)
    position_ids = None if name == "gpt2" else places
    view = vmf_view(
        blocks_of(model)[1],
        states[1],
        is_causal=True,
        key_padding_mask=seen == 0,
        position_ids=position_ids,
    )
    # Queries in the padding see nothing: the model spreads them evenly, here they have zeros.
    real = seen.bool()[:, None, :, None].expand(-1, HEADS, -1, LENGTH)
    assert_close(view.responsibilities()[real], weights[1][real], rtol=0, atol=1e-12)
    assert not view.responsibilities()[~real].any()


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("mistral", {"sliding_window": 3}),
        ("qwen2", {"sliding_window": 3, "use_sliding_window": True, "max_window_layers": 0}),
    ],
)
def test_a_sliding_window_must_be_in_the_mask(kind, changes):
    model = build(kind, num_key_value_heads=2, **changes)
    states, weights = run(model)
    block = model.layers[1]
    with pytest.raises(InvalidInputError, match="window of 3 keys"):
        vmf_view(block, states[1], is_causal=True)
    ago = torch.arange(LENGTH)[:, None] - torch.arange(LENGTH)
    view = vmf_view(block, states[1], mask=(ago < 0) | (ago >= 3))
    assert_close(view.responsibilities(), weights[1], rtol=0, atol=1e-12)
