"""One function per figure: data in, matplotlib figure out."""

from isthmus.figures.capacity import (
    basins_merging,
    capacity_bounds,
    certificate_plot,
    retrieval_sweep,
)
from isthmus.figures.completion import completion
from isthmus.figures.files import save, write_atomically
from isthmus.figures.hero import hero
from isthmus.figures.landscape_1d import landscapes_1d
from isthmus.figures.landscape_2d import landscapes_2d
from isthmus.figures.page import Section, page
from isthmus.figures.sampling import samples_against_density

__all__ = [
    "Section",
    "basins_merging",
    "capacity_bounds",
    "certificate_plot",
    "completion",
    "hero",
    "landscapes_1d",
    "landscapes_2d",
    "page",
    "retrieval_sweep",
    "samples_against_density",
    "save",
    "write_atomically",
]
