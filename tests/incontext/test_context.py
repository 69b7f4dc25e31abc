"""Conditioning on a dataset gives an Energy."""

import pytest
import torch

from isthmus.checks import check_energy
from isthmus.errors import UnknownNormalizerError
from isthmus.incontext import ICLEBM, ICLEBMConfig, pretrained
from isthmus.incontext.evaluation import Grid

EXACT = {"rtol": 1e-9, "atol": 1e-9}


@pytest.mark.parametrize("size", [0, 1, 6])
def test_conditioning_equals_the_branch_at_that_index(model, points, size):
    x, candidates = points
    expected = model.branch_energy(x, candidates)[:, size]
    batch = model.condition(x[:, :size])
    torch.testing.assert_close(batch.energy(candidates[:, size]), expected, **EXACT)
    for row in range(3):
        single = model.condition(x[row, :size])
        torch.testing.assert_close(single.energy(candidates[row, size]), expected[row], **EXACT)


@pytest.mark.parametrize("start", [0, 3])
def test_appending_equals_conditioning_on_all(model, points, start):
    x, candidates = points
    expected = model.condition(x[:, :6]).energy(candidates[:, 6])
    one_by_one = model.condition(x[:, :start])
    for n in range(start, 6):
        one_by_one = one_by_one.append(x[:, n])
    torch.testing.assert_close(one_by_one.energy(candidates[:, 6]), expected, **EXACT)
    first = model.condition(x[:, :start])
    before = first.energy(candidates[:, start])
    at_once = first.append(x[:, start:6])
    torch.testing.assert_close(first.energy(candidates[:, start]), before, rtol=0, atol=0)
    torch.testing.assert_close(at_once.energy(candidates[:, 6]), expected, **EXACT)
    torch.testing.assert_close(at_once.context, x[:, :6])


@pytest.mark.parametrize("context", [0, 9])
def test_the_public_battery_passes(context):
    model = ICLEBM(ICLEBMConfig(layers=2, heads=2, width=8, box=3.0)).double()
    generator = torch.Generator().manual_seed(0)
    energy = model.condition(torch.randn(context, 2, generator=generator, dtype=torch.float64))
    check_energy(energy, torch.randn(6, 2, generator=generator, dtype=torch.float64))


@pytest.mark.slow
def test_log_densities_in_the_plane_are_normalised(monkeypatch):
    model = pretrained("mixtures-2d")
    contexts = 2 * torch.randn(2, 8, 2, generator=torch.Generator().manual_seed(0))
    x = torch.randn(2, 4, 5, 2, generator=torch.Generator().manual_seed(1))
    batch = model.condition(contexts)
    found = batch.log_prob(x)
    for index, context in enumerate(contexts):
        energy = model.condition(context)
        grid = Grid(2, 8.5, 257)
        finer = grid.integrate(-energy.energy(grid.nodes.float()).double()).value
        expected = -energy.energy(x[index]).double() - finer
        torch.testing.assert_close(found[index].double(), expected, atol=2e-4, rtol=0)
        torch.testing.assert_close(energy.log_prob(x[index]), found[index], atol=1e-4, rtol=0)
    monkeypatch.setattr("isthmus.incontext.evaluation.Grid.integrate", None)  # it is kept
    torch.testing.assert_close(batch.log_prob(x), found)


def test_an_energy_without_a_box_has_no_normaliser():
    energy = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=8)).condition(torch.zeros(3, 2))
    with pytest.raises(UnknownNormalizerError, match="box"):
        energy.log_prob(torch.zeros(2, 2))
