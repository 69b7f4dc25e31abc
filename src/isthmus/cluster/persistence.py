"""Estimators on disk: one safetensors file with a JSON header, written all or nothing."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = ["load_estimator", "save_estimator"]

FORMAT = "isthmus-estimator-1"
Estimator = TypeVar("Estimator")


def save_estimator(estimator: Any, path: Path) -> None:
    """Write parameters and learned state; the file appears only when it is complete."""
    arrays: dict[str, NDArray[Any]] = {}
    parameters = _plain(estimator.get_params(deep=False), arrays, "parameter")
    state = _plain(estimator.__getstate__(), arrays, "state")
    for name in estimator.get_params(deep=False):
        state.pop(name, None)
    state.pop("_sklearn_version", None)
    content = json.dumps({"parameters": parameters, "state": state}, sort_keys=True)
    metadata = {
        "format": FORMAT,
        "estimator": type(estimator).__name__,
        "content": content,
        "digest": _digest(content, arrays),
    }
    blob = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata)
    write_atomically(path, blob)


def load_estimator(kind: type[Estimator], path: Path) -> Estimator:
    """Read such a file back; a file that is not one, or was altered, is refused."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"{path} is not a readable isthmus model: {error}. It may be cut short; save it anew."
        ) from None
    if metadata.get("format") != FORMAT:
        raise InvalidInputError(f"{path} is not an isthmus model of format {FORMAT}.")
    if metadata.get("estimator") != kind.__name__:
        raise InvalidInputError(
            f"{path} holds a {metadata.get('estimator')}, not a {kind.__name__}. "
            f"Load it with {metadata.get('estimator')}.load."
        )
    if metadata.get("digest") != _digest(metadata.get("content", ""), arrays):
        raise InvalidInputError(f"{path} was altered after it was saved; it is not used.")
    try:
        content = json.loads(metadata["content"])
        estimator = kind(**_restored(content["parameters"], arrays))
        estimator.__dict__.update(_restored(content["state"], arrays))
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"{path} holds a {kind.__name__} that this version of isthmus cannot read: {error!r}."
        ) from None
    return estimator


def _digest(content: str, arrays: dict[str, NDArray[Any]]) -> str:
    digest = hashlib.sha256(content.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _plain(values: dict[str, Any], arrays: dict[str, NDArray[Any]], prefix: str) -> dict[str, Any]:
    """JSON for everything but numeric arrays, which go into `arrays` under a name."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list | tuple):
            value = np.array(value)  # given means or weights
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[f"{prefix}.{name}"] = value
            plain[name] = {"array": f"{prefix}.{name}"}
        elif isinstance(value, np.ndarray):
            plain[name] = {"names": [str(entry) for entry in value]}
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        elif isinstance(value, bool | int | float | str | type(None)):
            plain[name] = value
        elif name == "_sklearn_output_config":
            plain[name] = {"settings": dict(value)}
        elif isinstance(value, np.random.RandomState):
            raise InvalidInputError(
                f"{name} is a random stream, which cannot be saved. Use an integer seed."
            )
        else:
            raise InvalidInputError(f"{name} = {value!r} cannot be saved without pickle.")
    return plain


def _restored(plain: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> dict[str, Any]:
    restored: dict[str, Any] = {}
    for name, value in plain.items():
        if isinstance(value, dict) and "array" in value:
            restored[name] = arrays[value["array"]]
        elif isinstance(value, dict) and "names" in value:
            restored[name] = np.array(value["names"], dtype=object)
        elif isinstance(value, dict) and "settings" in value:
            restored[name] = value["settings"]
        else:
            restored[name] = value
    return restored
