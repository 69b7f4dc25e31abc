"""score_rows: percentiles are calibrated, and a row never explains itself."""

import numpy as np
import pytest
import torch

from isthmus.incontext import pretrained, score_rows

RNG = np.random.default_rng(0)
X = RNG.normal(size=(60, 2)) @ [[2.0, 1.0], [0.0, 0.5]]


def test_scores_are_those_of_the_density():
    rows = RNG.normal(size=(5, 2))
    rows[4, 0] = np.nan
    found = score_rows(X, rows, draws=500, seed=3)
    density = pretrained("tables").condition(X)
    own = density.sample(500, seed=3)
    expected = density.log_prob(rows[:4])
    np.testing.assert_allclose(found.log_density[:4], expected)
    below = density.log_prob(own) < expected[:, None]
    np.testing.assert_allclose(found.percentile[:4], 100 * below.mean(1))
    alone = density.marginal([1])
    last = float(alone.log_prob(torch.tensor(rows[4, 1:])))
    assert found.log_density[4] == pytest.approx(last)
    below = alone.log_prob(own[:, 1:]) < last
    assert found.percentile[4] == pytest.approx(100 * below.mean())


def test_a_row_does_not_explain_itself():
    far = np.concatenate([X, [[30.0, -30.0]]])
    found = score_rows(far)
    assert found.outlier[-1]
    assert found.outlier[:-1].sum() <= 3
    inside = score_rows(far, far).log_density[-1]
    assert found.log_density[-1] < inside - 2


def test_percentiles_are_uniform_for_rows_of_the_same_law():
    rng = np.random.default_rng(1)
    levels = []
    for _ in range(10):
        x = rng.normal(size=(80, 3)) @ rng.normal(size=(3, 3))
        levels.append(score_rows(x, draws=1000).percentile)
    shares = [np.mean(np.concatenate(levels) < level) for level in (5, 25, 50, 75)]
    np.testing.assert_allclose(shares, [0.05, 0.25, 0.5, 0.75], atol=0.08)


def test_nothing_is_said_of_a_row_without_a_known_cell() -> None:
    X = np.random.default_rng(0).normal(size=(30, 2))
    scores = score_rows(X, [[0.0, 0.0], [np.nan, np.nan], [9.0, np.nan]])
    assert np.isnan([scores.log_density[1], scores.percentile[1]]).all()
    assert scores.outlier.tolist() == [False, False, True]
    assert scores.summary["mean_log_density"] == pytest.approx(scores.log_density[[0, 2]].mean())
