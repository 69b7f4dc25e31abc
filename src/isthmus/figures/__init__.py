"""One function per figure: data in, matplotlib figure out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Modules with the name of their function: imported now, or the name would be the module.
from isthmus.figures.completion import completion
from isthmus.figures.hero import hero
from isthmus.files import write_atomically

if TYPE_CHECKING:
    from isthmus.figures.attention import attention_experiment, attention_sphere
    from isthmus.figures.capacity import (
        basins_merging,
        capacity_bounds,
        certificate_plot,
        retrieval_sweep,
    )
    from isthmus.figures.clusters import cluster_map
    from isthmus.figures.files import save
    from isthmus.figures.incontext import context_landscapes, context_samples
    from isthmus.figures.landscape_1d import landscapes_1d
    from isthmus.figures.landscape_2d import landscapes_2d
    from isthmus.figures.likelihood import nll_against_context
    from isthmus.figures.sampling import samples_against_density
    from isthmus.figures.study import Ranking, critical_difference_diagram, score_map
    from isthmus.figures.violins import MetricColumn, grid_violins

__all__ = [
    "MetricColumn",
    "Ranking",
    "attention_experiment",
    "attention_sphere",
    "basins_merging",
    "capacity_bounds",
    "certificate_plot",
    "cluster_map",
    "completion",
    "context_landscapes",
    "context_samples",
    "critical_difference_diagram",
    "grid_violins",
    "hero",
    "landscapes_1d",
    "landscapes_2d",
    "nll_against_context",
    "retrieval_sweep",
    "samples_against_density",
    "save",
    "score_map",
    "write_atomically",
]

# Imported on first use: one figure needs only the parts of the package that it draws.
_HOMES = {
    "MetricColumn": "isthmus.figures.violins",
    "Ranking": "isthmus.figures.study",
    "attention_experiment": "isthmus.figures.attention",
    "attention_sphere": "isthmus.figures.attention",
    "basins_merging": "isthmus.figures.capacity",
    "capacity_bounds": "isthmus.figures.capacity",
    "certificate_plot": "isthmus.figures.capacity",
    "cluster_map": "isthmus.figures.clusters",
    "context_landscapes": "isthmus.figures.incontext",
    "context_samples": "isthmus.figures.incontext",
    "critical_difference_diagram": "isthmus.figures.study",
    "grid_violins": "isthmus.figures.violins",
    "landscapes_1d": "isthmus.figures.landscape_1d",
    "landscapes_2d": "isthmus.figures.landscape_2d",
    "nll_against_context": "isthmus.figures.likelihood",
    "retrieval_sweep": "isthmus.figures.capacity",
    "samples_against_density": "isthmus.figures.sampling",
    "save": "isthmus.figures.files",
    "score_map": "isthmus.figures.study",
    # Moved; the old names still work.
    **dict.fromkeys(("Finding", "Section", "Verdict", "page"), "isthmus.report"),
}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isthmus.figures' has no attribute {name!r}")
