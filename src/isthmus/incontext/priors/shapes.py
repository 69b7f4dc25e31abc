"""Uniform shapes: flat densities on rectangles and discs, with hard edges."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from isthmus.incontext.priors.base import Prior, Tasks, batch_of, ordered, positive, uniform
from isthmus.validation import as_count

__all__ = ["ShapeTasks", "UniformShapes"]


@final
@dataclass(frozen=True, eq=False)
class ShapeTasks(Tasks):
    """Equal mixtures of uniform densities on rectangles and discs; zero outside all of them.

    Attributes
    ----------
    centres : Tensor (B, K, 2)
    halves : Tensor (B, K, 2)
        Half the sides of a rectangle; of a disc, the first is the radius.
    angles : Tensor (B, K)
        By which a rectangle is turned.
    discs : Tensor (B, K) bool
    """

    centres: Tensor
    halves: Tensor
    angles: Tensor
    discs: Tensor

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, 2)."""
        tasks, shapes = self.angles.shape
        shape = (tasks, as_count(points, "points", at_least=0))
        which = torch.randint(shapes, shape, generator=generator, device=generator.device)
        square = uniform((*shape, 2), -1.0, 1.0, generator, self.centres.dtype)
        pairs = which[..., None].expand(-1, -1, 2)
        halves, centres = self.halves.gather(1, pairs), self.centres.gather(1, pairs)
        # A disc is a square too: one side is the angle, the root of the other the radius.
        around = math.pi * square[..., 0]
        circle = torch.stack([around.cos(), around.sin()], dim=-1)
        disc = halves[..., :1] * ((square[..., 1:] + 1) / 2).sqrt() * circle
        rectangle = _turned(square * halves, self.angles.gather(1, which))
        return centres + torch.where(self.discs.gather(1, which)[..., None], disc, rectangle)

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of task b at the points x[b]; ``-inf`` outside. x: (B, M, 2) -> (B, M)."""
        x = batch_of(x, len(self), 2)
        from_centre = x[:, :, None] - self.centres[:, None]  # (B, M, K, 2)
        own = _turned(from_centre, -self.angles[:, None])
        in_rectangle = (own.abs() <= self.halves[:, None]).all(-1)
        radius = self.halves[..., 0]
        in_disc = torch.linalg.vector_norm(from_centre, dim=-1) <= radius[:, None]
        inside = torch.where(self.discs[:, None], in_disc, in_rectangle)
        area = torch.where(self.discs, math.pi * radius.square(), 4 * self.halves.prod(-1))
        return (inside / area[:, None]).mean(-1).log()


def _turned(points: Tensor, angles: Tensor) -> Tensor:
    """Points turned around the origin. (..., 2), (...) -> (..., 2)."""
    x, y = points.unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)


@final
@dataclass(frozen=True)
class UniformShapes(Prior):
    """Rectangles and discs, each as likely as the other, in random places and sizes.

    Where two shapes of a task overlap, their densities add.

    Parameters
    ----------
    components : int
        Shapes in a task.
    centre_scale : float
        Coordinates of the centres are U[-centre_scale, centre_scale].
    half_low, half_high : float
        Half the sides of rectangles, and the radii of discs, are uniform between these.
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
    dim: int = field(default=2, init=False, repr=False)

    def __post_init__(self) -> None:
        as_count(self.components, "components")
        positive(centre_scale=self.centre_scale, box=self.box)
        ordered(half_low=self.half_low, half_high=self.half_high)

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> ShapeTasks:
        """Draw a batch of independent tasks on the device of the generator."""
        shape = (as_count(tasks, "tasks"), self.components)
        reach = self.centre_scale
        return ShapeTasks(
            uniform((*shape, 2), -reach, reach, generator, dtype),
            uniform((*shape, 2), self.half_low, self.half_high, generator, dtype),
            uniform(shape, 0.0, math.pi, generator, dtype),
            torch.rand(shape, generator=generator, device=generator.device) < 0.5,
        )
