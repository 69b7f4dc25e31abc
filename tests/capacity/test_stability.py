"""Stored patterns have stable fixed points: counter-examples, lattices and adversarial starts."""

import itertools

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import isthmus as ist
from isthmus.capacity import capacity_bound, certify
from isthmus.dynamics.modes import is_attracting

Array = NDArray[np.float64]


def even_permutations() -> list[tuple[int, ...]]:
    return [
        order
        for order in itertools.permutations(range(4))
        if sum(a > b for a, b in itertools.combinations(order, 2)) % 2 == 0
    ]


def cell_600() -> Array:
    """The 120 vertices of the 600-cell, of length 1."""
    golden = (1 + 5**0.5) / 2
    vertices = [
        *2 * np.eye(4),
        *-2 * np.eye(4),
        *map(np.array, itertools.product((1, -1), repeat=4)),
    ]
    for signs in itertools.product((1, -1), repeat=3):
        corner = np.array([*(np.array(signs) * (golden, 1, 1 / golden)), 0])
        vertices += [corner[list(order)] for order in even_permutations()]
    return np.array(vertices) / 2


def norm_8_of_e8() -> tuple[Array, Array]:
    """The 240 doubled roots and the 17,280 primitive vectors of norm 8 of the E8 lattice."""
    half = np.array([-2.5, -1.5, -0.5, 0.5, 1.5, 2.5])
    vectors = []
    for values in (np.arange(-2.0, 3.0), half):
        # Grids of four coordinates are joined in pairs, by their squares and the parity of sums.
        four = np.array(list(itertools.product(values, repeat=4)))
        squares, sums = (four**2).sum(1), four.sum(1)
        for square in np.unique(squares[squares <= 8]):
            first, second = np.flatnonzero(squares == square), np.flatnonzero(squares == 8 - square)
            pairs = np.array(list(itertools.product(first, second)), dtype=int).reshape(-1, 2)
            pairs = pairs[(sums[pairs[:, 0]] + sums[pairs[:, 1]]) % 2 == 0]
            vectors.append(np.concatenate([four[pairs[:, 0]], four[pairs[:, 1]]], axis=1))
    found = np.concatenate(vectors)
    halved = found / 2
    whole = (halved == np.round(halved)).all(1) | (halved + 0.5 == np.round(halved + 0.5)).all(1)
    doubled = whole & (halved.sum(1) % 2 == 0)
    return found[doubled], found[~doubled]


def test_a_saddle_is_not_stored() -> None:
    X = [[0.0, 0.0], *([2.0 * a, b] for a in (1, -1) for b in (-0.3, -0.1, 0.1, 0.3))]
    found = certify(X, 1.0)
    assert found.retrieval_error[0] < 1e-9
    assert found.decided[0] == "iterated"
    assert not found.stored[0]


@pytest.mark.parametrize("count", [8, 9, 10, 11, 12])
def test_points_on_a_circle_are_stored_beyond_the_half_weight_ceiling(count: int) -> None:
    angles = 2 * np.pi * np.arange(count) / count
    X = 2 * np.stack([np.cos(angles), np.sin(angles)], 1)
    assert certify(X, 1.0).stored.all()
    assert capacity_bound(2, kind="ceiling") < 10


def test_the_600_cell_is_stored_and_adversarial_starts_return() -> None:
    X = 2 * 3**0.5 * cell_600()
    found = certify(X, 1.0)
    assert len(X) == 120 > capacity_bound(4, kind="ceiling")
    assert found.stored.all()
    # The cell looks the same from all its vertices, so one of them stands for all.
    rng = np.random.default_rng(0)
    nearest = np.linalg.norm(X - X[0], axis=1)
    half = 0.5 * np.sort(nearest)[1]
    directions = rng.standard_normal((100_000, 4))
    directions[:50_000] = (X - X[0])[rng.integers(1, 120, 50_000)] + 0.1 * directions[:50_000]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = half * 0.999 * rng.uniform(0, 1, (100_000, 1)) ** 0.25
    starts = torch.from_numpy(X[0] + radii * directions)
    ends = ist.retrieve(ist.GaussianKDE(X, 1.0), starts, tol=1e-6).state
    assert np.abs(ends.numpy() - found.fixed_point[0]).max() < 1e-3


def test_vectors_of_e8_are_stored_and_doubled_roots_are_not() -> None:
    doubled, primitive = norm_8_of_e8()
    assert (len(doubled), len(primitive)) == (240, 17_280)
    scale = 2 * 7**0.5 / 8**0.5
    alone = ist.GaussianKDE(scale * primitive, 1.0)
    start = torch.from_numpy(scale * primitive[:1])
    fixed = ist.retrieve(alone, start, tol=1e-9).state
    assert float(torch.linalg.vector_norm(fixed - start)) == pytest.approx(0.6150, abs=1e-3)
    assert is_attracting(alone, fixed).all()
    with_roots = ist.GaussianKDE(scale * np.concatenate([doubled, primitive]), 1.0)
    starts = torch.from_numpy(scale * doubled[:10])
    ends = ist.retrieve(with_roots, starts, tol=1e-9, max_steps=100).state
    assert not is_attracting(with_roots, ends).any()


@pytest.mark.parametrize("seed", range(6))
def test_stored_patterns_attract_and_eigenvalues_agree(seed: int) -> None:
    rng = np.random.default_rng(seed)
    X = rng.normal(size=(60, int(rng.choice([1, 2, 3, 6]))))
    memory = ist.GaussianKDE(X, float(rng.uniform(0.1, 0.5)))
    found = certify(memory)
    own = found.stored & (found.decided == "iterated")
    points = torch.from_numpy(found.fixed_point[own])
    weights = memory.responsibilities(points)
    apart = memory.memories - points[:, None]
    covariance = torch.einsum("bn,bni,bnj->bij", weights, apart, apart)
    assert (torch.linalg.eigvalsh(covariance)[:, -1:] < memory.variance).all()
    noise = torch.from_numpy(rng.normal(size=(50, *points.shape)))
    starts = points + 1e-6 * noise / torch.linalg.vector_norm(noise, dim=-1, keepdim=True)
    ends = ist.retrieve(memory, starts, tol=1e-9, max_steps=20_000).state
    torch.testing.assert_close(ends, points.expand_as(ends), atol=1e-3, rtol=0)
