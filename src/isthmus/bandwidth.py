"""Bandwidths of Gaussian kernels, chosen from data.

:func:`choose` finds the kernel that suits a density; the other rules give a number or widths.
"""

from isthmus.memories.bandwidth import leave_one_out, left_out_log_density, scott, silverman
from isthmus.memories.shape import Bandwidth
from isthmus.memories.shape_search import choose

__all__ = ["Bandwidth", "choose", "leave_one_out", "left_out_log_density", "scott", "silverman"]
