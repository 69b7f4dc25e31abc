"""The share of stored patterns against the bandwidth, and the choice of a bandwidth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.capacity.certificate import (
    ALL_PAIRS,
    Certificate,
    Iterate,
    as_memory,
    certify_memory,
)
from isthmus.capacity.contraction import Neighbors, nearest_neighbors
from isthmus.errors import InvalidInputError
from isthmus.memories.kde import GaussianKDE

FloatArray = NDArray[np.float64]
# Bisection ends when the bandwidth is known to this share.
SIGMA_TOLERANCE = 0.01
# Share of the patterns that the chosen bandwidth stores by default.
STORED = 0.95


@dataclass(frozen=True)
class CapacityCurve:
    """The share of patterns that a memory stores at each of several bandwidths.

    Attributes
    ----------
    sigmas : ndarray (S,), ascending
    stored : ndarray (S,)
        Fraction of patterns stored.
    proved : ndarray (S,)
        Fraction of patterns that the bound proves stored.
    radius : ndarray (S,)
        Median guaranteed radius of proved patterns, or 0.
    """

    sigmas: FloatArray
    stored: FloatArray
    proved: FloatArray
    radius: FloatArray

    @classmethod
    def of(cls, certificates: list[Certificate]) -> CapacityCurve:
        """Collect certificates, in ascending order of their bandwidths."""
        points = []
        for each in sorted(certificates, key=lambda each: each.sigma):
            proved = each.decided == "proved"
            radius = np.median(each.guaranteed_radius[proved]) if proved.any() else 0.0
            points.append((each.sigma, each.fraction_stored, proved.mean(), radius))
        return cls(*np.array(points, dtype=float).T)

    def __str__(self) -> str:
        rows = zip(self.sigmas, self.stored, self.proved, self.radius, strict=True)
        lines = [f"{s:8.4g}  {a:6.1%}  {b:6.1%}  {r:6.3g}" for s, a, b, r in rows]
        return "\n".join(["   sigma  stored  proved  radius", *lines])


@dataclass(frozen=True)
class SigmaChoice:
    """The chosen bandwidth, and the curve of all bandwidths tried.

    Attributes
    ----------
    sigma : float
    stored : float
        The fraction of patterns that it stores.
    curve : CapacityCurve
    """

    sigma: float
    stored: float
    curve: CapacityCurve

    def __float__(self) -> float:
        return self.sigma

    def __str__(self) -> str:
        return f"sigma {self.sigma:.4g} stores {self.stored:.1%} of the patterns\n{self.curve}"


def capacity_curve(X: Any, sigmas: Any, *, iterate: Iterate = "undecided") -> CapacityCurve:
    """Compute the share of rows of X that a Gaussian KDE of them stores at each bandwidth.

    Parameters
    ----------
    X : array (N, D)
    sigmas : array (S,)
    iterate : {"undecided", "none"}
        "none" counts only what the bound proves, in a fraction of the time.

    Examples
    --------
    >>> from isthmus.capacity import capacity_curve
    >>> print(capacity_curve([[0.0], [4.0], [9.0]], [0.5, 1.0, 3.0]))
       sigma  stored  proved  radius
         0.5  100.0%  100.0%    1.74
           1  100.0%  100.0%    1.31
           3    0.0%    0.0%       0
    """
    grid = np.unique(np.asarray(sigmas, dtype=float))
    if grid.size == 0 or not (np.isfinite(grid) & (grid > 0)).all():
        raise InvalidInputError("sigmas must hold at least one number, all finite and above zero.")
    prepared = _prepared(X)
    return CapacityCurve.of([_at(*prepared, sigma, iterate) for sigma in grid])


def choose_sigma(
    X: Any, stored: float | None = STORED, *, iterate: Iterate = "undecided"
) -> SigmaChoice:
    """Choose a bandwidth for storage, not for density: the largest that stores most patterns.

    For a density estimate, use :func:`isthmus.memories.bandwidth.leave_one_out`.

    Parameters
    ----------
    X : array (N, D)
    stored : float in (0, 1] or None
        None is 95 % of the patterns that have no exact duplicate.
    iterate : {"undecided", "none"}
        As in :func:`capacity_curve`.

    Examples
    --------
    >>> from isthmus.capacity import choose_sigma
    >>> float(choose_sigma([[-1.0], [1.0]], stored=1.0)) < 1.0  # they merge at sigma = 1
    True
    """
    if stored is not None and not 0 < stored <= 1:
        raise InvalidInputError(f"stored must be in (0, 1], not {stored!r}.")
    patterns, neighbors = _prepared(X)
    apart = neighbors.distances[:, 0] > 0 if neighbors.distances.size else np.ones(1, bool)
    if not apart.any():
        raise InvalidInputError(
            "Every pattern has an exact duplicate, so no bandwidth stores one of its own. Drop "
            "duplicates first, or give sigma to see what they share."
        )
    if stored is None:
        stored = STORED * float(apart.mean())
    # Round up to whole patterns, and not beyond them because of the rounding of the product.
    stored = math.ceil(stored * len(patterns) - 1e-9) / len(patterns)
    if apart.mean() < stored:
        raise InvalidInputError(
            f"Only {apart.mean():.1%} of the patterns have no exact duplicate, so no bandwidth "
            f"stores {stored:.1%}. Drop duplicates or ask for less."
        )
    if len(patterns) == 1:
        raise InvalidInputError("A single pattern is stored at every bandwidth.")
    tried: list[Certificate] = []

    def enough(sigma: float) -> bool:
        tried.append(_at(patterns, neighbors, sigma, iterate))
        return tried[-1].fraction_stored >= stored

    # Two patterns at distance d share a fixed point from sigma = d / 2 on: a first guess.
    nearest = np.sort(neighbors.distances[apart, 0])
    low = high = 0.5 * float(np.quantile(nearest, 1 - min(stored, 0.999)))
    while not enough(low):
        low, high = low / 2, low
    while high <= low or enough(high):
        low, high = (low, 2 * low) if high <= low else (high, 2 * high)
    while high / low > 1 + SIGMA_TOLERANCE:
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if enough(middle) else (low, middle)
    best = max((each for each in tried if each.fraction_stored >= stored), key=lambda c: c.sigma)
    return SigmaChoice(best.sigma, best.fraction_stored, CapacityCurve.of(tried))


def _prepared(X: Any) -> tuple[FloatArray, Neighbors]:
    memory = as_memory(X, 1.0)
    if not isinstance(memory, GaussianKDE):
        raise InvalidInputError("Bandwidths are chosen for a Gaussian KDE: pass patterns (N, D).")
    patterns = memory.memories.detach().double().numpy()
    k = len(patterns) - 1 if len(patterns) <= ALL_PAIRS else 128
    return patterns, nearest_neighbors(patterns, k)


def _at(patterns: FloatArray, neighbors: Neighbors, sigma: float, iterate: Iterate) -> Certificate:
    memory = GaussianKDE(patterns, float(sigma))
    return certify_memory(memory, neighbors, neighbors.distances.shape[1], iterate)
