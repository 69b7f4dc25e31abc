"""Retrieval: move points downhill on an energy until they rest, with coordinates held on demand."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple, Protocol, runtime_checkable

import torch
from torch import Tensor

from isthmus.energy import ConditionalMean, Energy, FixedPoint, as_given
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.fused import MAX_OFF_CENTRE
from isthmus.memories.base import GaussianMemory, Memory
from isthmus.memories.modern import ModernHopfield
from isthmus.validation import as_choice, as_count, as_flag, as_mask, as_number

SUFFICIENT_DECREASE = 1e-4
# Length of the first trial step of a descent along the score, relative to that of the point.
FIRST_REACH = 0.02
# An update leaps ahead only if two displacements in a row are nearly parallel and short, in units
# of sigma. A leap covers this share of the estimated remaining way, up to the longest leap.
ALIGNED, SHORT, SHARE, LONGEST_LEAP = 0.98, 0.1, 0.9, 0.1
# A row that moves this many times as far as it was from the origin, and still moves, ran off.
RUNAWAY = 1e6
# Responsibilities that are held at once when the memory of each row is asked for.
MOST_RESPONSIBILITIES = 2**24
# A modern Hopfield network of this size is warned of if more than this share of probed memories
# belong to longer ones.
FEWEST_ROWS, FEWEST_COLUMNS, NORM_PROBES, CAPTURED = 32, 16, 64, 0.25


@runtime_checkable
class MemoryStore(Protocol):
    """An energy of many memories that are elsewhere, such as on the workers of a cluster."""

    is_round: bool

    def recalled(self, x: Any) -> Tensor:
        """Return the memory with the largest responsibility for each point. (..., D) -> (...)"""
        ...

    def draw_memories(self, n: int, generator: torch.Generator) -> Tensor:
        """Return n memories, drawn in proportion to their weights. -> (n, D)"""
        ...


@dataclass(frozen=True, repr=False)
class Retrieval:
    """The points at which a retrieval ended, as tensors if it began at tensors, else as arrays.

    Attributes
    ----------
    state : Tensor (..., D)
        The final points.
    energy : Tensor (...)
        Their energies. ``+inf`` marks a point that started outside the support of its energy;
        it has not moved.
    steps : Tensor (...) of int64
        Number of updates of each row.
    converged : Tensor (...) of bool
        True for rows that came to rest within the limit, at a finite energy.
    trace : Tensor (T + 1, ..., D) or None
        All states from the start on, if requested.
    memory : Tensor (...) of int64 or None
        The memory with the largest responsibility for the final point, computed when it is asked
        for; -1 where there is none in reach. None if the energy has no memories.
    """

    state: Tensor
    energy: Tensor
    steps: Tensor
    converged: Tensor
    trace: Tensor | None = None
    source: Energy | None = field(default=None, compare=False)

    @cached_property
    def memory(self) -> Tensor | None:
        """The memory at which each row ended."""
        energy: Any = self.source
        if isinstance(energy, MemoryStore):
            return energy.recalled(self.state)
        responsibilities = getattr(energy, "responsibilities", None)
        if not isinstance(energy, Memory) or responsibilities is None:
            return None
        flat = torch.as_tensor(self.state).reshape(-1, self.state.shape[-1])
        rows = max(MOST_RESPONSIBILITIES // energy.n_memories, 1)
        found = []
        with torch.no_grad():
            for block in flat.split(rows):
                share, place = responsibilities(energy.as_input(block)).max(-1)
                known = (share > 0) & (place < energy.n_memories)
                found.append(torch.where(known, place, -1))
        joined = torch.cat(found) if found else torch.zeros(0, dtype=torch.int64)
        memory: Tensor = as_given(joined.reshape(self.state.shape[:-1]), self.state)
        return memory

    def __repr__(self) -> str:
        energy, converged = map(torch.as_tensor, (self.energy, self.converged))
        rows = converged.numel()
        if rows == 0:
            return "Retrieval(no rows)"
        text = f"{int(converged.sum())} of {rows} rows converged"
        text += f", {int(self.steps.max())} steps at most"
        finite = energy[torch.isfinite(energy)]
        if finite.numel():
            text += f", mean energy {float(finite.mean()):.4g}"
        if outside := rows - finite.numel():
            text += f", {outside} outside the support"
        return f"Retrieval({text})"


def retrieve(
    energy: Energy,
    x: Any,
    observed: Any = None,
    *,
    tol: float = 1e-6,
    max_steps: int = 1000,
    accelerate: bool | None = None,
    trace: bool = False,
) -> Retrieval:
    r"""Move points downhill on an energy until they rest.

    Energies with a closed-form update (:class:`~isthmus.energy.FixedPoint`) are iterated;
    all others follow their score, with a line search. Either way the energy never rises
    (but see :class:`~isthmus.Hopfield` for the one update that may oscillate).

    Plain iteration is slow where basins are about to merge, since each displacement is nearly
    the one before. With `accelerate`, the next update starts farther along the displacement, at
    the secant estimate of where it vanishes, up to :math:`\sigma/10` ahead. Such a leap is kept
    only if the energy there is no higher than at the plain update.

    Parameters
    ----------
    energy : Energy
    x : array or Tensor (..., D)
        Starting points.
    observed : bool array or Tensor (..., D), optional
        Coordinates that keep their values.
    tol : float
        A row rests when an update moves it by no more than this length, in the units of the
        data (plus the resolution of its dtype).
    max_steps : int
        Rows that still move after this number of updates are returned with ``converged=False``.
    accelerate : bool, optional
        Default: for memories of round Gaussians (:class:`~isthmus.GaussianKDE`,
        :class:`~isthmus.Mixture`, :class:`~isthmus.ModernHopfield`), the only ones that support it.
    trace : bool
        Keep every state.

    Notes
    -----
    Let a plain update go from x to x + m, and a leap to y, farther on that ray, at distance L. As
    :math:`-\beta_E E(x) + \lVert x\rVert^2 / (2 \sigma^2)` is convex, it lies below its chord at
    x + m. The leap therefore ends no higher than x + m if
    :math:`\beta_E (E(x) - E(y)) \ge L |m| / (2 \sigma^2)`; both energies come with the updates.

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
    >>> found.memory
    tensor([0, 1])
    """
    require_energy(energy)
    _warn_of_norms(energy)
    return settle(
        energy, x, observed, tol=tol, max_steps=max_steps, accelerate=accelerate, trace=trace
    )


@torch.no_grad()
def settle(
    energy: Energy,
    x: Any,
    observed: Any = None,
    *,
    tol: float = 1e-6,
    max_steps: int = 1000,
    accelerate: bool | None = None,
    trace: bool = False,
) -> Retrieval:
    """Return :func:`retrieve` without its look at the norms of the memories."""
    tol = as_number(tol, "tol", at_least=0)
    max_steps = as_count(max_steps, "max_steps", at_least=0)
    start = energy.as_input(x)
    shape, dtype = start.shape, start.dtype
    energy = _resolving(energy)
    rows = energy.as_input(start).reshape(-1, shape[-1])
    require_pointwise(energy, rows)
    held = None
    if observed is not None:
        held = as_mask(observed, "observed", start).reshape(rows.shape)
    history: list[Tensor] | None = [rows.clone()] if as_flag(trace, "trace") else None
    found = descend(
        energy, rows, held, tol=tol, max_steps=max_steps, accelerate=accelerate, history=history
    )
    final = energy.energy(found.state)
    _warn_of_runaways(rows, found, final)
    ends = (
        found.state.to(dtype).reshape(shape),
        final.to(dtype).reshape(shape[:-1]),
        found.steps.reshape(shape[:-1]),
        (found.resting & torch.isfinite(final)).reshape(shape[:-1]),
        torch.stack(history).to(dtype).reshape(len(history), *shape) if history else None,
    )
    state, final, steps, converged, path = as_given(ends, x)
    return Retrieval(state, final, steps, converged, path, energy)


def _warn_of_runaways(start: Tensor, found: Descent, final: Tensor) -> None:
    """Warn if rows follow an energy that falls without end."""
    grown = torch.linalg.vector_norm(found.state, dim=1)
    limit = RUNAWAY * (1 + torch.linalg.vector_norm(start, dim=1))
    rows = int(((final == -torch.inf) | (~found.resting & (grown > limit))).sum())
    if rows:
        warnings.warn(
            f"{rows} of {len(final)} rows ran off: the energy seems to have no lower bound there. "
            "Add a term that grows with the distance, or sample with another energy.",
            UserWarning,
            stacklevel=5,
        )


def _warn_of_norms(energy: Energy) -> None:
    """Warn, once, of a modern Hopfield network whose long memories capture many others."""
    if not isinstance(energy, ModernHopfield) or energy.normalize or "_told" in vars(energy):
        return
    memories = energy.memories.detach()
    if memories.shape[0] < FEWEST_ROWS or memories.shape[1] < FEWEST_COLUMNS:
        return
    probes = memories[:: max(len(memories) // NORM_PROBES, 1)][:NORM_PROBES]
    own, best = probes.square().sum(1), probes.new_full((len(probes),), -torch.inf)
    for block in memories.split(2**16):
        best = torch.maximum(best, (probes @ block.mT).amax(1))
    captured = float((best > own * (1 + 1e-5)).double().mean())
    vars(energy)["_told"] = True
    if captured > CAPTURED:
        warnings.warn(
            f"About {captured:.0%} of the memories have a larger dot product with another, longer "
            "one than with themselves and cannot be retrieved. Pass normalize=True to "
            "ModernHopfield and unit vectors to retrieve, or use GaussianKDE.",
            UserWarning,
            stacklevel=3,
        )


def _resolving(energy: Energy) -> Energy:
    """Return a memory in float64 if it lies so far off that float32 would take steps for rest."""
    if not isinstance(energy, Memory) or energy.memories.dtype == torch.float64:
        return energy
    keys = energy._keys()
    if keys.off_centre <= MAX_OFF_CENTRE * keys.radius or energy.memories.device.type == "mps":
        return energy
    memories = energy.memories.detach().double()
    if isinstance(energy, GaussianMemory):
        return energy.moved(memories)
    return energy.with_memories(memories)


def require_energy(energy: object) -> None:
    """Raise if the first argument of a function is not an energy."""
    if not isinstance(energy, Energy):
        raise UnsupportedOperationError(
            f"The first argument must be an isthmus.Energy, not a {type(energy).__name__}; "
            "points come second."
        )


@torch.no_grad()
def require_pointwise(energy: Energy, points: Tensor) -> None:
    """Raise if an energy does not map points (n, D) to energies (n,) for every n.

    An energy of a batch of contexts does not, since each of its points belongs to a context.
    Memories are known to keep the contract and are not evaluated.
    """
    if isinstance(energy, Memory | MemoryStore) or len(points) == 0:
        return
    name, advice = type(energy).__name__, ""
    for count in (1, 2):
        some = points[:1].expand(count, -1)
        try:
            shape = energy.energy(some).shape
        except ShapeError as error:
            shape, advice = None, f" It says: {error}"
        if shape != (count,):
            found = "raises an error" if shape is None else f"returns shape {tuple(shape)}"
            raise ShapeError(
                f"retrieve and sample move points (n, D) one by one, but {name}.energy {found} "
                f"for points of shape {tuple(some.shape)} where ({count},) is expected. If it "
                f"is an energy of a batch of contexts, condition on one context at a time.{advice}"
            )


class Descent(NamedTuple):
    """The states (N, D) at which rows ended, their numbers of updates (N,), and which rest (N,)."""

    state: Tensor
    steps: Tensor
    resting: Tensor


@torch.no_grad()
def descend(
    energy: Energy,
    start: Tensor,
    held: Tensor | None = None,
    *,
    tol: float,
    max_steps: int,
    accelerate: bool | None = None,
    history: list[Tensor] | None = None,
) -> Descent:
    """Run the loop of :func:`retrieve` on checked points (N, D), without their final energies."""
    state = start.clone()
    move = _move(energy, state, accelerate)
    steps = torch.zeros(len(state), dtype=torch.int64, device=state.device)
    resting = torch.zeros(len(state), dtype=torch.bool, device=state.device)
    active = torch.arange(len(state), device=state.device)
    # Rounding in a row's coordinates keeps it from resting more tightly than this.
    floor = 16 * torch.finfo(state.dtype).eps
    reach = torch.linalg.vector_norm(state, dim=1)
    for _ in range(max_steps):
        if active.numel() == 0:
            break
        new, length = move(state[active], None if held is None else held[active], active, tol)
        reach[active] = torch.maximum(reach[active], torch.linalg.vector_norm(new, dim=1))
        at_rest = length <= tol + floor * reach[active]
        state[active] = new
        steps[active] += 1
        resting[active] = at_rest
        active = active[~at_rest]
        if history is not None:
            history.append(state.clone())
    return Descent(state, steps, resting)


# An update of some rows at points (R, D), given the held coordinates, the rows' indices and the
# tolerance. It returns new points, and the lengths (R,) that decide which rows rest.
_Move = Callable[[Tensor, Tensor | None, Tensor, float], tuple[Tensor, Tensor]]


def _move(energy: Energy, state: Tensor, accelerate: bool | None) -> _Move:
    closed_form: Any = energy if isinstance(energy, GaussianMemory | MemoryStore) else None
    if closed_form is not None and closed_form.is_round and accelerate is not False:
        return _AcceleratedMove(closed_form, state)
    if accelerate:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} cannot be accelerated; only Gaussian memories can, "
            "with round kernels. Leave accelerate out."
        )
    if not isinstance(energy, FixedPoint):
        return _DownhillMove(energy, state)

    def update(x: Tensor, held: Tensor | None, *_: Any) -> tuple[Tensor, Tensor]:
        new = energy.step(x) if held is None else energy.step(x, held)
        return new, torch.linalg.vector_norm(new - x, dim=1)

    return update


class _AcceleratedMove:
    """One closed-form update of a Gaussian memory, which may start ahead of the row.

    It keeps the last displacement of each row, the leap beyond it, and the height before it.
    """

    def __init__(self, memory: GaussianMemory, state: Tensor) -> None:
        self.memory = memory
        self.sigma = float(memory.sigma)
        self.scale = float(memory.inverse_temperature) * self.sigma**2
        self.last = torch.zeros_like(state)
        self.leap = state.new_zeros(len(state))
        self.height = state.new_zeros(len(state))
        self.warm = memory.warm_start(len(state))

    def __call__(
        self, x: Tensor, held: Tensor | None, rows: Tensor, tol: float
    ) -> tuple[Tensor, Tensor]:
        if self.warm is not None:
            self.warm.rows = rows.cpu().numpy()
        last, leap = self.last[rows], self.leap[rows]
        ahead = x + leap[:, None] * last
        new, energy = self.memory.step_and_energy(ahead, held, self.warm)
        height = self.scale * energy
        move = new - ahead
        length, before = (torch.linalg.vector_norm(each, dim=1) for each in (move, last))
        agreement = (move * last).sum(1)
        rounding = 32 * torch.finfo(x.dtype).eps * (self.sigma**2 + height.abs())
        enough = self.height[rows] - height >= 0.5 * (1 + leap) * before.square() - rounding
        undone = (leap > 0) & ~((agreement > 0) & enough)

        # The displacement shrinks along the way at this rate: the slope of the secant.
        slope = (1 - length / before.clamp(min=1e-300)) / (1 + leap)
        next_leap = torch.where(slope > 0, SHARE / slope.clamp(min=1e-12) - 1, torch.inf)
        longest = LONGEST_LEAP * self.sigma / length.clamp(min=1e-300)
        next_leap = torch.minimum(next_leap, longest)
        creeps = (agreement > ALIGNED * length * before) & (length <= SHORT * self.sigma)
        self.leap[rows] = torch.where(creeps & (next_leap > 1) & ~undone, next_leap, 0)
        self.last[rows] = torch.where(undone[:, None], 0, move)
        self.height[rows] = height
        return torch.where(undone[:, None], x, new), torch.where(undone, torch.inf, length)


class _DownhillMove:
    """One trial step along the score, accepted only where it lowers the energy enough.

    Accepted rows choose their next trial length by Barzilai and Borwein's rule, the others
    halve it. The first trials are short and later ones at most twice as long as any before, so
    that a row follows its valley instead of leaping into another.
    """

    def __init__(self, energy: Energy, state: Tensor) -> None:
        self.energy = energy
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
        length = torch.where(length > 0, length, torch.inf)
        return new, torch.where(too_short | ~torch.isfinite(height), 0, length)


def complete(
    energy: Energy,
    x: Any,
    *,
    how: str | None = None,
    init: Any = None,
    tol: float = 1e-6,
    max_steps: int = 1000,
) -> Tensor:
    """Fill in unknown coordinates, marked by NaN. (..., D) -> (..., D)

    Returns a tensor for a tensor, and a NumPy array for anything else.

    The mean given the observed coordinates has the least squared error. From there, or from
    `init`, a mode is reached by retrieval while the observed coordinates stay as they are; it is
    a combination of values that the energy knows, where a mean may lie between two.

    Parameters
    ----------
    energy : Energy
    x : array or Tensor (..., D)
        NaN where unknown. A row may miss any number of coordinates, or all.
    how : {"mean", "mode"}, optional
        Default: the mean, where the energy has a ``conditional_mean`` and `init` is not given.
    init : array or Tensor (..., D), optional
        Starting values of the unknown coordinates, for a mode of an energy that has no
        ``conditional_mean``.
    tol, max_steps
        As in :func:`retrieve`, for a mode.

    Examples
    --------
    >>> import torch, isthmus as ist
    >>> nan = float("nan")
    >>> memory = ist.GaussianKDE(torch.tensor([[0.0, 0.0, 0.0], [5.0, 6.0, 7.0]]), sigma=1.0)
    >>> x = torch.tensor([[2.6, nan, nan], [nan, 2.7, nan]])
    >>> ist.complete(memory, x)
    tensor([[2.6000, 3.7348, 4.3572],
            [0.7093, 2.7000, 0.9930]])
    >>> ist.complete(memory, x, how="mode").round(decimals=4)
    tensor([[2.6000, 6.0000, 7.0000],
            [0.0000, 2.7000, 0.0000]])
    """
    require_energy(energy)
    if how is not None:
        as_choice(how, "how", ("mean", "mode"))
    points = energy.as_input(x, allow_nan=True)
    filled = _filled(energy, points, how, init, tol=tol, max_steps=max_steps)
    found: Tensor = as_given(filled, x)
    return found


def _filled(
    energy: Energy, x: Tensor, how: str | None, init: Any, *, tol: float, max_steps: int
) -> Tensor:
    """Return checked points (..., D) with their unknown coordinates filled in."""
    observed = ~torch.isnan(x)
    if init is not None and how == "mean":
        raise InvalidInputError("init is where a mode starts; leave it out, or ask for a mode.")
    if init is not None:
        guess = energy.as_input(init)
        if guess.ndim > 1 and guess.shape != x.shape:
            raise ShapeError(
                f"init must have the shape {tuple(x.shape)} of x, or be one point, not "
                f"{tuple(guess.shape)}."
            )
        start = torch.where(observed, x, guess)
    elif isinstance(energy, ConditionalMean):
        with torch.no_grad():
            start = energy.conditional_mean(x, observed)
        if how != "mode":
            return torch.where(observed, x, start)
    else:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} has no conditional_mean to start unknown coordinates at. "
            "Pass init= with starting values for them."
        )
    return retrieve(energy, start, observed, tol=tol, max_steps=max_steps).state
