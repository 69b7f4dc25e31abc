"""Deep memories against formulas written out, autograd, brute force and hamux."""

import math
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from helpers import draw

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.deep import (
    Attention,
    Bias,
    Convolution,
    DeepMemory,
    Dense,
    EnergyTransformerBlock,
    Neurons,
)
from isthmus.deep.neurons import LAGRANGIANS
from isthmus.errors import InvalidInputError, ShapeError, UnknownNormalizerError
from isthmus.nn import EnergyTransformer


def three_layers():
    layers = {
        "pixels": Neurons((1, 4, 4)),
        "maps": Neurons((2, 2, 2), "relu"),
        "kind": Neurons((2, 3), "softmax", beta=2.0),
    }
    synapses = [Convolution("pixels", "maps", stride=2), Dense("maps", "kind"), Bias("kind")]
    memory = DeepMemory(layers, synapses, seed=1).double()
    with torch.no_grad():
        memory.synapses[2].weight.copy_(draw(2, 3, seed=5))
    return memory


def of_tokens():
    layers = {"tokens": Neurons((4, 6), "layer_norm"), "memories": Neurons(9, "spherical", 2.0)}
    synapses = [Attention("tokens", heads=2, head_width=3), Dense("tokens", "memories")]
    return DeepMemory(layers, synapses).double()


def network(dim, placed=False, **settings):
    energy = ist.NeuralEnergy(dim, **settings).double()
    torch.nn.init.normal_(energy.readout.weight)  # zero at first
    if placed:
        energy.place_at(1 + draw(50, dim) @ draw(dim, dim, seed=1))
    return energy


BLOCK = EnergyTransformerBlock(6, tokens=4, heads=2, head_width=3, memories=5).double()
MEMORIES = {
    "layers": three_layers(),
    "visible": three_layers().over("pixels"),
    "tokens": of_tokens(),
    "transformer": BLOCK,
    "plane": network(2, placed=True, width=8),
    "neural": network(5, width=8),
    "whitened": network(4, placed=True, width=8),
    "image": network(16, width=4, depth=1, image=(1, 4, 4)),
    "module": ist.as_energy(torch.nn.Sequential(torch.nn.Linear(3, 5), torch.nn.SiLU(),
                                                torch.nn.Linear(5, 1)), dim=3),
}  # fmt: skip


@pytest.mark.parametrize("name", LAGRANGIANS)
@pytest.mark.parametrize("shape", [5, (2, 5)])
def test_activations_are_gradients_of_the_lagrangian_and_energies_legendre_transforms(name, shape):
    neurons = Neurons(shape, name, beta=1.7)
    x = draw(3, *neurons.shape).requires_grad_()
    (gradient,) = torch.autograd.grad(neurons.value(x).sum(), x)
    torch.testing.assert_close(neurons.activation(x), gradient)
    other = draw(3, *neurons.shape, seed=1)  # L is convex: the transform is a supremum over x
    axes = tuple(range(1, x.ndim))
    bound = (other * gradient).sum(axes) - neurons.value(other)
    assert (neurons.energy(x, gradient) >= bound - 1e-12).all()


def test_the_energy_is_the_sum_written_out():
    memory, x = three_layers(), draw(7, memory_dim := 16 + 8 + 6)
    assert memory.dim == memory_dim
    kernel, matrix, bias = (each.weight.detach().numpy() for each in memory.synapses)
    for point, found in zip(x.numpy(), memory.energy(x.numpy()), strict=True):
        pixels, maps, kind = point[:16].reshape(4, 4), point[16:24].reshape(2, 2, 2), point[24:]
        active = np.maximum(maps, 0)
        shares = np.exp(2 * kind.reshape(2, 3))
        log_sums = np.log(shares.sum(1)) / 2
        shares /= shares.sum(1, keepdims=True)
        expected = 0.5 * (pixels**2).sum() + 0.5 * (active**2).sum()
        expected += (kind.reshape(2, 3) * shares).sum() - log_sums.sum()
        padded = np.pad(pixels, 1)
        for channel in range(2):
            for row in range(2):
                for column in range(2):
                    window = padded[2 * row : 2 * row + 3, 2 * column : 2 * column + 3]
                    expected -= active[channel, row, column] * (kernel[channel, 0] * window).sum()
        expected -= active.ravel() @ matrix @ shares.ravel() + (bias * shares).sum()
        assert found == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("memory", [three_layers(), of_tokens()])
def test_updates_are_the_gradient_in_the_activations_and_the_score_its_image(memory):
    """dE/dx = (dg/dx) dE/dg, since the states of a Legendre transform drop out."""
    x = draw(4, memory.dim)
    update = memory.update(x)

    def activations(point):
        return torch.cat([each.flatten() for each in memory.activations(point).values()])

    for point, move, score in zip(x, update, memory.score(x), strict=True):
        jacobian = torch.autograd.functional.jacobian(activations, point)
        torch.testing.assert_close(jacobian.mT @ move, score)


def test_two_layers_are_a_modern_hopfield_network():
    patterns, beta = draw(9, 5), 1.7
    layers = {"visible": Neurons(5), "hidden": Neurons(9, "softmax", beta)}
    memory = DeepMemory(layers, [Dense("visible", "hidden")]).double()
    with torch.no_grad():
        memory.synapses[0].weight.copy_(patterns.mT)
    modern, v = ist.ModernHopfield(patterns, beta), draw(20, 5, seed=3)
    visible = memory.over("visible")
    torch.testing.assert_close(visible.energy(v), modern.energy(v))
    torch.testing.assert_close(visible.step(v), modern.step(v))
    torch.testing.assert_close(visible.score(v), modern.score(v))
    whole = torch.cat([v, draw(20, 9)], dim=1)
    torch.testing.assert_close(memory.step(whole)[:, :5], modern.step(v))
    held = torch.tensor([True, False, True, False, False])
    found = ist.retrieve(visible, v, observed=held).state
    torch.testing.assert_close(
        found, ist.retrieve(modern, v, observed=held).state, atol=1e-4, rtol=0
    )


@pytest.mark.parametrize("memory", [three_layers(), of_tokens(), BLOCK, MEMORIES["visible"]])
def test_steps_never_raise_the_energy_and_hold_what_is_observed(memory):
    x = 2 * draw(50, memory.dim)
    held = draw(50, memory.dim, seed=4) > 0.5
    for kept in (None, held):
        state, height = x, memory.energy(x)
        for _ in range(10):
            state = memory.step(state, kept)
            assert (memory.energy(state) <= height + 1e-9 * (1 + height.abs())).all()
            height = memory.energy(state)
        if kept is not None:
            assert (state[kept] == x[kept]).all()


def test_hidden_layers_that_are_joined_come_to_rest():
    memory = three_layers()
    visible = memory.over("pixels", sweeps=40)
    whole = visible.whole(draw(6, 16))
    torch.testing.assert_close(memory.step(whole)[:, 16:], whole[:, 16:], atol=1e-6, rtol=0)


def test_a_clamped_layer_completes():
    patterns = torch.eye(4, dtype=torch.float64).repeat_interleave(3, dim=1) * 2 - 0.5
    layers = {"visible": Neurons(12), "hidden": Neurons(4, "softmax", 4.0)}
    memory = DeepMemory(layers, [Dense("visible", "hidden")]).double()
    with torch.no_grad():
        memory.synapses[0].weight.copy_(patterns.mT)
    partial = patterns.clone()
    partial[:, 1::3] = math.nan
    visible = memory.over("visible").requires_grad_(False)
    held, state = ~torch.isnan(partial), torch.nan_to_num(partial)
    for _ in range(2):
        state = visible.step(state, held)
    twice = ist.complete(visible, partial, init=torch.zeros(12), max_steps=2)
    torch.testing.assert_close(twice, state)
    filled = ist.complete(visible, partial, init=torch.zeros(12))
    torch.testing.assert_close(filled, patterns, atol=0.05, rtol=0)


def test_attention_energy_and_transformer_step_are_those_of_the_paper():
    x = draw(2, 24)
    block = BLOCK
    key, query, patterns = (each.detach() for each in (block.key, block.query, block.patterns))
    beta = 1 / math.sqrt(3)
    for point, found in zip(x, block.energy(x).detach(), strict=True):
        g = torch.nn.functional.layer_norm(point.view(4, 6), (6,), eps=1e-5)
        expected, force = 0.0, torch.zeros_like(g)
        for head in range(2):
            for c in range(4):
                others = [b for b in range(4) if b != c]
                logits = torch.stack(
                    [beta * (key[head] @ g[b]) @ (query[head] @ g[c]) for b in others]
                )
                expected -= torch.logsumexp(logits, 0) / beta
                for share, b in zip(logits.softmax(0), others, strict=True):
                    force[c] += share * query[head].mT @ key[head] @ g[b]
                    force[b] += share * key[head].mT @ query[head] @ g[c]
        hidden = (g @ patterns.mT).relu()
        assert float(found) == pytest.approx(
            float(expected - 0.5 * hidden.square().sum()), rel=1e-12
        )
        force += hidden @ patterns
        torch.testing.assert_close(block.direction(point.view(4, 6)), force)
        layer = EnergyTransformer(6, heads=2, head_width=3, memories=5, steps=1).double()
        layer.block.load_state_dict(block.state_dict())
        torch.testing.assert_close(layer(point.view(1, 4, 6))[0], point.view(4, 6) + 0.1 * force)


@pytest.mark.parametrize("name", MEMORIES)
def test_networks_keep_the_contract_of_energies(name):
    memory = MEMORIES[name]
    check_energy(memory, 0.7 * draw(5, memory.dim))
    with pytest.raises(UnknownNormalizerError):
        memory.log_normalizer()


@pytest.mark.parametrize("name", [name for name in MEMORIES if name != "module"])
def test_networks_are_saved(name, tmp_path):
    memory, path = MEMORIES[name], tmp_path / "energy.safetensors"
    ist.save(memory, path)
    x = draw(5, memory.dim)
    again = ist.load(path)
    assert torch.equal(again.energy(x), memory.energy(x))
    assert repr(again) == repr(memory)


def test_bad_input_is_refused():
    layers = {"a": Neurons(3), "b": Neurons(4, "softmax")}
    for synapses in ([], [Dense("a", "c")], [Bias("a")]):
        with pytest.raises(InvalidInputError):
            DeepMemory(layers, synapses)
    for build in (
        lambda: Dense("a", "a"),
        lambda: DeepMemory(layers, [Convolution("a", "b")]),
        lambda: DeepMemory(layers, [Attention("a"), Dense("a", "b")]),
        lambda: ist.NeuralEnergy(10, image=(1, 4, 4)),
        lambda: ist.NeuralEnergy(10, image=0.0),
        lambda: ist.as_energy(torch.nn.Linear(3, 2)).energy(torch.zeros(4, 3)),
        lambda: EnergyTransformer(8)(torch.zeros(2, 5, 7)),
        lambda: EnergyTransformerBlock(8).energy(torch.zeros(3, 41)),
    ):
        with pytest.raises(ShapeError):
            build()
    with pytest.raises(InvalidInputError):
        Neurons(3, "cube")
    for names in (("c",), ("a", "a"), ()):
        with pytest.raises(InvalidInputError):
            DeepMemory(layers, [Dense("a", "b")]).over(*names)
    with pytest.raises(InvalidInputError):
        ist.as_energy(ist.NeuralEnergy(2))


def test_a_synapse_serves_two_memories():
    layers, synapse = {"a": Neurons(3), "b": Neurons(4, "softmax")}, Dense("a", "b")
    first = DeepMemory(layers, [synapse])
    before = first.energy(draw(2, 7).float())
    DeepMemory({"a": Neurons(5), "b": Neurons(2)}, [synapse], seed=1)
    assert torch.equal(first.energy(draw(2, 7).float()), before)


def test_hamux_agrees():
    """In a process of its own: JAX starts threads, after which this one could not be forked."""
    pytest.importorskip("hamux")
    subprocess.run([sys.executable, Path(__file__).with_name("against_hamux.py")], check=True)
