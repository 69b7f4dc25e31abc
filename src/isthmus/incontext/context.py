"""ContextEnergy: the energy of a dataset under an in-context model."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from itertools import chain
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from isthmus.energy import Energy
from isthmus.errors import ShapeError
from isthmus.validation import as_points, is_transforming

if TYPE_CHECKING:
    from isthmus.incontext.model import ICLEBM, KeysValues

__all__ = ["ContextEnergy"]

POINTS_PER_BLOCK = 1024


class ContextEnergy(Energy):
    r"""The energy :math:`E_\theta(x \mid \mathcal D)` of a dataset given in context.

    :meth:`isthmus.incontext.ICLEBM.condition` returns it. Its inverse temperature is 1. The keys
    and values of the context are computed once, with the model's parameters at that moment:
    condition again after further training.

    For one context, points are (..., D) and energies (...), as for every energy, so that
    :func:`isthmus.retrieve` and :func:`isthmus.sample` work on it. For a batch of B contexts,
    points are (B, ..., D), a set for each context, and energies (B, ...). Every other leading
    size raises a :class:`~isthmus.errors.ShapeError`, and :func:`isthmus.retrieve` and
    :func:`isthmus.sample` refuse the batch: condition on one context at a time.

    A graph is built only where x, the context or a parameter of the model requires a gradient.
    Otherwise energies are computed in blocks and scores in closed form.

    Examples
    --------
    >>> import torch
    >>> from isthmus.incontext import ICLEBM, ICLEBMConfig
    >>> model = ICLEBM(ICLEBMConfig(dim=2, layers=1, heads=2, width=8))
    >>> energy = model.condition(torch.zeros(3, 2))
    >>> energy.append([1.0, 1.0]).context.shape
    torch.Size([4, 2])
    """

    def __init__(self, model: ICLEBM, context: Any, cache: list[KeysValues] | None = None) -> None:
        super().__init__()
        self.model = model
        if isinstance(context, list) and not context:
            context = model.readout.weight.new_zeros(0, model.dim)
        points = as_points(context, "context", dim=model.dim, like=model.readout.weight)
        if points.ndim not in (2, 3):
            raise ShapeError(
                f"context must be (n, {model.dim}), a dataset, or (B, n, {model.dim}), a batch of "
                f"datasets of one size, not {tuple(points.shape)}."
            )
        if points.ndim == 3 and points.shape[0] == 0:
            raise ShapeError("context is an empty batch: it holds no dataset.")
        self.context = points
        self._cache = self._encode() if cache is None else cache

    def __repr__(self) -> str:
        *batch, size, dim = self.context.shape
        many = f"{batch[0]} contexts of " if batch else ""
        return f"ContextEnergy({many}{size} points in {dim} dimensions)"

    def _encode(self) -> list[KeysValues]:
        return self.model.encode(self.context if self.context.ndim == 3 else self.context[None])

    def __deepcopy__(self, memo: dict[int, Any]) -> ContextEnergy:
        # Keys and values may belong to a graph, which cannot be copied, so they are recomputed.
        return ContextEnergy(deepcopy(self.model, memo), self.context.detach().clone())

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> ContextEnergy:
        """Move the model and the context to another dtype or device, as in ``.to``."""
        super()._apply(fn, recurse)
        self.context = fn(self.context)
        self._cache = self._encode()
        return self

    @property
    def dim(self) -> int:
        """Coordinates D of a point."""
        return self.model.dim

    def append(self, points: Any) -> ContextEnergy:
        """Return the energy with more points in the context; only they are computed.

        This one does not change. Points are (D,) or (m, D); for a batch (B, D) or (B, m, D).
        """
        new = as_points(points, "points", dim=self.dim, like=self.context)
        if new.ndim == self.context.ndim - 1:
            new = new.unsqueeze(-2)
        if new.ndim != self.context.ndim or new.shape[:-2] != self.context.shape[:-2]:
            raise ShapeError(
                f"points of shape {tuple(new.shape)} do not extend a context of shape "
                f"{tuple(self.context.shape)}."
            )
        cache = self.model.encode(new if new.ndim == 3 else new[None], self._cache)
        return ContextEnergy(self.model, torch.cat([self.context, new], dim=-2), cache)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...), or (B, ..., D) -> (B, ...)."""
        x = self.as_input(x)
        points = self._rows(x)
        index = self._index(points)
        if self._needs_graph(x):
            energy = self.model.candidate_energy(points, self._cache, index, None)
        else:  # in blocks, so that memory does not grow with points times context
            energies = [
                self.model.candidate_energy(block, self._cache, index[: block.shape[1]], None)
                for block in points.split(POINTS_PER_BLOCK, dim=1)
            ]
            energy = torch.cat(energies, dim=1)
        return energy.view(x.shape[:-1])

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx. x: (..., D) -> (..., D)."""
        x = self.as_input(x)
        if self._needs_graph(x):
            return super().score(x)
        points = self._rows(x)
        gradient = self.model.candidate_gradient(points, self._cache, self._index(points), None)
        return -gradient.view(x.shape)

    def _needs_graph(self, x: Tensor) -> bool:
        if is_transforming():
            return True
        inputs = chain([x, self._cache[0][0]], self.model.parameters())
        return torch.is_grad_enabled() and any(each.requires_grad for each in inputs)

    def _rows(self, x: Tensor) -> Tensor:
        """Return points as (B, M, D), the shape that the model takes."""
        if self.context.ndim == 2:
            return x.reshape(1, -1, self.dim)
        batch = self.context.shape[0]
        if x.ndim < 2 or x.shape[0] != batch:
            raise ShapeError(
                f"x must begin with {batch}, a set of points for each of the {batch} contexts, "
                f"but has shape {tuple(x.shape)}. For any other shape, condition on one context."
            )
        return x.reshape(batch, -1, self.dim)

    def _index(self, points: Tensor) -> Tensor:
        """Return the index of every candidate: right after the context."""
        return points.new_full((points.shape[1],), self.context.shape[-2], dtype=torch.long)
