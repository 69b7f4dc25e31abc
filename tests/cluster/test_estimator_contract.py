"""What scikit-learn's users expect of an estimator, for all four."""

import io
import sys

import numpy as np
import pandas as pd
import polars as pl
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.metrics import adjusted_rand_score
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.cluster import ClAMELBO


def rows_are_same_clusters(one, other):
    return adjusted_rand_score(one, other) == 1


def test_fit_predict_is_fit_then_predict(make, overlapping):
    labels = make().fit_predict(overlapping)
    model = make().fit(overlapping)
    np.testing.assert_array_equal(labels, model.labels_)
    np.testing.assert_array_equal(labels, model.predict(overlapping))
    assert labels.dtype == np.int64


def test_fitted_attributes_have_their_shapes(make, blobs):
    model = make().fit(blobs)
    assert model.n_clusters_ == 3
    assert model.memories_.shape == (3, 2)
    np.testing.assert_array_equal(model.cluster_centers_, model.memories_)
    assert model.weights_.shape == (3,)
    assert model.weights_.sum() == pytest.approx(1)
    assert model.labels_.shape == (90,)
    assert set(model.labels_) == {0, 1, 2}
    assert isinstance(model.beta_, float)
    assert model.converged_ is True
    assert model.n_features_in_ == 2
    assert 1 <= model.n_iter_ <= model.max_iter
    assert model.objective_trace_.ndim == 1
    assert len(model.objective_trace_) == model.n_iter_ + 1
    assert isinstance(model.objective_, float)
    assert not hasattr(model, "feature_names_in_")


def test_settings_are_stored_as_given_and_cloned(make, blobs):
    seeds = [[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]]
    model = make(init=seeds, max_iter=77, tol=1e-2)
    assert model.get_params()["init"] is seeds
    before = repr(model.get_params())
    model.fit(blobs)
    assert repr(model.get_params()) == before
    fresh = clone(model)
    assert not hasattr(fresh, "memories_")
    assert fresh.get_params()["max_iter"] == 77


def test_probabilities_are_probabilities(make, overlapping):
    model = make().fit(overlapping)
    found = model.predict_proba(overlapping)
    assert found.shape == (150, model.n_clusters_)
    assert found.min() >= 0
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_array_equal(found.argmax(1), model.predict(overlapping))


def test_transform_gives_distances_to_memories(make, overlapping):
    model = make().fit(overlapping)
    expected = np.linalg.norm(overlapping[:, None] - model.memories_, axis=2)
    np.testing.assert_allclose(model.transform(overlapping), expected, rtol=1e-12)
    assert model.transform(model.memories_).diagonal().max() == 0


def test_samples_come_from_the_learned_density(make, blobs):
    model = make().fit(blobs)
    drawn, labels = model.sample(600)
    assert drawn.shape == (600, 2)
    np.testing.assert_array_equal(labels, model.predict(drawn))
    np.testing.assert_allclose(np.bincount(labels) / 600, model.weights_, atol=0.08)
    for label, memory in enumerate(model.memories_):
        np.testing.assert_allclose(np.median(drawn[labels == label], 0), memory, atol=0.3)
    again, _ = model.sample(600)
    np.testing.assert_array_equal(again, drawn)
    assert model.sample()[0].shape == (1, 2)
    for bad in (0, -1, 2.5):
        with pytest.raises(ValueError, match="n_samples"):
            model.sample(bad)


@pytest.mark.parametrize("container", ["pandas", "polars"])
def test_frames_give_their_names_and_are_given_back(make, blobs, container):
    names = ["width", "height"]
    as_frame = {
        "pandas": lambda x: pd.DataFrame(x, columns=names),
        "polars": lambda x: pl.DataFrame(x, schema=names),
    }[container]
    model = make().fit(as_frame(blobs))
    assert model.feature_names_in_.tolist() == names
    np.testing.assert_array_equal(model.memories_, make().fit(blobs).memories_)
    np.testing.assert_array_equal(model.predict(as_frame(blobs)), model.labels_)
    model.set_output(transform=container)
    frame = model.transform(as_frame(blobs))
    assert type(frame).__module__.startswith(container)
    expected = [f"{type(model).__name__.lower()}{k}" for k in range(3)]
    assert list(frame.columns) == expected == model.get_feature_names_out().tolist()
    with pytest.raises(ValueError, match="feature names"):
        model.predict(as_frame(blobs)[names[::-1]])


def test_gaps_in_frames_are_gaps(make, with_gaps):
    expected = make().fit(with_gaps).memories_
    frame = pd.DataFrame(with_gaps).convert_dtypes()
    frame.columns = list("abc")
    assert frame.isna().sum().sum() == np.isnan(with_gaps).sum()
    np.testing.assert_allclose(make().fit(frame).memories_, expected)
    table = pl.DataFrame(with_gaps, schema=list("abc")).fill_nan(None)
    np.testing.assert_allclose(make().fit(table).memories_, expected)


def test_read_only_files_torch_tensors_and_other_arrays_are_rows_too(make, blobs, tmp_path):
    expected = make().fit(blobs)
    np.save(tmp_path / "rows.npy", blobs)
    on_disk = np.load(tmp_path / "rows.npy", mmap_mode="r")
    assert not on_disk.flags.writeable
    others = {
        "read-only": on_disk,
        "tensor": torch.from_numpy(blobs),
        "tensor in a graph": torch.from_numpy(blobs).requires_grad_(),
        "columns first": np.asfortranarray(blobs),
        "every other": np.repeat(blobs, 2, 0)[::2],
        "objects": blobs.astype(object),
        "lists": blobs.tolist(),
    }
    for name, rows in others.items():
        model = make().fit(rows)
        np.testing.assert_array_equal(model.memories_, expected.memories_, err_msg=name)
        for method in ("predict", "predict_proba", "score_samples", "transform", "complete"):
            found, wanted = getattr(model, method)(rows), getattr(expected, method)(blobs)
            np.testing.assert_array_equal(found, wanted, err_msg=f"{name}: {method}")
        streamed = make().partial_fit(rows)
        np.testing.assert_array_equal(streamed.memories_, make().partial_fit(blobs).memories_)
    np.testing.assert_array_equal(on_disk, blobs)


def test_tensors_are_weights_too(make, blobs):
    weights = torch.linspace(0, 2, 90, dtype=torch.float64)
    model = make().fit(blobs, sample_weight=weights)
    np.testing.assert_array_equal(
        model.memories_, make().fit(blobs, sample_weight=weights.numpy()).memories_
    )


def test_single_precision_stays_single(make, blobs):
    model = make().fit(blobs.astype(np.float32))
    assert model.memories_.dtype == np.float32
    double = make().fit(blobs).memories_
    np.testing.assert_allclose(np.sort(model.memories_, 0), np.sort(double, 0), atol=5e-3)
    single = blobs.astype(np.float32)
    for method in ("predict_proba", "score_samples", "transform", "complete"):
        assert getattr(model, method)(single).dtype == np.float32
    assert model.sample(3)[0].dtype == np.float32
    assert next(model.energy_.parameters()).dtype == torch.float32


def test_half_precision_and_whole_numbers_are_taken_too(make, blobs):
    expected = make().fit(blobs).labels_
    for kind in (np.float16, np.int64):
        model = make(beta="auto").fit((blobs * 4).astype(kind))
        assert model.memories_.dtype == np.float64
        assert rows_are_same_clusters(model.labels_, expected)


def test_rows_and_weights_are_left_as_they_were(make, with_gaps):
    weights = np.random.default_rng(0).uniform(0, 2, 150)
    rows_before, weights_before = with_gaps.copy(), weights.copy()
    model = make().fit(with_gaps, sample_weight=weights)
    model.partial_fit(with_gaps, sample_weight=weights)
    for method in ("predict", "predict_proba", "score_samples", "transform", "complete"):
        getattr(model, method)(with_gaps)
    np.testing.assert_array_equal(with_gaps, rows_before)
    np.testing.assert_array_equal(weights, weights_before)


def test_a_seed_decides(make, overlapping):
    one, same = make(random_state=5).fit(overlapping), make(random_state=5).fit(overlapping)
    np.testing.assert_array_equal(one.memories_, same.memories_)
    stream = np.random.RandomState(5)
    np.testing.assert_array_equal(
        make(random_state=stream).fit(overlapping).memories_, one.memories_
    )
    assert make(random_state=None).fit(overlapping).n_clusters_ >= 1


def test_without_a_seed_starts_differ(overlapping):
    found = {
        ClAMELBO(8, init="random", n_init=1, tol=1.0).fit(overlapping).objective_ for _ in range(4)
    }
    assert len(found) > 1


def test_the_global_stream_is_not_touched_with_a_seed(make, overlapping):
    torch.manual_seed(3)
    state, numpy_state = torch.get_rng_state(), np.random.get_state()[1].copy()  # noqa: NPY002
    model = make().fit(overlapping).partial_fit(overlapping)
    model.sample(3)
    assert torch.equal(torch.get_rng_state(), state)
    np.testing.assert_array_equal(np.random.get_state()[1], numpy_state)  # noqa: NPY002


def test_too_few_iterations_are_reported_with_advice(make, overlapping):
    model = make(max_iter=1, tol=0.0, beta=2.0)
    with pytest.warns(ConvergenceWarning, match=f"{type(model).__name__}.*max_iter=1.*Raise"):
        model.fit(overlapping)
    assert model.converged_ is False
    assert model.n_iter_ == 1
    assert len(model.objective_trace_) == 2


def test_a_warm_start_goes_on_from_the_last_memories(make, blobs):
    model = make(warm_start=True).fit(blobs)
    before = model.memories_.copy()
    model.fit(blobs[:80])
    assert model.n_clusters_ == 3
    moved = np.linalg.norm(model.memories_[:, None] - before, axis=2).min(1)
    assert moved.max() < 0.3


def test_a_warm_start_of_em_continues_where_it_was_cut(overlapping):
    seeds = overlapping[:3] + 2.0
    settings = {"init": seeds, "beta": 0.5, "tol": 0.0}
    whole, cut = ClAMELBO(3, max_iter=6, **settings), ClAMELBO(3, max_iter=3, **settings)
    cut.set_params(warm_start=True)
    with pytest.warns(ConvergenceWarning):
        whole.fit(overlapping)
    for _ in range(2):
        with pytest.warns(ConvergenceWarning):
            cut.fit(overlapping)
    np.testing.assert_allclose(cut.memories_, whole.memories_, rtol=1e-9)
    cold = clone(cut).set_params(warm_start=False)
    for _ in range(2):
        with pytest.warns(ConvergenceWarning):
            cold.fit(overlapping)
    assert not np.allclose(cold.memories_, whole.memories_)


def test_a_warm_start_on_other_features_is_a_cold_one(make, overlapping):
    model = make(warm_start=True).fit(overlapping)
    model.fit(overlapping[:, :2])
    assert model.memories_.shape[1] == 2


@pytest.mark.parametrize("init", ["k-means", "k-means++", "random"])
def test_every_start_finds_clear_clusters(make_parametric, blobs, init):
    model = make_parametric(init=init, n_init=3, tol=0.05, max_iter=300, random_state=1)
    model.fit(blobs)
    centres = np.array([[0.0, 0.0], [8.0, 0.0], [0.0, 8.0]])
    expected = np.linalg.norm(blobs[:, None] - centres, axis=2).argmin(1)
    assert rows_are_same_clusters(model.labels_, expected)


def test_given_seeds_decide_which_memory_is_which(make_parametric, blobs):
    seeds = np.array([[0.0, 8.0], [0.0, 0.0], [8.0, 0.0]])
    model = make_parametric(init=seeds).fit(blobs)
    np.testing.assert_allclose(model.memories_, seeds, atol=0.6)


def test_nothing_but_given_seeds_is_tried(blobs):
    # A memory that no row wants stays where it was put.
    model = ClAMELBO(3, init=[[0, 0], [0.1, 0], [100, 100]], beta=5.0).fit(blobs)
    np.testing.assert_allclose(model.memories_[2], [100, 100])


def test_the_best_of_several_starts_is_kept(overlapping):
    settings = {"init": "random", "random_state": 3, "max_iter": 1000}
    one = ClAMELBO(6, n_init=1, **settings).fit(overlapping)
    many = ClAMELBO(6, n_init=8, **settings).fit(overlapping)
    assert many.objective_ < one.objective_ - 1e-4


def test_progress_goes_to_stderr_only(make, blobs, capsys, monkeypatch):
    make().fit(blobs)
    assert capsys.readouterr() == ("", "")
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    model = make(verbose=1).fit(blobs)
    assert type(model).__name__ in terminal.getvalue()
    assert f"/{model.max_iter}" in terminal.getvalue()
    assert capsys.readouterr().out == ""


def test_the_learned_energy_is_an_energy_like_any_other(make, blobs):
    model = make().fit(blobs)
    energy = model.energy_
    assert isinstance(energy, ist.Mixture | ist.CRPMixture)
    assert len(check_energy(energy).passed) >= 14
    np.testing.assert_allclose(energy.log_prob(blobs), model.score_samples(blobs))
    retrieved = ist.retrieve(energy, blobs)
    assert bool(retrieved.converged.all())
    distance = np.linalg.norm(retrieved.state[:, None] - model.memories_, axis=2)
    np.testing.assert_array_equal(distance.argmin(1), model.labels_)
    assert distance.min(1).max() < 0.2
    chains = ist.sample(energy, 20, sampler=ist.MALA(step_size=0.5), burn_in=50, seed=0)
    assert chains.shape == (20, 2)
    assert np.isfinite(chains).all()


def test_it_works_in_a_pipeline(make, blobs):
    pipe = make_pipeline(StandardScaler(), make(beta="auto"))
    labels = pipe.fit_predict(1000 * blobs + 7)
    assert len(set(labels)) == 3
    assert np.isfinite(pipe.score(1000 * blobs + 7))
