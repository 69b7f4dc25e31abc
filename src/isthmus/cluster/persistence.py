"""Estimators on disk: one safetensors file with a JSON header, written all or nothing."""

from __future__ import annotations

from dataclasses import fields
from pathlib import Path
from typing import Any, TypeVar

import numpy as np

from isthmus.cluster.crp_inference import CRPPrior
from isthmus.cluster.statistics import ClusterStatistics
from isthmus.errors import InvalidInputError
from isthmus.io.archive import decoded, read_archive, write_described
from isthmus.io.reading import reading
from isthmus.scaling import Scaling
from isthmus.tables.encoding import Coding

FORMAT = "isthmus-estimator-2"
# The only classes that a file may name.
RECORDS = {record.__name__: record for record in (ClusterStatistics, Coding, CRPPrior, Scaling)}
RECORDS["Units"] = Scaling  # as older files call it
Estimator = TypeVar("Estimator")


def save_estimator(estimator: Any, path: Path) -> None:
    """Write parameters and learned state; the file appears only when it is complete."""
    parameters = estimator.get_params(deep=False)
    state = {name: value for name, value in vars(estimator).items() if name not in parameters}
    content = {"parameters": parameters, "state": state}
    write_described(path, FORMAT, content, _encoded, estimator=type(estimator).__name__)


def load_estimator(kind: type[Estimator], path: Path) -> Estimator:
    """Read a file of :func:`save_estimator`; refuse other files and altered ones."""
    metadata, arrays = read_archive(path, (FORMAT,))
    if metadata.get("estimator") != kind.__name__:
        raise InvalidInputError(
            f"{path} holds a {metadata.get('estimator')}, not a {kind.__name__}. "
            f"Load it with {metadata.get('estimator')}.load."
        )
    with reading(path, kind.__name__, "This version of isthmus cannot read it."):
        content = decoded(metadata["content"], arrays, _decoded)
        estimator = kind(**content["parameters"])
        estimator.__dict__.update(content["state"])
    return estimator


def _encoded(value: Any) -> Any:
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, np.ndarray):
        return {"names": [str(entry) for entry in value]}
    if type(value).__name__ in RECORDS:
        record = {field.name: getattr(value, field.name) for field in fields(value)}
        return {"record": type(value).__name__, "fields": record}
    if isinstance(value, np.random.RandomState):
        raise InvalidInputError("random_state is a stream. Use an integer seed to save the model.")
    raise InvalidInputError(f"{value!r} cannot be saved without pickle.")


def _decoded(value: dict[str, Any]) -> Any:
    if "names" in value:
        return np.array(value["names"], dtype=object)
    if "record" in value:
        return RECORDS[value["record"]](**value["fields"])
    return value
