"""One function per figure: data in, matplotlib figure out."""

from importlib import import_module
from typing import TYPE_CHECKING, Any

# Imported on first use: a figure needs only the part of the package that it draws.
_NAMES = {
    "isthmus.figures.annealing": "annealing_phases",
    "isthmus.figures.attention": "attention_experiment attention_sphere",
    "isthmus.figures.capacity": "basins_merging capacity_bounds certificate_plot retrieval_sweep",
    "isthmus.figures.clusters": "cluster_map cluster_tree",
    "isthmus.figures.incontext": "context_landscapes context_samples nll_against_context",
    "isthmus.figures.landscapes": "completion hero landscapes_1d landscapes_2d "
    "samples_against_density",
    "isthmus.figures.style": "save",
    "isthmus.paper.study.drawing": "MetricColumn Ranking critical_difference_diagram grid_violins "
    "score_map",
    "isthmus.files": "write_atomically",
    "isthmus.report": "Finding Section Verdict page",  # moved there; the old names still work
}
_HOMES = {name: module for module, names in _NAMES.items() for name in names.split()}

__all__ = sorted(name for name, module in _HOMES.items() if module != "isthmus.report")

if TYPE_CHECKING:
    from isthmus.figures.annealing import annealing_phases as annealing_phases
    from isthmus.figures.attention import attention_experiment as attention_experiment
    from isthmus.figures.attention import attention_sphere as attention_sphere
    from isthmus.figures.capacity import basins_merging as basins_merging
    from isthmus.figures.capacity import capacity_bounds as capacity_bounds
    from isthmus.figures.capacity import certificate_plot as certificate_plot
    from isthmus.figures.capacity import retrieval_sweep as retrieval_sweep
    from isthmus.figures.clusters import cluster_map as cluster_map
    from isthmus.figures.clusters import cluster_tree as cluster_tree
    from isthmus.figures.incontext import context_landscapes as context_landscapes
    from isthmus.figures.incontext import context_samples as context_samples
    from isthmus.figures.incontext import nll_against_context as nll_against_context
    from isthmus.figures.landscapes import completion as completion
    from isthmus.figures.landscapes import hero as hero
    from isthmus.figures.landscapes import landscapes_1d as landscapes_1d
    from isthmus.figures.landscapes import landscapes_2d as landscapes_2d
    from isthmus.figures.landscapes import samples_against_density as samples_against_density
    from isthmus.figures.style import save as save
    from isthmus.files import write_atomically as write_atomically


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return getattr(import_module(_HOMES[name]), name)
    raise AttributeError(f"module 'isthmus.figures' has no attribute {name!r}")
