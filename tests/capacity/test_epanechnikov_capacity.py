"""The Epanechnikov memory stores patterns without error, beside fixed points that emerge."""

import numpy as np
import pytest
import torch

import isthmus as ist
from isthmus.capacity import spread_on_sphere


def resting(memory: ist.EpanechnikovKDE, starts: torch.Tensor) -> np.ndarray:
    """Fixed points within reach of some memory that the starts come to, without repetition."""
    found = ist.retrieve(memory, starts, tol=1e-12)
    ends = found.state[torch.isfinite(memory.energy(found.state))]
    return np.unique(ends.numpy().round(6), axis=0)


@pytest.mark.parametrize(
    ("bandwidth", "expected"), [(0.4, 12), (0.5, 12), (0.6, 23), (0.99, 23), (1.2, 21)]
)
def test_fixed_points_on_a_line_are_counted(bandwidth: float, expected: int) -> None:
    X = torch.arange(12.0, dtype=torch.float64)[:, None]
    starts = torch.linspace(-1, 12, 5001, dtype=torch.float64)[:, None]
    found = resting(ist.EpanechnikovKDE(X, bandwidth), starts)
    assert len(found) == expected
    patterns = set(np.arange(12.0)) <= set(found.ravel().tolist())
    assert patterns == (bandwidth < 1)


@pytest.mark.parametrize("share", [0.45, 0.7, 0.999])
def test_patterns_farther_apart_than_the_bandwidth_are_stored_without_error(share: float) -> None:
    X = torch.from_numpy(spread_on_sphere(40, 5))
    nearest = float(torch.pdist(X).min())
    h = share * nearest
    memory = ist.EpanechnikovKDE(X, h)
    rng = np.random.default_rng(0)
    away = torch.from_numpy(rng.standard_normal((200, 40, 5)))
    away /= torch.linalg.vector_norm(away, dim=-1, keepdim=True)
    starts = X + 0.999 * min(h, nearest - h) * away
    torch.testing.assert_close(memory.step(starts), X.expand_as(starts), rtol=0, atol=1e-12)
    # Midpoints of near pairs come to rest as well if the bandwidth reaches them.
    i, j = torch.triu_indices(40, 40, 1)
    near = torch.linalg.vector_norm(X[i] - X[j], dim=1) < 2 * h
    between = resting(memory, (X[i] + X[j])[near] / 2) if near.any() else np.empty((0, 5))
    assert (len(between) > 0) == (share > 0.5)
