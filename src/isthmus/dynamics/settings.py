"""Checks of the settings of samplers and runs."""

from __future__ import annotations

import operator
from typing import Any

import torch

from isthmus.errors import InvalidInputError
from isthmus.validation import as_positive

__all__ = ["as_count", "settle_positive"]


def as_count(value: Any, name: str, *, at_least: int = 1) -> int:
    """Return a whole number as an int; a float is refused even if it is whole."""
    try:
        count = at_least - 1 if isinstance(value, bool) else operator.index(value)
    except TypeError:
        count = at_least - 1
    if count < at_least:
        raise InvalidInputError(
            f"{name} must be a whole number of at least {at_least}, not {value!r}."
        )
    return count


def settle_positive(settings: object, *names: str) -> None:
    """Turn these fields of a frozen dataclass into floats that are finite and above zero."""
    double = torch.zeros((), dtype=torch.float64)
    for name in names:
        number = float(as_positive(getattr(settings, name), name, double))
        object.__setattr__(settings, name, number)
