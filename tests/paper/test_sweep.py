"""The paper's experiment."""

import sys
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_allclose

from isthmus.capacity import sweep
from isthmus.dynamics.retrieve import retrieve

# The function has the name of its module, and hides it.
MODULE = sys.modules["isthmus.paper.sweep"]


def test_measures_are_those_of_plain_iteration(monkeypatch: Any) -> None:
    seen = []

    def watched(memory: Any, starts: Any, **settings: Any) -> Any:
        seen.append((memory.memories.numpy(), starts.numpy()))
        return retrieve(memory, starts, **settings)

    monkeypatch.setattr(MODULE, "retrieve", watched)
    cell = sweep([4], [20], seeds=1, n_particles=6, max_patterns=5, progress=False).cells[0]
    [(X, starts)] = seen
    homes = np.repeat(X[:5], 6, axis=0)
    initial = np.linalg.norm(starts - homes, axis=1)
    assert_allclose(np.linalg.norm(X, axis=1), 2 * np.sqrt(3))
    assert_allclose(initial, 0.5)
    ends = starts
    for _ in range(300):
        weights = np.exp(-((ends[:, None] - X) ** 2).sum(2) / 2)
        ends = weights @ X / weights.sum(1, keepdims=True)
    ratio = (np.linalg.norm(ends - homes, axis=1) / initial).mean()
    own = ((ends[:, None] - X) ** 2).sum(2).argmin(1) == np.repeat(np.arange(5), 6)
    between = np.linalg.norm(X[:, None] - X, axis=2)[np.triu_indices(20, 1)].mean()
    assert 0 < cell.retrieved < 1
    assert cell.retrieved == pytest.approx(own.mean())
    assert cell.ratio == pytest.approx(ratio, rel=1e-3)
    assert cell.normalized_ratio == pytest.approx(ratio / between, rel=1e-3)
