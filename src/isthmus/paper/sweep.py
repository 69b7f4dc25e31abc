"""The paper's experiment: retrieval of patterns on a sphere, against their number N and D."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import product

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.dynamics.modes import distances
from isthmus.dynamics.retrieve import retrieve
from isthmus.errors import DtypeError, InvalidInputError
from isthmus.memories.gaussian import GaussianKDE
from isthmus.progress import progress as progress_bar
from isthmus.validation import as_count, as_number


@dataclass(frozen=True)
class SweepCell:
    """The results of one draw of N patterns on a sphere in D dimensions.

    `retrieved` is the fraction of particles that end nearest to the pattern that they started at,
    `ratio` the mean of final over initial distance to it, and `normalized_ratio` the paper's
    measure: that over the mean distance between patterns. It has the unit of one over a length and
    falls with D even where retrieval does not change (erratum E25).
    """

    dim: int
    count: int
    seed: int
    retrieved: float
    ratio: float
    normalized_ratio: float


@dataclass(frozen=True)
class Sweep:
    """All cells of an experiment."""

    cells: tuple[SweepCell, ...]

    def band(self, measure: str, dim: int, count: int) -> tuple[float, float]:
        """Return the mean of a measure over seeds, and the half-width of its 95 % band."""
        cells = [cell for cell in self.cells if (cell.dim, cell.count) == (dim, count)]
        values = [getattr(cell, measure) for cell in cells]
        if not values:
            raise InvalidInputError(f"The sweep has no cell with D = {dim} and N = {count}.")
        spread = float(np.std(values, ddof=1)) if len(values) > 1 else 0.0
        return float(np.mean(values)), 1.96 * spread / len(values) ** 0.5

    def table(self, measure: str = "retrieved") -> NDArray[np.float64]:
        """Return means over seeds, with a row per dimension and a column per count."""
        return np.array(
            [[self.band(measure, dim, count)[0] for count in self.counts] for dim in self.dims]
        )

    @property
    def dims(self) -> list[int]:
        """The dimensions, ascending."""
        return sorted({cell.dim for cell in self.cells})

    @property
    def counts(self) -> list[int]:
        """The numbers of patterns, ascending."""
        return sorted({cell.count for cell in self.cells})


def sweep(
    dims: Iterable[int],
    counts: Iterable[int],
    *,
    seeds: int = 3,
    sigma: float = 1.0,
    radius_factor: float = 2.0,
    perturbation: float = 0.5,
    n_particles: int = 100,
    max_patterns: int = 20,
    max_steps: int = 300,
    progress: bool | None = None,
) -> Sweep:
    """Perturb patterns on a sphere and measure how well their KDE retrieves them.

    Parameters
    ----------
    dims, counts : iterables of int
        Dimensions D and numbers of patterns N.
    seeds : int
        Independent draws of patterns per cell.
    radius_factor : float
        Patterns lie on the sphere of radius ``radius_factor * sigma * sqrt(D - 1)``.
    perturbation : float
        Length of each particle's displacement, in units of sigma. The paper does not state its
        value; ratios depend on it.
    n_particles, max_patterns : int
        Number of particles per pattern, and of patterns that get particles.
    progress : bool, optional
        Show a bar. Default: on a terminal, once the run takes longer than two seconds.

    Examples
    --------
    >>> from isthmus.capacity import sweep
    >>> found = sweep([3, 12], [8], seeds=2, n_particles=20)
    >>> found.band("retrieved", 12, 8)[0]
    1.0
    """
    sigma = as_number(sigma, "sigma", above=0)
    factor = as_number(radius_factor, "radius_factor", above=0, at_most=1e6)
    away = sigma * as_number(perturbation, "perturbation", above=0)
    particles = as_count(n_particles, "n_particles")
    tried = as_count(max_patterns, "max_patterns")
    max_steps = as_count(max_steps, "max_steps")
    sizes, numbers = _counts(dims, "dims"), _counts(counts, "counts")
    cells: list[SweepCell] = []
    wanted = list(product(sizes, numbers, range(as_count(seeds, "seeds"))))
    with progress_bar("capacity sweep", len(wanted), show=progress) as report:
        for dim, count, seed in wanted:
            generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * dim + count)
            patterns = _on_sphere(count, dim, generator) * factor * sigma * (dim - 1) ** 0.5
            own = torch.arange(min(count, tried)).repeat_interleave(particles)
            homes = patterns[own]
            starts = homes + away * _on_sphere(len(homes), dim, generator)
            memory = GaussianKDE(patterns, sigma)
            ends = retrieve(memory, starts, tol=1e-6 * sigma, max_steps=max_steps).state
            final = torch.linalg.vector_norm(ends - homes, dim=1)
            ratio = float((final / torch.linalg.vector_norm(starts - homes, dim=1)).mean())
            retrieved = float((distances(ends, patterns).argmin(1) == own).double().mean())
            between = float(torch.pdist(patterns[:2000]).mean())
            cells.append(SweepCell(dim, count, seed, retrieved, ratio, ratio / between))
            report(len(cells))
    return Sweep(tuple(cells))


def _on_sphere(number: int, dim: int, generator: torch.Generator) -> torch.Tensor:
    points = torch.randn(number, dim, generator=generator, dtype=torch.float64)
    return torch.nn.functional.normalize(points, dim=1)


def _counts(values: Iterable[int], name: str) -> list[int]:
    """Return dimensions or numbers of patterns, at least two each: a sphere needs D >= 2."""
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise DtypeError(f"{name} must be a list of whole numbers, not {values!r}.")
    return [as_count(value, name, at_least=2) for value in values]
