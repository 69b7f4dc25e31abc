"""TableDensity keeps scikit-learn's contract, without exceptions."""

import numpy as np
import pytest
import torch
from sklearn.datasets import load_iris
from sklearn.utils.estimator_checks import parametrize_with_checks

from isthmus.incontext import TableDensity, pretrained


@parametrize_with_checks([TableDensity()])
def test_scikit_learn_checks(estimator, check):
    check(estimator)


def test_it_is_the_pretrained_model():
    X = load_iris().data
    density = TableDensity().fit(X)
    expected = pretrained("tables").condition(X).log_prob(X)
    np.testing.assert_allclose(density.score_samples(X), expected)
    assert density.score(X) == pytest.approx(expected.sum())
    drawn = density.sample(5, random_state=1)
    assert drawn.shape == (5, 4)
    np.testing.assert_array_equal(drawn, density.sample(5, random_state=1))
    assert not np.array_equal(drawn, density.sample(5, random_state=2))


def test_missing_cells_of_rows_are_integrated_out():
    X = load_iris().data
    density = TableDensity().fit(X)
    rows = X[:3].copy()
    rows[0, 1] = rows[1, [0, 3]] = np.nan
    found = density.score_samples(rows)
    expected = float(density.energy_.marginal([0, 2, 3]).log_prob(torch.tensor(rows[0, [0, 2, 3]])))
    assert found[0] == pytest.approx(expected)
    assert found[2] == pytest.approx(density.score_samples(X[2:3])[0])
