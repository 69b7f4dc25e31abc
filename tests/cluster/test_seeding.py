"""Where memories start, and the units they are learned in."""

import numpy as np
import pytest
import torch
from sklearn.cluster import KMeans, kmeans_plusplus

from isthmus.cluster.data import Rows, Units, distinct_rows
from isthmus.cluster.seeding import k_means, k_means_plus_plus, random_rows


def make_rows(values, weights=None):
    weights = np.ones(len(values)) if weights is None else np.asarray(weights, dtype=float)
    return Rows.of(values, weights, Units(np.zeros(values.shape[1]), 1.0))


def inertia(values, seeds, weights=None):
    away = ((values[:, None] - np.asarray(seeds)) ** 2).sum(2).min(1)
    return np.average(away, weights=weights)


def is_a_row(seeds, values):
    return (np.asarray(seeds)[:, None] == values).all(2).any(1).all()


@pytest.mark.parametrize("seeding", [k_means_plus_plus, random_rows])
def test_seeds_are_different_rows_that_have_weight(blobs, seeding):
    weights = np.ones(90)
    weights[::2] = 0
    for seed in range(20):
        kept = weights > 0
        rows = make_rows(blobs[kept], weights[kept])
        seeds = seeding(rows, 5, np.random.RandomState(seed)).numpy()
        assert is_a_row(seeds, blobs[kept])
        assert len(np.unique(seeds, axis=0)) == 5


def test_rows_without_weight_are_no_seeds(blobs):
    weights = np.where(np.arange(90) % 3 == 0, 1.0, 0.0)
    rows = make_rows(blobs, weights)
    for seed in range(20):
        seeds = k_means_plus_plus(rows, 4, np.random.RandomState(seed))
        assert is_a_row(seeds, blobs[weights > 0])


def test_random_rows_are_drawn_by_weight():
    values = np.arange(4.0)[:, None]
    rows = make_rows(values, [1.0, 2.0, 3.0, 4.0])
    generator = np.random.RandomState(0)
    drawn = [float(random_rows(rows, 1, generator)) for _ in range(4000)]
    np.testing.assert_allclose(np.bincount(np.int64(drawn)) / 4000, [0.1, 0.2, 0.3, 0.4], atol=0.03)


def test_k_means_plus_plus_is_as_good_as_that_of_scikit_learn(overlapping):
    rows = make_rows(overlapping)
    ours = [
        inertia(overlapping, k_means_plus_plus(rows, 6, np.random.RandomState(s)))
        for s in range(60)
    ]
    theirs = [
        inertia(overlapping, kmeans_plusplus(overlapping, 6, random_state=s)[0]) for s in range(60)
    ]
    random = [
        inertia(overlapping, random_rows(rows, 6, np.random.RandomState(s))) for s in range(60)
    ]
    assert np.mean(ours) == pytest.approx(np.mean(theirs), rel=0.05)
    assert np.mean(ours) < 0.9 * np.mean(random)


def test_k_means_plus_plus_sees_known_coordinates_only():
    # Rows of the second cluster lack the first coordinate; their distance is in the others.
    values = np.concatenate([np.zeros((30, 3)), np.full((30, 3), 9.0)])
    values[30:, 0] = np.nan
    rows = make_rows(values + 0.01 * np.random.default_rng(0).normal(size=(60, 3)))
    for seed in range(10):
        seeds = k_means_plus_plus(rows, 2, np.random.RandomState(seed)).numpy()
        assert abs(seeds[0, 1] - seeds[1, 1]) > 8


def test_k_means_is_lloyds_algorithm(overlapping):
    weights = np.random.default_rng(0).uniform(0.5, 2, 150)
    seeds = overlapping[:4]
    means, found = k_means(make_rows(overlapping, weights), torch.from_numpy(seeds))
    expected = KMeans(4, init=seeds, n_init=1).fit(overlapping, sample_weight=weights)
    np.testing.assert_allclose(means, expected.cluster_centers_, atol=1e-9)
    assert found == pytest.approx(expected.inertia_)


def test_distinct_rows_are_those_of_numpy(with_gaps):
    table = np.concatenate([with_gaps, with_gaps[::3], with_gaps[::4]])
    weights = np.random.default_rng(0).uniform(0, 1, len(table))
    found, masses = distinct_rows(table, weights)
    keys = [tuple(np.nan_to_num(row, nan=-1e9)) for row in table]
    expected = dict.fromkeys(keys, 0.0)
    for key, weight in zip(keys, weights, strict=True):
        expected[key] += weight
    assert len(found) == len(expected)
    for row, mass in zip(found, masses, strict=True):
        assert mass == pytest.approx(expected[tuple(np.nan_to_num(row, nan=-1e9))])


def test_distinct_rows_do_not_depend_on_their_order(with_gaps):
    order = np.random.default_rng(1).permutation(150)
    one, _ = distinct_rows(with_gaps, np.ones(150))
    other, _ = distinct_rows(with_gaps[order], np.ones(150))
    np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("scale", [1e-30, 1.0, 1e30])
@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_a_frame_centres_and_scales_and_goes_back(request, data_name, scale):
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
