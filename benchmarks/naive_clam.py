"""ClAM as a direct transcription of its description: the reference for speed and gradients.

Every step holds all differences between rows and memories, a (B, K, D) array, and autograd goes
back through all steps. The loss is the paper's, with components of covariance I / (2 beta).
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

__all__ = ["NaiveClAM"]


class NaiveClAM(nn.Module):
    """Memories that are parameters, and T steps of the dynamics on them.

    Parameters
    ----------
    memories : Tensor (K, D)
    beta : float
    steps : int
        T.
    rate : float
        How far a state goes towards the mean of memories in one step.
    """

    def __init__(self, memories: Tensor, beta: float, steps: int = 10, rate: float = 0.1) -> None:
        super().__init__()
        self.memories = nn.Parameter(memories.clone())
        self.beta, self.steps, self.rate = beta, steps, rate

    def forward(self, rows: Tensor) -> Tensor:
        """Where rows are after all steps. Shape (B, D) -> (B, D)."""
        state = rows
        for _ in range(self.steps):
            differences = self.memories[None, :, :] - state[:, None, :]
            weights = torch.softmax(-self.beta * differences.square().sum(2), 1)
            state = state + self.rate * (weights[:, :, None] * differences).sum(1)
        return state

    def loss(self, rows: Tensor) -> Tensor:
        """Mean squared distance of rows to where they end."""
        return (self(rows) - rows).square().sum(1).mean()
