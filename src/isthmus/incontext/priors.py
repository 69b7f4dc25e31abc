"""Priors over densities, by name: mixtures of Gaussians with random means and widths."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, final

import torch
from torch import Tensor

from isthmus.errors import ShapeError
from isthmus.incontext.config import CheckedFields
from isthmus.validation import as_choice, as_count

# Numbers that are held at once when a density is computed.
BLOCK_NUMBERS = 2**22


@final
@dataclass(frozen=True, eq=False)
class MixtureTasks:
    """A batch of B mixtures with equal weights and isotropic components.

    Indexing with a slice, a mask or indices gives a smaller batch.
    """

    means: Tensor  # (B, K, D)
    stds: Tensor  # (B, K)

    def sample(self, points: int, generator: torch.Generator) -> Tensor:
        """Draw independent points of every task. (B, points, D)."""
        tasks, components, dim = self.means.shape
        shape = tasks, as_count(points, "points", at_least=0)
        source: Any = {"generator": generator, "device": generator.device}
        which = torch.randint(components, shape, **source)
        task = torch.arange(tasks, device=which.device)[:, None]
        noise = torch.randn((*shape, dim), **source, dtype=self.means.dtype)
        return self.means[task, which] + self.stds[task, which][..., None] * noise

    def log_prob(self, x: Tensor) -> Tensor:
        """Return the log-density of task b at the points x[b]. x: (B, M, D) -> (B, M)."""
        tasks, components, dim = self.means.shape
        if x.ndim != 3 or x.shape[0] != tasks or x.shape[2] != dim:
            raise ShapeError(
                f"x must have shape ({tasks}, M, {dim}), a row of points for each task, "
                f"not {tuple(x.shape)}."
            )
        means, stds = self.means[:, None], self.stds[:, None]  # (B, 1, K, ...)
        constant = dim * (stds.log() + math.log(2 * math.pi) / 2) + math.log(components)
        parts = []
        for part in x[:, :, None].split(max(1, BLOCK_NUMBERS // (tasks * components)), dim=1):
            scaled = (part - means) / stds[..., None]
            parts.append((-scaled.square().sum(-1) / 2 - constant).logsumexp(-1))
        return torch.cat(parts, dim=1)

    def __len__(self) -> int:
        return len(self.means)

    def __getitem__(self, index: Any) -> MixtureTasks:
        if isinstance(index, int):
            index = range(len(self))[index]  # raises if out of range, which ends a loop
            index = slice(index, index + 1)
        return MixtureTasks(self.means[index], self.stds[index])

    def to(self, dtype: torch.dtype) -> MixtureTasks:
        """Return the same densities, computed in another precision."""
        return MixtureTasks(self.means.to(dtype), self.stds.to(dtype))


@final
@dataclass(frozen=True)
class GaussianMixtures(CheckedFields):
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

    def draw(
        self, tasks: int, generator: torch.Generator, *, dtype: torch.dtype = torch.float32
    ) -> MixtureTasks:
        """Draw a batch of independent tasks on the device of the generator."""
        shape = (as_count(tasks, "tasks"), self.components, self.dim)
        source: Any = {"generator": generator, "device": generator.device, "dtype": dtype}

        def uniform(shape: tuple[int, ...], low: float, high: float) -> Tensor:
            return low + (high - low) * torch.rand(shape, **source)

        if self.mean_law == "uniform":
            means = uniform(shape, -self.mean_scale, self.mean_scale)
        else:
            means = self.mean_scale * torch.randn(shape, **source)
        return MixtureTasks(means, uniform(shape[:2], self.std_low, self.std_high))


PRIORS = {"compact": GaussianMixtures.compact(), "paper": GaussianMixtures.paper()}
"""The priors that :func:`prior` returns by name."""


def prior(name: str) -> GaussianMixtures:
    """Return the prior of that name in :data:`PRIORS`."""
    return PRIORS[as_choice(name, "prior", PRIORS)]
