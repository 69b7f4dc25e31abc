"""Basins and how they merge."""

import numpy as np
import pytest
from numpy.testing import assert_allclose, assert_array_equal

from isthmus.capacity import basins, certify, merge_tree
from isthmus.errors import InvalidInputError, IsthmusError


@pytest.mark.parametrize("seed", range(2))
def test_modes_on_a_line_only_ever_merge(seed: int) -> None:
    X = np.random.default_rng(seed).normal(size=(20, 1)) * 3
    tree = merge_tree(X, n_sigmas=8, tol=1e-4)
    assert (np.diff(tree.n_basins) <= 0).all()
    assert tree.n_basins[0] > tree.n_basins[-1] >= 1
    for before, after in zip(tree.labels[:-1], tree.labels[1:], strict=True):
        pairs = set(zip(before.tolist(), after.tolist(), strict=True))
        assert len(pairs) == len(set(before.tolist()))


def test_two_patterns_merge_at_half_their_distance() -> None:
    tree = merge_tree([[-1.0], [1.0]], [0.8, 0.9, 1.1, 1.2], tol=1e-5)
    assert_allclose(tree.merge_sigma, 1.1)
    assert_array_equal(tree.n_basins[[0, -1]], [2, 1])
    assert "2 basins at sigma 0.8" in str(tree)


def test_what_never_merges_says_so() -> None:
    tree = merge_tree([[0.0], [0.1], [50.0]], [0.01, 1.0])
    assert_array_equal(tree.merge_sigma, [1.0, 1.0, np.inf])


def test_basins_are_those_of_the_certificate() -> None:
    X = np.random.default_rng(0).normal(size=(60, 3)) * 2
    found, certificate = basins(X, 0.8), certify(X, 0.8)
    same = found.labels[:, None] == found.labels
    assert_array_equal(same, certificate.basin[:, None] == certificate.basin)
    assert_allclose(found.fixed_points[found.labels], certificate.fixed_point, atol=1e-3)
    assert found.converged.all()
    assert (np.diff(np.bincount(found.labels)) <= 0).all()
    assert f"{found.n_basins} basins for 60 patterns" in str(found)


def test_bad_input_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="sigmas"):
        merge_tree([[0.0], [1.0]], [])
    with pytest.raises(InvalidInputError, match="sigmas"):
        merge_tree([[0.0], [1.0]], [0.0, 1.0])
    with pytest.raises(IsthmusError):
        basins([[0.0], [1.0]], -1.0)
    with pytest.raises(IsthmusError):
        basins([0.0, 1.0], 1.0)
    assert merge_tree([[4.0, 2.0]]).n_basins.tolist() == [1]
