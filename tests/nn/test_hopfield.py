"""Hopfield layers against nn.MultiheadAttention, loops written out, and their own energies."""

from typing import Any

import numpy as np
import pytest
import torch
from helpers import draw
from scipy.special import softmax
from torch import Tensor, nn

import isthmus as ist
from isthmus.nn import Hopfield, HopfieldLayer, HopfieldPooling

SEPARATIONS = ["softmax", "entmax", "sparsemax", 1.3]


def padding_of(lengths: list[int], longest: int) -> Tensor:
    return torch.arange(longest) >= torch.tensor(lengths)[:, None]


def make(kind: type[nn.Module] = Hopfield, *arguments: Any, **settings: Any) -> Any:
    """A layer with weights that are all different from zero, in float64."""
    torch.manual_seed(0)
    layer = kind(*arguments, **settings).double().eval()
    with torch.no_grad():
        for parameter in layer.parameters():
            parameter += 0.3 * torch.randn_like(parameter)
    return layer


def test_one_step_is_multi_head_attention() -> None:
    layer = make(Hopfield, 12, num_heads=3, norm=False)
    theirs = nn.MultiheadAttention(12, 3, batch_first=True).double().eval()
    with torch.no_grad():
        parts = [layer.state_proj, layer.stored_proj, layer.value_proj]
        theirs.in_proj_weight.copy_(torch.cat([part.weight for part in parts]))
        theirs.in_proj_bias.copy_(torch.cat([part.bias for part in parts]))
        theirs.out_proj.load_state_dict(layer.out_proj.state_dict())
    stored, states, values = draw(4, 9, 12), draw(4, 5, 12, seed=1), draw(4, 9, 12, seed=2)
    padding = padding_of([9, 4, 1, 7], 9)
    causal = torch.ones(5, 9, dtype=torch.bool).triu(4)
    expected, weights = theirs(
        states,
        stored,
        values,
        key_padding_mask=padding,
        attn_mask=causal,
        average_attn_weights=False,
    )
    found, own = layer((stored, states, values), padding, causal, need_weights=True)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(own, weights)
    torch.testing.assert_close(layer((stored, states, values), padding, causal), expected)


def sparsemax(logits: np.ndarray) -> np.ndarray:
    descending = np.sort(logits)[::-1]
    thresholds = (np.cumsum(descending) - 1) / np.arange(1, len(logits) + 1)
    return np.maximum(logits - thresholds[descending > thresholds][-1], 0)


def written_out(layer: Hopfield, bag: Tensor, state: Tensor, weigh: Any, steps: int) -> Tensor:
    """Return what one state retrieves from one bag, a head at a time."""
    heads, width = [], layer.hidden_size
    for head in range(layer.num_heads):
        rows = slice(head * width, (head + 1) * width)
        stored = layer.stored_proj(layer.norm_stored(bag))[:, rows].detach().numpy()
        values = layer.value_proj(layer.norm_value(bag))[:, rows].detach().numpy()
        xi = layer.state_proj(layer.norm_state(state))[rows].detach().numpy()
        beta = float(layer.beta[head])
        for _ in range(steps - 1):
            xi = weigh(beta * stored @ xi) @ stored
        heads.append(weigh(beta * stored @ xi) @ values)
    return layer.out_proj(torch.from_numpy(np.concatenate(heads)))


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize(("name", "weigh"), [("softmax", softmax), ("sparsemax", sparsemax)])
def test_steps_equal_loops_over_patterns_and_heads(name: str, weigh: Any, steps: int) -> None:
    layer = make(
        Hopfield, 6, 4, 3, num_heads=2, stored_size=5, steps=steps, separation=name, beta=[0.4, 1.5]
    )
    stored, states = draw(3, 7, 5), draw(3, 2, 6, seed=1)
    found = layer((stored, states, stored))
    for bag in range(3):
        for row in range(2):
            expected = written_out(layer, stored[bag], states[bag, row], weigh, steps)
            torch.testing.assert_close(found[bag, row], expected)


@pytest.mark.parametrize("separation", SEPARATIONS)
@pytest.mark.parametrize("need_weights", [False, True])
def test_padding_equals_shorter_bags_whatever_it_holds(separation: Any, need_weights: bool) -> None:
    layer = make(HopfieldPooling, 6, num_heads=2, quantity=3, steps=3, separation=separation)
    lengths = [8, 3, 1]
    padded = draw(3, 8, 6)
    padding = padding_of(lengths, 8)
    padded[padding] = torch.nan
    padded.requires_grad_()
    found = layer(padded, padding, need_weights=need_weights)
    pooled, weights = found if need_weights else (found, None)
    for row, length in enumerate(lengths):
        alone = layer(padded[row : row + 1, :length].detach())
        torch.testing.assert_close(pooled[row : row + 1], alone)
        if weights is not None:
            assert bool((weights[row, ..., length:] == 0).all())
            torch.testing.assert_close(weights.sum(-1), torch.ones_like(weights[..., 0]))
    pooled.square().sum().backward()
    assert padded.grad is not None
    assert bool(torch.isfinite(padded.grad).all())
    assert bool((padded.grad[padding] == 0).all())
    assert all(bool(torch.isfinite(p.grad).all()) for p in layer.parameters())


@pytest.mark.parametrize("separation", SEPARATIONS)
def test_gradients_match_finite_differences(separation: Any) -> None:
    layer = make(Hopfield, 4, num_heads=2, steps=2, separation=separation, learn_beta=True)
    assert torch.autograd.gradcheck(layer, (draw(2, 3, 4).requires_grad_(),))
    x = draw(2, 3, 4)

    def of_log_beta(log_beta: Tensor) -> Any:
        return torch.func.functional_call(layer, {"log_beta": log_beta}, (x,))

    assert torch.autograd.gradcheck(of_log_beta, (layer.log_beta.detach().requires_grad_(),))


def test_batch_axis_and_leading_shapes() -> None:
    layer = make(Hopfield, 6, num_heads=2, steps=2)
    second = make(Hopfield, 6, num_heads=2, steps=2, batch_first=False)
    x = draw(2, 3, 5, 6)
    expected = layer(x.flatten(0, 1))
    torch.testing.assert_close(layer(x).flatten(0, 1), expected)
    torch.testing.assert_close(layer(x[0, 0]), expected[0])
    torch.testing.assert_close(second(x[0].transpose(0, 1)).transpose(0, 1), expected[:3])
    pool = make(HopfieldPooling, 6, quantity=2)
    pool_second = make(HopfieldPooling, 6, quantity=2, batch_first=False)
    torch.testing.assert_close(pool_second(x[0].transpose(0, 1)), pool(x[0]))


def test_pooling_and_lookup_are_associations_with_learned_patterns() -> None:
    x = draw(3, 5, 6)
    pool = make(HopfieldPooling, 6, output_size=4, num_heads=2, quantity=3, steps=2)
    states = pool.pooling_weights.expand(3, -1, -1)
    expected = pool.hopfield((x, states, x))
    torch.testing.assert_close(pool(x), expected.flatten(1))
    torch.testing.assert_close(pool((x, x)), expected.flatten(1))
    for separate in (False, True):
        layer = make(HopfieldLayer, 6, quantity=7, separate_targets=separate)
        stored = layer.lookup_weights.expand(3, -1, -1)
        values = layer.target_weights.expand(3, -1, -1) if separate else stored
        torch.testing.assert_close(layer(x), layer.hopfield((stored, x, values)))
        hidden = torch.zeros(3, 7, dtype=torch.bool)
        hidden[:, 2:] = True
        _, weights = layer(x, hidden, need_weights=True)
        assert bool((weights[..., 2:] == 0).all())
    for kind in (HopfieldPooling, HopfieldLayer):
        with pytest.raises(TypeError, match="stored_size"):
            kind(6, stored_size=3)


@pytest.mark.parametrize("head", [0, 1])
@pytest.mark.parametrize("separation", ["softmax", "entmax", "sparsemax"])
def test_the_states_move_on_the_energy(head: int, separation: str) -> None:
    layer = make(Hopfield, 6, num_heads=2, steps=4, beta=[0.7, 2.0], separation=separation)
    bag = draw(9, 6)
    states = draw(3, 6, seed=1)
    inputs = (bag, states, bag)
    energy = layer.energy_of(inputs, head)
    assert isinstance(energy, ist.ModernHopfield if separation == "softmax" else ist.SparseHopfield)
    points = layer.states_of(inputs, head)
    energies = [energy.energy(points)]
    for _ in range(3):
        points = energy.step(points)
        energies.append(energy.energy(points))
    assert bool((torch.stack(energies).diff(dim=0) <= 1e-12).all())
    _, weights = layer(inputs, need_weights=True)
    torch.testing.assert_close(energy.responsibilities(points), weights[head])
    assert energy.memories.requires_grad
    torch.testing.assert_close(energy.score(points), energy.step(points) - points)


@pytest.mark.parametrize("separation", ["softmax", pytest.param("entmax", marks=pytest.mark.slow)])
def test_compile_without_breaks_and_export_with_any_sizes(separation: Any) -> None:
    layer = make(HopfieldPooling, 6, num_heads=2, steps=2, separation=separation)
    x, padding = draw(3, 5, 6), padding_of([5, 2, 4], 5)
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)
    torch.testing.assert_close(compiled(x, padding), layer(x, padding))
    axes = {0: torch.export.Dim("bags"), 1: torch.export.Dim("patterns")}
    program = torch.export.export(layer, (x, padding), dynamic_shapes=(axes, axes))
    longer, mask = draw(4, 8, 6, seed=2), padding_of([8, 1, 3, 2], 8)
    torch.testing.assert_close(program.module()(longer, mask), layer(longer, mask))
