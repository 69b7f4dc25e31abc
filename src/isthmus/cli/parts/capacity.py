"""Capacity: basins that merge, retrieval against numbers, and bounds with what was measured."""

from __future__ import annotations

import math

import numpy as np

from isthmus.capacity import basins, capacity_bound, certify, sweep
from isthmus.figures import Section, basins_merging, capacity_bounds, retrieval_sweep

__all__ = ["bounds_on_capacity", "merging_of_basins", "retrieval_against_numbers"]

LINE = [[-4.0], [-2.6], [-2.0], [0.6], [1.7], [4.0]]
SIGMAS = (0.25, 0.8)
DIMS, COUNTS, DRAWS = (2, 3, 5, 9), (4, 12, 36, 100, 300), 4
KINDS = ("claimed", "ceiling", "certified", "packing")
MEASURED_DIMS = (2, 3, 4, 5)
MOST = 512


def merging_of_basins(seed: int) -> Section:
    """Draw one memory at two bandwidths. Nothing in it is random."""
    figure = basins_merging(LINE, SIGMAS)
    numbers = {f"{sigma:g}": basins(LINE, sigma).n_basins for sigma in SIGMAS}
    few, many = numbers[f"{SIGMAS[1]:g}"], numbers[f"{SIGMAS[0]:g}"]
    caption = (
        f"The energy of a Gaussian KDE of {len(LINE)} patterns (orange) at two bandwidths. Each "
        f"pattern flows from its hollow dot to the full one. As sigma grows from {SIGMAS[0]:g} to "
        f"{SIGMAS[1]:g}, {many} basins become {few}: patterns that share one are no longer stored "
        "one by one."
    )
    return Section("Basins merge", caption, figure, {"basins_at_sigma": numbers})


def retrieval_against_numbers(seed: int) -> Section:
    """Run a small version of the paper's experiment."""
    found = sweep(
        DIMS, COUNTS, seeds=DRAWS, n_particles=15, max_patterns=8, max_steps=100, progress=False
    )
    table = {
        str(dim): {
            str(count): {
                "retrieved": found.band("retrieved", dim, count)[0],
                "ratio": found.band("ratio", dim, count)[0],
            }
            for count in COUNTS
        }
        for dim in DIMS
    }
    caption = (
        "Patterns on a sphere of radius 2 sigma sqrt(D - 1), pushed off by half a sigma, and "
        "where they end: the share that is nearest to its own pattern again, and the distance "
        "left, over that at the start. Bands are 95 % over "
        f"{DRAWS} draws. In more dimensions many more "
        "patterns find home; triangles and bars are bounds on how many can all be stored. The "
        "draws are the same for every seed."
    )
    return Section("Retrieval against numbers", caption, retrieval_sweep(found), table)


def bounds_on_capacity(seed: int) -> Section:
    """Draw all bounds, and how many random patterns a certificate finds stored."""
    measured = {
        f"random patterns, {share:.0%} stored": {
            dim: stored_count(dim, share, seed) for dim in MEASURED_DIMS
        }
        for share in (0.5, 0.95)
    }
    dims = [*range(2, 41)]
    numbers = {
        "log10_bounds": {
            kind: {
                str(dim): capacity_bound(dim, kind=kind, log=True) / math.log(10)  # type: ignore[arg-type]
                for dim in (5, 10, 20, 40)
            }
            for kind in KINDS
        },
        "measured": {
            name: {str(dim): count for dim, count in counts.items()}
            for name, counts in measured.items()
        },
    }
    caption = (
        "How many patterns fit on a sphere of radius 2 sigma sqrt(D - 1). The paper's 4^(D-1) "
        "lies above what any arrangement can hold from D = 8 on. Random coding with this "
        "package's certificate proves a lower bound that grows as fast as the ceiling. Dots: the "
        "largest number of random patterns of which that share is stored, by bisection over one "
        "draw."
    )
    return Section("How much fits", caption, capacity_bounds(dims, measured), numbers)


def stored_count(dim: int, share: float, seed: int) -> int:
    """Return the largest number of random patterns of which `share` is stored, to some 10 %."""
    rng = np.random.default_rng(seed)
    points = rng.standard_normal((MOST, dim))
    points *= 2 * math.sqrt(dim - 1) / np.linalg.norm(points, axis=1, keepdims=True)
    low, high = 1, MOST
    while high > 1.1 * low + 1:
        count = (low + high) // 2 if high < 2 * low else math.isqrt(low * high)
        stored = certify(points[:count], iterate="undecided", tol=1e-4, max_steps=300)
        low, high = (count, high) if stored.fraction_stored >= share else (low, count)
    return low
