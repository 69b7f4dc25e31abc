"""TableModel: the estimators' own results, in the units of the table."""

from itertools import permutations
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
from sklearn.cluster import KMeans
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score, normalized_mutual_info_score
from sklearn.preprocessing import StandardScaler

import isthmus as ist
from isthmus.bandwidth import leave_one_out
from isthmus.cluster import (
    BasinFlow,
    ClAM,
    ClAMCRP,
    ClAMCRPELBO,
    ClAMELBO,
    GaussianMeanShift,
    StreamedClusters,
    TableModel,
    refit_agreement,
)
from isthmus.errors import InvalidInputError

IRIS = load_iris(as_frame=True)
X = IRIS.data.to_numpy()
Z = StandardScaler().fit_transform(X)


@pytest.mark.parametrize(
    ("options", "estimator"),
    [
        ({}, BasinFlow(random_state=5)),
        ({"resolution": 0.6}, BasinFlow(resolution=0.6, random_state=5)),
        ({"method": "basin-flow", "n_clusters": 5}, BasinFlow(5, random_state=5)),
        ({"method": "crp"}, ClAMCRP(random_state=5)),
        ({"alpha": 0.1}, ClAMCRP(alpha=0.1, random_state=5)),
        ({"n_clusters": 3}, ClAMELBO(3, random_state=5)),
        ({"method": "clam", "n_clusters": 2}, ClAM(2, random_state=5)),
        ({"method": "crp-elbo", "alpha": 0.1}, ClAMCRPELBO(alpha=0.1, random_state=5)),
        ({"method": "mean-shift", "bandwidth": 0.5}, GaussianMeanShift(0.5)),
    ],
)
def test_every_method_is_the_estimator_on_standardised_columns(
    options: dict, estimator: object
) -> None:
    model = TableModel.fit(IRIS.data, seed=5, **options)
    found, expected = model.describe(IRIS.data), estimator.fit(Z)
    assert model.columns == tuple(IRIS.feature_names)
    np.testing.assert_array_equal(found.labels, expected.labels_)
    log_density = expected.score_samples(Z) - np.log(X.std(0)).sum()
    np.testing.assert_allclose(found.log_density, log_density)
    columns = found.to_frame()
    assert ("p1" in columns) == hasattr(expected, "predict_proba")
    assert ("novelty" in columns) == hasattr(expected, "novelty")
    if hasattr(expected, "predict_proba"):
        posteriors = expected.predict_proba(Z)
        np.testing.assert_allclose(found.posteriors, posteriors, rtol=0, atol=1e-12)
        np.testing.assert_allclose(found.certainty, posteriors.max(1), rtol=0, atol=1e-12)
    if hasattr(expected, "novelty"):
        np.testing.assert_allclose(found.novelty, expected.novelty(Z), rtol=0, atol=1e-12)


def test_the_density_of_a_row_with_gaps_counts_known_columns_only() -> None:
    rows = np.random.default_rng(0).normal(size=(50, 3)) * [10.0, 0.1, 1.0]
    rows[::7, 0] = np.nan
    scaler = StandardScaler().fit(rows)
    expected = ClAMELBO(2, random_state=0).fit(scaler.transform(rows))
    volume = (~np.isnan(rows) * np.log(scaler.scale_)).sum(1)
    found = TableModel.fit(rows, n_clusters=2).describe(rows)
    np.testing.assert_allclose(
        found.log_density, expected.score_samples(scaler.transform(rows)) - volume
    )
    assert found.summary["missing"] == 8


def test_the_summary_is_in_the_units_of_the_table() -> None:
    found = TableModel.fit(IRIS.data, n_clusters=3).describe(IRIS.data)
    model = ClAMELBO(3, random_state=0).fit(Z)
    clusters = found.summary["clusters"]
    memories = np.array([[*one["memory"].values()] for one in clusters])
    np.testing.assert_allclose(memories, model.memories_ * X.std(0) + X.mean(0))
    assert [one["size"] for one in clusters] == np.bincount(model.labels_).tolist()
    for number, one in enumerate(clusters):
        means = Z[model.labels_ == number].mean(0)
        name, far = next(iter(one["set_apart_by"].items()))
        assert far == pytest.approx(means[np.abs(means).argmax()])
        assert name == IRIS.feature_names[np.abs(means).argmax()]
    assert str(found).startswith("3 clusters in 150 rows, 4 features (standardised; ClAMELBO)")


def test_agreement_is_that_of_scikit_learn_and_ignores_unknown_classes() -> None:
    model = TableModel.fit(X)
    labels = model.describe(X).labels
    agreement = model.describe(X, classes=IRIS.target, class_name="kind").summary["agreement"]
    assert agreement["ARI"] == pytest.approx(adjusted_rand_score(IRIS.target, labels))
    assert agreement["NMI"] == pytest.approx(normalized_mutual_info_score(IRIS.target, labels))
    for unknown in ("", None, np.nan):
        classes = [unknown] * 30 + IRIS.target_names[IRIS.target[30:]].tolist()
        agreement = model.describe(X, classes=pd.Series(classes)).summary["agreement"]
        assert agreement["rows"] == 120
        assert agreement["ARI"] == pytest.approx(adjusted_rand_score(IRIS.target[30:], labels[30:]))


@pytest.mark.parametrize("options", [{}, {"n_clusters": 3}])
def test_a_saved_model_finds_its_columns_in_any_order(tmp_path: Path, options: dict) -> None:
    model = TableModel.fit(IRIS.data, **options)
    model.save(tmp_path / "model.safetensors")
    assert not hasattr(model.estimator, "table_scale_")
    loaded = TableModel.load(tmp_path / "model.safetensors")
    shuffled = IRIS.data.iloc[::-1, ::-1].assign(more=1.0)[:60]
    found, expected = loaded.describe(shuffled, refit=False), model.describe(IRIS.data)
    np.testing.assert_array_equal(found.labels, expected.labels[::-1][:60])
    np.testing.assert_allclose(found.log_density, expected.log_density[::-1][:60])
    assert found.summary.get("alternatives") == expected.summary.get("alternatives")
    assert "refit_agreement" not in found.summary
    with pytest.raises(InvalidInputError, match=r"no column of numbers called 'sepal length"):
        loaded.describe(IRIS.data.iloc[:, 1:])


@pytest.mark.parametrize(
    ("rows", "words"),
    [
        ([[1, 2]], "there is one row, so there is one cluster"),
        ([[1, 2]] * 3, "all rows are equal, so there is one cluster"),
        ([[1, 2, 7], [1, 3, np.nan], [1, 5, 7]], "do not affect the clusters: x1, x3."),
    ],
)
def test_columns_without_variation_are_noted(rows: list, words: str) -> None:
    model = TableModel.fit(rows)
    assert words in model.notes[0]
    assert np.isfinite(model.describe(rows).log_density).all()


def test_a_given_column_does_not_hide_a_result() -> None:
    rows = [[1.0], [1.5], [9.0], [9.5]]
    found = TableModel.fit(rows, n_clusters=2).describe(rows, classes=[*"xyxy"], class_name="p1")
    assert list(found.to_frame())[:3] == ["row", "p1_given", "cluster"]


POINTS = np.random.default_rng(0).normal(size=(60, 3)) * [100, 1, 0.01] + [1000, -5, 0.3]


def draws(X: object, n: int, sampling: dict | None = None, **settings: object) -> np.ndarray:
    model = TableModel.fit(X, **{"method": "kde", "leave_out_constants": True, **settings})
    return model.sample(n, **(sampling or {}))[0].to_numpy()


def test_draws_are_those_of_the_energy() -> None:
    centre, scale = POINTS.mean(0), POINTS.std(0)
    memory = ist.GaussianKDE((POINTS - centre) / scale, sigma=0.4)
    expected = memory.sample(7, seed=5) * scale + centre
    np.testing.assert_allclose(draws(POINTS, 7, {"seed": 5}, sigma=0.4), expected, rtol=1e-12)
    expected = ist.ModernHopfield(POINTS / 100, beta=2.0).sample(7, seed=5)
    options = {"method": "hopfield", "beta": 2, "standardise": False}
    np.testing.assert_allclose(draws(POINTS / 100, 7, {"seed": 5}, **options), expected, rtol=1e-9)


def test_the_default_bandwidth_is_that_of_leave_one_out() -> None:
    model = TableModel.fit(POINTS, method="kde")
    expected = leave_one_out((POINTS - POINTS.mean(0)) / POINTS.std(0))
    assert float(model.energy.sigma) == pytest.approx(float(f"{expected:.4g}"))
    with pytest.raises(InvalidInputError, match="Pass sigma"):
        TableModel.fit(POINTS[:1], method="kde")
    found = draws(np.repeat(POINTS[:1], 3, axis=0), 4000, sigma=2)
    np.testing.assert_allclose(found.mean(0), POINTS[0], atol=0.2)
    np.testing.assert_allclose(found.std(0), 2, rtol=0.1)


def test_a_constant_column_keeps_its_value_in_draws_of_saved_models_too(tmp_path: Path) -> None:
    table = np.column_stack([POINTS[:, 0], np.full(60, 7.25), POINTS[:, 1]])
    model = TableModel.fit(
        table, columns=[*"abc"], method="kde", sigma=0.5, leave_out_constants=True
    )
    found = model.sample(50)[0]
    assert list(found) == [*"abc"]
    assert (found["b"] == 7.25).all()
    np.testing.assert_array_equal(found[["a", "c"]], draws(table[:, [0, 2]], 50, sigma=0.5))
    model = TableModel.fit(table, columns=[*"abc"], n_clusters=2, leave_out_constants=True)
    model.save(tmp_path / "model")
    again = TableModel.load(tmp_path / "model").sample(50)[0]
    pd.testing.assert_frame_equal(again, model.sample(50)[0])


def test_the_summary_states_why_there_are_so_many_clusters_and_other_numbers() -> None:
    rng = np.random.default_rng(0)
    centres = 1.6 * rng.normal(size=(6, 8))
    rows = rng.normal(size=(300, 8)) + centres[np.arange(300) % 6]
    found = TableModel.fit(rows).describe(rows)
    curve, summary = found.model.estimator.gap_curve_, found.summary
    assert summary["n_clusters"] == 6
    assert summary["chosen_by"] == "gap"
    assert summary["resolution"] in curve["resolution"]
    assert f"at resolution {summary['resolution']}" in str(found)
    assert all(one["separation"] > 1 for one in summary["clusters"])
    assert "separation" in str(found)
    numbers = [one["n_clusters"] for one in summary["alternatives"]]
    assert 6 not in numbers
    assert len(set(numbers)) == len(numbers) == 3
    for given in ({"resolution": 1.0}, {"method": "basin-flow", "n_clusters": 4}):
        told = TableModel.fit(rows, **given).describe(rows)
        assert told.summary["chosen_by"] == [*given][-1]


@pytest.mark.parametrize(("dim", "reason"), [(2, "modes"), (6, "gap")])
def test_one_cluster_is_explained_too(dim: int, reason: str) -> None:
    blob = np.random.default_rng(3).normal(size=(200, dim))
    found = TableModel.fit(blob).describe(blob)
    assert found.summary["n_clusters"] == 1
    assert found.summary["chosen_by"] == reason
    assert found.summary["resolution"] is None
    assert "level 0.01" in str(found)
    # What holds by definition is not printed.
    assert found.summary["mean_certainty"] == found.summary["refit_agreement"] == 1
    for text in (str(found), str(StreamedClusters.of(found))):
        assert "certain" not in text
        assert "agree" not in text


def plain_agreement(rows: np.ndarray, n_clusters: int) -> float:
    """Match the clusters of two fits in every order, and count rows."""
    rows = rows[np.random.default_rng(0).permutation(len(rows))]
    first, second = (
        KMeans(n_clusters, random_state=0, n_init=3).fit(half).predict(rows)
        for half in (rows[::2], rows[1::2])
    )
    orders = map(np.array, permutations(range(n_clusters)))
    return max(float((first == order[second]).mean()) for order in orders)


@pytest.mark.parametrize("n_clusters", [1, 2, 4])
def test_the_agreement_is_that_of_the_best_order_of_clusters(n_clusters: int) -> None:
    rows = np.random.default_rng(1).normal(size=(121, 3))
    estimator = KMeans(n_clusters, random_state=0, n_init=3)
    assert refit_agreement(estimator, rows) == plain_agreement(rows, n_clusters)


def test_clusters_that_are_not_there_are_certain_but_not_found_again() -> None:
    # Posteriors are sharp in many dimensions, however arbitrary the clusters are.
    blob = np.random.default_rng(2).normal(size=(400, 200))
    found = TableModel.fit(blob, n_clusters=6).describe(blob).summary
    assert found["mean_certainty"] > 0.95
    assert found["refit_agreement"] < 0.5
    places = 2 * np.random.default_rng(3).normal(size=(6, 200))[np.arange(400) % 6]
    found = TableModel.fit(blob + places, n_clusters=6).describe(blob + places).summary
    assert found["refit_agreement"] == 1
