r"""anneal: draws from an energy through a series of wider ones, as diffusion models make them.

A kernel density estimate of bandwidth :math:`\sigma` *is* the density of the empirical diffusion
model at noise level :math:`\sigma`: data plus noise. Its score is known, without a network.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor

from isthmus.dynamics.retrieve import require_pointwise, retrieve
from isthmus.dynamics.sample import starting_points
from isthmus.dynamics.samplers import Langevin
from isthmus.energy import Energy, as_given, draws_as_given
from isthmus.errors import DivergenceError, InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.memories.mixture import Mixture
from isthmus.memories.modern import ModernHopfield
from isthmus.validation import as_array, as_choice, as_count, as_number, as_points, require_kind

Method = Literal["flow", "langevin"]
EnergyAt = Energy | Callable[[float], Energy]

# A draw whose attractor is made of less than this many memories is one of them; of more than FEW,
# it is new.
ONE, FEW = 1.5, 10.0


@dataclass(frozen=True, eq=False)
class Verdicts:
    """Where each draw comes to rest: at a memory, at a mixture of few, or at one of many."""

    participation: Tensor
    """The effective number of memories there, 1 / sum of squared responsibilities. (n,)"""
    few: float = FEW
    """The largest number of memories of a spurious state."""

    @property
    def memorised(self) -> Tensor:
        """True for draws that come to rest at one memory. (n,)"""
        return self.participation < ONE

    @property
    def spurious(self) -> Tensor:
        """True for draws that come to rest at a mixture of few memories. (n,)"""
        return ~self.memorised & ~self.new

    @property
    def new(self) -> Tensor:
        """True for draws whose place of rest is made of many memories. (n,)"""
        return self.participation > self.few

    @property
    def shares(self) -> dict[str, float]:
        """The share of each verdict."""
        return {
            name: int(getattr(self, name).sum()) / len(self.participation)
            for name in ("memorised", "spurious", "new")
        }

    def __repr__(self) -> str:
        shown = ", ".join(f"{name}={share:.3f}" for name, share in self.shares.items())
        return f"Verdicts(n={len(self.participation)}, {shown})"


@dataclass(frozen=True, eq=False)
class Annealed:
    """The draws (n, D) of :func:`anneal`, and the energy and noise level at its end."""

    draws: Tensor
    energy: Energy
    sigma: float

    def judge(self, memories: Any = None, *, few: float = FEW) -> Verdicts:
        """Return :func:`judge_draws` with `memories`, by default those of the energy."""
        energy = self.energy if memories is None else GaussianKDE(memories, self.sigma)
        return judge_draws(energy, self.draws, few=few)

    def __repr__(self) -> str:
        count, dim = self.draws.shape
        return f"Annealed(n={count}, D={dim}, sigma={self.sigma:.4g})"


def judge_draws(energy: Energy, draws: Any, *, few: float = FEW) -> Verdicts:
    r"""Return for each draw if it is memorised, a spurious mixture of few memories, or new.

    A draw is retrieved, and the responsibilities r of the memories at its place of rest give the
    effective number of memories :math:`1/\sum_n r_n^2` there: below 1.5 the draw is memorised, up
    to `few` spurious, and above it new (Pham et al., 2025; Biroli et al., 2024).

    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[0.0], [10.0], [10.8], [20.0]])
    >>> found = ist.judge_draws(ist.GaussianKDE(memories, sigma=1.0), [[0.3], [10.1], [19.0]])
    >>> found.memorised, found.spurious
    (array([ True, False,  True]), array([False,  True, False]))
    """
    few = as_number(few, "few", above=ONE)
    require_kind(energy, "energy", Energy)
    if not energy.has_responsibilities:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} has no memories whose responsibilities are known; pass "
            "memories to judge()."
        )
    points = as_points(draws, "draws", dim=energy.dim)
    if points.ndim != 2 or 0 in points.shape:
        raise ShapeError(f"draws must have shape (n, D), not {tuple(points.shape)}.")
    with torch.no_grad():
        rest = retrieve(energy, energy.as_input(points)).state
        parts = [energy._responsibilities(block).square().sum(-1) for block in rest.split(256)]
    return Verdicts(as_given(1 / torch.cat(parts), draws), few)


def noise_schedule(largest: float, smallest: float, levels: int = 40, rho: float = 7.0) -> Tensor:
    r"""Return falling noise levels, close to each other where they are small. (levels,).

    The levels of Karras et al. (2022), equation 5: evenly spaced in :math:`\sigma^{1/\rho}`.

    >>> import isthmus as ist
    >>> ist.noise_schedule(10.0, 0.1, levels=4)
    tensor([10.0000,  2.9341,  0.6629,  0.1000], dtype=torch.float64)
    """
    top = as_number(largest, "largest", above=0)
    bottom = as_number(smallest, "smallest", above=0, below=top)
    power = as_number(rho, "rho", above=0)
    count = as_count(levels, "levels", at_least=2, at_most=10**6)
    roots = torch.linspace(1.0, (bottom / top) ** (1 / power), count, dtype=torch.float64)
    found = top * roots**power
    found[0], found[-1] = top, bottom
    return found


@torch.no_grad()
def anneal(
    energy_at: EnergyAt,
    schedule: Sequence[float] | Tensor | np.ndarray,
    n: int,
    *,
    method: Method = "flow",
    steps: int = 10,
    step_size: float = 0.1,
    init: Any = None,
    seed: int | torch.Generator = 0,
) -> Annealed:
    r"""Draw n points through falling noise levels; ``judge()`` gives a verdict on each draw.

    Parameters
    ----------
    energy_at : Energy, or a function from sigma to an Energy
        The energy at each noise level. A :class:`GaussianKDE`, :class:`Mixture` or
        :class:`ModernHopfield` is given noise by :func:`widen`; a function returns an energy whose
        density at sigma is that of data plus noise.
    schedule : (levels,)
        Noise levels, positive and falling; see :func:`noise_schedule`.
    n : int
    method : {"flow", "langevin"}
        "flow" follows the probability flow :math:`dx/d\sigma = -\sigma \nabla \log p_\sigma(x)` by
        Heun's method, two scores a level (Karras et al., 2022); "langevin" makes unadjusted
        Langevin steps (Song and Ermon, 2019).
    steps, step_size
        Of Langevin: steps at each level, and their size in units of sigma squared.
    init : (n, D), optional
        Points at the first level. Default: exact draws of its energy if it has them, else Gaussian
        noise of that width.
    seed : int or torch.Generator

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memories = torch.tensor([[-2.0, 0.0], [2.0, 0.0], [0.0, 3.0]])
    >>> schedule = ist.noise_schedule(10.0, 0.1)
    >>> found = ist.anneal(lambda sigma: ist.GaussianKDE(memories, sigma), schedule, 200)
    >>> found
    Annealed(n=200, D=2, sigma=0.1)
    >>> found.judge()
    Verdicts(n=200, memorised=1.000, spurious=0.000, new=0.000)
    """
    as_choice(method, "method", ("flow", "langevin"))
    levels = as_array(schedule, "schedule")
    if levels.ndim != 1 or len(levels) < 2:
        raise ShapeError(f"schedule must have shape (levels,), of two or more, not {levels.shape}.")
    if not (np.isfinite(levels).all() and (levels > 0).all() and (np.diff(levels) < 0).all()):
        raise InvalidInputError(
            "schedule must hold finite noise levels above zero that fall from level to level."
        )
    sigmas = levels.tolist()

    def energy_of(sigma: float) -> Energy:
        if isinstance(energy_at, Energy):
            return widen(energy_at, sigma)
        found = energy_at(sigma) if callable(energy_at) else energy_at
        require_kind(found, "energy_at, or what it returns for a sigma,", Energy)
        return found

    steps = as_count(steps, "steps")
    step_size = as_number(step_size, "step_size", above=0, below=2)
    energy = energy_of(sigmas[0])
    exact = energy._sample if energy.has_exact_draws else None
    x, generator = starting_points(energy, init, as_count(n, "n"), seed, exact, sigmas[0])
    require_pointwise(energy, x)
    for level, sigma in enumerate(sigmas):
        if method == "langevin":
            energy = energy if level == 0 else energy_of(sigma)
            sampler = Langevin(step_size * sigma**2)
            state = sampler.init(energy, x)
            for _ in range(steps):
                state, _ = sampler.step(energy, state, generator)
            x = state.position
        elif level + 1 < len(sigmas):
            following, below = sigmas[level + 1], energy_of(sigmas[level + 1])
            first = -sigma * energy.inverse_temperature * energy._score(x)
            ahead = x + (following - sigma) * first
            second = -following * below.inverse_temperature * below._score(ahead)
            x, energy = x + (following - sigma) * (first + second) / 2, below
        if not math.isfinite(float(x.sum())):
            raise DivergenceError(
                f"Points left the representable numbers at noise level {sigma:g}. Use more levels, "
                "or a smaller step_size."
            )
    return Annealed(draws_as_given(x, energy, init), energy, sigmas[-1])


def widen(energy: Energy, sigma: float) -> Energy:
    r"""Return the energy of points of `energy` with noise added: its density times a Gaussian.

    .. math:: p_\sigma = p * \mathcal N(0, \sigma^2 I)

    A :class:`GaussianKDE`, :class:`Mixture` or :class:`ModernHopfield` stays a Gaussian mixture,
    and each covariance grows by :math:`\sigma^2 I`.

    >>> import torch, isthmus as ist
    >>> ist.widen(ist.GaussianKDE(torch.zeros(1, 2), sigma=3.0), 4.0)
    GaussianKDE(N=1, D=2, sigma=5, float32)
    """
    require_kind(energy, "energy", Energy)
    noise = as_number(sigma, "sigma", above=0) ** 2
    if isinstance(energy, GaussianKDE) and energy.is_round:
        wide = (energy.variance + noise).sqrt()
        return energy._alike(GaussianKDE(energy.memories, wide, log_weights=energy.log_weights))
    if isinstance(energy, ModernHopfield | Mixture) and energy.is_round:
        weights = energy.log_weights
        if isinstance(energy, ModernHopfield):
            weights = energy.log_mixing_weights.to(energy.memories)
        return energy._alike(Mixture(energy.memories, 0.5 / (energy.variance + noise), weights))
    spread: Any = None
    beta: Any = 1.0
    if isinstance(energy, Mixture):
        spread, kind, beta = energy.covariance, energy.covariance_type, energy.beta
        matrices = kind == "full" or (kind == "tied" and spread.ndim == 2)
    elif isinstance(energy, GaussianKDE):
        shape, kind = energy.covariance, "tied"
        spread, matrices = energy.variance * (1.0 if shape is None else shape), shape is not None
        if energy.factors is not None:
            squares = energy.factors.square()
            spread = squares.reshape(-1, *[1] * spread.ndim) * spread
            kind = "full" if matrices else ("diag" if spread.ndim == 2 else "spherical")
    else:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} has no closed form with noise added; GaussianKDE, Mixture "
            "and ModernHopfield have. Pass a function from sigma to an energy instead."
        )
    grown = spread + (noise * torch.eye(energy.dim).to(spread) if matrices else noise)
    options: Any = {"covariance": grown, "covariance_type": kind}
    return energy._alike(Mixture(energy.memories, beta, energy.log_weights, **options))
