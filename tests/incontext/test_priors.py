"""Task distributions: samples, densities and seeds agree with each other and with scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError
from isthmus.incontext.priors import (
    PRIORS,
    GaussianMixtures,
    Moons,
    Rings,
    ShapeTasks,
    Spirals,
    Tasks,
    prior,
)


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cells(half: float, count: int) -> Tensor:
    """Midpoints of count x count squares that fill the box: (1, count^2, 2)."""
    edge = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 * half - half
    return torch.cartesian_prod(edge, edge)[None]


def draw(name: str, tasks: int, seed: int = 0) -> Tasks:
    return prior(name).draw(tasks, stream(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PRIORS)
def test_density_integrates_to_one_over_the_box(name):
    # Edges of shapes cross cells; elsewhere the midpoint rule is accurate to many digits.
    half, count, tolerance = prior(name).box, *((400, 0.01) if name == "shapes" else (160, 1e-4))
    tasks = draw(name, 2)
    x = cells(half, count).expand(2, -1, 2)
    mass = tasks.log_prob(x).exp().sum(1) * (2 * half / count) ** 2
    expected = torch.ones(2, dtype=torch.float64)
    torch.testing.assert_close(mass, expected, atol=tolerance, rtol=0)


@pytest.mark.parametrize("name", PRIORS)
def test_samples_fill_cells_as_the_density_says(name):
    half, coarse, share = prior(name).box, 12, 40 if name == "shapes" else 16
    tasks = draw(name, 1, seed=3)
    mass = tasks.log_prob(cells(half, coarse * share)).exp() * (2 * half / coarse / share) ** 2
    expected = mass.view(coarse, share, coarse, share).sum((1, 3)).flatten()
    points = tasks.sample(20_000, stream(4))[0]
    index = ((points + half) / (2 * half) * coarse).long().clamp(0, coarse - 1)
    seen = torch.bincount(index[:, 0] * coarse + index[:, 1], minlength=coarse**2)
    full = expected * 20_000 > 10
    theory = torch.cat([expected[full], expected[~full].sum()[None]]).numpy()
    counts = torch.cat([seen[full], seen[~full].sum()[None]]).numpy()
    if name == "shapes":  # their cell masses carry the error of the midpoint rule
        np.testing.assert_allclose(counts / 20_000, theory, atol=0.01)
    else:
        scaled = theory[:-1] / theory[:-1].sum() * counts[:-1].sum()
        assert stats.chisquare(counts[:-1], scaled).pvalue > 1e-3
        assert counts[-1] / 20_000 == pytest.approx(theory[-1], abs=0.005)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize(
    "index", [2, -1, slice(1, 3), torch.tensor([3, 0]), torch.tensor([True, False, False, True])]
)
def test_a_part_of_a_batch_has_the_densities_of_its_tasks(name, index):
    tasks = draw(name, 4)
    x = tasks.sample(6, stream(2))
    rows = slice(index % 4, index % 4 + 1) if isinstance(index, int) else index
    part = tasks[index]
    assert len(part) == len(x[rows])
    torch.testing.assert_close(part.log_prob(x[rows]), tasks.log_prob(x)[rows])


def test_mixture_density_is_that_of_scipy():
    law = GaussianMixtures(components=4, dim=3)
    tasks = law.draw(2, stream(), dtype=torch.float64)
    x = tasks.sample(5, stream(1))
    for b in range(2):
        parts = [
            stats.multivariate_normal(mean, std**2).pdf(x[b].numpy())
            for mean, std in zip(tasks.means[b].numpy(), tasks.stds[b].numpy(), strict=True)
        ]
        np.testing.assert_allclose(tasks.log_prob(x)[b], np.log(np.mean(parts, axis=0)))


@pytest.mark.parametrize(
    ("law", "means", "stds"),
    [
        (GaussianMixtures.compact(), stats.uniform(-3, 6), stats.uniform(0.3, 0.3)),
        (GaussianMixtures.paper(), stats.norm(0, 5), None),
    ],
)
def test_means_and_widths_follow_their_laws(law, means, stds):
    tasks = law.draw(1000, stream(), dtype=torch.float64)
    assert stats.kstest(tasks.means.flatten().numpy(), means.cdf).pvalue > 1e-3
    if stds is None:
        assert bool((tasks.stds == 0.5).all())
    else:
        assert stats.kstest(tasks.stds.flatten().numpy(), stds.cdf).pvalue > 1e-3


def test_distance_from_the_centre_of_a_ring_is_rician():
    tasks = Rings(components=1).draw(1, stream(), dtype=torch.float64)
    points = tasks.sample(5000, stream(1))
    distance = torch.linalg.vector_norm(points - tasks.centres, dim=-1)[0].numpy()
    radius, width = float(tasks.radii), float(tasks.thickness)
    assert stats.kstest(distance, stats.rice(radius / width, scale=width).cdf).pvalue > 1e-3


@pytest.mark.parametrize("law", [Moons(), Spirals()])
def test_curve_density_agrees_with_an_average_over_many_places(law):
    tasks = law.draw(1, stream(), dtype=torch.float64)
    x = tasks.sample(4, stream(1))
    u = (torch.arange(20_000, dtype=torch.float64) + 0.5) / 20_000
    density = torch.zeros(4, dtype=torch.float64)
    for arm in (0, 1):
        curve = tasks.curve(torch.tensor(arm), u ** (1 / tasks.power)) @ tasks.frames[0].T
        squares = (x[0, :, None] - curve - tasks.centres).square().sum(-1)
        variance = float(tasks.noise) ** 2
        density += (-squares / 2 / variance).exp().mean(1) / (2 * math.pi * variance) / 2
    torch.testing.assert_close(tasks.log_prob(x)[0].exp(), density, rtol=1e-6, atol=0)


def test_shapes_have_their_areas():
    pair = torch.zeros(1, 2, 2, dtype=torch.float64)
    pair[0, 1, 0] = 9.0
    tasks = ShapeTasks(
        centres=pair,
        halves=torch.tensor([[[2.0, 0.5], [1.0, 1.0]]], dtype=torch.float64),
        angles=torch.full((1, 2), math.pi / 2, dtype=torch.float64),
        discs=torch.tensor([[False, True]]),
    )
    x = torch.tensor([[[0.4, 1.9], [1.9, 0.4], [9.0, 0.9], [9.8, 0.8]]], dtype=torch.float64)
    expected = [math.log(1 / 4 / 2), -math.inf, math.log(1 / math.pi / 2), -math.inf]
    np.testing.assert_allclose(tasks.log_prob(x)[0], expected)


def test_unknown_names_no_tasks_and_points_of_another_batch_are_refused():
    with pytest.raises(InvalidInputError, match="'compact', 'paper', 'rings'"):
        prior("blobs")
    with pytest.raises(InvalidInputError, match="tasks"):
        GaussianMixtures().draw(0, stream())
    with pytest.raises(ShapeError, match=r"\(3, M, 2\)"):
        draw("compact", 3).log_prob(torch.zeros(2, 5, 2))
