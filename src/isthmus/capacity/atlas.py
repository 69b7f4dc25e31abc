"""phases: what a memory of given data does at each bandwidth."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.optimize import brentq

from isthmus.bandwidth import leave_one_out
from isthmus.capacity.bandwidths import STORED, _as_sigmas, _at, _prepared
from isthmus.capacity.certificate import ALL_PAIRS
from isthmus.capacity.contraction import Neighbors, nearest_neighbors
from isthmus.dynamics.modes import find_modes
from isthmus.errors import InvalidInputError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.printing import aligned, counted, definitions
from isthmus.validation import as_count, as_seed

FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]
# The phases in the order of growing bandwidths, with their criteria.
CRITERIA = {
    "stores": f"{STORED:.0%} of the rows have a stable fixed point of their own",
    "condenses": "one row has more than half of the weight at a typical draw",
    "blends": "none has, and a typical basin holds fewer than sqrt(N) rows",
    "generalises": "a typical basin holds at least sqrt(N) rows, and there are several",
    "forgets": "all rows flow to one fixed point",
}
# Draws of the memory at which weights are measured, for each bandwidth.
DRAWS = 400


@dataclass(frozen=True, eq=False)
class Phases:
    """The phases of a memory of N rows over a range of bandwidths.

    ``isthmus.figures.phase_plot(phases)`` draws them.

    Attributes
    ----------
    sigmas : ndarray (S,), ascending
    phase : ndarray (S,) of str
        "stores", "condenses", "blends", "generalises" or "forgets".
    stored, proved : ndarray (S,)
        Share of rows stored, and of those for which it is proved (:func:`certify`).
    largest_weight : ndarray (S,)
        Median, over draws of the memory, of the largest weight of a row.
    n_basins, basin_size : ndarray (S,)
        Number of fixed points that rows flow to, and the median size of the basin of a row.
    rows, dim : int
    radius : float
        Root mean square distance of rows from their mean, M in the lines of theory.
    likelihood_sigma : float
        The bandwidth at which each row is most likely given the others.
    collapse_sigma : float
        Predicted noise at which draws of an annealed memory collapse to stored rows, if the data
        are Gaussian; for others it is an upper estimate.
    """

    sigmas: FloatArray
    phase: NDArray[np.str_]
    stored: FloatArray
    proved: FloatArray
    largest_weight: FloatArray
    n_basins: NDArray[np.int64]
    basin_size: FloatArray
    rows: int
    dim: int
    radius: float
    likelihood_sigma: float
    collapse_sigma: float

    @property
    def regions(self) -> list[tuple[str, float, float]]:
        """The phases met, each with its first and last bandwidth, in ascending order."""
        starts = np.flatnonzero(np.r_[True, self.phase[1:] != self.phase[:-1]])
        ends = np.r_[starts[1:], len(self.phase)] - 1
        names, low, high = self.phase[starts], self.sigmas[starts], self.sigmas[ends]
        return list(zip(names.tolist(), low.tolist(), high.tolist(), strict=True))

    def to_dict(self) -> dict[str, Any]:
        """Return everything as plain numbers and words, for JSON."""
        plain = {
            name: value.tolist() if isinstance(value, np.ndarray) else value
            for name, value in vars(self).items()
        }
        regions = [dict(zip(("phase", "from", "to"), each, strict=True)) for each in self.regions]
        return {**plain, "regions": regions, "criteria": CRITERIA}

    def __str__(self) -> str:
        header = ["sigma", "phase", "stored", "proved", "largest weight", "basins", "basin size"]
        formats = ("{:.4g}", "{}", "{:.1%}", "{:.1%}", "{:.3f}", "{:,}", "{:,.0f}")
        columns = list(vars(self).values())[: len(header)]
        table = [
            [form.format(value) for form, value in zip(formats, row, strict=True)]
            for row in zip(*columns, strict=True)
        ]
        facts = {name: text for name, text in CRITERIA.items() if name in self.phase}
        closing = (
            f"Rows are most likely given the others at sigma {self.likelihood_sigma:.4g}; draws "
            f"are predicted to collapse to rows below {self.collapse_sigma:.4g}."
        )
        opening = f"{self.rows:,} rows in {counted(self.dim, 'dimension')}"
        lines = [opening, "", *aligned([header, *table], left=(1,)), "", *definitions(facts)]
        return "\n".join([*lines, "", closing])

    __repr__ = __str__


def phases(X: Any, sigmas: Any = None, *, n_sigmas: int = 16, seed: int = 0) -> Phases:
    """Find what a Gaussian KDE of the rows of X does at each bandwidth.

    It *stores* if 95 % of the rows are stored; else *forgets* if all flow to one fixed point; else
    *condenses* if one row has more than half of the weight at a typical draw of the memory; else
    *generalises* if a typical basin holds at least sqrt(N) rows; else it *blends*.

    Parameters
    ----------
    X : array (N, D)
        At least two different rows. Of more than 2,048, a random subset is taken.
    sigmas : array (S,), optional
        Bandwidths. By default `n_sigmas`, from a quarter of the small distances between neighbours,
        or the likeliest bandwidth, to 1.5 times the largest standard deviation in any direction.
    n_sigmas, seed : int

    Examples
    --------
    >>> import numpy as np
    >>> from isthmus.capacity import phases
    >>> X = np.random.default_rng(0).normal([[0], [20]], 1, (2, 200)).reshape(-1, 1)
    >>> for phase, low, high in phases(X, [1e-5, 1, 20]).regions:
    ...     print(phase, low, high)
    stores 1e-05 1e-05
    generalises 1.0 1.0
    forgets 20.0 20.0
    """
    patterns, neighbors = _prepared(X)
    rng = np.random.default_rng(as_seed(seed))
    if len(patterns) > ALL_PAIRS:
        patterns = patterns[np.sort(rng.choice(len(patterns), ALL_PAIRS, replace=False))]
        neighbors = nearest_neighbors(patterns, ALL_PAIRS)
    apart = neighbors.distances.min(1, initial=np.inf) > 0
    if len(patterns) == 1 or not apart.any():
        raise InvalidInputError(
            "X must have at least two different rows that are not copies of others."
        )
    centred = patterns - patterns.mean(0)
    likeliest = leave_one_out(patterns)
    if sigmas is None:
        smallest = min(0.25 * float(np.quantile(neighbors.distances[apart, 0], 0.05)), likeliest)
        # Two far clusters merge at the deviation along the line between them.
        largest = 1.5 * float(np.linalg.norm(centred, 2)) / math.sqrt(len(patterns))
        count = as_count(n_sigmas, "n_sigmas")
        grid = np.geomspace(0.95 * smallest, max(largest, 2 * smallest), count)
    else:
        grid = np.unique(_as_sigmas(sigmas))
    drawn = centred[rng.integers(len(patterns), size=DRAWS)]
    noise = rng.standard_normal(drawn.shape)
    points = [_measures(centred, neighbors, apart, s, drawn + s * noise) for s in grid]
    return Phases(
        sigmas=grid,
        rows=len(patterns),
        dim=patterns.shape[1],
        radius=float(np.sqrt(np.square(centred).sum(1).mean())),
        likelihood_sigma=likeliest,
        collapse_sigma=entropy_noise([centred]),
        **{name: np.array([point[name] for point in points]) for name in points[0]},
    )


def _measures(
    patterns: FloatArray, neighbors: Neighbors, apart: BoolArray, sigma: float, draws: FloatArray
) -> dict[str, Any]:
    """Measure a memory; shares of stored rows are of those without an exact duplicate."""
    memory = GaussianKDE(patterns, float(sigma))
    stored = proved = float((_at(patterns, neighbors, sigma, "none").stored)[apart].mean())
    labels = find_modes(memory, torch.from_numpy(patterns), tol=1e-5).labels
    sizes = np.bincount(labels)
    size = float(np.median(sizes[labels]))
    # A stored row shares its basin with no other.
    if proved < 1 and (sizes[labels] == 1).any():
        stored = float(_at(patterns, neighbors, sigma, "undecided").stored[apart].mean())
    largest = float(memory.responsibilities(torch.from_numpy(draws)).amax(1).median())
    if stored >= STORED:
        phase = "stores"
    elif len(sizes) == 1:
        phase = "forgets"
    elif largest > 0.5:
        phase = "condenses"
    else:
        phase = "generalises" if size >= math.sqrt(len(patterns)) else "blends"
    shares = {"stored": stored, "proved": proved, "largest_weight": largest}
    return {"phase": phase, **shares, "n_basins": len(sizes), "basin_size": size}


def entropy_noise(groups: Sequence[FloatArray]) -> float:
    r"""Return the noise at which N noisy rows have the entropy of N separate Gaussians.

    .. math:: \sum_k \frac{n_k}N \Big[\tfrac12\sum_i \ln\big(1 + \lambda_{ki}/\sigma^2\big)
              - \ln n_k\Big] = 0

    for groups of :math:`n_k` rows with covariances of eigenvalues :math:`\lambda_{ki}`, taken to be
    Gaussian and apart.
    """
    total = sum(map(len, groups))
    spectra = [
        (len(x) / total, np.square(np.linalg.svd(x - x.mean(0), compute_uv=False)) / len(x))
        for x in groups
    ]
    entropy = sum(len(rows) / total * math.log(len(rows)) for rows in groups)

    def excess(log_noise: float) -> float:
        scale = math.exp(-2 * log_noise)
        return sum(w * 0.5 * float(np.log1p(scale * each).sum()) for w, each in spectra) - entropy

    middle = 0.5 * math.log(max(float(each.max()) for _, each in spectra))
    return math.exp(brentq(excess, middle - 60, middle + 20))


def storage_line(share: Any) -> FloatArray:
    r"""Return ln N / D at which random patterns on a sphere cease to be stored.

    It is :math:`\min_t[\lambda(1 - t) - \ln(1 - t^2) / 2]` with :math:`\lambda = M^2 / \sigma^2 D`
    (Lucibello and Mézard, 2024). `share` is :math:`\sigma\sqrt D / M`, as in all lines.
    """
    z = 2 / np.square(np.asarray(share, dtype=float))
    root = np.hypot(1.0, z)
    line: FloatArray = 0.5 * (1 - 1 / (z + root) + np.log1p(0.5 * z * z / (1 + root)))
    return line


def binary_line(share: Any) -> FloatArray:
    r"""Return ln N / D at which random corners of a cube cease to be stored.

    It is :math:`\lambda - \ln\cosh\lambda` with :math:`\lambda = M^2 / \sigma^2 D`, at most
    :math:`\ln 2`.
    """
    line: FloatArray = math.log(2) - np.log1p(
        np.exp(-2 / np.square(np.asarray(share, dtype=float)))
    )
    return line


def condensation_line(share: Any) -> FloatArray:
    r"""Return ln N / D below which few of N Gaussian patterns dominate the density of a new one.

    It is :math:`[\ln(1 + s) - s / (1 + s)^2] / 2` with :math:`s = M^2 / \sigma^2 D` (Biroli and
    Mézard, 2024).
    """
    s = 1 / np.square(np.asarray(share, dtype=float))
    line: FloatArray = 0.5 * (np.log1p(s) - s / (1 + s) ** 2)
    return line


def central_limit_line(share: Any) -> FloatArray:
    r"""Return ln N / D above which the density of a new Gaussian pattern obeys a central limit.

    It is :math:`\psi(2s) - 2\psi(s)` with :math:`\psi(s) = -[\ln(1 + s) + s / (1 + s)] / 2`.
    Between this line and :func:`condensation_line` fluctuations follow a stable law.
    """
    s = 1 / np.square(np.asarray(share, dtype=float))
    line: FloatArray = np.log1p(s) - 0.5 * np.log1p(2 * s) + s / (1 + s) - s / (1 + 2 * s)
    return line
