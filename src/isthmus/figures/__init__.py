"""One function per figure: data in, matplotlib figure out."""

from isthmus.figures.completion import completion
from isthmus.figures.files import save, write_atomically
from isthmus.figures.hero import hero
from isthmus.figures.landscape_1d import landscapes_1d
from isthmus.figures.landscape_2d import landscapes_2d
from isthmus.figures.page import Section, page
from isthmus.figures.sampling import samples_against_density

__all__ = [
    "Section",
    "completion",
    "hero",
    "landscapes_1d",
    "landscapes_2d",
    "page",
    "samples_against_density",
    "save",
    "write_atomically",
]
