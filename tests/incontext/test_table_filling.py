"""fill_rows: conditional means and draws against quadrature of the joint density."""

import numpy as np
import torch
from scipy.stats import kstest

from isthmus.incontext import fill_rows, pretrained

RNG = np.random.default_rng(0)
X = RNG.normal(size=(40, 3)) @ np.array([[1.0, 2.0, 0.0], [0.0, 1.0, 1.0], [0.0, 0.0, 0.5]])
ROWS = np.array([[0.5, np.nan, 0.3], [1.0, 2.0, 3.0]])


def given(known: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """The second column on a grid, and its distribution function given the others."""
    line = np.linspace(-60, 60, 60_001)
    points = np.stack([np.full_like(line, known[0]), line, np.full_like(line, known[1])], 1)
    density = pretrained("tables").condition(X).log_prob(torch.from_numpy(points)).exp().numpy()
    return line, np.cumsum(density) / density.sum()


def test_means_and_draws_are_those_of_the_conditional():
    line, distribution = given([0.5, 0.3])
    mean = (line * np.diff(distribution, prepend=0)).sum()
    filled = fill_rows(X, ROWS)
    np.testing.assert_allclose(filled, [[0.5, mean, 0.3], ROWS[1]], atol=0.02)
    drawn = fill_rows(X, ROWS, draws=2000, seed=1)
    assert drawn.shape == (2000, 2, 3)
    np.testing.assert_array_equal(drawn[:, 1], np.broadcast_to(ROWS[1], (2000, 3)))
    assert kstest(drawn[:, 0, 1], lambda x: np.interp(x, line, distribution)).pvalue > 0.01


def test_a_table_fills_its_own_gaps():
    gaps = X.copy()
    gaps[::3, 1] = np.nan
    gaps[1] = np.nan
    filled = fill_rows(gaps)
    known = ~np.isnan(gaps)
    np.testing.assert_array_equal(filled[known], gaps[known])
    error = (filled[::3, 1] - X[::3, 1]).std() / X[:, 1].std()
    assert error < 0.6
    one, same, other = (fill_rows(gaps, draws=2, seed=seed) for seed in (1, 1, 2))
    np.testing.assert_array_equal(one, same)
    assert (one != other)[:, ~known].all()
    assert np.isfinite(one).all()
