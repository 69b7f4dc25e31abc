"""Checking the plain numbers that capacity formulas take."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from isthmus.errors import DtypeError, InvalidInputError

__all__ = ["as_whole", "at_least", "not_negative", "positive", "probability", "without_nan"]


def positive(value: float, name: str) -> float:
    """Return `value` as a float, which must be finite and above zero."""
    number = _as_float(value, name)
    if not 0 < number < math.inf:
        raise InvalidInputError(f"{name} must be a finite number above zero, not {value!r}.")
    return number


def at_least(value: float, name: str, least: float) -> float:
    """Return `value` as a float, which must be finite and no smaller than `least`."""
    number = _as_float(value, name)
    if not least <= number < math.inf:
        raise InvalidInputError(f"{name} must be finite and at least {least:g}, not {value!r}.")
    return number


def as_whole(value: float, name: str, least: int) -> int:
    """Return `value` as an int, which must be whole and no smaller than `least`."""
    number = _as_float(value, name)
    if not (math.isfinite(number) and number == math.floor(number) and number >= least):
        raise InvalidInputError(f"{name} must be a whole number, at least {least}, not {value!r}.")
    return int(value)


def probability(value: float, name: str) -> float:
    """Return `value` as a float, which must lie strictly between zero and one."""
    number = _as_float(value, name)
    if not 0 < number < 1:
        raise InvalidInputError(f"{name} must lie between 0 and 1, both left out, not {value!r}.")
    return number


def not_negative(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return `values` as a float64 array (...), of which none may be negative or NaN."""
    array = without_nan(values, name)
    if bool((array < 0).any()):
        raise InvalidInputError(f"{name} must not be negative; {array.min():g} is.")
    return array


def without_nan(values: ArrayLike, name: str) -> NDArray[np.float64]:
    """Return `values` as a float64 array (...), of which none may be NaN."""
    try:
        array = np.asarray(values, dtype=np.float64)
    except (TypeError, ValueError):
        raise DtypeError(f"{name} must hold numbers, not {values!r}.") from None
    if bool(np.isnan(array).any()):
        raise InvalidInputError(f"{name} must not hold NaN.")
    return array


def _as_float(value: Any, name: str) -> float:
    try:
        return float(value)
    except (TypeError, ValueError):
        raise DtypeError(f"{name} must be a number, not {value!r}.") from None
