"""Bandwidths with shape: brute-force left-out likelihood, outliers, and degenerate tables."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy.special import logsumexp
from scipy.stats import gaussian_kde, multivariate_normal
from sklearn.neighbors import KernelDensity

import isthmus as ist
from isthmus.bandwidth import (
    Bandwidth,
    choose,
    leave_one_out,
    left_out_log_density,
    rules,
    scott,
    search,
    silverman,
)
from isthmus.errors import InvalidInputError, ShapeError

KINDS = ["round", "columns", "full"]


def table(n: int = 120, seed: int = 0) -> np.ndarray:
    """Two clusters of correlated columns with different units."""
    rng = np.random.default_rng(seed)
    rows = rng.normal(size=(n, 3)) @ np.array([[1, 0.9, 0], [0, 0.3, 0], [0, 0, 1]])
    return (rows + 4 * (np.arange(n) % 2)[:, None]) * [1.0, 10.0, 0.1]


def brute_force(X: np.ndarray, found: Bandwidth, weights: np.ndarray | None = None) -> float:
    """Return the mean left-out log-density, by scipy, one kernel at a time."""
    n, dim = X.shape
    weights = np.ones(n) if weights is None else weights
    factors = np.ones(n) if found.factors is None else found.factors
    shape = np.diag(np.broadcast_to(np.square(found.sigma), dim))
    if found.covariance is not None:
        shape = found.covariance
    kernels = [multivariate_normal(X[j], factors[j] ** 2 * shape).logpdf(X) for j in range(n)]
    joint = np.stack(kernels, 1) + np.log(weights)
    np.fill_diagonal(joint, -np.inf)
    left_out = logsumexp(joint, 1) - np.log(weights.sum() - weights)
    return float(np.average(left_out, weights=weights))


@pytest.mark.parametrize("adaptive", [False, True])
@pytest.mark.parametrize("kind", KINDS)
def test_the_likelihood_is_that_of_leaving_each_row_out(kind, adaptive):
    X = table()
    found = choose(X, kind, adaptive)
    assert found.kind == kind
    assert (found.factors is not None) is adaptive
    assert found.log_likelihood == pytest.approx(brute_force(X, found), abs=1e-8)


@pytest.mark.parametrize("kind", KINDS)
def test_no_other_scale_is_likelier(kind):
    X = table()
    found = choose(X, kind)
    best = brute_force(X, found)
    for factor in (0.7, 0.9, 1.1, 1.4):
        scaled = Bandwidth(kind, factor * found.sigma, found.covariance, None)
        if kind == "full":
            scaled = Bandwidth(kind, 1.0, factor**2 * found.covariance, None)
        assert brute_force(X, scaled) < best + 1e-3
    if kind == "columns":
        for column in range(3):
            for factor in (0.8, 1.25):
                widths = found.sigma * np.where(np.arange(3) == column, factor, 1.0)
                assert brute_force(X, Bandwidth(kind, widths, None, None)) < best + 0.01


def test_the_covariance_follows_the_data_and_is_likelier_than_any_axes():
    X = table(300)
    turn = np.array([[1.0, 2.0, 0.0], [0.0, 1.0, -1.0], [0.5, 0.0, 3.0]])
    one, turned = choose(X, "full"), choose(X @ turn.T, "full")
    expected = turn @ one.covariance @ turn.T
    correlation = np.sum(expected * turned.covariance) / (
        np.linalg.norm(expected) * np.linalg.norm(turned.covariance)
    )
    assert correlation > 0.98
    likelihoods = [choose(X, kind).log_likelihood for kind in KINDS]
    assert likelihoods == sorted(likelihoods)
    assert choose(X).log_likelihood >= likelihoods[-1]


def test_outliers_in_a_column_do_not_widen_the_kernels():
    rng = np.random.default_rng(0)
    X = rng.normal(size=(500, 4))
    dirty = X.copy()
    dirty[rng.choice(500, 5, replace=False), 2] = 1e4 * rng.normal(size=5)
    for kind in KINDS:
        clean, found = choose(X, kind), choose(dirty, kind)
        before = ist.GaussianKDE(X, clean).log_prob(X[:200]).mean()
        after = ist.GaussianKDE(dirty, found).log_prob(X[:200]).mean()
        assert after > before - 0.2, kind
    wide = choose(dirty, "columns", robust=False)
    assert wide.sigma[2] > 20 * choose(dirty, "columns").sigma[2]


def test_adaptive_kernels_are_wide_where_rows_are_sparse():
    rng = np.random.default_rng(0)
    X = np.concatenate([rng.normal(size=(150, 2)), 20 + 5 * rng.normal(size=(150, 2))])
    found = choose(X, "round", adaptive=True)
    assert np.median(found.factors[150:]) > 3 * np.median(found.factors[:150])
    assert found.log_likelihood > choose(X, "round").log_likelihood + 0.2


@pytest.mark.parametrize(
    "X",
    [
        table(40)[:, [0, 1, 1, 2]],  # a column twice
        np.column_stack([table(40), np.full(40, 7.0)]),
        np.column_stack([table(40), table(40).sum(1)]),
        np.random.default_rng(0).normal(size=(8, 20)),
        np.random.default_rng(0).integers(0, 2, size=(50, 6)).astype(float),
        np.repeat(table(10), 5, axis=0),
        np.array([[0.0, 1.0], [1.0, 0.0]]),
        1e-12 * table(30),
        1e12 * table(30) + 1e14,
    ],
    ids=["collinear", "constant", "sum", "wide", "binary", "duplicates", "two", "tiny", "huge"],
)
def test_degenerate_tables_have_a_bandwidth(X):
    for kind in (*KINDS, "auto"):
        for adaptive in (False, True):
            found = choose(X, kind, adaptive)
            kde = ist.GaussianKDE(X, found)
            assert np.isfinite(kde.log_prob(X)).all()
            assert torch.isfinite(kde.step(torch.tensor(X))).all()
    assert np.isfinite(ist.GaussianKDE(X, "auto").log_prob(X)).all()


def test_weights_count():
    X, rng = table(60), np.random.default_rng(1)
    weights = rng.random(60) + 0.1
    for adaptive in (False, True):
        found = choose(X, "full", adaptive, log_weights=np.log(weights))
        assert found.log_likelihood == pytest.approx(brute_force(X, found, weights), abs=1e-8)
    some = np.arange(60) < 40
    with np.errstate(divide="ignore"):
        without = choose(X, "columns", log_weights=np.log(some))
    np.testing.assert_allclose(without.sigma, choose(X[some], "columns").sigma, rtol=0.1)
    with pytest.raises(InvalidInputError, match="At least two"):
        choose(X, log_weights=np.where(np.arange(60) == 3, 0.0, -np.inf))
    with pytest.raises(ShapeError, match=r"\(60,\)"):
        choose(X, log_weights=np.zeros(3))


def test_of_many_rows_a_part_chooses(monkeypatch):
    X = table(900)
    whole = choose(X, "columns")
    monkeypatch.setattr(search, "SHAPE_ROWS", 200)
    monkeypatch.setattr(search, "SCALE_ROWS", 200)
    part = choose(X, "columns")
    assert brute_force(X, part) > brute_force(X, whole) - 0.05
    monkeypatch.setattr(search, "MOST_ROWS", 300)
    adaptive = choose(X, "full", adaptive=True)
    assert adaptive.factors.shape == (900,)
    np.testing.assert_allclose(choose(X, "full", True, seed=0).factors, adaptive.factors)


@pytest.mark.parametrize("rule", ["scott", "silverman"])
@pytest.mark.parametrize("weighted", [False, True])
def test_rules_are_those_of_scipy(rule, weighted):
    X = table(50)
    weights = np.arange(1.0, 51.0) if weighted else None
    peer = gaussian_kde(X.T, rule, weights=weights)
    log_weights = None if weights is None else np.log(weights)
    kde = ist.GaussianKDE(X, rule, log_weights=log_weights)
    np.testing.assert_allclose(kde.log_prob(X), peer.logpdf(X.T), rtol=1e-8)


@pytest.mark.parametrize("seed", range(4))
def test_few_rows_do_not_make_kernels_that_exclude_new_values(seed):
    """Columns that are zero in most rows have other values in new ones."""
    X = np.random.default_rng(seed).poisson(0.3, size=(320, 8)).astype(float)
    held_out = ist.GaussianKDE(X[:20], "auto").log_prob(X[20:]).mean()
    assert held_out > ist.GaussianKDE(X[:20], "scott").log_prob(X[20:]).mean() - 30


@pytest.mark.parametrize("sigma", ["auto", "scott", Bandwidth("round", 1.0, None, None)])
def test_a_rule_describes_the_whole_kernel(sigma):
    for setting in ({"covariance": np.eye(3)}, {"factors": np.ones(40)}):
        with pytest.raises(InvalidInputError, match="whole kernel"):
            ist.GaussianKDE(table(40), sigma, **setting)


tables = st.builds(
    lambda n, dim, seed, scale: scale * np.random.default_rng(seed).normal(size=(n, dim)),
    st.integers(8, 40),
    st.integers(1, 4),
    st.integers(0, 2**16),
    st.sampled_from([1e-3, 1.0, 1e3]),
)


def left_out_by_scikit_learn(X: np.ndarray, sigma: float) -> float:
    """Mean left-out log-density, one scikit-learn model per row."""
    found = [
        KernelDensity(bandwidth=sigma).fit(np.delete(X, i, 0)).score_samples(X[i : i + 1])[0]
        for i in range(len(X))
    ]
    return float(np.mean(found))


@settings(max_examples=10)
@given(tables, st.floats(0.1, 2.0))
def test_left_out_density_matches_scikit_learn(X: np.ndarray, share: float) -> None:
    sigma = share * X.std()
    assert left_out_log_density(X, sigma) == pytest.approx(
        left_out_by_scikit_learn(X, sigma), abs=1e-8
    )


@settings(max_examples=5)
@given(tables)
def test_leave_one_out_is_the_best_of_a_grid(X: np.ndarray) -> None:
    sigma = leave_one_out(X)
    best = left_out_by_scikit_learn(X, sigma)
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert left_out_by_scikit_learn(X, factor * sigma) <= best + 1e-9


@settings(max_examples=20)
@given(tables, st.floats(0.01, 100.0))
def test_rules_scale_with_the_data_and_ignore_an_offset(X: np.ndarray, factor: float) -> None:
    moved = factor * (X + X.std())
    assert leave_one_out(moved) == pytest.approx(factor * leave_one_out(X), rel=1e-4)
    for rule in (scott, silverman):
        expected = factor**2 * rule(X).covariance
        np.testing.assert_allclose(rule(moved).covariance, expected, rtol=1e-4, atol=0)
        assert rule(moved).sigma == rule(X).sigma


def test_duplicates_count_once() -> None:
    X = np.random.default_rng(0).normal(size=(50, 3))
    assert leave_one_out(np.concatenate([X, X, X[:7]])) == leave_one_out(X)


def test_a_subset_is_corrected_for_its_size(monkeypatch: pytest.MonkeyPatch) -> None:
    X = np.random.default_rng(0).normal(size=(600, 2))
    whole = leave_one_out(X)
    monkeypatch.setattr(rules, "MAX_PAIRED_ROWS", 200)
    assert leave_one_out(X) == pytest.approx(whole, rel=0.2)
    assert leave_one_out(X, seed=1) == leave_one_out(X, seed=1) != leave_one_out(X, seed=2)


@pytest.mark.parametrize("unit", [1e-200, 1e200])
def test_left_out_bandwidths_follow_the_units_of_any_size(unit: float) -> None:
    X = np.random.default_rng(0).normal(size=(50, 2))
    assert leave_one_out(X * unit) == pytest.approx(leave_one_out(X) * unit)


def test_ranges_beyond_double_precision_are_refused() -> None:
    for X in ([[-1e308], [1e308]], [[0.0], [1e-309]]):
        with pytest.raises(InvalidInputError, match="rescale"):
            leave_one_out(X)
    with pytest.raises(InvalidInputError, match="sigma"):
        ist.widen(ist.GaussianKDE([[0.0]], 1.0), 1e200)
