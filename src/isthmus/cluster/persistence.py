"""Estimators on disk: one safetensors file with a JSON header, written all or nothing."""

from __future__ import annotations

import hashlib
import json
from dataclasses import fields, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from isthmus.cluster.crp_inference import CRPPrior
from isthmus.cluster.data import Units
from isthmus.cluster.statistics import ClusterStatistics
from isthmus.errors import InvalidInputError
from isthmus.files import write_atomically

__all__ = ["load_estimator", "save_estimator"]

FORMAT, OLD_FORMAT = "isthmus-estimator-2", "isthmus-estimator-1"
# The only classes that a file may name.
RECORDS = {record.__name__: record for record in (ClusterStatistics, CRPPrior, Units)}
Arrays = dict[str, NDArray[Any]]
Estimator = TypeVar("Estimator")


def save_estimator(estimator: Any, path: Path) -> None:
    """Write parameters and learned state; the file appears only when it is complete."""
    arrays: Arrays = {}
    parameters = estimator.get_params(deep=False)
    state = {name: value for name, value in vars(estimator).items() if name not in parameters}
    content = json.dumps(
        {
            "parameters": _plain(parameters, arrays, "parameter"),
            "state": _plain(state, arrays, "state"),
        },
        sort_keys=True,
    )
    metadata = {
        "format": FORMAT,
        "estimator": type(estimator).__name__,
        "content": content,
        "digest": _digest(content, arrays),
    }
    blob = save({name: np.ascontiguousarray(a) for name, a in arrays.items()}, metadata)
    write_atomically(path, blob)


def load_estimator(kind: type[Estimator], path: Path) -> Estimator:
    """Read a file of :func:`save_estimator`; refuse other files and altered ones."""
    try:
        with safe_open(path, framework="numpy") as file:
            metadata = file.metadata() or {}
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except FileNotFoundError:
        raise
    except (SafetensorError, OSError, ValueError) as error:
        raise InvalidInputError(
            f"{path} is not a readable isthmus model: {error}. It may be truncated; save it again."
        ) from None
    if metadata.get("format") not in (FORMAT, OLD_FORMAT):
        raise InvalidInputError(f"{path} is not an isthmus model of format {FORMAT}.")
    if metadata.get("estimator") != kind.__name__:
        raise InvalidInputError(
            f"{path} holds a {metadata.get('estimator')}, not a {kind.__name__}. "
            f"Load it with {metadata.get('estimator')}.load."
        )
    if metadata.get("digest") != _digest(metadata.get("content", ""), arrays):
        raise InvalidInputError(f"{path} was altered after it was saved. Save the model again.")
    try:
        content = json.loads(metadata["content"])
        estimator = kind(**_restored(content["parameters"], arrays))
        state = _restored(content["state"], arrays)
        estimator.__dict__.update(_upgraded(state) if metadata["format"] == OLD_FORMAT else state)
    except (KeyError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInputError(
            f"{path} holds a {kind.__name__} that this version of isthmus cannot read: {error!r}."
        ) from None
    return estimator


def _digest(content: str, arrays: Arrays) -> str:
    digest = hashlib.sha256(content.encode())
    for name in sorted(arrays):
        array = np.ascontiguousarray(arrays[name])
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(array.tobytes())
    return digest.hexdigest()


def _plain(values: dict[str, Any], arrays: Arrays, prefix: str) -> dict[str, Any]:
    """Return JSON for everything but numeric arrays, which go into `arrays` under a name."""
    plain: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, list | tuple):
            value = np.array(value)  # given means or weights
        elif isinstance(value, torch.Tensor):
            value = value.numpy()
        if isinstance(value, np.ndarray) and value.dtype != object:
            arrays[f"{prefix}.{name}"] = value
            plain[name] = {"array": f"{prefix}.{name}"}
        elif isinstance(value, np.ndarray):
            plain[name] = {"names": [str(entry) for entry in value]}
        elif isinstance(value, np.generic):
            plain[name] = value.item()
        elif isinstance(value, bool | int | float | str | type(None)):
            plain[name] = value
        elif is_dataclass(value) and type(value).__name__ in RECORDS:
            record = {field.name: getattr(value, field.name) for field in fields(value)}
            plain[name] = {
                "record": type(value).__name__,
                "fields": _plain(record, arrays, f"{prefix}.{name}"),
            }
        elif name == "_sklearn_output_config":
            plain[name] = {"settings": dict(value)}
        elif isinstance(value, np.random.RandomState):
            raise InvalidInputError(
                f"{name} is a random stream, which cannot be saved. Use an integer seed."
            )
        else:
            raise InvalidInputError(f"{name} = {value!r} cannot be saved without pickle.")
    return plain


def _restored(plain: dict[str, Any], arrays: Arrays) -> dict[str, Any]:
    restored: dict[str, Any] = {}
    for name, value in plain.items():
        if not isinstance(value, dict):
            restored[name] = value
        elif "array" in value:
            restored[name] = arrays[value["array"]]
        elif "names" in value:
            restored[name] = np.array(value["names"], dtype=object)
        elif "record" in value:
            restored[name] = _record(value["record"], _restored(value["fields"], arrays))
        else:
            restored[name] = value["settings"]
    return restored


def _record(name: str, values: dict[str, Any]) -> Any:
    if name == "ClusterStatistics":
        values = {
            key: torch.from_numpy(value) if isinstance(value, np.ndarray) else value
            for key, value in values.items()
        }
    return RECORDS[name](**values)


def _upgraded(state: dict[str, Any]) -> dict[str, Any]:
    """Convert the state of the first format, which kept records as separate arrays."""
    state = dict(state)
    units = Units(state.pop("_centre"), state.pop("_scale"))
    counts = state["counts_"] if "counts_" in state else state.pop("_counts")
    square, coordinates = state.pop("_moments").tolist()
    parts = {"counts": counts, "sums": state.pop("_sums"), "masses": state.pop("_masses")}
    totals = {"square": square, "coordinates": coordinates}
    state |= {"_units": units, "_statistics": _record("ClusterStatistics", parts | totals)}
    if "_rule" in state:
        beta, rho, alpha, discount, dim, normalized = state.pop("_rule").tolist()
        temper = dim / parts["sums"].shape[1]
        state["_prior"] = CRPPrior(beta, rho, alpha, discount, temper, bool(normalized))
    for name in ("_dtype", "_previous"):
        state.pop(name, None)
    return state
