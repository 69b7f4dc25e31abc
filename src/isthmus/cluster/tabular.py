"""Models of tables: an energy with the names and the scaling of the columns it learned."""

from __future__ import annotations

import copy
import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray
from safetensors import safe_open

from isthmus.bandwidth import leave_one_out
from isthmus.cluster.basin_flow import BasinFlow
from isthmus.cluster.clam import ClAM
from isthmus.cluster.crp import ClAMCRP, ClAMCRPELBO
from isthmus.cluster.elbo import ClAMELBO
from isthmus.cluster.mean_shift import GaussianMeanShift
from isthmus.cluster.table_clusters import TableClusters
from isthmus.dynamics.diagnostics import Chains
from isthmus.dynamics.sample import sample_chains
from isthmus.dynamics.samplers import HMC, MALA, Langevin
from isthmus.energy import as_arrays
from isthmus.errors import InvalidInputError, ShapeError
from isthmus.extras import require
from isthmus.io.reading import reading
from isthmus.memories.gaussian import GaussianKDE, GaussianMemory
from isthmus.memories.modern import ModernHopfield
from isthmus.printing import listed
from isthmus.scaling import Scaling, as_table
from isthmus.validation import as_choice, as_count, as_flag, as_number, as_seed, rectangular

if TYPE_CHECKING:
    import pandas as pd

ESTIMATORS: dict[str, Any] = {
    "basin-flow": BasinFlow,
    "crp": ClAMCRP,
    "crp-elbo": ClAMCRPELBO,
    "elbo": ClAMELBO,
    "clam": ClAM,
    "mean-shift": GaussianMeanShift,
}
MEMORIES_OF_ROWS = ("kde", "hopfield")
# Methods that a setting stands for; without one, it is BasinFlow.
IMPLIED = {"n_clusters": "elbo", "alpha": "crp"}
# The methods that each setting belongs to.
SETTINGS = {
    "n_clusters": ("elbo", "clam", "basin-flow"),
    "resolution": ("basin-flow",),
    "alpha": ("crp", "crp-elbo"),
    "bandwidth": ("mean-shift",),
    "sigma": MEMORIES_OF_ROWS,
    "beta": MEMORIES_OF_ROWS,
}
SAVED = {kind.__name__: kind for name, kind in ESTIMATORS.items() if name != "mean-shift"}
# Samplers, and the steps between two draws: Langevin's are small, to keep its bias small.
SAMPLERS: dict[str, tuple[Langevin | MALA | HMC, int]] = {
    "langevin": (Langevin(), 100),
    "mala": (MALA(), 10),
    "hmc": (HMC(n_leapfrog=8, jitter=0.3), 3),
}
# R-hat needs at least this many draws of each chain.
FEWEST_DRAWS = 25


@dataclass(frozen=True)
class TableModel:
    """An energy of the rows of a table, in standard units, with the names of its columns.

    `estimator` learned the energy (None if every row is a memory), `constants` are positions,
    names and values of columns that are not part of it, and `notes` are remarks on the table.

    Examples
    --------
    >>> from isthmus.cluster import TableModel
    >>> X = [[1.0, 10.0], [1.1, 11.0], [5.0, 90.0], [5.2, 93.0]]
    >>> model = TableModel.fit(X, columns=["height", "weight"], n_clusters=2)
    >>> print(model.describe(X))
    2 clusters in 4 rows, 2 features (standardised; ClAMELBO)
    ...
    """

    energy: GaussianMemory
    scaling: Scaling
    columns: tuple[str, ...]
    estimator: Any = None
    constants: tuple[tuple[int, str, float], ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The name of the estimator, or of the energy if there is none."""
        return type(self.energy if self.estimator is None else self.estimator).__name__

    @classmethod
    def fit(
        cls,
        X: Any,
        *,
        columns: Sequence[str] | None = None,
        method: str | None = None,
        n_clusters: int | None = None,
        resolution: float | None = None,
        alpha: float | None = None,
        bandwidth: float | None = None,
        sigma: float | None = None,
        beta: float | None = None,
        standardise: bool = True,
        leave_out_constants: bool = False,
        seed: int = 0,
        verbose: int = 0,
    ) -> TableModel:
        """Fit an energy to the rows of a table.

        Parameters
        ----------
        X : array or data frame (n, D)
            NaN marks missing values, which "kde", "hopfield" and "mean-shift" do not allow.
        columns : sequence of str, optional
            Default: the names of a data frame, else x1, x2, ...
        method : str, optional
            "basin-flow", "crp", "crp-elbo", "elbo", "clam" and "mean-shift" find clusters; "kde"
            and "hopfield" store every row. Default: "elbo" if `n_clusters` is given, "crp" if
            `alpha` is, else "basin-flow".
        n_clusters, resolution, alpha, bandwidth, sigma, beta : optional
            Number of clusters, which "elbo" and "clam" need and "basin-flow" can do without;
            resolution of "basin-flow" (default: the one with the largest gap); concentration of
            "crp" and "crp-elbo"; bandwidth of "mean-shift" (default: Scott's rule); bandwidth of
            "kde" and "hopfield", or 1 / sigma^2 (default: by leave-one-out likelihood).
        standardise : bool
            Fit to columns of mean 0 and variance 1.
        leave_out_constants : bool
            Keep columns that do not vary out of the energy; draws have their value.
        seed, verbose : int
        """
        rows, names = as_table(X, columns)
        seed, standardise = as_seed(seed, 2**32 - 1), as_flag(standardise, "standardise")
        constants: tuple[tuple[int, str, float], ...] = ()
        lowest = np.fmin.reduce(rows, 0)
        varies: NDArray[np.bool_] = lowest < np.fmax.reduce(rows, 0)
        if as_flag(leave_out_constants, "leave_out_constants") and varies.any():
            places = np.flatnonzero(~varies).tolist()
            constants = tuple((place, names[place], float(lowest[place])) for place in places)
            rows, names = rows[:, varies], tuple(np.array(names)[varies].tolist())
        values = n_clusters, resolution, alpha, bandwidth, sigma, beta
        method, given = _chosen(method, dict(zip(SETTINGS, values, strict=True)))
        if method in ("mean-shift", *MEMORIES_OF_ROWS) and np.isnan(rows).any():
            raise InvalidInputError(f"{method} needs complete rows; fill the gaps first.")
        scaling = Scaling.of(rows, standardise)
        Z = scaling.into(rows)
        if method in MEMORIES_OF_ROWS:
            if sigma is not None and beta is not None:
                raise InvalidInputError("sigma and beta mean the same, beta = 1 / sigma^2.")
            if beta is not None:
                sigma = as_number(beta, "beta", above=0) ** -0.5
            if sigma is None:
                # Rounding keeps differences between machines out of the draws.
                sigma = float(f"{leave_one_out(Z, seed):.4g}")
            memory = GaussianKDE(Z, sigma) if method == "kde" else ModernHopfield(Z, sigma**-2)
            return cls(memory, scaling, names, constants=constants)
        estimator = ESTIMATORS[method](**given)
        known, shared = estimator.get_params(), {"random_state": seed, "verbose": verbose}
        estimator.set_params(**{name: shared[name] for name in shared if name in known}).fit(Z)
        if "verbose" in known:
            estimator.set_params(verbose=0)
        notes = tuple(notes_on(rows, names, standardise))
        return cls(estimator.energy_, scaling, names, estimator, constants, notes)

    def select(self, X: Any, columns: Sequence[str] | None = None) -> NDArray[np.float64]:
        """Return the columns that the model knows, in its order. (n, E) -> (n, D)

        A table of D columns without names has the columns of the model.
        """
        named = columns is not None or hasattr(X, "columns")
        rows, names = as_table(X, columns)
        if not named and len(names) == len(self.columns):
            return rows
        absent = [repr(name) for name in self.columns if name not in names]
        if absent:
            raise InvalidInputError(
                f"The table has no column of numbers called {listed(absent, 5)}, which the model "
                "learned from. Columns of ids are not among those of numbers."
            )
        return rows[:, [names.index(name) for name in self.columns]]

    def describe(
        self,
        X: Any,
        *,
        columns: Sequence[str] | None = None,
        ids: Any = None,
        classes: Any = None,
        id_name: str = "row",
        class_name: str = "class",
        refit: bool = True,
    ) -> TableClusters:
        """Return the cluster, its probability and the density of each row of a table.

        X (n, E) contains the columns of the model, in any order; `ids` (n,) are 1, 2, ... by
        default, and `classes` (n,) are known classes to compare with, empty where unknown. With
        `refit`, the summary states the :func:`refit_agreement` of the estimator on these rows.
        """
        rows = self.select(X, columns)
        if self.estimator is None:
            raise InvalidInputError(f"{self.name} stores every row and has no clusters.")
        ids = np.arange(1, len(rows) + 1) if ids is None else _beside(ids, "ids", len(rows))
        classes = None if classes is None else _beside(classes, "classes", len(rows))
        return TableClusters(self, rows, ids, classes, id_name, class_name, refit)

    def sample(
        self,
        n: int = 100,
        *,
        sampler: str = "exact",
        step_size: float | None = None,
        burn_in: int | None = None,
        chains: int | None = None,
        seed: int = 0,
        show_progress: bool | None = None,
    ) -> tuple[pd.DataFrame, Chains | None]:
        """Return draws (n, D) in the units of the table, and the chains that made them.

        Parameters
        ----------
        n : int
        sampler : {"exact", "langevin", "mala", "hmc"}
            Exact draws are independent, and there are no chains.
        step_size : float, optional
            Default: tuned in the burn-in.
        burn_in, chains : int, optional
            Steps before the first draw, and number of chains. Default: 500 and 64.
        seed : int
        show_progress : bool, optional
            Default: on a terminal, if it takes long.
        """
        n = as_count(n, "n")
        if as_choice(sampler, "sampler", ("exact", *SAMPLERS)) == "exact":
            if not step_size is burn_in is chains is None:
                raise InvalidInputError(
                    "step_size, burn_in and chains are for langevin, mala and hmc."
                )
            return self._in_units(as_arrays(self.energy.sample(n, seed=seed))), None
        chains = 64 if chains is None else as_count(chains, "chains")
        settings, thin = SAMPLERS[sampler]
        found = sample_chains(
            self.energy,
            max(math.ceil(n / chains), FEWEST_DRAWS),
            settings if step_size is None else replace(settings, step_size=step_size),
            chains=chains,
            seed=seed,
            burn_in=500 if burn_in is None else burn_in,
            thin=thin,
            tune=step_size is None,
            progress=show_progress,
        )
        drawn = as_arrays(found.flatten())
        # Spread over all draws, rather than the first of them.
        return self._in_units(drawn[np.arange(n) * len(drawn) // n]), found

    def _in_units(self, draws: NDArray[np.float64]) -> pd.DataFrame:
        """Return draws as rows of the table, with its constant columns."""
        require("pandas")
        import pandas as pd

        frame = pd.DataFrame(self.scaling.back(draws), columns=list(self.columns))
        for place, name, value in self.constants:
            frame.insert(place, name, value)
        return frame

    def save(self, path: str | Path) -> None:
        """Write the estimator, its columns and their scaling to one safetensors file."""
        if self.name not in SAVED:
            raise InvalidInputError(f"A {self.name} stores all rows and cannot be saved.")
        estimator = copy.copy(self.estimator)
        estimator.table_centre_ = self.scaling.centre
        estimator.table_scale_ = self.scaling.scale
        estimator.table_columns_ = np.array(self.columns, dtype=object)
        estimator.table_constants_ = self.constants
        estimator.save(path)

    @classmethod
    def load(cls, path: str | Path) -> TableModel:
        """Read a file that :meth:`save` wrote."""
        with reading(path, "isthmus model") as place, safe_open(place, framework="numpy") as file:
            name = (file.metadata() or {}).get("estimator", "")
        estimator: Any = SAVED[name].load(path) if name in SAVED else None
        if not hasattr(estimator, "table_columns_"):
            raise InvalidInputError(
                f"{path} holds no model of a table, or not the columns it learned from; save one "
                "with TableModel.save."
            )
        with reading(path, "model of a table"):
            scaling = Scaling(estimator.table_centre_, estimator.table_scale_)
            columns = tuple(map(str, estimator.table_columns_))
            constants = getattr(estimator, "table_constants_", ())  # which older files lack
            constants = tuple((int(at), str(name), float(value)) for at, name, value in constants)
            return cls(estimator.energy_, scaling, columns, estimator, constants)


def _chosen(method: str | None, values: dict[str, Any]) -> tuple[str, dict[str, Any]]:
    """Return the method that settings imply, and the settings that are given."""
    given = {name: value for name, value in values.items() if value is not None}
    if method is None:
        method = next((IMPLIED[name] for name in given if name in IMPLIED), "basin-flow")
    as_choice(method, "method", (*ESTIMATORS, *MEMORIES_OF_ROWS))
    for name in given:
        if method not in SETTINGS[name]:
            methods = " and ".join(", ".join(SETTINGS[name]).rsplit(", ", 1))
            raise InvalidInputError(f"{name} is for {methods}, not for {method}.")
    if method in ("elbo", "clam") and "n_clusters" not in given:
        raise InvalidInputError(f"{method} needs the number of clusters, n_clusters.")
    return method, given


def chosen_estimator(*, seed: int = 0, method: str | None = None, **values: Any) -> Any:
    """Return the estimator of settings, for rows that are not in memory together."""
    method, given = _chosen(method, values)
    if method in ("clam", "mean-shift", *MEMORIES_OF_ROWS):
        raise InvalidInputError(f"{method} needs all rows in memory.")
    return ESTIMATORS[method](**given, random_state=seed)


def notes_on(rows: NDArray[np.float64], names: tuple[str, ...], standardise: bool) -> Iterator[str]:
    """Yield remarks on columns that are constant, or that have two values only."""
    lowest, highest = np.fmin.reduce(rows, 0), np.fmax.reduce(rows, 0)
    constant = ~(lowest < highest)
    if constant.all():
        what = "all rows are equal" if len(rows) > 1 else "there is one row"
        yield f"{what}, so there is one cluster, and its density has no meaning."
    elif constant.any():
        found = listed(np.array(names)[constant].tolist())
        yield f"constant columns, which do not affect the clusters: {found}."
    low, high = ((rows == ends).sum(0) for ends in (lowest, highest))
    binary = (low + high == (~np.isnan(rows)).sum(0)) & (np.minimum(low, high) > 1) & ~constant
    # In standard units, the two values are far apart.
    if standardise and binary.any() and not binary.all():
        found = listed(np.array(names)[binary].tolist())
        yield (
            f"columns of two values, which may split clusters in two: {found}. Consider dropping "
            "them."
        )


def _beside(values: Any, name: str, count: int) -> NDArray[Any]:
    """Return ids or classes of `count` rows."""
    found = rectangular(values, name)
    if found.shape != (count,):
        raise ShapeError(f"{name} must be ({count},), one per row, not {found.shape}.")
    return found
