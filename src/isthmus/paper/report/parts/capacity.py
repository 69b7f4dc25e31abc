"""Capacity: merging basins, retrieval, bounds, equivalence, and the errata about them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from sklearn.datasets import load_digits
from torch import Tensor

import isthmus as ist
from isthmus import capacity
from isthmus.capacity import basins
from isthmus.dynamics.modes import distances, is_attracting
from isthmus.figures.landscapes import ring
from isthmus.paper.counts import CapacityKind, capacity_bound
from isthmus.paper.figures.capacity import (
    basins_merging,
    capacity_bounds,
    kde_and_hopfield,
    noise_recall,
    retrieval_sweep,
)
from isthmus.paper.report.parts.errata import EXACT, Check, erratum, largest_gap, normal
from isthmus.paper.report.registry import compose
from isthmus.paper.report.section import Section
from isthmus.paper.spheres import Placement
from isthmus.paper.sweep import sweep

# Patterns on a line, in the order in which they are added.
LINE = [[-4.0], [0.6], [4.0], [-2.2], [1.7], [-2.8], [2.6], [-0.6], [-3.4]]
SIGMAS = (0.2, 0.6)
SHOWN = (3, 5, 9)
DIMS, COUNTS = (2, 3, 5, 9), (4, 12, 36, 100, 300)
SIZES: dict[str, Any] = {"seeds": 4, "n_particles": 15, "max_patterns": 8, "max_steps": 100}
# The paper states 100 particles per pattern and the sphere, but neither N nor D.
FULL_DIMS, FULL_COUNTS = (2, 3, 5, 10, 20, 50), (4, 12, 36, 100, 300, 1000)
FULL_SIZES = {"seeds": 10, "n_particles": 100, "max_patterns": 100, "max_steps": 300}
MEASURES = {
    "share_retrieved": "retrieved",
    "distance_ratio": "ratio",
    "distance_ratio_as_printed": "normalized_ratio",
}
# Tolerance for random differences between neighbouring cells of the sweep.
CHANCE = 0.1
KINDS: tuple[CapacityKind, ...] = ("claimed", "half-weight", "dense", "certified", "packing")
# Patterns that all look alike, by their dimension, and starts around one of them.
STARTS = 50
SYMMETRIC = {2: lambda: capacity.regular_polygon(18), 4: capacity.cell_600, 8: capacity.e8_shell}
# Noise, in multiples of what is certified; patterns and draws per pattern that are tried.
LEVELS, TRIED, DRAWS = (0.5, 1.0, 1.25, 1.5, 1.75, 2.0, 2.5, 3.0), 25, 80
MEASURED: tuple[tuple[Placement, float, tuple[int, ...]], ...] = (
    ("random", 0.5, (2, 3, 4)),
    ("random", 0.95, (2, 3, 4)),
    ("spread", 0.95, (2, 3)),
)
MOST, FULL_MOST = 256, 2048

FACTORS = (1.0, 0.55, 1.25, 0.8, 1.4)
SPHERE_DIM, SPREADS = 10, (0.0, 1e-6, 1e-4, 1e-2, 0.05, 0.1, 0.2)
SAME = 1e-12


def merging_of_basins(seed: int, full: bool = False) -> Section:
    """Draw one memory at two bandwidths. Nothing is random."""
    numbers = {
        sigma: {count: basins(LINE[:count], sigma).n_basins for count in SHOWN} for sigma in SIGMAS
    }
    narrow, wide = (list(found.values()) for found in numbers.values())
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
        shown=SHOWN,
        narrow=narrow,
        wide=wide,
        lost=lost,
        sigmas=SIGMAS,
        pair=pair,
    )


def pair_basins(half: float) -> int:
    """Return the number of basins of two patterns that are 2 * half sigmas apart."""
    return basins([[-half], [half]], 1.0, tol=1e-9, max_steps=200_000).n_basins


def retrieval_against_numbers(seed: int, full: bool = False) -> Section:
    """Run the paper's retrieval experiment, at a smaller size unless full."""
    dims, counts, sizes = (FULL_DIMS, FULL_COUNTS, FULL_SIZES) if full else (DIMS, COUNTS, SIZES)
    found = sweep(dims, counts, **sizes, progress=False)
    retrieval = {
        dim: {
            count: {name: found.band(each, dim, count)[0] for name, each in MEASURES.items()}
            for count in counts
        }
        for dim in dims
    }
    # By the share retrieved: does it fall along N, and rise along D?
    shares = found.table("retrieved")
    worst_rise, worst_fall = np.diff(shares, axis=1).max(), np.diff(shares, axis=0).min()
    (first, last), (low, high) = shares.mean(0)[[0, -1]], shares.mean(1)[[0, -1]]
    clear = worst_rise <= CHANCE and worst_fall >= -CHANCE
    return compose(
        "capacity-sweep",
        retrieval_sweep(found),
        {"draws": sizes["seeds"], "retrieval_by_D_and_N": retrieval},
        {
            "patterns": bool(worst_rise <= CHANCE and last < first - CHANCE),
            "dimensions": bool(worst_fall >= -CHANCE and high > low + CHANCE),
        },
        by_count=(first, last),
        by_dim=(low, high),
        counts=(counts[0], counts[-1]),
        dims=(dims[0], dims[-1]),
        note=f"; no cell contradicts this by more than {CHANCE:.0%}" if clear else "",
    )


def bounds_on_capacity(seed: int, full: bool = False) -> Section:
    """Draw all bounds, and the measured capacity for random and spread patterns."""
    most = FULL_MOST if full else MOST
    measured = {
        f"{placement} patterns, {share:.0%} stored": {
            dim: capacity.measured_capacity(dim, share, placement, seed=seed, most=most)
            for dim in dims
        }
        for placement, share, dims in MEASURED
    }
    measured["symmetric arrangements, all stored"] = known = {
        dim: len(points)
        for dim, points in ((dim, place()) for dim, place in SYMMETRIC.items())
        if first_is_stored(2 * math.sqrt(dim - 1) * points)
    }
    logs = {
        kind: {dim: log_bound(dim, kind) / math.log(10) for dim in (5, 10, 20, 40)}
        for kind in KINDS
    }
    growth = {factor: certified_growth(factor, dim) for factor, dim in ((2.0, 20), (1.7, 50))}
    bases = {factor: math.exp(capacity.capacity_rate(factor)) for factor in growth}
    more = [
        f"{count:,} at D = {dim} ({claimed:,.0f} stated)"
        for dim, count in known.items()
        if count > (claimed := capacity_bound(dim, kind="claimed"))
    ]
    radius = radius_is_a_lower_bound(torch.Generator().manual_seed(seed))
    return compose(
        "capacity-bounds",
        capacity_bounds([*range(2, 41)], measured),
        {
            "log10_bounds_by_kind_and_D": logs,
            "largest_number_measured_by_patterns_and_D": measured,
            "first_dimension_above_half_weight": dimension_above_half_weight(),
            "base_per_dimension": bases[2.0],
            "certified_growth_by_M": growth,
        },
        {
            # As an equality it fails where more are stored; as a lower bound it is open.
            "number": None if more else False,
            "exponential": all(1 < growth[each] < bases[each] + 0.5 for each in growth),
            "radius": not radius.confirmed,
        },
        more=more,
        growth=[*growth.values()],
        bases=[*bases.values()],
        radius=radius,
    )


def certified_growth(factor: float, dim: int) -> float:
    """Return the growth per dimension of certified numbers, from `dim` to 20 dimensions more.

    The radius of the sphere is M = `factor` * sqrt(D - 1).
    """
    first, last = (
        capacity_bound(each, max_norm=factor * math.sqrt(each - 1), log=True)
        for each in (dim, dim + 20)
    )
    return math.exp((last - first) / 20)


def first_is_stored(patterns: NDArray[np.float64]) -> bool:
    """Return True if the first pattern has a stable fixed point nearer than half the next one.

    Random starts half-way to the next pattern have to return to it. In the plane, any number of
    patterns at equal angles have such points and balls (capacity-proofs.md, 11).
    """
    memory, first = ist.GaussianKDE(patterns, 1.0), torch.from_numpy(patterns[:1])
    fixed = ist.retrieve(memory, first, tol=1e-12, max_steps=20_000).state
    half = 0.5 * float(distances(first, memory.memories)[0].sort().values[1])
    near = float(torch.linalg.vector_norm(fixed - first)) < half
    if patterns.shape[1] == 2:
        return near
    away = on_sphere(normal(torch.Generator().manual_seed(0), STARTS, patterns.shape[1]), half)
    ends = ist.retrieve(memory, first + away, tol=1e-9, max_steps=20_000).state
    return near and bool(is_attracting(memory, fixed).all()) and largest_gap(ends, fixed) < 1e-3


def recall_under_noise(seed: int, full: bool = False) -> Section:
    """Compare the noise that is certified with the noise at which patterns are lost."""
    rng, delta = np.random.default_rng(seed), 1e-3
    digits = load_digits().data
    digits = digits[rng.permutation(len(digits))[: None if full else 400]]
    data = {
        "random patterns, D = 256": (rng.standard_normal((400, 256)), 3.0),
        "pictures of digits, D = 64": (digits, 4.0),
    }
    curves, numbers = {}, {}
    for name, (X, sigma) in data.items():
        found = capacity.certify(X, sigma, iterate="none", noise=True, delta=delta)
        assert found.noise is not None
        rows = np.flatnonzero((found.decided == "proved") & (found.noise > 0))[:TRIED]
        noise = found.noise[rows]
        curves[name] = {level: _recalled(X, sigma, rows, level * noise, rng) for level in LEVELS}
        numbers[name] = {
            "certified_noise_length": float(np.median(noise) * X.shape[1] ** 0.5),
            "guaranteed_radius": float(np.median(found.guaranteed_radius[rows])),
            "smallest_share_up_to_certified": min(curves[name][0.5], curves[name][1.0]),
            "share_at_twice_the_certified": curves[name][2.0],
        }
    random, pictures = (
        each["certified_noise_length"] / each["guaranteed_radius"] for each in numbers.values()
    )
    return compose(
        "noise",
        noise_recall(curves, delta),
        {"recall_by_patterns": numbers},
        delta=delta,
        random=random,
        pictures=pictures,
        tried=TRIED * DRAWS,
    )


def _recalled(
    X: NDArray[np.float64],
    sigma: float,
    rows: NDArray[np.intp],
    noise: NDArray[np.float64],
    rng: np.random.Generator,
) -> float:
    """Return the share of noisy copies of some patterns that reach their fixed points."""
    memory, homes = ist.GaussianKDE(X, sigma), torch.from_numpy(X[rows])
    goals = ist.retrieve(memory, homes, tol=1e-6 * sigma).state
    away = noise[:, None] * rng.standard_normal((DRAWS, len(rows), X.shape[1]))
    ends = ist.retrieve(memory, homes + torch.from_numpy(away), tol=1e-6 * sigma).state
    return float((torch.linalg.vector_norm(ends - goals, dim=-1) < 1e-2 * sigma).double().mean())


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
            "sphere": max(largest_on, gaps[0.0]) <= SAME,
            "anywhere": largest_off <= SAME,
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
    sphere = on_sphere(normal(generator, 30, SPHERE_DIM), 2 * math.sqrt(SPHERE_DIM - 1))
    stretch = normal(generator, 30, 1).clamp(-2, 2)
    queries = sphere + 0.5 * normal(generator, 30, SPHERE_DIM)
    return {
        spread: update_differences(sphere * (1 + spread * stretch), queries, 1.0)["hopfield"]
        for spread in SPREADS
    }


def log_bound(dim: int, kind: CapacityKind) -> float:
    """Return the logarithm of a bound on the number of patterns."""
    return capacity_bound(dim, kind=kind, log=True)


def dimension_above_half_weight() -> int:
    """Return the first D where not all of 2^(2(D-1)) patterns can keep half of their weight."""
    return next(d for d in range(2, 41) if log_bound(d, "claimed") > log_bound(d, "half-weight"))


@erratum("E1")
def number_of_patterns(generator: torch.Generator) -> Check:
    """Compare the angles of the proof with what fits on the sphere."""
    dim = 4
    claimed = round(capacity_bound(dim, kind="claimed"))
    needed = math.degrees(2 * math.pi / claimed ** (1 / (dim - 1)))
    points = capacity.spread_on_sphere(claimed, dim, generator.initial_seed())
    reached = math.degrees(math.acos((points @ points.T - 2 * np.eye(claimed)).max()))
    return (
        {
            "needed_degrees": needed,
            "reached_degrees": reached,
            "first_dimension_above_half_weight": dimension_above_half_weight(),
            "base_per_dimension": math.exp(capacity.capacity_rate(2.0)),
            "claimed": claimed,
        },
        reached < needed - 1,
    )


@erratum("E12")
def normaliser_of_the_kernel(generator: torch.Generator) -> Check:
    """Integrate the kernel density estimate with h and with h^D."""
    memories = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.7, 0.8]], dtype=torch.float64)
    width, step = 0.5, 0.05
    axis = torch.arange(-6, 6, step, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    kernel = torch.exp(-0.5 * torch.cdist(points, memories).square() / width**2) / (2 * math.pi)
    printed = float(kernel.sum() * step**2 / (len(memories) * width))
    corrected = float(ist.GaussianKDE(memories, width).log_prob(points).exp().sum() * step**2)
    return (
        {"integral_printed": printed, "integral_corrected": corrected},
        abs(corrected - 1) < 1e-6 and abs(printed - 1) > 0.1,
    )


def update_differences(patterns: Tensor, queries: Tensor, sigma: float) -> dict[str, float]:
    """Compare a step of descent on the KDE's energy, of size sigma^2, with two closed forms."""
    descent = queries + sigma**2 * ist.GaussianKDE(patterns, sigma).score(queries)
    logits = {
        "mean_shift": -0.5 * torch.cdist(queries, patterns).square(),
        "hopfield": queries @ patterns.T,
    }
    return {
        name: largest_gap(descent, torch.softmax(values / sigma**2, -1) @ patterns)
        for name, values in logits.items()
    }


def on_sphere(patterns: Tensor, radius: float) -> Tensor:
    """Return the patterns (N, D) scaled to this length."""
    return radius * patterns / torch.linalg.vector_norm(patterns, dim=1, keepdim=True)


@erratum("E13")
def equal_to_hopfield_on_the_sphere(generator: torch.Generator) -> Check:
    """Compare updates of KDE and Hopfield network with equal and with other norms."""
    anywhere = 1.5 * normal(generator, 8, 3)
    queries = anywhere + 0.3 * normal(generator, 8, 3)
    off = update_differences(anywhere, queries, 0.8)
    on = update_differences(on_sphere(anywhere, 2.0), queries, 0.8)
    return (
        {
            "difference_on_sphere": on["hopfield"],
            "difference_off_sphere": off["hopfield"],
            "difference_from_mean_shift": max(on["mean_shift"], off["mean_shift"]),
        },
        on["hopfield"] < EXACT and off["hopfield"] > 0.01 and off["mean_shift"] < EXACT,
    )


@erratum("E14")
def two_separations(generator: torch.Generator) -> Check:
    """Compare half the squared distance with the inner-product form."""

    def differ(patterns: Tensor) -> float:
        gram = patterns @ patterns.T
        by_product = torch.diagonal(gram)[:, None] - gram
        by_distance = 0.5 * torch.cdist(patterns, patterns).square()
        for table in (by_product, by_distance):
            table.fill_diagonal_(torch.inf)
        return largest_gap(by_product.amin(1), by_distance.amin(1))

    patterns = normal(generator, 10, 3)
    off, on = differ(patterns), differ(on_sphere(patterns, 1.0))
    return ({"difference_on_sphere": on, "difference_off_sphere": off}, on < 1e-6 and off > 0.01)


@erratum("E15")
def one_fixed_point_for_the_ball(generator: torch.Generator) -> Check:
    """Find two fixed points in a ball that the printed definition would call stored."""
    patterns = torch.tensor([[0.0], [3.0], [20.0]], dtype=torch.float64)
    ball = torch.linspace(-3.4, 3.4, 72, dtype=torch.float64)[:, None]  # none at 1.5
    state = ist.retrieve(ist.GaussianKDE(patterns, 1.0), ball, tol=1e-10).state
    ends = torch.unique(state.round(decimals=3))
    return (
        {"fixed_points_in_the_ball": len(ends), "ends": ends.tolist()},
        bool((ends.abs() <= 3.4).all()) and len(ends) > 1,
    )


def distance_that_returns(patterns: Tensor, sigma: float, seed: int, directions: int = 64) -> float:
    """Return how far the first pattern can be displaced, in several directions, and return."""
    kde = ist.GaussianKDE(patterns, sigma)
    home = ist.retrieve(kde, patterns[:1]).state
    away = normal(torch.Generator().manual_seed(seed), directions, patterns.shape[1])
    away = torch.cat([on_sphere(away, 1.0), on_sphere(patterns[1:] - patterns[0], 1.0)])
    low, high = 0.0, float(torch.pdist(patterns).min())
    for _ in range(12):
        middle = (low + high) / 2
        ends = ist.retrieve(kde, patterns[0] + middle * away).state
        back = largest_gap(ends, home) < 1e-3 * sigma
        low, high = (middle, high) if back else (low, middle)
    return low


@erratum("E16")
def radius_is_a_lower_bound(generator: torch.Generator) -> Check:
    """Measure the radius of convergence of patterns on the axes."""
    dim = 10
    size = 2 * math.sqrt(dim - 1)
    axes = size * torch.eye(dim, dtype=torch.float64)
    patterns = torch.cat([axes, -axes])
    promised = capacity.guaranteed_radius(len(patterns), size, 1.0)
    measured = distance_that_returns(patterns, 1.0, generator.initial_seed())
    return (
        {"radius_by_formula": promised, "radius_measured": measured, "ratio": measured / promised},
        measured > 2 * promised,
    )


@erratum("E17")
def radius_grows_with_the_bandwidth(generator: torch.Generator) -> Check:
    """Show that the capacity depends on M / sigma only."""
    dim, sigma = 20, 3.0
    size = 2 * math.sqrt(dim - 1)
    logs = {
        "sigma_1": capacity_bound(dim, 1.0, size, log=True),
        "sigma_3_radius_as_printed": capacity_bound(dim, sigma, size, log=True),
        "sigma_3_radius_scaled": capacity_bound(dim, sigma, sigma * size, log=True),
    }
    return (
        {f"log10_{name}": value / math.log(10) for name, value in logs.items()},
        abs(logs["sigma_3_radius_scaled"] - logs["sigma_1"]) < 1e-6
        and logs["sigma_3_radius_as_printed"] < logs["sigma_1"] - 1,
    )


@erratum("E25")
def ratio_with_a_unit(generator: torch.Generator) -> Check:
    """Repeat an experiment in another unit of length, which changes the paper's measure."""
    sizes: dict[str, Any] = {"seeds": 1, "n_particles": 20, "max_patterns": 4}
    small, large = (
        sweep([5], [20], sigma=sigma, progress=False, **sizes).cells[0] for sigma in (1.0, 10.0)
    )
    raw = large.ratio / small.ratio
    normalized = large.normalized_ratio / small.normalized_ratio
    return (
        {"ratio_changes_by": raw, "printed_measure_changes_by": normalized},
        abs(raw - 1) < 1e-3 and abs(normalized - 0.1) < 1e-3,
    )
