"""Bandwidths of Gaussian kernels, chosen from data.

:func:`choose` finds the kernel that suits a density; the other rules give a number or a covariance.
"""

from isthmus.bandwidth.rules import Bandwidth, leave_one_out, left_out_log_density, scott, silverman
from isthmus.bandwidth.search import choose

__all__ = ["Bandwidth", "choose", "leave_one_out", "left_out_log_density", "scott", "silverman"]
