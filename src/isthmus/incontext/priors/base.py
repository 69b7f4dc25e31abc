"""The two classes that a prior consists of: the prior, and a batch of densities drawn from it."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, Self, cast

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
        values = {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

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
    def _draw_one_each(self, generator: torch.Generator) -> Tensor:
        """Draw a point of every component. (..., D)."""

    @abstractmethod
    def _log_densities(self, x: Tensor) -> Tensor:
        """Return the log-density of each component. x: (..., D), broadcast -> (...)."""

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, D)."""
        rows = self._rows()
        tasks, components = next(iter(rows.values())).shape[:2]
        shape = (tasks, as_count(points, "points", at_least=0))
        which = torch.randint(components, shape, generator=generator, device=generator.device)
        task = torch.arange(tasks, device=which.device)[:, None]
        chosen = self._with({name: row[task, which] for name, row in rows.items()})
        return chosen._draw_one_each(generator)

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of task b at the points x[b]. x: (B, M, D) -> (B, M)."""
        rows = self._rows()
        tasks, components, dim = next(iter(rows.values())).shape
        x = as_task_points(x, tasks, dim)
        each = self._with({name: row[:, None] for name, row in rows.items()})
        return torch.logsumexp(each._log_densities(x[:, :, None]), dim=-1) - math.log(components)


class Prior(CheckedFields, ABC):
    """A distribution over densities. A subclass is a frozen dataclass.

    Attributes
    ----------
    dim : int
        Coordinates D of every point.
    box : float
        Half-width of the centred cube that holds nearly all the data.
    """

    dim: int
    box: float

    @abstractmethod
    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> Tasks:
        """Draw a batch of independent tasks on the device of the generator."""


def uniform(
    shape: tuple[int, ...], low: float, high: float, generator: torch.Generator, dtype: torch.dtype
) -> Tensor:
    """Draw uniform numbers between `low` and `high`, which may be equal."""
    unit = torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)
    return low + (high - low) * unit


def as_task_points(x: Tensor, tasks: int, dim: int) -> Tensor:
    """Return x after checking that its shape is (tasks, M, dim)."""
    if x.ndim != 3 or x.shape[0] != tasks or x.shape[2] != dim:
        raise ShapeError(
            f"x must have shape ({tasks}, M, {dim}), a row of points for each task, "
            f"not {tuple(x.shape)}."
        )
    return x
