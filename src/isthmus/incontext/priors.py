"""Priors over densities, by name: mixtures of Gaussians, and rings, shapes, moons, spirals."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from isthmus.incontext.tasks import (
    ComponentTasks,
    GaussianMixtures,
    MixtureTasks,
    Prior,
    Random,
    Tasks,
    as_task_points,
)
from isthmus.validation import as_choice, as_count

__all__ = [
    "PRIORS",
    "GaussianMixtures",
    "MixtureTasks",
    "Moons",
    "Prior",
    "Rings",
    "Spirals",
    "Tasks",
    "UniformShapes",
    "prior",
]

# An arm (0 or 1) and a place along it in [0, 1] to a point: (...), (...) -> (..., 2).
Curve = Callable[[Tensor, Tensor], Tensor]
# Distances that are held at once when a density is computed.
BLOCK_NUMBERS = 2**22


@final
@dataclass(frozen=True, eq=False)
class RingTasks(ComponentTasks):
    r"""Mixtures of circles of radius R, blurred by noise of standard deviation s.

    With r the distance from the centre, the noise around a uniform angle integrates to

    .. math:: p(x) = \frac{1}{2 \pi s^2}
        \exp\Bigl(-\frac{r^2 + R^2}{2 s^2}\Bigr) I_0\Bigl(\frac{r R}{s^2}\Bigr) .
    """

    centres: Tensor  # (B, K, 2)
    radii: Tensor  # (B, K), R
    thickness: Tensor  # (B, K), s

    def _draw_one_each(self, random: Random) -> Tensor:
        angle = random.uniform(self.radii.shape, 0.0, 2 * math.pi)
        noise = random.normal(self.centres.shape)
        ring = self.radii[..., None] * _direction(angle)
        return self.centres + ring + self.thickness[..., None] * noise

    def _log_densities(self, x: Tensor) -> Tensor:
        distance = torch.linalg.vector_norm(x - self.centres, dim=-1)
        variance = self.thickness.square()
        # The scaled Bessel function includes exp(-rR/s^2), which completes the square.
        return (
            torch.special.i0e(distance * self.radii / variance).log()
            - (distance - self.radii).square() / (2 * variance)
            - (2 * math.pi * variance).log()
        )


@final
@dataclass(frozen=True)
class Rings(Prior):
    """Rings of random centre, radius and thickness, all of equal weight.

    Parameters
    ----------
    components, centre_scale : int, float
        Rings in a task; coordinates of their centres are U[-centre_scale, centre_scale].
    radius_low, radius_high, thickness_low, thickness_high, box : float
        Radii and the standard deviations of the noise are uniform between their bounds.
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


@final
@dataclass(frozen=True, eq=False)
class ShapeTasks(ComponentTasks):
    """Mixtures of uniform densities on rectangles and discs; zero outside all of them."""

    centres: Tensor  # (B, K, 2)
    halves: Tensor  # (B, K, 2): half the sides of a rectangle; of a disc, radius and any number
    angles: Tensor  # (B, K): rotation of a rectangle
    discs: Tensor  # (B, K) bool

    def _draw_one_each(self, random: Random) -> Tensor:
        square = random.uniform(self.centres.shape, -1.0, 1.0)
        # Map the square to a disc: one side becomes the angle, the root of the other the radius.
        circle = _direction(math.pi * square[..., 0])
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


def _direction(angle: Tensor) -> Tensor:
    """Return unit vectors (..., 2) at angles (...)."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


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
    components, centre_scale, box
        As for :class:`Rings`.
    half_low, half_high : float
        Half the sides of rectangles and the radii of discs are uniform between these bounds.
    """

    components: int = 2
    centre_scale: float = 2.5
    half_low: float = 0.4
    half_high: float = 1.5
    box: float = 5.5

    dim = 2

    def _draw(self, tasks: int, random: Random) -> ShapeTasks:
        shape = (tasks, self.components)
        return ShapeTasks(
            random.uniform((*shape, 2), -self.centre_scale, self.centre_scale),
            random.uniform((*shape, 2), self.half_low, self.half_high),
            random.uniform(shape, 0.0, math.pi),
            Random(random.generator, torch.float32).uniform(shape, 0.0, 1.0) < 0.5,
        )


@final
@dataclass(frozen=True, eq=False)
class CurveTasks(Tasks):
    r"""A curve of two arms, moved and turned, and blurred by isotropic noise.

    .. math:: p(x) = \tfrac12 \sum_{a} \int_0^1 q\, v^{q-1}\,
        \mathcal N\bigl(x;\, c + F\, \gamma_a(v),\, s^2 I\bigr)\, dv

    by Gauss-Legendre quadrature, whose nodes are closer together than s.
    """

    centres: Tensor  # (B, 2), c
    frames: Tensor  # (B, 2, 2), F: scale, rotation and reflection
    noise: Tensor  # (B,), s
    curve: Curve = field(repr=False)  # gamma
    power: int  # q
    nodes: int  # of the quadrature, on each arm

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, 2)."""
        shape = (len(self), as_count(points, "points", at_least=0))
        random = Random(generator, self.centres.dtype)
        arm = random.integers(2, shape)
        place = random.uniform(shape, 0.0, 1.0) ** (1 / self.power)
        noise = self.noise[:, None, None] * random.normal((*shape, 2))
        return self._placed(self.curve(arm, place)) + noise

    def _placed(self, points: Tensor) -> Tensor:
        """Move points of the curve to the place of every task. (..., n, 2) -> (B, n, 2)."""
        return points @ self.frames.mT + self.centres[:, None]

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of task b at the points x[b]. x: (B, M, 2) -> (B, M)."""
        x = as_task_points(x, len(self), 2)
        unit_nodes, unit_weights = np.polynomial.legendre.leggauss(self.nodes)
        place = self.centres.new_tensor((unit_nodes + 1) / 2)
        weights = self.centres.new_tensor(unit_weights / 2) * self.power * place ** (self.power - 1)
        arm = torch.arange(2, device=place.device)[:, None].expand(2, self.nodes)
        curve = self._placed(self.curve(arm, place.expand(2, -1)).flatten(0, 1))  # (B, 2 Q, 2)
        log_weights = (weights / 2).log().repeat(2)
        variance = self.noise[:, None, None].square()
        width = max(1, BLOCK_NUMBERS // (len(self) * 2 * self.nodes))
        parts = []
        for block in torch.split(x, width, dim=1):
            # Not by a matrix product, whose rounding would show far from the origin.
            squares = sum((block[:, :, None, d] - curve[:, None, :, d]).square() for d in range(2))
            parts.append(torch.logsumexp(log_weights - squares / (2 * variance), dim=-1))
        return torch.cat(parts, dim=1) - (2 * math.pi * variance[..., 0]).log()


def _moons(arm: Tensor, place: Tensor) -> Tensor:
    """Two interleaving half-circles of radius 1, around their common centre."""
    sign = 1 - 2 * arm.to(place.dtype)
    x, y = (math.pi * place).cos() - 0.5, (math.pi * place).sin() - 0.25
    return torch.stack([sign * x, sign * y], dim=-1)


def _spirals(turns: float) -> Curve:
    """Two arms that wind out of the origin to radius 1."""

    def curve(arm: Tensor, place: Tensor) -> Tensor:
        angle = math.pi * arm.to(place.dtype) + 2 * math.pi * turns * place
        return place[..., None] * _direction(angle)

    return curve


@dataclass(frozen=True)
class _Curves(Prior):
    """Curves of two arms in random places, sizes and directions."""

    centre_scale: float = 1.4
    scale_low: float = 1.0
    scale_high: float = 2.0
    noise_low: float = 0.1
    noise_high: float = 0.25
    box: float = 5.5

    dim = 2

    @abstractmethod
    def _shape(self) -> tuple[Curve, int, float]:
        """Return the curve, the power of places along it, and its highest speed."""

    def _draw(self, tasks: int, random: Random) -> CurveTasks:
        curve, power, speed = self._shape()
        centres = random.uniform((tasks, 2), -self.centre_scale, self.centre_scale)
        angle = random.uniform((tasks,), 0.0, 2 * math.pi)
        scale = random.uniform((tasks,), self.scale_low, self.scale_high)
        mirror = random.integers(2, (tasks,)) * 2 - 1
        first = scale[:, None] * _direction(angle)
        second = torch.stack([-first[:, 1], first[:, 0]], dim=-1) * mirror[:, None]
        frames = torch.stack([first, second], dim=-1)
        noise = random.uniform((tasks,), self.noise_low, self.noise_high)
        # Nodes are at most (pi / 2) / nodes apart: with this many, less than s along the curve.
        nodes = math.ceil(1.6 * speed * self.scale_high / self.noise_low)
        return CurveTasks(centres, frames, noise, curve=curve, power=power, nodes=nodes)


@final
@dataclass(frozen=True)
class Moons(_Curves):
    """Two interleaving half-circles in a random place, size and direction.

    Parameters
    ----------
    centre_scale, scale_low, scale_high, noise_low, noise_high, box : float
        As for :class:`Rings`; the scale is the radius of the half-circles.
    """

    def _shape(self) -> tuple[Curve, int, float]:
        return _moons, 1, math.pi


@final
@dataclass(frozen=True)
class Spirals(_Curves):
    """Two spiral arms with points spread about evenly along them, in a random place and size.

    Parameters
    ----------
    centre_scale, scale_low, scale_high, noise_low, noise_high, box : float
        As for :class:`Rings`; the scale is the outer radius.
    turns : float
        Number of turns of each arm.
    """

    scale_low: float = 1.5
    scale_high: float = 3.0
    turns: float = 1.25

    def _shape(self) -> tuple[Curve, int, float]:
        # Places grow like the square root of a uniform number, as arc length on a spiral does.
        return _spirals(self.turns), 2, math.hypot(1.0, 2 * math.pi * self.turns)


PRIORS: dict[str, Prior] = {
    "compact": GaussianMixtures.compact(),
    "paper": GaussianMixtures.paper(),
    "rings": Rings(),
    "moons": Moons(),
    "spirals": Spirals(),
    "shapes": UniformShapes(),
}
"""The priors that :func:`prior` returns by name."""


def prior(name: str) -> Prior:
    """Return the prior of that name in :data:`PRIORS`."""
    return PRIORS[as_choice(name, "prior", PRIORS)]
