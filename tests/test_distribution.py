"""Energies as distributions of PyTorch, and quantiles of one coordinate, against scipy."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import isthmus as ist
from isthmus.errors import InvalidInputError, MissingOperationError, UnknownNormalizerError

RNG = np.random.default_rng(0)
ROWS = RNG.normal(size=(7, 3)) * [1.0, 2.0, 5.0]
SHAPE = np.array([[1.0, 0.4, 0.1], [0.4, 2.0, -0.3], [0.1, -0.3, 1.5]])
LOG_WEIGHTS = np.log(np.arange(1.0, 8.0))
ENERGIES = {
    "round": ist.GaussianKDE(ROWS, 0.5),
    "stretched": ist.GaussianKDE(ROWS, [0.5, 1.0, 2.0], log_weights=LOG_WEIGHTS),
    "full": ist.GaussianKDE(ROWS, 0.7, covariance=SHAPE, factors=np.linspace(0.5, 2, 7)),
    "mixture": ist.Mixture(ROWS, beta=0.8, log_weights=LOG_WEIGHTS),
    "own": ist.Mixture(ROWS, covariance=np.arange(1.0, 8.0)[:, None, None] * SHAPE),
    "crp": ist.CRPMixture(ROWS, counts=np.arange(1.0, 8.0)),
    "student": ist.StudentMixture(ROWS, np.ones((7, 3)), [3.0, 4, 5, 6, 7, 8, np.inf], LOG_WEIGHTS),
    "student kde": ist.StudentKDE(ROWS, 0.8, dof=4.0),
    "epanechnikov": ist.EpanechnikovKDE(ROWS, 1.3),
    "uniform": ist.UniformKDE(ROWS, 1.3),
    "moved": ist.Affine(ist.GaussianKDE(ROWS, 0.5), scale=[2.0, -3.0, 1.0], shift=[1.0, 0.0, 5.0]),
}


@pytest.mark.parametrize("name", ENERGIES)
def test_the_distribution_function_is_the_integral_of_the_marginal_density(name: str) -> None:
    energy = ENERGIES[name]
    for column in (0, 1):
        ends = energy.ppf([0.2, 0.8], column)
        points = np.zeros((20_001, 3))
        points[:, column] = x = np.linspace(*ends, len(points))
        density = np.exp(energy.log_prob(points, np.arange(3) == column))
        assert integrate.trapezoid(density, x) == pytest.approx(0.6, abs=2e-4)
        assert energy.cdf(ends, column) == pytest.approx([0.2, 0.8], abs=1e-9)
        assert energy.interval(0.6, column) == pytest.approx(tuple(ends))


@pytest.mark.parametrize(
    ("energy", "kernel"),
    [
        (ist.GaussianKDE, stats.norm()),
        (ist.LaplaceKDE, stats.laplace()),
        (ist.UniformKDE, stats.uniform(-1, 2)),
        (lambda rows, h: ist.StudentKDE(rows, h, dof=2.5), stats.t(2.5)),
        (lambda rows, h: ist.StudentMixture(rows, h, 2.5), stats.t(2.5)),
    ],
)
def test_one_column_against_scipy(energy, kernel) -> None:
    rows = ROWS[:, :1]
    found = energy(rows, 0.6)
    x = np.linspace(-6, 6, 41)
    expected = np.mean([kernel.cdf((x - row) / 0.6) for row in rows[:, 0]], 0)
    assert found.cdf(x) == pytest.approx(expected, abs=1e-12)
    ends = [rows.min(), rows.max()] + 0.6 * np.array(kernel.support())
    assert found.interval(1.0) == pytest.approx(tuple(ends))
    q = np.array([1e-9, 0.01, 0.3, 0.5, 0.99])
    assert found.cdf(found.ppf(q)) == pytest.approx(q, rel=1e-6)
    law = found.as_distribution()
    variance = kernel.var() * 0.36 + rows.var()
    assert law.mean.numpy() == pytest.approx(rows.mean(), abs=1e-6)
    assert law.variance.numpy() == pytest.approx(variance, rel=1e-5)
    assert law.cdf(torch.tensor([[0.5]], dtype=torch.float64)).numpy() == found.cdf([0.5])
    assert law.icdf(torch.tensor([0.3])).shape == (1, 1)


def test_single_component_equals_scipy_at_the_ends() -> None:
    kde = ist.GaussianKDE([[2.0]], 3.0)
    q = [0.0, 1e-300, 0.5, 1.0]
    assert kde.ppf(q) == pytest.approx(stats.norm(2, 3).ppf(q))
    ball = ist.UniformKDE([[0.0], [10.0]], 1.0)
    assert ball.ppf([0.0, 0.5, 1.0]) == pytest.approx([-1.0, 1.0, 11.0])


@pytest.mark.parametrize("name", ENERGIES)
def test_moments_are_those_of_draws(name: str) -> None:
    energy = ENERGIES[name]
    law, drawn = energy.as_distribution(), np.asarray(energy.sample(40_000, seed=1))
    spread = drawn.std(0)
    assert np.all(abs(law.mean.numpy() - drawn.mean(0)) < 0.03 * spread)
    assert law.stddev.numpy() == pytest.approx(spread, rel=0.12 if "student" in name else 0.03)
    narrow = deepcopy(energy).float().as_distribution()
    assert narrow.mean.numpy() == pytest.approx(law.mean.numpy(), abs=1e-5)
    assert narrow.variance.numpy() == pytest.approx(law.variance.numpy(), rel=1e-5)


def test_shapes_validation_and_the_stream_of_torch() -> None:
    kde = ist.GaussianKDE(torch.tensor(ROWS), 0.5)
    law = kde.as_distribution(validate_args=True)  # whatever other libraries made the default
    assert law.batch_shape == ()
    assert law.event_shape == (3,)
    line = ist.GaussianKDE(torch.tensor([[0.0], [4.0]]), 1.0)
    assert line.cdf(torch.tensor([0, 2, 4])) == pytest.approx(line.cdf([0.0, 2.0, 4.0]))
    three = line.as_distribution().expand([3])
    assert three.cdf(torch.zeros(1)).shape == (3,)
    assert three.cdf(torch.zeros(2, 1, 1)).shape == (2, 3)
    assert three.icdf(torch.tensor(0.5)).shape == (3, 1)
    assert "GaussianKDE" in repr(three)
    wide = law.expand((4, 1))
    assert wide.sample((5, 2)).shape == (5, 2, 4, 1, 3)
    assert wide.log_prob(torch.zeros(3).double()).shape == (4, 1)
    assert wide.mean.shape == (4, 1, 3)
    points = law.sample((6,))
    assert torch.equal(law.log_prob(points), kde.log_prob(points))
    independent = torch.distributions.Independent(wide, 1)
    assert independent.log_prob(wide.sample()).shape == (4,)
    with pytest.raises(ValueError, match="support|constraint"):
        law.log_prob(torch.full((3,), torch.nan).double())
    with pytest.raises(ValueError, match="size"):
        law.log_prob(torch.zeros(2).double())
    torch.manual_seed(3)
    first = law.sample((2,))
    torch.manual_seed(3)
    assert torch.equal(first, law.sample((2,)))


def test_moments_of_laplace_kernels_in_several_dimensions_are_those_of_draws() -> None:
    energy = ist.LaplaceKDE(ROWS, 1.0)
    law, draws = energy.as_distribution(), energy.sample(200_000, seed=0)
    np.testing.assert_allclose(law.mean, draws.mean(0), atol=0.03)
    np.testing.assert_allclose(law.variance, draws.var(0), rtol=0.03)


def test_what_cannot_be_said_is_refused() -> None:
    with pytest.raises(MissingOperationError):
        ist.Hopfield(np.eye(2)).as_distribution()
    with pytest.raises(InvalidInputError, match="column"):
        ist.GaussianKDE(ROWS, 1.0).cdf(0.0)
    for column in (3, -1, 0.5, True, "a"):
        with pytest.raises(InvalidInputError, match="column"):
            ist.GaussianKDE(ROWS, 1.0).cdf(0.0, column=column)
    kde = ist.GaussianKDE(ROWS, 1.0)
    assert kde.cdf(0.0, column=1.0) == kde.cdf(0.0, column=1)
    with pytest.raises(InvalidInputError, match="probabilities"):
        ist.GaussianKDE(ROWS, 1.0).ppf(1.5, column=0)
    with pytest.raises(MissingOperationError):
        ist.LaplaceKDE(ROWS, 1.0).cdf(0.0, column=0)
    sphere = ist.VonMisesFisherMixture(np.eye(3), 5.0).as_distribution()
    assert sphere.sample((2,)).shape == (2, 3)
    with pytest.raises(NotImplementedError):
        _ = sphere.mean
    with pytest.raises((MissingOperationError, UnknownNormalizerError)):
        ist.NeuralEnergy(2).as_distribution()
    heavy = ist.StudentKDE(ROWS, 1.0, dof=1.0).as_distribution()
    assert heavy.mean.isnan().all()
