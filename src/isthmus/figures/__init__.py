"""One function per figure: data in, matplotlib figure out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from isthmus.figures.attention import attention_experiment, attention_sphere
    from isthmus.figures.capacity import (
        basins_merging,
        capacity_bounds,
        certificate_plot,
        retrieval_sweep,
    )
    from isthmus.figures.clusters import cluster_map
    from isthmus.figures.images import completion, hero
    from isthmus.figures.incontext import context_landscapes, context_samples, nll_against_context
    from isthmus.figures.landscapes import landscapes_1d, landscapes_2d, samples_against_density
    from isthmus.figures.study import (
        MetricColumn,
        Ranking,
        critical_difference_diagram,
        grid_violins,
        score_map,
    )
    from isthmus.figures.style import save
    from isthmus.files import write_atomically

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

# Imported on first use: a figure needs only the part of the package that it draws.
_NAMES = {
    "isthmus.figures.attention": "attention_experiment attention_sphere",
    "isthmus.figures.capacity": "basins_merging capacity_bounds certificate_plot retrieval_sweep",
    "isthmus.figures.clusters": "cluster_map",
    "isthmus.figures.images": "completion hero",
    "isthmus.figures.incontext": "context_landscapes context_samples nll_against_context",
    "isthmus.figures.landscapes": "landscapes_1d landscapes_2d samples_against_density",
    "isthmus.figures.style": "save",
    "isthmus.figures.study": "MetricColumn Ranking critical_difference_diagram grid_violins "
    "score_map",
    "isthmus.files": "write_atomically",
    "isthmus.report": "Finding Section Verdict page",  # moved there; the old names still work
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isthmus.figures' has no attribute {name!r}")
