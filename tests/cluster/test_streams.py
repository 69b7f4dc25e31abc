"""partial_fit: learning from a stream, batch by batch."""

import numpy as np
import pytest
from scipy import special
from sklearn.metrics import adjusted_rand_score

from isthmus.cluster import ClAMELBO

CENTRES = np.array([[0.0, 0.0], [12.0, 0.0], [0.0, 12.0], [12.0, 12.0]])


def batch(generator, n_clusters, size=200):
    labels = generator.integers(0, n_clusters, size)
    return CENTRES[labels] + generator.normal(size=(size, 2)), labels


def nearest(points, centres):
    return np.linalg.norm(points[:, None] - centres, axis=2).min(1)


@pytest.mark.parametrize("settings", [{}, {"beta": 0.5}], ids=["auto", "given-beta"])
def test_memories_appear_with_the_clusters_of_a_stream(make_crp, settings):
    generator = np.random.default_rng(0)
    model, found, names = make_crp(**settings), [], {}
    for n_clusters in (2, 2, 2, 3, 3, 3, 4, 4, 4):
        rows, labels = batch(generator, n_clusters)
        model.partial_fit(rows)
        found.append(model.n_clusters_)
        assert adjusted_rand_score(labels, model.labels_) == 1
        for cluster, label in zip(labels, model.labels_, strict=True):
            assert names.setdefault(cluster, label) == label  # it keeps its name
    assert found == [2, 2, 2, 3, 3, 3, 4, 4, 4]
    assert nearest(CENTRES, model.memories_).max() < 0.5
    assert model.counts_.sum() == pytest.approx(1800)


def test_two_batches_are_those_of_brute_force_online_em(overlapping):
    one, two = overlapping[:70], overlapping[70:]
    start = np.array([[5.0, 5.0, 5.0], [6.0, 6.0, 6.0], [4.0, 7.0, 5.0]])
    means, weights = start, np.full(3, 1 / 3)
    away = ((one[:, None] - means) ** 2).sum(2)
    variance = away.min(1).mean() / 3
    running = None
    for rows, rate in ((one, 1.0), (two, 0.5)):
        away = ((rows[:, None] - means) ** 2).sum(2)
        shares = special.softmax(np.log(weights) - away / (2 * variance), 1) / len(rows)
        found = np.array([shares.sum(0), *(shares.T @ rows).T, np.full(3, (rows**2).sum())])
        found[-1] /= len(rows)
        running = found if running is None else (1 - rate) * running + rate * found
        weights, means = running[0], (running[1:4] / running[0]).T
        variance = (running[-1, 0] - (weights[:, None] * means**2).sum()) / 3
    model = ClAMELBO(3, init=start, weights="learned").partial_fit(one).partial_fit(two)
    np.testing.assert_allclose(model.memories_, means, rtol=1e-9)
    np.testing.assert_allclose(model.weights_, weights, rtol=1e-9)
    np.testing.assert_allclose(0.5 / model.beta_, variance, rtol=1e-9)


@pytest.mark.parametrize("order", ["shuffled", "sorted"])
def test_a_stream_ends_near_the_batch_fit(make_crp, order):
    # Tails of rows far from every cluster must not leave a memory in each batch.
    generator = np.random.default_rng(7)
    labels = generator.integers(0, 4, 4000)
    rows = 2 * CENTRES[labels] + generator.standard_t(4, size=(4000, 2))
    whole = make_crp().fit(rows)
    assert whole.n_clusters_ == 4
    places = np.argsort(labels, kind="stable") if order == "sorted" else np.arange(4000)
    model, found = make_crp(), []
    for start in range(0, 4000, 500):
        found.append(model.partial_fit(rows[places[start : start + 500]]).n_clusters_)
    assert found[-1] == 4
    assert max(found) <= 5
    assert adjusted_rand_score(whole.labels_, model.predict(rows)) > 0.98
    np.testing.assert_allclose(model.counts_.sum(), 4000)
