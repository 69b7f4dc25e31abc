"""The 15 labelled datasets of the paper's comparison: local files first, downloads second."""

from isthmus.datasets.description import describe
from isthmus.datasets.loading import Dataset, load, store
from isthmus.datasets.manifest import names

__all__ = ["Dataset", "describe", "load", "names", "store"]
