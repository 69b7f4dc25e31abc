"""sample_table: draws follow the density that is fitted to the table, in its units."""

import numpy as np
import pytest

import isthmus as ist
from isthmus.cluster import TableModel
from isthmus.errors import InvalidInputError
from isthmus.memories.bandwidth import leave_one_out
from isthmus.synthesis import sample_model, sample_table

GENERATOR = np.random.default_rng(0)
X = GENERATOR.normal(size=(60, 3)) @ [[100, 30, 0], [0, 1, 0], [0, 0, 0.01]] + [1000, -5, 0.3]
CENTRE, SCALE = X.mean(0), X.std(0)


def test_draws_have_the_mean_and_covariance_of_the_density_in_closed_form() -> None:
    draws = sample_table(X, 20000, sigma=0.5).X
    # A Gaussian KDE: the mean of the rows, and their covariance plus that of the kernel.
    covariance = np.cov(X.T, bias=True) + np.diag((0.5 * SCALE) ** 2)
    error = np.sqrt(np.diag(covariance) / 20000)
    assert (abs(draws.mean(0) - CENTRE) < 4 * error).all()
    outer = np.outer(SCALE, SCALE)
    np.testing.assert_allclose(np.cov(draws.T) / outer, covariance / outer, atol=0.06)


def test_draws_are_those_of_the_energy() -> None:
    memory = ist.GaussianKDE((X - CENTRE) / SCALE, sigma=0.4)
    expected = memory.sample(7, seed=5).numpy() * SCALE + CENTRE
    np.testing.assert_allclose(sample_table(X, 7, sigma=0.4, seed=5).X, expected, rtol=1e-12)
    expected = ist.ModernHopfield(X / 100, beta=2.0).sample(7, seed=5).numpy()
    options = {"energy": "hopfield", "beta": 2, "standardise": False, "seed": 5}
    np.testing.assert_allclose(sample_table(X / 100, 7, **options).X, expected, rtol=1e-9)


def test_the_default_bandwidth_is_that_of_leave_one_out() -> None:
    found = sample_table(X, 5)
    assert found.summary["sigma"] == float(f"{leave_one_out((X - CENTRE) / SCALE):.4g}")
    np.testing.assert_array_equal(found.X, sample_table(X, 5).X)
    assert (found.X != sample_table(X, 5, seed=1).X).all()


@pytest.mark.parametrize("sampler", ["mala", "hmc", "langevin"])
def test_chains_follow_the_density_and_say_so(sampler: str) -> None:
    table = np.random.default_rng(3).normal(size=(40, 2))
    found = sample_table(table, 1600, sigma=1, sampler=sampler, burn_in=100)
    chains = found.summary["chains"]
    assert chains["largest_r_hat"] < 1.05
    assert "so they agree" in found.notes[0]
    error = found.X.std(0) / np.sqrt(chains["smallest_effective_sample_size"])
    assert (abs(found.X.mean(0) - table.mean(0)) < 5 * error).all()
    expected = np.diag(np.cov(table.T, bias=True)) + table.var(0)
    np.testing.assert_allclose(found.X.var(0), expected, rtol=0.25)


def test_chains_that_do_not_mix_are_noted() -> None:
    rows = [[0.0], [1.0], [50.0], [51.0]]
    found = sample_table(rows, 10, sigma=0.01, sampler="mala", burn_in=20)
    assert "do not agree" in found.notes[0]


def test_clusters_are_drawn_from_even_with_gaps() -> None:
    generator = np.random.default_rng(4)
    centres = np.repeat([[0.0, 0.0], [400.0, 4.0]], 60, axis=0)
    table = centres + generator.normal(size=(120, 2)) * [10, 0.1]
    table[::7, 1] = np.nan
    draws = sample_table(table, 2000, energy="elbo", n_clusters=2).X
    right = draws[:, 0] > 200
    assert right.mean() == pytest.approx(0.5, abs=0.08)
    np.testing.assert_allclose(draws[right].mean(0), [400, 4], rtol=0.05)
    model = TableModel.fit(table, n_clusters=2)
    np.testing.assert_allclose(sample_model(model, 2000).X, draws, rtol=1e-9, atol=1e-9)


def test_a_constant_column_keeps_its_value() -> None:
    table = np.column_stack([X[:, 0], np.full(60, 7.25), X[:, 1]])
    found = sample_table(table, 50, sigma=0.5, columns=[*"abc"])
    assert (found.X[:, 1] == 7.25).all()
    assert found.constant == ("b",)
    without = sample_table(table[:, [0, 2]], 50, sigma=0.5).X
    np.testing.assert_array_equal(found.X[:, [0, 2]], without)


@pytest.mark.parametrize("rows", [1, 3])
def test_one_distinct_row_needs_a_bandwidth(rows: int) -> None:
    table = np.repeat(X[:1], rows, axis=0)
    with pytest.raises(InvalidInputError, match="Pass sigma"):
        sample_table(table)
    draws = sample_table(table, 4000, sigma=2).X
    np.testing.assert_allclose(draws.mean(0), X[0], atol=0.2)
    np.testing.assert_allclose(draws.std(0), 2, rtol=0.1)


@pytest.mark.parametrize(
    ("options", "words"),
    [
        ({"n": 0}, "n must be a whole number"),
        ({"energy": "clam"}, "needs the number of clusters"),
        ({"n_clusters": 2}, "is for the energies elbo and clam"),
        ({"energy": "crp", "sigma": 1}, "are for the energies kde and hopfield"),
        ({"sigma": 1, "beta": 1}, "give one"),
        ({"step_size": 1}, "step_size is for the samplers"),
        ({"sampler": "gibbs"}, "sampler must be one of"),
    ],
)
def test_settings_that_do_not_belong_together_are_refused(options: dict, words: str) -> None:
    with pytest.raises(InvalidInputError, match=words):
        sample_table(X, **options)
