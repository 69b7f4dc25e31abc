"""Another name of :mod:`isthmus.bandwidth`."""

from isthmus.bandwidth import leave_one_out, left_out_log_density, scott, silverman

__all__ = ["leave_one_out", "left_out_log_density", "scott", "silverman"]
