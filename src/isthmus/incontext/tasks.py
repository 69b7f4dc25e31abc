"""Priors over densities, batches of tasks, and random mixtures of Gaussians."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, replace
from typing import Any, Literal, Self, cast, final

import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.incontext.config import CheckedFields
from isthmus.validation import as_count


class Tasks(ABC):
    """A batch of B densities that draw points and give their log-density.

    A subclass is a frozen dataclass whose tensors have one row per task; other fields are shared.
    Indexing with a slice, a mask or a tensor of indices gives a smaller batch.
    """

    @abstractmethod
    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, D)."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of task b at the points x[b]. x: (B, M, D) -> (B, M)."""

    def _rows(self) -> dict[str, Tensor]:
        return {name: value for name, value in vars(self).items() if isinstance(value, Tensor)}

    def __len__(self) -> int:
        return len(next(iter(self._rows().values())))

    def __getitem__(self, index: Any) -> Self:
        if isinstance(index, int):
            index = range(len(self))[index]  # raises if out of range, which ends a loop
            index = slice(index, index + 1)
        return self._with({name: row[index] for name, row in self._rows().items()})

    def to(self, dtype: torch.dtype) -> Self:
        """Return the same densities, computed in another precision."""
        rows = self._rows().items()
        return self._with({name: row.to(dtype) for name, row in rows if row.is_floating_point()})

    def _with(self, rows: dict[str, Tensor]) -> Self:
        changed: Self = replace(cast(Any, self), **rows)
        return changed


class ComponentTasks(Tasks):
    """Mixtures of K densities of equal weight.

    Every tensor of a subclass is (B, K, ...), and the first one is (B, K, D): a place for each
    component. The two abstract methods must accept any leading axes instead of (B, K).
    """

    @abstractmethod
    def _draw_one_each(self, random: Random) -> Tensor:
        """Draw a point of every component. (..., D)."""

    @abstractmethod
    def _log_densities(self, x: Tensor) -> Tensor:
        """Return the log-density of each component. x: (..., D), broadcast -> (...)."""

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, D)."""
        rows = self._rows()
        places = next(iter(rows.values()))
        random = Random(generator, places.dtype)
        shape = (len(self), as_count(points, "points", at_least=0))
        which = random.integers(places.shape[1], shape)
        task = torch.arange(len(self), device=which.device)[:, None]
        chosen = self._with({name: row[task, which] for name, row in rows.items()})
        return chosen._draw_one_each(random)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of task b at the points x[b]. x: (B, M, D) -> (B, M)."""
        rows = self._rows()
        tasks, components, dim = next(iter(rows.values())).shape
        x = as_task_points(x, tasks, dim)
        each = self._with({name: row[:, None] for name, row in rows.items()})
        return torch.logsumexp(each._log_densities(x[:, :, None]), dim=-1) - math.log(components)


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


@dataclass(frozen=True)
class Random:
    """Random numbers of one generator, on its device and in one precision."""

    generator: torch.Generator
    dtype: torch.dtype

    def uniform(self, shape: tuple[int, ...], low: float, high: float) -> Tensor:
        """Draw uniform numbers between `low` and `high`, which may be equal."""
        return low + (high - low) * torch.rand(shape, **self._options, dtype=self.dtype)

    def normal(self, shape: tuple[int, ...]) -> Tensor:
        """Draw standard normal numbers."""
        return torch.randn(shape, **self._options, dtype=self.dtype)

    def integers(self, stop: int, shape: tuple[int, ...]) -> Tensor:
        """Draw integers from 0 to below `stop`."""
        return torch.randint(stop, shape, **self._options)

    @property
    def _options(self) -> dict[str, Any]:
        return {"generator": self.generator, "device": self.generator.device}


def as_task_points(x: Tensor, tasks: int, dim: int) -> Tensor:
    """Return x after checking that its shape is (tasks, M, dim)."""
    if x.ndim != 3 or x.shape[0] != tasks or x.shape[2] != dim:
        raise ShapeError(
            f"x must have shape ({tasks}, M, {dim}), a row of points for each task, "
            f"not {tuple(x.shape)}."
        )
    return x


@final
@dataclass(frozen=True, eq=False)
class MixtureTasks(ComponentTasks):
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
