"""Fill the missing values of a table, and measure how well that works."""

from isthmus.impute.filled import FilledTable, fill_gaps
from isthmus.impute.imputer import MemoryImputer

__all__ = ["FilledTable", "MemoryImputer", "fill_gaps"]
