"""Checks of the settings of samplers and runs."""

from __future__ import annotations

import torch

from isthmus.validation import as_positive

__all__ = ["settle_positive"]


def settle_positive(settings: object, *names: str) -> None:
    """Turn these fields of a frozen dataclass into floats that are finite and above zero."""
    double = torch.zeros((), dtype=torch.float64)
    for name in names:
        number = float(as_positive(getattr(settings, name), name, double))
        object.__setattr__(settings, name, number)
