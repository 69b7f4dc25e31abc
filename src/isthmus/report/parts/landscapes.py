"""The landscapes of six energies on the same memories, on a line and on a plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.errors import UnknownNormalizerError
from isthmus.figures import landscapes_1d, landscapes_2d
from isthmus.figures.landscape_2d import ring
from isthmus.report.registry import compose
from isthmus.report.section import Section

__all__ = ["landscapes_on_a_line", "landscapes_on_a_plane", "plane_memories"]

LINE_MEMORIES = [[-2.3], [-1.85], [1.1], [2.5]]
LINE_QUERIES = [[-2.8], [-1.4], [-0.75], [-0.35], [0.5], [1.55], [2.0], [2.95]]
LINE_WEIGHTS = [1.0, 1.0, 1.0, 6.0]
PLANE_MEMORIES = [[-1.65, 1.1], [-1.2, 1.6], [2.1, 1.4], [0.9, -2.2], [-1.7, -1.4], [1.5, -0.4]]
PLANE_WEIGHTS = [1.0, 1.0, 1.0, 6.0, 1.0, 1.0]
REACH = 10.0

# Tolerances for rounding in an update and for integration on a grid.
LARGEST_RISE, LARGEST_LOSS = 1e-9, 1e-3
SAME = 1e-6


def plane_memories() -> Tensor:
    """Return the six points that the figures on a plane share: (6, 2)."""
    return torch.tensor(PLANE_MEMORIES, dtype=torch.float64)


def six_memories(memories: Tensor, weights: list[float], sigma: float) -> dict[str, ist.Energy]:
    """Return every closed-form energy on the same memories, with comparable widths."""
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
    """Draw the six energies in one dimension. Nothing is random."""
    memories = torch.tensor(LINE_MEMORIES, dtype=torch.float64)
    energies = six_memories(memories, LINE_WEIGHTS, sigma=0.32)
    queries = torch.tensor(LINE_QUERIES, dtype=torch.float64)
    notes = {
        "Hopfield": "No valley at any memory and no lower bound; on a line, no query moves.",
        "Modern Hopfield": "Long memories pull harder: the one near 1 has no valley of its own.",
        "Gaussian KDE": "All memories have equal weight; two close ones share a valley.",
        "Epanechnikov KDE": "Kernels end: hatched, the energy is infinite and queries stay.",
        "Mixture (ClAM)": "A component with six times the weight is deeper and reaches farther.",
        "CRP mixture": "The wide valley around 0 is for points that fit no memory.",
    }
    figure = landscapes_1d(energies, memories, queries, notes=notes)
    numbers = measured(energies, queries)
    masses = {name: each["integral_of_density"] for name, each in numbers.items()}
    known = [energies[name] for name, mass in masses.items() if mass is not None]
    loss = max(abs(mass - 1) for mass in masses.values() if mass is not None)
    printed = max(gradient_gap(energy, queries, 1.0) for energy in known)
    corrected = max(
        gradient_gap(energy, queries, float(energy.inverse_temperature)) for energy in known
    )
    rise = highest_rise(numbers)
    checks = {
        "density": (printed <= SAME, corrected <= SAME and loss <= LARGEST_LOSS),
        "descent": rise <= LARGEST_RISE,
    }
    return compose(
        "landscapes-1d",
        figure,
        numbers,
        checks,
        densities=len(known),
        corrected=corrected,
        printed=printed,
        loss=loss,
        rise=rise,
        energies=len(numbers),
    )


def landscapes_on_a_plane(seed: int, full: bool = False) -> Section:
    """Draw the six energies in two dimensions. Nothing is random."""
    memories = plane_memories()
    energies = six_memories(memories, PLANE_WEIGHTS, sigma=0.4)
    queries = torch.as_tensor(np.concatenate([ring(24, 3.0), ring(10, 1.1, turn=0.5)]))
    notes = {
        "Hopfield": "States keep their length; all turn to the one axis that memories share.",
        "Modern Hopfield": "Long memories pull harder: the shortest one is forgotten.",
        "Gaussian KDE": "Every memory, or close pair of them, is the bottom of its own valley.",
        "Epanechnikov KDE": "Hatched, no memory is within reach: crosses are queries that stay.",
        "Mixture (ClAM)": "The component at the bottom has six times the weight and a wider basin.",
        "CRP mixture": "Queries that fit no memory move to the middle: a new cluster.",
    }
    figure = landscapes_2d(energies, memories, queries, notes=notes)
    numbers = measured(energies, queries)
    rise = highest_rise(numbers)
    change, leftover = swap_changes(energies, queries)
    checks = {
        "descent": rise <= LARGEST_RISE,
        "swap": leftover <= SAME and change > 0.1,
    }
    return compose(
        "landscapes-2d",
        figure,
        numbers,
        checks,
        rise=rise,
        energies=len(numbers),
        change=change,
        leftover=leftover,
    )


def measured(energies: dict[str, ist.Energy], queries: Tensor) -> dict[str, Any]:
    """Return the largest rise of the energy on any path, and the integral of each density."""
    return {
        name: {
            "largest_energy_rise": largest_rise(energy, queries),
            "integral_of_density": integral(energy, REACH),
        }
        for name, energy in energies.items()
    }


def highest_rise(numbers: dict[str, Any]) -> float:
    """Return the largest rise over all energies."""
    return max(entry["largest_energy_rise"] for entry in numbers.values())


def gradient_gap(energy: ist.Energy, points: Tensor, factor: float) -> float:
    """Return the largest gap between the slope of log p on a line and factor times -dE/dx."""
    step = 1e-5
    above, below = (energy.log_prob(points + shift) for shift in (step, -step))
    gap = (above - below) / (2 * step) - factor * energy.score(points)[:, 0]
    return float(gap[torch.isfinite(gap)].abs().max())


def swap_changes(energies: dict[str, ist.Energy], queries: Tensor) -> tuple[float, float]:
    """Mirror the memories of both Hopfield networks.

    Returns
    -------
    change : float
        The smaller of the two largest changes of an energy.
    leftover : float
        The largest difference from the mirror image of the old landscape.
    """
    mirrored = plane_memories().flip(1)
    change, leftover = math.inf, 0.0
    for name in ("Hopfield", "Modern Hopfield"):
        energy = energies[name]
        assert isinstance(energy, ist.Hopfield | ist.ModernHopfield)
        before = energy.energy(queries)
        swapped = energy.with_memories(mirrored)
        change = min(change, float((swapped.energy(queries) - before).abs().max()))
        # Mirrored memories see a mirrored query as the first ones saw the query itself.
        gap = swapped.energy(queries.flip(1)) - before
        leftover = max(leftover, float(gap.abs().max()))
    return change, leftover


def largest_rise(energy: ist.Energy, queries: Tensor) -> float:
    """Return the largest rise of the energy in any single update of any path."""
    trace = ist.retrieve(energy, queries, trace=True).trace
    assert trace is not None
    height = energy.energy(trace)
    rises = height.diff(dim=0)[:, torch.isfinite(height[0])]
    return float(rises.max().clamp(min=0)) if rises.numel() else 0.0


def integral(energy: ist.Energy, reach: float) -> float | None:
    """Integrate the density over [-reach, reach]^D for D = 1 or 2; None if there is none."""
    dim = energy.dim or 1
    axis = torch.linspace(-reach, reach, 20001 if dim == 1 else 801, dtype=torch.float64)
    points = torch.cartesian_prod(*[axis] * dim).reshape(-1, dim)
    try:
        density = energy.log_prob(points).exp()
    except UnknownNormalizerError:
        return None
    return float(density.sum() * (axis[1] - axis[0]) ** dim)
