"""Task distributions: samples, densities and seeds agree with each other and with scipy."""

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from isthmus.incontext.priors import PRIORS, GaussianMixtures, MixtureTasks, prior


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def cells(half: float, count: int) -> Tensor:
    """Midpoints of count x count squares that fill the box: (1, count^2, 2)."""
    edge = (torch.arange(count, dtype=torch.float64) + 0.5) / count * 2 * half - half
    return torch.cartesian_prod(edge, edge)[None]


def draw(name: str, tasks: int, seed: int = 0) -> MixtureTasks:
    return prior(name).draw(tasks, stream(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PRIORS)
def test_density_integrates_to_one_over_the_box(name):
    half, tasks = prior(name).box, draw(name, 2)
    mass = tasks.log_prob(cells(half, 160).expand(2, -1, 2)).exp().sum(1) * (half / 80) ** 2
    torch.testing.assert_close(mass, torch.ones_like(mass), atol=1e-4, rtol=0)


@pytest.mark.parametrize("name", PRIORS)
def test_samples_fill_cells_as_the_density_says(name):
    half, coarse, share = prior(name).box, 12, 16
    tasks = draw(name, 1, seed=3)
    mass = tasks.log_prob(cells(half, coarse * share)).exp() * (2 * half / coarse / share) ** 2
    expected = mass.view(coarse, share, coarse, share).sum((1, 3)).flatten()
    points = tasks.sample(20_000, stream(4))[0]
    index = ((points + half) / (2 * half) * coarse).long().clamp(0, coarse - 1)
    seen = torch.bincount(index[:, 0] * coarse + index[:, 1], minlength=coarse**2)
    full = expected * 20_000 > 10
    theory = torch.cat([expected[full], expected[~full].sum()[None]]).numpy()
    counts = torch.cat([seen[full], seen[~full].sum()[None]]).numpy()
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
