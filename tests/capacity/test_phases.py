"""The phases of a memory, and the lines of theory beside them."""

import json
import runpy
from pathlib import Path

import numpy as np
import pytest
from scipy.optimize import minimize_scalar
from scipy.spatial.distance import cdist

from isthmus.capacity import basins, capacity_rate, certify, phases
from isthmus.capacity.atlas import (
    CRITERIA,
    binary_line,
    central_limit_line,
    condensation_line,
    entropy_noise,
    storage_line,
)
from isthmus.errors import InvalidInputError
from isthmus.figures import phase_plot

SIMULATED = runpy.run_path(str(Path(__file__).parents[2] / "benchmarks" / "phases.py"))
RNG = np.random.default_rng(0)
# Three clusters of 60 rows in 5 dimensions.
X = np.concatenate([RNG.standard_normal((60, 5)) + 9 * np.eye(5)[k] for k in range(3)])


@pytest.fixture(scope="module")
def found() -> object:
    return phases(X, n_sigmas=12)


def test_a_memory_stores_then_generalises_then_forgets(found) -> None:
    order = list(CRITERIA)
    ranks = [order.index(phase) for phase, _, _ in found.regions]
    assert ranks == sorted(ranks)
    assert {"stores", "generalises", "forgets"} <= set(found.phase)
    assert found.sigmas[0] == found.regions[0][1]
    assert 3 in found.n_basins[found.phase == "generalises"]  # one basin per cluster


def test_each_phase_satisfies_its_criterion(found) -> None:
    rng = np.random.default_rng(7)
    for k, sigma in enumerate(found.sigmas):
        labels = basins(X, sigma).labels
        sizes = np.bincount(labels)[labels]
        points = X[rng.integers(len(X), size=4000)] + sigma * rng.standard_normal((4000, 5))
        weights = np.exp(-cdist(points, X, "sqeuclidean") / (2 * sigma**2))
        largest = np.median(weights.max(1) / weights.sum(1))
        assert largest == pytest.approx(found.largest_weight[k], abs=0.08)
        assert len(np.unique(labels)) == found.n_basins[k]
        stored = certify(X, sigma).fraction_stored
        assert stored == pytest.approx(found.stored[k], abs=1e-9)
        assert found.proved[k] <= found.stored[k]
        several = len(np.unique(labels)) > 1
        many = np.median(sizes) >= len(X) ** 0.5
        condensed = found.largest_weight[k] > 0.5
        expected = {
            "stores": stored >= 0.95,
            "forgets": not several,
            "condenses": several and stored < 0.95 and condensed,
            "generalises": several and stored < 0.95 and not condensed and many,
            "blends": several and stored < 0.95 and not condensed and not many,
        }
        assert [name for name, holds in expected.items() if holds] == [found.phase[k]]


def test_the_result_is_plain_and_prints_and_plots(found) -> None:
    plain = json.loads(json.dumps(found.to_dict(), allow_nan=False))
    assert plain["phase"] == found.phase.tolist()
    assert [each["phase"] for each in plain["regions"]] == [name for name, _, _ in found.regions]
    assert f"{len(X)} rows in 5 dimensions" in str(found)
    left, right = phase_plot(found).axes
    drawn = [text.get_text() for text in left.texts if text.get_text() in CRITERIA]
    assert drawn == [name for name, _, _ in found.regions]
    assert len(right.lines) == 4 + len(set(found.phase))


def test_duplicates_and_many_rows_are_handled() -> None:
    with pytest.raises(InvalidInputError, match="different"):
        phases(np.ones((4, 2)))
    with pytest.raises(InvalidInputError, match="copies"):
        phases(np.repeat(np.eye(3), 2, 0))
    twins = np.concatenate([X, X[:20]])
    assert phases(twins, [1e-3]).phase.tolist() == ["stores"]  # of those without a duplicate
    large = np.random.default_rng(1).standard_normal((2100, 2))
    assert phases(large, [5.0]).rows == 2048


def test_lines_are_those_of_large_deviations() -> None:
    for share in (0.3, 0.5, 1.0, 2.0):
        sharpness = share**-2

        def rate(t: float, sharpness: float = sharpness) -> float:
            return sharpness * (1 - t) - 0.5 * np.log1p(-t * t)

        least = minimize_scalar(rate, bounds=(0, 1 - 1e-12), method="bounded").fun
        assert storage_line(share) == pytest.approx(least, abs=1e-6)
        # Relative entropy of fair bits to those with the mean t.
        t = np.linspace(-1 + 1e-9, 1 - 1e-9, 200_001)
        entropy = 0.5 * ((1 + t) * np.log1p(t) + (1 - t) * np.log1p(-t))
        least = (sharpness * (1 - t) + entropy).min()
        assert binary_line(share) == pytest.approx(least, abs=1e-6)
        # The log-moments of half a squared distance, from a mean over Gaussian coordinates.
        z = np.linspace(-9, 9, 4001)
        density = np.exp(-0.5 * z * z) / np.sqrt(2 * np.pi) * (z[1] - z[0])

        def psi(s: float, z: np.ndarray = z, density: np.ndarray = density) -> float:
            # |x|^2 / D = 1: each coordinate of x is 1 or -1.
            return float(np.log((density * np.exp(-0.5 * s * (z - 1) ** 2)).sum()))

        step = 1e-5
        slope = (psi(sharpness + step) - psi(sharpness - step)) / (2 * step)
        assert condensation_line(share) == pytest.approx(sharpness * slope - psi(sharpness), 1e-5)
        expected = psi(2 * sharpness) - 2 * psi(sharpness)
        assert central_limit_line(share) == pytest.approx(expected, 1e-6)
    assert storage_line(0.5) == pytest.approx(capacity_rate(2.0))
    assert storage_line(0.5) == pytest.approx(1.224, abs=1e-3)


@pytest.mark.parametrize("sharpness", [1.0, 4.0])
def test_the_storage_threshold_of_random_patterns_is_the_predicted_one(sharpness: float) -> None:
    assert SIMULATED["storage_threshold"](sharpness).ratio == pytest.approx(1, abs=0.05)


def test_the_storage_threshold_of_binary_patterns_is_the_predicted_one() -> None:
    found = SIMULATED["binary_threshold"](1.0, repeats=200)
    assert found.ratio == pytest.approx(1, abs=0.05)
    # Of patterns themselves, fewer than half keep half of their weight beyond the threshold.
    rng = np.random.default_rng(0)
    for change, most in ((0.7, True), (1.5, False)):
        X = rng.choice([-1.0, 1.0], (round(change * np.exp(12 * found.by_dim[12])), 12))
        own = 1 / np.exp(-0.5 * cdist(X, X, "sqeuclidean")).sum(1)
        assert (np.median(own) > 0.5) == most


def test_condensation_and_the_best_bandwidth_are_the_predicted_ones() -> None:
    critical, best = SIMULATED["condensation_threshold"]()
    assert critical.ratio == pytest.approx(1, abs=0.05)
    assert best.ratio == pytest.approx(1, abs=0.05)
    assert critical.point == (critical.measured**-0.5, 0.25)
    # The best bandwidth is in the condensed phase.
    assert best.predicted < critical.predicted**-0.5


def test_draws_of_digits_collapse_at_the_predicted_noise() -> None:
    from sklearn.datasets import load_digits

    digits = load_digits()
    assert SIMULATED["collapse_threshold"](digits.data, digits.target).ratio == pytest.approx(
        1, abs=0.05
    )
    # One Gaussian has more entropy than ten, and predicts more noise.
    apart = entropy_noise([digits.data[digits.target == k] for k in range(10)])
    assert apart < entropy_noise([digits.data])


def test_the_entropy_of_a_gaussian_gives_a_closed_form() -> None:
    rows = np.array([[3.0], [-3.0]])  # variance 9: ln(1 + 9/s^2) / 2 = ln 2
    assert entropy_noise([rows]) == pytest.approx(3**0.5)
