"""Langevin, MALA and HMC against exact draws."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor

import isthmus as ist
from isthmus.figures import samples_against_density
from isthmus.report.section import Section, judge

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
    listed = ", ".join(f"{name} {distances[name]:.4f}" for name in SAMPLERS)
    return Section(
        f"The density of a Gaussian KDE (dark is high) and {DRAWS} draws from it: exact draws, and "
        "those of three samplers that use only the energy. Every chain starts at the same point "
        f"in the middle. Energy distances from exact draws: {listed}; for {REPEATS} fresh sets of "
        f"exact draws, {min(among_exact):.4f} to {max(among_exact):.4f}.",
        samples_against_density(
            energy, {"Exact": energy.sample(DRAWS, seed=seed), **drawn}, notes=NOTES
        ),
        {
            "draws": DRAWS,
            "energy_distance_to_exact_draws": distances,
            "largest_energy_distance_of_exact_draws": max(among_exact),
        },
        (
            judge(
                "Langevin dynamics with step 3.16 and noise 0.01 samples from an energy's density.",
                f"The pair's temperature is {cold.temperature:.1e}, and chains at it end "
                f"{distances[name]:.2f} from exact draws in energy distance: they descend (E22). "
                f"With noise sqrt(2 step) the distance is {distances['Langevin']:.4f}; for fresh "
                f"exact draws it is at most {max(among_exact):.4f}.",
                as_printed=distances[name] < CLOSE * max(among_exact),
                corrected=distances["Langevin"] < CLOSE * max(among_exact),
            ),
        ),
    )


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return Székely's distance between two sets of draws (n, D): 0 if they agree."""
    between = torch.cdist(first, second).mean()
    within = torch.cdist(first, first).mean() + torch.cdist(second, second).mean()
    return float(2 * between - within)
