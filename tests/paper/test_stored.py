"""The proofs by computer that two arrangements are stored, and the facts that they rest on."""

import json
import math
import sys
from dataclasses import asdict, replace
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy.special import gamma, iv

SPEC = spec_from_file_location("stored", Path(__file__).parents[2] / "benchmarks" / "stored.py")
assert SPEC is not None
stored = sys.modules["stored"] = module_from_spec(SPEC)
SPEC.loader.exec_module(stored)
CELL_600, E8_SHELL, prove_stored = stored.CELL_600, stored.E8_SHELL, stored.prove_stored
ARRANGEMENTS = pytest.mark.parametrize("arrangement", [CELL_600, E8_SHELL], ids=["600", "E8"])

proved = cache(prove_stored)


def cosines_of(arrangement: Any) -> np.ndarray:
    return np.array([(p + q * 5**0.5) / 8 for p, q in arrangement.cosines])


@ARRANGEMENTS
def test_more_patterns_than_claimed_are_proved_stored(arrangement: Any) -> None:
    proof = proved(arrangement)
    assert proof.holds
    assert proof.patterns > proof.claimed == 4 ** (proof.dim - 1)
    assert "All are stored" in str(proof)


@ARRANGEMENTS
def test_an_invalid_cylinder_proves_nothing(arrangement: Any) -> None:
    # Too deep, starts leave along the sphere; too small, the fixed point is outside the ball.
    assert not prove_stored(replace(arrangement, bottom=arrangement.bottom - 0.3)).holds
    assert not prove_stored(replace(arrangement, radius=arrangement.radius - 0.01)).holds


@ARRANGEMENTS
def test_the_bounds_hold_at_points_of_the_cylinder(arrangement: Any) -> None:
    proof, vectors = proved(arrangement), arrangement.vectors()
    axis, M = vectors[0], 2 * math.sqrt(proof.dim - 1)
    rng, ratios, inward = np.random.default_rng(0), [], []
    near = np.argsort(-(vectors @ axis))[1:60]
    for trial in range(60):
        across = rng.standard_normal(proof.dim) if trial % 2 else vectors[rng.choice(near)]
        across = across - (across @ axis) * axis
        across *= proof.radius * rng.uniform(0.5, 1) / np.linalg.norm(across)
        x = arrangement.bottom * axis + across * (1 if trial % 3 else -1)
        logits = M * vectors @ x
        weights = np.exp(logits - logits.max())
        moved = weights / weights.sum() @ (M * vectors)
        inward.append(moved @ axis - arrangement.bottom)
        moved -= (moved @ axis) * axis
        ratios.append(np.linalg.norm(moved) / np.linalg.norm(across))
    assert 0.85 * proof.across < max(ratios) < proof.across
    assert min(inward) > 0


@ARRANGEMENTS
def test_reflections_carry_one_pattern_to_every_other(arrangement: Any) -> None:
    vectors = arrangement.vectors()
    if arrangement is CELL_600:
        roots = vectors
    else:  # simple roots of A_7, which permute coordinates, and one more
        roots = np.stack([np.eye(8)[i] - np.eye(8)[i + 1] for i in range(7)] + [np.ones(8) / 2])
        roots[-1, :5] *= -1  # an odd number of signs, as one coordinate of the lattice is mirrored
        roots /= 2**0.5
    number = {tuple(row): k for k, row in enumerate(np.round(1e6 * vectors).astype(int))}
    reached, frontier = {0}, [0]
    while frontier:
        images = vectors[frontier, None] - 2 * (vectors[frontier] @ roots.T)[..., None] * roots
        rows = np.round(1e6 * images.reshape(-1, vectors.shape[1])).astype(int)
        found = {number[tuple(row)] for row in rows}  # a KeyError if the image is no pattern
        frontier = sorted(found - reached)
        reached |= found
    assert len(reached) == len(vectors)


@ARRANGEMENTS
def test_low_harmonics_vanish_over_every_shell(arrangement: Any) -> None:
    vectors, cosines = arrangement.vectors(), cosines_of(arrangement)
    sizes, pairs = stored._counted(arrangement.vectors, arrangement.cosines)
    assert sizes.sum() == len(vectors)
    assert pairs.sum() == len(vectors) ** 2
    kernels = stored.shell_kernels(pairs, cosines, vectors.shape[1] - 1)
    for degree in range(1, arrangement.first_degree):
        np.testing.assert_allclose(kernels[degree], 0, atol=1e-12)
    assert np.abs(kernels[arrangement.first_degree]).max() > 1e-3


@pytest.mark.parametrize(("degree", "across"), [(0, 3), (6, 3), (3, 7), (8, 7)])
def test_coefficients_of_harmonics_are_bessel_functions(degree: int, across: int) -> None:
    z, order = np.array([0.3, 1.7, 3.2]), across / 2 - 1
    dimension = math.comb(degree + across - 1, across - 1)
    dimension -= math.comb(degree + across - 3, across - 1) if degree > 1 else 0
    expected = dimension * gamma(across / 2) * (2 / z) ** order * iv(degree + order, z)
    series = stored._series(degree, across, float)
    np.testing.assert_allclose(stored._power_series(series, z, 0), expected, rtol=1e-12)


def test_sums_of_fourth_powers_are_at_most_43_over_56() -> None:
    """At a critical point, coordinates solve a cubic without a square: their values add up to 0."""
    largest = 0.0
    for k, m in product(range(1, 8), range(1, 8)):
        rest = 8 - k - m
        if rest < 0:
            continue
        values = (m, -k, 0) if rest == 0 else (m - rest, rest - k, k - m)
        w = np.repeat(np.array(values, dtype=float), (k, m, rest))
        if w.any():
            w /= np.linalg.norm(w)
            assert abs(w.sum()) < 1e-12
            largest = max(largest, float((w**4).sum()))
    assert largest == pytest.approx(43 / 56)


@pytest.mark.slow
@ARRANGEMENTS
def test_interval_arithmetic_confirms_the_proof_and_gives_the_record(arrangement: Any) -> None:
    flint = pytest.importorskip("flint")
    with flint.ctx.workprec(100):
        proof = prove_stored(arrangement, flint.arb)
    assert proof.holds
    assert proof.across == pytest.approx(proved(arrangement).across, abs=1e-4)
    record = json.loads(stored.RESULTS.read_text())["proofs"]
    (kept,) = [each for each in record if each["name"] == proof.name]
    assert kept == pytest.approx(asdict(proof))
