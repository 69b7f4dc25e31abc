"""Synapses: energies of the activations of the layers that they join."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from typing import Any, ClassVar

import torch
import torch.nn.functional as F  # noqa: N812
from torch import Tensor, nn

from isthmus.deep.neurons import Neurons
from isthmus.errors import ShapeError
from isthmus.validation import as_count


class Synapse(nn.Module, ABC):
    """A synapse between named layers; subclasses define :meth:`build` and :meth:`energy`.

    Attributes
    ----------
    layers : tuple of str
    is_linear : bool
        True if the energy is linear in the activations of each layer, so that the best state of a
        layer, given the others, is known.
    """

    is_linear: ClassVar[bool] = True

    def __init__(self, *layers: str, **settings: Any) -> None:
        super().__init__()
        self.layers, self.settings = layers, settings

    def extra_repr(self) -> str:
        """Return the layers."""
        return ", ".join(self.layers)

    @abstractmethod
    def build(self, *neurons: Neurons) -> None:
        """Make the weights for layers of these shapes."""

    @abstractmethod
    def energy(self, *activations: Tensor) -> Tensor:
        """Return the energy of activations (..., shape), one tensor for each layer: (...)."""


class Dense(Synapse):
    r"""All neurons of two layers: :math:`-g_1^\top W g_2`, with W as ``weight`` (size, size)."""

    def __init__(self, first: str, second: str) -> None:
        super().__init__(first, second)
        if first == second:
            raise ShapeError("A dense synapse joins two layers; one with itself has no best state.")

    def build(self, *neurons: Neurons) -> None:
        """Make the weights."""
        rows, columns = (each.size for each in neurons)
        self.weight = nn.Parameter(torch.randn(rows, columns) / math.sqrt(max(rows, columns)))
        self.ranks = tuple(len(each.shape) for each in neurons)

    def energy(self, *activations: Tensor) -> Tensor:
        """Return the energy."""
        both = zip(activations, self.ranks, strict=True)
        first, second = (each.flatten(each.ndim - rank) for each, rank in both)
        return -((first @ self.weight) * second).sum(-1)


class Bias(Synapse):
    r"""A constant input to a layer: :math:`-b \cdot g`."""

    def __init__(self, layer: str) -> None:
        super().__init__(layer)

    def build(self, *neurons: Neurons) -> None:
        """Make the weights."""
        self.weight = nn.Parameter(torch.zeros(neurons[0].shape))

    def energy(self, *activations: Tensor) -> Tensor:
        """Return the energy."""
        (first,) = activations
        return -(first * self.weight).flatten(first.ndim - self.weight.ndim).sum(-1)


class Convolution(Synapse):
    r"""Two layers (channels, height, width): :math:`-\langle g_2, W * g_1 \rangle`.

    The second has the shape of the convolution of the first, with half the kernel as padding.
    """

    def __init__(self, first: str, second: str, *, kernel: int = 3, stride: int = 1) -> None:
        super().__init__(first, second, kernel=kernel, stride=stride)
        self.kernel, self.stride = as_count(kernel, "kernel"), as_count(stride, "stride")

    def build(self, *neurons: Neurons) -> None:
        """Make the weights."""
        first, second = (each.shape for each in neurons)
        if len(first) != 3 or len(second) != 3:
            raise ShapeError(f"A convolution joins layers (C, H, W), not {first} and {second}.")
        fan = first[0] * self.kernel**2
        weight = torch.randn(second[0], first[0], self.kernel, self.kernel) / math.sqrt(fan)
        self.weight = nn.Parameter(weight)
        made = tuple(self._convolve(weight.new_zeros(1, *first)).shape[1:])
        if made != second:
            raise ShapeError(f"The convolution of {first} is {made}, but the layer is {second}.")

    def _convolve(self, x: Tensor) -> Tensor:
        return F.conv2d(x, self.weight, stride=self.stride, padding=self.kernel // 2)

    def energy(self, *activations: Tensor) -> Tensor:
        """Return the energy."""
        first, second = activations
        made = self._convolve(first.reshape(-1, *first.shape[-3:])).view(second.shape)
        return -(made * second).sum(dim=(-1, -2, -3))


class Attention(Synapse):
    r"""Tokens (N, D) of one layer attend to each other, as in the Energy Transformer.

    .. math:: -\frac1\beta \sum_h \sum_C \log \sum_{B \ne C} \exp(\beta\, K_{hB} \cdot Q_{hC}),
        \qquad K_{hB} = W^K_h g_B, \quad Q_{hC} = W^Q_h g_C
    """

    is_linear = False

    def __init__(self, layer: str, *, heads: int = 4, head_width: int = 16) -> None:
        super().__init__(layer, heads=heads, head_width=head_width)
        self.heads = as_count(heads, "heads")
        self.head_width = as_count(head_width, "head_width")

    def build(self, *neurons: Neurons) -> None:
        """Make the weights."""
        shape = neurons[0].shape
        if len(shape) != 2:
            raise ShapeError(f"Attention is of tokens (N, D), not of a layer {shape}.")
        width = self.heads, self.head_width, shape[1]
        self.key = nn.Parameter(torch.randn(width) / math.sqrt(shape[1]))
        self.query = nn.Parameter(torch.randn(width) / math.sqrt(shape[1]))

    def energy(self, *activations: Tensor) -> Tensor:
        """Return the energy."""
        return attention_energy(activations[0], self.key, self.query)


def attention_energy(tokens: Tensor, key: Tensor, query: Tensor) -> Tensor:
    """Return the energy of tokens (..., N, D) for keys and queries (heads, width, D): (...)."""
    beta = 1 / math.sqrt(key.shape[1])
    keys = torch.einsum("...nd,hwd->...hnw", tokens, key)
    queries = torch.einsum("...nd,hwd->...hnw", tokens, query)
    logits = beta * queries @ keys.mT  # (..., H, C, B)
    own = torch.eye(logits.shape[-1], dtype=torch.bool, device=logits.device)
    if len(own) == 1:  # a token alone has none to attend to
        return tokens.new_zeros(tokens.shape[:-2])
    return -logits.masked_fill(own, -math.inf).logsumexp(-1).sum(dim=(-1, -2)) / beta


KINDS = {kind.__name__: kind for kind in (Dense, Bias, Convolution, Attention)}
