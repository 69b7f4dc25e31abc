"""Fits on Dask collections agree with fits on the same rows in memory, whatever the blocks."""

from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
from sklearn.base import clone

from isthmus.cluster import BasinFlow, ClAMCRP, ClAMCRPELBO, ClAMELBO
from isthmus.cluster import data as cluster_data
from isthmus.errors import InvalidInputError

N, D = 600, 3
RNG = np.random.default_rng(0)
CENTRES = np.array([[0.0, 0.0, 0.0], [7.0, 0.0, 0.0], [0.0, 7.0, 1.0]])
X = 5 + np.repeat(CENTRES, N // 3, axis=0) + RNG.normal(size=(N, D))
X = np.concatenate([X, X[:50]])[RNG.permutation(N + 50)]  # some rows twice
CHUNKS = [(1, 0, 349, 300), (130,) * 5]

ESTIMATORS: dict[str, Any] = {
    "elbo": ClAMELBO(3, random_state=0),
    "elbo-learned": ClAMELBO(3, weights="learned", init="k-means++", n_init=2, random_state=1),
    "crp": ClAMCRP(random_state=0),
    "crp-elbo": ClAMCRPELBO(random_state=0),
    "basin-flow": BasinFlow(random_state=0),
}


def same_fit(found: Any, expected: Any) -> None:
    np.testing.assert_allclose(found.memories_, expected.memories_, rtol=1e-7, atol=1e-7)
    np.testing.assert_allclose(found.beta_, expected.beta_, rtol=1e-6)
    np.testing.assert_allclose(found.cluster_centers_, expected.cluster_centers_, atol=1e-7)
    np.testing.assert_allclose(found.objective_, expected.objective_, rtol=1e-7, atol=1e-9)
    assert found.n_clusters_ == expected.n_clusters_
    np.testing.assert_array_equal(np.asarray(found.labels_), expected.labels_)


@pytest.mark.parametrize("sample_rows", [50_000, 300])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_blocks_of_any_size_give_the_fit_of_the_gathered_rows(
    name: str, sample_rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cluster_data, "SAMPLE_ROWS", sample_rows)
    expected = clone(ESTIMATORS[name]).fit(X)
    for chunks in CHUNKS:
        found = clone(ESTIMATORS[name]).fit(da.from_array(X, chunks=(chunks, (2, 1))))
        same_fit(found, expected)
        assert found.n_features_in_ == D


@pytest.mark.parametrize("name", ["elbo", "crp", "basin-flow"])
def test_gaps_weights_and_float32_are_as_in_memory(name: str) -> None:
    table = np.where(np.random.default_rng(1).random(X.shape) < 0.05, np.nan, X).astype(np.float32)
    weights = np.random.default_rng(2).integers(0, 3, len(X)).astype(float)
    expected = clone(ESTIMATORS[name]).fit(table, sample_weight=weights)
    blocks = da.from_array(table, chunks=(200, D))
    found = clone(ESTIMATORS[name]).fit(blocks, sample_weight=weights)
    assert found.memories_.dtype == np.float32
    np.testing.assert_allclose(found.memories_, expected.memories_, rtol=1e-3, atol=1e-3)
    assert (np.asarray(found.labels_) == expected.labels_).mean() > 0.99


@pytest.mark.parametrize("name", ["elbo", "basin-flow"])
def test_predictions_are_dask_arrays_of_the_same_blocks(name: str) -> None:
    model = clone(ESTIMATORS[name]).fit(X)
    blocks = da.from_array(X, chunks=((250, 0, 400), (1, 2)))
    for method in ("predict", "predict_proba", "score_samples"):
        found = getattr(model, method)(blocks)
        assert isinstance(found, da.Array)
        assert found.chunks[0] == (250, 0, 400)
        expected = getattr(model, method)(X)
        assert found.dtype == expected.dtype
        np.testing.assert_allclose(found.compute(), expected, rtol=1e-12)
    with pytest.raises(InvalidInputError, match="in memory"):
        model.complete(blocks)


def test_frames_bring_their_names_and_unknown_sizes() -> None:
    frame = pd.DataFrame(X, columns=["a", "b", "c"])
    parts = dd.from_pandas(frame, npartitions=3)
    model = ClAMELBO(3, random_state=0).fit(parts)
    assert model.feature_names_in_.tolist() == ["a", "b", "c"]
    expected = ClAMELBO(3, random_state=0).fit(frame)
    same_fit(model, expected)
    np.testing.assert_array_equal(model.predict(parts).compute(), expected.predict(frame))


@pytest.mark.slow
@pytest.mark.timeout(120)
def test_a_worker_killed_during_a_fit_changes_nothing(client: Any, kill_worker: Any) -> None:
    killed = []

    class Killing(ClAMELBO):
        def _advance(self, rows: Any, state: Any) -> Any:
            if not killed:
                killed.append(True)
                kill_worker()
            return super()._advance(rows, state)

    with client.as_current():
        found = Killing(3, random_state=0).fit(da.from_array(X, chunks=(130, D)))
    expected = ClAMELBO(3, random_state=0).fit(X)
    assert killed
    np.testing.assert_allclose(found.memories_, expected.memories_, rtol=1e-7, atol=1e-7)
