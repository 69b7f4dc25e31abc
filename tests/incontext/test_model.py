"""The transformer, against the authors' loops, which encode every prefix anew."""

import math

import pytest
import torch
from torch import Tensor

from isthmus.incontext import ICLEBM
from isthmus.incontext.objectives import BranchLangevin

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def transformer(model: ICLEBM, tokens: Tensor) -> Tensor:
    """A plain causal transformer with the model's layers. tokens: (B, S, D) -> (B, S)."""
    batch, length, _ = tokens.shape
    box = math.inf if model.config.box is None else model.config.box
    stream = model.embedding(tokens.clamp(-box, box) / model.config.scale)
    if model.position is not None:
        stream = stream + model.position.weight[:length]
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    for block in model.blocks:
        joint = block.query_key_value(block.attention_norm(stream)).chunk(3, -1)
        query, key, value = (x.view(batch, length, block.heads, -1).transpose(1, 2) for x in joint)
        logits = query @ key.transpose(-1, -2) / math.sqrt(query.shape[-1])
        weight = logits.masked_fill(later, -math.inf).softmax(-1)
        mixed = (weight @ value).transpose(1, 2).reshape(stream.shape)
        stream = stream + block.attention_out(mixed)
        raised = block.up(block.feedforward_norm(stream))
        stream = stream + block.down(0.5 * raised * (1 + torch.erf(raised / math.sqrt(2))))
    overshoot = (tokens - tokens.clamp(-box, box)).norm(dim=-1)
    return model.readout(stream).squeeze(-1) + 0.5 * (overshoot / model.config.wall) ** 2


def prefix_energy(model: ICLEBM, x: Tensor, candidate: Tensor, index: int) -> Tensor:
    """Energy of candidate (B, D) at `index`, with the real prefix before it. (B,)."""
    return transformer(model, torch.cat([x[:, :index], candidate[:, None]], dim=1))[:, -1]


def naive_branch_energy(model: ICLEBM, x: Tensor, candidates: Tensor) -> Tensor:
    """The same for every index and candidate. (B, S, C)."""
    _, length, count, _ = candidates.shape
    energies = [
        prefix_energy(model, x, candidates[:, n, c], n) for n in range(length) for c in range(count)
    ]
    return torch.stack(energies, dim=-1).view(-1, length, count)


def naive_langevin(
    model: ICLEBM, x: Tensor, start: Tensor, noise: list[Tensor], step_size: float
) -> Tensor:
    """End points of chains given the noise of each step, one index and chain at a time."""
    end = torch.empty_like(start)
    for n in range(x.shape[1]):
        for c in range(start.shape[2]):
            state = start[:, n, c].clone()
            for omega in noise:
                state = (state + omega[:, n, c]).detach().requires_grad_()
                energy = prefix_energy(model, x, state, n).sum()
                (gradient,) = torch.autograd.grad(energy, state)
                state = (state - step_size * gradient).detach()
            end[:, n, c] = state
    return end


def test_energies_of_a_sequence_equal_those_of_its_prefixes(model, points):
    x, _ = points
    expected = torch.stack(
        [transformer(model, x[:, : n + 1])[:, -1] for n in range(x.shape[1])], dim=1
    )
    torch.testing.assert_close(model(x), expected, **EXACT)


def test_branch_energies_and_all_gradients_equal_the_naive_loop(model, points):
    def everything(function):
        x, candidates = (t.clone().requires_grad_() for t in points)
        energy = function(model, x, candidates)
        weights = torch.linspace(0.5, 1.5, energy.numel(), dtype=energy.dtype).view(energy.shape)
        names, parameters = zip(*model.named_parameters(), strict=True)
        wanted = (x, candidates, *parameters)
        gradients = torch.autograd.grad((weights * energy.sin()).sum(), wanted)
        return energy, dict(zip(("x", "candidates", *names), gradients, strict=True))

    energy, gradients = everything(ICLEBM.branch_energy)
    expected, expected_gradients = everything(naive_branch_energy)
    torch.testing.assert_close(energy, expected, **EXACT)
    assert gradients.keys() == expected_gradients.keys()
    for name, gradient in gradients.items():
        torch.testing.assert_close(gradient, expected_gradients[name], msg=name, **EXACT)


@pytest.mark.parametrize("step_size", [0.05, 3.16])
def test_langevin_trajectories_equal_the_naive_loop_given_the_noise(model, points, step_size):
    x, start = points
    sampler = BranchLangevin(steps=15, step_size=step_size, noise=0.01)
    found = sampler.run(model, x, start, torch.Generator().manual_seed(5))
    generator = torch.Generator().manual_seed(5)
    noise = [
        0.01 * torch.randn(start.shape, generator=generator, dtype=start.dtype) for _ in range(15)
    ]
    expected = naive_langevin(model, x, start, noise, step_size)
    torch.testing.assert_close(found, expected, **EXACT)


def test_the_gradient_does_not_depend_on_the_blocks(model, points, monkeypatch):
    x, candidates = points
    flat = candidates.flatten(1, 2).requires_grad_()
    index = torch.arange(7).repeat_interleave(4)
    cache, mask = model.encode(x), model.mask(index, 7)
    energy = model.candidate_energy(flat, cache, index, mask)
    (expected,) = torch.autograd.grad(energy.sum(), flat)
    for size in (5, 28, 60, 10_000):
        monkeypatch.setattr("isthmus.incontext.model.ACTIVATIONS_PER_BLOCK", size * 64)
        gradient = model.candidate_gradient(flat, cache, index, mask)
        torch.testing.assert_close(gradient, expected, **EXACT)
