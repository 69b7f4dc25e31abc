"""Errata of the capacity section: kernel density estimates as memories."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.capacity import capacity_bound, capacity_rate, guaranteed_radius, spread_on_sphere
from isthmus.capacity import sweep as run_sweep
from isthmus.cli.parts.errata.erratum import Erratum

__all__ = ["capacity_errata", "dimension_above_ceiling", "distance_that_returns"]

EXACT = 1e-9


def capacity_errata(seed: int) -> list[Erratum]:
    """E1, E12 to E17 and E25, each measured."""
    generator = torch.Generator().manual_seed(seed)
    return [
        number_of_patterns(seed),
        normaliser_of_the_kernel(),
        equal_to_hopfield_on_the_sphere(generator),
        two_separations(generator),
        one_fixed_point_for_the_ball(),
        radius_is_a_lower_bound(seed),
        radius_grows_with_the_bandwidth(),
        ratio_with_a_unit(),
    ]


def dimension_above_ceiling(largest: int = 40) -> int | None:
    """The first dimension where not all of 2^(2(D-1)) patterns can keep half of their weight."""
    for dim in range(2, largest + 1):
        claimed, ceiling = (
            capacity_bound(dim, kind=kind, log=True) for kind in ("claimed", "ceiling")
        )
        if claimed > ceiling:
            return dim
    return None


def number_of_patterns(seed: int) -> Erratum:
    """E1: the proof places patterns that do not fit."""
    dim = 4
    claimed = round(capacity_bound(dim, kind="claimed"))
    needed = math.degrees(2 * math.pi / claimed ** (1 / (dim - 1)))
    points = spread_on_sphere(claimed, dim, seed)
    cosines = points @ points.T - 2 * np.eye(claimed)
    reached = math.degrees(math.acos(cosines.max()))
    first = dimension_above_ceiling()
    rate = math.exp(capacity_rate(2.0))
    return Erratum(
        1,
        "wrong",
        "capacity of Gaussian KDEs",
        "C = 2^(2(D−1)), by patterns at equal angles of 2π / N^(1/(D−1))",
        f"a claim, not a theorem, and too large for patterns that keep half of their own weight: "
        f"their number, provable and possible, grows as {rate:.3f}^D at M = 2σ sqrt(D−1)",
        f"At D = 4 the proof puts {claimed} patterns at {needed:.0f}° from each other; at most "
        f"{2 * dim} can be so, and {claimed} spread by repulsion come to {reached:.0f}°. From "
        f"D = {first} on the claim lies above the ceiling for patterns that keep half of their own "
        "weight, in any arrangement.",
        {
            "needed_degrees": needed,
            "reached_degrees": reached,
            "first_dimension_above_ceiling": -1 if first is None else first,
            "base_per_dimension": rate,
        },
        first is not None and reached < needed - 1,
    )


def normaliser_of_the_kernel() -> Erratum:
    """E12: h to the power of the dimension."""
    memories = torch.tensor([[0.0, 0.0], [1.0, 0.5], [-0.7, 0.8]], dtype=torch.float64)
    width, step = 0.5, 0.05
    axis = torch.arange(-6, 6, step, dtype=torch.float64)
    points = torch.cartesian_prod(axis, axis)
    kernel = torch.exp(-0.5 * torch.cdist(points, memories).square() / width**2) / (2 * math.pi)
    printed = float(kernel.sum() * step**2 / (len(memories) * width))
    corrected = float(ist.GaussianKDE(memories, width).log_prob(points).exp().sum() * step**2)
    return Erratum(
        12,
        "wrong",
        "the kernel density estimate",
        "1/(N h) Σ K((x − x_n)/h)",
        "1/(N h^D)",
        f"In 2 dimensions with h = 0.5 the printed one integrates to {printed:.4f}, the corrected "
        f"one to {corrected:.4f}.",
        {"integral_printed": printed, "integral_corrected": corrected},
        abs(corrected - 1) < 1e-6 and abs(printed - 1) > 0.1,
    )


def update_differences(patterns: Tensor, queries: Tensor, sigma: float) -> dict[str, float]:
    """One step of descent on the KDE's energy, of size sigma^2, against two closed forms."""
    kde = ist.GaussianKDE(patterns, sigma)
    descent = queries + sigma**2 * kde.score(queries)
    hopfield = torch.softmax(queries @ patterns.T / sigma**2, -1) @ patterns
    distance = torch.cdist(queries, patterns).square()
    mean_shift = torch.softmax(-0.5 * distance / sigma**2, -1) @ patterns
    return {
        "mean_shift": float((descent - mean_shift).abs().max()),
        "hopfield": float((descent - hopfield).abs().max()),
    }


def on_sphere(patterns: Tensor, radius: float) -> Tensor:
    """The patterns (N, D), each with this length."""
    return radius * patterns / torch.linalg.vector_norm(patterns, dim=1, keepdim=True)


def equal_to_hopfield_on_the_sphere(generator: torch.Generator) -> Erratum:
    """E13: equal norms are needed."""
    anywhere = 1.5 * torch.randn(8, 3, generator=generator, dtype=torch.float64)
    queries = anywhere + 0.3 * torch.randn(8, 3, generator=generator, dtype=torch.float64)
    off = update_differences(anywhere, queries, 0.8)
    on = update_differences(on_sphere(anywhere, 2.0), queries, 0.8)
    return Erratum(
        13,
        "loose",
        "KDE “exactly equivalent” to the modern Hopfield network",
        "for any patterns (main text)",
        "for patterns of equal length; otherwise descent with step σ² is mean shift",
        f"One update of the KDE differs from the Hopfield update by {on['hopfield']:.0e} at most "
        f"on a sphere and by {off['hopfield']:.2f} off it; from mean shift by "
        f"{max(on['mean_shift'], off['mean_shift']):.0e} anywhere.",
        {
            "difference_on_sphere": on["hopfield"],
            "difference_off_sphere": off["hopfield"],
            "difference_from_mean_shift": max(on["mean_shift"], off["mean_shift"]),
        },
        on["hopfield"] < EXACT and off["hopfield"] > 0.01 and off["mean_shift"] < EXACT,
    )


def two_separations(generator: torch.Generator) -> Erratum:
    """E14: half the squared distance, or the inner-product form."""

    def differ(patterns: Tensor) -> float:
        gram = patterns @ patterns.T
        own = torch.diagonal(gram)
        by_product = own[:, None] - gram
        by_distance = 0.5 * torch.cdist(patterns, patterns).square()
        for table in (by_product, by_distance):
            table.fill_diagonal_(torch.inf)
        return float((by_product.amin(1) - by_distance.amin(1)).abs().max())

    patterns = torch.randn(10, 3, generator=generator, dtype=torch.float64)
    off, on = differ(patterns), differ(on_sphere(patterns, 1.0))
    return Erratum(
        14,
        "loose",
        "definition of separation",
        "½ min |x_n − x_m|² for both models",
        "that for the KDE; min x_n·(x_n − x_m) for the Hopfield network",
        f"The two agree to {on:.0e} on a sphere and differ by up to {off:.2f} off it.",
        {"difference_on_sphere": on, "difference_off_sphere": off},
        on < 1e-6 and off > 0.01,
    )


def one_fixed_point_for_the_ball() -> Erratum:
    """E15: a ball from which two places are reached stores nothing."""
    patterns = torch.tensor([[0.0], [3.0], [20.0]], dtype=torch.float64)
    kde = ist.GaussianKDE(patterns, 1.0)
    ball = torch.linspace(-3.4, 3.4, 72, dtype=torch.float64)[:, None]  # none at 1.5
    ends = torch.unique(ist.retrieve(kde, ball, tol=1e-10).state.round(decimals=3))
    inside = bool((ends.abs() <= 3.4).all())
    return Erratum(
        15,
        "loose",
        "definition of storage",
        "every point of the ball converges to “some” fixed point in it",
        "one common fixed point for the whole ball",
        "Patterns at 0, 3 and 20, σ = 1: starts within 3.4 of the first reach "
        f"{len(ends)} fixed points, all in that ball, at "
        + " and ".join(f"{end:.2f}" for end in ends.tolist())
        + ". The retrieval error would have as many values.",
        {"fixed_points_in_the_ball": len(ends)},
        inside and len(ends) > 1,
    )


def distance_that_returns(patterns: Tensor, sigma: float, seed: int, directions: int = 64) -> float:
    """How far the first pattern can be pushed, in any of some directions, and still come back."""
    kde = ist.GaussianKDE(patterns, sigma)
    home = ist.retrieve(kde, patterns[:1]).state
    generator = torch.Generator().manual_seed(seed)
    away = torch.randn(directions, patterns.shape[1], generator=generator, dtype=torch.float64)
    away = torch.cat([on_sphere(away, 1.0), on_sphere(patterns[1:] - patterns[0], 1.0)])
    low, high = 0.0, float(torch.pdist(patterns).min())
    for _ in range(12):
        middle = (low + high) / 2
        ends = ist.retrieve(kde, patterns[0] + middle * away).state
        back = float((ends - home).abs().max()) < 1e-3 * sigma
        low, high = (middle, high) if back else (low, middle)
    return low


def radius_is_a_lower_bound(seed: int) -> Erratum:
    """E16: the guaranteed radius is far below the true one."""
    dim = 10
    size = 2 * math.sqrt(dim - 1)
    axes = size * torch.eye(dim, dtype=torch.float64)
    patterns = torch.cat([axes, -axes])
    promised = guaranteed_radius(len(patterns), size, 1.0)
    measured = distance_that_returns(patterns, 1.0, seed)
    return Erratum(
        16,
        "wrong",
        "radius of convergence",
        "equal to σ²/(N M)",
        "at least that; usually far more",
        f"{len(patterns)} patterns on the axes in {dim} dimensions: the formula says "
        f"{promised:.4f}, starts return from up to {measured:.2f} away, "
        f"{measured / promised:.0f} times as far.",
        {"radius_by_formula": promised, "radius_measured": measured},
        measured > 2 * promised,
    )


def radius_grows_with_the_bandwidth() -> Erratum:
    """E17: only M / sigma counts."""
    dim, sigma = 20, 3.0
    size = 2 * math.sqrt(dim - 1)
    logs = {
        "sigma_1": capacity_bound(dim, 1.0, size, log=True),
        "sigma_3_radius_as_printed": capacity_bound(dim, sigma, size, log=True),
        "sigma_3_radius_scaled": capacity_bound(dim, sigma, sigma * size, log=True),
    }
    tens = {name: value / math.log(10) for name, value in logs.items()}
    return Erratum(
        17,
        "loose",
        "capacity proposition",
        "M = 2 sqrt(D−1), with σ = 1 only in the proof",
        "M = 2σ sqrt(D−1)",
        f"D = 20, certified numbers: 10^{tens['sigma_1']:.2f} at σ = 1; at σ = 3 it is "
        f"10^{tens['sigma_3_radius_as_printed']:.2f} on the same sphere and "
        f"10^{tens['sigma_3_radius_scaled']:.2f} on one three times as large.",
        {f"log10_{name}": value for name, value in tens.items()},
        abs(logs["sigma_3_radius_scaled"] - logs["sigma_1"]) < 1e-6
        and logs["sigma_3_radius_as_printed"] < logs["sigma_1"] - 1,
    )


def ratio_with_a_unit() -> Erratum:
    """E25: the paper's measure changes with the unit of length."""
    cells = [
        run_sweep(
            [5], [20], seeds=1, sigma=sigma, n_particles=20, max_patterns=4, progress=False
        ).cells[0]
        for sigma in (1.0, 10.0)
    ]
    raw = cells[1].ratio / cells[0].ratio
    normalized = cells[1].normalized_ratio / cells[0].normalized_ratio
    return Erratum(
        25,
        "loose",
        "figure of retrieval against N and D",
        "final over initial distance, divided by the mean distance of patterns",
        "the ratio alone, which has no unit, and the share retrieved",
        f"The same experiment in a unit of length ten times smaller: the ratio changes by a factor "
        f"of {raw:.3f}, the printed measure by {normalized:.3f}. So it also falls with D, where "
        "patterns lie farther apart, when retrieval does not change.",
        {"ratio_changes_by": raw, "printed_measure_changes_by": normalized},
        abs(raw - 1) < 1e-3 and abs(normalized - 0.1) < 1e-3,
    )
