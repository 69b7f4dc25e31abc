"""One function per figure: data in, matplotlib figure out."""

from isthmus.figures.attention import attention_experiment, attention_sphere
from isthmus.figures.capacity import (
    basins_merging,
    capacity_bounds,
    certificate_plot,
    retrieval_sweep,
)
from isthmus.figures.clusters import cluster_map
from isthmus.figures.completion import completion
from isthmus.figures.files import save
from isthmus.figures.hero import hero
from isthmus.figures.incontext import context_landscapes, context_samples
from isthmus.figures.landscape_1d import landscapes_1d
from isthmus.figures.landscape_2d import landscapes_2d
from isthmus.figures.likelihood import nll_against_context
from isthmus.figures.page import Entry, page
from isthmus.figures.sampling import samples_against_density
from isthmus.figures.section import Finding, Section, Table, Verdict
from isthmus.figures.study import Ranking, critical_difference_diagram, score_map
from isthmus.figures.violins import MetricColumn, grid_violins
from isthmus.files import write_atomically

__all__ = [
    "Entry",
    "Finding",
    "MetricColumn",
    "Ranking",
    "Section",
    "Table",
    "Verdict",
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
    "page",
    "retrieval_sweep",
    "samples_against_density",
    "save",
    "score_map",
    "write_atomically",
]
