"""Messages: requests of the page, checked once, and the binary frames that answer them."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from isthmus.errors import InvalidInputError
from isthmus.validation import as_choice, as_count, as_number

MOST_MEMORIES, MOST_IN_CONTEXT, MOST_QUERIES, MOST_WALKERS = 2000, 500, 64, 500
LARGEST_MESSAGE, LARGEST_TABLE = 2**20, 2**23
LARGEST_NUMBER, ALIGNED = 1e30, 8
# The coordinates of a plane this far from the origin, in its own units, need float64.
FAR = 100.0
LIMITS = {"memories": MOST_MEMORIES, "queries": MOST_QUERIES, "table": LARGEST_TABLE}
KINDS = ("frame", "final", "details", "walk", "clusters", "phases", "table")


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
    box: tuple[float, ...]
    centre: tuple[float, ...]
    unit: float

    @classmethod
    def read(cls, given: Any) -> Scene:
        """Return the scene of a message."""
        if not isinstance(given, Mapping):
            raise InvalidInputError("scene must be an object.")
        above = {"above": 0, "at_most": LARGEST_NUMBER}
        unit = as_number(given.get("unit"), "unit", **above)
        centre = as_floats(given.get("centre"), "centre", (2,))
        left, bottom, right, top = box = as_floats(given.get("box"), "box", (4,)).tolist()
        if not (left < right and bottom < top):
            raise InvalidInputError("box must be left, bottom, right and top, in this order.")
        memories = as_floats(given.get("memories"), "memories", (-1, 2), MOST_MEMORIES)
        counts = as_floats(given.get("counts") or [1.0] * len(memories), "counts", (len(memories),))
        if not ((counts > 0) & (counts < 1e9)).all():
            raise InvalidInputError("counts must be positive numbers.")
        dtype = torch.float64 if centre.abs().max() > FAR * unit else torch.float32
        return cls(
            energy=str(given.get("energy")),
            memories=memories.to(dtype),
            counts=counts.to(dtype),
            sigma=as_number(given.get("sigma"), "sigma", **above),
            alpha=as_number(given.get("alpha", 1.0), "alpha", above=0, at_most=1e9),
            prior=as_number(given.get("prior", unit), "prior", **above),
            sparsity=as_number(given.get("sparsity", 1.5), "sparsity", above=1, at_most=2),
            box=tuple(box),
            centre=tuple(centre.tolist()),
            unit=unit,
        )

    def grid(self, columns: int, rows: int) -> Tensor:
        """Return the nodes of a grid over the box, from the top left. (rows, columns, 2)."""
        left, bottom, right, top = self.box
        nodes = np.meshgrid(np.linspace(left, right, columns), np.linspace(top, bottom, rows))
        return torch.from_numpy(np.stack(nodes, -1)).to(self.memories.dtype)


def read_request(text: str | bytes) -> dict[str, Any]:
    """Return what the page asks for, with its "kind", and the "id" that its reply has too."""
    try:
        body = json.loads(text[: LARGEST_TABLE + 1], parse_constant=int)  # refuses NaN
    except (ValueError, RecursionError):
        raise InvalidInputError("The message is not JSON, or too large.") from None
    if not isinstance(body, dict):
        raise InvalidInputError("The message must be an object.")
    kind = as_choice(body.get("kind"), "kind", KINDS)
    if kind != "table" and len(text) > LARGEST_MESSAGE:
        raise InvalidInputError(f"A message may have {LARGEST_MESSAGE:,} bytes.")
    return {**body, "id": as_count(body.get("id"), "id", at_least=0, at_most=2**53)}


def as_floats(given: Any, name: str, shape: tuple[int, ...], most: int = MOST_MEMORIES) -> Tensor:
    """Return a list of finite numbers as a tensor of a shape, with at most so many rows."""
    try:
        values = np.array(given if isinstance(given, list) else None, float).reshape(shape)
    except (TypeError, ValueError, OverflowError):
        raise InvalidInputError(f"{name} must be a list of numbers, {shape}.") from None
    if len(values) > most or not (np.abs(values) <= LARGEST_NUMBER).all():
        raise InvalidInputError(f"{name} must have up to {most} entries, which are finite.")
    return torch.from_numpy(values)


def pack(header: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]] | None = None) -> bytes:
    """Return a frame: the length of the header, the header, and the arrays it lists.

    The length is four bytes, little-endian. Header and arrays are padded to multiples of eight
    bytes, so that a browser can look at the arrays without copying them.
    """
    listed, blocks, offset = [], [], 0
    for name, values in (arrays or {}).items():
        values = np.ascontiguousarray(values)
        values = values.astype(values.dtype.newbyteorder("<"), copy=False)
        content = values.tobytes()
        content += b"\0" * (-len(content) % ALIGNED)
        entry = {"name": name, "dtype": values.dtype.kind + str(values.dtype.itemsize)}
        listed.append({**entry, "shape": values.shape, "offset": offset})
        blocks.append(content)
        offset += len(content)
    text = json.dumps({**header, "arrays": listed}, allow_nan=False).encode()
    text += b" " * (-(4 + len(text)) % ALIGNED)
    return b"".join([struct.pack("<I", len(text)), text, *blocks])
