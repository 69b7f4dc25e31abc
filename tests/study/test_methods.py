"""The methods have fair grids; what is written here agrees with plain computations."""

from collections import Counter

import numpy as np
import pytest
import torch
from scipy.special import softmax
from sklearn.datasets import load_iris, make_blobs
from sklearn.metrics import adjusted_rand_score, silhouette_score
from sklearn.preprocessing import StandardScaler

from isthmus.paper.study.estimators import completion
from isthmus.paper.study.methods import METRICS, judge
from isthmus.paper.study.runner import prepare
from isthmus.study import METHODS, DPMeans, SahaClAM, Settings

X = StandardScaler().fit_transform(load_iris().data)
Y = load_iris().target


def test_large_tables_get_six_fits_of_each_method_spread_over_its_grid() -> None:
    tasks = Settings(("iris", "usps_digits")).tasks()
    counts = Counter((task.dataset, task.method) for task in tasks)
    for name, method in METHODS.items():
        assert counts["iris", name] == len(method.grid) * (3 if method.seeded else 1)
        assert counts["usps_digits", name] == 6
    assert len(Settings(("usps_digits",), ("KMeans",), entries=8).tasks()) == 24
    assert len(Settings(("usps_digits",), ("KMeans",), rows=900).tasks()) == 24


@pytest.mark.parametrize(
    "hidden", [[[1, 4]], [[0]], [[0, 1, 2, 3, 4, 5]], [[1, 4, -1], [2, -1, -1], [3, 4, 5]]]
)
def test_the_loss_of_saha_and_its_gradient_are_those_of_the_plain_dynamics(
    hidden: list[list[int]],
) -> None:
    random = np.random.default_rng(0)
    rows, means = random.normal(size=(9, 6)), random.normal(size=(4, 6))
    masked, beta, steps = rows.min(0), 1.7, 5
    moves = torch.zeros(9, 6, dtype=torch.bool)
    for group, places in zip(np.array_split(np.arange(9), len(hidden)), hidden, strict=True):
        for place in places:
            moves[group, place] |= place >= 0

    def plain(memories: torch.Tensor) -> torch.Tensor:
        whole = torch.from_numpy(rows)
        x = torch.where(moves, torch.from_numpy(masked), whole)
        for _ in range(steps):
            shares = torch.softmax(-beta / 2 * torch.cdist(x, memories) ** 2, 1)
            x = torch.where(moves, x + (shares @ memories - x) / steps, x)
        return ((x - whole) ** 2).mean()

    sets = rows.reshape(len(hidden), -1, 6)
    loss, slope = completion(sets, np.array(hidden), masked, means, beta, steps)
    memories = torch.from_numpy(means)
    assert loss == pytest.approx(float(plain(memories)))
    expected = torch.autograd.functional.jacobian(plain, memories)
    np.testing.assert_allclose(slope, expected, atol=1e-12)


def test_saha_finds_blobs_from_its_own_start_and_labels_rows_by_the_memory_they_reach() -> None:
    X, y = make_blobs(90, 5, centers=3, cluster_std=0.1, random_state=1)
    X = StandardScaler().fit_transform(X)
    model = SahaClAM(3, learning_rate=0.1, max_iter=60, random_state=0).fit(X)
    assert adjusted_rand_score(y, model.labels_) == 1
    assert model.n_iter_ == 60
    x = X
    for _ in range(10):
        away = ((x[:, None] - model.cluster_centers_) ** 2).sum(2)
        shares = softmax(-1.1 / 2 * away, axis=1)
        x = x + 0.1 * (shares @ model.cluster_centers_ - x)
    away = ((x[:, None] - model.cluster_centers_) ** 2).sum(2)
    np.testing.assert_array_equal(model.labels_, away.argmin(1))


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
