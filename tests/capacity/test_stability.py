"""Stored patterns have stable fixed points: counter-examples, lattices and adversarial starts."""

import itertools

import mpmath
import numpy as np
import pytest
import torch
from numpy.typing import NDArray

import isthmus as ist
from isthmus.capacity import (
    capacity_bound,
    cell_600,
    certify,
    e8_shell,
    regular_polygon,
    spread_on_sphere,
)
from isthmus.dynamics.modes import _weights_and_residual, is_attracting

Array = NDArray[np.float64]


def doubled_roots_of_e8() -> Array:
    """The 240 roots of the E8 lattice, doubled."""
    signs = np.array(list(itertools.product((1.0, -1.0), repeat=8)))
    pairs = np.array(
        [np.eye(8)[i] + s * np.eye(8)[j] for i in range(8) for j in range(i) for s in (1, -1)]
    )
    return np.concatenate([2 * pairs, -2 * pairs, signs[signs.prod(1) > 0]])


def largest_eigenvalue(memory: ist.GaussianKDE, point: torch.Tensor) -> float:
    """Return the largest eigenvalue of the Jacobian of an update at a fixed point (D,)."""
    apart = memory.memories - point
    covariance = apart.T @ (apart * memory.responsibilities(point)[:, None])
    return float(torch.linalg.eigvalsh(covariance)[-1] / memory.variance)


def test_a_saddle_is_not_stored() -> None:
    X = [[0.0, 0.0], *([2.0 * a, b] for a in (1, -1) for b in (-0.3, -0.1, 0.1, 0.3))]
    found = certify(X, 1.0)
    origin = torch.zeros(2, dtype=torch.float64)
    assert largest_eigenvalue(ist.GaussianKDE(X, 1.0), origin) == pytest.approx(2.05, abs=0.01)
    assert found.retrieval_error[0] < 1e-9
    assert found.decided[0] == "iterated"
    assert not found.stored[0]


def ends_on_a_line(X: Array, starts: Array) -> Array:
    """Follow starts (n,) by many plain updates."""
    for _ in range(5000):
        weights = np.exp(-0.5 * (starts[:, None] - X) ** 2)
        starts = weights @ X / weights.sum(1)
    return starts


def test_patterns_on_a_line_are_stored_if_both_ends_of_their_ball_return() -> None:
    verdicts = []
    for right, left in itertools.product((2.0, 2.04, 2.1), (2.84, 2.9, 3.5)):
        X = np.array([0.0, right, *(-left + 1e-3 * np.arange(-2, 3))])
        rest = ends_on_a_line(X, X)
        error = abs(rest[0] - X[0])
        own = (abs(rest - rest[0]) < 0.02).sum() == 1 and error < 0.5 * right
        ends = ends_on_a_line(X, np.array([-1.001 * error, 1.001 * error]))
        expected = own and bool((abs(ends - rest[0]) < 0.02).all())
        assert certify(X[:, None], 1.0).stored[0] == expected
        verdicts.append((own, expected))
    assert {(True, False), (True, True)} <= set(verdicts)


@pytest.mark.parametrize("count", [8, 11, 12, 13])
def test_points_on_a_circle_are_stored_beyond_the_half_weight_ceiling(count: int) -> None:
    for points in (regular_polygon(count), spread_on_sphere(count, 2)):
        assert certify(2 * points, 1.0).stored.all()
    assert capacity_bound(2, kind="half-weight") < 10


def adversarial_starts(X: Array, count: int) -> torch.Tensor:
    """Draw starts about the first pattern up to half-way to the next, half towards neighbours."""
    rng = np.random.default_rng(0)
    apart = X[1:] - X[0]
    length = np.linalg.norm(apart, axis=1)
    directions = rng.standard_normal((count, X.shape[1]))
    near = apart[length < 1.5 * length.min()]
    half = count // 2
    directions[:half] = near[rng.integers(0, len(near), half)] + 0.1 * directions[:half]
    directions /= np.linalg.norm(directions, axis=1, keepdims=True)
    radii = 0.4999 * length.min() * rng.uniform(0, 1, (count, 1)) ** (1 / X.shape[1])
    return torch.from_numpy(X[0] + radii * directions)


@pytest.mark.parametrize("count", [4000, pytest.param(100_000, marks=pytest.mark.slow)])
def test_the_600_cell_is_stored_and_adversarial_starts_return(count: int) -> None:
    X = 2 * 3**0.5 * cell_600()
    found = certify(X, 1.0)
    assert len(X) == 120 > capacity_bound(4, kind="half-weight") > capacity_bound(4, kind="claimed")
    assert found.stored.all()
    # The cell looks the same from all its vertices, so one of them stands for all.
    ends = ist.retrieve(ist.GaussianKDE(X, 1.0), adversarial_starts(X, count), tol=1e-6).state
    assert np.abs(ends.numpy() - found.fixed_point[0]).max() < 1e-3


def test_vectors_of_e8_are_stored_and_doubled_roots_are_not() -> None:
    points, M = e8_shell(), 2 * 7**0.5
    assert points.shape == (17_280, 8)
    assert len(points) > capacity_bound(8, kind="claimed") > capacity_bound(8, kind="half-weight")
    np.testing.assert_allclose(np.linalg.norm(points, axis=1), 1)
    assert np.unique((points @ points[:3].T).round(9))[-2] == 7 / 8
    alone = ist.GaussianKDE(M * points, 1.0)
    rows = [0, 5000, 17_279]  # symmetries of the lattice map every vector to every other
    start = torch.from_numpy(M * points[rows])
    fixed = ist.retrieve(alone, start, tol=1e-9).state
    error = torch.linalg.vector_norm(fixed - start, dim=1)
    np.testing.assert_allclose(error, 0.6150, atol=1e-3)
    assert (error < 0.25 * M).all()  # half of the smallest distance, which is M / 2
    assert is_attracting(alone, fixed).all()
    assert largest_eigenvalue(alone, fixed[0]) == pytest.approx(0.848, abs=1e-3)
    own = alone.responsibilities(start)[range(3), rows]
    np.testing.assert_allclose(own, 0.337, atol=1e-3)
    ends = ist.retrieve(alone, adversarial_starts(M * points, 40), tol=1e-6).state
    assert float((ends - fixed[0]).abs().max()) < 1e-3
    doubled = doubled_roots_of_e8() / 8**0.5
    with_roots = ist.GaussianKDE(M * np.concatenate([doubled, points]), 1.0)
    starts = torch.from_numpy(M * doubled[:10])
    ends = ist.retrieve(with_roots, starts, tol=1e-9, max_steps=100).state
    assert not is_attracting(with_roots, ends).any()
    assert largest_eigenvalue(with_roots, ends[0]) == pytest.approx(1.07, abs=0.01)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("kind", ["kde", "hopfield"])
def test_weights_and_residuals_are_bounded_from_above(kind: str, dtype: torch.dtype) -> None:
    rng = np.random.default_rng(3)
    X = torch.from_numpy(rng.normal(size=(40, 3)) + 100).to(dtype)
    memory = ist.GaussianKDE(X, 0.5) if kind == "kde" else ist.ModernHopfield(X - 99, 4.0)
    memories, point = memory.memories.double(), memory.step(memory.memories[:1])[0].double()
    apart, variance = memories - point, float(memory.variance)
    exponents = apart.square().sum(1) / (2 * variance)
    bias = memory.log_mixing_weights.double()
    weights, residual = _weights_and_residual(apart, exponents, bias)
    with mpmath.workdps(40):
        rows = [[mpmath.mpf(v) for v in row] for row in memories.tolist()]
        here = [mpmath.mpf(v) for v in point.tolist()]
        if kind == "kde":
            logits = [-sum((a - b) ** 2 for a, b in zip(r, here, strict=True)) for r in rows]
        else:
            logits = [2 * sum(a * b for a, b in zip(r, here, strict=True)) for r in rows]
        powers = [mpmath.exp((v - max(logits)) / (2 * mpmath.mpf(variance))) for v in logits]
        exact = [v / sum(powers) for v in powers]
        moved = [sum(p * r[i] for p, r in zip(exact, rows, strict=True)) for i in range(3)]
        length = mpmath.sqrt(sum((a - b) ** 2 for a, b in zip(moved, here, strict=True)))
        assert all(upper >= p for upper, p in zip(weights.tolist(), exact, strict=True))
        assert residual >= length
        assert residual == pytest.approx(float(length), rel=1e-6, abs=1e-9)
    np.testing.assert_allclose(weights, [float(p) for p in exact], rtol=1e-9)
