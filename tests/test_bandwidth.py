from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.neighbors import KernelDensity

from isthmus.bandwidth import leave_one_out, left_out_log_density, rules, scott, silverman

tables = st.builds(
    lambda n, dim, seed, scale: scale * np.random.default_rng(seed).normal(size=(n, dim)),
    st.integers(8, 40),
    st.integers(1, 4),
    st.integers(0, 2**16),
    st.sampled_from([1e-3, 1.0, 1e3]),
)


def brute_force(X: np.ndarray, sigma: float) -> float:
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
    assert left_out_log_density(X, sigma) == pytest.approx(brute_force(X, sigma), abs=1e-8)


@settings(max_examples=5)
@given(tables)
def test_leave_one_out_is_the_best_of_a_grid(X: np.ndarray) -> None:
    sigma = leave_one_out(X)
    best = brute_force(X, sigma)
    for factor in (0.8, 0.95, 1.05, 1.25):
        assert brute_force(X, factor * sigma) <= best + 1e-9


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
