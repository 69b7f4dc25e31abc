"""Errata of the capacity section: kernel density estimates as memories."""

from __future__ import annotations

import math

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.capacity import capacity_bound, capacity_rate, guaranteed_radius, spread_on_sphere
from isthmus.capacity import sweep as run_sweep
from isthmus.report.parts.errata.erratum import Check, erratum, normal

EXACT = 1e-9


def dimension_above_ceiling(largest: int = 40) -> int | None:
    """Return the first D where not all of 2^(2(D-1)) patterns can keep half of their weight."""
    for dim in range(2, largest + 1):
        claimed, ceiling = (
            capacity_bound(dim, kind=kind, log=True) for kind in ("claimed", "ceiling")
        )
        if claimed > ceiling:
            return dim
    return None


@erratum("E1")
def number_of_patterns(generator: torch.Generator) -> Check:
    """Compare the angles of the proof with what fits on the sphere."""
    dim = 4
    claimed = round(capacity_bound(dim, kind="claimed"))
    needed = math.degrees(2 * math.pi / claimed ** (1 / (dim - 1)))
    points = spread_on_sphere(claimed, dim, generator.initial_seed())
    reached = math.degrees(math.acos((points @ points.T - 2 * np.eye(claimed)).max()))
    first = dimension_above_ceiling()
    return Check(
        {
            "needed_degrees": needed,
            "reached_degrees": reached,
            "first_dimension_above_ceiling": -1 if first is None else first,
            "base_per_dimension": math.exp(capacity_rate(2.0)),
        },
        first is not None and reached < needed - 1,
        {"claimed": claimed},
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
    return Check(
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
        name: float((descent - torch.softmax(values / sigma**2, -1) @ patterns).abs().max())
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
    return Check(
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
        return float((by_product.amin(1) - by_distance.amin(1)).abs().max())

    patterns = normal(generator, 10, 3)
    off, on = differ(patterns), differ(on_sphere(patterns, 1.0))
    return Check(
        {"difference_on_sphere": on, "difference_off_sphere": off}, on < 1e-6 and off > 0.01
    )


@erratum("E15")
def one_fixed_point_for_the_ball(generator: torch.Generator) -> Check:
    """Find two fixed points in a ball that the printed definition would call stored."""
    patterns = torch.tensor([[0.0], [3.0], [20.0]], dtype=torch.float64)
    ball = torch.linspace(-3.4, 3.4, 72, dtype=torch.float64)[:, None]  # none at 1.5
    state = ist.retrieve(ist.GaussianKDE(patterns, 1.0), ball, tol=1e-10).state
    ends = torch.unique(state.round(decimals=3))
    return Check(
        {"fixed_points_in_the_ball": len(ends)},
        bool((ends.abs() <= 3.4).all()) and len(ends) > 1,
        {"ends": " and ".join(f"{end:.2f}" for end in ends.tolist())},
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
        back = float((ends - home).abs().max()) < 1e-3 * sigma
        low, high = (middle, high) if back else (low, middle)
    return low


@erratum("E16")
def radius_is_a_lower_bound(generator: torch.Generator) -> Check:
    """Measure the radius of convergence of patterns on the axes."""
    dim = 10
    size = 2 * math.sqrt(dim - 1)
    axes = size * torch.eye(dim, dtype=torch.float64)
    patterns = torch.cat([axes, -axes])
    promised = guaranteed_radius(len(patterns), size, 1.0)
    measured = distance_that_returns(patterns, 1.0, generator.initial_seed())
    return Check(
        {"radius_by_formula": promised, "radius_measured": measured},
        measured > 2 * promised,
        {"ratio": measured / promised},
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
    return Check(
        {f"log10_{name}": value / math.log(10) for name, value in logs.items()},
        abs(logs["sigma_3_radius_scaled"] - logs["sigma_1"]) < 1e-6
        and logs["sigma_3_radius_as_printed"] < logs["sigma_1"] - 1,
    )


@erratum("E25")
def ratio_with_a_unit(generator: torch.Generator) -> Check:
    """Repeat an experiment in another unit of length, which changes the paper's measure."""
    small, large = (
        run_sweep(
            [5], [20], seeds=1, sigma=sigma, n_particles=20, max_patterns=4, progress=False
        ).cells[0]
        for sigma in (1.0, 10.0)
    )
    raw = large.ratio / small.ratio
    normalized = large.normalized_ratio / small.normalized_ratio
    return Check(
        {"ratio_changes_by": raw, "printed_measure_changes_by": normalized},
        abs(raw - 1) < 1e-3 and abs(normalized - 0.1) < 1e-3,
    )
