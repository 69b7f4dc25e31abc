"""What cannot be read is refused by name, and told what can."""

import subprocess
import sys

import pytest
import torch
from torch import nn

from isthmus.attention import PreNormAttention, SALNAttention, vmf_view
from isthmus.errors import (
    DtypeError,
    InvalidInputError,
    IsthmusError,
    ShapeError,
    UnsupportedOperationError,
)

NORM, ATTENTION = nn.LayerNorm(8), nn.MultiheadAttention(8, 2, batch_first=True)
X = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize(
    "arguments",
    [
        (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), X),
        (nn.TransformerDecoderLayer(8, 2, 16, batch_first=True), X),
        (ATTENTION, X),
        (nn.Linear(8, 8), X),
        (NORM, X),
        (None, ATTENTION, X),
        (nn.Identity(), ATTENTION, X),
        (nn.BatchNorm1d(8), ATTENTION, X),
        (NORM, nn.Linear(8, 8), X),
        (NORM, nn.Identity(), X),
        (NORM, "attention", X),
    ],
    ids=lambda arguments: " ".join(type(part).__name__ for part in arguments[:-1]),
)
def test_an_error_names_the_module_and_lists_what_is_supported(arguments):
    with pytest.raises(UnsupportedOperationError) as error:
        vmf_view(*arguments)
    assert isinstance(error.value, IsthmusError)
    for name in ("nn.LayerNorm", "nn.RMSNorm", "nn.MultiheadAttention", "GPT-2", "Llama"):
        assert name in str(error.value)


def test_post_norm_layers_are_refused():
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True)
    with pytest.raises(UnsupportedOperationError, match="norm after attention.*norm_first=True"):
        vmf_view(layer, X)


@pytest.mark.parametrize(
    ("call", "error", "message"),
    [
        (lambda: vmf_view(nn.LayerNorm(6), ATTENTION, X), ShapeError, "norm is over 6"),
        (lambda: vmf_view(nn.LayerNorm(6), ATTENTION, X[..., :6]), ShapeError, "attention takes 8"),
        (lambda: vmf_view(NORM, ATTENTION, X[..., :6]), ShapeError, "x has 6"),
        (lambda: vmf_view(nn.LayerNorm((5, 8)), ATTENTION, X), ShapeError, "last 2 axes"),
        (lambda: vmf_view(NORM, ATTENTION, X[0, 0]), ShapeError, "must be"),
        (lambda: vmf_view(NORM, ATTENTION, X[:0]), ShapeError, "must be"),
        (lambda: vmf_view(NORM, ATTENTION, X * torch.nan), InvalidInputError, "NaN"),
        (lambda: vmf_view(NORM, ATTENTION), InvalidInputError, r"vmf_view\(norm, attention, x\)"),
        (lambda: vmf_view(NORM, half(), X), DtypeError, "bfloat16"),
        (lambda: vmf_view(NORM, ATTENTION, X, mask=torch.zeros(4, 5)), ShapeError, "mask"),
        (lambda: vmf_view(NORM, ATTENTION, X, mask=torch.zeros(7, 5, 5)), ShapeError, "mask"),
        (lambda: vmf_view(NORM, ATTENTION, X, mask=torch.eye(5).long()), DtypeError, "boolean"),
        (
            lambda: vmf_view(NORM, ATTENTION, X, mask=torch.full((5, 5), torch.nan)),
            InvalidInputError,
            "NaN",
        ),
        (
            lambda: vmf_view(NORM, ATTENTION, X, key_padding_mask=torch.zeros(2, 4)),
            ShapeError,
            "key_padding_mask",
        ),
        (
            lambda: vmf_view(NORM, ATTENTION, X, position_ids=torch.arange(5)),
            UnsupportedOperationError,
            "rotary",
        ),
        (lambda: vmf_view(NORM, ATTENTION, X, key=X[:1]), ShapeError, "key has 1"),
        (lambda: vmf_view(NORM, other_keys(), X), ShapeError, "kdim"),
        (
            lambda: vmf_view(nn.LayerNorm(1), nn.MultiheadAttention(1, 1), X[..., :1]),
            ShapeError,
            "1",
        ),
        (lambda: vmf_view(PreNormAttention(8, 2), X, key=X[..., :4]), ShapeError, "key has 4"),
    ],
)
def test_arguments_that_do_not_fit(call, error, message):
    with pytest.raises(error, match=message):
        call()


def half() -> nn.Module:
    return nn.MultiheadAttention(8, 2, batch_first=True).bfloat16()


def other_keys() -> nn.Module:
    return nn.MultiheadAttention(8, 2, kdim=5, batch_first=True)


@pytest.mark.parametrize("kind", [PreNormAttention, SALNAttention])
def test_layers_refuse_what_they_cannot_be(kind):
    with pytest.raises(ShapeError, match="multiple"):
        kind(8, 3)
    with pytest.raises(InvalidInputError, match="dropout"):
        kind(8, 2, dropout=1.0)
    with pytest.raises(InvalidInputError, match="'layer', 'rms'"):
        kind(8, 2, norm="batch")
    with pytest.raises(ShapeError, match="query, key and value"):
        kind(8, 2)(X[..., :4], X[..., :4], X[..., :4])
    for norm, attention, error in (
        (NORM, nn.Linear(8, 8), UnsupportedOperationError),
        (NORM, other_keys(), UnsupportedOperationError),
        (NORM, nn.MultiheadAttention(8, 2, add_zero_attn=True), UnsupportedOperationError),
        (NORM, nn.MultiheadAttention(8, 2, add_bias_kv=True), UnsupportedOperationError),
        (nn.BatchNorm1d(8), ATTENTION, UnsupportedOperationError),
        (nn.LayerNorm(4), ATTENTION, ShapeError),
    ):
        with pytest.raises(error):
            kind.from_prenorm(norm, attention)


def test_the_package_does_not_need_transformers():
    code = (
        "import sys; sys.modules['transformers'] = None\n"
        "import torch, isthmus; from torch import nn\n"
        "layers = nn.LayerNorm(4), nn.MultiheadAttention(4, 2)\n"
        "isthmus.attention.vmf_view(*layers, torch.randn(3, 1, 4))"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_layer_norm_without_eps_is_refused():
    with pytest.raises(DtypeError, match="eps must be a finite number"):
        SALNAttention(8, 2, norm="layer", eps=None)
