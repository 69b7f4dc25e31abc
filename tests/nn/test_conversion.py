"""Checkpoints of the hopfield-layers package, whose layout and formula are rebuilt here."""

import math

import pytest
import torch
from helpers import draw
from torch import Tensor, nn

from isthmus.nn import Hopfield, HopfieldLayer, HopfieldPooling, convert_state_dict


class Core(nn.Module):
    """The parameters under ``association_core``."""

    def __init__(self, size: int, width: int, out: int | None, stored: int, bias: bool) -> None:
        super().__init__()
        if stored == size:
            self.in_proj_weight = nn.Parameter(torch.empty(3 * width, size))
        else:
            self.q_proj_weight = nn.Parameter(torch.empty(width, size))
            self.k_proj_weight = nn.Parameter(torch.empty(width, stored))
            self.v_proj_weight = nn.Parameter(torch.empty(width, stored))
        if bias:
            self.in_proj_bias = nn.Parameter(torch.empty(3 * width))
        if out is not None:
            self.out_proj = nn.Linear(width, out, bias=bias)


class Theirs(nn.Module):
    """A Hopfield module with the documented names, and the update of Ramsauer et al. (2021)."""

    def __init__(
        self,
        size: int,
        heads: int,
        hidden: int,
        out: int | None = None,
        stored: int | None = None,
        *,
        norm: bool = True,
        bias: bool = True,
        updates: int = 0,
    ) -> None:
        super().__init__()
        stored = size if stored is None else stored
        self.association_core = Core(size, heads * hidden, out, stored, bias)
        self.heads, self.hidden, self.updates = heads, hidden, updates
        self.norm_stored_pattern = nn.LayerNorm(stored) if norm else None
        self.norm_state_pattern = nn.LayerNorm(size) if norm else None
        self.norm_pattern_projection = nn.LayerNorm(stored) if norm else None

    def forward(self, stored: Tensor, state: Tensor, value: Tensor) -> Tensor:
        core, width = self.association_core, self.heads * self.hidden
        if self.norm_stored_pattern is not None:
            stored = self.norm_stored_pattern(stored)
            state = self.norm_state_pattern(state)
            value = self.norm_pattern_projection(value)
        if hasattr(core, "in_proj_weight"):
            weights = core.in_proj_weight.split(width)
        else:
            weights = (core.q_proj_weight, core.k_proj_weight, core.v_proj_weight)
        biases = core.in_proj_bias.split(width) if hasattr(core, "in_proj_bias") else (0, 0, 0)
        inputs = zip((state, stored, value), weights, biases, strict=True)
        q, k, v = (
            (x @ weight.T + bias).reshape(*x.shape[:2], self.heads, self.hidden)
            for x, weight, bias in inputs
        )
        for step in range(self.updates + 1):
            logits = torch.einsum("blhd,bshd->bhls", q, k) / math.sqrt(self.hidden)
            weights = torch.softmax(logits, -1)
            if step < self.updates:
                q = torch.einsum("bhls,bshd->blhd", weights, k)
        mixed = torch.einsum("bhls,bshd->blhd", weights, v).flatten(2)
        return core.out_proj(mixed) if hasattr(core, "out_proj") else mixed


class Pooled(nn.Module):
    """The layout of HopfieldPooling and HopfieldLayer, inside a network."""

    def __init__(self, **settings: int) -> None:
        super().__init__()
        self.hopfield = Theirs(6, 2, 3, 5, **settings)


def filled(module: nn.Module) -> nn.Module:
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.copy_(0.5 * torch.randn(parameter.shape, generator=generator))
    return module.double()


@pytest.mark.parametrize("updates", [0, 3])
@pytest.mark.parametrize("norm", [True, False])
@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("stored_size", [6, 4])
def test_outputs_are_equal(updates: int, norm: bool, bias: bool, stored_size: int) -> None:
    theirs = filled(Theirs(6, 2, 3, 5, stored_size, norm=norm, bias=bias, updates=updates))
    ours = Hopfield(
        6, 3, 5, num_heads=2, stored_size=stored_size, norm=norm, steps=updates + 1
    ).double()
    ours.load_state_dict(convert_state_dict(theirs.state_dict()))
    stored, state, value = (
        draw(*shape, seed=1) for shape in ((2, 7, stored_size), (2, 4, 6), (2, 7, stored_size))
    )
    torch.testing.assert_close(ours((stored, state, value)), theirs(stored, state, value))


def test_no_output_projection_becomes_the_identity() -> None:
    theirs = filled(Theirs(6, 2, 4))
    ours = Hopfield(6, 4, 8, num_heads=2).double()
    ours.load_state_dict(convert_state_dict(theirs.state_dict()))
    x = draw(2, 7, 6, seed=1)
    torch.testing.assert_close(ours(x), theirs(x, x, x))


def test_layers_with_learned_patterns_in_a_network() -> None:
    theirs = nn.ModuleDict({"pool": Pooled(), "look": Pooled(updates=1), "head": nn.Linear(2, 2)})
    theirs["pool"].pooling_weights = nn.Parameter(torch.empty(1, 4, 6))
    theirs["look"].lookup_weights = nn.Parameter(torch.empty(8, 1, 6))  # batch_first=False
    theirs["look"].target_weights = nn.Parameter(torch.empty(8, 1, 6))
    filled(theirs)
    ours = nn.ModuleDict(
        {
            "pool": HopfieldPooling(6, 3, 5, num_heads=2, quantity=4),
            "look": HopfieldLayer(6, 3, 5, num_heads=2, quantity=8, separate_targets=True, steps=2),
            "head": nn.Linear(2, 2),
        }
    ).double()
    ours.load_state_dict(convert_state_dict(theirs.state_dict()))
    x = draw(2, 7, 6, seed=1)
    states = theirs["pool"].pooling_weights.expand(2, -1, -1)
    expected = theirs["pool"].hopfield(x, states, x).flatten(1)
    torch.testing.assert_close(ours["pool"](x), expected)
    stored = theirs["look"].lookup_weights.transpose(0, 1).expand(2, -1, -1)
    targets = theirs["look"].target_weights.transpose(0, 1).expand(2, -1, -1)
    torch.testing.assert_close(ours["look"](x), theirs["look"].hopfield(stored, x, targets))
    assert torch.equal(ours["head"].weight, theirs["head"].weight)
