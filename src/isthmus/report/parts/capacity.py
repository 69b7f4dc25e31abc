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
from isthmus.capacity.packing import Placement
from isthmus.figures import basins_merging, capacity_bounds, retrieval_sweep
from isthmus.figures.capacity import kde_and_hopfield
from isthmus.figures.landscape_2d import ring
from isthmus.report.parts.errata.capacity import (
    dimension_above_ceiling,
    on_sphere,
    radius_is_a_lower_bound,
    update_differences,
)
from isthmus.report.section import Finding, Section, judge

__all__ = [
    "bounds_on_capacity",
    "equality_with_hopfield",
    "merging_of_basins",
    "retrieval_against_numbers",
]

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
    return Section(
        f"The energy of a Gaussian KDE of {', '.join(map(str, SHOWN))} patterns (orange) in the "
        "same interval, at two bandwidths on one scale. At the smaller one, the barriers between "
        "distant patterns exceed the panel. Each pattern moves from its hollow dot to the full "
        f"one. At sigma = {SIGMAS[0]:g} there are {_listed(narrow)} basins, at {SIGMAS[1]:g} "
        f"{_listed(wide)}: patterns that share a basin are no longer stored separately.",
        basins_merging(LINE, SIGMAS, SHOWN),
        {"basins_by_sigma_and_N": numbers},
        (
            judge(
                "Basins merge when patterns are too many for their space.",
                f"At sigma = {SIGMAS[1]:g}, {_listed(lost)} of {_listed(SHOWN)} patterns have lost "
                "a basin of their own.",
                as_printed=lost == sorted(lost) and lost[-1] > lost[0],
            ),
            judge(
                "Basins merge sooner when the bandwidth is larger.",
                f"There are {_listed(narrow)} basins at sigma = {SIGMAS[0]:g} and {_listed(wide)} "
                f"at {SIGMAS[1]:g}. Two patterns 2a apart have {pair[0]} basin at a = 0.99 sigma "
                f"and {pair[1]} at 1.01.",
                as_printed=all(f <= m for f, m in zip(wide, narrow, strict=True))
                and wide[-1] < narrow[-1]
                and pair == (1, 2),
            ),
        ),
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
    return Section(
        "Patterns on a sphere of radius 2 sigma sqrt(D - 1), displaced by half a sigma: the share "
        "that ends nearest to its own pattern, and the ratio of final to initial distance. Bands "
        f"are 95 % over {draws} draws. In more dimensions many more patterns are retrieved. "
        "Triangles mark the largest number certified as stored. Beyond the bars, some patterns "
        "have less than half of their own weight at their own place. The draws are the same for "
        "every seed.",
        retrieval_sweep(found),
        {"draws": draws, "retrieval_by_D_and_N": retrieval},
        _retrieval(found),
    )


def _retrieval(found: Sweep) -> tuple[Finding, ...]:
    """Judge whether retrieval worsens along N and improves along D, by the share retrieved."""
    shares = found.table("retrieved")
    worst_rise, worst_fall = np.diff(shares, axis=1).max(), np.diff(shares, axis=0).min()
    first, last = shares[:, 0].mean(), shares[:, -1].mean()
    low, high = shares[0].mean(), shares[-1].mean()
    both = worst_rise <= CHANCE and worst_fall >= -CHANCE
    note = f"; no cell contradicts this by more than {CHANCE:.0%}" if both else ""
    return (
        judge(
            "More patterns make retrieval poorer.",
            f"The share retrieved falls from {first:.2f} at N = {found.counts[0]} to {last:.2f} at "
            f"N = {found.counts[-1]}, on average over D{note}.",
            as_printed=worst_rise <= CHANCE and last < first - CHANCE,
        ),
        judge(
            "More dimensions make retrieval better.",
            f"The share retrieved rises from {low:.2f} at D = {found.dims[0]} to {high:.2f} at "
            f"D = {found.dims[-1]}, on average over N{note}. The paper's own measure depends on "
            "the unit of length and falls with D in any case (E25), so the share is used here.",
            as_printed=worst_fall >= -CHANCE and high > low + CHANCE,
        ),
    )


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
    return Section(
        "The number of patterns that fit on a sphere of radius 2 sigma sqrt(D - 1). The ceiling "
        "holds for any arrangement in which each pattern keeps at least half of its own weight "
        "(its share of the update at its own place), as certified patterns do. From "
        f"D = {first} on, the paper's 4^(D-1) lies above it. Random coding with this package's "
        "certificate proves a lower bound that grows as fast as the ceiling. Marks are measured "
        "by bisection: the largest numbers of which the stated share is stored, for patterns "
        "drawn at random and for patterns spread by repulsion.",
        capacity_bounds([*range(2, 41)], measured),
        numbers,
        _capacity(numbers, seed),
    )


def _capacity(numbers: dict[str, Any], seed: int) -> tuple[Finding, ...]:
    """Judge the paper's propositions on capacity."""
    first, base = numbers["first_dimension_above_ceiling"], numbers["base_per_dimension"]
    logs = numbers["log10_bounds_by_kind_and_D"]
    # Growth per dimension from D = 20 to 40.
    certified, ceiling = (
        10 ** ((logs[kind]["40"] - logs[kind]["20"]) / 20) for kind in ("certified", "ceiling")
    )
    radius = radius_is_a_lower_bound(torch.Generator().manual_seed(seed))
    return (
        judge(
            "The capacity of a Gaussian KDE is 2^(2(D-1)).",
            f"From D = {first} on, not all of these patterns can keep half of their own weight, "
            "however they are arranged, and proofs of storage need that they do: at D = 20 the "
            f"claim is 10^{logs['claimed']['20']:.2f}, the ceiling 10^{logs['ceiling']['20']:.2f}. "
            "Fixed points of patterns with less weight are not excluded (E1).",
            as_printed=first is None,
        ),
        judge(
            "The capacity of a Gaussian KDE is exponential in the dimension.",
            f"From D = 20 to 40, certified numbers grow by a factor of {certified:.2f} per "
            f"dimension and the ceiling by {ceiling:.2f}; both tend to {base:.3f}, not to 4.",
            as_printed=certified >= 4,
            corrected=1 < certified <= ceiling + 0.5 and abs(certified - base) < 0.5,
        ),
        radius.finding("The radius of convergence of a well separated pattern is sigma^2 / (N M)."),
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
    claim = "energy and dynamics of the Gaussian KDE are exactly those of a modern Hopfield network"
    return Section(
        "Paths of the Gaussian KDE (dark) and of the modern Hopfield network with beta = 1/sigma^2 "
        "(bright, dashed) from the same queries. With patterns of one length (left) they "
        "coincide; otherwise the network favours long patterns. Right: the difference between one "
        f"update of each in {SPHERE_DIM} dimensions, against the spread of lengths.",
        kde_and_hopfield(circle, uneven, queries, sigma, gaps),
        {
            "energy_gap_on_the_sphere": energy_on,
            "energy_gap_off_the_sphere": energy_off,
            "update_gap_on_the_sphere": update_on,
            "update_gap_off_the_sphere": update_off,
            "update_gap_by_spread_of_lengths": {f"{spread:g}": gap for spread, gap in gaps.items()},
        },
        (
            judge(
                f"With patterns on a sphere (appendix), {claim}.",
                f"E_MCHN - sigma^2 (E_KDE + log N) is zero to {energy_on:.0e} on the sphere, and "
                f"updates agree to {max(update_on, gaps[0.0]):.0e}.",
                as_printed=max(energy_on, update_on, gaps[0.0]) <= EXACT,
            ),
            judge(
                f"For any patterns (main text), {claim}.",
                f"Off the sphere, energies differ by up to {energy_off:.2f}, not by a constant, "
                f"and updates by {update_off:.2f}. There the KDE's step is mean shift; the claim "
                "needs patterns of equal length (E13).",
                as_printed=max(energy_off, update_off) <= EXACT,
                corrected=max(energy_on, update_on) <= EXACT,
            ),
        ),
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
