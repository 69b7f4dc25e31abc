"""The landscapes of all memories, on the same few points, on a line and on a plane."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor

import isthmus as ist
from isthmus.errors import UnknownNormalizerError
from isthmus.figures import Section, landscapes_1d, landscapes_2d
from isthmus.figures.landscape_2d import ring

__all__ = ["landscapes_on_a_line", "landscapes_on_a_plane", "plane_memories"]

LINE_MEMORIES = [[-2.3], [-1.85], [1.1], [2.5]]
LINE_QUERIES = [[-2.8], [-1.4], [-0.75], [-0.35], [0.5], [1.55], [2.0], [2.95]]
LINE_WEIGHTS = [1.0, 1.0, 1.0, 6.0]
PLANE_MEMORIES = [[-1.65, 1.1], [-1.2, 1.6], [2.1, 1.4], [0.9, -2.2], [-1.7, -1.4], [1.5, -0.4]]
PLANE_WEIGHTS = [1.0, 1.0, 1.0, 6.0, 1.0, 1.0]


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
    return Section("Six memories on a line", caption, figure, numbers)


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
    return Section("Six memories on a plane", caption, figure, numbers)


def judge(energies: dict[str, ist.Energy], queries: Tensor, reach: float) -> dict[str, Any]:
    """Measure what the pictures promise: the largest rise of any path, the mass of any density."""
    return {
        name: {
            "largest_energy_rise": largest_rise(energy, queries),
            "integral_of_density": integral(energy, reach),
        }
        for name, energy in energies.items()
    }


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
