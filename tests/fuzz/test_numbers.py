"""Numbers at their limits: densities by quadrature, far offsets, extreme sizes, and moments."""

import math
from collections.abc import Callable

import mpmath
import numpy as np
import pytest
import torch
from numpy.polynomial.legendre import leggauss
from numpy.testing import assert_allclose
from numpy.typing import NDArray

import isthmus as ist
from isthmus.capacity import certify
from isthmus.compose import WeightedSum
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError
from isthmus.memories.base import MarginalMemory

Array = NDArray[np.float64]
M = np.array([[0.0, 0.3], [1.4, -0.8], [-0.9, 1.1]])
LOGS = np.log([0.2, 0.5, 0.3])
SHEAR = np.array([[0.5, 0.0], [0.3, 0.4]])


def shaped(dim: int) -> Array:
    return (SHEAR @ SHEAR.T)[:dim, :dim]


def own_shapes(dim: int) -> Array:
    return np.array([1.0, 0.6, 1.5])[:, None, None] * shaped(dim)


# Densities as functions of the number of coordinates.
DENSITIES: dict[type, list[Callable[[int], Energy]]] = {
    ist.GaussianKDE: [
        lambda d: ist.GaussianKDE(M[:, :d], 0.4),
        lambda d: ist.GaussianKDE(M[:, :d], 0.4, log_weights=LOGS + 7),
        lambda d: ist.GaussianKDE(M[:, :d], covariance=shaped(d), log_weights=LOGS),
        lambda d: ist.GaussianKDE(M[:, :d], 0.4, factors=[0.5, 1.0, 2.0]),
    ],
    ist.Mixture: [
        lambda d: ist.Mixture(M[:, :d], 2.0, LOGS),
        lambda d: ist.Mixture(M[:, :d], 1.0, LOGS - 3, covariance=own_shapes(d)),
    ],
    ist.ModernHopfield: [lambda d: ist.ModernHopfield(M[:, :d], 3.0)],
    ist.EpanechnikovKDE: [lambda d: ist.EpanechnikovKDE(M[:, :d], 0.8)],
    ist.UniformKDE: [lambda d: ist.UniformKDE(M[:, :d], 0.8)],
    ist.LaplaceKDE: [lambda d: ist.LaplaceKDE(M[:, :d], 0.5)],
    ist.StudentKDE: [lambda d: ist.StudentKDE(M[:, :d], 0.5, dof=4.0)],
    ist.StudentMixture: [
        lambda d: ist.StudentMixture(M[:, :d], 0.4, [3.0, 8.0, math.inf], LOGS),
        lambda d: ist.StudentMixture(M[:, :d], np.linalg.cholesky(own_shapes(d)), 5.0),
    ],
    # Its categories are summed over in tests/incontext/test_questions.py.
    ist.TableMixture: [lambda d: ist.TableMixture(M[:, :d], [], 0.4, [3.0, 8.0, math.inf], LOGS)],
    ist.CRPMixture: [
        lambda d: ist.CRPMixture(M[:, :d], [4.0, 2.0, 1.0], 2.0, 0.5, 1.5, 0.3),
        lambda d: ist.CRPMixture(M[:, :d], [4.0, 2.0, 1.0], 2.0, 0.5, normalized=False),
    ],
    ist.Affine: [
        lambda d: ist.Affine(ist.GaussianKDE(M[:, :d], 0.4), scale=-1.7, shift=0.2),
        lambda d: ist.Affine(ist.GaussianKDE(M[:, :d], 0.4), matrix=shaped(d) + np.eye(d)),
    ],
    WeightedSum: [
        lambda d: ist.GaussianKDE(M[:, :d], 0.5) + ist.GaussianKDE(M[1:, :d] + 0.2, 0.5),
        lambda d: ist.GaussianKDE(M[:, :d], 0.5).in_nats() + ist.Mixture(M[1:, :d]).in_nats(),
    ],
}
# Corners and jumps of a kernel limit the accuracy of a grid, and so do heavy tails.
TOLERANCE = {
    ist.UniformKDE: 3e-3,
    ist.EpanechnikovKDE: 1e-4,
    ist.LaplaceKDE: 1e-3,
    ist.StudentKDE: 1e-5,
    ist.StudentMixture: 1e-4,
    ist.TableMixture: 1e-4,
}


def line(n: int) -> tuple[Array, Array]:
    """Return points of the whole line and their weights: the midpoint rule in t, x(t) below."""
    t = (np.arange(n) + 0.5) * 2 / n - 1
    return 3 * t / (1 - t**2), 6 / n * (1 + t**2) / (1 - t**2) ** 2


def mass(log_prob: Callable[[Array], Array], dim: int) -> float:
    """Return the integral of a density over the line or the plane."""
    x, weights = line(8000 if dim == 1 else 300)
    if dim == 1:
        return float(weights @ np.exp(log_prob(x[:, None])))
    plane = np.stack(np.meshgrid(x, x, indexing="ij"), -1).reshape(-1, 2)
    return float(weights @ np.exp(log_prob(plane)).reshape(len(x), -1) @ weights)


CASES = [(kind, make) for kind, makers in DENSITIES.items() for make in makers]
NAMES = [f"{kind.__name__}-{place}" for place, (kind, _) in enumerate(CASES)]


@pytest.mark.parametrize(("kind", "make"), CASES, ids=NAMES)
@pytest.mark.parametrize("dim", [1, 2])
def test_densities_integrate_to_one(kind, make, dim) -> None:
    energy = make(dim)
    assert mass(energy.log_prob, dim) == pytest.approx(1, abs=TOLERANCE.get(kind, 1e-7))


@pytest.mark.parametrize(("kind", "make"), CASES, ids=NAMES)
def test_what_is_left_of_a_density_integrates_to_one(kind, make) -> None:
    """Marginals by a mask, marginal() and condition(), wherever a density has them."""
    energy, tolerance = make(2), TOLERANCE.get(kind, 1e-7)
    if isinstance(energy, MarginalMemory | ist.StudentMixture):

        def seen(x: Array) -> Array:
            both = np.column_stack([x, np.full(len(x), np.nan)])
            return energy.log_prob(both, np.array([True, False]))

        assert mass(seen, 1) == pytest.approx(1, abs=tolerance)
    if hasattr(energy, "marginal"):
        assert mass(energy.marginal([1]).log_prob, 1) == pytest.approx(1, abs=tolerance)
    if hasattr(energy, "condition"):
        rest = energy.condition([0.4, np.nan])
        assert mass(rest.log_prob, 1) == pytest.approx(1, abs=tolerance)


def test_densities_on_spheres_integrate_to_one() -> None:
    angle = np.arange(2000) * 2 * np.pi / 2000
    circle = np.column_stack([np.cos(angle), np.sin(angle)])
    mixture = ist.VonMisesFisherMixture(M, 6.0, LOGS)
    assert np.exp(mixture.log_prob(circle)).mean() * 2 * np.pi == pytest.approx(1, abs=1e-10)
    height, weights = leggauss(80)
    ring = np.sqrt(1 - height**2)[:, None, None] * circle[None, ::20]
    points = np.concatenate([ring, np.broadcast_to(height[:, None, None], (80, 100, 1))], -1)
    ball = ist.VonMisesFisherMixture(np.column_stack([M, [0.5, -0.2, 2.0]]), 6.0, LOGS)
    density = np.exp(ball.log_prob(points)).mean(1) * 2 * np.pi
    assert weights @ density == pytest.approx(1, abs=1e-10)


FAR_KINDS: dict[str, Callable[[torch.Tensor], Energy]] = {
    "GaussianKDE": lambda m: ist.GaussianKDE(m, 0.7),
    "GaussianKDE, shaped": lambda m: ist.GaussianKDE(m, covariance=shaped(2)),
    "GaussianKDE, factors": lambda m: ist.GaussianKDE(m, 0.7, factors=[0.5, 1.0, 2.0]),
    "Mixture": lambda m: ist.Mixture(m, 1.5, LOGS),
    "Mixture, shaped": lambda m: ist.Mixture(m, 1.0, LOGS, covariance=own_shapes(2)),
    "EpanechnikovKDE": lambda m: ist.EpanechnikovKDE(m, 3.0),
    "LaplaceKDE": lambda m: ist.LaplaceKDE(m, 0.7),
    "StudentKDE": lambda m: ist.StudentKDE(m, 0.7),
    "StudentMixture": lambda m: ist.StudentMixture(m, 0.7, 4.0, LOGS),
    "CRPMixture": lambda m: ist.CRPMixture(m, [3.0, 2.0, 1.0], 1.5, prior_mean=m[0]),
    # Learned near the origin, and asked in units that are far from it.
    "Affine": lambda m: ist.Affine(ist.GaussianKDE(m - m[0], 0.7), scale=[2.0, 0.5], shift=m[0]),
    "sum": lambda m: ist.GaussianKDE(m, 0.7) + ist.GaussianKDE(m + 1, 0.7),
}


@pytest.mark.parametrize("shift", [1e4, 1e5, 1e6])
@pytest.mark.parametrize("kind", FAR_KINDS)
def test_float32_far_from_the_origin_is_float64_of_the_same_numbers(kind, shift) -> None:
    """Energies and scores to 1e-4 of their size, steps to the spacing of float32 there."""
    memories = torch.tensor(M + shift, dtype=torch.float32)
    x = torch.tensor(M[::-1] * 0.5 + 0.2 + shift, dtype=torch.float32)
    low, high = FAR_KINDS[kind](memories), FAR_KINDS[kind](memories.double())
    expected = high.energy(x.double())
    assert_allclose(low.energy(x), expected, rtol=1e-4, atol=1e-4)
    force = high.score(x.double())
    assert_allclose(low.score(x), force, atol=1e-4 * (1 + float(force.abs().max())))
    spacing = 4 * torch.finfo(torch.float32).eps * shift
    assert_allclose(low.step(x), high.step(x.double()), rtol=0, atol=spacing)


def exact(x: Array, memories: Array, beta: float, log_bias: list) -> tuple[float, Array]:
    """Return log sum_n exp(bias_n - beta |x - m_n|^2 / 2) and the weighted mean, in 60 digits."""
    with mpmath.workdps(60):
        rows = [[mpmath.mpf(value) for value in row] for row in memories.tolist()]
        point = [mpmath.mpf(value) for value in x.tolist()]
        terms = [
            bias - mpmath.mpf(beta) / 2 * sum((a - b) ** 2 for a, b in zip(point, row, strict=True))
            for row, bias in zip(rows, log_bias, strict=True)
        ]
        most = max(terms)
        shares = [mpmath.exp(term - most) for term in terms]
        total = sum(shares)
        columns = zip(*rows, strict=True)
        mean = [sum(s * r for s, r in zip(shares, c, strict=True)) / total for c in columns]
        return float(most + mpmath.log(total)), np.array([float(value) for value in mean])


@pytest.mark.parametrize("beta", [1e-8, 1e-4, 1.0, 1e4, 1e8])
@pytest.mark.parametrize("rows", [[0], [0, 1, 2], [0, 0, 1, 1, 2]], ids=["one", "three", "twins"])
@pytest.mark.parametrize("dim", [1, 2])
def test_extreme_temperatures_against_mpmath(beta, rows, dim) -> None:
    memories = M[rows, :dim]
    points = np.array([[0.2, 0.1], [0.7, -0.25], [50.0, -3.0]])[:, :dim]
    constant = dim / 2 * math.log(beta / (2 * math.pi))
    with mpmath.workdps(60):
        half_squares = [mpmath.mpf(beta) / 2 * mpmath.fdot(r, r) for r in memories.tolist()]
        total = float(mpmath.log(sum(map(mpmath.exp, half_squares))))
    cases = [
        (ist.GaussianKDE(memories, beta**-0.5), [mpmath.mpf(0)] * len(rows), math.log(len(rows))),
        (ist.ModernHopfield(memories, beta), half_squares, total),
    ]
    for energy, bias, log_total in cases:
        for x in points:
            logsumexp, mean = exact(x, memories, beta, bias)
            size = 1 + beta * (1 + float(x @ x))
            assert energy.log_prob(x) == pytest.approx(
                constant + logsumexp - log_total, abs=1e-13 * size + 1e-12, rel=1e-12
            )
            assert_allclose(energy.step(x), mean, atol=1e-14 * size + 1e-13)
            slope = np.asarray(energy.score(x)) * float(energy.inverse_temperature)
            assert_allclose(slope, beta * (mean - x), atol=1e-13 * size * beta + 1e-12 * beta)


@pytest.mark.parametrize(("dtype", "tolerance"), [("float64", 1e-10), ("float32", 1e-5)])
@pytest.mark.parametrize("n", [1, 3])
@pytest.mark.parametrize("dim", [10_000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_many_coordinates(dim, n, dtype, tolerance) -> None:
    rng = np.random.default_rng(0)
    memories = rng.standard_normal((n, dim)).astype(dtype)
    memories[-1] = memories[0]  # a duplicate, where there are two
    x = (memories[0] + 0.3 * rng.standard_normal(dim)).astype(dtype)
    sigma = 40.0
    squares = ((x.astype(np.longdouble) - memories.astype(np.longdouble)) ** 2).sum(1)
    terms = np.exp(-(squares - squares.min()) / (2 * sigma**2))
    log_kernel = np.log(terms.mean()) - squares.min() / (2 * sigma**2)
    expected = float(log_kernel - dim / 2 * np.log(2 * np.pi * np.longdouble(sigma) ** 2))
    kde = ist.GaussianKDE(memories, sigma)
    assert float(kde.log_prob(x)) == pytest.approx(expected, rel=tolerance)
    mean = (terms / terms.sum()) @ memories.astype(np.longdouble)
    assert_allclose(kde.step(x), mean.astype(float), rtol=0, atol=10 * tolerance)
    found = certify(memories, 1.0)
    assert found.stored.tolist() == [n == 1 or row == 1 for row in range(n)]


def test_directions_of_any_concentration_are_drawn() -> None:
    drawn = ist.VonMisesFisherMixture(torch.tensor([[0.6, 0.8]]).double(), 1e308).sample(5)
    torch.testing.assert_close(drawn, torch.tensor([[0.6, 0.8]]).double().expand(5, 2))


def test_sparse_weights_that_overflow_are_an_error() -> None:
    with pytest.raises(InvalidInputError, match="range"):
        ist.SparseHopfield(np.eye(2), beta=1e308).responsibilities(9 * np.eye(2))
