"""Fill the missing values of tables."""

from isthmus.impute.check import Candidate, GapCheck, check_candidates
from isthmus.impute.table import FilledTable, fill_gaps

__all__ = ["Candidate", "FilledTable", "GapCheck", "check_candidates", "fill_gaps"]
