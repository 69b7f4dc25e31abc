"""What an objective is: a loss for a batch of sequences."""

from __future__ import annotations

from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from isthmus.incontext.model import ICLEBM

__all__ = ["Objective", "StatefulObjective"]


class Objective(Protocol):
    """A loss to train an in-context model with; write your own as a function or a class.

    Called as ``objective(model, x, generator)`` with sequences x: (B, S, D) and the generator that
    all its random numbers must come from. It returns a scalar loss with a graph to the model's
    parameters. A frozen dataclass is best, since its printed form is what tells a resumed run that
    its settings are the same.
    """

    def __call__(self, model: ICLEBM, x: Tensor, generator: torch.Generator) -> Tensor:
        """The loss of one batch."""
        ...


@runtime_checkable
class StatefulObjective(Protocol):
    """An objective that remembers something from call to call, which checkpoints must keep."""

    def state_dict(self) -> dict[str, Tensor]:
        """What to keep."""
        ...

    def load_state_dict(self, state: dict[str, Tensor]) -> None:
        """Take up what was kept."""
        ...
