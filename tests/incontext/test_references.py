"""Reference predictors against integrals and sums that share no code with them."""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.mixture import GaussianMixture
from torch import Tensor

import isthmus as ist
from isthmus.incontext.priors import GaussianMixtures, prior
from isthmus.incontext.references import BayesPredictive, FittedMixture, KernelDensity, reference

ONE_DIMENSION = GaussianMixtures(components=2, dim=1, mean_scale=2.0, box=4.0)


def problem(
    law: GaussianMixtures, tasks: int, size: int, points: int, seed: int = 0
) -> tuple[Tensor, Tensor]:
    generator = torch.Generator().manual_seed(seed)
    drawn = law.draw(tasks, generator, dtype=torch.float64)
    return drawn.sample(size, generator), drawn.sample(points, generator)


def legendre(low: float, high: float, count: int) -> tuple[np.ndarray, np.ndarray]:
    nodes, weights = np.polynomial.legendre.leggauss(count)
    return (low + high) / 2 + (high - low) / 2 * nodes, weights / 2


def predictive_by_integration(law: GaussianMixtures, context: Tensor, x: Tensor) -> np.ndarray:
    """Two components in one dimension: integrate the likelihood over means and widths.

    No assignment of points to components appears in it.
    """
    if law.mean_law == "uniform":
        means, mean_weights = legendre(-law.mean_scale, law.mean_scale, 60)
    else:
        means, mean_weights = legendre(-5 * law.mean_scale, 5 * law.mean_scale, 170)
        mean_weights = mean_weights * stats.norm.pdf(means, scale=law.mean_scale)
    widths, width_weights = legendre(law.std_low, law.std_high, 14)
    nodes = np.array(list(itertools.product(means, widths)))
    weights = np.outer(mean_weights, width_weights).ravel()

    def density(point: float) -> np.ndarray:
        one = stats.norm.pdf(point, nodes[:, 0], nodes[:, 1])
        return (one[:, None] + one[None]) / 2

    posterior = np.outer(weights, weights)
    for point in context[:, 0].tolist():
        posterior = posterior * density(point)
    posterior /= posterior.sum()
    return np.log([(posterior * density(point)).sum() for point in x[:, 0].tolist()])


def predictive_by_enumeration(law: GaussianMixtures, context: Tensor, x: Tensor) -> np.ndarray:
    """Known width, normal means: all K^n assignments, each cluster one joint normal density."""
    tau, std, components = law.mean_scale, law.std_low, law.components

    def joint(points: np.ndarray) -> float:
        if len(points) == 0:
            return 0.0
        covariance = std**2 * np.eye(len(points)) + tau**2
        normal = stats.multivariate_normal(np.zeros(len(points)), covariance)
        return float(sum(normal.logpdf(column) for column in points.T))

    data, total = context.numpy(), []
    for labels in itertools.product(range(components), repeat=len(data)):
        groups = [data[np.array(labels, dtype=int) == k] for k in range(components)]
        own = [joint(group) for group in groups]
        for point in x.numpy():
            with_point = [joint(np.vstack([group, point])) for group in groups]
            ahead = np.mean([np.exp(new - old) for new, old in zip(with_point, own, strict=True)])
            total.append((sum(own), sum(own) + math.log(ahead)))
    table = np.array(total).reshape(-1, len(x), 2)
    return np.logaddexp.reduce(table[..., 1]) - np.logaddexp.reduce(table[..., 0])


@pytest.mark.parametrize("mean_law", ["uniform", "normal"])
@pytest.mark.parametrize("size", [0, 1, 3])
def test_bayes_is_the_integral_over_means_and_widths(mean_law, size):
    law = GaussianMixtures(2, 1, mean_law, 2.0, box=9.0)
    context, x = problem(law, 2, size, 5)
    found = BayesPredictive(law).log_prob(context, x)
    for b in range(2):
        expected = predictive_by_integration(law, context[b], x[b])
        np.testing.assert_allclose(found[b], expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("size", "components"), [(2, 3), (5, 3), (6, 2)])
def test_bayes_is_the_sum_over_all_assignments(size, components):
    law = GaussianMixtures(components, 2, "normal", 2.0, 0.5, 0.5, box=9.0)
    context, x = problem(law, 1, size, 2)
    found = BayesPredictive(law).log_prob(context, x)[0]
    expected = predictive_by_enumeration(law, context[0], x[0])
    np.testing.assert_allclose(found, expected, rtol=0, atol=1e-9)


@pytest.mark.parametrize("name", ["compact", "paper"])
def test_the_sample_of_partitions_agrees_with_all_of_them(name):
    law = prior(name)
    context, x = problem(law, 6, 7, 16, seed=1)
    exact = BayesPredictive(law, particles=400).predictions(context, (7,), x)[0]
    some = BayesPredictive(law, particles=100).predictions(context, (7,), x)[0]
    assert float(exact.error.max()) == 0
    assert float(some.error.max()) > 0
    difference = (exact.log_prob - some.log_prob).mean(1)
    assert float(difference.abs().max()) < 0.1
    assert float(difference.mean().abs()) < 0.01
    torch.testing.assert_close(some.log_evidence, exact.log_evidence, atol=0.1, rtol=0)


def test_one_pass_gives_what_each_context_gives_alone():
    law = GaussianMixtures.compact()
    context, x = problem(law, 9, 5, 4)  # more tasks than are worked on at once
    bayes = BayesPredictive(law)
    for size, found in zip((0, 2, 5), bayes.nested(context, (0, 2, 5), x), strict=True):
        torch.testing.assert_close(found, bayes.log_prob(context[:, :size], x))


def test_kernel_density_is_that_of_the_memory():
    context, x = problem(GaussianMixtures.compact(), 3, 6, 5)
    found = KernelDensity(0.4).log_prob(context, x)
    for b in range(3):
        torch.testing.assert_close(found[b], ist.GaussianKDE(context[b], sigma=0.4).log_prob(x[b]))


def test_silverman_in_one_dimension_is_that_of_scipy():
    context, x = problem(ONE_DIMENSION, 2, 9, 5)
    found = KernelDensity("silverman").log_prob(context, x)
    for b in range(2):
        peer = stats.gaussian_kde(context[b, :, 0].numpy(), bw_method="silverman")
        np.testing.assert_allclose(found[b], peer.logpdf(x[b, :, 0].numpy()))


def test_no_bandwidth_is_better_than_the_best():
    context, x = problem(GaussianMixtures.compact(), 10, 8, 20)
    best = float(KernelDensity("best").log_prob(context, x).mean())
    others = [float(KernelDensity(h).log_prob(context, x).mean()) for h in np.geomspace(0.05, 5)]
    assert max(others) <= best + 1e-4
    assert best < max(others) + 0.01


def test_fitted_mixture_is_that_of_scikit_learn():
    context, x = problem(GaussianMixtures.compact(), 2, 20, 5)
    found = FittedMixture(3, regularizer=0.1, starts=2, seed=4).log_prob(context, x)
    for b in range(2):
        peer = GaussianMixture(3, covariance_type="spherical", reg_covar=0.1, n_init=2)
        peer = peer.set_params(random_state=4).fit(context[b].numpy())
        np.testing.assert_allclose(found[b], peer.score_samples(x[b].numpy()))


@pytest.mark.parametrize(
    ("name", "first"), [("kde-best", 1), ("kde-silverman", 2), ("em-0.1", 3), ("bayes", 0)]
)
def test_too_few_points_are_nan(name, first):
    context, x = problem(GaussianMixtures.compact(), 2, 4, 3)
    sizes = (0, 1, 2, 3, 4)
    found = reference(name, GaussianMixtures.compact()).nested(context, sizes, x)
    defined = [bool(torch.isfinite(each).all()) for each in found]
    assert defined == [size >= first for size in sizes]
    assert all(bool(torch.isnan(each).all()) for each in found[:first])
