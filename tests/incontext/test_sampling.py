"""Draws of in-context energies: the right proportions, whatever the chains do."""

import math

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.incontext import ICLEBM, ICLEBMConfig
from isthmus.incontext.sampling import box_scaling, draw, draw_points, starting_points


def sloping(tilt: float, **settings: object) -> ICLEBM:
    """A model whose energy is `tilt` times the first coordinate, whatever the context."""
    model = ICLEBM(ICLEBMConfig(layers=1, heads=1, width=4, **{"box": 2.0, **settings}))
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.embedding.weight[0, 0] = 1.0
        model.readout.weight[0, 0] = tilt
    return model


@pytest.mark.parametrize("size", [0, 1, 5])
def test_starting_points_follow_the_density(size):
    context = torch.full((size, 2), 1.5)
    starts = starting_points(sloping(0.7).condition(context), 20_000, seed=1)
    inside = starts[(starts.abs() <= 2).all(1), 0]
    # On [-2, 2] the density is proportional to exp(-0.7 x).
    expected = (1 - math.exp(-1.4)) / (1 - math.exp(-2.8))
    assert float((inside < 0).float().mean()) == pytest.approx(expected, abs=0.01)


def test_draws_of_either_sampler_have_the_mean_of_the_density():
    energy = sloping(0.7).condition(torch.zeros(3, 2))
    x = torch.linspace(-6, 6, 4001, dtype=torch.float64)
    density = (-0.7 * x.clamp(-2, 2) - 0.5 * ((x.abs() - 2).clamp(min=0) / 0.5) ** 2).exp()
    mean = float((x * density).sum() / density.sum())
    for sampler in (None, ist.Langevin(step_size=0.02)):
        drawn = draw(energy, 4000, sampler, seed=0, steps=60)
        assert float(drawn[:, 0].mean()) == pytest.approx(mean, abs=0.06)
        assert abs(float(drawn[:, 1].mean())) < 0.08


def test_points_in_the_box_are_read_as_they_are():
    model, points = sloping(0.7), np.array([[-1.0, 0.0], [1.5, 0.5], [0.2, 0.3]])
    scaling = box_scaling(model, points)
    assert not scaling.standardises
    expected = draw(model.condition(points), 6, seed=3, steps=5)
    np.testing.assert_allclose(draw_points(model, points, 6, seed=3, steps=5), expected, rtol=1e-6)
    assert not box_scaling(model, np.empty((0, 2))).standardises
    assert not box_scaling(sloping(0.7, box=None), 1e6 * points).standardises


@pytest.mark.parametrize("unit", [1e-200, 1e-3, 50.0, 1e150])
def test_other_points_are_brought_into_the_box_and_draws_back(unit):
    model, points = sloping(0.7), np.array([[-1.0, 0.0], [1.5, 0.5], [0.2, 0.3]])
    one, other = (draw_points(model, k * points, 50, seed=3, steps=5) for k in (10, unit))
    np.testing.assert_allclose(other / unit, one / 10, rtol=1e-4, atol=1e-5)
    inside = box_scaling(model, unit * points).into(unit * points)
    np.testing.assert_allclose(abs(inside).max(0), 0.55 * 2)
    # An offset moves the draws; a column without spread is centred only.
    moved = draw_points(model, unit * (points + 1000), 50, seed=3, steps=5)
    np.testing.assert_allclose(moved / unit - 1000, one / 10, rtol=1e-4, atol=1e-4)
    flat = box_scaling(model, np.stack([unit * points[:, 0], np.full(3, 7e5)], 1))
    assert flat.centre[1] == 7e5
    assert flat.scale[1] == 1
