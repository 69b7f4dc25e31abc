"""Draw new rows that resemble those of a table."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from isthmus.cluster.tabular import TableModel
from isthmus.dynamics.diagnostics import Chains
from isthmus.dynamics.sample import sample_chains
from isthmus.dynamics.samplers import HMC, MALA, Langevin
from isthmus.errors import InvalidInputError
from isthmus.memories.bandwidth import leave_one_out
from isthmus.memories.base import GaussianMemory
from isthmus.memories.kde import GaussianKDE
from isthmus.memories.modern import ModernHopfield
from isthmus.scaling import Scaling, as_table
from isthmus.validation import as_choice, as_count, as_number

__all__ = ["ENERGIES", "SAMPLERS", "SampledTable", "sample_model", "sample_table"]

ROW_ENERGIES = ("kde", "hopfield")
ENERGIES = (*ROW_ENERGIES, "crp", "crp-elbo", "elbo", "clam")
"""Energies of a table: two that store every row, and methods of clustering."""
# Samplers, and the steps between two draws: Langevin's are small, to keep its bias small.
MARKOV_CHAINS: dict[str, tuple[Langevin | MALA | HMC, int]] = {
    "langevin": (Langevin(), 100),
    "mala": (MALA(), 10),
    "hmc": (HMC(n_leapfrog=8, jitter=0.3), 3),
}
SAMPLERS = ("exact", *MARKOV_CHAINS)

# Rounding the bandwidth keeps differences between machines out of the draws.
SIGNIFICANT_DIGITS = 4
# R-hat needs at least this many draws of each chain.
FEWEST_DRAWS = 25
# Chains agree below this R-hat.
AGREED = 1.05
CHAINS, BURN_IN = 64, 500


@dataclass(frozen=True, eq=False)
class SampledTable:
    """Rows drawn from the density of a table.

    Attributes
    ----------
    X : ndarray (n, D)
        The draws, in the units of the table.
    columns : tuple of str
    constant : tuple of str
        Columns that do not vary; every draw has their value.
    energy : GaussianMemory
        The energy of the other columns, in standard units.
    sampler : {"exact", "langevin", "mala", "hmc"}
    seed : int
    chains : Chains or None
        All draws of the chains, in standard units; None for exact draws.
    notes : tuple of str
        Remarks on the table and on the chains.
    """

    X: NDArray[np.float64]
    columns: tuple[str, ...]
    constant: tuple[str, ...]
    energy: GaussianMemory
    sampler: str
    seed: int
    chains: Chains | None = None
    notes: tuple[str, ...] = ()

    def to_columns(self) -> dict[str, NDArray[np.float64]]:
        """Return the draws as columns (n,) by name."""
        return dict(zip(self.columns, self.X.T, strict=True))

    @cached_property
    def summary(self) -> dict[str, Any]:
        """The settings and diagnostics as plain numbers and words, for JSON."""
        found: dict[str, Any] = {
            "draws": len(self.X),
            "columns": list(self.columns),
            "constant": list(self.constant),
            "energy": type(self.energy).__name__,
            "memories": self.energy.n_memories,
            "sigma": float(self.energy.sigma),
            "sampler": self.sampler,
            "seed": self.seed,
        }
        if self.chains is not None:
            found["chains"] = _diagnostics(self.chains)
        return found


def sample_table(
    X: Any,
    n: int = 100,
    *,
    columns: Sequence[str] | None = None,
    energy: str = "kde",
    sigma: float | None = None,
    beta: float | None = None,
    n_clusters: int | None = None,
    standardise: bool = True,
    sampler: str = "exact",
    step_size: float | None = None,
    burn_in: int | None = None,
    chains: int | None = None,
    seed: int = 0,
    show_progress: bool | None = None,
) -> SampledTable:
    """Draw rows from a density that is fitted to the rows of a table.

    Parameters
    ----------
    X : array or data frame (m, D)
        NaN marks missing values, which "kde" and "hopfield" do not allow. Columns that do not
        vary keep their value.
    n : int
        The number of draws.
    columns : sequence of str, optional
        Default: the names of a data frame, else x1, x2, ...
    energy : {"kde", "hopfield", "crp", "crp-elbo", "elbo", "clam"}
        A memory of every row, or of the clusters that a method finds (see
        :class:`isthmus.cluster.TableModel`).
    sigma, beta : float, optional
        Bandwidth of "kde" and "hopfield" in standard deviations, or 1 / sigma^2. Default: by
        leave-one-out likelihood.
    n_clusters : int, optional
        Needed by "elbo" and "clam".
    standardise : bool
    sampler : {"exact", "langevin", "mala", "hmc"}
        Exact draws are independent; the others are states of Markov chains.
    step_size : float, optional
        Default: tuned in the burn-in.
    burn_in, chains : int, optional
        Steps before the first draw, and chains side by side. Default: 500 and 64.
    seed : int
    show_progress : bool, optional
        Default: on a terminal, if it takes long.

    Examples
    --------
    >>> from isthmus.synthesis import sample_table
    >>> sample_table([[0.0, 7.0], [1.0, 7.0], [3.0, 7.0]], 5).X.shape
    (5, 2)
    """
    rows, names = as_table(X, columns)
    energy = as_choice(energy, "energy", ENERGIES)
    if sigma is not None and beta is not None:
        raise InvalidInputError("sigma and beta mean the same, beta = 1 / sigma^2; give one.")
    if energy not in ROW_ENERGIES and (sigma is not None or beta is not None):
        raise InvalidInputError("sigma and beta are for the energies kde and hopfield.")
    if energy in ROW_ENERGIES and n_clusters is not None:
        raise InvalidInputError("n_clusters (-k) is for the energies elbo and clam.")
    varies = np.fmin.reduce(rows, 0) < np.fmax.reduce(rows, 0)
    if not varies.any():
        varies[:] = True  # one row, or one row many times
    varying = rows[:, varies]
    notes: tuple[str, ...] = ()
    if energy in ROW_ENERGIES:
        scaling = Scaling.of(varying, standardise)
        fitted = _energy_of_rows(scaling.into(varying), energy, sigma, beta, seed)
    else:
        moving = [name for name, moves in zip(names, varies, strict=True) if moves]
        model = TableModel.fit(
            varying,
            columns=moving,
            method=energy,
            n_clusters=n_clusters,
            standardise=standardise,
            random_state=seed,
        )
        fitted, scaling, notes = model.estimator.energy_, model.scaling, model.notes
    drawn, found = _draw(fitted, n, sampler, step_size, burn_in, chains, seed, show_progress)
    draws = np.empty((len(drawn), len(names)))
    draws[:, varies] = scaling.back(drawn)
    draws[:, ~varies] = np.fmin.reduce(rows, 0)[~varies]
    constant = tuple(name for name, moves in zip(names, varies, strict=True) if not moves)
    notes += () if found is None else (_agreement(found),)
    return SampledTable(draws, names, constant, fitted, sampler, seed, found, notes)


def sample_model(
    model: TableModel,
    n: int = 100,
    *,
    sampler: str = "exact",
    step_size: float | None = None,
    burn_in: int | None = None,
    chains: int | None = None,
    seed: int = 0,
    show_progress: bool | None = None,
) -> SampledTable:
    """Draw rows from a fitted model of a table; parameters as in :func:`sample_table`."""
    energy = model.estimator.energy_
    drawn, found = _draw(energy, n, sampler, step_size, burn_in, chains, seed, show_progress)
    notes = () if found is None else (_agreement(found),)
    draws = model.scaling.back(drawn)
    return SampledTable(draws, model.columns, (), energy, sampler, seed, found, notes)


def _energy_of_rows(
    Z: NDArray[np.float64], energy: str, sigma: float | None, beta: float | None, seed: int
) -> GaussianMemory:
    """Return a memory that stores every row."""
    if beta is not None:
        sigma = as_number(beta, "beta", above=0) ** -0.5
    if sigma is None:
        sigma = float(f"{leave_one_out(Z, seed):.{SIGNIFICANT_DIGITS}g}")
    return GaussianKDE(Z, sigma) if energy == "kde" else ModernHopfield(Z, sigma**-2)


def _draw(
    energy: GaussianMemory,
    n: int,
    sampler: str,
    step_size: float | None,
    burn_in: int | None,
    chains: int | None,
    seed: int,
    show_progress: bool | None,
) -> tuple[NDArray[np.float64], Chains | None]:
    """Return draws (n, D) in the units of the energy, and the chains that made them."""
    n = as_count(n, "n")
    sampler = as_choice(sampler, "sampler", SAMPLERS)
    if sampler == "exact":
        given = {"step_size": step_size, "burn_in": burn_in, "chains": chains}
        for name, value in given.items():
            if value is not None:
                raise InvalidInputError(f"{name} is for the samplers langevin, mala and hmc.")
        return energy.sample(n, seed=seed).double().numpy(), None
    chains = CHAINS if chains is None else as_count(chains, "chains")
    settings, thin = MARKOV_CHAINS[sampler]
    found = sample_chains(
        energy,
        max(math.ceil(n / chains), FEWEST_DRAWS),
        settings if step_size is None else replace(settings, step_size=step_size),
        chains=chains,
        seed=seed,
        burn_in=BURN_IN if burn_in is None else burn_in,
        thin=thin,
        tune=step_size is None,
        progress=show_progress,
    )
    # Spread over all draws, rather than the first of them.
    total = found.draws.shape[0] * found.draws.shape[1]
    kept = [place * total // n for place in range(n)]
    return found.flatten()[kept].double().numpy(), found


def _diagnostics(chains: Chains) -> dict[str, Any]:
    """Return the diagnostics of chains; None where a chain never moved."""
    draws, count, _ = chains.draws.shape
    r_hat, ess = float(chains.r_hat.max()), float(chains.ess.min())
    return {
        "count": count,
        "draws_of_each": draws,
        "acceptance": float(chains.acceptance.mean()),
        "largest_r_hat": r_hat if math.isfinite(r_hat) else None,
        "smallest_effective_sample_size": ess if math.isfinite(ess) else None,
    }


def _agreement(chains: Chains) -> str:
    """Return a note on how well the chains agree."""
    found = _diagnostics(chains)
    text = f"{found['count']} chains accept {found['acceptance']:.0%} of their steps"
    r_hat = found["largest_r_hat"]
    if r_hat is None:
        return f"{text} and never moved; use a smaller step size."
    text += f"; R-hat is at most {r_hat:.3f}"
    if r_hat > AGREED:
        return (
            f"{text}, so they do not agree: each stays near where it started. Use more steps, or "
            "exact draws."
        )
    return f"{text}, so they agree."
