"""sample: draw from an energy with HMC, NUTS, MALA, Langevin, or a sampler of your own."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor

from isthmus.dynamics.diagnostics import Chains
from isthmus.dynamics.retrieve import require_energy, require_pointwise
from isthmus.dynamics.samplers import HMC, MetropolisState, Sampler, noise
from isthmus.dynamics.tempering import TemperedState
from isthmus.dynamics.tuning import Tunable, tuned
from isthmus.energy import Energy, draws_as_given
from isthmus.errors import DivergenceError, InvalidInputError, OutsideSupportError, ShapeError
from isthmus.memories.base import MOST_DRAWS, generator_for
from isthmus.progress import progress as progress_bar
from isthmus.validation import as_count, as_flag, as_points

# The sampler of those who name none; its step size is tuned.
DEFAULT_SAMPLER = HMC(n_leapfrog=8, jitter=0.3)
# Scores that the default burn-in costs each chain, and its least number of steps.
BURN_IN_SCORES, FEWEST_BURN_IN = 1000, 100
# Share of the burn-in that tunes the sampler; in the rest it is frozen already.
TUNING_SHARE = 0.75


def sample(
    energy: Energy,
    n: int,
    sampler: Sampler[Any] | None = None,
    *,
    init: Any = None,
    seed: int | torch.Generator = 0,
    burn_in: int | None = None,
    thin: int = 1,
    chains: int | None = None,
    tune: bool | None = None,
    progress: bool | None = None,
) -> Tensor:
    r"""Draw n points from :math:`p(x) \propto \exp(-\beta_E E(x))`: (n, D).

    They are an array if `init` is not a tensor or, without it, if the energy was made from arrays.

    Where the energy has exact draws (``energy.has_exact_draws``: most memories), they are taken:
    ``energy.sample(n, seed)``. Markov chains run on all other energies, and on these as well if
    any option of chains is given: a sampler, `init`, `burn_in`, `thin`, `chains` or `tune`.

    Parameters
    ----------
    energy : Energy
    n : int
    sampler : Langevin, MALA, HMC, NUTS, Tempering, or any object with ``init`` and ``step``
        Default: HMC of 8 leapfrogs, with a step size and scales tuned during the burn-in.
    init : (D,) or (chains, D), optional
        Starting points of the chains. Default: memories drawn in proportion to their weights, if
        the energy, or what it is made of, has memories; else standard normal points.
    seed : int or torch.Generator
    burn_in : int, optional
        Steps of each chain before its draws begin. Default: 1000 for Langevin and MALA; for HMC
        1000 leapfrogs, in at least 100 trajectories.
    thin : int
        Each chain keeps one state in every `thin` steps.
    chains : int, optional
        Chains that run in parallel. Default: the number of rows of `init`, else n chains of one
        draw each, which are independent of each other.
    tune : bool, optional
        Tune the step size of Langevin, MALA, HMC or NUTS, and the ``scales`` of HMC and NUTS (their
        mass matrix), in the first three quarters of the burn-in; both are frozen afterwards, so
        that the draws come from a kernel whose stationary distribution is the target.
        Default: only if `sampler` is not given.
    progress : bool, optional
        Show a bar on stderr. Default: on a terminal, once the run takes longer than two seconds.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> class Bowl(ist.Energy):
    ...     def energy(self, x):
    ...         return 0.5 * (x - 3).square().sum(-1)
    >>> draws = ist.sample(Bowl(), 2000, init=torch.zeros(2))
    >>> draws.shape, bool((draws.mean(0) - 3).abs().max() < 0.1)
    (torch.Size([2000, 2]), True)
    """
    require_energy(energy)
    n = as_count(n, "n", at_most=MOST_DRAWS)
    options: dict[str, Any] = {"init": init, "burn_in": burn_in, "tune": tune}
    of_chains = (sampler, chains, *options.values())
    thin = as_count(thin, "thin")
    if energy.has_exact_draws and thin == 1 and all(option is None for option in of_chains):
        return energy.sample(n, seed)
    if chains is None:
        shape = () if init is None else as_points(init, "init", like=energy._template).shape
        chains = shape[0] if len(shape) == 2 else n
    draws = math.ceil(n / as_count(chains, "chains"))
    options |= {"chains": chains, "thin": thin, "seed": seed, "progress": progress}
    found = sample_chains(energy, draws, sampler, **options)
    if float(found.acceptance.max()) == 0:
        warnings.warn(
            "No proposal was accepted, so the draws equal the starting points. "
            "Use a smaller step_size, or tune=True.",
            RuntimeWarning,
            stacklevel=2,
        )
    return found.flatten()[:n]


@torch.no_grad()
def sample_chains(
    energy: Energy,
    draws: int,
    sampler: Sampler[Any] | None = None,
    *,
    chains: int = 4,
    init: Any = None,
    seed: int | torch.Generator = 0,
    burn_in: int | None = None,
    thin: int = 1,
    tune: bool | None = None,
    progress: bool | None = None,
) -> Chains:
    """Run parallel chains and return them separately, with R-hat and effective sample size.

    Parameters are those of :func:`sample`, except that `draws` is the number of draws of each
    chain. Each chain makes ``burn_in + draws * thin`` steps.

    >>> import torch, isthmus as ist
    >>> memory = ist.GaussianKDE(torch.zeros(1, 2), 1.0)
    >>> ist.sample_chains(memory, 500, ist.HMC(step_size=0.5, n_leapfrog=3))
    Chains(draws=500, chains=4, D=2, acceptance=0.9...)
      R-hat at most ..., effective sample size at least ... of 2000
    """
    require_energy(energy)
    draws, chains = as_count(draws, "draws"), as_count(chains, "chains")
    thin = as_count(thin, "thin")
    tune = sampler is None if tune is None else as_flag(tune, "tune")
    sampler = DEFAULT_SAMPLER if sampler is None else sampler
    if isinstance(sampler, type) or not isinstance(sampler, Sampler):
        raise InvalidInputError(
            f"sampler must be an object such as isthmus.MALA(step_size=0.1), not {sampler!r}."
        )
    if tune and not isinstance(sampler, Tunable):
        raise InvalidInputError(
            f"tune=True needs isthmus.Langevin, MALA, HMC or NUTS as the sampler, not {sampler!r}."
        )
    default = max(BURN_IN_SCORES // getattr(sampler, "n_leapfrog", 1), FEWEST_BURN_IN)
    burn_in = default if burn_in is None else as_count(burn_in, "burn_in", at_least=0)
    position, generator = starting_points(energy, init, chains, seed, energy._chain_starts)
    require_pointwise(energy, position)
    draws_made, acceptance = position.new_empty(draws, *position.shape), position.new_zeros(chains)
    total, done = burn_in + draws * thin, 0
    with progress_bar("sampling", total, show=progress) as report:
        if tune and isinstance(sampler, Tunable):
            done = int(TUNING_SHARE * burn_in)
            sampler, state = tuned(energy, sampler, position, done, generator, report)
        else:
            state = sampler.init(energy, position)
        for step in range(done + 1, total + 1):
            state, info = sampler.step(energy, state, generator)
            draw, left = divmod(step - burn_in, thin)
            kept = step > burn_in and left == 0
            unadjusted = not isinstance(state, MetropolisState | TemperedState)
            _require_inside(
                energy, state.position, kept and unadjusted, f"step {step} of {total}", sampler
            )
            if kept:
                draws_made[draw - 1] = state.position
            if step > burn_in:
                acceptance += info.acceptance
            report(step)
    found = draws_made, acceptance / (draws * thin)
    draws_made, acceptance = draws_as_given(found, energy, init)
    return Chains(draws_made, acceptance, sampler)


def starting_points(
    energy: Energy,
    init: Any,
    count: int,
    seed: int | torch.Generator,
    draw: Callable[[int, torch.Generator], Tensor | None] | None,
    width: float = 1.0,
) -> tuple[Tensor, torch.Generator]:
    """Return points (count, D) and the random stream for the steps.

    The points are `init`, else those of `draw` if it has any, else normal noise of some width.
    """
    like = energy._template
    if init is not None:
        points = as_points(init, "init", dim=energy.dim, like=like).detach()
        if points.shape[:-1] not in ((), (count,)):
            raise ShapeError(
                f"init must have shape (D,), or ({count}, D) with one row for each chain, not "
                f"{tuple(points.shape)}."
            )
        return points.expand(count, -1).clone(), generator_for(seed, points.device)
    like = torch.empty(()) if like is None else like
    generator = generator_for(seed, like.device)
    if draw is not None and (starts := draw(count, generator)) is not None:
        return starts.detach(), generator
    dim = energy._known_dim("Pass init (chains, D), or give the class a property dim.")
    return width * noise(like.new_empty(count, dim), generator), generator


def _require_inside(
    energy: Energy, position: Tensor, kept: bool, step: str, sampler: Sampler[Any]
) -> None:
    """Raise if a chain has left the numbers or, where a state is kept, the energy's support."""
    # Energies square distances, so a chain is lost where the squares overflow.
    lengths = position.double().square().sum(-1)
    if not math.isfinite(lengths.sum().item()) and (lost := int((~torch.isfinite(lengths)).sum())):
        raise DivergenceError(
            f"{lost} of {position.shape[0]} chains left the representable numbers at {step}. "
            f"Reduce step_size; the sampler was {sampler!r}."
        )
    # A sampler that never compares energies can step across walls.
    if kept and (lost := int((~torch.isfinite(energy._energy(position))).sum())):
        raise OutsideSupportError(
            f"{lost} of {position.shape[0]} chains are where the energy is not finite at {step}. "
            "Use isthmus.MALA or isthmus.HMC, which reject such steps, or reduce step_size; "
            f"the sampler was {sampler!r}."
        )
