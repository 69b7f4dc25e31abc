"""Moons and spirals: two-armed curves blurred by Gaussian noise."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import final

import numpy as np
import torch
from torch import Tensor

from isthmus.incontext.priors.base import Prior, Tasks, as_task_points, uniform
from isthmus.validation import as_count

__all__ = ["CurveTasks", "Moons", "Spirals"]

# An arm (0 or 1) and a place along it in [0, 1] to a point: (...), (...) -> (..., 2).
Curve = Callable[[Tensor, Tensor], Tensor]
# Distances that are held at once when a density is computed.
BLOCK_NUMBERS = 2**22


@final
@dataclass(frozen=True, eq=False)
class CurveTasks(Tasks):
    r"""A curve of two arms, moved and turned, and blurred by isotropic noise.

    .. math:: p(x) = \tfrac12 \sum_{a} \int_0^1 q\, v^{q-1}\,
        \mathcal N\bigl(x;\, c + F\, \gamma_a(v),\, s^2 I\bigr)\, dv

    by Gauss-Legendre quadrature, whose nodes are closer together than s.

    Attributes
    ----------
    centres : Tensor (B, 2)
        c
    frames : Tensor (B, 2, 2)
        F: scale, rotation and reflection.
    noise : Tensor (B,)
        s
    curve : callable
        :math:`\gamma`.
    power : int
        q: places along an arm have the density :math:`q v^{q-1}`.
    nodes : int
        Quadrature nodes on each arm.
    """

    centres: Tensor
    frames: Tensor
    noise: Tensor
    curve: Curve = field(repr=False)
    power: int
    nodes: int

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, 2)."""
        shape = (len(self), as_count(points, "points", at_least=0))
        device, dtype = generator.device, self.centres.dtype
        arm = torch.randint(2, shape, generator=generator, device=device)
        place = uniform(shape, 0.0, 1.0, generator, dtype) ** (1 / self.power)
        noise = torch.randn((*shape, 2), generator=generator, dtype=dtype, device=device)
        return self._placed(self.curve(arm, place)) + self.noise[:, None, None] * noise

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
        return torch.stack([place * angle.cos(), place * angle.sin()], dim=-1)

    return curve


class _Curves(Prior):
    """Curves of two arms in random places, sizes and directions."""

    centre_scale: float
    scale_low: float
    scale_high: float
    noise_low: float
    noise_high: float
    dim = 2

    @abstractmethod
    def _shape(self) -> tuple[Curve, int, float]:
        """Return the curve, the power of places along it, and its highest speed."""

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> CurveTasks:
        """Draw a batch of independent tasks on the device of the generator."""
        tasks = as_count(tasks, "tasks")
        curve, power, speed = self._shape()
        centres = uniform((tasks, 2), -self.centre_scale, self.centre_scale, generator, dtype)
        angle = uniform((tasks,), 0.0, 2 * math.pi, generator, dtype)
        scale = uniform((tasks,), self.scale_low, self.scale_high, generator, dtype)
        mirror = torch.randint(2, (tasks,), generator=generator, device=generator.device) * 2 - 1
        first = scale[:, None] * torch.stack([angle.cos(), angle.sin()], dim=-1)
        second = torch.stack([-first[:, 1], first[:, 0]], dim=-1) * mirror[:, None]
        frames = torch.stack([first, second], dim=-1)
        noise = uniform((tasks,), self.noise_low, self.noise_high, generator, dtype)
        # Nodes are at most (pi / 2) / nodes apart: with this many, less than s along the curve.
        nodes = math.ceil(1.6 * speed * self.scale_high / self.noise_low)
        return CurveTasks(centres, frames, noise, curve=curve, power=power, nodes=nodes)


@final
@dataclass(frozen=True)
class Moons(_Curves):
    """Two interleaving half-circles in a random place, size and direction.

    Parameters
    ----------
    centre_scale : float
        Coordinates of the centre are U[-centre_scale, centre_scale].
    scale_low, scale_high, noise_low, noise_high : float
        Radii of the half-circles and the standard deviations of the noise are uniform between
        these bounds.
    box : float

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.priors import Moons
    >>> generator = torch.Generator().manual_seed(0)
    >>> Moons().draw(4, generator).sample(10, generator).shape
    torch.Size([4, 10, 2])
    """

    centre_scale: float = 1.4
    scale_low: float = 1.0
    scale_high: float = 2.0
    noise_low: float = 0.1
    noise_high: float = 0.25
    box: float = 5.5

    def _shape(self) -> tuple[Curve, int, float]:
        return _moons, 1, math.pi


@final
@dataclass(frozen=True)
class Spirals(_Curves):
    """Two spiral arms with points spread about evenly along them, in a random place and size.

    Parameters
    ----------
    turns : float
        Number of turns of each arm.
    centre_scale : float
        Coordinates of the centre are U[-centre_scale, centre_scale].
    scale_low, scale_high, noise_low, noise_high : float
        Outer radii and the standard deviations of the noise are uniform between these bounds.
    box : float

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.priors import Spirals
    >>> generator = torch.Generator().manual_seed(0)
    >>> Spirals().draw(4, generator).sample(10, generator).shape
    torch.Size([4, 10, 2])
    """

    turns: float = 1.25
    centre_scale: float = 1.4
    scale_low: float = 1.5
    scale_high: float = 3.0
    noise_low: float = 0.1
    noise_high: float = 0.25
    box: float = 5.5

    def _shape(self) -> tuple[Curve, int, float]:
        # Places grow like the square root of a uniform number, as arc length on a spiral does.
        return _spirals(self.turns), 2, math.hypot(1.0, 2 * math.pi * self.turns)
