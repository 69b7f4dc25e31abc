"""EnergyTransformerBlock: an energy of tokens, and EnergyTransformer, its descent as a layer."""

from __future__ import annotations

import math
from typing import Any, final

import torch
from torch import Tensor, nn

from isthmus.deep.memory import gradient_of, lowered
from isthmus.deep.neurons import EPSILON
from isthmus.deep.synapses import attention_energy
from isthmus.energy import Energy
from isthmus.errors import ShapeError
from isthmus.validation import as_count, as_number


@final
class EnergyTransformerBlock(Energy):
    r"""The energy of the Energy Transformer (Hoover et al., 2023), of normalised tokens g.

    .. math:: E(x) = -\frac1\beta \sum_h \sum_C \log \sum_{B \ne C} \exp(\beta K_{hB} \cdot Q_{hC})
        - \frac12 \sum_B \sum_\mu \max(0, \xi_\mu \cdot g_B)^2, \qquad
        g_B = \gamma \frac{x_B - \bar x_B}{\sqrt{\operatorname{var} x_B + \epsilon}} + \delta

    A point is its tokens (N, width), one after the other. The norm bounds the energy, which is flat
    along the lengths of tokens: it has no normaliser.

    :meth:`step` moves along -dE/dg, by `step_size` or the largest half of it, and so on, that does
    not raise the energy. As a layer: :class:`isthmus.nn.EnergyTransformer`.

    Parameters
    ----------
    width, tokens : int
        Coordinates of a token, and their number N; default: any.
    heads, head_width, memories : int
        Heads of the attention, the width of their keys, and patterns of the Hopfield network;
        default of the last: four times `width`.
    step_size : float
    seed : int

    Examples
    --------
    >>> import torch
    >>> from isthmus.deep import EnergyTransformerBlock
    >>> block = EnergyTransformerBlock(8, tokens=5)
    >>> block.energy(torch.randn(3, 40)).shape
    torch.Size([3])
    """

    has_step = True
    _is_pointwise = True

    def __init__(
        self,
        width: int,
        *,
        tokens: int | None = None,
        heads: int = 4,
        head_width: int = 16,
        memories: int | None = None,
        step_size: float = 0.1,
        seed: int = 0,
    ) -> None:
        super().__init__()
        self.width = width = as_count(width, "width", at_least=2)
        self.tokens = None if tokens is None else as_count(tokens, "tokens")
        self.heads, self.head_width = as_count(heads, "heads"), as_count(head_width, "head_width")
        self.memories = 4 * width if memories is None else as_count(memories, "memories")
        self.step_size = as_number(step_size, "step_size", above=0)
        generator = torch.Generator().manual_seed(as_count(seed, "seed", at_least=0))

        def drawn(*shape: int) -> nn.Parameter:
            return nn.Parameter(torch.randn(*shape, width, generator=generator) / math.sqrt(width))

        self.key = drawn(self.heads, self.head_width)
        self.query = drawn(self.heads, self.head_width)
        self.patterns = drawn(self.memories)
        self.gain = nn.Parameter(torch.ones(()))
        self.shift = nn.Parameter(torch.zeros(width))

    def __repr__(self) -> str:
        return f"EnergyTransformerBlock({self.tokens or 'N'} tokens of {self.width})"

    @property
    def dim(self) -> int | None:
        """Coordinates of all tokens, if their number is fixed."""
        return None if self.tokens is None else self.tokens * self.width

    def _settings(self) -> dict[str, Any]:
        names = ("width", "tokens", "heads", "head_width", "memories", "step_size")
        return {name: getattr(self, name) for name in names}

    @classmethod
    def _restored(cls, settings: dict[str, Any]) -> EnergyTransformerBlock:
        return cls(**settings)

    def normalized(self, tokens: Tensor) -> Tensor:
        """Return the activations g of tokens (..., N, width)."""
        centered = tokens - tokens.mean(-1, keepdim=True)
        deviation = (centered.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return self.gain * centered / deviation + self.shift

    def activation_energy(self, g: Tensor) -> Tensor:
        """Return the energy of activations (..., N, width): (...)."""
        hopfield = 0.5 * (g @ self.patterns.mT).relu().square().sum(dim=(-1, -2))
        return attention_energy(g, self.key, self.query) - hopfield

    def direction(self, tokens: Tensor) -> Tensor:
        """Return -dE/dg of tokens (..., N, width), in which they move."""
        return -gradient_of(self.activation_energy, self.normalized(tokens))

    def _split(self, x: Tensor) -> Tensor:
        if x.shape[-1] % self.width:
            raise ShapeError(
                f"Points must be whole tokens of {self.width}, not {x.shape[-1]} coordinates."
            )
        return x.unflatten(-1, (-1, self.width))

    def _energy(self, x: Tensor) -> Tensor:
        return self.activation_energy(self.normalized(self._split(x)))

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        target = x + self.step_size * self.direction(self._split(x)).flatten(-2)
        if held is not None:
            target = torch.where(held, x, target)
        return lowered(self._energy, x, target, self._energy(x))[0]


class EnergyTransformer(nn.Module):
    """A layer that moves tokens downhill on an :class:`EnergyTransformerBlock`.

    Each of the `steps` is ``x - step_size * dE/dg``, without a check that the energy falls; all
    share their weights. It takes the place of a transformer block.

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
        sizes: Any = {"heads": heads, "head_width": head_width, "memories": memories}
        self.block = EnergyTransformerBlock(width, **sizes, step_size=step_size, seed=seed)
        self.steps = as_count(steps, "steps", at_least=0)

    def forward(self, x: Tensor) -> Tensor:
        """Return the tokens after all steps. (B, N, width) -> (B, N, width)"""
        if x.ndim < 2 or x.shape[-1] != self.block.width:
            raise ShapeError(f"x must be (..., N, {self.block.width}), not {tuple(x.shape)}.")
        for _ in range(self.steps):
            x = x + self.block.step_size * self.block.direction(x)
        return x
