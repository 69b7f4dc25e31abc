"""The 15 labelled datasets of the paper's comparison: local files first, then downloads."""

from isthmus.paper.datasets.loading import Dataset, load, store
from isthmus.paper.datasets.manifest import describe, names

__all__ = ["Dataset", "describe", "load", "names", "store"]
