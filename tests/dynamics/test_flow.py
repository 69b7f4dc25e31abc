"""Leaping flow against plain iteration: the same ends, in fewer updates."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose

import isthmus as ist
from isthmus.dynamics.flow import flow


def scattered(seed: int) -> tuple[torch.Tensor, float]:
    rng = np.random.default_rng(seed)
    n, dim = int(rng.integers(5, 100)), int(rng.choice([1, 2, 3, 8, 20]))
    X = rng.normal(size=(n, dim)) * rng.uniform(0.5, 2, dim)
    return torch.from_numpy(X), float(np.exp(rng.uniform(-1.2, 0.6))) * (2 if dim > 7 else 1)


@pytest.mark.parametrize("seed", range(25))
def test_every_point_ends_where_plain_iteration_ends(seed: int) -> None:
    X, sigma = scattered(seed)
    for memory in (ist.GaussianKDE(X, sigma), ist.ModernHopfield(X, 1 / sigma**2)):
        found = flow(memory, X, tol=1e-8 * sigma, max_steps=20_000)
        plain = ist.retrieve(memory, X, tol=1e-10 * sigma, max_steps=20_000)
        assert found.converged.all()
        assert_allclose(found.state, plain.state, atol=1e-4 * sigma)


@pytest.mark.parametrize("sigma", [0.99, 0.997, 1.003, 1.01])
def test_points_do_not_creep_where_two_patterns_are_about_to_merge(sigma: float) -> None:
    memory = ist.GaussianKDE(torch.tensor([[-1.0], [1.0]], dtype=torch.float64), sigma)
    found = flow(memory, memory.memories, tol=1e-10, max_steps=100_000)
    plain = ist.retrieve(memory, memory.memories, tol=1e-10, max_steps=100_000)
    assert_allclose(found.state, plain.state, atol=1e-6)
    assert found.converged.all()
    assert 10 * found.steps < int(plain.steps.max())


def test_a_limit_on_updates_is_kept_and_leaves_no_leap_unchecked() -> None:
    X, sigma = scattered(3)
    memory = ist.GaussianKDE(X, sigma)
    height = memory.log_prob(X)
    for most in range(12):
        found = flow(memory, X, tol=0.0, max_steps=most)
        assert found.steps == most
        assert (memory.log_prob(found.state) >= height - 1e-12).all()
        assert not found.converged.all()
    assert not torch.equal(found.state, X)


def test_the_starts_are_left_alone() -> None:
    X, sigma = scattered(0)
    before = X.clone()
    flow(ist.GaussianKDE(X, sigma), X, tol=1e-3, max_steps=10)
    assert torch.equal(X, before)
