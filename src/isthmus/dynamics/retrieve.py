"""Retrieval: move points downhill on an energy until they rest, with coordinates held on demand."""

from __future__ import annotations

import warnings
from dataclasses import dataclass
from functools import cached_property
from typing import Any, cast

import torch
from torch import Tensor

from isthmus.dynamics.descent import descend
from isthmus.energy import Energy, as_given
from isthmus.errors import InvalidInputError, ShapeError, UnsupportedOperationError
from isthmus.memories.modern import ModernHopfield
from isthmus.validation import as_choice, as_count, as_flag, as_mask, as_number

# A row that moves this many times as far as it was from the origin, and still moves, ran off.
RUNAWAY = 1e6
# A modern Hopfield network of this size is warned of if more than this share of probed memories
# belong to longer ones.
FEWEST_ROWS, FEWEST_COLUMNS, NORM_PROBES, CAPTURED = 32, 16, 64, 0.25


@dataclass(frozen=True, eq=False, repr=False)
class Retrieval:
    """The points at which a retrieval ended, as tensors if it began at tensors, else as arrays."""

    state: Tensor
    """The points (..., D)."""
    energy: Tensor
    """Their energies (...); ``+inf`` of points that began outside the support and did not move."""
    steps: Tensor
    """Number of updates of each row. (...) of int64."""
    converged: Tensor
    """True for rows that came to rest within the limit, at a finite energy. (...) of bool."""
    trace: Tensor | None = None
    """All states from the start on, if requested. (T + 1, ..., D)."""
    source: Energy | None = None
    """The energy that was descended."""

    @cached_property
    def memory(self) -> Any:
        """The memory with the largest responsibility for each point, (...) of int64, or None.

        It is -1 where no memory is in reach, and None if the energy has no memories.
        """
        if self.source is None:
            return None
        shape = self.state.shape
        points = self.source.as_input(self.state).reshape(-1, shape[-1])
        found = self.source._recalled(points)
        return as_given(None if found is None else found.reshape(shape[:-1]), self.state)

    def __repr__(self) -> str:
        energy, converged = map(torch.as_tensor, (self.energy, self.converged))
        rows, finite = converged.numel(), energy[torch.isfinite(energy)]
        if rows == 0:
            return "Retrieval(no rows)"
        facts = [f"{int(converged.sum())} of {rows} rows converged"]
        facts.append(f"{int(self.steps.max())} steps at most")
        if finite.numel():
            facts.append(f"mean energy {float(finite.mean()):.4g}")
        if outside := rows - finite.numel():
            facts.append(f"{outside} outside the support")
        return f"Retrieval({', '.join(facts)})"


@torch.no_grad()
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

    Energies with a closed-form update (``energy.has_step``) are iterated; all others follow their
    score, with a line search. Either way the energy never rises (but see
    :class:`~isthmus.Hopfield` for the one update that may oscillate).

    Plain iteration is slow where basins are about to merge. With `accelerate`, updates start up to
    :math:`\sigma/10` farther along the last displacement, where it would vanish by the secant rule,
    and such a leap is kept only if the energy is no higher than at the plain update.

    Parameters
    ----------
    energy : Energy
    x : array or Tensor (..., D)
        Starting points.
    observed : bool array or Tensor (..., D), optional
        Coordinates that keep their values.
    tol : float
        A row rests when an update moves it by no more than this length (plus the resolution of
        its dtype), in units of the width of the kernels, else of the extent of the memories.
    max_steps : int
        Rows that still move after this number of updates are returned with ``converged=False``.
    accelerate : bool, optional
        Default: for memories of round Gaussians, the only ones that support it.
    trace : bool
        Keep every state.

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
    settings: dict[str, Any] = {
        "tol": as_number(tol, "tol", at_least=0) * energy._length(),
        "max_steps": as_count(max_steps, "max_steps", at_least=0),
        "accelerate": None if accelerate is None else as_flag(accelerate, "accelerate"),
    }
    start = energy.as_input(x)
    shape, dtype = start.shape, start.dtype
    if energy._is_far_off() and (exact := energy._in_float64()) is not None:
        energy = exact
    rows = energy.as_input(start).reshape(-1, shape[-1])
    require_pointwise(energy, rows)
    held = None
    if observed is not None:
        held = as_mask(observed, "observed", start).reshape(rows.shape)
    history, trace = [rows.clone()], as_flag(trace, "trace")
    found = descend(energy, rows, held, history if trace else None, **settings)
    again, exact = found.unresolved, None if rows.dtype == torch.float64 else energy._in_float64()
    if exact is not None and bool(again.any()):
        # The last updates of these rows were as short as rounding errors: go on in float64.
        some, path = None if held is None else held[again], [found.state[again].double()]
        settings["max_steps"] -= int(found.steps[again].max())
        more = descend(exact, path[0], some, path if trace else None, **settings)
        for states in path[1:]:
            history.append(found.state.clone())
            history[-1][again] = states.to(rows.dtype)
        found.state[again], found.resting[again] = more.state.to(rows), more.resting
        found.steps[again] += more.steps
    final = energy._energy(found.state)
    grown, began = (torch.linalg.vector_norm(each, dim=1) for each in (found.state, rows))
    runs = (final == -torch.inf) | (~found.resting & (grown > RUNAWAY * (1 + began)))
    if bool(runs.any()):
        warnings.warn(
            f"{int(runs.sum())} of {len(runs)} rows ran off: the energy seems to have no lower "
            "bound there. Add a term that grows with the distance, or sample with another energy.",
            UserWarning,
            stacklevel=3,
        )
    resting = found.resting & torch.isfinite(final)
    rows_of = (each.reshape(shape[:-1]) for each in (final.to(dtype), found.steps, resting))
    visited = torch.stack(history).to(dtype).reshape(len(history), *shape) if trace else None
    ends = found.state.to(dtype).reshape(shape), *rows_of, visited, energy
    return Retrieval(*as_given(ends, x))


def _warn_of_norms(energy: Energy) -> None:
    """Warn, once, of a modern Hopfield network whose long memories capture many others."""
    if not isinstance(energy, ModernHopfield) or energy.normalize or "_told" in vars(energy):
        return
    memories = energy.memories.detach()
    if memories.shape[0] < FEWEST_ROWS or memories.shape[1] < FEWEST_COLUMNS:
        return
    vars(energy)["_told"] = True
    probes = memories[:: max(len(memories) // NORM_PROBES, 1)][:NORM_PROBES]
    products = [(probes @ block.mT).amax(1) for block in memories.split(2**16)]
    best, own = torch.stack(products).amax(0), probes.square().sum(1)
    captured = float((best > own * (1 + 1e-5)).double().mean())
    if captured > CAPTURED:
        warnings.warn(
            f"About {captured:.0%} of the memories have a larger dot product with another, longer "
            "one than with themselves and cannot be retrieved. Pass normalize=True to "
            "ModernHopfield and unit vectors to retrieve, or use GaussianKDE.",
            UserWarning,
            stacklevel=4,
        )


def require_energy(energy: object) -> None:
    """Raise if the first argument of a function is not an energy."""
    if not isinstance(energy, Energy):
        raise UnsupportedOperationError(
            f"The first argument must be an isthmus.Energy, not a {type(energy).__name__}; "
            "points come second."
        )


@torch.no_grad()
def require_pointwise(energy: Energy, points: Tensor) -> None:
    """Raise if an energy does not map points (n, D), each by itself, to energies (n,).

    An energy of a batch of contexts does not, since each of its points belongs to a context.
    """
    if energy._is_pointwise or len(points) == 0:
        return
    name, pair, fault = type(energy).__name__, points[[0, -1]], ""
    try:
        first, second, both = (energy._energy(each) for each in (pair[:1], pair[1:], pair))
        if wrong := [each.shape for each in (first, second) if each.shape != (1,)]:
            fault = f"returns shape {tuple(wrong[0])} for one point"
        elif both.shape != (2,):
            fault = f"returns shape {tuple(both.shape)} for two points"
    except ShapeError as error:
        fault = f"raises an error ({error})"
    if fault:
        raise ShapeError(
            f"Points (n, D) must have energies (n,), each its own, but {name}.energy {fault}. Of a "
            "batch of contexts, condition on one context at a time."
        )
    # Large coordinates may cancel.
    rounding = 100 * torch.finfo(pair.dtype).eps * float(pair.square().max())
    if not torch.allclose(
        torch.cat([first, second]), both, rtol=1e-2, atol=1e-3 + rounding, equal_nan=True
    ):
        raise InvalidInputError(
            f"{name}.energy of a point depends on the other points of a batch, or is random. "
            "Batch normalisation and dropout are off after energy.eval()."
        )


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

    The mean given the observed coordinates has the least squared error. From there, or from
    `init`, retrieval with the observed coordinates held reaches a mode, which is a combination of
    values that the energy knows; a mean may lie between two.

    Parameters
    ----------
    energy : Energy
    x : array or Tensor (..., D)
        NaN where unknown. A row may miss all.
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
    observed = ~torch.isnan(points)
    if init is not None and how == "mean":
        raise InvalidInputError("init is where a mode starts; leave it out, or ask for a mode.")
    if init is not None:
        guess = energy.as_input(init)
        if guess.ndim > 1 and guess.shape != points.shape:
            raise ShapeError(
                f"init must have the shape {tuple(points.shape)} of x, or be one point, not "
                f"{tuple(guess.shape)}."
            )
        start = torch.where(observed, points, guess)
    elif energy.has_conditional_mean:
        with torch.no_grad():
            start = energy._conditional_mean(torch.where(observed, points, 0.0), observed)
        if how != "mode":
            return cast("Tensor", as_given(torch.where(observed, points, start), x))
    else:
        raise UnsupportedOperationError(
            f"{type(energy).__name__} has no conditional_mean to start unknown coordinates at. "
            "Pass init= with starting values for them."
        )
    found = retrieve(energy, start, observed, tol=tol, max_steps=max_steps).state
    return cast("Tensor", as_given(found, x))
