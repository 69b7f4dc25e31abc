"""Starts that try to leave certified balls, iterated by a program of a few lines in float64."""

from collections.abc import Callable

import numpy as np
import pytest
from numpy.typing import NDArray

import isthmus as ist
from isthmus.capacity import certify

Array = NDArray[np.float64]
MOST_STEPS = 20_000


def near_duplicates(rng: np.random.Generator) -> Array:
    """Pairs from 1e-9 to 1 apart, far from one another."""
    X = rng.normal(0, 6, (6, 3))
    apart = rng.standard_normal((6, 3)) * 10.0 ** -rng.uniform(0, 9, (6, 1))
    return np.concatenate([X, X + apart])


def collinear(rng: np.random.Generator) -> Array:
    """Points of one line, some of them at equal distances."""
    along = np.concatenate([np.arange(6) * 2.5, rng.uniform(-20, 0, 6)])
    return along[:, None] * np.array([0.6, 0.0, 0.8])


def mixed_scales(rng: np.random.Generator) -> Array:
    """Distances over six orders of magnitude."""
    return rng.standard_normal((12, 3)) * 10.0 ** rng.uniform(-2, 4, (12, 1))


def borderline(rng: np.random.Generator) -> Array:
    """A lattice whose patterns are just far enough from their neighbours."""
    grid = np.stack(np.meshgrid([0.0, 1.0, 2.0], [0.0, 1.0], [0.0, 1.0]), -1).reshape(-1, 3)
    return rng.uniform(2.3, 3.2) * grid + 0.05 * rng.standard_normal(grid.shape)


def sphere(rng: np.random.Generator) -> Array:
    X = rng.standard_normal((40, 9))
    return 6 * X / np.linalg.norm(X, axis=1, keepdims=True)


def clusters(rng: np.random.Generator) -> Array:
    """Every centre once on its own, then tight groups about some of them, one row twice."""
    centres = 6 * rng.standard_normal((8, 4))
    near = centres[rng.integers(0, 4, 12)] + 0.4 * rng.standard_normal((12, 4))
    return np.concatenate([centres, near, near[:1]])


KINDS: dict[str, Callable[[np.random.Generator], Array]] = {
    "near duplicates": near_duplicates,
    "collinear": collinear,
    "mixed scales": mixed_scales,
    "borderline": borderline,
    "sphere": sphere,
    "clusters": clusters,
}


def starts(X: Array, row: int, radius: float, count: int, rng: np.random.Generator) -> Array:
    """Points of the closed ball: half on its boundary; towards all others, and at random."""
    apart = np.delete(X - X[row], row, 0)
    apart = apart[np.linalg.norm(apart, axis=1) > 0]
    units = apart / np.linalg.norm(apart, axis=1, keepdims=True)
    pair = rng.integers(len(units), size=(2, count))
    between = units[pair[0]] + units[pair[1]]
    random = rng.standard_normal((count, X.shape[1]))
    directions = rng.permutation(np.concatenate([units, -units, between, random]))
    length = np.linalg.norm(directions, axis=1)
    directions = (directions[length > 1e-9] / length[length > 1e-9, None])[:count]
    shares = np.where(rng.random(len(directions)) < 0.5, 1.0, rng.random(len(directions)))
    return X[row] + radius * shares[:, None] * directions


def iterate(X: Array, beta: float, state: Array, dot: bool) -> Array:
    """Repeat the update until nothing moves: the mean of X, weighted by a softmax."""
    state, active = state.copy(), np.arange(len(state))
    for _ in range(MOST_STEPS):
        now = state[active]
        similarity = now @ X.T if dot else -0.5 * ((now[:, None] - X) ** 2).sum(2)
        logits = beta * similarity
        weights = np.exp(logits - logits.max(1, keepdims=True))
        new = weights @ X / weights.sum(1, keepdims=True)
        moving = np.linalg.norm(new - now, axis=1) > 1e-10 * beta**-0.5
        state[active] = new
        active = active[moving]
        if not len(active):
            break
    assert not len(active)
    return state


def attack(X: Array, beta: float, model: str, dtype: type, count: int, seed: int) -> int:
    """Try to leave the certified balls of patterns; return the number of starts."""
    rng = np.random.default_rng(seed)
    given = X.astype(dtype)
    X, sigma = given.astype(np.float64), beta**-0.5
    memory, width = (
        (ist.ModernHopfield(given, beta), None) if model == "hopfield" else (given, sigma)
    )
    found = certify(memory, width, iterate="none")
    held = np.flatnonzero((found.guaranteed_radius > 0) & (found.error_bound < np.inf))
    radii = np.minimum(found.guaranteed_radius, 1e6)
    parts = [starts(X, row, radii[row], count, rng) for row in held]
    if not parts:
        return 0
    home = np.repeat(np.arange(len(held)), [len(part) for part in parts])
    ends = iterate(X, beta, np.concatenate([X[held], *parts]), model == "hopfield")
    own, ends = ends[: len(held)], ends[len(held) :]
    blur = 1e-6 * sigma + 1e-12 * np.abs(X).max()
    assert (np.linalg.norm(ends - own[home], axis=1) <= blur).all()
    assert (np.linalg.norm(own - X[held], axis=1) <= found.error_bound[held] + blur).all()
    return len(ends)


def attack_all(kind: str, count: int, seeds: int) -> int:
    tried = 0
    for seed in range(seeds):
        X = KINDS[kind](np.random.default_rng(seed))
        for dtype in (np.float64, np.float32):
            for beta in (0.9, 4.0, 40.0):
                tried += attack(X, beta, "kde", dtype, count, seed)
            size = np.linalg.norm(X, axis=1).mean()
            tried += attack(X * (4 / size), 4.0, "hopfield", dtype, count, seed)
    return tried


@pytest.mark.parametrize(
    ("count", "seeds", "least"),
    [(25, 1, 500), pytest.param(150, 6, 25_000, marks=pytest.mark.slow)],
)
@pytest.mark.parametrize("kind", KINDS)
def test_starts_return_to_the_fixed_point_of_their_pattern(kind, count, seeds, least) -> None:
    assert attack_all(kind, count, seeds) > least


def test_no_start_leaves_a_ball_whose_sum_was_cut_off() -> None:
    X = np.random.default_rng(0).standard_normal((2100, 16))
    few = certify(X, 0.6, iterate="none", n_neighbors=20)
    many = certify(X, 0.6, iterate="none", n_neighbors=300)
    assert (few.guaranteed_radius <= many.guaranteed_radius * (1 + 1e-9)).all()
    assert (few.error_bound >= many.error_bound * (1 - 1e-9)).all()
    rng, rows = np.random.default_rng(0), np.flatnonzero(few.guaranteed_radius > 0)[:3]
    for row in rows:
        ends = iterate(X, 0.6**-2, starts(X, row, few.guaranteed_radius[row], 30, rng), False)
        assert (np.linalg.norm(ends - X[row], axis=1) <= few.error_bound[row] + 1e-6).all()
