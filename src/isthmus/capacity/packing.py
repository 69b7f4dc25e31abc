"""Patterns placed on a sphere, at random or spread apart, and how many of them are stored."""

from __future__ import annotations

import math
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray

from isthmus.capacity.arguments import as_whole
from isthmus.capacity.certificate import certify
from isthmus.errors import InvalidInputError

__all__ = ["Placement", "measured_capacity", "spread_on_sphere"]

FloatArray = NDArray[np.float64]
Placement = Literal["random", "spread"]
# The repulsion falls with this power of the squared distance, first and last.
FIRST_POWER, LAST_POWER = 2.0, 40.0
# A count is known to this share when the search for it ends.
COUNT_TOLERANCE = 0.05
# The share of random patterns is averaged over draws of so many in all.
DRAWN = 500


def spread_on_sphere(count: int, dim: int, seed: int = 0, *, steps: int = 300) -> FloatArray:
    """Unit vectors that repel each other until they are about as far apart as they can be.

    Parameters
    ----------
    count, dim : int
    seed : int
        Of the random vectors that they start from.
    steps : int
        With each, the repulsion counts the nearest more and everyone moves less.

    Returns
    -------
    ndarray (count, dim)

    Examples
    --------
    >>> from isthmus.capacity import spread_on_sphere
    >>> points = spread_on_sphere(6, 3)  # an octahedron: everyone sees four at a right angle
    >>> bool((abs(points @ points.T) < 0.01).sum() == 24)
    True
    """
    count, dim = as_whole(count, "count", 2), as_whole(dim, "dim", 2)
    points = _random_directions(count, dim, seed)
    for share in np.linspace(0, 1, steps):
        power = FIRST_POWER * (LAST_POWER / FIRST_POWER) ** share
        squared = np.maximum(2 - 2 * points @ points.T, 1e-12)
        np.fill_diagonal(squared, np.inf)
        nearest = squared.min(1)
        weights = (nearest[:, None] / squared) ** power
        force = weights.sum(1, keepdims=True) * points - weights @ points
        force -= (force * points).sum(1, keepdims=True) * points
        force /= np.linalg.norm(force, axis=1).max() + 1e-300
        points = points + 0.3 * (0.01**share) * np.sqrt(nearest.min()) * force
        points /= np.linalg.norm(points, axis=1, keepdims=True)
    return points


def measured_capacity(
    dim: int,
    share: float = 0.95,
    placement: Placement = "random",
    *,
    seed: int = 0,
    most: int = 512,
) -> int:
    """Find how many patterns may lie on a sphere so that a given share of them is stored.

    By bisection, up to 5 %, on the sphere of radius 2 sigma sqrt(D - 1), as in the paper. The
    share of random patterns is a mean over several draws.

    Parameters
    ----------
    dim : int
    share : float in (0, 1]
    placement : {"random", "spread"}
        Drawn at random, or spread by :func:`spread_on_sphere`.
    most : int
        No more than so many are tried, and that many returned if they are stored.

    Examples
    --------
    >>> from isthmus.capacity import measured_capacity
    >>> measured_capacity(2, placement="random"), measured_capacity(2, placement="spread")
    (1, 8)
    """
    if placement not in get_args(Placement):
        raise InvalidInputError(f"placement must be 'random' or 'spread', not {placement!r}.")
    if not 0 < share <= 1:
        raise InvalidInputError(f"share must be in (0, 1], not {share!r}.")
    dim, most = as_whole(dim, "dim", 2), as_whole(most, "most", 2)
    place = spread_on_sphere if placement == "spread" else _random_directions

    def enough(count: int) -> bool:
        draws = 1 if placement == "spread" else -(-DRAWN // count)
        sets = [2 * math.sqrt(dim - 1) * place(count, dim, seed + draw) for draw in range(draws)]
        found = [certify(points, iterate="undecided", tol=1e-5) for points in sets]
        return float(np.mean([each.fraction_stored for each in found])) >= share

    low, high = 1, 2
    while enough(high):
        if high == most:
            return most
        low, high = high, min(2 * high, most)
    while high - low > max(1, COUNT_TOLERANCE * low):
        middle = (low + high) // 2
        low, high = (middle, high) if enough(middle) else (low, middle)
    return low


def _random_directions(count: int, dim: int, seed: int) -> FloatArray:
    points = np.random.default_rng(seed).standard_normal((count, dim))
    return points / np.linalg.norm(points, axis=1, keepdims=True)
