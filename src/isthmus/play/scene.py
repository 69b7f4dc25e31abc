"""Messages of the page, checked once: the scene, and what is asked about it."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from isthmus.errors import InvalidInputError, IsthmusError
from isthmus.validation import as_choice, as_count, as_number

MOST_MEMORIES = 2000
MOST_IN_CONTEXT = 500
MOST_QUERIES = 64
MOST_WALKERS = 500
LARGEST_MESSAGE = 2**20
LARGEST_TABLE = 2**23
# The coordinates of a plane this far from the origin, in its own units, need float64.
FAR = 100.0
LIMITS = {
    "memories": MOST_MEMORIES,
    "queries": MOST_QUERIES,
    "message": LARGEST_MESSAGE,
    "table": LARGEST_TABLE,
}
KINDS = ("frame", "final", "details", "walk", "table")


@dataclass(frozen=True)
class Scene:
    """Memories (N, 2) in a plane with their counts (N,), the name of an energy, and its parameters.

    `box` is left, bottom, right and top of the plane that is drawn; `centre` and `unit` are the
    middle and half-width of the plane that the sliders and the prior refer to.
    """

    energy: str
    memories: Tensor
    counts: Tensor
    sigma: float
    alpha: float
    prior: float
    sparsity: float
    box: tuple[float, float, float, float]
    centre: tuple[float, float]
    unit: float

    @classmethod
    def read(cls, given: Any) -> Scene:
        """Return the scene of a message."""
        if not isinstance(given, Mapping):
            raise InvalidInputError("scene must be an object.")
        unit = as_number(given.get("unit"), "unit", above=0, at_most=1e30)
        centre = _numbers(given.get("centre"), "centre", 2)
        left, bottom, right, top = _numbers(given.get("box"), "box", 4)
        if not (left < right and bottom < top):
            raise InvalidInputError("box must be left, bottom, right and top, in this order.")
        dtype = torch.float64 if max(map(abs, centre)) > FAR * unit else torch.float32
        memories = as_plane(given.get("memories"), "memories", MOST_MEMORIES).to(dtype)
        counts = _as_counts(given.get("counts"), len(memories))
        return cls(
            energy=str(given.get("energy")),
            memories=memories,
            counts=counts.to(dtype),
            sigma=as_number(given.get("sigma"), "sigma", above=0, at_most=1e30),
            alpha=as_number(given.get("alpha", 1.0), "alpha", above=0, at_most=1e9),
            prior=as_number(given.get("prior", unit), "prior", above=0, at_most=1e30),
            sparsity=as_number(given.get("sparsity", 1.5), "sparsity", above=1, at_most=2),
            box=(left, bottom, right, top),
            centre=(centre[0], centre[1]),
            unit=unit,
        )

    def grid(self, columns: int, rows: int) -> Tensor:
        """Return the nodes of a grid over the box, from the top left. (rows, columns, 2)."""
        left, bottom, right, top = self.box
        x = np.linspace(left, right, columns)
        y = np.linspace(top, bottom, rows)
        nodes = np.stack(np.meshgrid(x, y), -1)
        return torch.from_numpy(nodes).to(self.memories.dtype)


@dataclass(frozen=True)
class Request:
    """What the page asks for. `number` comes back with the reply."""

    number: int
    kind: str
    body: Mapping[str, Any]

    @classmethod
    def read(cls, text: str | bytes) -> Request:
        """Return the request in a message of JSON."""
        if len(text) > LARGEST_TABLE:
            raise InvalidInputError(
                f"A message may have {LARGEST_TABLE:,} bytes, not {len(text):,}."
            )
        try:
            body = json.loads(text, parse_constant=int)  # refuses NaN and infinities
        except (ValueError, RecursionError):
            raise InvalidInputError("The message is not JSON.") from None
        if not isinstance(body, dict):
            raise InvalidInputError("The message must be an object.")
        kind = as_choice(body.get("kind"), "kind", KINDS)
        if kind != "table" and len(text) > LARGEST_MESSAGE:
            raise InvalidInputError(f"A message may have {LARGEST_MESSAGE:,} bytes.")
        return cls(as_count(body.get("id"), "id", at_least=0, at_most=2**53), kind, body)


def as_plane(given: Any, name: str, most: int) -> Tensor:
    """Return a list of pairs of finite numbers as a tensor, at most `most` of them. (n, 2)."""
    if not isinstance(given, list):
        raise InvalidInputError(f"{name} must be a list of points.")
    if len(given) > most:
        raise InvalidInputError(f"{name} holds {len(given)} points; at most {most} are allowed.")
    try:
        points = np.array(given, dtype=np.float64).reshape(len(given), 2)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} must be a list of pairs of numbers.") from None
    if not np.isfinite(points).all() or (np.abs(points) > 1e30).any():
        raise InvalidInputError(f"{name} must hold finite numbers.")
    return torch.from_numpy(points)


def _as_counts(given: Any, count: int) -> Tensor:
    """Return a positive number for each memory; 1 if there are none. (N,)."""
    if not given:
        return torch.ones(count, dtype=torch.float64)
    wrong = InvalidInputError(f"counts must be a list of {count} positive numbers.")
    try:
        counts = np.array(given, dtype=np.float64)
    except (TypeError, ValueError, OverflowError):
        raise wrong from None
    if counts.shape != (count,) or not ((counts > 0) & (counts < 1e9)).all():
        raise wrong
    return torch.from_numpy(counts)


def _numbers(given: Any, name: str, count: int) -> tuple[float, ...]:
    if not isinstance(given, list) or len(given) != count:
        raise InvalidInputError(f"{name} must be a list of {count} numbers.")
    return tuple(as_number(one, name) for one in given)


def request_number(text: str | bytes) -> int:
    """Return the number of a request that may be wrong otherwise; 0 if it has none."""
    try:
        return Request.read(text).number
    except IsthmusError:
        return 0
