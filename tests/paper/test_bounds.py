"""Ramsauer et al.'s bounds: their formulas, and that no pattern breaks them."""

import math

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.capacity import (
    guaranteed_radius,
    one_step_error_bound,
    required_separation,
    retrieval_error_bound,
)


def test_required_separation_and_radius_follow_the_formulas():
    n, norm, sigma = 37, 5.0, 0.8
    beta = 1 / sigma**2
    expected = 2 / (beta * n) + math.log(2 * (n - 1) * n * beta * norm**2) / beta
    assert required_separation(n, norm, sigma) == pytest.approx(expected)
    assert guaranteed_radius(n, norm, sigma) == pytest.approx(1 / (beta * n * norm))
    assert required_separation(4**3, math.sqrt(12)) == pytest.approx(11.51, abs=0.01)


def test_error_bounds_follow_the_formulas():
    n, norm, sigma, separation, distance, fixed = 20, 4.0, 0.7, 9.0, 0.05, 0.02
    beta = 1 / sigma**2
    decay = math.exp(-beta * (separation - 2 * distance * norm))
    error = retrieval_error_bound(separation, n, norm, sigma)
    assert error == pytest.approx(2 * math.e * (n - 1) * norm * math.exp(-beta * separation))
    step = retrieval_error_bound(separation, n, norm, sigma, distance)
    assert step == pytest.approx(2 * (n - 1) * norm * decay)
    jacobian = 2 * beta * n * norm**2 * (n - 1) * decay
    found = one_step_error_bound(separation, n, norm, sigma, distance, fixed)
    assert found == pytest.approx(jacobian * (distance + fixed))
    sharp = one_step_error_bound(separation, n, norm, sigma, distance, fixed, sharp=True)
    assert sharp == pytest.approx(found * 2 / n)


def many_patterns():
    """Random patterns, on and off the sphere, of which some are well separated."""
    rng = np.random.default_rng(0)
    for case in range(120):
        dim, count = int(rng.integers(3, 30)), int(rng.integers(2, 20))
        points = rng.normal(size=(count, dim))
        if case % 2:
            points /= np.linalg.norm(points, axis=1, keepdims=True) / math.sqrt(dim)
        yield points * rng.uniform(2, 5), rng


def check_bounds(memory, points, separation, norm, rng):
    """Check every bound on the well separated patterns; return how many there were."""
    count, dim = points.shape
    good = separation >= required_separation(count, norm)
    points, separation = points[good], separation[good, None]
    radius = guaranteed_radius(count, norm)
    # Queries at the pattern itself, on the edge of its ball, in it, and outside of it.
    directions = rng.normal(size=(len(points), 9, dim))
    directions /= np.linalg.norm(directions, axis=2, keepdims=True)
    distance = radius * np.array([0, 1, 1, 1, 0.9, 0.5, 0.1, 2, 3])
    state = torch.from_numpy(points[:, None] + distance[:, None] * directions)
    one = memory.step(state)
    for _ in range(40):
        state = memory.step(state)
    end = state.numpy()
    fixed = end[:, :1]
    slack = 1e-12 * (norm + np.abs(points).max(initial=0))
    assert np.abs(end[:, :7] - fixed).max(initial=0) <= slack

    error = np.linalg.norm(fixed - points[:, None], axis=2)
    assert np.all(error <= radius + slack)
    assert np.all(error <= retrieval_error_bound(separation, count, norm) + slack)
    from_pattern = np.linalg.norm(one.numpy() - points[:, None], axis=2)
    bound = retrieval_error_bound(separation, count, norm, 1.0, distance)
    assert np.all(from_pattern <= bound + slack)
    from_fixed = np.linalg.norm(one.numpy() - fixed, axis=2)
    for known in (error, None):
        for sharp in (False, True):
            bound = one_step_error_bound(separation, count, norm, 1.0, distance, known, sharp=sharp)
            assert np.all(from_fixed <= bound + slack)
    return len(points)


@pytest.mark.parametrize("kind", ["kernel density estimate", "Hopfield network"])
def test_bounds_hold(kind):
    checked = 0
    for points, rng in many_patterns():
        if kind == "Hopfield network":
            gram = points @ points.T
            gaps, norm = np.diag(gram)[:, None] - gram, np.linalg.norm(points, axis=1).max()
            memory = ist.ModernHopfield(torch.from_numpy(points), beta=1.0)
        else:  # anywhere
            points = points + 10 * rng.normal(size=points.shape[1])
            gaps = 0.5 * ((points[:, None] - points) ** 2).sum(2)
            norm = np.linalg.norm(points - points.mean(0), axis=1).max()
            memory = ist.GaussianKDE(torch.from_numpy(points), sigma=1.0)
        np.fill_diagonal(gaps, math.inf)
        checked += check_bounds(memory, points, gaps.min(1), norm, rng)
    assert checked > 300
