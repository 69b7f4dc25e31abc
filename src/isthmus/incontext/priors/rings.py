"""Rings: circles blurred by Gaussian noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import final

import torch
from torch import Tensor

from isthmus.incontext.priors.base import ComponentTasks, Prior, uniform
from isthmus.validation import as_count

__all__ = ["RingTasks", "Rings"]


@final
@dataclass(frozen=True, eq=False)
class RingTasks(ComponentTasks):
    r"""Mixtures of circles of radius R, blurred by noise of standard deviation s.

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

    def _draw_one_each(self, generator: torch.Generator) -> Tensor:
        shape, dtype = self.centres.shape, self.centres.dtype
        angle = uniform(shape[:-1], 0.0, 2 * math.pi, generator, dtype)
        noise = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
        direction = torch.stack([angle.cos(), angle.sin()], dim=-1)
        return self.centres + self.radii[..., None] * direction + self.thickness[..., None] * noise

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
    components : int
        Rings in a task.
    centre_scale : float
        Coordinates of the centres are U[-centre_scale, centre_scale].
    radius_low, radius_high, thickness_low, thickness_high : float
        Radii and the standard deviations of the noise are uniform between these bounds.
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

    dim = 2

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> RingTasks:
        """Draw a batch of independent tasks on the device of the generator."""
        shape = (as_count(tasks, "tasks"), self.components)
        return RingTasks(
            uniform((*shape, 2), -self.centre_scale, self.centre_scale, generator, dtype),
            uniform(shape, self.radius_low, self.radius_high, generator, dtype),
            uniform(shape, self.thickness_low, self.thickness_high, generator, dtype),
        )
