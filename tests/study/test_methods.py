"""The twelve methods have fair grids; what is written here agrees with plain computations."""

from pathlib import Path

import numpy as np
import pytest
from scipy.stats import multivariate_normal
from sklearn.datasets import load_iris
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.preprocessing import StandardScaler

from isthmus.errors import InvalidInputError
from isthmus.study import METHODS, DPMeans, Method, Store
from isthmus.study.fitting import METRICS, judge, prepare

X = StandardScaler().fit_transform(load_iris().data)
Y = load_iris().target


def test_there_are_twelve_methods_with_grids_of_the_same_size() -> None:
    assert len(METHODS) == 12
    assert {len(method.grid) for method in METHODS.values()} == {8}
    kinds = [method.kind for method in METHODS.values()]
    assert kinds.count("K given") == kinds.count("K unknown") == 6


@pytest.mark.parametrize("name", METHODS)
def test_every_entry_of_a_grid_makes_an_estimator_that_is_told_k_only_if_it_may_be(
    name: str,
) -> None:
    method = METHODS[name]
    for settings in method.grid:
        known = method.estimator(settings, n_clusters=7, seed=3, X=X).get_params()
        assert known.get("random_state", 3) == 3
        given = 7 in (known.get("n_clusters"), known.get("n_components"))
        assert given == (method.kind == "K given")


def test_the_left_out_likelihood_is_that_of_a_plain_computation() -> None:
    few = X[:30]
    method = METHODS["GaussianMeanShift"]
    model = method.estimator({"share": 0.3}, 3, 0, few).fit(few)
    assert method.objective is not None
    total = 0.0
    for place, row in enumerate(few):
        others = np.delete(few, place, axis=0)
        kernel = multivariate_normal(row, model.bandwidth_**2 * np.eye(4))
        total += np.log(kernel.pdf(others).mean())
    assert method.objective(model, few) == pytest.approx(-total / 30)


@pytest.mark.parametrize("penalty", [0.1, 0.5, 1.0, 20.0])
def test_dp_means_never_rises_and_states_its_objective(penalty: float) -> None:
    model = DPMeans(penalty, random_state=0).fit(X)
    assert (np.diff(model.objective_trace_) <= 1e-9).all()
    assert model.converged_
    price = penalty * (X**2).sum(1).mean()
    rest = ((X - model.cluster_centers_[model.labels_]) ** 2).sum()
    assert model.objective_ == pytest.approx(rest + price * len(model.cluster_centers_))
    if penalty == 20:
        assert len(model.cluster_centers_) == 1


@pytest.mark.parametrize("settings", [{"max_iter": 0}, {"penalty": 0.0}])
def test_dp_means_refuses_what_it_cannot_do(settings: dict[str, float]) -> None:
    with pytest.raises(InvalidInputError, match=next(iter(settings))):
        DPMeans(**settings).fit(X)  # type: ignore[arg-type]


def test_scores_are_those_of_scikit_learn_and_none_where_they_have_no_meaning() -> None:
    labels = DPMeans(1.0, random_state=0).fit_predict(X)
    found = judge(X, Y, labels)
    assert tuple(found) == METRICS
    assert found["ari"] == adjusted_rand_score(Y, labels)
    assert found["silhouette"] == silhouette_score(X, labels)
    one = judge(X, Y, np.zeros(len(X), dtype=int))
    assert one["ari"] == 0
    assert one["silhouette"] is one["davies_bouldin"] is one["calinski_harabasz"] is None


def test_data_are_standardised_and_subsamples_are_nested() -> None:
    whole, part = prepare("wine", 0), prepare("wine", 50)
    np.testing.assert_allclose(whole.X.std(0), 1)
    np.testing.assert_array_equal(whole.y[:50], part.y)
    assert (len(part.X), part.n_available) == (50, 178)


def test_rows_that_are_there_twice_after_a_kill_are_read_once(tmp_path: Path) -> None:
    store = Store(tmp_path)
    row = {"id": "a", "dataset": "d", "method": "m", "entry": 0, "seed": 0, "status": "ok"}
    with store.writing():
        store.append([{**row, "finished": 1.0, "ari": 0.1}])
        store.append([{**row, "finished": 2.0, "ari": 0.2}])
        (store.results / ".half.parquet.part").write_bytes(b"half")
        assert [found["ari"] for found in store.read()] == [0.2]
    with store.writing():
        assert len(list(store.results.iterdir())) == 1


def test_a_method_needs_a_known_kind_and_a_grid() -> None:
    with pytest.raises(InvalidInputError, match="kind must be"):
        Method("m", dict, kind="K maybe")  # type: ignore[arg-type]
    with pytest.raises(InvalidInputError, match="is empty"):
        Method("m", dict, ())
