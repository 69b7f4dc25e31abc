"""Draws of in-context energies: the right proportions, whatever the chains do."""

import math

import pytest
import torch

import isthmus as ist
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext import ICLEBM, ICLEBMConfig
from isthmus.incontext.sampling import draw, starting_points


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


def test_the_same_seed_gives_the_same_draws_and_the_global_stream_is_left_alone():
    energy = sloping(0.3).condition(torch.zeros(2, 2))
    before = torch.get_rng_state()
    first, again = (draw(energy, 7, seed=5, steps=4) for _ in range(2))
    torch.testing.assert_close(first, again, rtol=0, atol=0)
    assert not torch.equal(first, draw(energy, 7, seed=6, steps=4))
    torch.testing.assert_close(torch.get_rng_state(), before)


def test_a_model_without_a_box_starts_around_its_context():
    context = torch.tensor([[6.0, -6.0]])
    starts = starting_points(sloping(0.0, box=None).condition(context), 500)
    assert float(starts.abs().max()) <= 9.5


def test_invalid_draws_are_refused():
    model = sloping(0.3)
    with pytest.raises(ShapeError, match="3 contexts"):
        draw(model.condition(torch.zeros(3, 4, 2)), 5)
    with pytest.raises(InvalidInputError, match="n must be"):
        draw(model.condition(torch.zeros(4, 2)), 0)
    with pytest.raises(InvalidInputError, match="steps"):
        draw(model.condition(torch.zeros(4, 2)), 5, steps=0)
