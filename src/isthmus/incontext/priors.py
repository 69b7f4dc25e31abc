"""Priors over densities, by name: mixtures of Gaussians, and rings, shapes, moons, spirals."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from typing import Any, Literal, Self, cast, final

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.incontext.config import CheckedFields
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

    nodes = 1  # numbers that the density of a component takes for each point

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
        width = max(1, BLOCK_NUMBERS // (tasks * components * self.nodes))
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


def _direction(angle: Tensor) -> Tensor:
    """Return unit vectors (..., 2) at angles (...)."""
    return torch.stack([angle.cos(), angle.sin()], dim=-1)


@final
@dataclass(frozen=True, eq=False)
class ShapeTasks(Tasks):
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


def _rotated(points: Tensor, angles: Tensor) -> Tensor:
    """Rotate points around the origin. (..., 2), (...) -> (..., 2)."""
    x, y = points.unbind(-1)
    cos, sin = angles.cos(), angles.sin()
    return torch.stack([cos * x - sin * y, sin * x + cos * y], dim=-1)


@final
@dataclass(frozen=True)
class UniformShapes(Prior):
    """Rectangles and discs with equal probability; where two overlap, their densities add.

    Centres are uniform in [-centre_scale, centre_scale]^2; half the sides of rectangles and the
    radii of discs are uniform between `half_low` and `half_high`.
    """

    components: int = 2
    centre_scale: float = 2.5
    half_low: float = 0.4
    half_high: float = 1.5
    box: float = 5.5

    dim = 2

    def _draw(self, tasks: int, random: Random) -> ShapeTasks:
        shape = (tasks, self.components)
        centres = random.uniform((*shape, 2), -self.centre_scale, self.centre_scale)
        halves = random.uniform((*shape, 2), self.half_low, self.half_high)
        angles = random.uniform(shape, 0.0, math.pi)
        random.dtype = torch.float32
        return ShapeTasks(centres, halves, angles, random.uniform(shape, 0.0, 1.0) < 0.5)


@final
@dataclass(frozen=True, eq=False)
class CurveTasks(Tasks):
    r"""Curves that are moved and turned, and blurred by isotropic noise; arms are components.

    .. math:: p(x) = \int_0^1 q\, v^{q-1}\, \mathcal N\bigl(x;\, c + F \gamma(v),\, s^2 I\bigr)\, dv

    for each arm, by Gauss-Legendre quadrature, whose nodes are closer together than s.
    """

    centres: Tensor  # (B, 2, 2), c
    frames: Tensor  # (B, 2, 2, 2), F: scale, rotation and reflection
    noise: Tensor  # (B, 2), s
    curve: Callable[[Tensor], Tensor] = field(repr=False)  # gamma: (...) -> (..., 2)
    power: int  # q
    nodes: int  # of the quadrature, on each arm

    def _draw_one_each(self, random: Random) -> Tensor:
        place = random.uniform(self.noise.shape, 0.0, 1.0) ** (1 / self.power)
        noise = self.noise[..., None] * random.normal(self.centres.shape)
        turned = (self.frames @ self.curve(place)[..., None])[..., 0]
        return turned + self.centres + noise

    def _log_densities(self, x: Tensor) -> Tensor:
        unit_nodes, unit_weights = np.polynomial.legendre.leggauss(self.nodes)
        place = self.centres.new_tensor((unit_nodes + 1) / 2)
        weights = self.centres.new_tensor(unit_weights / 2) * self.power * place ** (self.power - 1)
        curve = self.curve(place) @ self.frames.mT + self.centres[..., None, :]  # (..., nodes, 2)
        variance = self.noise.square()
        # Not by a matrix product, whose rounding would show far from the origin.
        squares = sum((x[..., None, d] - curve[..., d]).square() for d in range(2))
        terms = weights.log() - squares / (2 * variance[..., None])
        return terms.logsumexp(-1) - (2 * math.pi * variance).log()


def _nodes(length: float, noise: float) -> int:
    """Return a number of nodes that are closer together on a curve than the noise."""
    return math.ceil(1.6 * length / noise)  # they are at most (pi / 2) / nodes apart


def _circle(place: Tensor) -> Tensor:
    return _direction(2 * math.pi * place)


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

    def _draw(self, tasks: int, random: Random) -> CurveTasks:
        shape = tasks, self.components
        centres = random.uniform((*shape, 2), -self.centre_scale, self.centre_scale)
        radii = random.uniform(shape, self.radius_low, self.radius_high)
        frames = radii[..., None, None] * torch.eye(2).to(radii)
        noise = random.uniform(shape, self.thickness_low, self.thickness_high)
        nodes = _nodes(2 * math.pi * self.radius_high, self.thickness_low)
        return CurveTasks(centres, frames, noise, _circle, 1, nodes)


@dataclass(frozen=True)
class _Curves(Prior):
    """Two arms, each the other turned by half a circle, in random places and directions."""

    centre_scale: float = 1.4
    scale_low: float = 1.0
    scale_high: float = 2.0
    noise_low: float = 0.1
    noise_high: float = 0.25
    box: float = 5.5

    dim = 2

    @abstractmethod
    def _shape(self) -> tuple[Callable[[Tensor], Tensor], int, float]:
        """Return an arm, the power of places along it, and its highest speed."""

    def _draw(self, tasks: int, random: Random) -> CurveTasks:
        curve, power, speed = self._shape()
        centres = random.uniform((tasks, 2), -self.centre_scale, self.centre_scale)
        angle = random.uniform((tasks,), 0.0, 2 * math.pi)
        scale = random.uniform((tasks,), self.scale_low, self.scale_high)
        mirror = random.integers(2, (tasks,)) * 2 - 1
        first = scale[:, None] * _direction(angle)
        second = torch.stack([-first[:, 1], first[:, 0]], dim=-1) * mirror[:, None]
        frame = torch.stack([first, second], dim=-1)
        noise = random.uniform((tasks,), self.noise_low, self.noise_high)
        nodes = _nodes(speed * self.scale_high, self.noise_low)
        arms = torch.stack([frame, -frame], dim=1), noise[:, None].expand(-1, 2)
        return CurveTasks(centres[:, None].expand(-1, 2, -1), *arms, curve, power, nodes)


@final
@dataclass(frozen=True)
class Moons(_Curves):
    """Two interleaving half-circles with a random radius between the bounds of `scale`."""

    def _shape(self) -> tuple[Callable[[Tensor], Tensor], int, float]:
        middle = torch.tensor([0.5, 0.25])
        return lambda place: _direction(math.pi * place) - middle.to(place), 1, math.pi


@final
@dataclass(frozen=True)
class Spirals(_Curves):
    """Two spiral arms with points spread about evenly along them.

    Their outer radius is between the bounds of `scale`, and each makes some `turns`.
    """

    scale_low: float = 1.5
    scale_high: float = 3.0
    turns: float = 1.25

    def _shape(self) -> tuple[Callable[[Tensor], Tensor], int, float]:
        # Places grow like the square root of a uniform number, as arc length on a spiral does.
        speed = 2 * math.pi * self.turns
        return lambda place: place[..., None] * _direction(speed * place), 2, math.hypot(1.0, speed)


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
