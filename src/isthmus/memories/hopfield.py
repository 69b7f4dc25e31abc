"""Hopfield networks on corners or on a sphere: of the second degree, or of a higher one."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.memories.base import Memory, keep_observed, unit_rows
from isthmus.validation import as_choice, as_count, as_flag, require_range

States = Literal["binary", "continuous"]
Update = Literal["synchronous", "asynchronous"]

# Overlaps are divided by a power of two up to this degree, so that forces that cancel on the
# corners stay exactly zero. Higher powers could leave the range of float32, and are rounded anyway.
LARGEST_EXACT_DEGREE = 64


class PolynomialMemory(Memory):
    """An energy that is a sum of powers of the overlaps, on the corners or on a sphere."""

    degree: int
    rectified: bool

    def __init__(self, memories: Any, states: States | None, update: Update) -> None:
        super().__init__(memories)
        if states is None:
            signs = bool((self.memories.detach().abs() == 1).all())
            states = "binary" if signs else "continuous"
        as_choice(states, "states", ("binary", "continuous"))
        as_choice(update, "update", ("synchronous", "asynchronous"))
        if update == "asynchronous" and states == "continuous":
            raise InvalidInputError(
                "Continuous states move on a sphere, all coordinates at once; "
                "use update='synchronous', or states='binary'."
            )
        self.states: States = states
        self.update: Update = update

    def _overlaps(self, x: Tensor) -> Tensor:
        """Return D times m, rectified if need be. (..., D) -> (..., N)"""
        products = require_range(x @ self.memories.mT, "The overlap")
        return products.clamp(min=0) if self.rectified else products

    def _relative_powers(self, products: Tensor, degree: int) -> Tensor:
        """Return powers of overlaps up to a factor that the largest of them (last axis) sets."""
        scale = products.detach().abs().amax(-1, keepdim=True)
        if degree <= LARGEST_EXACT_DEGREE:
            scale = torch.exp2(torch.frexp(scale).exponent.to(scale.dtype))
        return (products / torch.where(scale > 0, scale, 1.0)) ** degree

    def _energy(self, x: Tensor) -> Tensor:
        total: Tensor = ((self._overlaps(x) / self.dim) ** self.degree).sum(-1)
        energy = -(self.dim**2 / (self.degree * self.n_memories)) * total
        return require_range(energy, "The energy")

    def _score(self, x: Tensor) -> Tensor:
        weights = (self._overlaps(x) / self.dim) ** (self.degree - 1)
        force = (self.dim / self.n_memories) * (weights @ self.memories)
        return require_range(force, "The force")

    def _direction(self, x: Tensor) -> Tensor:
        """Return the force up to a factor that keeps high powers in range."""
        return self._relative_powers(self._overlaps(x), self.degree - 1) @ self.memories

    def _step(self, x: Tensor, held: Tensor | None = None) -> Tensor:
        """Move to the state that the force points to; where there is none, keep the sign."""
        if self.update == "asynchronous":
            return self._sweep(x, held)
        force = self._direction(x)
        if self.states == "binary":
            return keep_observed(sign_of(force, x), x, held)
        free = x
        if held is not None:
            force, free = force.masked_fill(held, 0), x.masked_fill(held, 0)
        length = torch.linalg.vector_norm(free, dim=-1, keepdim=True)
        moved = torch.where(force.any(-1, keepdim=True), length * unit_rows(force), free)
        return keep_observed(moved, x, held)

    def _sweep(self, x: Tensor, held: Tensor | None) -> Tensor:
        """Visit every coordinate once, in order, each seeing the changes before it."""
        x = x.clone()
        products = x @ self.memories.mT
        for d in range(self.dim):
            column, old = self.memories[:, d], x[..., d]
            new = sign_of(self._gain(products, column, old), old)
            if held is not None:
                new = torch.where(held[..., d], old, new)
            products = products + (new - old)[..., None] * column
            x[..., d] = new
        return x

    def _gain(self, products: Tensor, column: Tensor, old: Tensor) -> Tensor:
        """Return by how much +1 has a lower energy than -1 in a coordinate, up to a factor."""
        rest = products - old[..., None] * column
        both = torch.stack([rest + column, rest - column], -2).flatten(-2)
        if self.rectified:
            both = both.clamp(min=0)
        powers = self._relative_powers(both, self.degree).unflatten(-1, (2, -1)).sum(-1)
        return powers[..., 0] - powers[..., 1]

    def _conditional_mean(self, x: Tensor, seen: Tensor) -> Tensor:
        force = self._direction(x).masked_fill(seen, 0)
        if self.states == "binary":
            return torch.where(seen, x, sign_of(force, torch.ones_like(force)))
        known = x.square().sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
        hidden = (~seen).sum(-1, keepdim=True)
        return torch.where(seen, x, unit_rows(force) * (known * hidden).sqrt())


@final
class Hopfield(PolynomialMemory):
    r"""Classical Hopfield network.

    .. math:: E(x) = -\tfrac12\, x^\top W x, \qquad W = \frac1N \sum_n x_n x_n^\top

    with the diagonal of W set to zero on request. On :math:`\mathbb R^D` this energy has no
    lower bound (erratum E26), so states live on the corners :math:`\{-1, 1\}^D` (``"binary"``) or
    on the sphere through the query (``"continuous"``).

    :meth:`step` moves to the state of that set that the force :math:`Wx` points to, which never
    raises the energy with the full diagonal. With a zero diagonal, synchronous updates can
    oscillate, and ``step_descends`` is False; asynchronous ones never raise it.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    states : {"binary", "continuous"}, optional
        By default binary if every entry of `memories` is -1 or 1.
    update : {"synchronous", "asynchronous"}
        Change all coordinates of a binary state at once, or one after another, in order. One
        asynchronous :meth:`step` visits every coordinate once.
    zero_diagonal : bool
        Set the diagonal of W to zero, so that no coordinate acts on itself.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.Hopfield(torch.tensor([[1.0, 1, 1, -1, -1, -1], [1, -1, 1, -1, 1, -1]]))
    >>> memory.step(torch.tensor([1.0, 1, -1, -1, -1, -1]))  # third coordinate flipped
    tensor([ 1.,  1.,  1., -1., -1., -1.])
    """

    degree, rectified = 2, False

    def __init__(
        self,
        memories: Any,
        states: States | None = None,
        update: Update = "synchronous",
        zero_diagonal: bool = False,
    ) -> None:
        super().__init__(memories, states, update)
        self.zero_diagonal = as_flag(zero_diagonal, "zero_diagonal")
        synchronous_signs = update == "synchronous" and self.states == "binary"
        self.step_descends = not (synchronous_signs and self.zero_diagonal)

    def _diagonal(self) -> Tensor:
        return self.memories.square().mean(0)

    def _energy(self, x: Tensor) -> Tensor:
        return require_range(-0.5 * (x * self._score(x)).sum(-1), "The energy")

    def _score(self, x: Tensor) -> Tensor:
        force = (x @ self.memories.mT) @ self.memories / self.n_memories
        force = force - x * self._diagonal() if self.zero_diagonal else force
        return require_range(force, "The force")

    def _direction(self, x: Tensor) -> Tensor:
        force = self._score(x)
        if self.zero_diagonal and self.states == "continuous":
            # Shifting W by its largest diagonal entry makes it positive again; on the sphere
            # that only adds a constant to the energy.
            force = force + self._diagonal().max() * x
        return force

    def _gain(self, products: Tensor, column: Tensor, old: Tensor) -> Tensor:
        own = column.square().mean() * old if self.zero_diagonal else 0.0
        return products @ column / self.n_memories - own


@final
class DenseAssociativeMemory(PolynomialMemory):
    r"""Dense associative memory: a Hopfield network with a polynomial of higher degree.

    .. math:: E(x) = -\frac{D^2}{d N} \sum_n F(m_n), \qquad m_n = x \cdot x_n / D, \qquad
        F(m) = \max(0, m)^d \quad\text{or}\quad m^d .

    Its capacity for random binary patterns grows like :math:`D^{d-1}` rather than D (Krotov and
    Hopfield, 2016). With ``degree=2, rectified=False`` it is :class:`Hopfield`, and states live
    where they do there. F is convex, so moving to the state that the force points to never raises
    the energy. Asynchronously, each coordinate in turn takes the sign with the lower energy.

    Parameters
    ----------
    memories, states, update
        As in :class:`Hopfield`.
    degree : int
        d, from 2 to a million. Larger degrees store more and tell more similar patterns apart.
    rectified : bool
        Ignore negative overlaps. Without it, `degree` must be even, and the negative of each
        memory is a memory as well.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> patterns = torch.tensor([[1.0, 1, 1, -1], [1.0, 1, -1, 1], [1.0, -1, 1, 1]])
    >>> ist.DenseAssociativeMemory(patterns, degree=5).step(torch.tensor([-1.0, 1, 1, -1]))
    tensor([ 1.,  1.,  1., -1.])
    """

    has_responsibilities = True

    def __init__(
        self,
        memories: Any,
        degree: int = 3,
        states: States | None = None,
        update: Update = "synchronous",
        rectified: bool = True,
    ) -> None:
        super().__init__(memories, states, update)
        self.degree = as_count(degree, "degree", at_least=2, at_most=10**6)
        self.rectified = as_flag(rectified, "rectified")
        if not self.rectified and self.degree % 2:
            raise InvalidInputError(
                f"An odd degree, {self.degree}, is convex only if it is rectified. Use an even "
                "degree or rectified=True."
            )

    def _responsibilities(self, x: Tensor, seen: Tensor | None = None) -> Tensor:
        """Return the share of each memory in the energy, zeros where every overlap is."""
        powers = self._relative_powers(self._overlaps(x), self.degree)
        total = powers.sum(-1, keepdim=True)
        return powers / torch.where(total > 0, total, 1.0)


def sign_of(force: Tensor, current: Tensor) -> Tensor:
    """Return the sign of `force`; where it is zero, that of `current`; +1 if both are zero."""
    chosen = torch.where(force == 0, current, force)
    return torch.where(chosen < 0, -1.0, 1.0).to(force.dtype)
