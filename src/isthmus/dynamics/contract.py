"""Checks that an energy can be moved on: one energy for each point, whatever the others are."""

from __future__ import annotations

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import ShapeError, UnsupportedOperationError
from isthmus.memories.base import Memory

__all__ = ["require_energy", "require_pointwise"]


def require_energy(energy: object) -> None:
    """Raise if the first argument of a function is not an energy."""
    if not isinstance(energy, Energy):
        raise UnsupportedOperationError(
            f"The first argument must be an isthmus.Energy, not a {type(energy).__name__}; "
            "points come second."
        )


@torch.no_grad()
def require_pointwise(energy: Energy, points: Tensor) -> None:
    """Raise if an energy does not map points (n, D) to energies (n,) for every n.

    An energy of a batch of contexts does not, since each of its points belongs to a context.
    Memories are known to keep the contract and are not evaluated.
    """
    if isinstance(energy, Memory) or len(points) == 0:
        return
    name, advice = type(energy).__name__, ""
    for count in (1, 2):
        some = points[:1].expand(count, -1)
        try:
            shape = energy.energy(some).shape
        except ShapeError as error:
            shape, advice = None, f" It says: {error}"
        if shape != (count,):
            found = "raises an error" if shape is None else f"returns shape {tuple(shape)}"
            raise ShapeError(
                f"retrieve and sample move points (n, D) one by one, but {name}.energy {found} "
                f"for points of shape {tuple(some.shape)} where ({count},) is expected. If it "
                f"is an energy of a batch of contexts, condition on one context at a time.{advice}"
            )
