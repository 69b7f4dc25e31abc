"""Distances and coordinates that keep their digits on data far from the origin."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from isthmus.memories.base import GaussianMemory

__all__ = ["Centred", "centred", "distances"]


class Centred(NamedTuple):
    """A memory and points in coordinates whose origin is the mean of the memories.

    Attributes
    ----------
    memory : GaussianMemory
    points : Tensor (N, D)
    centre : Tensor (D,) of float64
        Add it to return to the original coordinates.
    """

    memory: GaussianMemory
    points: Tensor
    centre: Tensor


@torch.no_grad()
def centred(memory: GaussianMemory, points: Tensor) -> Centred:
    """Move the origin to the mean of the memories, if their energy does not depend on it.

    In float32, states near 1e6 are multiples of 1/16. Differences of memories are much finer.
    """
    if not memory.translation_invariant:
        return Centred(memory, points, torch.zeros(memory.dim, dtype=torch.float64))
    memories = memory.memories.detach()
    # Rounded to the dtype of the memories, so that subtracting it from nearby numbers is exact.
    centre = memories.mean(0, dtype=torch.float64).to(memories.dtype)
    return Centred(memory.with_memories(memories - centre), points - centre, centre.double())


def distances(x: Tensor, y: Tensor) -> Tensor:
    """Return the distances between points, from differences. (N, D), (M, D) -> (N, M)."""
    return torch.cdist(x, y, compute_mode="donot_use_mm_for_euclid_dist")
