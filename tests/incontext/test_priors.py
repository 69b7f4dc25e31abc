"""Task distributions: samples, densities and seeds agree with each other and with scipy."""

import numpy as np
import pytest
import torch
from scipy import stats

from isthmus.incontext.priors import PRIORS, GaussianMixtures, MixtureTasks, prior


def stream(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def draw(name: str, tasks: int, seed: int = 0) -> MixtureTasks:
    return prior(name).draw(tasks, stream(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", PRIORS)
@pytest.mark.parametrize("axis", [[1.0, 0.0], [0.6, 0.8]])
def test_samples_follow_the_density_along_an_axis(name, axis):
    tasks = draw(name, 1, seed=3)
    points = tasks.sample(20_000, stream(4))[0].numpy() @ axis
    means, stds = tasks.means[0].numpy() @ axis, tasks.stds[0].numpy()
    law = stats.kstest(points, lambda x: stats.norm.cdf(x[:, None], means, stds).mean(1))
    assert law.pvalue > 1e-3


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
