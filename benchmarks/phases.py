r"""Simulations that check the lines of the phase diagram.

    python benchmarks/phases.py

Each measures a threshold at several dimensions and extrapolates it linearly in 1/D. The lines are
derived in docs/capacity-proofs.md, section 15. Results are stored in
benchmarks/results/phases.json, from which the report draws them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from scipy.integrate import quad
from scipy.optimize import brentq, minimize_scalar
from scipy.spatial.distance import cdist
from scipy.special import betainc, betaincinv, betaln, logsumexp
from scipy.stats import ncx2
from sklearn.datasets import load_digits

from isthmus.capacity.atlas import binary_line, condensation_line, entropy_noise, storage_line

FloatArray = NDArray[np.float64]
RESULTS = Path(__file__).parent / "results" / "phases.json"
DIMS, LARGE_DIMS = (6, 8, 10, 12, 14, 16), (50, 100, 200, 400)
# Expected number of patterns, at the threshold, that are drawn one by one; their repetitions.
NEAREST, REPEATS = 300, 400
# Number of smallest distances drawn, and their repetitions; rows that are made noisy.
SMALLEST, DRAWS, ROWS = 1000, 1000, 2000


class Threshold(NamedTuple):
    """A line of theory and its measurements by dimension, at a sharpness or a load."""

    name: str
    predicted: float
    by_dim: dict[int, float]
    sharpness: float | None = None
    load: float | None = None

    @property
    def measured(self) -> float:
        """The limit of the measurements, by a line in 1/D, or the only one."""
        inverse, values = 1 / np.array(list(self.by_dim), dtype=float), list(self.by_dim.values())
        return values[0] if len(values) == 1 else float(np.polyfit(inverse, values, 1)[1])

    @property
    def ratio(self) -> float:
        """Measured over predicted."""
        return self.measured / self.predicted

    @property
    def point(self) -> tuple[float, float] | None:
        """Its place in the phase diagram: sigma sqrt(D) / M, and ln N / D."""
        if self.sharpness is not None:
            return self.sharpness**-0.5, self.measured
        return None if self.load is None else (self.measured**-0.5, self.load)


def storage_threshold(
    sharpness: float, dims: Sequence[int] = DIMS, *, repeats: int = REPEATS, seed: int = 0
) -> Threshold:
    r"""Measure ln N / D at which half of the random patterns on a sphere keep half their weight.

    `sharpness` is :math:`\lambda = M^2/(\sigma^2 D)`. Patterns are added until they outweigh the
    own one, with cosine t = 1 - 2v at :math:`e^{\lambda D (t - 1)}` each, where v has a beta
    distribution. Near patterns are drawn; the many far ones enter by their mean weight.
    """
    rng = np.random.default_rng(seed)
    by_dim = {dim: _log_crowd(sharpness, dim, repeats, rng) / dim for dim in dims}
    name = f"stored on a sphere, lambda = {sharpness:g}"
    return Threshold(name, float(storage_line(sharpness**-0.5)), by_dim, sharpness)


def _log_crowd(sharpness: float, dim: int, repeats: int, rng: np.random.Generator) -> float:
    """Return the log of the median number of patterns that outweigh one."""
    b, rate = 0.5 * (dim - 1), 2 * sharpness * dim

    def term(v: float) -> float:
        return math.exp(-rate * v + (b - 1) * math.log(v * (1 - v)) - betaln(b, b))

    def mean_weight(low: float) -> float:
        halves = ((low, 0.5), (0.5, 1.0)) if low < 0.5 else ((0.5, 1.0),)
        peak = 2 * b / rate
        return sum(quad(term, *each, limit=200, points=[min(each[1], peak)])[0] for each in halves)

    near = min(NEAREST * mean_weight(0.0), 0.5)  # 1 / mean_weight(0) patterns balance the own one
    edge = float(betaincinv(b, b, near))
    far = mean_weight(edge)
    # Drawn by interpolating the distribution function; 4 times as many as needed.
    table = np.geomspace(edge * 1e-3, edge, 4000)
    arrivals = np.cumsum(rng.exponential(1 / near, (repeats, 4 * NEAREST)), 1)
    drawn = np.interp(near * rng.random(arrivals.shape), betainc(b, b, table), table)
    nearby = np.cumsum(np.exp(-rate * drawn), 1)
    rows, crossing = np.arange(repeats), np.argmax(nearby + far * arrivals >= 1, 1)
    before = np.where(crossing > 0, nearby[rows, crossing - 1], 0.0)
    # Far patterns may fill up between two arrivals.
    return math.log(np.median(np.minimum(arrivals[rows, crossing], (1 - before) / far)))


def binary_threshold(
    sharpness: float, dims: Sequence[int] = DIMS, *, repeats: int = REPEATS, seed: int = 0
) -> Threshold:
    """Measure the same for random corners of a cube, all of which are drawn."""
    rng, by_dim = np.random.default_rng(seed), {}
    for dim in dims:
        most, needed = 4 * math.ceil(2**dim / (1 + math.exp(-2 * sharpness)) ** dim), []
        for _ in range(repeats):
            weight = np.cumsum(np.exp(-2 * sharpness * rng.binomial(dim, 0.5, most)))
            needed.append(np.searchsorted(weight, 1) + 1.0 if weight[-1] >= 1 else math.inf)
        by_dim[dim] = math.log(np.median(needed)) / dim
    name = f"stored, binary, lambda = {sharpness:g}"
    return Threshold(name, float(binary_line(sharpness**-0.5)), by_dim, sharpness)


def condensation_threshold(load: float = 0.25, seed: int = 0) -> tuple[Threshold, Threshold]:
    r"""Measure where few Gaussian patterns dominate at a new one, and the best bandwidth.

    `load` is ln N / D. With :math:`p_j \propto e^{-s r_j/2}`, :math:`\mathbb E \sum_j p_j^2` tends
    to :math:`1 - s_c/s` beyond :math:`s_c`, which is measured at twice the predicted one. The
    bandwidth at which new patterns are most likely has :math:`\sigma^2 = r_{min}/D`. Of all
    squared distances :math:`r_j`, of a noncentral chi-squared law, the smallest are drawn.
    """
    critical = brentq(lambda s: float(condensation_line(s**-0.5)) - load, 1e-3, 1e4)
    edge = 1 / (1 + critical) + 1 / (1 + critical) ** 2
    rng = np.random.default_rng(seed)
    at, best = {}, {}
    for dim in LARGE_DIMS:
        table = dim * edge * np.linspace(0.3, 1.6, 4000)
        log_below = np.logaddexp.accumulate(ncx2.logpdf(table, dim, dim))
        ranks = np.cumsum(rng.exponential(size=(DRAWS, SMALLEST)), 1)
        log_ranks = np.log(ranks) - load * dim - math.log(table[1] - table[0])
        squares = np.interp(log_ranks, log_below, table)
        weights = np.exp(-critical * (squares - squares[:, :1]))
        shares = np.square(weights).sum(1) / weights.sum(1) ** 2
        at[dim] = 2 * critical * (1 - float(shares.mean()))

        def loss(log_sigma: float, dim: int = dim, squares: FloatArray = squares) -> float:
            logits = -0.5 * squares * math.exp(-2 * log_sigma)
            return dim * log_sigma - float(np.mean(logsumexp(logits, axis=1)))

        best[dim] = math.exp(minimize_scalar(loss, bounds=(-2, 1), method="bounded").x)
    return (
        Threshold(f"condensation, ln N / D = {load:g}", critical, at, load=load),
        Threshold(f"best sigma, ln N / D = {load:g}", edge**0.5, best),
    )


def collapse_threshold(X: FloatArray, y: NDArray[np.int64], *, seed: int = 0) -> Threshold:
    """Measure the noise at which draws of an annealed memory commit to a row.

    There the mean log-odds of a noisy row, between its own row and all others, are even. The
    prediction is :func:`entropy_noise` of Gaussian classes.
    """
    rng = np.random.default_rng(seed)
    rows, noise = rng.integers(len(X), size=ROWS), rng.standard_normal((ROWS, X.shape[1]))

    def log_odds(log_sigma: float) -> float:
        sigma = math.exp(log_sigma)
        logits = cdist(X[rows] + sigma * noise, X, "sqeuclidean") / (-2 * sigma**2)
        own = logits[np.arange(ROWS), rows].copy()
        logits[np.arange(ROWS), rows] = -np.inf
        return float(np.mean(logsumexp(logits, axis=1) - own))

    predicted = entropy_noise([X[y == label] for label in np.unique(y)])
    centre = math.log(predicted)
    measured = math.exp(brentq(log_odds, centre - 1, centre + 1, xtol=1e-3))
    return Threshold("collapse on digits, sigma", predicted, {X.shape[1]: measured})


def all_thresholds(seed: int = 0) -> list[Threshold]:
    """Return every threshold of the table in the docs."""
    digits = load_digits()
    return [
        *(storage_threshold(sharpness, seed=seed) for sharpness in (1.0, 2.0, 4.0)),
        *(binary_threshold(sharpness, seed=seed) for sharpness in (0.5, 1.0)),
        *condensation_threshold(seed=seed),
        collapse_threshold(digits.data, digits.target, seed=seed),
    ]


if __name__ == "__main__":
    found = all_thresholds()
    record = [
        {"name": t.name, "predicted": t.predicted, "measured": t.measured, "point": t.point}
        for t in found
    ]
    RESULTS.write_text(json.dumps({"thresholds": record}, indent=1) + "\n")
    print(f"{'threshold':36} predicted  measured  ratio  by dimension")
    for each in found:
        dims = "  ".join(f"{dim}: {value:.3f}" for dim, value in each.by_dim.items())
        numbers = f"{each.predicted:9.4f} {each.measured:9.4f} {each.ratio:6.3f}"
        print(f"{each.name:36} {numbers}  {dims}")
