"""Errata about densities, sampling and in-context training."""

from __future__ import annotations

import math

import torch

import isthmus as ist
from isthmus.report.parts.errata.erratum import Check, erratum, normal

EXACT = 1e-9
CHAINS, STEPS, STEP_SIZE = 20_000, 600, 0.02


class _Bowl(ist.Energy):
    """E(x) = |x|^2 / 2, whose density is standard normal."""

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x.square().sum(-1)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return -x


def bowl_variance(sampler: ist.Langevin, seed: int) -> float:
    """Return the variance of Langevin chains on E = x^2/2, where it should be 1.

    They start from draws of the right density, so a temperature of 1 keeps them there.
    """
    generator = torch.Generator().manual_seed(seed)
    bowl = _Bowl()
    state = sampler.init(bowl, normal(generator, CHAINS, 1))
    for _ in range(STEPS):
        state, _ = sampler.step(bowl, state, generator)
    return float(state.position.var())


@erratum("E22")
def noise_of_langevin(generator: torch.Generator) -> Check:
    """Compare the noise that belongs to a step with the printed noise."""
    temperature = ist.Langevin.paper().temperature
    printed = ist.Langevin(STEP_SIZE, temperature=0.01**2 / (2 * STEP_SIZE))
    corrected, small = (
        bowl_variance(sampler, generator.initial_seed())
        for sampler in (ist.Langevin(STEP_SIZE), printed)
    )
    return Check(
        {
            "temperature_of_the_printed_pair": temperature,
            "variance_corrected": corrected,
            "variance_with_noise_0.01": small,
        },
        abs(corrected - 1) < 0.05 and small < 0.05 and temperature < 1e-3,
        {"step_size": STEP_SIZE, "variance_with_noise": small},
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
    return Check(
        {"energy_at_100_lengths": heights[2], "diagonal_adds": diagonal},
        heights[2] < 50 * heights[1] < 0 and spread < EXACT,
        {"heights": ", ".join(f"{height:.3g}" for height in heights), "spread": spread},
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
    return Check(
        {"total_variation_corrected": corrected, "total_variation_printed": printed},
        corrected < 1e-6 and printed > 0.01,
    )
