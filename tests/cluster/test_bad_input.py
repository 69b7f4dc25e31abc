"""Input that makes no sense gets scikit-learn's kind of error; what does, the right answer."""

import numpy as np
import pytest

from isthmus.cluster.data import RowSample


def test_one_row(make, blobs):
    row = blobs[:1]
    model = make()
    if "n_clusters" in model.get_params():
        model.set_params(n_clusters=1)
    for method in ("fit", "partial_fit"):
        getattr(model, method)(row)
        np.testing.assert_allclose(model.memories_, row, rtol=1e-9)
        assert model.labels_.tolist() == [0]
        assert np.isfinite(model.score(row))


@pytest.mark.parametrize("value", [0.0, 5.0, -1e20])
def test_all_rows_equal(make, value):
    rows = np.full((20, 3), value)
    model = make().fit(rows)
    np.testing.assert_allclose(model.memories_, np.full_like(model.memories_, value))
    assert model.n_clusters_ == (3 if "n_clusters" in model.get_params() else 1)
    assert len(set(model.labels_)) == 1
    assert np.isfinite(model.score(rows))
    assert np.isfinite(model.predict_proba(rows)).all()
    assert model.predict(rows + 1).shape == (20,)


def test_fewer_different_rows_than_memories(make_parametric):
    rows = np.repeat([[0.0, 0.0], [1.0, 1.0]], 10, axis=0)
    for init in ("k-means", "k-means++", "random"):
        model = make_parametric(init=init).fit(rows)
        assert model.memories_.shape == (3, 2)
        assert np.isfinite(model.score(rows))
        assert model.labels_[0] != model.labels_[-1]


@pytest.mark.parametrize(
    ("scale", "kind", "precise"), [(1e30, np.float64, 1e-6), (1e-30, np.float32, 2e-2)]
)
def test_the_scale_of_the_data_does_not_matter(make, overlapping, scale, kind, precise):
    model, rows = make(beta="auto").fit(overlapping), (scale * overlapping).astype(kind)
    scaled = make(beta="auto").fit(rows)
    np.testing.assert_allclose(scaled.memories_ / scale, model.memories_, rtol=precise)
    np.testing.assert_allclose(scaled.beta_ * scale**2, model.beta_, rtol=precise)
    np.testing.assert_array_equal(scaled.labels_, model.labels_)
    scores = scaled.score_samples(rows) + 3 * np.log(scale)
    np.testing.assert_allclose(scores, model.score_samples(overlapping), atol=10 * precise)
    distances = scaled.transform(rows) / scale
    np.testing.assert_allclose(distances, model.transform(overlapping), atol=precise)
    assert np.isfinite(scaled.partial_fit(rows).memories_).all()


def test_where_the_data_lie_does_not_matter(make, blobs):
    model, moved = make().fit(blobs), make().fit(blobs + 1e6)
    np.testing.assert_allclose(moved.memories_ - 1e6, model.memories_, atol=1e-3)


def test_far_off_queries_get_an_answer(make, blobs):
    model = make().fit(blobs)
    far = np.array([[1e6, 0.0], [0.0, 1e6]])
    expected = np.linalg.norm(far[:, None] - model.memories_, axis=2).argmin(1)
    np.testing.assert_array_equal(model.predict(far), expected)
    shares = model.predict_proba(1e100 * far)
    np.testing.assert_allclose(shares.sum(1), 1)
    if hasattr(model, "novelty"):
        np.testing.assert_allclose(model.novelty(far), 1)
        np.testing.assert_allclose(model.novelty(1e200 * far), 1)


def test_rows_stay_distinct_beside_a_column_of_huge_numbers():
    generator = np.random.default_rng(0)
    dates = np.repeat([1.6e18, 1.7e18], 150) + generator.integers(0, 86_400, 300) * 1e9
    labels = np.arange(300) // 75
    table = np.c_[dates, labels % 2 + 0.05 * generator.normal(size=300)]
    table[::7, 1] = -table[::7, 1]
    table = np.concatenate([table, [[0.0, 1.0], [-0.0, 1.0]]])
    assert len(RowSample.distinct(table, np.ones(302))) == 301
