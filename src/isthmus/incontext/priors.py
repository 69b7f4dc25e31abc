"""Priors over densities, by name: mixtures of Gaussians, and rings."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast, final

import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.incontext.config import CheckedFields
from isthmus.validation import as_choice, as_count

__all__ = [
    "PRIORS",
    "GaussianMixtures",
    "MixtureTasks",
    "Prior",
    "Rings",
    "Tasks",
    "prior",
]

# Numbers that are held at once when a density is computed.
BLOCK_NUMBERS = 2**22


class Random:
    """Random numbers of one generator, on its device and in one precision."""

    def __init__(self, generator: torch.Generator, dtype: torch.dtype) -> None:
        self.dtype = dtype
        self._source: dict[str, Any] = {"generator": generator, "device": generator.device}

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        """Draw uniform numbers between `low` and `high`, which may be equal."""
        return low + (high - low) * torch.rand(shape, **self._source, dtype=self.dtype)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(shape, **self._source, dtype=self.dtype)

    def integers(self, stop: int, shape: tuple[int, ...]) -> Tensor:
        """Draw integers from 0 to below `stop`."""
        return torch.randint(stop, shape, **self._source)


class Tasks(ABC):
    """A batch of B densities, each a mixture of K components of equal weight.

    A subclass is a frozen dataclass. Its tensors are (B, K, ...), the first one (B, K, D), a place
    for each component; other fields are shared. The two abstract methods must accept any leading
    axes instead of (B, K). Indexing with a slice, a mask or indices gives a smaller batch.
    """

    @abstractmethod
    def _draw_one_each(self, random: Random) -> Tensor:
        """Draw a point of every component. (..., D)."""

    @abstractmethod
    def _log_densities(self, x: Tensor) -> Tensor:
        """Return the log-density of each component. x: (..., D), broadcast -> (...)."""

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, D)."""
        places, count = self._places(), as_count(points, "points", at_least=0)
        random = Random(generator, places.dtype)
        which = random.integers(places.shape[1], (len(self), count))
        task = torch.arange(len(self), device=which.device)[:, None]
        return self._each(lambda row: row[task, which])._draw_one_each(random)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of task b at the points x[b]. x: (B, M, D) -> (B, M)."""
        tasks, components, dim = self._places().shape
        if x.ndim != 3 or x.shape[0] != tasks or x.shape[2] != dim:
            raise ShapeError(
                f"x must have shape ({tasks}, M, {dim}), a row of points for each task, "
                f"not {tuple(x.shape)}."
            )
        each = self._each(lambda row: row[:, None])
        width = max(1, BLOCK_NUMBERS // (tasks * components))
        parts = [each._log_densities(part[:, :, None]) for part in x.split(width, dim=1)]
        return torch.cat(parts, dim=1).logsumexp(-1) - math.log(components)

    def __len__(self) -> int:
        return len(self._places())

    def __getitem__(self, index: Any) -> Self:
        if isinstance(index, int):
            index = range(len(self))[index]  # raises if out of range, which ends a loop
            index = slice(index, index + 1)
        return self._each(lambda row: row[index])

    def to(self, dtype: torch.dtype) -> Self:
        """Return the same densities, computed in another precision."""
        return self._each(lambda row: row.to(dtype) if row.is_floating_point() else row)

    def _places(self) -> Tensor:
        return next(row for row in vars(self).values() if isinstance(row, Tensor))

    def _each(self, change: Callable[[Tensor], Tensor]) -> Self:
        """Return the same densities with every tensor changed."""
        rows = {name: row for name, row in vars(self).items() if isinstance(row, Tensor)}
        return cast(Self, replace(cast(Any, self), **{n: change(row) for n, row in rows.items()}))


class Prior(CheckedFields, ABC):
    """A distribution over densities. A subclass is a frozen dataclass.

    `dim` are the coordinates D of every point, and `box` is half the width of the centred cube that
    holds nearly all the data.
    """

    dim: int
    box: float

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> Tasks:
        """Draw a batch of independent tasks on the device of the generator."""
        return self._draw(as_count(tasks, "tasks"), Random(generator, dtype))

    @abstractmethod
    def _draw(self, tasks: int, random: Random) -> Tasks:
        """Draw a batch from random numbers of one source."""


@final
@dataclass(frozen=True, eq=False)
class MixtureTasks(Tasks):
    """Mixtures with equal weights and isotropic components."""

    means: Tensor  # (B, K, D)
    stds: Tensor  # (B, K)

    def _draw_one_each(self, random: Random) -> Tensor:
        return self.means + self.stds[..., None] * random.normal(self.means.shape)

    def _log_densities(self, x: Tensor) -> Tensor:
        scaled = (x - self.means) / self.stds[..., None]
        constant = self.stds.log() + math.log(2 * math.pi) / 2
        return -scaled.square().sum(-1) / 2 - x.shape[-1] * constant


@final
@dataclass(frozen=True)
class GaussianMixtures(Prior):
    """Mixtures of K isotropic Gaussians with equal weights, random means and random widths.

    Parameters
    ----------
    components, dim : int
        K and D.
    mean_law, mean_scale : {"uniform", "normal"}, float
        Every coordinate of a mean is U[-mean_scale, mean_scale] or N(0, mean_scale^2).
    std_low, std_high : float
        The standard deviation of each component is uniform between the two.
    box : float
        Half-width of the cube that holds nearly all the data.

    Examples
    --------
    >>> generator = torch.Generator().manual_seed(0)
    >>> tasks = GaussianMixtures.compact().draw(16, generator)
    >>> points = tasks.sample(33, generator)
    >>> points.shape, tasks.log_prob(points).shape
    (torch.Size([16, 33, 2]), torch.Size([16, 33]))
    """

    components: int = 3
    dim: int = 2
    mean_law: Literal["uniform", "normal"] = "uniform"
    mean_scale: float = 3.0
    std_low: float = 0.3
    std_high: float = 0.6
    box: float = 5.5

    @classmethod
    def compact(cls) -> GaussianMixtures:
        """Three components, means U[-3, 3]^2, standard deviations U[0.3, 0.6]."""
        return cls()

    @classmethod
    def paper(cls) -> GaussianMixtures:
        """Prior of the paper's authors: three components, means N(0, 5^2 I), deviation 0.5.

        The box is four standard deviations of the means: one task in 2,600 has a mean outside.
        """
        return cls(mean_law="normal", mean_scale=5.0, std_low=0.5, std_high=0.5, box=20.0)

    def _draw(self, tasks: int, random: Random) -> MixtureTasks:
        shape = (tasks, self.components, self.dim)
        if self.mean_law == "uniform":
            means = random.uniform(shape, -self.mean_scale, self.mean_scale)
        else:
            means = self.mean_scale * random.normal(shape)
        return MixtureTasks(means, random.uniform(shape[:2], self.std_low, self.std_high))


@final
@dataclass(frozen=True, eq=False)
class RingTasks(Tasks):
    """Mixtures of circles that are blurred by isotropic noise."""

    centres: Tensor  # (B, K, 2)
    radii: Tensor  # (B, K)
    noise: Tensor  # (B, K), standard deviations

    def _draw_one_each(self, random: Random) -> Tensor:
        angle = 2 * math.pi * random.uniform(self.noise.shape, 0.0, 1.0)
        circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
        blur = self.noise[..., None] * random.normal(self.centres.shape)
        return self.radii[..., None] * circle + self.centres + blur

    def _log_densities(self, x: Tensor) -> Tensor:
        distance, variance = torch.linalg.vector_norm(x - self.centres, dim=-1), self.noise.square()
        around = torch.special.i0e(distance * self.radii / variance).log()
        across = (distance - self.radii).square() / (2 * variance)
        return around - across - (2 * math.pi * variance).log()


@final
@dataclass(frozen=True)
class Rings(Prior):
    """Rings in random places.

    Centres are uniform in [-centre_scale, centre_scale]^2; radii, and standard deviations of the
    noise, are uniform between their bounds.
    """

    components: int = 2
    centre_scale: float = 2.0
    radius_low: float = 0.8
    radius_high: float = 2.2
    thickness_low: float = 0.1
    thickness_high: float = 0.3
    box: float = 5.5

    dim = 2

    def _draw(self, tasks: int, random: Random) -> RingTasks:
        shape = tasks, self.components
        return RingTasks(
            random.uniform((*shape, 2), -self.centre_scale, self.centre_scale),
            random.uniform(shape, self.radius_low, self.radius_high),
            random.uniform(shape, self.thickness_low, self.thickness_high),
        )


PRIORS: dict[str, Prior] = {
    "compact": GaussianMixtures.compact(),
    "paper": GaussianMixtures.paper(),
    "rings": Rings(),
}
"""The priors that :func:`prior` returns by name."""


def prior(name: str) -> Prior:
    """Return the prior of that name in :data:`PRIORS`."""
    return PRIORS[as_choice(name, "prior", PRIORS)]
