"""Capacity of memories: bounds, certificates of patterns, and experiments."""

from isthmus.capacity.bandwidths import (
    Basins,
    CapacityCurve,
    MergeTree,
    SigmaChoice,
    basins,
    capacity_curve,
    choose_sigma,
    merge_tree,
)
from isthmus.capacity.bounds import (
    RandomPatternCapacity,
    guaranteed_radius,
    minimal_angle_probability,
    one_step_error_bound,
    random_pattern_capacity,
    random_pattern_dimension,
    required_separation,
    retrieval_error_bound,
)
from isthmus.capacity.certificate import Certificate, certify
from isthmus.capacity.counts import (
    RandomCoding,
    capacity_bound,
    capacity_rate,
    dense_radius,
    random_coding,
)
from isthmus.capacity.experiments import Sweep, sweep
from isthmus.capacity.sphere import (
    cell_600,
    e8_shell,
    measured_capacity,
    regular_polygon,
    spread_on_sphere,
)

__all__ = [
    "Basins",
    "CapacityCurve",
    "Certificate",
    "MergeTree",
    "RandomCoding",
    "RandomPatternCapacity",
    "SigmaChoice",
    "Sweep",
    "basins",
    "capacity_bound",
    "capacity_curve",
    "capacity_rate",
    "cell_600",
    "certify",
    "choose_sigma",
    "dense_radius",
    "e8_shell",
    "guaranteed_radius",
    "measured_capacity",
    "merge_tree",
    "minimal_angle_probability",
    "one_step_error_bound",
    "random_coding",
    "random_pattern_capacity",
    "random_pattern_dimension",
    "regular_polygon",
    "required_separation",
    "retrieval_error_bound",
    "spread_on_sphere",
    "sweep",
]
