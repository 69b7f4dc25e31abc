"""Balls about modes: attempts to get out of them, and updates that leave memories out."""

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose
from torch import Tensor

import isthmus as ist
from isthmus.dynamics.modes import (
    Attractors,
    attractors,
    find_modes,
    homes_after_one_update,
    homes_in_float32,
)
from isthmus.memories.base import GaussianMemory


def blobs(seed: int, spread: float = 6.0) -> Tensor:
    rng = np.random.default_rng(seed)
    dim = int(rng.choice([1, 2, 3, 6, 12]))
    centres = spread * rng.standard_normal((5, dim))
    return torch.from_numpy(centres[rng.integers(0, 5, 300)] + rng.standard_normal((300, dim)))


def memories(seed: int) -> list[GaussianMemory]:
    X, sigma = blobs(seed), 0.6 + 0.3 * (seed % 4)
    weights = torch.from_numpy(np.random.default_rng(seed).standard_normal(len(X)))
    return [
        ist.GaussianKDE(X, sigma),
        ist.Mixture(X, beta=0.5 / sigma**2, log_weights=weights),
        ist.ModernHopfield(X / 6, 1 / sigma**2),
    ]


def balls_of(memory: GaussianMemory) -> Attractors:
    modes = find_modes(memory, memory.memories[:60], tol=1e-8).fixed_points
    return attractors(memory, torch.from_numpy(modes))


@pytest.mark.parametrize("seed", range(3))
def test_no_point_leaves_a_ball_or_ends_elsewhere(seed: int) -> None:
    rng = np.random.default_rng(seed)
    tried = 0
    for memory in memories(seed):
        balls, sigma = balls_of(memory), float(memory.sigma)
        directions = torch.from_numpy(rng.standard_normal((200, memory.dim)))
        # Towards memories the pull outwards is strongest.
        directions[:80] = memory.memories[torch.from_numpy(rng.integers(0, 300, 80))]
        for centre, radius in zip(balls.centres[:6], balls.radii[:6], strict=True):
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


# The second leaves out weighted memories, and those with balls that are small for float32.
@pytest.mark.parametrize(
    ("homes_of", "least"), [(homes_after_one_update, 500), (homes_in_float32, 200)]
)
def test_homes_are_where_plain_iteration_leads(homes_of, least: int) -> None:
    found = 0
    for memory in [memory for seed in range(8) for memory in memories(seed)[:2]]:
        balls, sigma = balls_of(memory), float(memory.sigma)
        homes = homes_of(memory, memory.memories, balls)
        starts, centres = memory.memories[homes >= 0], balls.centres[homes[homes >= 0]]
        ends = ist.retrieve(memory, starts, tol=1e-8 * sigma, max_steps=5000).state
        assert_allclose(ends, centres, atol=1e-3 * sigma)
        if not len(starts):
            continue
        distance = torch.linalg.vector_norm(memory.step(starts) - centres, dim=1)
        assert (distance <= balls.radii[homes[homes >= 0]]).all()
        found += len(starts)
    assert found > least
