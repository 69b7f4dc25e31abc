"""Which starts meet, against letting each run to the end; and attempts to leave balls of modes."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.datasets import make_blobs

import isthmus as ist
from isthmus.dynamics.modes import find_modes, is_attracting, shared_fixed_points


@pytest.mark.parametrize(
    ("n", "dim", "sigma"), [(60, 1, 0.4), (150, 2, 0.6), (200, 10, 1.2), (700, 5, 2.5)]
)
def test_starts_that_are_joined_end_where_each_would_end_alone(
    n: int, dim: int, sigma: float
) -> None:
    X = torch.from_numpy(2 * np.random.default_rng(n).normal(size=(n, dim)))
    memory = ist.GaussianKDE(X, sigma)
    found = find_modes(memory, X, tol=1e-7)
    alone = ist.retrieve(memory, X, tol=1e-9 * sigma, max_steps=50_000).state
    assert found.converged.all()
    assert_allclose(found.fixed_points[found.labels], alone, atol=2e-3 * sigma)
    sizes, expected = np.bincount(found.labels), shared_fixed_points(alone.numpy(), 0.02 * sigma)
    assert (np.diff(sizes) <= 0).all()
    pairs = set(zip(found.labels.tolist(), expected.tolist(), strict=True))
    assert len(sizes) == len(pairs) == len(set(expected.tolist())) == len(found.fixed_points)


def test_one_start_and_too_few_steps() -> None:
    X = torch.tensor([[0.0], [1.9], [8.0]], dtype=torch.float64)
    memory = ist.GaussianKDE(X, 1.0)
    assert find_modes(memory, X[:1]).labels.tolist() == [0]
    hurried = find_modes(memory, X, tol=1e-9, max_steps=2)
    assert hurried.steps == 2
    assert not hurried.converged[:2].any()


def test_points_are_one_where_a_chain_joins_them() -> None:
    points = np.array([[0.0], [0.9], [1.8], [9.0], [9.0], [-20.0]])
    labels = shared_fixed_points(points, 1.0)
    assert_array_equal(labels[:3], labels[0])
    assert labels[3] == labels[4]
    assert len(set(labels.tolist())) == 3


@pytest.mark.parametrize("seed", range(3))
def test_no_point_leaves_a_ball_or_ends_elsewhere(seed: int) -> None:
    rng, sigma = np.random.default_rng(seed), 0.6 + 0.3 * seed
    X = make_blobs(300, (1, 3, 12)[seed], centers=5, center_box=(-9, 9), random_state=seed)[0]
    weights, tried = rng.standard_normal(len(X)), 0
    for memory in (
        ist.GaussianKDE(torch.from_numpy(X), sigma),
        ist.Mixture(torch.from_numpy(X), beta=0.5 / sigma**2, log_weights=weights),
        ist.ModernHopfield(torch.from_numpy(X / 6), 1 / sigma**2),
    ):
        modes = find_modes(memory, memory.memories[:60], tol=1e-8).fixed_points
        sigma, balls = float(memory.sigma), torch.zeros(len(modes), dtype=torch.float64)
        for radius in sigma * torch.tensor([[0.02], [0.08], [0.25], [0.5], [1.0]]):
            balls[is_attracting(memory, torch.from_numpy(modes), radius)] = float(radius)
        directions = torch.from_numpy(rng.standard_normal((200, memory.dim)))
        # Towards memories the pull outwards is strongest.
        directions[:80] = memory.memories[torch.from_numpy(rng.integers(0, 300, 80))]
        for centre, radius in zip(torch.from_numpy(modes[:6]), balls[:6], strict=True):
            towards = torch.cat([directions[:80] - centre, directions[80:]])
            towards = towards / torch.linalg.vector_norm(towards, dim=1, keepdim=True)
            state = centre + 0.999999 * radius * towards
            for _ in range(20):
                state = memory.step(state)
                assert (torch.linalg.vector_norm(state - centre, dim=1) <= radius).all()
            ends = ist.retrieve(memory, state, tol=1e-7 * sigma, max_steps=5000).state
            assert_allclose(ends, centre.expand_as(ends), atol=1e-3 * sigma)
            tried += len(state)
    assert tried >= 400
