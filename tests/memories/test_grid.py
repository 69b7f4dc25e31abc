"""Densities on a grid against the sum over all memories."""

import numpy as np
import pytest
import torch

import isthmus as ist


@pytest.mark.parametrize("dim", [1, 2])
@pytest.mark.parametrize("weighted", [False, True])
def test_a_grid_agrees_with_the_sum_within_its_error(dim: int, weighted: bool) -> None:
    rng = np.random.default_rng(dim)
    X = rng.normal(size=(500, dim)) * np.arange(1, dim + 1)
    weights = rng.random(500) if weighted else np.ones(500)
    sigma = 0.3
    kde = ist.GaussianKDE(X, sigma, log_weights=np.log(weights) if weighted else None)
    grid = kde.on_grid()
    points = X[:200] + 0.3 * rng.normal(size=(200, dim))
    expected = np.array(
        [
            np.log((weights / weights.sum()) @ np.exp(-((X - x) ** 2).sum(1) / (2 * sigma**2)))
            for x in points
        ]
    ) - dim * np.log(sigma * np.sqrt(2 * np.pi))
    np.testing.assert_allclose(grid.log_prob(points), expected, atol=4 * grid.error)
    assert grid.error < 1e-4


def test_finer_grids_have_smaller_errors() -> None:
    X = np.random.default_rng(0).normal(size=(300, 2))
    errors = [ist.GaussianKDE(X, 0.4).on_grid(cells).error for cells in (2, 4, 8, 16)]
    assert errors == sorted(errors, reverse=True)
    assert errors[2] < errors[1] / 8  # the fourth power would be 16


def test_widths_of_columns_and_points_out_of_reach() -> None:
    X = torch.tensor([[0.0, 0.0], [1.0, 5.0]], dtype=torch.float64)
    kde = ist.GaussianKDE(X, [0.5, 2.0])
    grid = kde.on_grid(16)
    points = torch.tensor([[0.2, 1.0], [0.9, 4.0]], dtype=torch.float64)
    torch.testing.assert_close(grid.log_prob(points), kde.log_prob(points), atol=1e-4, rtol=0)
    for far in (100.0, -1e77, 1e300):
        assert grid.log_prob(torch.tensor([far, 0.0], dtype=torch.float64)) == -torch.inf
    assert grid.log_prob(points.reshape(2, 1, 2)).shape == (2, 1)
    assert "cells, error" in repr(grid)
