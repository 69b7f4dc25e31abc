"""Input that makes no sense gets scikit-learn's kind of error; what does, the right answer."""

import numpy as np
import pytest
import torch

from isthmus.cluster import ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO
from isthmus.errors import InvalidInputError

ANSWERS = ("predict", "predict_proba", "transform", "score_samples", "score", "complete")


def test_fewer_rows_than_memories(make_parametric, blobs):
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match="X has 2 rows .* n_clusters=3. Use at most 2"):
            getattr(make_parametric(), method)(blobs[:2])
    weights = np.r_[np.ones(2), np.zeros(88)]
    with pytest.raises(ValueError, match="X has 2 rows to learn from"):
        make_parametric().fit(blobs, sample_weight=weights)


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


def test_the_scale_of_the_data_does_not_matter(make, overlapping):
    model = make(beta="auto").fit(overlapping)
    stream = make(beta="auto").partial_fit(overlapping[:80])
    for scale in (1e30, 1e-30):
        for kind, precise in ((np.float64, 1e-6), (np.float32, 2e-2)):
            rows = (scale * overlapping).astype(kind)
            scaled = make(beta="auto").fit(rows)
            np.testing.assert_allclose(scaled.memories_ / scale, model.memories_, rtol=precise)
            np.testing.assert_allclose(scaled.beta_ * scale**2, model.beta_, rtol=precise)
            np.testing.assert_array_equal(scaled.labels_, model.labels_)
            scores = scaled.score_samples(rows) + 3 * np.log(scale)
            expected = model.score_samples(overlapping)
            np.testing.assert_allclose(scores, expected, atol=10 * precise)
            distances = scaled.transform(rows) / scale
            np.testing.assert_allclose(distances, model.transform(overlapping), atol=precise)
            assert np.isfinite(scaled.partial_fit(rows).memories_).all()
            streamed = make(beta="auto").partial_fit(rows[:80])
            np.testing.assert_allclose(streamed.memories_ / scale, stream.memories_, rtol=precise)


def test_where_the_data_lie_does_not_matter(make, blobs):
    model, moved = make().fit(blobs), make().fit(blobs + 1e6)
    np.testing.assert_allclose(moved.memories_ - 1e6, model.memories_, atol=1e-3)
    np.testing.assert_array_equal(moved.labels_, model.labels_)


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


def test_a_row_of_no_memory_still_has_one_that_is_nearest(make, blobs):
    # In single precision the posterior of known memories is zero at some ten deviations.
    model = make().fit(blobs.astype(np.float32))
    far = np.float32([[60.0, 1.0], [1.0, 60.0], [-60.0, -61.0]])
    expected = np.linalg.norm(far[:, None] - model.memories_, axis=2).argmin(1)
    np.testing.assert_array_equal(model.predict(far), expected)
    np.testing.assert_allclose(model.predict_proba(far).max(1), 1)


SHARED = {
    "max_iter": [0, 2.5, None],
    "tol": [-1e-3, np.nan],
    "warm_start": ["yes"],
    "verbose": [-1],
}
PARAMETRIC = SHARED | {
    "n_clusters": [0, 2.5, None, True],
    "init": ["k_means", np.zeros((2, 2)), np.full((3, 2), np.nan), None],
    "n_init": [0, "some"],
    "weights": ["heavy", [1.0, 1.0], [1.0, 1.0, -1.0], [1.0, np.nan, 1.0]],
    "beta": [0.0, np.inf, np.nan, "soft", None, [1.0]],
}
CLAM = PARAMETRIC | {
    "objective": ["elbo"],
    "likelihood": [None],
    "schedule": ["cosine"],
    "n_steps": [0, 1.5],
    "rate": [0.0, 1.5, np.nan],
    "mask_fraction": [0.0, 1.0],
    "learning_rate": [0.0, np.inf],
    "batch_size": [0, 10.5],
}
CRP = SHARED | {
    "alpha": [0.0, np.nan, "big"],
    "discount": [-0.1, 1.0],
    "beta": [0.0, np.inf, "soft"],
    "rho": [-1.0, None],
    "normalized": ["no"],
    "min_cluster_size": [-1, "small"],
    "init": ["k-means", np.zeros((2, 5)), np.full((2, 2), np.nan)],
    "n_init": [0, "auto"],
}
ELBO = PARAMETRIC | {"dynamics": ["newton"]}
WRONG = [
    (kind, name, value)
    for kind, table in ((ClAM, CLAM), (ClAMELBO, ELBO), (ClAMCRP, CRP))
    for name, values in table.items()
    for value in values
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_a_setting_that_makes_no_sense_is_named(blobs, kind, name, value):
    settings = {"n_clusters": 3} if kind in (ClAM, ClAMELBO) else {}
    model = kind(**{**settings, name: value})
    with pytest.raises(ValueError, match=name):
        model.fit(blobs)


@pytest.mark.parametrize(
    ("ask", "words"),
    [
        (lambda X: ClAMCRP(beta=1e308).fit(X), "beta is too large"),
        (lambda X: ClAMCRPELBO(init=[[1e200] * X.shape[1]]).fit(X), "finite means"),
        (lambda X: ClAM(2, random_state=0).fit(X).score(X, sample_weight=np.inf), "sample_weight"),
        (lambda X: ClAM(2).fit(torch.from_numpy(X).to(torch.complex128).conj()), "[Cc]omplex"),
    ],
)
def test_numbers_without_an_answer_are_refused(ask, words):
    with pytest.raises(InvalidInputError, match=words):
        ask(np.random.default_rng(0).normal(size=(12, 2)))
