"""Tables on their way into a fit: units, distinct rows, columns that are not numbers."""

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as npst

from isthmus.cluster import ClAMELBO, GaussianMeanShift
from isthmus.cluster.data import Rows, Units, distinct_rows
from isthmus.errors import InvalidInputError

NUMBERS = st.one_of(st.just(np.nan), st.integers(-3, 3), st.integers(-(10**7), 10**7)).map(
    lambda number: number / 8
)
TABLES = npst.arrays(np.float64, st.tuples(st.integers(1, 12), st.integers(1, 3)), elements=NUMBERS)


def key_of(row):
    return tuple(np.nan_to_num(row, nan=-1e9))


@given(TABLES, st.randoms(use_true_random=False))
@settings(deadline=None, max_examples=60)
def test_distinct_rows_sum_weights_in_an_order_of_their_own(table, random):
    table = np.concatenate([table, table[::2]])
    weights = np.linspace(0.1, 2, len(table))
    found, masses, *_ = distinct_rows(table, weights)
    expected = dict.fromkeys(map(key_of, table), 0.0)
    for row, weight in zip(table, weights, strict=True):
        expected[key_of(row)] += weight
    assert {key_of(row): pytest.approx(mass) for row, mass in zip(found, masses, strict=True)} == (
        expected
    )
    order = random.sample(range(len(table)), len(table))
    np.testing.assert_array_equal(distinct_rows(table[order], weights[order])[0], found)


def test_rows_stay_distinct_beside_a_column_of_huge_numbers():
    generator = np.random.default_rng(0)
    dates = np.repeat([1.6e18, 1.7e18], 150) + generator.integers(0, 86_400, 300) * 1e9
    labels = np.arange(300) // 75
    table = np.c_[dates, labels % 2 + 0.05 * generator.normal(size=300)]
    table[::7, 1] = -table[::7, 1]
    table = np.concatenate([table, [[0.0, 1.0], [-0.0, 1.0]]])
    assert len(distinct_rows(table, np.ones(302))[0]) == 301


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_units_centre_and_scale_and_convert_back(request, data_name, scale):
    x = scale * request.getfixturevalue(data_name)
    weights = np.random.default_rng(2).uniform(0.1, 2, 150)
    units = Units.of(x, weights)
    inside = units.to_internal(x)
    known = ~np.isnan(x)
    mass = weights @ known
    np.testing.assert_allclose(weights @ np.nan_to_num(inside) / mass, 0, atol=1e-10)
    variances = weights @ np.nan_to_num(inside) ** 2 / mass
    assert variances.mean() == pytest.approx(1)
    back = units.to_user(torch.from_numpy(np.nan_to_num(inside)))
    np.testing.assert_allclose(back[known], x[known], rtol=1e-9)


COLUMNS = {
    "height": [1.0, 2.0, 3.0, 4.0],
    "name": ["a", "b", "c", "d"],
    "born": np.array(["2000-01-01"] * 4, dtype="datetime64[ns]"),
}


@pytest.mark.parametrize("frame", [pd.DataFrame, pl.DataFrame])
@pytest.mark.parametrize("estimator", [ClAMELBO(n_clusters=2), GaussianMeanShift()])
def test_columns_without_numbers_are_named(frame, estimator):
    with pytest.raises(InvalidInputError, match="Column 'name', 'born' of X"):
        estimator.fit(frame(COLUMNS))


def test_numbers_kept_as_objects_are_numbers():
    frame = pd.DataFrame({"a": pd.Series([0, 1, 9, 10], dtype=object)})
    assert len(GaussianMeanShift(1.0).fit(frame).cluster_centers_) == 2


@pytest.mark.parametrize("gaps", [False, True])
def test_rows_without_clusters_have_the_covariance_of_the_rows(gaps):
    generator = np.random.default_rng(0)
    X = generator.normal(size=(40, 3)) * [3.0, 1.0, 0.5]
    X[:20, 0] += 5
    X -= X.mean(0)
    weights = np.full(40, 500.0)
    if gaps:
        X[::2, 1] = np.nan
    rows = Rows.of(X, weights, Units(np.zeros(3), 1.0))
    drawn = rows.without_clusters(20_000, np.random.RandomState(0))
    assert len(drawn) == 20_000
    assert drawn.total == pytest.approx(rows.total)
    assert drawn.square == pytest.approx(rows.square)
    assert (drawn.observed is not None) == gaps
    if gaps:
        np.testing.assert_allclose(drawn.observed.mean(0), rows.observed.mean(0))
        assert not drawn.values[drawn.observed == 0].any()
    else:
        np.testing.assert_allclose(drawn.values.T @ drawn.values / 20_000, X.T @ X / 40)
        np.testing.assert_allclose(drawn.values.mean(0), 0, atol=1e-12)
