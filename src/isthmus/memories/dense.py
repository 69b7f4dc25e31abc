"""The dense associative memory of Krotov and Hopfield: a polynomial energy."""

from __future__ import annotations

from typing import Any, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.memories.base import Memory, keep_observed, unit_rows
from isthmus.memories.hopfield import States, Update, chosen_states, sign_of
from isthmus.validation import as_count, as_flag, as_mask, require_range

# Overlaps are divided by a power of two up to this degree, so that forces that cancel on the
# corners stay exactly zero. Higher powers could leave the range of float32, and are rounded anyway.
LARGEST_EXACT_DEGREE = 64


@final
class DenseAssociativeMemory(Memory):
    r"""Dense associative memory: a Hopfield network with a polynomial of higher degree.

    .. math:: E(x) = -\frac{D^2}{d N} \sum_n F(m_n), \qquad m_n = x \cdot x_n / D, \qquad
        F(m) = \max(0, m)^d \quad\text{or}\quad m^d .

    Its capacity for random binary patterns grows like :math:`D^{d-1}` rather than D (Krotov and
    Hopfield, 2016). With ``degree=2, rectified=False`` it is :class:`Hopfield`.

    As there, states live on the corners :math:`\{-1, 1\}^D` or on the sphere through the query.
    F is convex, so the energy lies below its tangent planes, and moving to the state that the force
    points to never raises it: :math:`\mathrm{sign}(-\nabla E)`, or :math:`-\nabla E` scaled to the
    length of x. The asynchronous update is the one of Krotov and Hopfield: each coordinate in turn
    takes the sign with the lower energy.

    On :math:`\mathbb R^D` the energy has no lower bound, so that there is no density.

    Parameters
    ----------
    memories : array or Tensor (N, D)
    degree : int
        d, from 2 to a million. Larger degrees store more and tell more similar patterns apart.
    states : {"binary", "continuous"}, optional
        By default binary if every entry of `memories` is -1 or 1.
    update : {"synchronous", "asynchronous"}
        Change all coordinates of a binary state at once, or one after another, in order.
    rectified : bool
        Ignore negative overlaps. Without it, `degree` must be even, and the negative of each
        memory is a memory as well.

    References
    ----------
    Krotov and Hopfield, Dense associative memory for pattern recognition, NeurIPS 2016.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> generator = torch.Generator().manual_seed(0)
    >>> patterns = torch.randn(60, 30, generator=generator).sign()  # twice as many as neurons
    >>> noisy = patterns.clone()
    >>> noisy[:, :3] *= -1
    >>> for memory in (ist.Hopfield(patterns), ist.DenseAssociativeMemory(patterns, degree=4)):
    ...     print(int((ist.retrieve(memory, noisy).state == patterns).all(1).sum()), "of 60")
    0 of 60
    60 of 60
    """

    def __init__(
        self,
        memories: Any,
        degree: int = 3,
        states: States | None = None,
        update: Update = "synchronous",
        rectified: bool = True,
    ) -> None:
        super().__init__(memories)
        self.degree = as_count(degree, "degree", at_least=2, at_most=10**6)
        self.rectified = as_flag(rectified, "rectified")
        if not self.rectified and self.degree % 2:
            raise InvalidInputError(
                f"An odd degree, {self.degree}, is convex only if it is rectified. Use an even "
                "degree or rectified=True."
            )
        self.states = chosen_states(self.memories, states, update)
        self.update: Update = update

    def _overlaps(self, x: Tensor) -> Tensor:
        """Return m, rectified if need be. (..., D) -> (..., N)"""
        overlaps = require_range(x @ self.memories.mT, "The overlap") / self.dim
        return overlaps.clamp(min=0) if self.rectified else overlaps

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""
        total: Tensor = (self._overlaps(self.as_input(x)) ** self.degree).sum(-1)
        energy = -(self.dim**2 / (self.degree * self.n_memories)) * total
        return require_range(energy, "The energy")

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx. x: (..., D) -> (..., D)."""
        weights = self._overlaps(self.as_input(x)) ** (self.degree - 1)
        force = (self.dim / self.n_memories) * (weights @ self.memories)
        return require_range(force, "The force")

    def _direction(self, x: Tensor) -> Tensor:
        """Return the force up to a factor that keeps high powers in range."""
        products = require_range(x @ self.memories.mT, "The overlap")
        if self.rectified:
            products = products.clamp(min=0)
        return self._relative_powers(products, self.degree - 1) @ self.memories

    def _relative_powers(self, products: Tensor, degree: int) -> Tensor:
        """Return powers of overlaps up to a factor that the largest of them (last axis) sets."""
        scale = products.detach().abs().amax(-1, keepdim=True)
        if degree <= LARGEST_EXACT_DEGREE:
            scale = torch.exp2(torch.frexp(scale).exponent.to(scale.dtype))
        return (products / torch.where(scale > 0, scale, 1.0)) ** degree

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Return one update of all coordinates. x: (..., D) -> (..., D).

        A coordinate on which no force acts keeps its sign. Coordinates marked True in `observed`
        do not change.
        """
        x = self.as_input(x)
        held = None if observed is None else as_mask(observed, "observed", x)
        if self.update == "asynchronous":
            return self._sweep(x, held)
        force = self._direction(x)
        if self.states == "binary":
            return keep_observed(sign_of(force, x), x, held)
        if held is not None:
            force = force.masked_fill(held, 0)
        free = x if held is None else x.masked_fill(held, 0)
        length = torch.linalg.vector_norm(free, dim=-1, keepdim=True)
        moved = torch.where(force.any(-1, keepdim=True), length * unit_rows(force), free)
        return keep_observed(moved, x, held)

    def _sweep(self, x: Tensor, held: Tensor | None) -> Tensor:
        """Visit every coordinate once, in order, and take the sign with the lower energy."""
        x, memories = x.clone(), self.memories
        products = x @ memories.mT
        for d in range(self.dim):
            column, old = memories[:, d], x[..., d]
            rest = products - old[..., None] * column
            both = torch.stack([rest + column, rest - column], -2).flatten(-2)
            if self.rectified:
                both = both.clamp(min=0)
            ups, downs = (
                self._relative_powers(both, self.degree).unflatten(-1, (2, -1)).sum(-1).unbind(-1)
            )
            new = sign_of(ups - downs, old)
            if held is not None:
                new = torch.where(held[..., d], old, new)
            products = rest + new[..., None] * column
            x[..., d] = new
        return x

    def responsibilities(self, x: Any) -> Tensor:
        """Return the share of each memory in the energy. x: (..., D) -> (..., N).

        All are zero where every overlap is.
        """
        powers = self._relative_powers(self._overlaps(self.as_input(x)), self.degree)
        total = powers.sum(-1, keepdim=True)
        return powers / torch.where(total > 0, total, 1.0)

    def conditional_mean(self, x: Any, observed: Any) -> Tensor:
        """Put the unobserved coordinates of x where the force of the observed ones points.

        On the corners they take its sign; on the sphere they are that force, scaled to the known
        coordinates' mean size.
        """
        x, seen = self._partial(x, observed)
        force = self._direction(x).masked_fill(seen, 0)
        if self.states == "binary":
            return torch.where(seen, x, sign_of(force, torch.ones_like(force)))
        known = x.square().sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
        hidden = (~seen).sum(-1, keepdim=True)
        return torch.where(seen, x, unit_rows(force) * (known * hidden).sqrt())
