"""The landscapes of all memories, on the same few points, on a line and on a plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.cli.parts.verdicts import finding
from isthmus.errors import UnknownNormalizerError
from isthmus.figures import Finding, Section, landscapes_1d, landscapes_2d
from isthmus.figures.landscape_2d import ring

__all__ = ["landscapes_on_a_line", "landscapes_on_a_plane", "plane_memories"]

LINE_MEMORIES = [[-2.3], [-1.85], [1.1], [2.5]]
LINE_QUERIES = [[-2.8], [-1.4], [-0.75], [-0.35], [0.5], [1.55], [2.0], [2.95]]
LINE_WEIGHTS = [1.0, 1.0, 1.0, 6.0]
PLANE_MEMORIES = [[-1.65, 1.1], [-1.2, 1.6], [2.1, 1.4], [0.9, -2.2], [-1.7, -1.4], [1.5, -0.4]]
PLANE_WEIGHTS = [1.0, 1.0, 1.0, 6.0, 1.0, 1.0]

# What rounding may do to an energy in an update, and to an integral on a grid.
LARGEST_RISE, LARGEST_LOSS = 1e-9, 1e-3
SAME = 1e-6


def plane_memories() -> Tensor:
    """Return the six points that the pictures on a plane share: (6, 2)."""
    return torch.tensor(PLANE_MEMORIES, dtype=torch.float64)


def six_memories(memories: Tensor, weights: list[float], sigma: float) -> dict[str, ist.Energy]:
    """Every closed-form energy on the same memories, as alike in width as their forms allow."""
    beta = 0.5 / sigma**2
    return {
        "Hopfield": ist.Hopfield(memories, states="continuous"),
        "Modern Hopfield": ist.ModernHopfield(memories, beta=1 / sigma**2),
        "Gaussian KDE": ist.GaussianKDE(memories, sigma=sigma),
        "Epanechnikov KDE": ist.EpanechnikovKDE(memories, bandwidth=math.sqrt(5) * sigma),
        "Mixture (ClAM)": ist.Mixture(memories, beta=beta, log_weights=np.log(weights)),
        "CRP mixture": ist.CRPMixture(memories, weights, beta=beta, rho=0.4, alpha=6.0),
    }


def landscapes_on_a_line(seed: int, full: bool = False) -> Section:
    """Draw the six energies in one dimension. Nothing in it is random."""
    memories = torch.tensor(LINE_MEMORIES, dtype=torch.float64)
    energies = six_memories(memories, LINE_WEIGHTS, sigma=0.32)
    queries = torch.tensor(LINE_QUERIES, dtype=torch.float64)
    notes = {
        "Hopfield": "No valley at any memory and no floor; on a line, no query moves.",
        "Modern Hopfield": "Long memories pull harder: the one near 1 has no valley of its own.",
        "Gaussian KDE": "All memories weigh alike; two close ones share a valley.",
        "Epanechnikov KDE": "The kernel ends: hatched, the energy is infinite and nothing moves.",
        "Mixture (ClAM)": "A component with six times the weight is deeper and reaches farther.",
        "CRP mixture": "A wide valley about 0 waits for points that fit no memory.",
    }
    figure = landscapes_1d(energies, memories, queries, notes=notes)
    numbers = judge(energies, queries, reach=10.0)
    caption = (
        "Six energies on the same four memories (orange triangles). Hollow dots are queries; "
        "each slides down its curve and rests at a full dot. A low energy is a high probability, "
        "so every valley is also a peak of a density: all but the classical Hopfield energy, "
        "which has no lower bound, are exact log-densities up to a constant."
    )
    findings = (energies_are_densities(energies, queries, numbers), descent(numbers, "on a line"))
    return Section(caption, figure, numbers, findings)


def landscapes_on_a_plane(seed: int, full: bool = False) -> Section:
    """Draw the six energies in two dimensions. Nothing in it is random."""
    memories = plane_memories()
    energies = six_memories(memories, PLANE_WEIGHTS, sigma=0.4)
    queries = torch.as_tensor(np.concatenate([ring(24, 3.0), ring(10, 1.1, turn=0.5)]))
    notes = {
        "Hopfield": "States keep their length; all turn to the one axis that memories share.",
        "Modern Hopfield": "Long memories pull harder: the shortest one is forgotten.",
        "Gaussian KDE": "Every memory, or close pair of them, is the floor of its own valley.",
        "Epanechnikov KDE": "Hatched, no memory is in reach: crosses are queries that stay.",
        "Mixture (ClAM)": "The component at the bottom, with six times the weight, takes more.",
        "CRP mixture": "Queries that fit no memory fall to the middle: a new cluster.",
    }
    figure = landscapes_2d(energies, memories, queries, notes=notes)
    numbers = judge(energies, queries, reach=10.0)
    rise = max(entry["largest_energy_rise"] for entry in numbers.values())
    caption = (
        "The same six energies on six memories (orange diamonds) of a plane; dark is low. Every "
        "line is one query on its way, with a bend for each update. The most that the energy rises "
        f"in any update of any path is {rise:.0e}."
    )
    findings = (descent(numbers, "on a plane"), hot_swap(energies, queries))
    return Section(caption, figure, numbers, findings)


def judge(energies: dict[str, ist.Energy], queries: Tensor, reach: float) -> dict[str, Any]:
    """Measure what the pictures promise: the largest rise of any path, the mass of any density."""
    return {
        name: {
            "largest_energy_rise": largest_rise(energy, queries),
            "integral_of_density": integral(energy, reach),
        }
        for name, energy in energies.items()
    }


def energies_are_densities(
    energies: dict[str, ist.Energy], queries: Tensor, numbers: dict[str, Any]
) -> Finding:
    """Whether minus the gradient of each energy is its log-density's, with and without beta."""
    masses = {name: numbers[name]["integral_of_density"] for name in energies}
    known = {name: energies[name] for name, mass in masses.items() if mass is not None}
    loss = max(abs(masses[name] - 1) for name in known)
    printed = max(gradient_gap(energy, queries, 1.0) for energy in known.values())
    corrected = max(
        gradient_gap(energy, queries, float(energy.inverse_temperature))
        for energy in known.values()
    )
    return finding(
        "An energy is a negative log-likelihood: p = exp(-E)/Z, so that minus its gradient is "
        "the score.",
        f"With p = exp(-beta E)/Z the gradients of {len(known)} log-densities agree to "
        f"{corrected:.0e}, and the densities integrate to 1 up to {loss:.0e}; with exp(-E), as "
        f"printed, gradients are off by up to {printed:.1f}, since three energies carry a factor "
        "1/beta (E28). The classical Hopfield energy has no density: it has no lower bound (E26).",
        as_printed=printed <= SAME,
        corrected=corrected <= SAME and loss <= LARGEST_LOSS,
    )


def gradient_gap(energy: ist.Energy, points: Tensor, factor: float) -> float:
    """How far the slope of log p on a line, by finite differences, is from factor times -dE/dx."""
    step = 1e-5
    above, below = (energy.log_prob(points + shift) for shift in (step, -step))
    gap = (above - below) / (2 * step) - factor * energy.score(points)[:, 0]
    return float(gap[torch.isfinite(gap)].abs().max())


def descent(numbers: dict[str, Any], where: str) -> Finding:
    """Whether any update of any path raised its energy."""
    rise = max(entry["largest_energy_rise"] for entry in numbers.values())
    return finding(
        f"The dynamics of associative memories never raise their energy (here {where}).",
        f"The largest rise in any update of any path, over {len(numbers)} energies, is {rise:.0e}.",
        as_printed=rise <= LARGEST_RISE,
    )


def hot_swap(energies: dict[str, ist.Energy], queries: Tensor) -> Finding:
    """Whether other memories make another landscape, and the old ones the old one again."""
    turned = plane_memories().flip(1)
    change, leftover = math.inf, 0.0
    for name in ("Hopfield", "Modern Hopfield"):
        energy = energies[name]
        assert isinstance(energy, ist.Hopfield | ist.ModernHopfield)
        before = energy.energy(queries)
        swapped = energy.with_memories(turned)
        change = min(change, float((swapped.energy(queries) - before).abs().max()))
        # A memory set turned over sees a query turned over as the first saw the first.
        mirrored = swapped.energy(queries.flip(1))
        leftover = max(leftover, float((mirrored - before).abs().max()))
    return finding(
        "Replacing the memories of a Hopfield network, classical or modern, at once gives the "
        "landscape of the new ones.",
        f"With the memories mirrored, energies changed by {change:.2f} somewhere, and are the "
        f"mirror image of the old ones to {leftover:.0e}.",
        as_printed=leftover <= SAME and change > 0.1,
    )


def largest_rise(energy: ist.Energy, queries: Tensor) -> float:
    """Return the most that the energy rises in any single update of any path."""
    trace = ist.retrieve(energy, queries, trace=True).trace
    assert trace is not None
    height = energy.energy(trace)
    rises = height.diff(dim=0)[:, torch.isfinite(height[0])]
    return float(rises.max().clamp(min=0)) if rises.numel() else 0.0


def integral(energy: ist.Energy, reach: float) -> float | None:
    """Integrate the density over [-reach, reach]^D with D of 1 or 2; None if it has none."""
    dim = energy.dim or 1
    axis = torch.linspace(-reach, reach, 20001 if dim == 1 else 801, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    try:
        density = energy.log_prob(points).exp()
    except UnknownNormalizerError:
        return None
    return float(density.sum() * (axis[1] - axis[0]) ** dim)
