"""The noise certificate against integrals, exact cases and recall by Monte Carlo."""

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from scipy.stats import binom, norm

import isthmus as ist
from isthmus.capacity import Certificate, certify
from isthmus.capacity.contraction import LARGEST_DELTA
from isthmus.errors import InvalidInputError

Array = NDArray[np.float64]


def patterns(n: int, dim: int, scale: float, seed: int = 0) -> Array:
    return scale * np.random.default_rng(seed).standard_normal((n, dim))


CASES: dict[str, tuple[Any, float]] = {
    "pair": (np.array([[0.0, 0.0], [6.0, 0.0]]), 1.0),
    "few in a plane": (patterns(6, 2, 8.0), 1.0),
    "cloud": (patterns(150, 10, 3.0), 1.0),
    "high dimension": (patterns(400, 64, 1.0), 1.1),
    "crowded": (patterns(200, 30, 1.0), 1.6),
    "near twins": (np.concatenate([patterns(20, 5, 4.0), patterns(20, 5, 4.0) + 1e-3]), 0.8),
    "hopfield": (ist.ModernHopfield(patterns(60, 12, 1.5), 1.0), 1.0),
}


@pytest.mark.parametrize("delta", [0.002, 0.2])
@pytest.mark.parametrize("case", CASES)
def test_noisy_queries_are_recalled_as_often_as_promised(case: str, delta: float) -> None:
    X, sigma = CASES[case]
    memory = X if isinstance(X, ist.ModernHopfield) else ist.GaussianKDE(X, sigma)
    found = certify(memory, noise=True, delta=delta)
    rows = np.flatnonzero(found.noise > 0)[:3]
    assert len(rows)
    rng, draws = np.random.default_rng(1), 3000
    for row in rows:
        home = memory.memories[row].double()
        noise = found.noise[row] * rng.standard_normal((draws, memory.dim))
        starts = memory.step(home + torch.from_numpy(noise))
        ends = ist.retrieve(memory, starts, tol=1e-6 * sigma).state
        goal = torch.from_numpy(found.fixed_point[row])
        lost = int((torch.linalg.vector_norm(ends - goal, dim=1) > 1e-2 * sigma).sum())
        # As many losses would be seen once in a million times if delta were the true rate.
        assert lost <= binom.isf(1e-6, draws, delta)


@pytest.mark.parametrize("delta", [1e-6, 1e-3, 0.1])
def test_two_patterns_come_near_their_exact_noise(delta: float) -> None:
    found = certify([[0.0], [7.0]], 1.0, noise=True, delta=delta)
    # One update ends beyond R if 7 w / (1 + w) > R, with log w = -49/2 + 7 g.
    radius = found.guaranteed_radius[0]
    threshold = (math.log(radius / (7 - radius)) + 24.5) / 7
    exact = threshold / norm.isf(delta)
    assert 0.98 * exact < found.noise[0] < exact


@pytest.mark.parametrize("hopfield", [False, True])
def test_fewer_neighbours_prove_no_more(hopfield: bool, monkeypatch: Any) -> None:
    X = patterns(300, 20, 1.6)
    memory = ist.ModernHopfield(6 * X / np.linalg.norm(X, axis=1, keepdims=True)) if hopfield else X
    exact = certify(memory, iterate="none", noise=True).noise
    monkeypatch.setattr("isthmus.capacity.certificate.ALL_PAIRS", 1)
    few = certify(memory, iterate="none", noise=True, n_neighbors=40).noise
    assert (few <= exact * (1 + 1e-3)).all()
    assert np.median(few) > 0.5 * np.median(exact)


def test_patterns_without_a_ball_have_no_noise_and_a_single_one_any(tmp_path: Path) -> None:
    found = certify([[0.0], [0.5], [20.0]], 1.0, noise=True)
    assert found.noise[2] > 0
    assert (found.noise[found.guaranteed_radius == 0] == 0).all()
    assert certify([[1.0, 2.0]], 1.0, noise=True).noise[0] == np.inf
    assert certify([[1.0], [1.0]], 1.0, noise=True).noise.tolist() == [np.inf, np.inf]
    for each in (found, certify([[0.0], [9.0]])):
        each.save(tmp_path / "certificate.npz")
        again = Certificate.load(tmp_path / "certificate.npz")
        assert again.delta == each.delta
        np.testing.assert_equal(again.noise, each.noise)
    assert "noise" in found.to_frame()
    assert "noise" not in each.to_frame()
    with pytest.raises(InvalidInputError, match="delta"):
        certify([[0.0], [9.0]], noise=True, delta=0.5)
    assert math.exp(-1) > LARGEST_DELTA
