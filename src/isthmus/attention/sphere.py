"""The sphere of normed vectors: all unit vectors, or those orthogonal to the vector of ones."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from isthmus.special import sample_vmf

__all__ = ["draw_about", "pole"]


def pole(dim: int, centred: bool, like: Tensor) -> Tensor:
    """Return a fixed unit vector of the sphere. (D,)."""
    vector = like.new_zeros(dim)
    vector[0] = 1
    if centred:
        vector[1] = -1
        vector /= math.sqrt(2)
    return vector


def draw_about(
    directions: Tensor, kappa: Tensor, centred: bool, generator: torch.Generator
) -> Tensor:
    """Draw one von Mises-Fisher point about each direction. (n, D), (n,) -> (n, D)."""
    if not centred:
        return _draw(directions, kappa, generator)
    # A reflection takes the vector of ones onto the first axis, and the sphere to the others.
    inside = _reflect(directions)[:, 1:]
    drawn = _draw(inside, kappa, generator)
    return _reflect(torch.nn.functional.pad(drawn, (1, 0)))


def _draw(directions: Tensor, kappa: Tensor, generator: torch.Generator) -> Tensor:
    if directions.shape[1] > 1:
        return sample_vmf(directions, kappa, generator)
    # The sphere is two points.
    uniform = torch.rand(len(kappa), generator=generator, dtype=kappa.dtype, device=kappa.device)
    stays = uniform < torch.sigmoid(2 * kappa)
    return torch.where(stays[:, None], directions, -directions)


def _reflect(x: Tensor) -> Tensor:
    """Swap ones / sqrt(D) with minus the first axis. (n, D)."""
    dim = x.shape[-1]
    mirror = x.new_full((dim,), 1 / math.sqrt(dim))
    mirror[0] += 1
    return x - torch.outer(x @ mirror / (1 + 1 / math.sqrt(dim)), mirror)
