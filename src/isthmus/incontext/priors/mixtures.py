"""Random mixtures of Gaussians: the prior of the paper, and a compact one."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.incontext.priors.base import Prior, Tasks, batch_of, ordered, positive, uniform
from isthmus.validation import as_count

__all__ = ["GaussianMixtures", "MixtureTasks"]

MeanLaw = Literal["uniform", "normal"]


@final
@dataclass(frozen=True, eq=False)
class MixtureTasks(Tasks):
    """Mixtures with equal weights and isotropic components.

    Attributes
    ----------
    means : Tensor (B, K, D)
    stds : Tensor (B, K)
    """

    means: Tensor
    stds: Tensor

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every mixture. (B, points, D)."""
        tasks, components, dim = self.means.shape
        points = as_count(points, "points", at_least=0)
        device = generator.device
        which = torch.randint(components, (tasks, points), generator=generator, device=device)
        noise = torch.randn(
            (tasks, points, dim), generator=generator, dtype=self.means.dtype, device=device
        )
        means = self.means.gather(1, which[..., None].expand(-1, -1, dim))
        return means + self.stds.gather(1, which)[..., None] * noise

    def log_prob(self, x: Tensor) -> Tensor:
        """Log-density of mixture b at the points x[b]. x: (B, M, D) -> (B, M)."""
        tasks, components, dim = self.means.shape
        x = batch_of(x, tasks, dim)
        scaled = (x[:, :, None] - self.means[:, None]) / self.stds[:, None, :, None]
        constant = dim * self.stds.log() + dim / 2 * math.log(2 * math.pi) + math.log(components)
        return torch.logsumexp(-scaled.square().sum(-1) / 2 - constant[:, None], dim=-1)


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
        The standard deviation of each component is uniform between the two; if they are equal,
        it is known.
    box : float
        Half-width of the cube that holds practically all the data.

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
    mean_law: MeanLaw = "uniform"
    mean_scale: float = 3.0
    std_low: float = 0.3
    std_high: float = 0.6
    box: float = 5.5

    def __post_init__(self) -> None:
        as_count(self.components, "components")
        as_count(self.dim, "dim")
        positive(mean_scale=self.mean_scale, box=self.box)
        ordered(std_low=self.std_low, std_high=self.std_high)
        if self.mean_law not in ("uniform", "normal"):
            raise InvalidInputError(
                f'mean_law must be "uniform" or "normal", not {self.mean_law!r}.'
            )

    @classmethod
    def compact(cls) -> GaussianMixtures:
        """Three components, means U[-3, 3]^2, standard deviations U[0.3, 0.6]."""
        return cls()

    @classmethod
    def paper(cls) -> GaussianMixtures:
        """The paper's authors' own: three components, means N(0, 5^2 I), standard deviation 0.5.

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
