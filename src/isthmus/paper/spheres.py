"""Arrangements of points on a sphere, and how many of them are stored."""

from __future__ import annotations

import math
from itertools import combinations, permutations, product
from typing import Literal, get_args

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import minimize

from isthmus.capacity.certificate import certify
from isthmus.validation import as_choice, as_count, as_number, as_seed

FloatArray = NDArray[np.float64]
Placement = Literal["random", "spread"]
# Powers of the squared distance with which the repulsion falls, in turn.
POWERS = (2.0, 8.0, 32.0, 80.0)
# Relative tolerance of a count.
COUNT_TOLERANCE = 0.05
# Number of random patterns over which the share stored is averaged, and the most draws of them.
DRAWN, DRAWS = 500, 60


def regular_polygon(count: int) -> FloatArray:
    """Return unit vectors (count, 2) at equal angles."""
    count = as_count(count, "count", at_least=2)
    angles = 2 * math.pi * np.arange(count) / count
    return np.stack([np.cos(angles), np.sin(angles)], 1)


def cell_600() -> FloatArray:
    """Return the vertices of the 600-cell, unit vectors (120, 4) at least 36 degrees apart."""
    golden = (1 + math.sqrt(5)) / 2
    orders = [list(order) for order in permutations(range(4))]
    even = [each for each in orders if sum(a > b for a, b in combinations(each, 2)) % 2 == 0]
    signs = np.array(list(product((1, -1), repeat=3)))
    corners = np.column_stack([signs, np.zeros(8)]) * (golden, 1, 1 / golden, 0)
    axes = np.concatenate([2 * np.eye(4), -2 * np.eye(4)])
    cube = np.array(list(product((1.0, -1.0), repeat=4)))
    others = np.array([corner[order] for corner in corners for order in even])
    return np.concatenate([axes, cube, others]) / 2


def e8_shell() -> FloatArray:
    r"""Return the primitive vectors of norm 8 of the E8 lattice, as unit vectors (17280, 8).

    The lattice has all coordinates whole or all half-odd, with an even sum. Primitive vectors
    are not twice another. Neighbours are :math:`\arccos(7/8) = 29` degrees apart.
    """
    found = []
    for values in (range(-4, 5, 2), range(-5, 6, 2)):  # of twice the coordinates
        twice = np.stack(np.meshgrid(*[np.array(values, dtype=np.int16)] * 8)).reshape(8, -1).T
        found.append(twice[((twice**2).sum(1) == 32) & (twice.sum(1) % 4 == 0)])
    whole, others = found
    halved = whole // 2
    imprimitive = (halved % 2 == halved[:, :1] % 2).all(1) & (halved.sum(1) % 4 == 0)
    return np.concatenate([whole[~imprimitive], others]) / math.sqrt(32)


def spread_on_sphere(count: int, dim: int, seed: int = 0, *, steps: int = 300) -> FloatArray:
    r"""Return unit vectors (count, dim) that have repelled each other until they are spread out.

    They minimise :math:`\frac1p \log \sum_{i \ne j} \lVert x_i - x_j \rVert^{-2p}` for growing
    powers p, which approaches the largest smallest distance, by `steps` iterations of L-BFGS from
    random vectors.

    Examples
    --------
    >>> from isthmus.capacity import spread_on_sphere
    >>> points = spread_on_sphere(6, 3)  # an octahedron: each has four at a right angle
    >>> bool((abs(points @ points.T) < 0.01).sum() == 24)
    True
    """
    count, dim = as_count(count, "count", at_least=2), as_count(dim, "dim", at_least=2)
    seed, steps = as_seed(seed), as_count(steps, "steps")

    def repulsion(flat: FloatArray, power: float) -> tuple[float, FloatArray]:
        norms = np.linalg.norm(flat.reshape(count, dim), axis=1, keepdims=True)
        points = flat.reshape(count, dim) / norms
        squared = np.maximum(2 - 2 * points @ points.T, 1e-12)
        np.fill_diagonal(squared, np.inf)
        nearest = squared.min()
        terms = (nearest / squared) ** power
        gradient = 4 * (terms / squared) @ points / terms.sum()
        gradient -= (gradient * points).sum(1, keepdims=True) * points
        return np.log(terms.sum()) / power - np.log(nearest), (gradient / norms).ravel()

    options = {"maxiter": -(-steps // len(POWERS)), "ftol": 1e-15, "gtol": 1e-10}
    flat = _random_directions(count, dim, seed).ravel()
    for power in POWERS:
        flat = minimize(repulsion, flat, power, "L-BFGS-B", jac=True, options=options).x
    return _normalised(flat.reshape(count, dim))


class MeasuredCapacity(int):
    """The number N of patterns of a set that was found stored, with the set.

    Attributes
    ----------
    patterns : ndarray (N, D)
        The patterns, for sigma = 1; of those drawn at random, the first draw of this number.
    """

    patterns: FloatArray


def measured_capacity(
    dim: int,
    share: float = 0.95,
    placement: Placement = "random",
    *,
    seed: int = 0,
    most: int = 512,
) -> MeasuredCapacity:
    """Find the largest number of patterns on a sphere of which a given share is stored.

    The sphere has radius 2 sigma sqrt(D - 1), as in the paper. For random patterns, whose share is
    a mean over several draws and falls with their number, bisection finds the number up to 5 %.
    For spread patterns (:func:`spread_on_sphere`; regular polygons in two dimensions), whose share
    is not monotone, all numbers are tried (above 40, every 5 %) up to 1.5 times the largest that is
    stored, or to `most`. Sets are checked by :func:`certify`, which does not decide those whose
    fixed points attract too weakly for float64, such as polygons of more than 13 corners.

    Examples
    --------
    >>> from isthmus.capacity import certify, measured_capacity
    >>> found = measured_capacity(2, placement="spread")
    >>> found, found.patterns.shape, certify(found.patterns).fraction_stored
    (13, (13, 2), 1.0)
    """
    spread = as_choice(placement, "placement", get_args(Placement)) == "spread"
    share = as_number(share, "share", above=0, at_most=1)
    dim, most = as_count(dim, "dim", at_least=2), as_count(most, "most", at_least=2)
    seed, radius = as_seed(seed), 2 * math.sqrt(dim - 1)

    def placed(count: int, draw: int) -> FloatArray:
        if not spread:
            return radius * _random_directions(count, dim, seed + draw)
        return radius * (regular_polygon(count) if dim == 2 else spread_on_sphere(count, dim, seed))

    def stored(count: int) -> FloatArray | None:
        """Return a set of this many patterns, if enough of them are stored."""
        sets = [placed(count, k) for k in range(1 if spread else min(-(-DRAWN // count), DRAWS))]
        found = [certify(points, iterate="undecided", tol=1e-5) for points in sets]
        return sets[0] if np.mean([each.fraction_stored for each in found]) >= share else None

    best = radius * np.eye(dim)[:1]
    if spread:
        count = 2
        while count <= min(most, max(8, 1.5 * len(best))):
            points = stored(count)
            best = best if points is None else points
            count += max(1, int(COUNT_TOLERANCE * count))
    else:
        high = math.inf  # a number of which fewer are stored
        while len(best) < most and high - len(best) > max(1, COUNT_TOLERANCE * len(best)):
            count = min(2 * len(best), most) if high == math.inf else (len(best) + int(high)) // 2
            points = stored(count)
            best, high = (best, count) if points is None else (points, high)
    found = MeasuredCapacity(len(best))
    found.patterns = best
    return found


def _random_directions(count: int, dim: int, seed: int) -> FloatArray:
    return _normalised(np.random.default_rng(seed).standard_normal((count, dim)))


def _normalised(points: FloatArray) -> FloatArray:
    return points / np.linalg.norm(points, axis=1, keepdims=True)
