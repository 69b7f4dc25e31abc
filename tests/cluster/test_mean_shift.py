"""Gaussian mean shift: modes against brute-force gradient ascent."""

from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs
from sklearn.neighbors import KernelDensity

from isthmus.cluster import GaussianMeanShift


def climbed(density: KernelDensity, start: float, rate: float) -> float:
    """Gradient ascent of a log-density on a line, by central differences, with halved steps."""

    def height(x: float) -> float:
        return float(density.score_samples([[x]])[0])

    position, step = start, rate
    while step > 1e-7:
        slope = (height(position + 1e-5) - height(position - 1e-5)) / 2e-5
        proposal = position + step * np.sign(slope)
        if height(proposal) > height(position):
            position = proposal
        else:
            step /= 2
    return position


@pytest.mark.parametrize("seed", range(3))
def test_modes_are_those_of_a_kernel_density_climbed_by_brute_force(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = np.concatenate([rng.normal(c, 0.4, 6) for c in (-3.0, 0.0, 4.0)])[:, None]
    sigma = 0.5
    found = GaussianMeanShift(bandwidth=sigma, tol=1e-7).fit(X)
    density = KernelDensity(bandwidth=sigma, rtol=0, atol=0).fit(X)
    # Steps small enough not to jump from one hill to the next.
    tops = np.array([climbed(density, x, 0.02) for x in X[:, 0]])
    assert_allclose(found.cluster_centers_[found.labels_, 0], tops, atol=1e-3)
    assert_allclose(found.score_samples(X), density.score_samples(X), rtol=1e-9)


@pytest.mark.parametrize("dtype", [np.float64, np.float32])
def test_blobs_are_found_largest_first_and_predicted_alike(dtype: Any) -> None:
    sizes, centers = [60, 40, 20], [[0, 0], [6, 0], [0, 7]]
    X = make_blobs(sizes, centers=centers, cluster_std=0.6, random_state=0)[0].astype(dtype)
    model = GaussianMeanShift(bandwidth=0.9).fit(X)
    assert_array_equal(np.bincount(model.labels_), sizes)
    assert_array_equal(model.predict(X), model.labels_)
    assert model.cluster_centers_.dtype == dtype
