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


def test_a_stream_of_weight_two_is_one_of_rows_written_twice(make_parametric, overlapping):
    seeds = overlapping[:3]
    weighted = make_parametric(init=seeds).partial_fit(overlapping, sample_weight=np.full(150, 2))
    repeated = make_parametric(init=seeds).partial_fit(np.repeat(overlapping, 2, 0))
    np.testing.assert_allclose(weighted.memories_, repeated.memories_, rtol=1e-9)
    np.testing.assert_allclose(weighted.beta_, repeated.beta_, rtol=1e-9)


def test_only_relative_weights_matter_to_a_given_number_of_memories(make_parametric, overlapping):
    weights = np.random.default_rng(1).uniform(0.1, 1, 150)
    one = make_parametric().fit(overlapping, sample_weight=weights)
    other = make_parametric().fit(overlapping, sample_weight=1e6 * weights)
    np.testing.assert_allclose(other.memories_, one.memories_, rtol=1e-6)


def test_the_score_is_a_weighted_mean(make, blobs):
    model = make().fit(blobs)
    weights = np.random.default_rng(2).uniform(0, 2, 90)
    expected = np.average(model.score_samples(blobs), weights=weights)
    assert model.score(blobs, sample_weight=weights) == pytest.approx(expected)
    assert model.score(blobs) == pytest.approx(model.score_samples(blobs).mean())


@pytest.mark.parametrize("method", ["fit", "partial_fit"])
@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (-np.ones(90), "[Nn]egative"),
        (np.zeros(90), "zero"),
        (np.ones(89), "shape"),
        (np.full(90, np.nan), "NaN"),
        (np.ones((90, 2)), "1D"),
    ],
    ids=["negative", "all-zero", "too-few", "nan", "table"],
)
def test_weights_that_make_no_sense_are_refused(make, blobs, method, weights, message):
    with pytest.raises(ValueError, match=message):
        getattr(make(), method)(blobs, sample_weight=weights)
