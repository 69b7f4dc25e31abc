"""Langevin, MALA and HMC against exact draws."""

from __future__ import annotations

from typing import Any

import torch
from sklearn.datasets import make_moons
from torch import Tensor

import isthmus as ist
from isthmus.cli.parts.verdicts import finding
from isthmus.figures import Section, samples_against_density

__all__ = ["samples_of_two_moons"]

DRAWS = 500
REFERENCE_DRAWS = 2000
REPEATS = 20
# Each sampler and the steps it makes before its one draw per chain.
SAMPLERS: dict[str, tuple[Any, int]] = {
    "Langevin": (ist.Langevin(step_size=0.01), 1000),
    "MALA": (ist.MALA(step_size=0.05), 600),
    "HMC": (ist.HMC(step_size=0.2, n_leapfrog=8), 100),
}
# As far from exact draws as twice the farthest of fresh exact draws is still close.
CLOSE = 2.0
NOTES = {
    "Exact": "A memory at random, plus noise.",
    "Langevin": "Downhill and noise: needs only scores, has a small bias.",
    "MALA": "Langevin, with bad steps refused: no bias.",
    "HMC": "Long swings over the landscape: no bias.",
}


def samples_of_two_moons(seed: int, full: bool = False) -> Section:
    """Start all chains at one point and see whether they find the whole density."""
    memories, _ = make_moons(60, noise=0.04, random_state=seed)
    energy = ist.GaussianKDE(memories * 1.2, sigma=0.2)
    exact = energy.sample(DRAWS, seed=seed)
    start = energy.memories.mean(0)
    drawn = {
        name: ist.sample(
            energy, DRAWS, sampler, init=start, seed=seed, burn_in=steps, thin=1, progress=False
        )
        for name, (sampler, steps) in SAMPLERS.items()
    }
    figure = samples_against_density(energy, {"Exact": exact, **drawn}, notes=NOTES)
    reference = energy.sample(REFERENCE_DRAWS, seed=seed + 1)
    distances = {name: energy_distance(draws, reference) for name, draws in drawn.items()}
    among_exact = [
        energy_distance(energy.sample(DRAWS, seed=seed + 2 + repeat), reference)
        for repeat in range(REPEATS)
    ]
    # The paper's temperature, at a step that this density can take.
    name, steps = "Langevin at the paper's temperature", SAMPLERS["Langevin"][1]
    cold = ist.Langevin(step_size=0.01, temperature=ist.Langevin.paper().temperature)
    frozen = ist.sample(
        energy, DRAWS, cold, init=start, seed=seed, burn_in=steps, thin=1, progress=False
    )
    distances[name] = energy_distance(frozen, reference)
    numbers = {
        "draws": DRAWS,
        "energy_distance_to_exact_draws": distances,
        "largest_energy_distance_of_exact_draws": max(among_exact),
    }
    listed = ", ".join(f"{name} {distances[name]:.4f}" for name in SAMPLERS)
    caption = (
        f"The density of a Gaussian KDE (dark is high) and {DRAWS} draws from it: exact ones, and "
        "those of three samplers that know nothing but the energy. Every chain starts at the same "
        "point in the middle, so what one sees is where the chains went. Their energy distances "
        f"from exact draws: {listed}; {REPEATS} fresh sets of exact draws came to between "
        f"{min(among_exact):.4f} and {max(among_exact):.4f}."
    )
    claim = finding(
        "Langevin dynamics with step 3.16 and noise 0.01 samples from an energy's density.",
        f"The pair's temperature is {cold.temperature:.1e}, and chains at it end "
        f"{distances[name]:.2f} from exact draws in energy distance: they descend (E22). With "
        f"noise sqrt(2 step) it is {distances['Langevin']:.4f}, of fresh exact draws at most "
        f"{max(among_exact):.4f}.",
        as_printed=distances[name] < CLOSE * max(among_exact),
        corrected=distances["Langevin"] < CLOSE * max(among_exact),
    )
    return Section(caption, figure, numbers, (claim,))


def energy_distance(first: Tensor, second: Tensor) -> float:
    """Return Székely's distance between two sets of draws (n, D): 0 if they agree."""
    between = torch.cdist(first, second).mean()
    within = torch.cdist(first, first).mean() + torch.cdist(second, second).mean()
    return float(2 * between - within)
