"""The resolution of columns that repeat values, and the kernel width that it calls for."""

from __future__ import annotations

import math

import torch
from torch import Tensor


def column_resolution(table: Tensor) -> Tensor:
    """Return the smallest gap between a repeated value and a neighbour. (..., n, D) -> (..., D).

    On a lattice it is the step. It is 0 where no value is repeated, or only one is present; NaN
    are left out.

    >>> column_resolution(torch.tensor([[3.0], [1.0], [1.5], [3.0], [9.0]]))
    tensor([1.5000])
    """
    values = torch.where(table.isnan(), torch.inf, table)
    gaps = values.transpose(-1, -2).sort(-1).values.diff()
    ties = torch.nn.functional.pad(gaps == 0, (1, 1))
    beside = (gaps > 0) & gaps.isfinite() & (ties[..., :-2] | ties[..., 2:])
    smallest = torch.where(beside, gaps, torch.inf).amin(-1)
    return torch.where(smallest.isfinite(), smallest, 0.0)


def width_floor(resolution: Tensor) -> Tensor:
    """Return the standard deviation of a Gaussian whose density is at most 1 / resolution."""
    return resolution / math.sqrt(2 * math.pi)
