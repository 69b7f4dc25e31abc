"""Ramsauer et al.'s condition and radius: their formulas, and that no pattern breaks them."""

import math

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.capacity import guaranteed_radius, required_separation


def test_required_separation_and_radius_follow_the_formulas():
    n, norm, sigma = 37, 5.0, 0.8
    beta = 1 / sigma**2
    expected = 2 / (beta * n) + math.log(2 * (n - 1) * n * beta * norm**2) / beta
    assert required_separation(n, norm, sigma) == pytest.approx(expected)
    assert guaranteed_radius(n, norm, sigma) == pytest.approx(1 / (beta * n * norm))
    assert required_separation(4**3, math.sqrt(12)) == pytest.approx(11.51, abs=0.01)


@pytest.mark.parametrize("hopfield", [False, True])
def test_all_queries_in_the_ball_of_a_separated_pattern_reach_one_point_in_it(hopfield):
    rng, checked = np.random.default_rng(0), 0
    for case in range(120):
        dim, count = int(rng.integers(3, 30)), int(rng.integers(2, 20))
        points = rng.normal(size=(count, dim))
        if case % 2:
            points /= np.linalg.norm(points, axis=1, keepdims=True) / math.sqrt(dim)
        points *= rng.uniform(2, 5)
        if hopfield:
            gaps = np.square(points).sum(1)[:, None] - points @ points.T
            norm, memory = np.linalg.norm(points, axis=1).max(), ist.ModernHopfield(points, 1.0)
        else:  # anywhere
            points += 10 * rng.normal(size=dim)
            gaps = 0.5 * ((points[:, None] - points) ** 2).sum(2)
            norm = np.linalg.norm(points - points.mean(0), axis=1).max()
            memory = ist.GaussianKDE(points, 1.0)
        np.fill_diagonal(gaps, math.inf)
        separated = points[gaps.min(1) >= required_separation(count, norm)]
        radius = guaranteed_radius(count, norm)
        # Queries at the pattern itself, on the edge of its ball, and in it.
        away = rng.normal(size=(len(separated), 6, dim))
        away *= (
            radius
            * np.array([0, 1, 1, 0.9, 0.5, 0.1])[:, None]
            / np.linalg.norm(away, axis=2, keepdims=True)
        )
        state = torch.from_numpy(separated[:, None] + away)
        for _ in range(40):
            state = memory.step(state)
        ends, slack = state.numpy(), 1e-12 * (norm + np.abs(points).max())
        assert np.abs(ends - ends[:, :1]).max(initial=0) <= slack
        error = np.linalg.norm(ends[:, 0] - separated, axis=1)
        assert (error <= radius + slack).all()
        checked += len(separated)
    assert checked > 300
