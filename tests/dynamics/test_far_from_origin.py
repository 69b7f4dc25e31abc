"""Modes, basins and certificates do not depend on how far the data are from the origin."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs

import isthmus as ist
from isthmus.capacity import basins, certify
from isthmus.cluster import GaussianMeanShift
from isthmus.dynamics.modes import find_modes

SIGMA = 1.0


def shifted_blobs(n: int, shift: float, dtype: type) -> tuple[np.ndarray, np.ndarray]:
    """Blobs with one column far away, and the same rows near 0, both without further rounding."""
    X, _ = make_blobs(n, 3, centers=5, cluster_std=0.8, random_state=1)
    far = X.copy()
    far[:, 1] += shift
    far = far.astype(dtype)
    near = far.astype(np.float64)
    near[:, 1] -= shift
    return far, near


CASES = [(1.7e9, np.float64), (1e4, np.float32), (1e5, np.float32), (1e6, np.float32)]


@pytest.mark.parametrize(("shift", "dtype"), CASES)
def test_modes_and_clusters_are_those_of_centred_data(shift: float, dtype: type) -> None:
    far, near = shifted_blobs(200, shift, dtype)
    found = find_modes(ist.GaussianKDE(far, SIGMA), torch.from_numpy(far))
    expected = find_modes(ist.GaussianKDE(near, SIGMA), torch.from_numpy(near))
    assert_array_equal(found.labels, expected.labels)
    assert found.converged.all()
    assert_allclose(found.fixed_points - [0, shift, 0], expected.fixed_points, atol=1e-3)
    model = GaussianMeanShift(SIGMA).fit(far)
    assert_array_equal(model.labels_, expected.labels)
    assert_array_equal(model.predict(far), model.labels_)


@pytest.mark.parametrize(("shift", "dtype"), CASES)
def test_basins_and_certificates_are_those_of_centred_data(shift: float, dtype: type) -> None:
    far, near = shifted_blobs(200, shift, dtype)
    for sigma in (0.2, SIGMA):
        found, expected = certify(far, sigma), certify(near, sigma)
        for name in ("stored", "decided", "basin"):
            assert_array_equal(getattr(found, name), getattr(expected, name))
        for name in ("separation", "guaranteed_radius", "error_bound", "retrieval_error"):
            assert_allclose(getattr(found, name), getattr(expected, name), rtol=1e-6, atol=1e-6)
        assert_array_equal(basins(far, sigma).labels, basins(near, sigma).labels)


@pytest.mark.parametrize("shift", [1e4, 1e6])
def test_float32_states_far_from_the_origin_rest_where_those_near_it_do(shift: float) -> None:
    line = torch.tensor([[0.0], [1.0], [2.5]])
    weights = [1.0, 2.0, 1.0]
    makers = (
        lambda m: ist.GaussianKDE(m, 1.0),
        lambda m: ist.Mixture(m, 0.5, np.log(weights)),
        lambda m: ist.StudentKDE(m, 1.0),
        lambda m: ist.CRPMixture(m, weights, 0.5, prior_mean=m.new_full((1,), float(m[0]))),
    )
    for make in makers:
        expected = ist.retrieve(make(line.double()), line)
        found = ist.retrieve(make(line + shift), line + shift, trace=True)
        assert found.state.dtype == found.energy.dtype == found.trace.dtype == torch.float32
        assert found.converged.all()
        assert_allclose(found.state - shift, expected.state, atol=0.04)  # steps of 1/16 at 1e6
        assert_allclose(found.energy, expected.energy, rtol=1e-4)
