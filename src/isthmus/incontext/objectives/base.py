"""The protocol of objectives: a loss for a batch of sequences."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from isthmus.incontext.model import ICLEBM

__all__ = ["Objective", "StatefulObjective"]


class Objective(Protocol):
    """A loss to train an in-context model with: a function, or an object that is callable.

    It is called as ``objective(model, x, generator)`` with sequences x: (B, S, D) and the generator
    of all its random numbers. It returns a scalar loss with a graph to the model's parameters. A
    frozen dataclass is best: a resumed run compares its ``repr`` to check that the settings are
    the same.
    """

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """Return the loss of one batch."""
        ...


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective with a state that persists between calls and belongs in checkpoints."""

    def state_dict(self) -> dict[str, Tensor]:
        """Return the state."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Restore a state."""
        ...
