"""Weight two is a row written twice, weight zero a row left out."""

import numpy as np
import pytest

from isthmus.cluster import ClAMELBO

FITTED = ("memories_", "weights_", "beta_", "objective_", "n_iter_")


def assert_same(one, other):
    for name in FITTED:
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_weight_two_is_a_row_written_twice(request, make, data_name):
    x = request.getfixturevalue(data_name)
    weights = np.random.default_rng(0).integers(1, 4, len(x))
    weighted = make().fit(x, sample_weight=weights)
    repeated = make().fit(np.repeat(x, weights, 0))
    assert_same(repeated, weighted)
    np.testing.assert_array_equal(np.repeat(weighted.labels_, weights), repeated.labels_)


@pytest.mark.parametrize("init", ["random", "k-means++", "k-means"])
def test_however_it_starts(overlapping, init):
    weights = np.random.default_rng(0).integers(0, 4, 150)
    settings = {"init": init, "n_init": 2, "max_iter": 1000, "random_state": 0}
    weighted = ClAMELBO(3, **settings).fit(overlapping, sample_weight=weights)
    assert_same(ClAMELBO(3, **settings).fit(np.repeat(overlapping, weights, 0)), weighted)


@pytest.mark.parametrize("data_name", ["overlapping", "with_gaps"])
def test_weight_zero_is_a_row_left_out(request, make, data_name):
    x = request.getfixturevalue(data_name)
    weights = np.ones(len(x))
    weights[::3] = 0
    outliers = np.where((weights == 0)[:, None], 1e3 * x, x)
    weighted = make().fit(outliers, sample_weight=weights)
    assert_same(make().fit(x[weights > 0]), weighted)
    assert weighted.labels_.shape == (len(x),)


def test_weight_zero_is_a_row_left_out_of_a_stream(make, overlapping):
    weights = np.ones(150)
    weights[::3] = 0
    outliers = np.where((weights == 0)[:, None], 1e3 * overlapping, overlapping)
    weighted, absent = make(), make()
    for part in (slice(0, 70), slice(70, 150)):
        kept = overlapping[part][weights[part] > 0]
        weighted.partial_fit(outliers[part], sample_weight=weights[part])
        absent.partial_fit(kept)
        assert_same(absent, weighted)
        assert weighted.labels_.shape == weights[part].shape
        np.testing.assert_array_equal(weighted.labels_[weights[part] > 0], absent.labels_)
