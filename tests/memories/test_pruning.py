"""Memories with an index: the same results, what "auto" chooses, and bad input."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import isthmus as ist
from isthmus.attend import Index
from isthmus.capacity import basins, certify
from isthmus.cluster import GaussianMeanShift
from isthmus.errors import InvalidInputError
from isthmus.index import policy as pruning

CENTRES, DIM = 40, 6


def clusters(count: int, seed: int = 0, dtype: torch.dtype = torch.float64) -> Tensor:
    generator = torch.Generator().manual_seed(0)
    centres = 4 * torch.randn(CENTRES, DIM, generator=generator, dtype=torch.float64)
    generator.manual_seed(seed + 1)
    chosen = torch.randint(CENTRES, (count,), generator=generator)
    noise = torch.randn(count, DIM, generator=generator, dtype=torch.float64)
    return (centres[chosen] + 0.3 * noise).to(dtype)


def energies(memories: Tensor, **settings: Any) -> dict[str, Any]:
    weights = torch.randn(len(memories), generator=torch.Generator().manual_seed(3)).to(memories)
    turned = torch.eye(DIM, dtype=memories.dtype) + 0.3
    unit = memories / torch.linalg.vector_norm(memories, dim=1, keepdim=True)
    return {
        "kde": ist.GaussianKDE(memories, 0.3, **settings),
        "weighted": ist.GaussianKDE(memories, 0.3, log_weights=weights, **settings),
        "columns": ist.GaussianKDE(memories, [0.2 + 0.05 * d for d in range(DIM)], **settings),
        "full": ist.GaussianKDE(memories, 0.2, covariance=turned, **settings),
        "mixture": ist.Mixture(memories, 5.0, weights, **settings),
        "tied": ist.Mixture(memories, 1.0, covariance=0.1 * turned, **settings),
        "hopfield": ist.ModernHopfield(memories, 3.0, **settings),
        "unit hopfield": ist.ModernHopfield(unit, 200.0, **settings),
    }


KINDS = ["kde", "weighted", "columns", "full", "mixture", "tied", "hopfield", "unit hopfield"]


@pytest.mark.parametrize("kind", KINDS)
def test_every_method_agrees_with_all_memories(kind: str) -> None:
    memories, points = clusters(3000), clusters(200, seed=5)
    if kind == "unit hopfield":
        points = points / torch.linalg.vector_norm(points, dim=1, keepdim=True)
    indexed, dense = (energies(memories, index=each)[kind] for each in (True, False))
    for method in ("energy", "log_prob", "score", "step", "responsibilities"):
        found, expected = (getattr(each, method)(points) for each in (indexed, dense))
        torch.testing.assert_close(found, expected, atol=2e-5, rtol=2e-5)
    assert indexed.index_report().used
    assert not dense.index_report().used
    assert indexed.index_report().kept < 1
    moved = [ist.retrieve(each, points, tol=1e-8) for each in (indexed, dense)]
    torch.testing.assert_close(moved[0].state, moved[1].state, atol=1e-4, rtol=1e-4)
    torch.testing.assert_close(moved[0].energy, moved[1].energy, atol=2e-5, rtol=2e-5)
    holes = points[:5].clone()
    holes[:, ::2] = math.nan
    filled = [ist.complete(each, holes) for each in (indexed, dense)]
    torch.testing.assert_close(*filled, atol=1e-5, rtol=1e-5)
    assert torch.equal(indexed.sample(7), dense.sample(7))


def test_clusters_basins_and_certificates_agree_with_all_memories(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    memories = clusters(2500)
    expected = certify(ist.GaussianKDE(memories, 0.1, index=False), n_neighbors=20)
    found = certify(ist.GaussianKDE(memories, 0.1, index=True), n_neighbors=20)
    assert np.array_equal(found.stored, expected.stored)
    assert np.array_equal(found.basin, expected.basin)
    np.testing.assert_allclose(found.fixed_point, expected.fixed_point, atol=1e-5)
    dense = basins(memories, 0.6), GaussianMeanShift(0.6).fit(memories.numpy())
    for name in ("FEWEST_MEMORIES", "QUERIES"):
        monkeypatch.setattr(pruning, name, 1000)
    indexed = basins(memories, 0.6), GaussianMeanShift(0.6).fit(memories.numpy())
    assert np.array_equal(indexed[0].labels, dense[0].labels)
    assert np.array_equal(indexed[1].labels_, dense[1].labels_)
    np.testing.assert_allclose(indexed[0].fixed_points, dense[0].fixed_points, atol=1e-4)


def test_auto_waits_for_queries_then_uses_what_is_faster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pruning, "FEWEST_MEMORIES", 2000)
    monkeypatch.setattr(pruning, "QUERIES", 500)
    energy = ist.GaussianKDE(clusters(3000), 0.1)
    energy.energy(clusters(100, seed=1))
    assert "fewer than 500 queries" in energy.index_report().reason
    energy.energy(clusters(600, seed=1))
    assert energy.index_report().used
    wide = ist.GaussianKDE(clusters(3000), 10.0)
    wide.energy(clusters(600, seed=1))
    report = wide.index_report()
    assert not report.used
    assert "needs more than" in str(report)
    assert report.kept == pytest.approx(1)


def test_gradients_flow_through_all_memories() -> None:
    memories = clusters(2000)
    points = clusters(50, seed=1).requires_grad_()
    energy = ist.GaussianKDE(memories, 0.3, index=True)
    (gradient,) = torch.autograd.grad(energy.energy(points).sum(), points)
    torch.testing.assert_close(-gradient, energy.score(points.detach()), atol=1e-4, rtol=1e-4)
    learned = ist.GaussianKDE(memories, 0.3, index=True).requires_grad_()
    learned.energy(points.detach()).sum().backward()
    assert learned.memories.grad is not None
    assert torch.func.grad(lambda x: energy.energy(x).sum())(points.detach()).shape == points.shape


def test_changed_memories_get_a_new_index() -> None:
    memories, points = clusters(2000), clusters(50, seed=1)
    energy = ist.GaussianKDE(memories, 0.3, index=True)
    energy.energy(points)
    with torch.no_grad():
        energy.memories.add_(1.0)
    expected = ist.GaussianKDE(memories + 1, 0.3, index=False).energy(points)
    torch.testing.assert_close(energy.energy(points), expected, atol=1e-5, rtol=1e-5)
    given = ist.GaussianKDE(memories, 0.3, index=Index(memories))
    with torch.no_grad():
        given.memories.add_(1.0)
    with pytest.raises(InvalidInputError, match="other memories"):
        given.energy(points)


def test_one_index_serves_many_energies_and_copies() -> None:
    memories, points = clusters(2000), clusters(50, seed=1)
    index = Index(memories)
    for sigma in (0.1, 1.0):
        energy = ist.GaussianKDE(memories, sigma, index=index)
        expected = ist.GaussianKDE(memories, sigma, index=False).energy(points)
        for each in (energy, copy.deepcopy(energy), pickle.loads(pickle.dumps(energy))):
            torch.testing.assert_close(each.energy(points), expected, atol=1e-5, rtol=1e-5)
    other = energy.with_memories(memories[:500])
    assert other.index is True
    assert "index=Index(" in repr(energy)
    assert ist.ModernHopfield(memories, 2.0, index=index).energy(points).shape == (50,)
