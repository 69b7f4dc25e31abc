"""Energy: the contract between memories, dynamics, learning and evaluation."""

from __future__ import annotations

from abc import ABC, abstractmethod
from itertools import chain
from typing import Any, Protocol, runtime_checkable

import torch
from torch import Tensor, nn

from isthmus.errors import UnknownNormalizerError
from isthmus.validation import as_points, is_transforming

__all__ = ["ConditionalMean", "Energy", "FixedPoint"]


class Energy(nn.Module, ABC):
    r"""An energy function, which is a negative log-likelihood.

    Every energy states its inverse temperature :math:`\beta_E`, so that

    .. math:: p(x) = \exp(-\beta_E\, E(x)) / Z .

    The paper's introduction prints :math:`\exp(-E)/Z`; its energies with a factor
    :math:`1/\beta` need :math:`\beta_E = \beta` (erratum E28).

    A subclass only has to define :meth:`energy`: scores then come from autograd, and
    :func:`isthmus.retrieve` and :func:`isthmus.sample` work on it. It may also define a
    closed-form :meth:`score`, an :attr:`inverse_temperature` and a :meth:`log_normalizer`.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> class Bowl(ist.Energy):
    ...     def energy(self, x):
    ...         return 0.5 * (x - 1).square().sum(-1)
    >>> ist.retrieve(Bowl(), torch.zeros(1, 2)).state
    tensor([[1., 1.]])
    """

    @abstractmethod
    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""

    @property
    def dim(self) -> int | None:
        """The number of coordinates D that inputs must have, or None if any number is allowed."""
        return None

    @property
    def inverse_temperature(self) -> Tensor:
        """The factor between this energy and a negative log-density: a scalar tensor."""
        return torch.ones((), device="cpu")  # a CPU scalar mixes with any device

    def as_input(self, x: Any, *, allow_nan: bool = False) -> Tensor:
        """Return x as checked points of this energy's dtype, and arrays on its device."""
        like = next(chain(self.parameters(), self.buffers()), None)
        return as_points(x, "x", dim=self.dim, like=like, allow_nan=allow_nan)

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx, always of the energy, never of log p. (..., D) -> (..., D).

        The result carries a graph only where x or something in the energy requires a gradient.
        """
        x = self.as_input(x)
        if is_transforming():
            gradient: Tensor = torch.func.grad(lambda points: self.energy(points).sum())(x)
            return -gradient
        grad_enabled = torch.is_grad_enabled()
        with torch.enable_grad():
            leaf = x if x.requires_grad else x.detach().requires_grad_()
            total = self.energy(leaf).sum()
            keep_graph = grad_enabled and (x.requires_grad or _depends_on_others(total, leaf))
            (gradient,) = torch.autograd.grad(total, leaf, create_graph=keep_graph)
        return -gradient

    def log_normalizer(self) -> Tensor:
        """Return the log-normaliser log Z, a scalar tensor."""
        raise UnknownNormalizerError(
            f"{type(self).__name__} has no closed-form normaliser, so its log_prob is unknown. "
            "Differences of -inverse_temperature * energy(x) are differences of log_prob; "
            "isthmus.sample does not need it; isthmus.with_normalizer estimates it."
        )

    def log_prob(self, x: Any) -> Tensor:
        """Return the log-density of each point. x: (..., D) -> (...)."""
        log_normalizer = self.log_normalizer()
        return -self.inverse_temperature * self.energy(x) - log_normalizer

    def forward(self, x: Any) -> Tensor:
        """Return :meth:`energy` of x."""
        return self.energy(x)


def _depends_on_others(value: Tensor, leaf: Tensor) -> bool:
    """Return True if the graph of `value` reaches a tensor that requires a gradient beside leaf."""
    waiting, seen = [value.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        seen.add(node)
        if getattr(node, "variable", leaf) is not leaf:
            return True
        waiting.extend(following for following, _ in node.next_functions)
    return False


@runtime_checkable
class FixedPoint(Protocol):
    """An energy with a closed-form update that never raises it."""

    def step(self, x: Any, observed: Tensor | None = None) -> Tensor:
        """Return one update of x, (..., D). Coordinates marked in `observed` do not change."""
        ...


@runtime_checkable
class ConditionalMean(Protocol):
    """An energy with a closed-form first guess of unknown coordinates."""

    def conditional_mean(self, x: Any, observed: Tensor) -> Tensor:
        """Replace the unobserved coordinates of x by their mean given the observed ones."""
        ...
