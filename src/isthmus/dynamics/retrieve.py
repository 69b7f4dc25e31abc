"""Retrieval: let points fall to the bottom of an energy, with some coordinates held if wished."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from isthmus.energy import ConditionalMean, Energy, FixedPoint
from isthmus.errors import InvalidInputError, UnsupportedOperationError
from isthmus.validation import as_mask

__all__ = ["Retrieval", "complete", "retrieve"]

SUFFICIENT_DECREASE = 1e-4
# Length of a first trial step, relative to that of the point.
FIRST_REACH = 0.02


@dataclass(frozen=True, repr=False)
class Retrieval:
    """Where points came to rest.

    Attributes
    ----------
    state : Tensor (..., D)
        The final points.
    energy : Tensor (...)
        Their energies. ``+inf`` marks a point that started outside the support of its energy;
        it has not moved.
    steps : Tensor (...) of int64
        How many updates each row took.
    converged : Tensor (...) of bool
        Whether each row came to rest before the limit, at a finite energy.
    trace : Tensor (T + 1, ..., D) or None
        All states from the start on, if asked for.
    """

    state: Tensor
    energy: Tensor
    steps: Tensor
    converged: Tensor
    trace: Tensor | None = field(default=None)

    def __repr__(self) -> str:
        rows = self.converged.numel()
        if rows == 0:
            return "Retrieval(no rows)"
        parts = [f"{int(self.converged.sum())} of {rows} rows converged"]
        parts.append(f"{int(self.steps.max())} steps at most")
        finite = self.energy[torch.isfinite(self.energy)]
        if finite.numel():
            parts.append(f"mean energy {float(finite.mean()):.4g}")
        outside = rows - finite.numel()
        if outside:
            parts.append(f"{outside} outside the support")
        return f"Retrieval({', '.join(parts)})"


@torch.no_grad()
def retrieve(
    energy: Energy,
    x: Any,
    observed: Any = None,
    *,
    tol: float = 1e-6,
    max_steps: int = 1000,
    trace: bool = False,
) -> Retrieval:
    """Move points downhill on an energy until they rest.

    Energies with a closed-form update (:class:`~isthmus.energy.FixedPoint`) are iterated;
    all others follow their score, with a line search. Either way the energy never rises
    (but see :class:`~isthmus.Hopfield` for the one update that may oscillate).

    Parameters
    ----------
    energy : Energy
    x : array or Tensor (..., D)
        Starting points.
    observed : bool array or Tensor (..., D), optional
        Coordinates that are held where they are.
    tol : float
        A row rests when an update moves it by no more than this length, in the units of the
        data (plus what its dtype cannot resolve).
    max_steps : int
        Rows that still move after so many updates are returned with ``converged=False``.
    trace : bool
        Keep every state.

    Returns
    -------
    Retrieval

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> memory = ist.ModernHopfield(torch.tensor([[1.0, 1.0], [-1.0, -1.0]]), beta=4.0)
    >>> found = ist.retrieve(memory, torch.tensor([[0.9, 0.2], [-0.1, -0.3]]))
    >>> found
    Retrieval(2 of 2 rows converged, 3 steps at most, mean energy -1)
    >>> found.state
    tensor([[ 1.0000,  1.0000],
            [-1.0000, -1.0000]])
    """
    _require_energy(energy)
    if max_steps < 0 or not tol >= 0:
        raise InvalidInputError(f"tol and max_steps must not be negative: {tol!r}, {max_steps!r}.")
    start = energy.as_input(x)
    shape = start.shape
    state = start.reshape(-1, shape[-1]).clone()
    held = None
    if observed is not None:
        held = as_mask(observed, "observed", start).reshape(state.shape)
    move = _FixedPointMove(energy) if isinstance(energy, FixedPoint) else _DownhillMove(energy)
    move.begin(state)

    rows = state.shape[0]
    steps = torch.zeros(rows, dtype=torch.int64, device=state.device)
    resting = torch.zeros(rows, dtype=torch.bool, device=state.device)
    active = torch.arange(rows, device=state.device)
    # Rounding in a row's coordinates keeps it from resting more tightly than this.
    floor = 16 * torch.finfo(state.dtype).eps
    reach = torch.linalg.vector_norm(state, dim=1)
    history = [state.clone()] if trace else []
    for _ in range(max_steps):
        if active.numel() == 0:
            break
        current = state[active]
        new, at_rest = move(current, None if held is None else held[active], active, tol)
        length = torch.linalg.vector_norm(new - current, dim=1)
        reach[active] = torch.maximum(reach[active], torch.linalg.vector_norm(new, dim=1))
        at_rest |= (length > 0) & (length <= tol + floor * reach[active])
        state[active] = new
        steps[active] += 1
        resting[active] = at_rest
        active = active[~at_rest]
        if trace:
            history.append(state.clone())
    final = energy.energy(state)
    return Retrieval(
        state=state.reshape(shape),
        energy=final.reshape(shape[:-1]),
        steps=steps.reshape(shape[:-1]),
        converged=(resting & torch.isfinite(final)).reshape(shape[:-1]),
        trace=torch.stack(history).reshape(len(history), *shape) if trace else None,
    )


def _require_energy(energy: object) -> None:
    if not isinstance(energy, Energy):
        raise UnsupportedOperationError(
            f"The first argument must be an Energy, not a {type(energy).__name__}; "
            "points come second."
        )


class _FixedPointMove:
    """One closed-form update; a row that it leaves alone is at rest."""

    def __init__(self, energy: FixedPoint) -> None:
        self.energy = energy

    def begin(self, state: Tensor) -> None:
        """Nothing to prepare."""

    def __call__(
        self, x: Tensor, held: Tensor | None, rows: Tensor, tol: float
    ) -> tuple[Tensor, Tensor]:
        new = self.energy.step(x) if held is None else self.energy.step(x, held)
        return new, (new == x).all(1)


class _DownhillMove:
    """One trial step along the score, accepted only where it lowers the energy enough.

    Accepted rows choose their next trial length by Barzilai and Borwein's rule, the others
    halve it. The first trials are short and later ones at most twice as long as any before, so
    that a row follows its valley instead of leaping into another.
    """

    def __init__(self, energy: Energy) -> None:
        self.energy = energy

    def begin(self, state: Tensor) -> None:
        """Short trial lengths, and the energies and forces at the start."""
        self.height = self.energy.energy(state)
        self.force = self.energy.score(state)
        self.longest = FIRST_REACH * (1 + torch.linalg.vector_norm(state, dim=1))
        self.size = self.longest / torch.linalg.vector_norm(self.force, dim=1).clamp(min=1e-12)

    def __call__(
        self, x: Tensor, held: Tensor | None, rows: Tensor, tol: float
    ) -> tuple[Tensor, Tensor]:
        force = self.force[rows]
        if held is not None:
            force = force.masked_fill(held, 0)
        height, size = self.height[rows], self.size[rows]
        moved = x + size[:, None] * force
        possible = torch.isfinite(moved).all(1) & torch.isfinite(height)
        trial = torch.where(possible[:, None], moved, x)
        trial_height = self.energy.energy(trial)
        gain = SUFFICIENT_DECREASE * size * force.square().sum(1)
        accepted = possible & (trial_height <= height - gain)
        new = torch.where(accepted[:, None], trial, x)
        new_force = torch.where(accepted[:, None], self.energy.score(new), self.force[rows])

        difference = new - x
        change = (force - new_force) if held is None else (force - new_force).masked_fill(held, 0)
        curvature = (difference * change).sum(1)
        length = torch.linalg.vector_norm(difference, dim=1)
        self.longest[rows] = torch.maximum(self.longest[rows], length)
        limit = 2 * self.longest[rows] / torch.linalg.vector_norm(new_force, dim=1).clamp(min=1e-12)
        guess = torch.where(curvature > 0, length**2 / curvature.clamp(min=1e-30), torch.inf)
        self.size[rows] = torch.where(accepted, torch.minimum(guess, limit), size / 2)
        self.height[rows] = torch.where(accepted, trial_height, height)
        self.force[rows] = new_force
        # A trial shorter than the tolerance means that there is nowhere lower to go.
        too_short = size * torch.linalg.vector_norm(force, dim=1) <= tol
        return new, too_short | ~torch.isfinite(height)


def complete(
    energy: Energy,
    x: Any,
    *,
    init: Any = None,
    tol: float = 1e-6,
    max_steps: int = 1000,
) -> Tensor:
    """Fill in unknown coordinates, marked by NaN.

    They start at their exact mean given the observed coordinates (responsibilities come from
    those only) and are then retrieved, while the observed ones stay as they are.

    Parameters
    ----------
    energy : Energy
    x : array or Tensor (..., D)
        NaN where unknown. A row may miss any coordinates, all of them included.
    init : array or Tensor (..., D), optional
        Starting values of the unknown coordinates, for energies that have no
        ``conditional_mean``.
    tol, max_steps
        As in :func:`retrieve`.

    Returns
    -------
    Tensor (..., D)

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> nan = float("nan")
    >>> memory = ist.GaussianKDE(torch.tensor([[0.0, 0.0, 0.0], [5.0, 6.0, 7.0]]), sigma=1.0)
    >>> ist.complete(memory, torch.tensor([[4.5, nan, nan], [nan, 0.3, nan]]))
    tensor([[4.5000, 6.0000, 7.0000],
            [0.0000, 0.3000, 0.0000]])
    """
    _require_energy(energy)
    x = energy.as_input(x, allow_nan=True)
    observed = ~torch.isnan(x)
    if init is not None:
        start = torch.where(observed, x, energy.as_input(init))
    elif isinstance(energy, ConditionalMean):
        with torch.no_grad():
            start = energy.conditional_mean(x, observed)
    else:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} cannot guess unknown coordinates by itself. "
            "Pass init= with starting values for them."
        )
    return retrieve(energy, start, observed, tol=tol, max_steps=max_steps).state
