"""The share of stored patterns, and the basins, against the bandwidth."""

from __future__ import annotations

import math
from copy import deepcopy
from dataclasses import dataclass
from typing import Any, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.capacity.certificate import (
    Certificate,
    Iterate,
    Settings,
    as_memory,
    as_patterns,
    certify_memory,
    listed_neighbors,
)
from isthmus.capacity.contraction import Neighbors, nearest_neighbors
from isthmus.compose import Affine
from isthmus.dynamics.descent import descend
from isthmus.dynamics.modes import SAME_POINT, find_modes, ranked_fixed_points
from isthmus.energy import Energy
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.table_mixture import StudentMixture
from isthmus.validation import as_array, as_choice, as_count, as_number

FloatArray = NDArray[np.float64]
# Bisection ends when the bandwidth is known to this share.
SIGMA_TOLERANCE = 0.01
# Share of the patterns that the chosen bandwidth stores by default.
STORED = 0.95


@dataclass(frozen=True, eq=False)
class CapacityCurve:
    """The share of patterns that a memory stores at each of several bandwidths.

    The arrays (S,) are ascending bandwidths, the fractions of patterns stored and proved stored,
    and the median guaranteed radius of proved patterns, or 0.
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


@dataclass(frozen=True, eq=False)
class SigmaChoice:
    """The chosen bandwidth, the fraction of patterns that it stores, and the curve of all tried."""

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
    as_choice(iterate, "iterate", get_args(Iterate))
    grid, prepared = np.unique(_as_sigmas(sigmas)), _prepared(X)
    return CapacityCurve.of([_at(*prepared, sigma, iterate) for sigma in grid])


def choose_sigma(
    X: Any, stored: float | None = STORED, *, iterate: Iterate = "undecided"
) -> SigmaChoice:
    """Choose a bandwidth for storage, not for density: the largest that stores most patterns.

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
    if stored is not None:
        stored = as_number(stored, "stored", above=0, at_most=1)
    as_choice(iterate, "iterate", get_args(Iterate))
    patterns, neighbors = _prepared(X)
    if len(patterns) == 1:
        raise InvalidInputError("A single pattern is stored at every bandwidth.")
    apart = neighbors.distances[:, 0] > 0
    stored = STORED * float(apart.mean()) if stored is None else stored
    # Round up to whole patterns, and not beyond them because of the rounding of the product.
    stored = max(math.ceil(stored * len(patterns) - 1e-9), 1) / len(patterns)
    if apart.mean() < stored:
        raise InvalidInputError(
            f"Only {apart.mean():.1%} of the patterns have no exact duplicate, so no bandwidth "
            f"stores {stored:.1%}. Drop duplicates or ask for less."
        )
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
    memory = as_memory(X)
    if not isinstance(memory, GaussianKDE):
        raise InvalidInputError("Bandwidths are chosen for a Gaussian KDE: pass patterns (N, D).")
    patterns = memory.memories.detach().double().numpy()
    return patterns, nearest_neighbors(patterns, listed_neighbors(len(patterns)))


def _as_sigmas(sigmas: Any) -> FloatArray:
    grid = as_array(sigmas, "sigmas").reshape(-1)
    if grid.size == 0 or not (np.isfinite(grid) & (grid > 0)).all():
        raise InvalidInputError("sigmas must hold at least one number, all finite and above zero.")
    return grid


def _at(patterns: FloatArray, neighbors: Neighbors, sigma: float, iterate: Iterate) -> Certificate:
    return certify_memory(GaussianKDE(patterns, float(sigma)), Settings(iterate), neighbors)


@dataclass(frozen=True, eq=False)
class Basins:
    """The fixed points that patterns flow to on one memory.

    Attributes
    ----------
    sigma : float or None
        Bandwidth of the memory; None if it has no single one.
    fixed_points : ndarray (B, D)
        The modes of the density, in descending order of the sizes of their basins.
    labels, converged : ndarray (N,)
        Index of the fixed point that each pattern flows to, and True if it came to rest.
    """

    sigma: float | None
    fixed_points: FloatArray
    labels: NDArray[np.int64]
    converged: NDArray[np.bool_]

    @property
    def n_basins(self) -> int:
        """The number of basins B."""
        return len(self.fixed_points)

    def __str__(self) -> str:
        where = "" if self.sigma is None else f" at sigma {self.sigma:.4g}"
        counts = f"{self.n_basins} basins for {len(self.labels)} patterns{where}"
        return f"{counts}; the largest holds {np.bincount(self.labels).max()}"


def basins(
    X: Any,
    sigma: float | None = None,
    *,
    starts: Any = None,
    tol: float = 1e-6,
    max_steps: int = 5000,
) -> Basins:
    """Group patterns by the mode that updates of their memory take each to.

    Parameters
    ----------
    X : array, GaussianKDE, StudentMixture, or any other energy
        Patterns (N, D), whose Gaussian KDE of bandwidth `sigma` is taken; a memory of them with
        round kernels; or any other energy, with `starts`.
    sigma : float
        Default: 1.
    starts : array or Tensor (n, D), optional
        The points to group. Default: all patterns.
    tol : float
        A pattern rests when a step moves it by no more than this share of sigma, or of the standard
        deviations of the columns.

    Examples
    --------
    >>> from isthmus.capacity import basins
    >>> found = basins([[0.0], [0.5], [9.0]], sigma=1.0)
    >>> found.labels.tolist(), found.fixed_points.round(2).ravel().tolist()
    ([0, 0, 1], [0.25, 9.0])
    """
    tol, max_steps = as_number(tol, "tol", above=0), as_count(max_steps, "max_steps")
    memory: Any = X
    if not isinstance(X, Energy):
        memory = GaussianKDE(as_patterns(X), 1.0 if sigma is None else sigma)
    elif sigma is not None:
        raise InvalidInputError("sigma is for an array of patterns; this memory has its own.")
    if starts is None:
        if memory._in_shards or not isinstance(memory, GaussianKDE | StudentMixture):
            raise InvalidInputError("Pass starts, the points to group; the memory has none here.")
        starts = memory.means if isinstance(memory, StudentMixture) else memory.memories
    starts = memory.as_input(starts)
    if starts.ndim != 2 or not len(starts):
        raise ShapeError(f"starts must be points (n, {memory.dim}), not {tuple(starts.shape)}.")
    if isinstance(memory, GaussianKDE) or memory._in_shards:
        if not memory.is_round:
            raise UnsupportedOperationError("basins needs round kernels: one number for sigma.")
        found = find_modes(memory, starts, tol=tol, max_steps=max_steps)
        return Basins(float(memory.sigma), found.fixed_points, found.labels, found.converged)
    # Any other energy is descended in standard units of the columns.
    energy, starts = deepcopy(memory).double().requires_grad_(False), starts.double()
    deviation, centre = torch.std_mean(starts, dim=0, correction=0)
    unit = torch.where(deviation > 0, deviation, 1.0)
    standard = Affine(energy, scale=1 / unit, shift=-centre / unit)
    end = descend(standard, (starts - centre) / unit, tol=tol, max_steps=max_steps)
    labels, ends = ranked_fixed_points(end.state.numpy(), SAME_POINT)
    return Basins(None, ends * unit.numpy() + centre.numpy(), labels, end.resting.numpy())
