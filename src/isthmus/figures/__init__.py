"""One function per figure: data in, matplotlib figure out."""

from importlib import import_module
from typing import Any

from isthmus.extras import require

require("matplotlib")

# Imported on first use: a figure needs only the part of the package that it draws.
_NAMES = {
    "isthmus.figures.memories": "certificate_plot phase_plot",
    "isthmus.figures.clusters": "cluster_map cluster_tree",
    "isthmus.figures.incontext": "context_landscapes nll_against_context",
    "isthmus.figures.landscapes": "completion hero landscapes_1d landscapes_2d",
    "isthmus.figures.plots": "plot",
    "isthmus.figures.style": "save",
    "isthmus.paper.figures": "attention_experiment basins_merging capacity_bounds retrieval_sweep",
    "isthmus.io.files": "write_atomically",
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(_HOMES)


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isthmus.figures' has no attribute {name!r}")
