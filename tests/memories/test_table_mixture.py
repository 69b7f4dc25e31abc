"""Mixtures of Student-t distributions, with and without categories: SciPy, sums, quadrature."""

import itertools
import math

import numpy as np
import pytest
import torch
from helpers import draw
from scipy import integrate, stats
from torch import Tensor

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.errors import InvalidInputError, ShapeError

DOUBLE = torch.float64


def factors(count: int, dim: int, seed: int = 7) -> Tensor:
    lower = draw(count, dim, dim, seed=seed).tril(-1)
    return 0.6 * lower + torch.diag_embed(0.3 + draw(count, dim, seed=seed + 1).abs())


@pytest.fixture
def mixture() -> ist.StudentMixture:
    """Five components in three dimensions, one of them Gaussian."""
    dof = torch.tensor([0.7, 2.0, 5.0, math.inf, 40.0], dtype=DOUBLE)
    return ist.StudentMixture(2 * draw(5, 3), factors(5, 3), dof, draw(5, seed=3))


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
    x = 4 * draw(40, 3, seed=1)
    np.testing.assert_allclose(mixture.log_prob(x), scipy_log_prob(mixture, x), rtol=1e-10)
    lowered = mixture.energy(x) + mixture.log_normalizer()
    np.testing.assert_allclose(-lowered, scipy_log_prob(mixture, x), rtol=1e-10)


@pytest.mark.parametrize("scales", [0.7, [0.4, 1.0, 2.0, 0.5], "axes"])
@pytest.mark.parametrize("dof", [3.0, math.inf])
def test_round_and_diagonal_scales(scales, dof):
    scales = draw(4, 3, seed=5).abs() + 0.2 if scales == "axes" else scales
    mixture = ist.StudentMixture(draw(4, 3), scales, dof)
    x = 3 * draw(30, 3, seed=1)
    np.testing.assert_allclose(mixture.log_prob(x), scipy_log_prob(mixture, x), rtol=1e-10)
    each = torch.as_tensor(mixture.scale_trils)
    each = each if each.ndim == 2 else each.reshape(-1, 1)
    full = ist.StudentMixture(mixture.means, torch.diag_embed(each.expand(4, 3)), dof)
    for method in ("energy", "score", "step", "responsibilities"):
        torch.testing.assert_close(getattr(mixture, method)(x), getattr(full, method)(x))
    held = torch.tensor([True, False, False])
    torch.testing.assert_close(mixture.step(x, held), full.step(x, held))
    row, y = torch.tensor([0.3, math.nan, math.nan], dtype=DOUBLE), draw(9, 2, seed=2)
    for part in (lambda m: m.conditional(row), lambda m: m.marginal([2, 0])):
        torch.testing.assert_close(part(mixture).log_prob(y), part(full).log_prob(y))


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
    x = draw(3, seed=1)
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
    x = 3 * draw(20, 2, seed=1)
    rows = mixture.scale_trils[:, [2, 0]]
    factor = torch.linalg.cholesky(rows @ rows.transpose(1, 2))
    part = ist.StudentMixture(mixture.means[:, [2, 0]], factor, mixture.dof, mixture.log_weights)
    expected = scipy_log_prob(part, x)
    np.testing.assert_allclose(mixture.marginal([2, 0]).log_prob(x), expected, rtol=1e-10)
    points = torch.full((20, 3), math.nan, dtype=DOUBLE)
    points[:, [2, 0]] = x
    np.testing.assert_allclose(mixture.log_prob(points, ~points.isnan()), expected, rtol=1e-10)


@pytest.mark.parametrize("known", [[0], [2], [0, 2], [1, 2]])
def test_conditionals_are_joint_over_marginal(mixture, known):
    free = [d for d in range(3) if d not in known]
    row = torch.full((3,), math.nan, dtype=DOUBLE)
    row[known] = torch.tensor([0.8, -1.1], dtype=DOUBLE)[: len(known)]
    found = mixture.conditional(row)
    y = 2 * draw(15, len(free), seed=1)
    joint = row.expand(15, 3).clone()
    joint[:, free] = y
    expected = scipy_log_prob(mixture, joint) - float(mixture.marginal(known).log_prob(row[known]))
    np.testing.assert_allclose(found.log_prob(y), expected, rtol=1e-9, atol=1e-9)
    torch.testing.assert_close(found.dof, mixture.dof + len(known))


def test_nothing_observed_leaves_the_energy(mixture):
    x = draw(5, 3, seed=1)
    found = mixture.conditional(torch.full((3,), math.nan, dtype=DOUBLE))
    torch.testing.assert_close(found.energy(x), mixture.energy(x))


def test_draws_have_the_density(mixture):
    drawn = mixture.sample(20_000, seed=1)
    for column in range(3):
        assert stats.kstest(drawn[:, column], lambda t, c=column: mixture.cdf(t, c)).pvalue > 0.01
    # Their dependence: squared Mahalanobis distances of one component have an F law.
    one = mixture.subset([2])
    away = torch.linalg.solve_triangular(
        one.scale_trils[0], (one.sample(20_000, seed=2) - one.means[0]).T, upper=False
    )
    assert stats.kstest(away.square().sum(0) / 3, stats.f(3, 5).cdf).pvalue > 0.01
    assert torch.equal(mixture.sample(3, seed=4), mixture.sample(3, seed=4))


@pytest.mark.parametrize("unit", [1e-300, 1e-160, 1e160, 1e300])
def test_units_only_shift_the_log_density(mixture, unit):
    x = 2 * draw(10, 3, seed=1)
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
    x = draw(50, 3, seed=1)
    expected = [getattr(mixture, name)(x) for name in ("energy", "score", "step")]
    held = x > 0
    held_step = mixture.step(x, held)
    monkeypatch.setattr("isthmus.memories.table_mixture.BLOCK_ENTRIES", 40)
    for name, value in zip(("energy", "score", "step"), expected, strict=True):
        torch.testing.assert_close(getattr(mixture, name)(x), value)
    torch.testing.assert_close(mixture.step(x, held), held_step)


RANDOM = np.random.default_rng(0)
VALUES = (3, 2, 4)
SHARES = [RANDOM.dirichlet(np.ones(values), 5) for values in VALUES]
SHARES[0][0] = [0.0, 0.25, 0.75]  # a value that a component never has
MEANS = RANDOM.normal(size=(5, 2))
FACTORS = np.linalg.cholesky(np.array([np.eye(2) + 0.3 * k for k in range(5)]))
DOF = np.array([2.0, 3.0, 7.0, np.inf, 4.0])
LOGS = RANDOM.normal(size=5)
CELLS = np.array(list(itertools.product(*map(range, VALUES))), dtype=float)
NAN = float("nan")


def mixed(numbers: int = 2) -> ist.TableMixture:
    factors = FACTORS[:, :numbers, :numbers] if numbers else 1.0
    return ist.TableMixture(MEANS[:, :numbers], SHARES, factors, DOF, LOGS)


def rows(point: list[float]) -> np.ndarray:
    """All cells of the categories, each with the same numbers."""
    return np.concatenate([np.tile(point, (len(CELLS), 1)), CELLS], 1)


def by_hand(x: np.ndarray) -> np.ndarray:
    """The density of rows by SciPy, term by term."""
    weights, total = np.exp(LOGS) / np.exp(LOGS).sum(), 0.0
    for n in range(5):
        shape = FACTORS[n] @ FACTORS[n].T
        density = stats.multivariate_t(MEANS[n], shape, DOF[n]).pdf(x[:, :2])
        for place, share in enumerate(SHARES):
            density = density * share[n][x[:, 2 + place].astype(int)]
        total = total + weights[n] * density
    return total


@pytest.mark.parametrize("numbers", [0, 1, 2])
def test_contract(numbers: int) -> None:
    points = mixed(numbers).sample(12, seed=1)
    report = check_energy(mixed(numbers), points)
    assert "density matches energy" in report.passed


def test_rows_have_the_density_of_scipy() -> None:
    x = rows([0.3, -0.4])
    np.testing.assert_allclose(np.exp(mixed().log_prob(x)), by_hand(x), rtol=1e-10)
    shares = mixed().responsibilities(x)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert ((shares == 0) == ((x[:, 2] == 0)[:, None] & (np.arange(5) == 0))).all()


def test_cells_without_numbers_add_up_to_one() -> None:
    assert abs(np.exp(mixed(0).log_prob(CELLS)).sum() - 1) < 1e-12
    assert mixed(0).log_prob([9.0, 0.0, 0.0]) == -np.inf


def test_cells_integrate_to_one() -> None:
    density = mixed(1)
    total, _ = integrate.quad(
        lambda u: np.exp(density.log_prob(rows([np.tan(u)]))).sum() / np.cos(u) ** 2,
        -np.pi / 2, np.pi / 2, epsabs=1e-11, limit=400,
    )  # fmt: skip
    assert abs(total - 1) < 1e-9


def test_marginals_are_sums_over_the_other_cells() -> None:
    density, x = mixed(), rows([0.3, -0.4])
    whole = np.exp(density.log_prob(x))
    for place in range(3):
        for value in range(VALUES[place]):
            expected = whole[CELLS[:, place] == value].sum()
            part = density.marginal([0, 1, 2 + place])
            assert np.exp(part.log_prob([0.3, -0.4, value])) == pytest.approx(expected, rel=1e-12)
            seen = np.array([True, True, *(each == place for each in range(3))])
            point = np.where(seen, [0.3, -0.4, *[value] * 3], NAN)
            assert np.exp(density.log_prob(point, seen)) == pytest.approx(expected, rel=1e-12)


def test_conditionals_are_ratios() -> None:
    density, x = mixed(), rows([0.3, -0.4])
    known = [NAN, -0.4, 1.0, NAN, NAN]
    given = density.conditional(known)
    both = x[x[:, 2] == 1]
    rest = density.marginal([1, 2]).log_prob([-0.4, 1.0])
    expected = density.log_prob(both) - rest
    np.testing.assert_allclose(given.log_prob(both[:, [0, 3, 4]]), expected, rtol=1e-10)
    point = torch.tensor([known], dtype=torch.float64)
    line = density._line_given(point.nan_to_num(), ~point.isnan(), 0)
    mean = float((line.log_weights.exp() * line.centres).sum())
    filled = density.conditional_mean(known, ~np.isnan(known))
    assert filled[0] == pytest.approx(mean, rel=1e-12)
    values = density._values_given(point.nan_to_num(), ~point.isnan(), 2)[0]
    sums = [np.exp(expected[both[:, 4] == value]).sum() for value in range(4)]
    one = density.conditional([0.3, *known[1:]])
    assert [
        np.exp(one.marginal([1]).log_prob([float(value)])) for value in range(4)
    ] == pytest.approx(np.array(sums) / np.sum(sums), rel=1e-9)
    assert float(values.sum()) == pytest.approx(1)


def test_memories_are_swapped_chosen_and_not_moved_by_categories_that_never_occur() -> None:
    density, x = mixed(), rows([0.3, -0.4])
    part = density.subset([1, 3])
    alike = ist.TableMixture(
        MEANS[[1, 3]], [share[[1, 3]] for share in SHARES], FACTORS[[1, 3]], DOF[[1, 3]],
        LOGS[[1, 3]],
    )  # fmt: skip
    np.testing.assert_allclose(part.log_prob(x), alike.log_prob(x), rtol=1e-12)
    same = density.with_memories(density.memories)
    np.testing.assert_allclose(same.log_prob(x), density.log_prob(x), rtol=1e-12)
    never = np.array([0.3, -0.4, 9.0, 0.0, 0.0])
    assert density.log_prob(never) == -np.inf
    np.testing.assert_array_equal(density.step(never), never)


def test_draws_have_the_frequencies_of_the_marginals() -> None:
    drawn = mixed(0).sample(40_000, seed=3)
    counts = np.array([(drawn == cell).all(1).mean() for cell in CELLS])
    np.testing.assert_allclose(counts, np.exp(mixed(0).log_prob(CELLS)), atol=0.01)


def test_bad_input() -> None:
    with pytest.raises(ShapeError):
        ist.TableMixture(MEANS, [SHARES[0][:3]])
    for call in (
        lambda: ist.TableMixture(MEANS, [0.5 * SHARES[0]]),
        lambda: ist.TableMixture(np.zeros((3, 0))),
        lambda: mixed().conditional([0.0, 0.0, 0.0, 0.0, 0.0]),
        lambda: mixed(0).conditional([9.0, NAN, NAN]),
    ):
        with pytest.raises(InvalidInputError):
            call()
