"""The paper's experiment: retrieval of patterns on a sphere, against their number N and D."""

from __future__ import annotations

import json
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import product
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from isthmus.dynamics.modes import distances
from isthmus.dynamics.retrieve import retrieve
from isthmus.errors import DtypeError, InvalidInputError, MissingFileError
from isthmus.io.reading import reading
from isthmus.memories.gaussian import GaussianKDE
from isthmus.progress import progress as progress_bar
from isthmus.validation import as_count, as_number, as_path

MEASURES = {
    "retrieved": "fraction retrieved",
    "ratio": "final / initial distance",
    "normalized_ratio": "the paper's normalised ratio",
}


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

    def __str__(self) -> str:
        lines = []
        for measure, name in MEASURES.items():
            lines += [name, "D \\ N " + "".join(f"{count:>8}" for count in self.counts)]
            for dim, row in zip(self.dims, self.table(measure), strict=True):
                lines.append(f"{dim:>5} " + "".join(f"{value:8.2f}" for value in row))
        return "\n".join(lines)


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
    path: str | Path | None = None,
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
    path : path, optional
        A JSON-lines file that finished cells are appended to. Cells found there are not computed
        again, so that an interrupted run resumes.
    progress : bool, optional
        Show a bar. Default: on a terminal, once the run takes longer than two seconds.

    Examples
    --------
    >>> from isthmus.capacity import sweep
    >>> found = sweep([3, 12], [8], seeds=2, n_particles=20)
    >>> found.band("retrieved", 12, 8)[0]
    1.0
    """
    settings = {
        "sigma": as_number(sigma, "sigma", above=0),
        "radius_factor": as_number(radius_factor, "radius_factor", above=0, at_most=1e6),
        "perturbation": as_number(perturbation, "perturbation", above=0),
        "n_particles": as_count(n_particles, "n_particles"),
        "max_patterns": as_count(max_patterns, "max_patterns"),
        "max_steps": as_count(max_steps, "max_steps"),
    }
    sizes, numbers = _counts(dims, "dims"), _counts(counts, "counts")
    wanted = list(product(sizes, numbers, range(as_count(seeds, "seeds"))))
    path = None if path is None else as_path(path, "path")
    done = {} if path is None else _read(path, settings)
    with progress_bar("capacity sweep", len(wanted), show=progress) as report:
        for position, key in enumerate(wanted):
            if key not in done:
                done[key] = _measure(*key, settings)
                if path is not None:
                    entry = {"settings": settings, "cell": asdict(done[key])}
                    with path.open("a") as file:
                        # The line break comes first, and ends a truncated last line.
                        file.write("\n" + json.dumps(entry))
            report(position + 1)
    return Sweep(tuple(done[key] for key in wanted))


def _measure(dim: int, count: int, seed: int, settings: dict[str, float]) -> SweepCell:
    generator = torch.Generator().manual_seed(1_000_003 * seed + 1009 * dim + count)
    sigma, particles = settings["sigma"], int(settings["n_particles"])

    def on_sphere(number: int) -> torch.Tensor:
        points = torch.randn(number, dim, generator=generator, dtype=torch.float64)
        return torch.nn.functional.normalize(points, dim=1)

    patterns = on_sphere(count) * settings["radius_factor"] * sigma * (dim - 1) ** 0.5
    own = torch.arange(min(count, int(settings["max_patterns"]))).repeat_interleave(particles)
    homes = patterns[own]
    starts = homes + settings["perturbation"] * sigma * on_sphere(len(homes))
    memory = GaussianKDE(patterns, sigma)
    ends = retrieve(memory, starts, tol=1e-6 * sigma, max_steps=int(settings["max_steps"])).state
    final = torch.linalg.vector_norm(ends - homes, dim=1)
    initial = torch.linalg.vector_norm(starts - homes, dim=1)
    retrieved = float((distances(ends, patterns).argmin(1) == own).double().mean())
    between = float(torch.pdist(patterns[:2000]).mean())
    ratio = float((final / initial).mean())
    return SweepCell(dim, count, seed, retrieved, ratio, ratio / between)


def _counts(values: Iterable[int], name: str) -> list[int]:
    """Return dimensions or numbers of patterns, at least two each: a sphere needs D >= 2."""
    if not isinstance(values, Iterable) or getattr(values, "ndim", 1) == 0:
        raise DtypeError(f"{name} must be a list of whole numbers, not {values!r}.")
    return [as_count(value, name, at_least=2) for value in values]


def _read(path: Path, settings: dict[str, float]) -> dict[tuple[int, int, int], SweepCell]:
    """Read finished cells with the same settings; truncated lines are ignored."""
    done: dict[tuple[int, int, int], SweepCell] = {}
    with suppress(MissingFileError), reading(path, "file of finished cells") as place:
        for line in place.read_text(encoding="utf-8", errors="replace").split("\n"):
            with suppress(ValueError, KeyError, TypeError, RecursionError):
                entry = json.loads(line)
                if entry["settings"] == settings:
                    cell = SweepCell(**entry["cell"])
                    done[cell.dim, cell.count, cell.seed] = cell
    return done
