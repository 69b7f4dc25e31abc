"""Random mixtures of Gaussians: the prior of the paper's authors, and a more compact one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from isthmus.incontext.priors.base import ComponentTasks, Prior, uniform
from isthmus.validation import as_count


@final
@dataclass(frozen=True, eq=False)
class MixtureTasks(ComponentTasks):
    """Mixtures with equal weights and isotropic components.

    Attributes
    ----------
    means : Tensor (B, K, D)
    stds : Tensor (B, K)
    """

    means: Tensor
    stds: Tensor

    def _draw_one_each(self, generator: torch.Generator) -> Tensor:
        noise = torch.randn(
            self.means.shape, generator=generator, dtype=self.means.dtype, device=generator.device
        )
        return self.means + self.stds[..., None] * noise

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
    components : int
        K
    dim : int
        D
    mean_law : {"uniform", "normal"}
        Every coordinate of a mean is U[-mean_scale, mean_scale] or N(0, mean_scale^2).
    mean_scale : float
    std_low, std_high : float
        The standard deviation of each component is uniform between the two.
    box : float
        Half-width of the cube that holds nearly all the data.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext.priors import GaussianMixtures
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

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> MixtureTasks:
        """Draw a batch of independent mixtures on the device of the generator."""
        shape = (as_count(tasks, "tasks"), self.components, self.dim)
        if self.mean_law == "uniform":
            means = uniform(shape, -self.mean_scale, self.mean_scale, generator, dtype)
        else:
            noise = torch.randn(shape, generator=generator, dtype=dtype, device=generator.device)
            means = self.mean_scale * noise
        return MixtureTasks(
            means, uniform(shape[:2], self.std_low, self.std_high, generator, dtype)
        )
