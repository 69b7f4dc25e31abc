"""EnergyTransformer: the descent on the energy of tokens, as a layer."""

from __future__ import annotations

from torch import Tensor, nn

from isthmus.deep.transformer import EnergyTransformerBlock
from isthmus.errors import ShapeError
from isthmus.validation import as_count


class EnergyTransformer(nn.Module):
    """A layer that moves tokens downhill on an :class:`~isthmus.deep.EnergyTransformerBlock`.

    Each step is ``x - step_size * dE/dg``, without a check that the energy falls; all steps share
    their weights. It takes the place of a transformer block.

    Parameters
    ----------
    width, heads, head_width, memories, step_size, seed
        As for the block.
    steps : int

    Examples
    --------
    >>> import torch
    >>> from isthmus.nn import EnergyTransformer
    >>> EnergyTransformer(16, steps=3)(torch.randn(2, 9, 16)).shape
    torch.Size([2, 9, 16])
    """

    def __init__(
        self,
        width: int,
        *,
        heads: int = 4,
        head_width: int = 16,
        memories: int | None = None,
        steps: int = 12,
        step_size: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.block = EnergyTransformerBlock(
            width,
            heads=heads,
            head_width=head_width,
            memories=memories,
            step_size=step_size,
            seed=seed,
        )
        self.steps = as_count(steps, "steps", at_least=0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after all steps. (B, N, width) -> (B, N, width)"""
        if x.ndim < 2 or x.shape[-1] != self.block.width:
            raise ShapeError(f"x must be (..., N, {self.block.width}), not {tuple(x.shape)}.")
        for _ in range(self.steps):
            x = x + self.block.step_size * self.block.direction(x)
        return x
