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
    regular_polygon,
    spread_on_sphere,
)
from isthmus.dynamics.modes import _weights_and_residual

Array = NDArray[np.float64]


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


def test_a_long_pattern_is_stored_though_a_short_one_flows_to_its_fixed_point() -> None:
    for long, short, decided in ((1.5, 0.3, "iterated"), (1.8, 0.3, "proved")):
        X = np.array([long, short, -1.5])
        found = certify(ist.ModernHopfield(X[:, None], 1.0))
        assert found.decided[0] == decided
        assert found.stored.tolist() == [True, False, True]
        assert found.basin[0] == found.basin[1]
        # Every start of a ball about the pattern that holds the fixed point reaches it.
        starts = X[0] + 1.01 * found.retrieval_error[0] * np.linspace(-1, 1, 101)
        for _ in range(500):
            weights = np.exp(starts[:, None] * X)
            starts = weights @ X / weights.sum(1)
        np.testing.assert_allclose(starts, found.fixed_point[0, 0], atol=1e-4)


@pytest.mark.parametrize("count", [8, 11, 12, 13])
def test_points_on_a_circle_are_stored_beyond_the_half_weight_ceiling(count: int) -> None:
    for points in (regular_polygon(count), spread_on_sphere(count, 2)):
        assert certify(2 * points, 1.0).stored.all()
    assert capacity_bound(2, kind="half-weight") < 10


def test_the_600_cell_is_stored() -> None:
    X = 2 * 3**0.5 * cell_600()
    assert certify(X, 1.0).stored.all()
    assert len(X) == 120 > capacity_bound(4, kind="half-weight") > capacity_bound(4, kind="claimed")


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
