"""Basins of attraction of patterns, and their mergers as the bandwidth grows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.spatial import cKDTree

from isthmus.dynamics.modes import find_modes, require_squares
from isthmus.errors import InvalidInputError
from isthmus.memories.kde import GaussianKDE
from isthmus.validation import as_points

FloatArray = NDArray[np.float64]


@dataclass(frozen=True)
class Basins:
    """The fixed points that patterns flow to at one bandwidth.

    Attributes
    ----------
    sigma : float
    fixed_points : ndarray (B, D)
        The modes of the density, in descending order of the sizes of their basins.
    labels : ndarray (N,)
        Index of the fixed point that each pattern flows to.
    converged : ndarray (N,) of bool
    """

    sigma: float
    fixed_points: FloatArray
    labels: NDArray[np.int64]
    converged: NDArray[np.bool_]

    @property
    def n_basins(self) -> int:
        """The number of basins B."""
        return len(self.fixed_points)

    def __str__(self) -> str:
        sizes = np.bincount(self.labels)
        return (
            f"{self.n_basins} basins for {len(self.labels)} patterns at sigma {self.sigma:.4g}; "
            f"the largest holds {sizes.max()}"
        )


def basins(X: Any, sigma: float, *, tol: float = 1e-6, max_steps: int = 5000) -> Basins:
    """Group patterns by the mode that each flows to on the Gaussian KDE of all of them.

    Parameters
    ----------
    X : array or Tensor (N, D)
    sigma : float
    tol : float
        A pattern rests when a step moves it by no more than this share of sigma.

    Examples
    --------
    >>> from isthmus.capacity import basins
    >>> found = basins([[0.0], [0.5], [9.0]], sigma=1.0)
    >>> found.labels.tolist(), found.fixed_points.round(2).ravel().tolist()
    ([0, 0, 1], [0.25, 9.0])
    """
    patterns = as_points(np.asarray(X, dtype=float), "X")
    memory = GaussianKDE(patterns, sigma)
    found = find_modes(memory, patterns, tol=tol, max_steps=max_steps)
    return Basins(float(memory.sigma), found.fixed_points, found.labels, found.converged)


@dataclass(frozen=True)
class MergeTree:
    """The basins of patterns at growing bandwidths.

    Attributes
    ----------
    sigmas : ndarray (S,)
        Ascending.
    labels : ndarray (S, N)
        Basin of each pattern at each bandwidth. Basins that merged stay merged.
    n_basins : ndarray (S,)
    merge_sigma : ndarray (N,)
        The first bandwidth at which each pattern shares its basin; ``inf`` if it never does.
    """

    sigmas: FloatArray
    labels: NDArray[np.int64]
    n_basins: NDArray[np.int64]
    merge_sigma: FloatArray

    def __str__(self) -> str:
        return (
            f"{self.n_basins[0]} basins at sigma {self.sigmas[0]:.4g}, "
            f"{self.n_basins[-1]} at sigma {self.sigmas[-1]:.4g}"
        )


def merge_tree(X: Any, sigmas: Any = None, *, n_sigmas: int = 24, tol: float = 1e-6) -> MergeTree:
    """Follow basins from small bandwidths to large ones, and record where they merge.

    Modes of a Gaussian KDE only ever merge as sigma grows in one dimension; in more, new ones
    can appear in rare cases. Patterns that shared a basin once are kept together.

    Parameters
    ----------
    X : array or Tensor (N, D)
    sigmas : array (S,), optional
        Bandwidths; by default spread from half the nearest distance to half the diameter.
    """
    patterns = as_points(np.asarray(X, dtype=float), "X")
    require_squares(patterns)
    values = patterns.numpy()
    grid = _sigma_grid(values, n_sigmas) if sigmas is None else np.sort(np.asarray(sigmas, float))
    if len(grid) == 0 or not (grid > 0).all():
        raise InvalidInputError("sigmas must hold at least one number, all above zero.")
    starts = patterns
    current = np.arange(len(values))
    all_labels, counts = [], []
    for sigma in grid:
        memory = GaussianKDE(patterns, float(sigma))
        # Patterns in one basin continue from their common mode.
        found = find_modes(memory, starts, tol=tol)
        current = found.labels[current]
        starts = torch.from_numpy(found.fixed_points)
        all_labels.append(current)
        counts.append(len(found.fixed_points))
    labels = np.array(all_labels)
    alone = np.array([np.bincount(row)[row] == 1 for row in labels])
    shared = np.where(alone.all(0), np.inf, grid[np.argmin(alone, axis=0)])
    return MergeTree(grid, labels, np.array(counts), shared)


def _sigma_grid(values: FloatArray, n_sigmas: int) -> FloatArray:
    if len(values) < 2:
        return np.ones(1)
    nearest = cKDTree(values).query(values, k=2)[0][:, 1]
    smallest = nearest[nearest > 0].min() if (nearest > 0).any() else 1.0
    diameter = float(np.linalg.norm(values.max(0) - values.min(0))) or 1.0
    grid: FloatArray = np.geomspace(smallest / 2, max(diameter / 2, smallest), n_sigmas)
    return grid
