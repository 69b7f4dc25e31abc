"""Energies: landscapes, completion, sampling, all three at once, and the errata about them."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import torch
from sklearn.datasets import load_digits, make_moons
from torch import Tensor

import isthmus as ist
from isthmus import figures
from isthmus.bandwidth import leave_one_out
from isthmus.errors import UnknownNormalizerError
from isthmus.figures.landscapes import ring
from isthmus.paper.report.parts.errata import EXACT, Check, erratum, largest_gap, normal
from isthmus.paper.report.registry import compose, text_of
from isthmus.paper.report.section import Section

# Memories and starts of paths, on a line and on a plane.
LINE = torch.tensor([[-2.3], [-1.85], [1.1], [2.5]], dtype=torch.float64)
LINE_QUERIES = torch.tensor(
    [[-2.8], [-1.4], [-0.75], [-0.35], [0.5], [1.55], [2.0], [2.95]], dtype=torch.float64
)
PLANE = torch.tensor(
    [[-1.65, 1.1], [-1.2, 1.6], [2.1, 1.4], [0.9, -2.2], [-1.7, -1.4], [1.5, -0.4]],
    dtype=torch.float64,
)
PLANE_QUERIES = torch.as_tensor(np.concatenate([ring(24, 3.0), ring(10, 1.1, turn=0.5)]))
# Tolerances for rounding in an update, integration on a grid, and finite differences.
LARGEST_RISE, LARGEST_LOSS, SAME = 1e-9, 1e-3, 1e-6
# Share of the memories that are outliers, where likelihoods are compared.
OUTLIERS = 0.02

SHAPE, HELD_OUT, HERO_DIGITS = (8, 8), 400, (3, 5)
# Completion works if its error is at most this share of the mean image's, and at least this
# share of the digits ends at a memory of the right digit.
ERROR_SHARE, RIGHT_SHARE = 0.9, 0.8

DRAWS, REFERENCE_DRAWS, REPEATS = 500, 2000, 20
# Each sampler with the steps before its one draw per chain.
SAMPLERS: dict[str, tuple[Any, int]] = {
    "Langevin": (ist.Langevin(step_size=0.01), 1000),
    "MALA": (ist.MALA(step_size=0.05), 600),
    "HMC": (ist.HMC(step_size=0.2, n_leapfrog=8), 100),
}
# Draws are close if they are at most this many times as far as the farthest exact draws.
CLOSE = 2.0
CHAINS, BOWL_STEPS, BOWL_STEP = 20_000, 600, 0.02


def three_uses_of_one_energy(seed: int, full: bool = False) -> Section:
    """Draw retrieval, density and completion side by side."""
    energy = ist.GaussianKDE(PLANE, sigma=0.4)
    digits = completed_digits(seed)
    shown = [int((digits.labels == digit).nonzero()[0]) for digit in HERO_DIGITS]
    images = (digits.masked[shown], digits.completed[shown])
    draws = energy.sample(500, seed=seed)
    return compose("hero", figures.hero(energy, PLANE, PLANE_QUERIES, draws, *images, SHAPE))


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


def landscapes_on_a_line(seed: int, full: bool = False) -> Section:
    """Draw the six energies in one dimension. Nothing is random."""
    energies = six_memories(LINE, sigma=0.32)
    numbers, rise = measured(energies, LINE_QUERIES)
    masses = {name: each["integral_of_density"] for name, each in numbers.items()}
    known = {energies[name]: mass for name, mass in masses.items() if mass is not None}
    loss = max(abs(mass - 1) for mass in known.values())
    printed = max(gradient_gap(energy, 1.0) for energy in known)
    corrected = max(gradient_gap(each, float(each.inverse_temperature)) for each in known)
    notes = text_of("landscapes-1d").notes
    return compose(
        "landscapes-1d",
        figures.landscapes_1d(energies, LINE, LINE_QUERIES, notes=notes),
        numbers,
        {
            "density": (printed <= SAME, corrected <= SAME and loss <= LARGEST_LOSS),
            "descent": rise <= LARGEST_RISE,
        },
        densities=len(known),
        corrected=corrected,
        printed=printed,
        loss=loss,
        rise=rise,
        energies=len(numbers),
    )


def landscapes_on_a_plane(seed: int, full: bool = False) -> Section:
    """Draw the six energies in two dimensions. Nothing is random."""
    energies = six_memories(PLANE, sigma=0.4)
    numbers, rise = measured(energies, PLANE_QUERIES)
    change, leftover = swap_changes(energies["Hopfield"], energies["Modern Hopfield"])
    notes = text_of("landscapes-2d").notes
    return compose(
        "landscapes-2d",
        figures.landscapes_2d(energies, PLANE, PLANE_QUERIES, notes=notes),
        numbers,
        {"descent": rise <= LARGEST_RISE, "swap": leftover <= SAME and change > 0.1},
        rise=rise,
        energies=len(numbers),
        change=change,
        leftover=leftover,
    )


def other_likelihoods(seed: int, full: bool = False) -> Section:
    """Draw Laplace, uniform and Student-t memories on a line, and fit them to outliers."""
    energies: dict[str, ist.Energy] = {
        "Laplace KDE": ist.LaplaceKDE(LINE, bandwidth=0.25),
        "Uniform KDE": ist.UniformKDE(LINE, bandwidth=0.8),
        "Student-t KDE": ist.StudentKDE(LINE, bandwidth=0.2, dof=3.0),
    }
    numbers, rise = measured(energies, LINE_QUERIES)
    loss = max(abs(each["integral_of_density"] - 1) for each in numbers.values())
    forces = [float(energy.score(LINE_QUERIES).abs().max()) for energy in energies.values()]
    clean, mixed = (fit_with_outliers(seed, share) for share in (0.0, OUTLIERS))
    return compose(
        "likelihoods",
        figures.landscapes_1d(energies, LINE, LINE_QUERIES, notes=text_of("likelihoods").notes),
        {**numbers, "clean_log_density": clean, "clean_log_density_with_outliers": mixed},
        {"likelihoods": (min(forces) > 0, rise <= LARGEST_RISE and loss <= LARGEST_LOSS)},
        rise=rise,
        loss=loss,
        outliers=OUTLIERS,
    )


def fit_with_outliers(seed: int, share: float) -> dict[str, float]:
    """Return the log-density of clean points under memories of which a share are outliers.

    Half of the data are stored and the other half, with as many outliers, choose the bandwidth.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]], dtype=torch.float64)
    points = centres[torch.randint(3, (600,), generator=generator)]
    points = points + 0.4 * normal(generator, 600, 2)
    stored, chooses, clean = points[:150], points[150:300], points[300:]
    for some in (stored, chooses):
        count = round(share * len(some))
        some[:count] = 10 * normal(generator, count, 2)
    kinds: dict[str, Callable[..., ist.Energy]] = {
        "Gaussian": ist.GaussianKDE,
        "Laplace": ist.LaplaceKDE,
        "Student-t": partial(ist.StudentKDE, dof=2.0),
    }
    fits = {
        name: max(
            (kind(stored, width) for width in np.geomspace(0.05, 10, 24)),
            key=lambda kde: float(kde.log_prob(chooses).mean()),
        )
        for name, kind in kinds.items()
    }
    return {name: float(kde.log_prob(clean).mean()) for name, kde in fits.items()}


def measured(energies: dict[str, ist.Energy], queries: Tensor) -> tuple[dict[str, Any], float]:
    """Return the rise and the integral of each energy, and the largest rise of all."""
    numbers = {
        name: {
            "largest_energy_rise": largest_rise(energy, queries),
            "integral_of_density": integral(energy, reach=10.0),
        }
        for name, energy in energies.items()
    }
    return numbers, max(entry["largest_energy_rise"] or 0.0 for entry in numbers.values())


def gradient_gap(energy: ist.Energy, factor: float) -> float:
    """Return the largest gap between the slope of log p on a line and factor times -dE/dx."""
    step = 1e-5
    above, below = (energy.log_prob(LINE_QUERIES + shift) for shift in (step, -step))
    gap = (above - below) / (2 * step) - factor * energy.score(LINE_QUERIES)[:, 0]
    return float(gap[torch.isfinite(gap)].abs().max())


def swap_changes(*networks: Any) -> tuple[float, float]:
    """Mirror the memories of networks.

    Returns the smallest of their largest changes of energy, and the largest difference from the
    mirror image of the old landscape.
    """
    changes, leftovers = [], []
    for network in networks:
        before, swapped = network.energy(PLANE_QUERIES), network.with_memories(PLANE.flip(1))
        changes.append(largest_gap(swapped.energy(PLANE_QUERIES), before))
        # Mirrored memories see a mirrored query as the first ones saw the query itself.
        leftovers.append(largest_gap(swapped.energy(PLANE_QUERIES.flip(1)), before))
    return min(changes), max(leftovers)


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


class CompletedDigits(NamedTuple):
    """Held-out digits (M, 64) before and after, with the memory that completed them."""

    memory: ist.GaussianKDE
    memory_labels: Tensor
    originals: Tensor
    labels: Tensor
    masked: Tensor
    completed: Tensor


def completed_digits(seed: int) -> CompletedDigits:
    """Store most of scikit-learn's digits and complete the others from their upper halves."""
    bunch = load_digits()
    images, labels = torch.as_tensor(bunch.data) / 16, torch.as_tensor(bunch.target)
    order = torch.randperm(len(images), generator=torch.Generator().manual_seed(seed))
    kept, held_out = order[:-HELD_OUT], order[-HELD_OUT:]
    memory = ist.GaussianKDE(images[kept], sigma=leave_one_out(images[kept]))
    masked = images[held_out].clone()
    masked[:, masked.shape[1] // 2 :] = torch.nan
    truth = images[held_out], labels[held_out]
    completed = ist.complete(memory, masked, how="mode")
    return CompletedDigits(memory, labels[kept], *truth, masked, completed)


def completion_of_digits(seed: int, full: bool = False) -> Section:
    """Complete held-out digits; draw the first of each kind and measure all."""
    digits = completed_digits(seed)
    memory, unknown = digits.memory, torch.isnan(digits.masked)

    def error(guess: Tensor) -> float:
        return float((guess - digits.originals)[unknown].square().mean().sqrt())

    nearest = digits.memory_labels[memory.responsibilities(digits.completed).argmax(1)]
    ours, mean_filled = error(digits.completed), error(memory.memories.mean(0).expand_as(unknown))
    right = float((nearest == digits.labels).double().mean())
    firsts = [int((digits.labels == digit).nonzero()[0]) for digit in range(10)]
    shown = (digits.originals[firsts], digits.masked[firsts], digits.completed[firsts])
    numbers = {
        "images_remembered": memory.n_memories,
        "images_completed": len(digits.originals),
        "sigma": float(memory.sigma),
        "rms_error_of_completion": ours,
        "rms_error_of_conditional_mean": error(memory.conditional_mean(digits.masked, ~unknown)),
        "rms_error_of_filling_with_the_mean": mean_filled,
        "share_with_the_right_digit": right,
    }
    figure = figures.completion(*shown, SHAPE)
    checks = {"complete": ours < ERROR_SHARE * mean_filled and right > RIGHT_SHARE}
    return compose("completion", figure, numbers, checks, shown=len(firsts))


def samples_of_two_moons(seed: int, full: bool = False) -> Section:
    """Start all chains at one point and measure how well they cover the density."""
    memories, _ = make_moons(60, noise=0.04, random_state=seed)
    energy = ist.GaussianKDE(torch.from_numpy(memories * 1.2), sigma=0.2)

    def draws(sampler: Any, steps: int) -> Tensor:
        start = energy.memories.mean(0)
        return ist.sample(
            energy, DRAWS, sampler, init=start, seed=seed, burn_in=steps, thin=1, progress=False
        )

    drawn = {name: draws(*setting) for name, setting in SAMPLERS.items()}
    reference = energy.sample(REFERENCE_DRAWS, seed=seed + 1)
    distances = {name: energy_distance(sample, reference) for name, sample in drawn.items()}
    among_exact = [
        energy_distance(energy.sample(DRAWS, seed=seed + 2 + repeat), reference)
        for repeat in range(REPEATS)
    ]
    farthest = max(among_exact)
    # The paper's temperature, at a step that this density allows.
    paper = ist.Langevin(step_size=0.01, temperature=ist.Langevin.paper().temperature)
    cold = energy_distance(draws(paper, SAMPLERS["Langevin"][1]), reference)
    samples = {"Exact": energy.sample(DRAWS, seed=seed), **drawn}
    return compose(
        "samples",
        figures.samples_against_density(energy, samples, notes=text_of("samples").notes),
        {
            "draws": DRAWS,
            "energy_distance_to_exact_draws": {
                **distances,
                "Langevin at the paper's temperature": cold,
            },
            "largest_energy_distance_of_exact_draws": farthest,
        },
        {"langevin": cold < CLOSE * farthest},
        listed=[f"{name} {distance:.4f}" for name, distance in distances.items()],
        among_exact=(REPEATS, min(among_exact), farthest),
        langevin=(paper.temperature, cold, distances["Langevin"]),
    )


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return Székely's distance between two sets of draws (n, D): 0 if they agree."""
    between = torch.cdist(first, second).mean()
    within = torch.cdist(first, first).mean() + torch.cdist(second, second).mean()
    return float(2 * between - within)


def bowl_variance(sampler: ist.Langevin, seed: int) -> float:
    """Return the variance of Langevin chains that start from draws of E = x^2/2: it should be 1."""
    generator = torch.Generator().manual_seed(seed)
    bowl = ist.GaussianKDE(torch.zeros(1, 1, dtype=torch.float64), sigma=1.0)
    state = sampler.init(bowl, normal(generator, CHAINS, 1))
    for _ in range(BOWL_STEPS):
        state, _ = sampler.step(bowl, state, generator)
    return float(state.position.var())


@erratum("E22")
def noise_of_langevin(generator: torch.Generator) -> Check:
    """Compare the noise that belongs to a step with the printed noise."""
    temperature = ist.Langevin.paper().temperature
    corrected, small = (
        bowl_variance(ist.Langevin(BOWL_STEP, temperature=each), generator.initial_seed())
        for each in (1.0, 0.01**2 / (2 * BOWL_STEP))
    )
    return (
        {
            "temperature_of_the_printed_pair": temperature,
            "step_size": BOWL_STEP,
            "variance_corrected": corrected,
            "variance_with_the_printed_noise": small,
        },
        abs(corrected - 1) < 0.05 and small < 0.05 and temperature < 1e-3,
    )


@erratum("E26")
def hopfield_without_a_floor(generator: torch.Generator) -> Check:
    """Follow the quadratic form along a memory, where it has no lower bound."""
    memories = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]], dtype=torch.float64)
    energy = ist.Hopfield(memories, states="continuous")
    heights = [float(energy.energy(length * memories[0])) for length in (1.0, 10.0, 100.0)]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    diagonal = float(-0.5 * (memories.square().mean(0) * signs.square()).sum(1).mean())
    bare = ist.Hopfield(memories, zero_diagonal=True)
    shift = ist.Hopfield(memories).energy(signs) - bare.energy(signs)
    spread = float((shift - diagonal).abs().max())
    return (
        {"energies_along_a_memory": heights, "diagonal_adds": diagonal, "spread": spread},
        heights[2] < 50 * heights[1] < 0 and spread < EXACT,
    )


@erratum("E28")
def temperature_of_the_density(generator: torch.Generator) -> Check:
    """Compare exp(-beta E) and exp(-E) with the true mixture, written out."""
    means = normal(torch.Generator().manual_seed(generator.initial_seed()), 3, 1)
    beta, step = 2.5, 1e-3
    mixture = ist.Mixture(means, beta=beta)
    axis = torch.arange(-8, 8, step, dtype=torch.float64)[:, None]
    # Equal weights, variances 1 / (2 beta).
    truth = torch.exp(-beta * (axis - means.T).square()).mean(1) * math.sqrt(beta / math.pi)

    def off(inverse_temperature: float) -> float:
        density = torch.exp(-inverse_temperature * mixture.energy(axis))
        density = density / (density.sum() * step)
        return float((density - truth).abs().sum() * step / 2)

    corrected, printed = off(beta), off(1.0)
    return (
        {"total_variation_corrected": corrected, "total_variation_printed": printed},
        corrected < 1e-6 and printed > 0.01,
    )
