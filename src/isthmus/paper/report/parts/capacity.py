"""Capacity: merging basins, retrieval, bounds, phases, equivalence, and the errata about them."""

from __future__ import annotations

import json
import math
import warnings
from typing import Any

import numpy as np
import pandas as pd
import torch
from scipy.stats import ttest_ind
from sklearn.datasets import load_digits
from torch import Tensor

import isthmus as ist
from isthmus import capacity
from isthmus.capacity import basins, capacity_bound
from isthmus.figures import landscapes_2d, phase_plot
from isthmus.figures.landscapes import ring
from isthmus.paper import figures
from isthmus.paper.report.parts.errata import (
    EXACT,
    Check,
    corrected_by,
    erratum,
    largest_gap,
    normal,
)
from isthmus.paper.report.registry import recorded
from isthmus.paper.report.section import Section, judged, listed
from isthmus.paper.sweep import Sweep, sweep

# Patterns on a line, in the order in which they are added.
LINE = [[-4.0], [0.6], [4.0], [-2.2], [1.7], [-2.8], [2.6], [-0.6], [-3.4]]
SIGMAS, SHOWN = (0.2, 0.6), (3, 5, 9)
DIMS, COUNTS = (2, 3, 5, 9), (4, 12, 36, 100, 300)
SIZES: dict[str, Any] = {"seeds": 16, "n_particles": 25, "max_patterns": 4, "max_steps": 100}
# The paper states 100 particles per pattern and the sphere, but neither N nor D.
FULL_DIMS, FULL_COUNTS = (2, 3, 5, 10, 20, 50), (4, 12, 36, 100, 300, 1000)
FULL_SIZES = {"seeds": 10, "n_particles": 100, "max_patterns": 100, "max_steps": 300}
# Neighbouring cells of the sweep contradict a claim if one is worse at this level, over all cells.
LEVEL = 0.05
CORNERS, DIGITS = 18, 600


def basins_merging(seed: int, full: bool = False) -> Section:
    """Draw one memory at two bandwidths. Nothing is random."""
    numbers = {s: {n: basins(LINE[:n], s).n_basins for n in SHOWN} for s in SIGMAS}
    narrow, wide = (np.array([*found.values()]) for found in numbers.values())
    lost = np.subtract(SHOWN, wide)
    pair = pair_basins(0.99), pair_basins(1.01)
    fewer = bool((wide <= narrow).all() and wide[-1] < narrow[-1])
    return Section(
        f"The energy of a Gaussian KDE of {listed(SHOWN)} patterns (orange) at two bandwidths. "
        "Each pattern moves from its hollow dot to the full one; some share a basin.",
        figures.basins_merging(LINE, SIGMAS, SHOWN),
        {"basins_by_sigma_and_N": numbers},
        (
            judged(
                "basins-merge",
                f"At sigma = {SIGMAS[1]:g}, {listed(lost)} of {listed(SHOWN)} patterns have lost a "
                "basin of their own.",
                bool((np.diff(lost) >= 0).all() and lost[-1] > lost[0]),
            ),
            judged(
                "bandwidth-merges",
                f"There are {listed(narrow)} basins at sigma = {SIGMAS[0]:g} and {listed(wide)} at "
                f"{SIGMAS[1]:g}. Two patterns 1.98 sigma apart have {pair[0]}, at 2.02 {pair[1]}.",
                fewer and pair == (1, 2),
            ),
        ),
    )


def pair_basins(half: float) -> int:
    """Return the number of basins of two patterns that are 2 * half sigmas apart."""
    return basins([[-half], [half]], 1.0, tol=1e-9, max_steps=200_000).n_basins


def capacity_sweep(seed: int, full: bool = False) -> Section:
    """Run the paper's retrieval experiment, at a smaller size unless full."""
    dims, counts, sizes = (FULL_DIMS, FULL_COUNTS, FULL_SIZES) if full else (DIMS, COUNTS, SIZES)
    found = sweep(dims, counts, **sizes, progress=False)
    share, ratio, printed = map(found.table, ("retrieved", "ratio", "normalized_ratio"))
    tables = {"share_retrieved": share, "ratio": ratio, "ratio_as_printed": printed}
    numbers = {
        f"{name}_by_D_and_N": pd.DataFrame(table, dims, counts).to_dict("index")
        for name, table in tables.items()
    }
    fewer, lower = (contradictions(found, "normalized_ratio", along) for along in ("N", "D"))
    exceptions = contradictions(found, "ratio", "D")
    by_count, by_dim, shares = printed.mean(0), printed.mean(1), share.mean(1)
    return Section(
        "Patterns on a sphere of radius 2 sigma sqrt(D - 1), displaced by half a sigma: the share "
        f"that returns, and the paper's measure, with 95 % bands over {sizes['seeds']} draws.",
        figures.retrieval_sweep(found),
        {"draws": sizes["seeds"], **numbers},
        (
            judged(
                "more-patterns",
                f"The printed measure rises from {by_count[0]:.2f} at N = {counts[0]} to "
                f"{by_count[-1]:.2f} at N = {counts[-1]}, and falls significantly {fewer} times.",
                not fewer and bool(by_count[-1] > by_count[0]),
            ),
            judged(
                "more-dimensions",
                f"The printed measure falls from {by_dim[0]:.2f} at D = {dims[0]} to "
                f"{by_dim[-1]:.2f} at D = {dims[-1]}, but the ratio without the mean distance "
                f"(E25) rises significantly {exceptions} times; the share retrieved rises from "
                f"{shares[0]:.2f} to {shares[-1]:.2f}.",
                not lower and not exceptions,
                corrected=not lower and bool(shares[-1] > shares[0]),
            ),
        ),
    )


def contradictions(found: Sweep, measure: str, along: str) -> int:
    """Return how often a distance rises significantly with D, or falls with N, to the next cell.

    By Welch's test over draws with Bonferroni's correction.
    """
    cells = sorted(found.cells, key=lambda cell: (cell.dim, cell.count))
    values = np.array([getattr(cell, measure) for cell in cells])
    draws = values.reshape(len(found.dims), len(found.counts), -1)
    if along == "D":
        draws = -draws.swapaxes(0, 1)
    settings: dict[str, Any] = {"axis": -1, "equal_var": False, "alternative": "greater"}
    with warnings.catch_warnings(), np.errstate(all="ignore"):  # cells without any spread
        warnings.simplefilter("ignore", RuntimeWarning)
        test = ttest_ind(draws[:, :-1], draws[:, 1:], **settings)
    return int((test.pvalue < LEVEL / test.pvalue.size).sum())


def capacity_bounds(seed: int, full: bool = False) -> Section:
    """Draw all bounds, and the numbers of patterns that are proved to be stored."""
    record = json.loads(recorded("benchmarks/results/stored.json").read_text())["proofs"]
    proofs = [proof for proof in record if proof["holds"]]
    # In the plane, any number of patterns at equal angles are stored (capacity-proofs.md, 11).
    known = {2: CORNERS} | {proof["dim"]: proof["patterns"] for proof in proofs}
    more = [
        f"{each['patterns']:,} at D = {each['dim']} ({each['claimed']:,} stated)"
        for each in proofs
        if each["patterns"] > each["claimed"]
    ]
    growth = {}
    for factor, dim in ((2.0, 20), (1.7, 50)):  # per dimension, where M = factor * sqrt(D - 1)
        first, last = (
            capacity_bound(each, max_norm=factor * math.sqrt(each - 1), log=True)
            for each in (dim, dim + 20)
        )
        growth[factor] = math.exp((last - first) / 20)
    bases = {factor: math.exp(capacity.capacity_rate(factor)) for factor in growth}
    return Section(
        "Bounds on the number of patterns on a sphere of radius 2 sigma sqrt(D - 1), and a "
        "polygon, the 600-cell and 17,280 vectors of E8, which are proved to be stored.",
        figures.capacity_bounds([*range(2, 41)], {"symmetric arrangements, all stored": known}),
        {
            "number_proved_by_D": known,
            "base_per_dimension": bases[2.0],
            "certified_growth_by_M": growth,
        },
        (
            judged(
                "capacity-equals",
                f"More patterns are stored on that sphere: {listed(more)}, as `python "
                "benchmarks/stored.py` proves (docs/capacity-proofs.md, Theorem 20). The printed "
                "proof is invalid (E1).",
                False if more else None,
            ),
            judged(
                "capacity-at-least",
                f"True in some dimensions by construction ({listed(known)}); in general open. The "
                f"growth per dimension is proved to be at least {bases[2.0]:.3f}, not 4.",
                None,
            ),
            judged(
                "exponential",
                "Not by the printed proof (E1), but by random coding: numbers proved to be stored "
                f"grow by {listed(growth.values(), '.2f')} per dimension for the two radii, and in "
                f"the limit by {listed(bases.values(), '.3f')}.",
                all(1 < growth[each] < bases[each] + 0.5 for each in growth),
            ),
            corrected_by("radius", radius_is_a_lower_bound(torch.Generator().manual_seed(seed))),
        ),
    )


def phases(seed: int, full: bool = False) -> Section:
    """Draw the phases of a memory of digits, and lines of theory with recorded simulations."""
    digits = load_digits().data
    rows = np.random.default_rng(seed).permutation(len(digits))[: None if full else DIGITS]
    found = capacity.phases(digits[rows], seed=seed)
    record = json.loads(recorded("benchmarks/results/phases.json").read_text())["thresholds"]
    worst = max(abs(each["measured"] / each["predicted"] - 1) for each in record)
    figure = phase_plot(found)
    points = [each["point"] for each in record if each["point"] is not None]
    figure.axes[1].plot(*zip(*points, strict=True), "kx", ms=6, mew=1.6)
    return Section(
        f"Beyond the paper: what a Gaussian KDE of {len(rows):,} pictures of digits does at each "
        "bandwidth, and lines of theory for random patterns (docs/capacity-proofs.md, section 15), "
        "from which simulations (crosses; `python benchmarks/phases.py`) differ by at most "
        f"{worst:.1%}.",
        figure,
        {
            "regions": {name: [low, high] for name, low, high in found.regions},
            "predicted_and_measured_by_threshold": {
                each["name"]: [each["predicted"], each["measured"]] for each in record
            },
        },
    )


def hopfield_equivalence(seed: int, full: bool = False) -> Section:
    """Compare Gaussian KDE and modern Hopfield network."""
    sigma = 0.5
    lengths = 1.5 * torch.tensor([1.0, 0.55, 1.25, 0.8, 1.4], dtype=torch.float64)
    patterns = lengths[:, None] * torch.as_tensor(ring(5, 1.0, turn=0.2))
    energies = {
        "Gaussian KDE": ist.GaussianKDE(patterns, sigma),
        "Modern Hopfield": ist.ModernHopfield(patterns, beta=1 / sigma**2),
    }
    found = equal_to_hopfield_on_the_sphere(torch.Generator().manual_seed(seed))
    on_the_sphere, anywhere = (
        max(found.numbers[f"{each}_gap_{place}"] for each in ("energy", "update")) <= EXACT
        for place in ("on_a_sphere", "anywhere")
    )
    return Section(
        "The Gaussian KDE and the modern Hopfield network with beta = 1/sigma^2, with patterns of "
        "unequal lengths. With equal lengths, energies and paths are the same.",
        landscapes_2d(energies, patterns, ring(9, 2.1, turn=0.35)),
        findings=(
            judged("equivalent-on-a-sphere", f"{found.shown} (E13)", on_the_sphere),
            judged(
                "equivalent-anywhere", f"{found.shown} (E13)", anywhere, corrected=on_the_sphere
            ),
        ),
    )


def energy_gap(patterns: Tensor, queries: Tensor, sigma: float) -> float:
    """Return how much E_MCHN - sigma^2 E_KDE, both as printed, varies over the queries."""
    beta = 1 / sigma**2
    kde = -torch.logsumexp(-0.5 * beta * torch.cdist(queries, patterns).square(), 1)
    gap = ist.ModernHopfield(patterns, beta=beta).energy(queries) - sigma**2 * kde
    return float(gap.max() - gap.min())


@erratum("E13")
def equal_to_hopfield_on_the_sphere(generator: torch.Generator) -> Check:
    """Compare E_MCHN with sigma^2 E_KDE, and both updates, with equal and with other norms."""
    points, sigma = 1.5 * normal(generator, 8, 3), 0.8
    circle = 2.0 * torch.nn.functional.normalize(points, dim=1)
    queries, numbers = points + 0.3 * normal(generator, 8, 3), {}
    for place, patterns in (("on_a_sphere", circle), ("anywhere", points)):
        descent = queries + sigma**2 * ist.GaussianKDE(patterns, sigma).score(queries)
        update = torch.softmax(queries @ patterns.T / sigma**2, -1) @ patterns
        numbers[f"energy_gap_{place}"] = energy_gap(patterns, queries, sigma)
        numbers[f"update_gap_{place}"] = largest_gap(descent, update)
    on_the_sphere, anywhere = [*numbers.values()][:2], [*numbers.values()][2:]
    return numbers, max(on_the_sphere) < EXACT and min(anywhere) > 0.01


@erratum("E16")
def radius_is_a_lower_bound(generator: torch.Generator) -> Check:
    """Certify a larger radius for 20 patterns on the axes in 10 dimensions."""
    axes = 6 * torch.eye(10, dtype=torch.float64)  # 2 sqrt(D - 1) long
    promised = capacity.guaranteed_radius(20, 6.0, 1.0)
    certified = float(capacity.certify(torch.cat([axes, -axes]), 1.0).guaranteed_radius.min())
    numbers = {"radius_by_formula": promised, "radius_certified": certified}
    return numbers | {"ratio": certified / promised}, certified > 2 * promised
