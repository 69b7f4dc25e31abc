"""What scikit-learn's users expect of an estimator, for all four."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn.base import clone
from sklearn.exceptions import ConvergenceWarning
from sklearn.utils.estimator_checks import parametrize_with_checks

import isthmus as ist
from isthmus.checks import check_energy
from isthmus.cluster import BasinFlow, ClAM, ClAMCRP, ClAMCRPELBO, ClAMELBO, GaussianMeanShift


@pytest.mark.filterwarnings("ignore::sklearn.exceptions.ConvergenceWarning")
@parametrize_with_checks(
    [ClAM(), ClAMELBO(), ClAMCRP(), ClAMCRPELBO(), GaussianMeanShift(), BasinFlow()]
)
def test_scikit_learn_check(estimator: Any, check: Any) -> None:
    check(estimator)


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


def test_single_precision_stays_single(make, blobs):
    single = blobs.astype(np.float32)
    model = make().fit(single)
    double = make().fit(blobs).memories_
    np.testing.assert_allclose(np.sort(model.memories_, 0), np.sort(double, 0), atol=5e-3)
    for method in ("predict_proba", "score_samples", "transform", "complete"):
        assert getattr(model, method)(single).dtype == model.memories_.dtype == np.float32
    assert model.sample(3)[0].dtype == np.float32
    assert next(model.energy_.parameters()).dtype == torch.float32


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


def test_the_learned_energy_is_an_energy_like_any_other(make, blobs):
    model = make().fit(blobs)
    energy = model.energy_
    assert isinstance(energy, ist.Mixture | ist.CRPMixture)
    assert "step never raises the energy" in check_energy(energy).passed
    np.testing.assert_allclose(energy.log_prob(blobs), model.score_samples(blobs))
    retrieved = ist.retrieve(energy, blobs)
    assert bool(retrieved.converged.all())
    distance = np.linalg.norm(retrieved.state[:, None] - model.memories_, axis=2)
    np.testing.assert_array_equal(distance.argmin(1), model.labels_)
    assert distance.min(1).max() < 0.2
    chains = ist.sample(energy, 20, sampler=ist.MALA(step_size=0.5), burn_in=50, seed=0)
    assert chains.shape == (20, 2)
    assert np.isfinite(chains).all()


FITTED = ("memories_", "weights_", "beta_", "objective_", "n_iter_")


def assert_same(one, other):
    for name in FITTED:
        np.testing.assert_allclose(getattr(other, name), getattr(one, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("least", [0, 1])
def test_a_weight_is_how_often_a_row_with_gaps_was_written(make, with_gaps, least):
    weights = np.random.default_rng(0).integers(least, 4, len(with_gaps))
    outliers = np.where((weights == 0)[:, None], 1e3 * with_gaps, with_gaps)
    weighted = make().fit(outliers, sample_weight=weights)
    repeated = make().fit(np.repeat(with_gaps, weights, 0))
    assert_same(repeated, weighted)
    np.testing.assert_array_equal(np.repeat(weighted.labels_, weights), repeated.labels_)


@pytest.mark.parametrize("init", ["random", "k-means++", "k-means"])
def test_however_it_starts(overlapping, init):
    weights = np.random.default_rng(0).integers(0, 4, 150)
    settings = {"init": init, "n_init": 2, "max_iter": 1000, "random_state": 0}
    weighted = ClAMELBO(3, **settings).fit(overlapping, sample_weight=weights)
    assert_same(ClAMELBO(3, **settings).fit(np.repeat(overlapping, weights, 0)), weighted)


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
