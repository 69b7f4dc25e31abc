"""Checks of an estimator's settings, each naming the one that makes no sense."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import Any, Literal

import numpy as np

__all__ = ["require_choice", "require_count", "require_flag", "require_number"]

Ends = Literal["neither", "low", "high"]


def require_choice(estimator: Any, name: str, choices: tuple[str, ...], other: str = "") -> None:
    """One of some words; with `other`, anything that is not a word is left to be checked later."""
    value = getattr(estimator, name)
    if other and not isinstance(value, str):
        return
    if not isinstance(value, str) or value not in choices:
        words = " or ".join([*map(repr, choices), *filter(None, [other])])
        raise ValueError(f"{name} must be {words}, not {value!r}.")


def require_count(estimator: Any, name: str, word: str = "") -> None:
    """A whole number above zero, or the given word."""
    value = getattr(estimator, name)
    if word and isinstance(value, str) and value == word:
        return
    if isinstance(value, bool) or not isinstance(value, Integral) or value < 1:
        raise ValueError(f"{name} must be {_or(word)}a whole number above zero, not {value!r}.")


def require_number(
    estimator: Any,
    name: str,
    low: float,
    high: float,
    *,
    ends: Ends = "neither",
    words: tuple[str, ...] = (),
) -> None:
    """A number between two others, of which `ends` says which is allowed too, or a word."""
    value = getattr(estimator, name)
    if isinstance(value, str) and value in words:
        return
    number = float(value) if isinstance(value, Real) else math.nan
    above = low <= number if ends == "low" else low < number
    below = number <= high if ends == "high" else number < high
    if not (above and below):
        left, right = "[" if ends == "low" else "(", "]" if ends == "high" else ")"
        interval = f"a number in {left}{low:g}, {high:g}{right}"
        raise ValueError(f"{name} must be {_or(*words)}{interval}, not {value!r}.")


def require_flag(estimator: Any, name: str) -> None:
    """True or False."""
    value = getattr(estimator, name)
    if not isinstance(value, bool | np.bool_):
        raise ValueError(f"{name} must be True or False, not {value!r}.")


def _or(*words: str) -> str:
    return "".join(f"{word!r} or " for word in words if word)
