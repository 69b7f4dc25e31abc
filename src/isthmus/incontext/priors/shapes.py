"""Uniform shapes: flat densities on rectangles and discs, with hard edges."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from isthmus.incontext.priors.base import ComponentTasks, Prior, uniform
from isthmus.validation import as_count

__all__ = ["ShapeTasks", "UniformShapes"]


@final
@dataclass(frozen=True, eq=False)
class ShapeTasks(ComponentTasks):
    """Mixtures of uniform densities on rectangles and discs; zero outside all of them.

    Attributes
    ----------
    centres : Tensor (B, K, 2)
    halves : Tensor (B, K, 2)
        Half the sides of a rectangle; of a disc, the first is the radius.
    angles : Tensor (B, K)
        Rotation of a rectangle.
    discs : Tensor (B, K) bool
    """

    centres: Tensor
    halves: Tensor
    angles: Tensor
    discs: Tensor

    def _draw_one_each(self, generator: torch.Generator) -> Tensor:
        square = uniform(self.centres.shape, -1.0, 1.0, generator, self.centres.dtype)
        # Map the square to a disc: one side becomes the angle, the root of the other the radius.
        angle = math.pi * square[..., 0]
        circle = torch.stack([angle.cos(), angle.sin()], dim=-1)
        disc = self.halves[..., :1] * ((square[..., 1:] + 1) / 2).sqrt() * circle
        rectangle = _rotated(square * self.halves, self.angles)
        return self.centres + torch.where(self.discs[..., None], disc, rectangle)

    def _log_densities(self, x: Tensor) -> Tensor:
        offset, radius = x - self.centres, self.halves[..., 0]
        in_rectangle = (_rotated(offset, -self.angles).abs() <= self.halves).all(-1)
        in_disc = torch.linalg.vector_norm(offset, dim=-1) <= radius
        inside = torch.where(self.discs, in_disc, in_rectangle)
        area = torch.where(self.discs, math.pi * radius.square(), 4 * self.halves.prod(-1))
        return torch.where(inside, -area.log(), -math.inf)


def _rotated(points: Tensor, angles: Tensor) -> Tensor:
    """Rotate points around the origin. (..., 2), (...) -> (..., 2)."""
    x, y = points.unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)


@final
@dataclass(frozen=True)
class UniformShapes(Prior):
    """Rectangles and discs with equal probability, in random places and sizes.

    Where two shapes of a task overlap, their densities add.

    Parameters
    ----------
    components : int
        Shapes in a task.
    centre_scale : float
        Coordinates of the centres are U[-centre_scale, centre_scale].
    half_low, half_high : float
        Half the sides of rectangles and the radii of discs are uniform between these bounds.
    box : float

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.priors import UniformShapes
    >>> generator = torch.Generator().manual_seed(0)
    >>> UniformShapes().draw(4, generator).sample(10, generator).shape
    torch.Size([4, 10, 2])
    """

    components: int = 2
    centre_scale: float = 2.5
    half_low: float = 0.4
    half_high: float = 1.5
    box: float = 5.5

    dim = 2

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> ShapeTasks:
        """Draw a batch of independent tasks on the device of the generator."""
        shape = (as_count(tasks, "tasks"), self.components)
        return ShapeTasks(
            uniform((*shape, 2), -self.centre_scale, self.centre_scale, generator, dtype),
            uniform((*shape, 2), self.half_low, self.half_high, generator, dtype),
            uniform(shape, 0.0, math.pi, generator, dtype),
            torch.rand(shape, generator=generator, device=generator.device) < 0.5,
        )
