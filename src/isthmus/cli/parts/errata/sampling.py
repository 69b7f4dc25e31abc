"""Errata about densities, sampling and in-context training."""

from __future__ import annotations

import math

import torch

import isthmus as ist
from isthmus.cli.parts.errata.erratum import Erratum

__all__ = ["bowl_variance", "sampling_errata"]

EXACT = 1e-9
CHAINS, STEPS, STEP_SIZE = 20_000, 600, 0.02


def sampling_errata(seed: int) -> list[Erratum]:
    """E22 to E24, E26 and E28."""
    return [
        noise_of_langevin(seed),
        Erratum(
            23,
            "notation",
            "gradient of contrastive divergence",
            "x⁺ and D drawn jointly, bars and commas mixed",
            "E[∂E(x⁺ | D)] − E[∂E(x⁻ | D)], with D the points before",
            "Nothing to measure: notation only.",
        ),
        Erratum(
            24,
            "notation",
            "training pseudocode",
            "confab_data is assigned and sampled_data read; no regulariser",
            "one name; the authors' code adds the mean squared energies times 0.001",
            "Nothing to measure: names only.",
        ),
        hopfield_without_a_floor(),
        temperature_of_the_density(seed),
    ]


class _Bowl(ist.Energy):
    """E(x) = |x|^2 / 2, whose density is standard normal."""

    def energy(self, x: torch.Tensor) -> torch.Tensor:
        return 0.5 * x.square().sum(-1)

    def score(self, x: torch.Tensor) -> torch.Tensor:
        return -x


def bowl_variance(sampler: ist.Langevin, seed: int) -> float:
    """Variance that Langevin chains reach on E = x^2/2, where it should be 1.

    They start from draws of the right density, so a temperature of 1 keeps them there.
    """
    generator = torch.Generator().manual_seed(seed)
    bowl = _Bowl()
    state = sampler.init(bowl, torch.randn(CHAINS, 1, generator=generator, dtype=torch.float64))
    for _ in range(STEPS):
        state, _ = sampler.step(bowl, state, generator)
    return float(state.position.var())


def noise_of_langevin(seed: int) -> Erratum:
    """E22: the noise that belongs to a step."""
    paper = ist.Langevin.paper()
    printed = ist.Langevin(STEP_SIZE, temperature=0.01**2 / (2 * STEP_SIZE))
    variances = [bowl_variance(sampler, seed) for sampler in (ist.Langevin(STEP_SIZE), printed)]
    corrected, small = variances
    return Erratum(
        22,
        "wrong",
        "Langevin dynamics with α = 3.16 and noise 0.01",
        "samples from p",
        "noise sqrt(2α); the printed pair has a temperature of "
        f"{paper.temperature:.1e} and descends",
        f"On E = x²/2, whose variance is 1, steps of {STEP_SIZE} with noise sqrt(2α) come to "
        f"{corrected:.3f}, with noise 0.01 to {small:.4f}.",
        {
            "temperature_of_the_printed_pair": paper.temperature,
            "variance_corrected": corrected,
            "variance_with_noise_0.01": small,
        },
        abs(corrected - 1) < 0.05 and small < 0.05 and paper.temperature < 1e-3,
    )


def hopfield_without_a_floor() -> Erratum:
    """E26: a quadratic form with no lower bound."""
    memories = torch.tensor([[1.0, -1.0, 1.0], [1.0, 1.0, -1.0]], dtype=torch.float64)
    energy = ist.Hopfield(memories, states="continuous")
    heights = [float(energy.energy(length * memories[0])) for length in (1.0, 10.0, 100.0)]
    signs = torch.cartesian_prod(*[torch.tensor([-1.0, 1.0], dtype=torch.float64)] * 3)
    diagonal = float(-0.5 * (memories.square().mean(0) * signs.square()).sum(1).mean())
    bare = ist.Hopfield(memories, zero_diagonal=True)
    shift = ist.Hopfield(memories).energy(signs) - bare.energy(signs)
    spread = float((shift - diagonal).abs().max())
    return Erratum(
        26,
        "loose",
        "the Hopfield energy",
        "−½ xᵀ(1/N Σ x_n x_nᵀ) x for x in R^D",
        "for x in {−1, 1}^D or on a sphere: over R^D it has no lower bound",
        "Along a memory, at 1, 10 and 100 times its length, the energy is "
        + ", ".join(f"{height:.3g}" for height in heights)
        + f". On signs the diagonal only adds {diagonal:g}, the same for all states to "
        f"{spread:.0e}.",
        {"energy_at_100_lengths": heights[2], "diagonal_adds": diagonal},
        heights[2] < 50 * heights[1] < 0 and spread < EXACT,
    )


def temperature_of_the_density(seed: int) -> Erratum:
    """E28: exp(-beta E), not exp(-E)."""
    generator = torch.Generator().manual_seed(seed)
    means = torch.randn(3, 1, generator=generator, dtype=torch.float64)
    beta, step = 2.5, 1e-3
    mixture = ist.Mixture(means, beta=beta)
    axis = torch.arange(-8, 8, step, dtype=torch.float64)[:, None]
    # The true mixture, written out: equal weights, variances 1 / (2 beta).
    truth = torch.exp(-beta * (axis - means.T).square()).mean(1) * math.sqrt(beta / math.pi)

    def off(inverse_temperature: float) -> float:
        density = torch.exp(-inverse_temperature * mixture.energy(axis))
        density = density / (density.sum() * step)
        return float((density - truth).abs().sum() * step / 2)

    corrected, printed = off(beta), off(1.0)
    return Erratum(
        28,
        "wrong",
        "from an energy with 1/β to a density",
        "p = exp(−E)/Z",
        "p = exp(−βE)/Z for the energies of MCHN, ClAM and CRP",
        f"A mixture at β = 2.5: total variation from the true density {corrected:.0e} with β, "
        f"{printed:.2f} without.",
        {"total_variation_corrected": corrected, "total_variation_printed": printed},
        corrected < 1e-6 and printed > 0.01,
    )
