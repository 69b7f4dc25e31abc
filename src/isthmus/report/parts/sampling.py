"""Langevin, MALA and HMC against exact draws."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor

import isthmus as ist
from isthmus.figures import samples_against_density
from isthmus.report.registry import compose
from isthmus.report.section import Section

__all__ = ["energy_distance", "samples_of_two_moons"]

DRAWS, REFERENCE_DRAWS, REPEATS = 500, 2000, 20
# Each sampler with the steps before its one draw per chain.
SAMPLERS: dict[str, tuple[Any, int]] = {
    "Langevin": (ist.Langevin(step_size=0.01), 1000),
    "MALA": (ist.MALA(step_size=0.05), 600),
    "HMC": (ist.HMC(step_size=0.2, n_leapfrog=8), 100),
}
# Draws are close if they are at most this many times as far as the farthest exact draws.
CLOSE = 2.0
NOTES = {
    "Exact": "A random memory plus noise.",
    "Langevin": "Gradient steps and noise: needs only scores, has a small bias.",
    "MALA": "Langevin with rejection of bad steps: no bias.",
    "HMC": "Long trajectories across the landscape: no bias.",
}


def samples_of_two_moons(seed: int, full: bool = False) -> Section:
    """Start all chains at one point and measure how well they cover the density."""
    memories, _ = make_moons(60, noise=0.04, random_state=seed)
    energy = ist.GaussianKDE(memories * 1.2, sigma=0.2)

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
    # The paper's temperature, at a step that this density allows.
    name = "Langevin at the paper's temperature"
    cold = ist.Langevin(step_size=0.01, temperature=ist.Langevin.paper().temperature)
    distances[name] = energy_distance(draws(cold, SAMPLERS["Langevin"][1]), reference)
    farthest = max(among_exact)
    return compose(
        "samples",
        samples_against_density(
            energy, {"Exact": energy.sample(DRAWS, seed=seed), **drawn}, notes=NOTES
        ),
        {
            "draws": DRAWS,
            "energy_distance_to_exact_draws": distances,
            "largest_energy_distance_of_exact_draws": farthest,
        },
        {
            "langevin": (
                distances[name] < CLOSE * farthest,
                distances["Langevin"] < CLOSE * farthest,
            )
        },
        listed=", ".join(f"{name} {distances[name]:.4f}" for name in SAMPLERS),
        repeats=REPEATS,
        nearest=min(among_exact),
        farthest=farthest,
        temperature=cold.temperature,
        cold=distances[name],
        warm=distances["Langevin"],
    )


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return Székely's distance between two sets of draws (n, D): 0 if they agree."""
    between = torch.cdist(first, second).mean()
    within = torch.cdist(first, first).mean() + torch.cdist(second, second).mean()
    return float(2 * between - within)
