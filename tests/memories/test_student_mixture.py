"""StudentMixture: densities, marginals, conditionals, draws and updates against scipy."""

import math

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

import isthmus as ist

DOUBLE = torch.float64


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=DOUBLE)


def factors(count: int, dim: int, seed: int = 7) -> Tensor:
    lower = normal(count, dim, dim, seed=seed).tril(-1)
    return 0.6 * lower + torch.diag_embed(0.3 + normal(count, dim, seed=seed + 1).abs())


@pytest.fixture
def mixture() -> ist.StudentMixture:
    """Five components in three dimensions, one of them Gaussian."""
    dof = torch.tensor([0.7, 2.0, 5.0, math.inf, 40.0], dtype=DOUBLE)
    return ist.StudentMixture(2 * normal(5, 3), factors(5, 3), dof, normal(5, seed=3))


def scipy_log_prob(mixture: ist.StudentMixture, x: Tensor) -> np.ndarray:
    """The log-density by scipy's Student and Gaussian distributions."""
    scales = mixture.scale_trils
    count, dim = mixture.means.shape
    if scales.ndim < 3:
        each = scales if scales.ndim == 2 else scales.reshape(-1, 1)
        scales = torch.diag_embed(each.expand(count, dim))
    matrices = (scales @ scales.transpose(1, 2)).numpy()
    logs = [
        stats.multivariate_t(m, S, df=v).logpdf(x.numpy())
        for m, S, v in zip(
            mixture.means.numpy(), matrices, mixture.dof.expand(count).numpy(), strict=True
        )
    ]
    logs = np.reshape(logs, (count, len(x))) + mixture.log_mixing_weights.numpy()[:, None]
    return np.logaddexp.reduce(logs, 0)


def test_the_density_is_that_of_scipy(mixture):
    x = 4 * normal(40, 3, seed=1)
    np.testing.assert_allclose(mixture.log_prob(x), scipy_log_prob(mixture, x), rtol=1e-10)
    lowered = mixture.energy(x) + mixture.log_normalizer()
    np.testing.assert_allclose(-lowered, scipy_log_prob(mixture, x), rtol=1e-10)


@pytest.mark.parametrize("scales", [0.7, [0.4, 1.0, 2.0, 0.5], "axes"])
@pytest.mark.parametrize("dof", [3.0, math.inf])
def test_round_and_diagonal_scales(scales, dof):
    scales = normal(4, 3, seed=5).abs() + 0.2 if scales == "axes" else scales
    mixture = ist.StudentMixture(normal(4, 3), scales, dof)
    x = 3 * normal(30, 3, seed=1)
    np.testing.assert_allclose(mixture.log_prob(x), scipy_log_prob(mixture, x), rtol=1e-10)
    each = torch.as_tensor(mixture.scale_trils)
    each = each if each.ndim == 2 else each.reshape(-1, 1)
    full = ist.StudentMixture(mixture.means, torch.diag_embed(each.expand(4, 3)), dof)
    for method in ("energy", "score", "step", "responsibilities"):
        torch.testing.assert_close(getattr(mixture, method)(x), getattr(full, method)(x))
    held = torch.tensor([True, False, False])
    torch.testing.assert_close(mixture.step(x, held), full.step(x, held))
    row = torch.tensor([0.3, math.nan, math.nan], dtype=DOUBLE)
    found, expected = mixture.conditional(row), full.conditional(row)
    y = normal(9, 2, seed=2)
    torch.testing.assert_close(found.log_prob(y), expected.log_prob(y))
    torch.testing.assert_close(
        mixture.marginal([2, 0]).log_prob(y), full.marginal([2, 0]).log_prob(y)
    )


@pytest.mark.parametrize("dof", [1e3, 3e3, 1e4, 1e6])
def test_the_normalizer_keeps_its_digits(dof):
    import mpmath

    for dim in (1, 3, 50):
        found = ist.StudentMixture(torch.zeros(1, dim, dtype=DOUBLE), 1.0, dof)
        at_zero = float(found.log_prob(torch.zeros(dim, dtype=DOUBLE)))
        v = mpmath.mpf(dof)
        exact = mpmath.loggamma((v + dim) / 2) - mpmath.loggamma(v / 2)
        exact -= mpmath.mpf(dim) / 2 * mpmath.log(v * mpmath.pi)
        assert at_zero == pytest.approx(float(exact), abs=1e-9)


def test_a_step_is_the_minimum_of_the_bound(mixture):
    x = normal(3, seed=1)
    shares = mixture.responsibilities(x)
    away = x - mixture.means
    precision = torch.linalg.inv(mixture.scale_trils @ mixture.scale_trils.transpose(1, 2))
    squares = torch.einsum("nd,nde,ne->n", away, precision, away)
    weight = shares * torch.where(
        mixture.dof.isinf(), 1.0, (mixture.dof + 3) / (mixture.dof + squares)
    )
    left = torch.einsum("n,nde->de", weight, precision)
    right = torch.einsum("n,nde,ne->d", weight, precision, mixture.means)
    torch.testing.assert_close(mixture.step(x), torch.linalg.solve(left, right))


def test_marginals_are_those_of_scipy(mixture):
    found = mixture.marginal([2, 0])
    x = 3 * normal(20, 2, seed=1)
    matrices = mixture.scale_trils @ mixture.scale_trils.transpose(1, 2)
    logs = [
        stats.multivariate_t(m[[2, 0]], S[[2, 0]][:, [2, 0]], df=v).logpdf(x)
        for m, S, v in zip(
            mixture.means.numpy(), matrices.numpy(), mixture.dof.numpy(), strict=True
        )
    ]
    expected = np.logaddexp.reduce(np.array(logs) + mixture.log_mixing_weights.numpy()[:, None])
    np.testing.assert_allclose(found.log_prob(x), expected, rtol=1e-10)
    rows = torch.full((20, 3), math.nan, dtype=DOUBLE)
    rows[:, [2, 0]] = x
    np.testing.assert_allclose(mixture.log_prob(rows, ~rows.isnan()), expected, rtol=1e-10)


@pytest.mark.parametrize("known", [[0], [2], [0, 2], [1, 2]])
def test_conditionals_are_joint_over_marginal(mixture, known):
    free = [d for d in range(3) if d not in known]
    row = torch.full((3,), math.nan, dtype=DOUBLE)
    row[known] = torch.tensor([0.8, -1.1], dtype=DOUBLE)[: len(known)]
    found = mixture.conditional(row)
    y = 2 * normal(15, len(free), seed=1)
    joint = row.expand(15, 3).clone()
    joint[:, free] = y
    expected = scipy_log_prob(mixture, joint) - float(mixture.marginal(known).log_prob(row[known]))
    np.testing.assert_allclose(found.log_prob(y), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.dof, mixture.dof + len(known))


def test_draws_have_the_density(mixture):
    drawn = mixture.sample(20_000, seed=1)
    for column in range(3):
        marginal = mixture.marginal([column])
        shares, scales = marginal.log_mixing_weights.exp(), marginal.scale_trils[:, 0, 0]

        def cdf(t, marginal=marginal, shares=shares, scales=scales):
            white = (np.asarray(t)[:, None] - marginal.means[:, 0].numpy()) / scales.numpy()
            return stats.t(marginal.dof.numpy()).cdf(white) @ shares.numpy()

        assert stats.kstest(drawn[:, column], cdf).pvalue > 0.01
    # Their dependence: squared Mahalanobis distances of one component have an F law.
    one = mixture.subset([2])
    away = torch.linalg.solve_triangular(
        one.scale_trils[0], (one.sample(20_000, seed=2) - one.means[0]).T, upper=False
    )
    assert stats.kstest(away.square().sum(0) / 3, stats.f(3, 5).cdf).pvalue > 0.01
    assert torch.equal(mixture.sample(3, seed=4), mixture.sample(3, seed=4))


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_units_only_shift_the_log_density(mixture, unit):
    x = 2 * normal(10, 3, seed=1)
    scaled = ist.StudentMixture(
        unit * mixture.means, unit * mixture.scale_trils, mixture.dof, mixture.log_weights
    )
    shift = 3 * math.log(unit)
    torch.testing.assert_close(scaled.log_prob(unit * x) + shift, mixture.log_prob(x))
    torch.testing.assert_close(scaled.step(unit * x) / unit, mixture.step(x))
    torch.testing.assert_close(scaled.score(unit * x) * unit, mixture.score(x))
    torch.testing.assert_close(scaled.sample(9) / unit, mixture.sample(9))
    row = torch.tensor([0.8, math.nan, -1.1], dtype=DOUBLE)
    given, expected = scaled.conditional(unit * row), mixture.conditional(row)
    torch.testing.assert_close(given.means / unit, expected.means)
    torch.testing.assert_close(given.log_mixing_weights, expected.log_mixing_weights)


def test_blocks_do_not_change_results(mixture, monkeypatch):
    x = normal(50, 3, seed=1)
    expected = [getattr(mixture, name)(x) for name in ("energy", "score", "step")]
    held = x > 0
    held_step = mixture.step(x, held)
    monkeypatch.setattr("isthmus.memories.table_mixture.BLOCK_ENTRIES", 40)
    for name, value in zip(("energy", "score", "step"), expected, strict=True):
        torch.testing.assert_close(getattr(mixture, name)(x), value)
    torch.testing.assert_close(mixture.step(x, held), held_step)
