"""The transformer, against the naive loop over prefixes."""

import importlib.util
from pathlib import Path

import pytest
import torch

from isthmus.incontext import ICLEBM
from isthmus.incontext.objectives import BranchLangevin

spec = importlib.util.spec_from_file_location("naive", Path(__file__).with_name("naive.py"))
naive = importlib.util.module_from_spec(spec)
spec.loader.exec_module(naive)

EXACT = {"rtol": 1e-9, "atol": 1e-9}


def test_energies_of_a_sequence_equal_those_of_its_prefixes(model, points):
    x, _ = points
    expected = torch.stack(
        [naive.transformer(model, x[:, : n + 1])[:, -1] for n in range(x.shape[1])], dim=1
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
    expected, expected_gradients = everything(naive.branch_energy)
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
    expected = naive.langevin(model, x, start, noise, step_size)
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
