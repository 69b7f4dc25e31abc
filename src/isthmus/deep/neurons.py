"""Neuron layers: a Lagrangian, whose gradient is the activation."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor

from isthmus.validation import as_choice, as_count, as_number

LAGRANGIANS = ("identity", "relu", "softmax", "layer_norm", "spherical")
# Added to variances and squared lengths before their roots.
EPSILON = 1e-5


@dataclass(frozen=True)
class Neurons:
    r"""A layer of neurons with states x, a convex Lagrangian L and activations g = dL/dx.

    Its energy is the Legendre transform :math:`x \cdot g - L(x)`. With the inverse temperature, or
    gain, :math:`\beta`, and sums over the last axis of `shape`:

    =============  ==========================================================
    Lagrangian     L(x)
    =============  ==========================================================
    "identity"     :math:`\frac12 \sum x^2`
    "relu"         :math:`\frac12 \sum \max(0, x)^2`
    "softmax"      :math:`\frac1\beta \log \sum \exp(\beta x)`
    "layer_norm"   :math:`\beta D \sqrt{\operatorname{var} x + \epsilon}`
    "spherical"    :math:`\beta \sqrt{\sum x^2 + \epsilon}`
    =============  ==========================================================

    Parameters
    ----------
    shape : int or tuple of int
    lagrangian : str
    beta : float

    Examples
    --------
    >>> import torch
    >>> from isthmus.deep import Neurons
    >>> Neurons(3, "softmax", beta=2.0).activation(torch.tensor([1.0, 1.0, 1.0]))
    tensor([0.3333, 0.3333, 0.3333])
    """

    shape: Any
    lagrangian: str = "identity"
    beta: float = 1.0

    def __post_init__(self) -> None:
        shape: Sequence[Any] = self.shape if isinstance(self.shape, tuple | list) else (self.shape,)
        object.__setattr__(self, "shape", tuple(as_count(each, "shape") for each in shape))
        as_choice(self.lagrangian, "lagrangian", LAGRANGIANS)
        object.__setattr__(self, "beta", as_number(self.beta, "beta", above=0))

    @property
    def size(self) -> int:
        """Number of neurons."""
        return math.prod(self.shape)

    def value(self, x: Tensor) -> Tensor:
        """Return the Lagrangian of states (..., shape): (...)."""
        if self.lagrangian == "identity":
            each = 0.5 * x.square().sum(-1)
        elif self.lagrangian == "relu":
            each = 0.5 * x.relu().square().sum(-1)
        elif self.lagrangian == "softmax":
            each = (self.beta * x).logsumexp(-1) / self.beta
        elif self.lagrangian == "layer_norm":
            variance = (x - x.mean(-1, keepdim=True)).square().mean(-1)
            each = self.beta * x.shape[-1] * (variance + EPSILON).sqrt()
        else:
            each = self.beta * (x.square().sum(-1) + EPSILON).sqrt()
        return each.sum(dim=tuple(range(1 - len(self.shape), 0))) if len(self.shape) > 1 else each

    def activation(self, x: Tensor) -> Tensor:
        """Return the gradient of the Lagrangian. (..., shape) -> (..., shape)"""
        if self.lagrangian == "identity":
            return x
        if self.lagrangian == "relu":
            return x.relu()
        if self.lagrangian == "softmax":
            return (self.beta * x).softmax(-1)
        if self.lagrangian == "layer_norm":
            x = x - x.mean(-1, keepdim=True)
            return self.beta * x / (x.square().mean(-1, keepdim=True) + EPSILON).sqrt()
        return self.beta * x / (x.square().sum(-1, keepdim=True) + EPSILON).sqrt()

    def energy(self, x: Tensor, activation: Tensor) -> Tensor:
        """Return the Legendre transform of states (..., shape) with their activations: (...)."""
        product = (x * activation).flatten(x.ndim - len(self.shape)).sum(-1)
        return product - self.value(x)

    def split(self, x: Tensor) -> Tensor:
        """Return flat states (..., size) in the shape of the layer."""
        return x.unflatten(-1, self.shape) if len(self.shape) > 1 else x
