"""Capacity: merging basins, retrieval against the number of patterns, bounds, and equivalence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.capacity import (
    Sweep,
    basins,
    capacity_bound,
    capacity_rate,
    measured_capacity,
    sweep,
)
from isthmus.capacity.counts import CapacityKind
from isthmus.capacity.experiments import Placement
from isthmus.figures import basins_merging, capacity_bounds, retrieval_sweep
from isthmus.figures.capacity import kde_and_hopfield
from isthmus.figures.landscape_2d import ring
from isthmus.report.parts.errata.capacity import (
    dimension_above_ceiling,
    on_sphere,
    radius_is_a_lower_bound,
    update_differences,
)
from isthmus.report.registry import compose
from isthmus.report.section import Section

# Patterns on a line, in the order in which they are added.
LINE = [[-4.0], [0.6], [4.0], [-2.2], [1.7], [-2.8], [2.6], [-0.6], [-3.4]]
SIGMAS = (0.2, 0.6)
SHOWN = (3, 5, 9)
DIMS, COUNTS, DRAWS = (2, 3, 5, 9), (4, 12, 36, 100, 300), 4
# The paper states 100 particles per pattern and the sphere, but neither N nor D.
FULL_DIMS, FULL_COUNTS, FULL_DRAWS = (2, 3, 5, 10, 20, 50), (4, 12, 36, 100, 300, 1000), 10
# Tolerance for random differences between neighbouring cells of the sweep.
CHANCE = 0.1
KINDS: tuple[CapacityKind, ...] = ("claimed", "ceiling", "certified", "packing")
MEASURED: tuple[tuple[Placement, float, tuple[int, ...]], ...] = (
    ("random", 0.5, (2, 3, 4)),
    ("random", 0.95, (2, 3, 4)),
    ("spread", 0.95, (2, 3)),
)
MOST, FULL_MOST = 256, 2048

FACTORS = (1.0, 0.55, 1.25, 0.8, 1.4)
SPHERE_DIM, SPREADS = 10, (0.0, 1e-6, 1e-4, 1e-2, 0.05, 0.1, 0.2)
EXACT = 1e-12


def merging_of_basins(seed: int, full: bool = False) -> Section:
    """Draw one memory at two bandwidths. Nothing is random."""
    numbers = {
        f"{sigma:g}": {str(count): basins(LINE[:count], sigma).n_basins for count in SHOWN}
        for sigma in SIGMAS
    }
    narrow, wide = (list(numbers[f"{sigma:g}"].values()) for sigma in SIGMAS)
    lost = [count - found for count, found in zip(SHOWN, wide, strict=True)]
    pair = pair_basins(0.99), pair_basins(1.01)
    fewer = all(f <= m for f, m in zip(wide, narrow, strict=True)) and wide[-1] < narrow[-1]
    return compose(
        "basins-merging",
        basins_merging(LINE, SIGMAS, SHOWN),
        {"basins_by_sigma_and_N": numbers},
        {
            "crowding": lost == sorted(lost) and lost[-1] > lost[0],
            "bandwidth": fewer and pair == (1, 2),
        },
        shown=_listed(SHOWN),
        narrow=_listed(narrow),
        wide=_listed(wide),
        lost=_listed(lost),
        sigmas=SIGMAS,
        pair=pair,
    )


def pair_basins(half: float) -> int:
    """Return the number of basins of two patterns that are 2 * half sigmas apart."""
    return basins([[-half], [half]], 1.0, tol=1e-9, max_steps=200_000).n_basins


def _listed(values: Sequence[int]) -> str:
    *firsts, last = map(str, values)
    return f"{', '.join(firsts)} and {last}"


def retrieval_against_numbers(seed: int, full: bool = False) -> Section:
    """Run the paper's retrieval experiment, at a smaller size unless full."""
    dims, counts, draws = (FULL_DIMS, FULL_COUNTS, FULL_DRAWS) if full else (DIMS, COUNTS, DRAWS)
    particles, patterns, steps = (100, 100, 300) if full else (15, 8, 100)
    found = sweep(
        dims,
        counts,
        seeds=draws,
        n_particles=particles,
        max_patterns=patterns,
        max_steps=steps,
        progress=False,
    )
    measures = {
        "share_retrieved": "retrieved",
        "distance_ratio": "ratio",
        "distance_ratio_as_printed": "normalized_ratio",
    }
    retrieval = {
        str(dim): {
            str(count): {
                name: found.band(measure, dim, count)[0] for name, measure in measures.items()
            }
            for count in counts
        }
        for dim in dims
    }
    numbers = {"draws": draws, "retrieval_by_D_and_N": retrieval}
    checks, values = _trends(found)
    return compose("capacity-sweep", retrieval_sweep(found), numbers, checks, **values)


def _trends(found: Sweep) -> tuple[dict[str, bool], dict[str, Any]]:
    """Check whether retrieval worsens along N and improves along D, by the share retrieved."""
    shares = found.table("retrieved")
    worst_rise, worst_fall = np.diff(shares, axis=1).max(), np.diff(shares, axis=0).min()
    (first, last), (low, high) = shares.mean(0)[[0, -1]], shares.mean(1)[[0, -1]]
    clear = worst_rise <= CHANCE and worst_fall >= -CHANCE
    checks = {
        "patterns": bool(worst_rise <= CHANCE and last < first - CHANCE),
        "dimensions": bool(worst_fall >= -CHANCE and high > low + CHANCE),
    }
    return checks, {
        "by_count": (first, last),
        "by_dim": (low, high),
        "counts": (found.counts[0], found.counts[-1]),
        "dims": (found.dims[0], found.dims[-1]),
        "note": f"; no cell contradicts this by more than {CHANCE:.0%}" if clear else "",
    }


def bounds_on_capacity(seed: int, full: bool = False) -> Section:
    """Draw all bounds, and the measured capacity for random and spread patterns."""
    most = FULL_MOST if full else MOST
    measured = {
        f"{placement} patterns, {share:.0%} stored": {
            dim: measured_capacity(dim, share, placement, seed=seed, most=most) for dim in dims
        }
        for placement, share, dims in MEASURED
    }
    first = dimension_above_ceiling()
    numbers: dict[str, Any] = {
        "log10_bounds_by_kind_and_D": {
            kind: {
                str(dim): capacity_bound(dim, kind=kind, log=True) / math.log(10)
                for dim in (5, 10, 20, 40)
            }
            for kind in KINDS
        },
        "largest_number_measured_by_patterns_and_D": measured,
        "first_dimension_above_ceiling": first,
        "base_per_dimension": math.exp(capacity_rate(2.0)),
    }
    logs = numbers["log10_bounds_by_kind_and_D"]
    # Growth per dimension from D = 20 to 40.
    certified, ceiling = (
        10 ** ((logs[kind]["40"] - logs[kind]["20"]) / 20) for kind in ("certified", "ceiling")
    )
    near_base = abs(certified - numbers["base_per_dimension"]) < 0.5
    radius = radius_is_a_lower_bound(torch.Generator().manual_seed(seed))
    return compose(
        "capacity-bounds",
        capacity_bounds([*range(2, 41)], measured),
        numbers,
        {
            "number": first is None,
            "exponential": (certified >= 4, 1 < certified <= ceiling + 0.5 and near_base),
            "radius": radius.check,
        },
        claimed_20=logs["claimed"]["20"],
        ceiling_20=logs["ceiling"]["20"],
        certified=certified,
        ceiling=ceiling,
        radius=radius,
    )


def equality_with_hopfield(seed: int, full: bool = False) -> Section:
    """Compare Gaussian KDE and modern Hopfield network on a sphere and increasingly far off it."""
    sigma = 0.5
    circle = 1.5 * torch.as_tensor(ring(5, 1.0, turn=0.2))
    uneven = circle * torch.tensor(FACTORS, dtype=torch.float64)[:, None]
    queries = torch.as_tensor(ring(9, 2.1, turn=0.35))
    gaps = gaps_off_the_sphere(seed)
    energy_on, energy_off = energy_gap(circle, queries, sigma), energy_gap(uneven, queries, sigma)
    update_on, update_off = (
        update_differences(patterns, queries, sigma)["hopfield"] for patterns in (circle, uneven)
    )
    largest_on, largest_off = max(energy_on, update_on), max(energy_off, update_off)
    return compose(
        "hopfield-equivalence",
        kde_and_hopfield(circle, uneven, queries, sigma, gaps),
        {
            "energy_gap_on_the_sphere": energy_on,
            "energy_gap_off_the_sphere": energy_off,
            "update_gap_on_the_sphere": update_on,
            "update_gap_off_the_sphere": update_off,
            "update_gap_by_spread_of_lengths": {f"{spread:g}": gap for spread, gap in gaps.items()},
        },
        {
            "sphere": max(largest_on, gaps[0.0]) <= EXACT,
            "anywhere": (largest_off <= EXACT, largest_on <= EXACT),
        },
        dim=SPHERE_DIM,
        largest_update_gap=max(update_on, gaps[0.0]),
    )


def energy_gap(patterns: Tensor, queries: Tensor, sigma: float) -> float:
    """Return how much E_MCHN - sigma^2 E_KDE, both as printed, varies over the queries."""
    beta = 1 / sigma**2
    squared = torch.cdist(queries, patterns).square()
    kde = -torch.logsumexp(-0.5 * beta * squared, 1)
    network = ist.ModernHopfield(patterns, beta=beta).energy(queries)
    gap = network - sigma**2 * kde
    return float(gap.max() - gap.min())


def gaps_off_the_sphere(seed: int) -> dict[float, float]:
    """Return the largest difference of updates for each spread of the patterns' lengths."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    sphere = on_sphere(normal(30, SPHERE_DIM), 2 * math.sqrt(SPHERE_DIM - 1))
    stretch = normal(30, 1).clamp(-2, 2)
    queries = sphere + 0.5 * normal(30, SPHERE_DIM)
    return {
        spread: update_differences(sphere * (1 + spread * stretch), queries, 1.0)["hopfield"]
        for spread in SPREADS
    }
