"""Capacity: basins that merge, retrieval against numbers, and bounds with what was measured."""

from __future__ import annotations

import math

from isthmus.capacity import basins, capacity_bound, measured_capacity, sweep
from isthmus.capacity.counts import CapacityKind
from isthmus.capacity.packing import Placement
from isthmus.figures import Section, basins_merging, capacity_bounds, retrieval_sweep

__all__ = ["bounds_on_capacity", "merging_of_basins", "retrieval_against_numbers"]

LINE = [[-4.0], [-2.6], [-2.0], [0.6], [1.7], [4.0]]
SIGMAS = (0.25, 0.8)
DIMS, COUNTS, DRAWS = (2, 3, 5, 9), (4, 12, 36, 100, 300), 4
KINDS: tuple[CapacityKind, ...] = ("claimed", "ceiling", "certified", "packing")
MEASURED: tuple[tuple[Placement, float, tuple[int, ...]], ...] = (
    ("random", 0.5, (2, 3, 4)),
    ("random", 0.95, (2, 3, 4)),
    ("spread", 0.95, (2, 3)),
)
MOST = 256


def merging_of_basins(seed: int, full: bool = False) -> Section:
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


def retrieval_against_numbers(seed: int, full: bool = False) -> Section:
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


def bounds_on_capacity(seed: int, full: bool = False) -> Section:
    """Draw all bounds, and how many patterns are found stored, random or spread."""
    measured = {
        f"{placement} patterns, {share:.0%} stored": {
            dim: measured_capacity(dim, share, placement, seed=seed, most=MOST) for dim in dims
        }
        for placement, share, dims in MEASURED
    }
    dims = [*range(2, 41)]
    numbers = {
        "log10_bounds": {
            kind: {
                str(dim): capacity_bound(dim, kind=kind, log=True) / math.log(10)
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
        "package's certificate proves a lower bound that grows as fast as the ceiling. Marks: "
        "the largest numbers of which that share is stored, by bisection: patterns drawn at "
        "random, and patterns that repel each other until they are spread."
    )
    return Section("How much fits", caption, capacity_bounds(dims, measured), numbers)
