"""Energies: landscapes, completion, both at once with draws, and the errata about them."""

from __future__ import annotations

import math
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

import numpy as np
import torch
from sklearn.datasets import load_digits
from torch import Tensor

import isthmus as ist
from isthmus import figures
from isthmus.bandwidth import leave_one_out
from isthmus.errors import UnknownNormalizerError
from isthmus.figures.landscapes import ring
from isthmus.paper.report.parts.errata import (
    Check,
    corrected_by,
    erratum,
    grid,
    largest_gap,
)
from isthmus.paper.report.section import Section, judged

# Memories and starts of paths, on a line and on a plane.
LINE = torch.tensor([[-2.3], [-1.85], [1.1], [2.5]], dtype=torch.float64)
LINE_QUERIES = torch.tensor([[-2.8, -1.4, -0.75, -0.35, 0.5, 1.55, 2.0, 2.95]]).double().T
PLANE = torch.tensor(
    [[-1.65, 1.1], [-1.2, 1.6], [2.1, 1.4], [0.9, -2.2], [-1.7, -1.4], [1.5, -0.4]],
    dtype=torch.float64,
)
PLANE_QUERIES = torch.as_tensor(np.concatenate([ring(24, 3.0), ring(10, 1.1, turn=0.5)]))
NOTES = {
    "Hopfield": "No valley at any memory, and no lower bound.",
    "Modern Hopfield": "Long memories pull harder: short ones are forgotten.",
    "Gaussian KDE": "All memories have equal weight; close ones share a valley.",
    "Epanechnikov KDE": "Hatched, no memory is within reach, and queries stay.",
    "Mixture (ClAM)": "A component with six times the weight has a wider basin.",
    "CRP mixture": "The valley around 0 is for points that fit no memory.",
}
# Tolerances for rounding in an update, integration on a grid, and finite differences.
LARGEST_RISE, LARGEST_LOSS, SAME = 1e-9, 1e-3, 1e-6
SHAPE, HELD_OUT = (8, 8), 400
# Completion works if its error is at most this share of the mean image's, and at least this
# share of the digits ends at a memory of the right digit.
ERROR_SHARE, RIGHT_SHARE = 0.9, 0.8


def hero(seed: int, full: bool = False) -> Section:
    """Draw retrieval, density and completion side by side."""
    energy = ist.GaussianKDE(PLANE, sigma=0.4)
    *_, labels, masked, completed = completed_digits(seed)
    shown = [int((labels == digit).nonzero()[0]) for digit in (3, 5)]
    draws, images = energy.sample(500, seed=seed), (masked[shown], completed[shown])
    return Section(
        "An energy is a negative log-likelihood: queries move downhill to memories, valleys are "
        "peaks of a density that can be sampled, and with some coordinates fixed the others are "
        "completed.",
        figures.hero(energy, PLANE, PLANE_QUERIES, draws, *images, SHAPE),
    )


def six_memories(memories: Tensor, sigma: float) -> dict[str, ist.Energy]:
    """Return every closed-form energy on the same memories, with comparable widths."""
    beta, weights = 0.5 / sigma**2, np.ones(len(memories))
    weights[3] = 6.0
    return {
        "Hopfield": ist.Hopfield(memories, states="continuous"),
        "Modern Hopfield": ist.ModernHopfield(memories, beta=1 / sigma**2),
        "Gaussian KDE": ist.GaussianKDE(memories, sigma=sigma),
        "Epanechnikov KDE": ist.EpanechnikovKDE(memories, bandwidth=math.sqrt(5) * sigma),
        "Mixture (ClAM)": ist.Mixture(memories, beta=beta, log_weights=np.log(weights)),
        "CRP mixture": ist.CRPMixture(memories, weights, beta=beta, rho=0.4, alpha=6.0),
    }


def landscapes_1d(seed: int, full: bool = False) -> Section:
    """Draw the six energies in one dimension. Nothing is random."""
    energies = six_memories(LINE, sigma=0.32)
    numbers, rise = measured(energies, LINE_QUERIES)
    plane = measured(six_memories(PLANE, sigma=0.4), PLANE_QUERIES)[1]
    return Section(
        "Six energies on the same four memories (orange). Each query moves down its curve, from a "
        "hollow dot to a full one. Low energy is high probability.",
        figures.landscapes_1d(energies, LINE, LINE_QUERIES, notes=NOTES),
        numbers,
        (
            corrected_by("energy", temperature_of_the_density(torch.Generator())),
            judged(
                "descent",
                f"The largest rise in any update, over {len(numbers)} energies, is {rise:.0e} on a "
                f"line and {plane:.0e} on a plane.",
                max(rise, plane) <= LARGEST_RISE,
            ),
        ),
    )


def landscapes_2d(seed: int, full: bool = False) -> Section:
    """Draw the six energies in two dimensions. Nothing is random."""
    energies = six_memories(PLANE, sigma=0.4)
    changes, leftovers = [], []
    for name in ("Hopfield", "Modern Hopfield"):
        network: Any = energies[name]
        before, swapped = network.energy(PLANE_QUERIES), network.with_memories(PLANE.flip(1))
        changes.append(largest_gap(swapped.energy(PLANE_QUERIES), before))
        # Mirrored memories see a mirrored query as the first ones saw the query itself.
        leftovers.append(largest_gap(swapped.energy(PLANE_QUERIES.flip(1)), before))
    change, leftover = min(changes), max(leftovers)
    swap = judged(
        "swap",
        f"With the memories mirrored, energies change by up to {change:.2f} and are the mirror "
        f"image of the old ones to {leftover:.0e}.",
        leftover <= SAME and change > 0.1,
    )
    return Section(
        "The same on six memories in a plane; dark is low. Lines are paths of queries.",
        figures.landscapes_2d(energies, PLANE, PLANE_QUERIES, notes=NOTES),
        measured(energies, PLANE_QUERIES)[0],
        (swap,),
    )


def likelihoods(seed: int, full: bool = False) -> Section:
    """Draw Laplace, uniform and Student-t memories on a line. Nothing is random."""
    energies = {
        "Laplace KDE": ist.LaplaceKDE(LINE, bandwidth=0.25),
        "Uniform KDE": ist.UniformKDE(LINE, bandwidth=0.8),
        "Student-t KDE": ist.StudentKDE(LINE, bandwidth=0.2, dof=3.0),
    }
    notes = {
        "Laplace KDE": "A cusp at every memory: a query can end at one exactly.",
        "Uniform KDE": "Flat between the edges: no force, but the mean of those in reach.",
        "Student-t KDE": "Heavy tails: far queries still feel a pull.",
    }
    numbers, rise = measured(energies, LINE_QUERIES)
    loss = max(abs(each["integral_of_density"] - 1) for each in numbers.values())
    forces = [float(energy.score(LINE_QUERIES).abs().max()) for energy in energies.values()]
    finding = judged(
        "likelihoods",
        f"Densities integrate to 1 within {loss:.0e}, and updates raise the energy by at most "
        f"{rise:.0e}. But a uniform likelihood has no gradient: its update is the mean of the "
        "memories in reach. Lévy's law is zero on one side of a memory. Only kernels are judged.",
        min(forces) > 0,
        corrected=rise <= LARGEST_RISE and loss <= LARGEST_LOSS,
    )
    figure = figures.landscapes_1d(energies, LINE, LINE_QUERIES, notes=notes)
    return Section("Three more kernels on the same memories (orange).", figure, numbers, (finding,))


def measured(
    energies: Mapping[str, ist.Energy], queries: Tensor
) -> tuple[dict[str, dict[str, Any]], float]:
    """Return each energy's largest rise in an update and integral, and the largest rise of all."""
    numbers: dict[str, dict[str, Any]] = {}
    for name, energy in energies.items():
        trace = ist.retrieve(energy, queries, trace=True).trace
        assert trace is not None
        height = energy.energy(trace)
        rises = height.diff(dim=0)[:, torch.isfinite(height[0])]
        points, volume = grid(10.0, 0.001 if energy.dim == 1 else 0.025, energy.dim or 1)
        mass = None
        with suppress(UnknownNormalizerError):
            mass = float(energy.log_prob(points).exp().sum() * volume)
        rise = max([0.0, *rises.flatten().tolist()])
        numbers[name] = {"largest_energy_rise": rise, "integral_of_density": mass}
    return numbers, max(each["largest_energy_rise"] for each in numbers.values())


def completed_digits(seed: int) -> tuple[ist.GaussianKDE, Tensor, Tensor, Tensor, Tensor, Tensor]:
    """Store most of scikit-learn's digits and complete the others from their upper halves.

    Returns the memory and its labels, then of the others (M, 64) pixels, labels (M,), the pixels
    with NaN below, and completed.
    """
    bunch = load_digits()
    images, labels = torch.as_tensor(bunch.data) / 16, torch.as_tensor(bunch.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kept, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
    memory = ist.GaussianKDE(images[kept], sigma=leave_one_out(images[kept]))
    masked = images[held_out].clone()
    masked[:, masked.shape[1] // 2 :] = torch.nan
    completed = ist.complete(memory, masked, how="mode")
    return memory, labels[kept], images[held_out], labels[held_out], masked, completed


def completion(seed: int, full: bool = False) -> Section:
    """Complete held-out digits; draw the first of each kind and measure all."""
    memory, known, originals, labels, masked, completed = completed_digits(seed)
    unknown = torch.isnan(masked)
    conditional = memory.conditional_mean(masked, ~unknown)
    mean = memory.memories.mean(0).expand_as(unknown)
    ours, conditional_error, mean_filled = (
        float((guess - originals)[unknown].square().mean().sqrt())
        for guess in (completed, conditional, mean)
    )
    nearest = known[memory.responsibilities(completed).argmax(1)]
    right = float((nearest == labels).double().mean())
    shown = [int((labels == digit).nonzero()[0]) for digit in range(10)]
    finding = judged(
        "completion",
        f"The root mean square error of hidden pixels is {ours:.3f}, that of the mean image "
        f"{mean_filled:.3f}; {right:.0%} of the digits end at a memory of the same digit.",
        ours < ERROR_SHARE * mean_filled and right > RIGHT_SHARE,
    )
    return Section(
        f"A Gaussian KDE stores {memory.n_memories} handwritten digits and completes the lower "
        f"halves of {len(shown)} of {len(originals)} others.",
        figures.completion(originals[shown], masked[shown], completed[shown], SHAPE),
        {
            "sigma": float(memory.sigma),
            "rms_error_of_completion": ours,
            "rms_error_of_conditional_mean": conditional_error,
            "rms_error_of_filling_with_the_mean": mean_filled,
            "share_with_the_right_digit": right,
        },
        (finding,),
    )


@erratum("E28")
def temperature_of_the_density(generator: torch.Generator) -> Check:
    """Compare the gradients of five log-densities with -beta dE/dx and with -dE/dx, as printed."""
    step, corrected, printed = 1e-5, 0.0, 0.0
    for energy in six_memories(LINE, sigma=0.32).values():
        with suppress(UnknownNormalizerError):
            above, below = (energy.log_prob(LINE_QUERIES + shift) for shift in (step, -step))
            slope, force = (above - below) / (2 * step), energy.score(LINE_QUERIES)[:, 0]
            inside = torch.isfinite(slope)
            tempered = float(energy.inverse_temperature) * force
            corrected = max(corrected, largest_gap(slope[inside], tempered[inside]))
            printed = max(printed, largest_gap(slope[inside], force[inside]))
    numbers = {"gradient_off_corrected": corrected, "gradient_off_printed": printed}
    return numbers, corrected <= SAME and printed > 0.1
