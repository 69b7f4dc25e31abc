"""Accelerated retrieval against plain iteration: no update ends higher, and the ends agree."""

from copy import deepcopy

import numpy as np
import pytest
import torch
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose
from torch import Tensor

import isthmus as ist
from isthmus.memories.gaussian import GaussianMemory

KINDS = ("kde", "mixture", "hopfield")


def memory_of(kind: str, points: Tensor, sigma: float) -> GaussianMemory:
    if kind == "kde":
        return ist.GaussianKDE(points, sigma)
    if kind == "mixture":
        weights = torch.linspace(-1, 1, len(points), dtype=points.dtype)
        return ist.Mixture(points, 0.5 / sigma**2, weights)
    return ist.ModernHopfield(points, sigma**-2)


@st.composite
def memories(draw: st.DrawFn, dtype: torch.dtype = torch.float64) -> GaussianMemory:
    """Random points, at bandwidths around those where their basins merge."""
    rng = np.random.default_rng(draw(st.integers(0, 2**32 - 1)))
    count, dim = draw(st.integers(2, 60)), draw(st.sampled_from([1, 2, 3, 8]))
    points = torch.from_numpy(rng.normal(size=(count, dim)) * rng.uniform(0.5, 2, dim)).to(dtype)
    nearest = torch.cdist(points, points).fill_diagonal_(torch.inf).min(1).values.quantile(0.7)
    sigma = float(nearest) * draw(st.floats(0.3, 2.0))
    assume(sigma > 1e-3)
    return memory_of(draw(st.sampled_from(KINDS)), points, sigma)


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@given(data=st.data())
@settings(max_examples=25, deadline=None, derandomize=True)
def test_no_update_ends_higher_than_the_plain_update(dtype: torch.dtype, data: st.DataObject):
    memory = data.draw(memories(dtype))
    held = data.draw(st.lists(st.booleans(), min_size=memory.dim, max_size=memory.dim))
    sigma, starts = float(memory.sigma), memory.memories.detach()
    tol = 1e-5 * sigma
    found = ist.retrieve(memory, starts, held, tol=tol, max_steps=300, trace=True)
    mask = torch.tensor(held)
    assert torch.equal(found.state[:, mask], starts[:, mask])
    before, after = found.trace[:-1], found.trace[1:]
    plain = memory.step(before, mask)
    kept = (after == before).all(-1)  # a row at rest, or a leap undone
    exact = deepcopy(memory).double()  # energies of single precision are rounded by more
    heights = exact.energy(torch.where(kept[..., None], before, plain).double())
    rounding = 100 * torch.finfo(dtype).eps * (1 + heights.abs())
    assert (exact.energy(after.double()) <= heights + rounding).all()


@pytest.mark.parametrize("kind", ["kde", "hopfield"])
@pytest.mark.parametrize("seed", range(4))
def test_every_point_ends_where_plain_iteration_ends(seed: int, kind: str) -> None:
    rng = np.random.default_rng(seed)
    n, dim = int(rng.integers(5, 100)), int(rng.choice([1, 2, 3, 8, 20]))
    X = torch.from_numpy(rng.normal(size=(n, dim)) * rng.uniform(0.5, 2, dim))
    sigma = float(np.exp(rng.uniform(-1.2, 0.6))) * (2 if dim > 7 else 1)
    memory = memory_of(kind, X, sigma)
    found = ist.retrieve(memory, X, tol=1e-8 * sigma, max_steps=20_000)
    plain = ist.retrieve(memory, X, tol=1e-10 * sigma, max_steps=20_000, accelerate=False)
    assert found.converged.all()
    assert_allclose(found.state, plain.state, atol=1e-4 * sigma)


@pytest.mark.parametrize("sigma", [0.99, 0.997, 1.003, 1.01])
def test_retrieval_is_fast_where_two_patterns_are_about_to_merge(sigma: float) -> None:
    memory = ist.GaussianKDE(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), sigma)
    found = ist.retrieve(memory, memory.memories, tol=1e-10, max_steps=100_000)
    plain = ist.retrieve(memory, memory.memories, tol=1e-10, max_steps=100_000, accelerate=False)
    assert_allclose(found.state, plain.state, atol=1e-6)
    assert found.converged.all()
    assert 10 * int(found.steps.max()) < int(plain.steps.max())
