"""The classical Hopfield network: a quadratic energy, on corners or on a sphere."""

from __future__ import annotations

from typing import Any, Literal, final

import torch
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.memories.base import Memory, keep_observed, unit_rows
from isthmus.validation import as_choice, as_flag, as_mask, require_range

States = Literal["binary", "continuous"]
Update = Literal["synchronous", "asynchronous"]


@final
class Hopfield(Memory):
    r"""Classical Hopfield network.

    .. math:: E(x) = -\tfrac12\, x^\top W x, \qquad W = \frac1N \sum_n x_n x_n^\top

    with the diagonal of W set to zero on request. On :math:`\mathbb R^D` this energy has no
    lower bound (erratum E26), so states live on a bounded set: on the corners
    :math:`\{-1, 1\}^D` (``"binary"``), or on the sphere through the query (``"continuous"``).
    :meth:`energy` and :meth:`score` are those of the quadratic form in either case.

    :meth:`step` moves to the state of that set that the current force :math:`Wx` points to:
    :math:`\mathrm{sign}(Wx)`, or :math:`Wx` scaled to the length of x. With the full diagonal
    W has no negative eigenvalue and neither update ever raises the energy of a state in that
    set. With a zero diagonal, synchronous updates can oscillate between two states, and
    ``step_descends`` is False; asynchronous ones, one coordinate after another, never raise it.

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

    def __init__(
        self,
        memories: Any,
        states: States | None = None,
        update: Update = "synchronous",
        zero_diagonal: bool = False,
    ) -> None:
        super().__init__(memories)
        self.states = chosen_states(self.memories, states, update)
        self.update: Update = update
        self.zero_diagonal = as_flag(zero_diagonal, "zero_diagonal")
        synchronous_signs = update == "synchronous" and self.states == "binary"
        self.step_descends = not (synchronous_signs and self.zero_diagonal)

    def _diagonal(self) -> Tensor:
        return self.memories.square().mean(0)

    def energy(self, x: Any) -> Tensor:
        """Return the energy of each point. x: (..., D) -> (...)."""
        x = self.as_input(x)
        return require_range(-0.5 * (x * self.score(x)).sum(-1), "The energy")

    def score(self, x: Any) -> Tensor:
        """Return the force -dE/dx = W x. x: (..., D) -> (..., D)."""
        x = self.as_input(x)
        if self.n_memories <= self.dim:
            force = (x @ self.memories.mT) @ self.memories
        else:
            force = x @ (self.memories.mT @ self.memories)
        force = force / self.n_memories
        force = force - x * self._diagonal() if self.zero_diagonal else force
        return require_range(force, "The force")

    def step(self, x: Any, observed: Any = None) -> Tensor:
        """Return one update of all coordinates. x: (..., D) -> (..., D).

        A coordinate on which no force acts keeps its sign. Coordinates marked True in
        `observed` do not change.
        """
        x = self.as_input(x)
        if observed is not None:
            observed = as_mask(observed, "observed", x)
        if self.states == "continuous":
            return self._step_on_sphere(x, observed)
        if self.update == "asynchronous":
            return self._sweep(x, observed)
        return keep_observed(sign_of(self.score(x), x), x, observed)

    def _step_on_sphere(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """Turn the free part of x along the force, and keep its length."""
        force = self.score(x)
        if self.zero_diagonal:
            # Shifting W by its largest diagonal entry makes it positive again; on the sphere
            # that only adds a constant to the energy.
            force = force + self._diagonal().max() * x
        if observed is not None:
            force = force.masked_fill(observed, 0)
        free = x if observed is None else x.masked_fill(observed, 0)
        length = torch.linalg.vector_norm(free, dim=-1, keepdim=True)
        moved = torch.where(force.any(-1, keepdim=True), length * unit_rows(force), free)
        return keep_observed(moved, x, observed)

    def _sweep(self, x: Tensor, observed: Tensor | None) -> Tensor:
        """Visit every coordinate once, in order, each seeing the changes before it."""
        x = x.clone()
        overlaps = x @ self.memories.mT
        diagonal = self._diagonal()
        for d in range(self.dim):
            column = self.memories[:, d]
            force = overlaps @ column / self.n_memories
            if self.zero_diagonal:
                force = force - diagonal[d] * x[..., d]
            new = sign_of(force, x[..., d])
            if observed is not None:
                new = torch.where(observed[..., d], x[..., d], new)
            overlaps = overlaps + (new - x[..., d])[..., None] * column
            x[..., d] = new
        return x

    def conditional_mean(self, x: Any, observed: Any) -> Tensor:
        """Put the unobserved coordinates of x where the force of the observed ones points.

        On the corners, unknown coordinates take the sign of the force from the known ones; on
        the sphere, they are that force, scaled to the known coordinates' mean size.
        """
        x, seen = self._partial(x, observed)
        force = self.score(x).masked_fill(seen, 0)
        if self.states == "binary":
            guess = sign_of(force, torch.ones_like(force))
        else:
            known = x.square().sum(-1, keepdim=True) / seen.sum(-1, keepdim=True).clamp(min=1)
            hidden = (~seen).sum(-1, keepdim=True)
            guess = unit_rows(force) * (known * hidden).sqrt()
        return torch.where(seen, x, guess)


def sign_of(force: Tensor, current: Tensor) -> Tensor:
    """Return the sign of `force`; where it is zero, that of `current`; +1 if both are zero."""
    chosen = torch.where(force == 0, current, force)
    return torch.where(chosen < 0, -1.0, 1.0).to(force.dtype)


def chosen_states(memories: Tensor, states: States | None, update: Update) -> States:
    """Return the kind of states, by default that of the memories, checked against the update."""
    if states is None:
        signs = bool((memories.detach().abs() == 1).all())
        states = "binary" if signs else "continuous"
    as_choice(states, "states", ("binary", "continuous"))
    as_choice(update, "update", ("synchronous", "asynchronous"))
    if update == "asynchronous" and states == "continuous":
        raise InvalidInputError(
            "Continuous states move on a sphere, all coordinates at once; "
            "use update='synchronous', or states='binary'."
        )
    return states
