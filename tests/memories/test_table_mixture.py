"""TableMixture: exact sums over all cells, quadrature, conditionals, draws, files."""

import itertools

import numpy as np
import pytest
import torch
from scipy import integrate, stats

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.errors import InvalidInputError, ShapeError

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


def mixture(numbers: int = 2) -> ist.TableMixture:
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
    points = mixture(numbers).sample(12, seed=1)
    report = check_energy(mixture(numbers), points)
    assert "density matches energy" in report.passed


def test_density_is_that_of_scipy() -> None:
    x = rows([0.3, -0.4])
    np.testing.assert_allclose(np.exp(mixture().log_prob(x)), by_hand(x), rtol=1e-10)


def test_cells_without_numbers_add_up_to_one() -> None:
    assert abs(np.exp(mixture(0).log_prob(CELLS)).sum() - 1) < 1e-12
    assert mixture(0).log_prob([9.0, 0.0, 0.0]) == -np.inf


def test_cells_integrate_to_one() -> None:
    density = mixture(1)
    total, _ = integrate.quad(
        lambda u: np.exp(density.log_prob(rows([np.tan(u)]))).sum() / np.cos(u) ** 2,
        -np.pi / 2, np.pi / 2, epsabs=1e-11, limit=400,
    )  # fmt: skip
    assert abs(total - 1) < 1e-9


def test_marginals_are_sums_over_the_other_cells() -> None:
    density, x = mixture(), rows([0.3, -0.4])
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
    density, x = mixture(), rows([0.3, -0.4])
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


def test_responsibilities_follow_categories() -> None:
    density, x = mixture(), rows([0.3, -0.4])
    shares = density.responsibilities(x)
    assert shares.shape == (24, 5)
    np.testing.assert_allclose(shares.sum(1), 1)
    assert (shares[x[:, 2] == 0, 0] == 0).all()


def test_draws_have_the_frequencies_of_the_marginals() -> None:
    drawn = mixture(0).sample(40_000, seed=3)
    counts = np.array([(drawn == cell).all(1).mean() for cell in CELLS])
    np.testing.assert_allclose(counts, np.exp(mixture(0).log_prob(CELLS)), atol=0.01)


def test_without_categories_it_is_a_student_mixture() -> None:
    plain = ist.StudentMixture(MEANS, FACTORS, DOF, LOGS)
    same = ist.TableMixture(MEANS, (), FACTORS, DOF, LOGS)
    x = RANDOM.normal(size=(9, 2))
    np.testing.assert_allclose(same.log_prob(x), plain.log_prob(x), rtol=1e-12)
    np.testing.assert_allclose(same.score(x), plain.score(x), rtol=1e-9)
    np.testing.assert_allclose(same.step(x), plain.step(x), rtol=1e-9)
    assert same.cdf(0.2, column=1) == plain.cdf(0.2, column=1)


@pytest.mark.parametrize("numbers", [0, 2])
def test_files(tmp_path, numbers: int) -> None:
    ist.save(mixture(numbers), tmp_path / "memory")
    read, x = ist.load(tmp_path / "memory"), rows([0.1, 0.2][:numbers])
    assert (read.log_prob(x) == mixture(numbers).log_prob(x)).all()
    assert read.returns_arrays


def test_bad_input() -> None:
    with pytest.raises(InvalidInputError):
        ist.TableMixture(MEANS, [0.5 * SHARES[0]])
    with pytest.raises(ShapeError):
        ist.TableMixture(MEANS, [SHARES[0][:3]])
    with pytest.raises(InvalidInputError):
        ist.TableMixture(np.zeros((3, 0)))
    with pytest.raises(InvalidInputError):
        mixture().conditional([0.0, 0.0, 0.0, 0.0, 0.0])
    with pytest.raises(InvalidInputError):
        mixture(0).conditional([9.0, NAN, NAN])
