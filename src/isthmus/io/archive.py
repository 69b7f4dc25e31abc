"""Models on disk: one safetensors file of arrays, with a description and a digest of both."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import safe_open
from safetensors.numpy import save

from isthmus.errors import InvalidInputError
from isthmus.io.files import write_atomically
from isthmus.io.reading import reading

Arrays = dict[str, NDArray[Any]]


def write_archive(
    path: Path, kind: str, content: str, arrays: Mapping[str, NDArray[Any]], **labels: str
) -> None:
    """Write arrays and their description; the file appears only when it is complete."""
    stored = {name: np.asarray(array, order="C") for name, array in arrays.items()}
    digest = digest_of(content, stored)
    metadata = {"format": kind, "content": content, "digest": digest, **labels}
    write_atomically(path, _in_order(save(stored, metadata)))


def map_archive(
    path: Path, formats: tuple[str, ...], what: str = "isthmus model"
) -> tuple[dict[str, str], Arrays]:
    """Read the metadata of a file of one of the formats, and map its arrays."""
    with (
        reading(path, what, "It may be truncated; save or copy it again.") as place,
        safe_open(place, framework="pt") as file,
    ):
        metadata: dict[str, str] = file.metadata() or {}
        arrays = {name: file.get_tensor(name).numpy() for name in file.keys()}  # noqa: SIM118
    if metadata.get("format") not in formats:
        raise InvalidInputError(f"{path} is not an {what} of format {formats[0]}.")
    return metadata, arrays


def read_archive(path: Path, formats: tuple[str, ...]) -> tuple[dict[str, str], Arrays]:
    """Read the metadata and the arrays of a file of one of the formats; refuse altered files."""
    metadata, mapped = map_archive(path, formats)
    arrays = {name: array.copy() for name, array in mapped.items()}
    if metadata.get("digest") != digest_of(metadata.get("content", ""), arrays):
        raise InvalidInputError(
            f"{path} was altered after it was saved: its digest is another. Save or copy it again."
        )
    return metadata, arrays


def write_described(
    path: Path, kind: str, description: Any, encode: Callable[[Any], Any], **labels: str
) -> None:
    """Write anything as JSON, its arrays and tensors beside it; `encode` converts other objects."""
    arrays: Arrays = {}

    def entry(value: Any) -> Any:
        is_tensor = isinstance(value, torch.Tensor)
        if not is_tensor and not (isinstance(value, np.ndarray) and value.dtype != object):
            return encode(value)
        name = f"array{len(arrays)}"
        arrays[name] = value.detach().cpu().numpy() if is_tensor else value
        return {"tensor" if is_tensor else "array": name}

    content = json.dumps(description, sort_keys=True, default=entry)
    write_archive(path, kind, content, arrays, **labels)


def decoded(content: str, arrays: Arrays, decode: Callable[[dict[str, Any]], Any]) -> Any:
    """Return what :func:`write_described` wrote; `decode` converts mappings, inner ones first."""

    def entry(value: dict[str, Any]) -> Any:
        if "array" in value:
            return arrays[value["array"]]
        return torch.from_numpy(arrays[value["tensor"]]) if "tensor" in value else decode(value)

    return json.loads(content, object_hook=entry)


def _in_order(blob: bytes) -> bytes:
    """Sort the metadata of a safetensors file, which come in any order, so that equal is equal."""
    size = int.from_bytes(blob[:8], "little")
    header = json.loads(blob[8 : 8 + size])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + blob[8 + size :]


def digest_of(content: str, arrays: Arrays) -> str:
    """Return a digest of a text, and of the names, types, shapes and values of arrays."""
    digest = hashlib.sha256(content.encode())
    for name in sorted(arrays):
        digest.update(f"{name} {arrays[name].dtype} {arrays[name].shape}".encode())
        digest.update(arrays[name].tobytes())
    return digest.hexdigest()
