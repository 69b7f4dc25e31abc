"""Binary frames: a header of JSON, followed by arrays."""

from __future__ import annotations

import json
import struct
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

ALIGNED = 8


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


def unpack(frame: bytes) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
    """Return the header and the arrays of a frame that :func:`pack` made."""
    (length,) = struct.unpack_from("<I", frame)
    header: dict[str, Any] = json.loads(frame[4 : 4 + length])
    arrays = {}
    for entry in header.pop("arrays"):
        start, count = 4 + length + entry["offset"], int(np.prod(entry["shape"]))
        values = np.frombuffer(frame, np.dtype(f"<{entry['dtype']}"), count, start)
        arrays[entry["name"]] = values.reshape(entry["shape"])
    return header, arrays
