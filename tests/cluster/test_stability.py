"""Fits to two halves of the rows agree where there are clusters, and only there."""

from itertools import permutations

import numpy as np
import pytest
from sklearn.cluster import KMeans

from isthmus.cluster import TableModel, refit_agreement


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
