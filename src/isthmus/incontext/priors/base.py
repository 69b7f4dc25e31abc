"""What a task distribution is: a prior over densities, and a batch of densities drawn from it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import fields, replace
from typing import Any, Self, cast

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError, ShapeError

__all__ = ["Prior", "Tasks", "batch_of", "ordered", "positive", "uniform"]


class Tasks(ABC):
    """A batch of B densities, to draw points from and to ask for their log-density.

    A subclass is a frozen dataclass. Its tensors have one row per task, so that indexing with a
    slice, a mask or a tensor of numbers gives a smaller batch; any other field is shared.
    """

    @abstractmethod
    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, D)."""

    @abstractmethod
    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of task b at the points x[b]. x: (B, M, D) -> (B, M)."""

    def _rows(self) -> dict[str, Tensor]:
        values = {each.name: getattr(self, each.name) for each in fields(cast(Any, self))}
        return {name: value for name, value in values.items() if isinstance(value, Tensor)}

    def __len__(self) -> int:
        return len(next(iter(self._rows().values())))

    def __getitem__(self, index: Any) -> Self:
        if isinstance(index, int):
            # A tensor refuses a number out of range, which ends a loop over the tasks.
            index = range(len(self))[index]
            index = slice(index, index + 1)
        return self._with({name: row[index] for name, row in self._rows().items()})

    def to(self, dtype: torch.dtype) -> Self:
        """The same densities, computed in another precision."""
        rows = self._rows().items()
        return self._with({name: row.to(dtype) for name, row in rows if row.is_floating_point()})

    def _with(self, rows: dict[str, Tensor]) -> Self:
        changed: Self = replace(cast(Any, self), **rows)
        return changed


class Prior(ABC):
    """A distribution over densities, from which fresh tasks are drawn.

    Attributes
    ----------
    dim : int
        The number of coordinates D of every point.
    box : float
        Half-width of the centred cube that holds practically all the data.
    """

    dim: int
    box: float

    @abstractmethod
    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> Tasks:
        """Draw a batch of independent tasks on the device of the generator."""


def uniform(
    shape: tuple[int, ...],
    low: float,
    high: float,
    generator: torch.Generator,
    dtype: torch.dtype,
) -> Tensor:
    """Uniform numbers between `low` and `high`; always `low` if the two are equal."""
    unit = torch.rand(shape, generator=generator, dtype=dtype, device=generator.device)
    return low + (high - low) * unit


def batch_of(x: Tensor, tasks: int, dim: int) -> Tensor:
    """Return x after checking that its shape is (tasks, M, dim)."""
    if x.ndim != 3 or x.shape[0] != tasks or x.shape[2] != dim:
        raise ShapeError(
            f"x must have shape ({tasks}, M, {dim}), a row of points for each task, "
            f"not {tuple(x.shape)}."
        )
    return x


def positive(**numbers: float) -> None:
    """Raise unless every number is above zero and finite."""
    for name, number in numbers.items():
        if not 0 < number < float("inf"):
            raise InvalidInputError(f"{name} must be finite and above zero, not {number!r}.")


def ordered(**ends: float) -> None:
    """Raise unless the two numbers are positive and the first is not above the second."""
    positive(**ends)
    (low_name, low), (high_name, high) = ends.items()
    if low > high:
        raise InvalidInputError(f"{low_name} ({low:g}) must not exceed {high_name} ({high:g}).")
