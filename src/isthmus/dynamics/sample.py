"""sample: draw from an energy with Langevin, MALA, HMC, or a sampler of your own."""

from __future__ import annotations

import math
import warnings
from typing import Any

import torch
from torch import Tensor

from isthmus.dynamics.chains import Chains
from isthmus.dynamics.metropolis import MetropolisState, standard_normal
from isthmus.dynamics.progress import progress_bar
from isthmus.dynamics.samplers import Langevin, Sampler
from isthmus.energy import Energy
from isthmus.errors import DivergenceError, InvalidInputError, OutsideSupportError, ShapeError
from isthmus.memories.base import Memory, generator_for
from isthmus.validation import as_count, as_points

__all__ = ["Chains", "sample", "sample_chains"]


def sample(
    energy: Energy,
    n: int,
    sampler: Sampler[Any] | None = None,
    *,
    init: Any = None,
    seed: int | torch.Generator = 0,
    burn_in: int = 1000,
    thin: int = 10,
    chains: int | None = None,
    progress: bool | None = None,
) -> Tensor:
    r"""Draw n points from :math:`p(x) \propto \exp(-\beta_E E(x))`.

    Parameters
    ----------
    energy : Energy
    n : int
        The number of draws.
    sampler : Langevin, MALA, HMC, or anything with their ``init`` and ``step``
        Default: ``Langevin(step_size=0.01)``.
    init : (D,) or (chains, D), optional
        Where the chains start. Default: at memories drawn uniformly, if the energy has any;
        else at standard normal points.
    seed : int or torch.Generator
        The same seed gives the same draws; torch's global stream is not touched.
    burn_in : int
        Steps before the first `thin` steps that lead to a draw.
    thin : int
        Each chain keeps its state every so many steps.
    chains : int, optional
        Chains that run side by side. Default: as many as `init` has rows, else n chains of one
        draw each, which are independent of each other.
    progress : bool, optional
        Whether to show a bar on stderr. Default: on a terminal, once the run takes long.

    Returns
    -------
    Tensor (n, D)
        Of the dtype and on the device of the energy's memories, else of `init`.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> class Bowl(ist.Energy):
    ...     def energy(self, x):
    ...         return 0.5 * (x - 3).square().sum(-1)
    >>> draws = ist.sample(Bowl(), 2000, ist.MALA(step_size=0.5), init=[0.0, 0.0], burn_in=50)
    >>> draws.shape, bool((draws.mean(0) - 3).abs().max() < 0.1)
    (torch.Size([2000, 2]), True)
    """
    n = as_count(n, "n")
    starts = _read_init(energy, init)
    if chains is None:
        chains = n if starts is None or starts.ndim == 1 else starts.shape[0]
    found = sample_chains(
        energy,
        math.ceil(n / as_count(chains, "chains")),
        sampler,
        chains=chains,
        init=starts,
        seed=seed,
        burn_in=burn_in,
        thin=thin,
        progress=progress,
    )
    if float(found.acceptance.max()) == 0:
        warnings.warn(
            "No proposal was ever accepted, so the draws are where the chains began. "
            "Use a smaller step_size.",
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
    burn_in: int = 1000,
    thin: int = 10,
    progress: bool | None = None,
) -> Chains:
    """Run chains side by side and keep them apart, with R-hat and effective sample size.

    Parameters are those of :func:`sample`, but `draws` counts the draws of each chain, so that
    ``burn_in + draws * thin`` steps are made.

    Returns
    -------
    Chains
        ``draws`` (draws, chains, D), ``acceptance`` (chains,), ``r_hat`` (D,), ``ess`` (D,).

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> class Bowl(ist.Energy):
    ...     def energy(self, x):
    ...         return 0.5 * x.square().sum(-1)
    >>> chains = ist.sample_chains(
    ...     Bowl(), 500, ist.HMC(step_size=0.5, n_leapfrog=3), init=torch.zeros(2), thin=1
    ... )
    >>> chains
    Chains(draws=500, chains=4, D=2, acceptance=0.9...)
      R-hat at most 1.0..., effective sample size at least ... of 2000
    """
    draws, chains = as_count(draws, "draws"), as_count(chains, "chains")
    burn_in, thin = as_count(burn_in, "burn_in", at_least=0), as_count(thin, "thin")
    sampler = Langevin(step_size=0.01) if sampler is None else sampler
    if isinstance(sampler, type) or not isinstance(sampler, Sampler):
        raise InvalidInputError(
            f"sampler must be an object such as isthmus.MALA(step_size=0.1), not {sampler!r}."
        )
    position, generator = _starting_points(energy, _read_init(energy, init), chains, seed)
    kept = position.new_empty(draws, *position.shape)
    acceptance = position.new_zeros(chains)
    state = sampler.init(energy, position)
    total = burn_in + draws * thin
    with progress_bar(total, "sampling", progress) as report:
        for step in range(1, total + 1):
            state, info = sampler.step(energy, state, generator)
            _require_finite_chains(state.position, step, total, sampler)
            if step > burn_in:
                acceptance += info.acceptance
                draw, left = divmod(step - burn_in, thin)
                if left == 0:
                    kept[draw - 1] = state.position
                    if not isinstance(state, MetropolisState):
                        _require_support(energy, state.position, step, total, sampler)
            report(step)
    return Chains(kept, acceptance / (draws * thin))


def _read_init(energy: Energy, init: Any) -> Tensor | None:
    """The starting points as (D,) or (rows, D), where the memories are, if there are any."""
    if not isinstance(energy, Energy):
        raise InvalidInputError(f"energy must be an isthmus.Energy, not {type(energy).__name__}.")
    if init is None:
        return None
    points = as_points(init, "init", dim=energy.dim)
    if points.ndim > 2 or 0 in points.shape:
        raise ShapeError(f"init must have shape (D,) or (chains, D), not {tuple(points.shape)}.")
    return points.detach().to(energy.memories) if isinstance(energy, Memory) else points.detach()


def _starting_points(
    energy: Energy, init: Tensor | None, chains: int, seed: int | torch.Generator
) -> tuple[Tensor, torch.Generator]:
    """One point for each chain, (chains, D), and the random stream that goes on from there."""
    if init is not None:
        if init.ndim == 2 and init.shape[0] != chains:
            raise ShapeError(
                f"init has {init.shape[0]} rows for {chains} chains. Pass one row for each chain, "
                "or a single point of shape (D,) for all."
            )
        return init.expand(chains, -1).clone(), generator_for(seed, init.device)
    if isinstance(energy, Memory):
        generator = generator_for(seed, energy.memories.device)
        rows = torch.randint(
            energy.n_memories, (chains,), generator=generator, device=generator.device
        )
        return energy.memories[rows.to(energy.memories.device)].detach(), generator
    if energy.dim is None:
        raise InvalidInputError(
            f"{type(energy).__name__} does not say how many coordinates it has. Pass init, of "
            "shape (D,) or (chains, D), or give the class a property dim."
        )
    # Networks and precision matrices: the chains start where the energy's own numbers are.
    own = [*energy.parameters(), *energy.buffers()]
    like = next((tensor for tensor in own if tensor.is_floating_point()), torch.empty(()))
    generator = generator_for(seed, like.device)
    return standard_normal(like.new_empty(chains, energy.dim), generator), generator


def _require_finite_chains(position: Tensor, step: int, total: int, sampler: Any) -> None:
    # A sum is finite unless an entry is not, or it overflows; only then is a closer look needed.
    if math.isfinite(position.sum().item()):
        return
    lost = int((~torch.isfinite(position).all(-1)).sum())
    if lost:
        raise DivergenceError(
            f"{lost} of {position.shape[0]} chains left the representable numbers at step {step} "
            f"of {total}. Reduce step_size; the sampler was {sampler!r}."
        )


def _require_support(energy: Energy, position: Tensor, step: int, total: int, sampler: Any) -> None:
    # A sampler that never compares energies walks through walls without noticing.
    lost = int((~torch.isfinite(energy.energy(position))).sum())
    if lost:
        raise OutsideSupportError(
            f"{lost} of {position.shape[0]} chains stand where the energy is not finite at step "
            f"{step} of {total}. Use isthmus.MALA or isthmus.HMC, which reject such steps, or "
            f"reduce step_size; the sampler was {sampler!r}."
        )
