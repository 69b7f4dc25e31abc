"""Capacity of memories: certificates of patterns, bandwidths, and bounds on their number."""

from importlib import import_module
from typing import Any

from isthmus.capacity.atlas import Phases, phases
from isthmus.capacity.bandwidths import (
    Basins,
    CapacityCurve,
    SigmaChoice,
    basins,
    capacity_curve,
    choose_sigma,
)
from isthmus.capacity.certificate import Certificate, certify
from isthmus.capacity.ramsauer import guaranteed_radius, required_separation

# Names that are part of the reproduction of the paper, imported on first use.
_PAPER = {
    "counts": "capacity_bound capacity_rate",
    "spheres": "MeasuredCapacity cell_600 e8_shell measured_capacity regular_polygon "
    "spread_on_sphere",
    "sweep": "Sweep sweep",
}
_HOMES = {name: module for module, names in _PAPER.items() for name in names.split()}

__all__ = [
    "Basins",
    "CapacityCurve",
    "Certificate",
    "Phases",
    "SigmaChoice",
    "basins",
    "capacity_curve",
    "certify",
    "choose_sigma",
    "guaranteed_radius",
    "phases",
    "required_separation",
    *_HOMES,
]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module 'isthmus.capacity' has no attribute {name!r}")
    value = globals()[name] = getattr(import_module(f"isthmus.paper.{_HOMES[name]}"), name)
    return value
