"""Input that makes no sense gets scikit-learn's kind of error; what does, the right answer."""

import numpy as np
import pytest
import torch
from scipy import sparse
from sklearn.exceptions import NotFittedError

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


def test_as_many_rows_as_memories(make_parametric, blobs):
    model = make_parametric().fit(blobs[:3])
    found = model.memories_[np.argsort(model.memories_[:, 0])]
    np.testing.assert_allclose(found, blobs[:3][np.argsort(blobs[:3, 0])], atol=1e-6)
    assert np.isfinite(model.score(blobs[:3]))


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


def test_constant_columns(make, blobs):
    with_constants = np.insert(blobs, [1, 2], [7.0, -3e5], axis=1)
    model = make().fit(with_constants)
    assert model.n_clusters_ == 3
    constants = model.memories_[:, [1, 3]]
    np.testing.assert_allclose(constants, np.tile([7.0, -3e5], (3, 1)), atol=0.05)
    assert len(set(map(tuple, np.c_[model.labels_, make().fit_predict(blobs)]))) == 3


@pytest.mark.parametrize("bad", [np.inf, -np.inf])
@pytest.mark.parametrize("method", ["fit", "partial_fit", "predict", "complete", "score_samples"])
def test_infinities_are_refused(make, blobs, method, bad):
    model = make()
    if method not in ("fit", "partial_fit"):
        model.fit(blobs)
    blobs[3, 1] = bad
    with pytest.raises(ValueError, match="infinity"):
        getattr(model, method)(blobs)


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


@pytest.mark.parametrize("container", [sparse.csr_matrix, sparse.csr_array])
def test_sparse_input_is_refused_clearly(make, blobs, container):
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        make().fit(container(blobs))
    with pytest.raises(TypeError, match=r"[Ss]parse"):
        make().fit(blobs).predict(container(blobs))


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (torch.eye(20).to_sparse(), TypeError, r"[Ss]parse"),
        ([["red", "big"], ["blue", "small"]] * 5, ValueError, "X holds text"),
        (np.eye(20) + 1j, ValueError, r"[Cc]omplex"),
        (np.zeros((0, 2)), ValueError, "0 sample"),
        (np.zeros((5, 0)), ValueError, "0 feature"),
        (np.zeros(20), ValueError, "2D array"),
        (np.zeros((3, 4, 5)), ValueError, "dim"),
    ],
    ids=["sparse-tensor", "text", "complex", "no-rows", "no-columns", "one-axis", "three-axes"],
)
def test_other_kinds_of_rows_are_refused(make, rows, error, message):
    with pytest.raises(error, match=message):
        make().fit(rows)


def test_another_number_of_features_is_refused(make, blobs):
    model = make().fit(blobs)
    for method in ANSWERS:
        with pytest.raises(ValueError, match=r"3 features, but .* is expecting 2"):
            getattr(model, method)(np.zeros((4, 3)))


def test_nothing_is_answered_before_fit(make, blobs):
    methods = [*ANSWERS, "novelty"] if hasattr(make(), "novelty") else ANSWERS
    for method in methods:
        with pytest.raises(NotFittedError):
            getattr(make(), method)(blobs)
    with pytest.raises(NotFittedError):
        make().sample()
    with pytest.raises(NotFittedError):
        _ = make().cluster_centers_


SHARED = {
    "max_iter": [0, -1, 2.5, "many", None, True],
    "tol": [-1e-3, np.nan, np.inf, "small", None],
    "warm_start": ["yes", 1, None],
    "verbose": [-1, "loud", None],
}
PARAMETRIC = {
    **SHARED,
    "n_clusters": [0, -2, 2.5, "three", None, True],
    "init": ["k_means", np.zeros((2, 2)), np.zeros((3, 3)), np.full((3, 2), np.nan), None, 3],
    "n_init": [0, -1, 1.5, "some", None],
    "weights": ["heavy", [1.0, 1.0], [1.0, 1.0, 0.0], [1.0, 1.0, -1.0], [1.0, np.nan, 1.0]],
    "beta": [0.0, -1.0, np.inf, np.nan, "soft", None, [1.0]],
}
CLAM = {
    **PARAMETRIC,
    "objective": ["elbo", None],
    "likelihood": ["student", None],
    "schedule": ["cosine", None],
    "n_steps": [0, 1.5, "ten", None],
    "rate": [0.0, 1.5, np.nan, "fast", None],
    "mask_fraction": [0.0, 1.0, -0.5, np.nan, None],
    "learning_rate": [0.0, -1.0, np.nan, np.inf, "auto"],
    "batch_size": [0, -5, 10.5, None],
}
ELBO = {**PARAMETRIC, "dynamics": ["newton", None]}
CRP = {
    **SHARED,
    "alpha": [0.0, -1.0, np.inf, np.nan, "big", None],
    "discount": [-0.1, 1.0, np.nan, "none", None],
    "beta": [0.0, -1.0, np.inf, np.nan, "soft", None],
    "rho": [0.0, -1.0, np.inf, np.nan, "soft", None],
    "normalized": ["no", 1, None],
    "min_cluster_size": [-1, np.nan, "small", None],
    "init": ["k-means", np.zeros((2, 5)), np.zeros(4), np.full((2, 2), np.nan), None],
    "n_init": [0, -1, 1.5, "auto", None],
}
WRONG = [
    (kind, name, value)
    for kind, table in ((ClAM, CLAM), (ClAMELBO, ELBO), (ClAMCRP, CRP), (ClAMCRPELBO, CRP))
    for name, values in table.items()
    for value in values
]


@pytest.mark.parametrize(("kind", "name", "value"), WRONG)
def test_a_setting_that_makes_no_sense_is_named(blobs, kind, name, value):
    settings = {"n_clusters": 3} if kind in (ClAM, ClAMELBO) else {}
    model = kind(**{**settings, name: value})
    with pytest.raises(ValueError, match=name):
        model.fit(blobs)


def test_every_setting_is_tried():
    for kind, table in ((ClAM, CLAM), (ClAMELBO, ELBO), (ClAMCRP, CRP), (ClAMCRPELBO, CRP)):
        assert set(table) | {"random_state"} == set(kind().get_params())


def test_a_seed_that_is_none_is_refused(make, blobs):
    for method in ("fit", "partial_fit"):
        with pytest.raises(ValueError, match="seed"):
            getattr(make(random_state="today"), method)(blobs)


def test_settings_are_checked_by_a_stream_too(make, blobs):
    with pytest.raises(ValueError, match="tol"):
        make(tol=-1.0).partial_fit(blobs)


def test_whole_floats_are_counts(make, blobs):
    counts = {
        "n_clusters": 3.0,
        "n_init": 1.0,
        "max_iter": 60.0,
        "n_steps": 5.0,
        "batch_size": 64.0,
    }
    known = {name: value for name, value in counts.items() if name in make().get_params()}
    assert make(**known).fit(blobs).partial_fit(blobs).n_clusters_ == 3


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
