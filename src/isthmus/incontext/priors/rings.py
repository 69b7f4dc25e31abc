"""Rings: circles blurred by Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import final

import torch
from torch import Tensor

from isthmus.incontext.priors.base import Prior, Tasks, batch_of, ordered, positive, uniform
from isthmus.validation import as_count

__all__ = ["RingTasks", "Rings"]


@final
@dataclass(frozen=True, eq=False)
class RingTasks(Tasks):
    r"""Equal mixtures of circles of radius R, blurred by noise of standard deviation s.

    With r the distance from the centre, the noise around a uniform angle integrates to

    .. math:: p(x) = \frac{1}{2 \pi s^2}
        \exp\Bigl(-\frac{r^2 + R^2}{2 s^2}\Bigr) I_0\Bigl(\frac{r R}{s^2}\Bigr) .

    Attributes
    ----------
    centres : Tensor (B, K, 2)
    radii, thickness : Tensor (B, K)
    """

    centres: Tensor
    radii: Tensor
    thickness: Tensor

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, 2)."""
        tasks, rings = self.radii.shape
        shape = (tasks, as_count(points, "points", at_least=0))
        device, dtype = generator.device, self.centres.dtype
        which = torch.randint(rings, shape, generator=generator, device=device)
        angle = uniform(shape, 0.0, 2 * math.pi, generator, dtype)
        noise = torch.randn((*shape, 2), generator=generator, dtype=dtype, device=device)
        direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        centres = self.centres.gather(1, which[..., None].expand(-1, -1, 2))
        radii, thickness = self.radii.gather(1, which), self.thickness.gather(1, which)
        return centres + radii[..., None] * direction + thickness[..., None] * noise

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of task b at the points x[b]. x: (B, M, 2) -> (B, M)."""
        x = batch_of(x, len(self), 2)
        distance = torch.linalg.vector_norm(x[:, :, None] - self.centres[:, None], dim=-1)
        radii, variance = self.radii[:, None], self.thickness[:, None].square()
        # The scaled Bessel function has exp(-rR/s^2) in it, which completes the square.
        log_ring = (
            torch.special.i0e(distance * radii / variance).log()
            - (distance - radii).square() / (2 * variance)
            - (2 * math.pi * variance).log()
        )
        return torch.logsumexp(log_ring, dim=-1) - math.log(radii.shape[-1])


@final
@dataclass(frozen=True)
class Rings(Prior):
    """Rings of random centre, radius and thickness, all of equal weight.

    Parameters
    ----------
    components : int
        Rings in a task.
    centre_scale : float
        Coordinates of the centres are U[-centre_scale, centre_scale].
    radius_low, radius_high, thickness_low, thickness_high : float
        Radii and the standard deviations of the blur are uniform between these.
    box : float

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.priors import Rings
    >>> generator = torch.Generator().manual_seed(0)
    >>> Rings().draw(4, generator).sample(10, generator).shape
    torch.Size([4, 10, 2])
    """

    components: int = 2
    centre_scale: float = 2.0
    radius_low: float = 0.8
    radius_high: float = 2.2
    thickness_low: float = 0.1
    thickness_high: float = 0.3
    box: float = 5.5
    dim: int = field(default=2, init=False, repr=False)

    def __post_init__(self) -> None:
        as_count(self.components, "components")
        positive(centre_scale=self.centre_scale, box=self.box)
        ordered(radius_low=self.radius_low, radius_high=self.radius_high)
        ordered(thickness_low=self.thickness_low, thickness_high=self.thickness_high)

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> RingTasks:
        """Draw a batch of independent tasks on the device of the generator."""
        shape = (as_count(tasks, "tasks"), self.components)
        reach = self.centre_scale
        return RingTasks(
            uniform((*shape, 2), -reach, reach, generator, dtype),
            uniform(shape, self.radius_low, self.radius_high, generator, dtype),
            uniform(shape, self.thickness_low, self.thickness_high, generator, dtype),
        )
