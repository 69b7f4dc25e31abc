"""Compilation of loops by numba, which is imported with this module only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba

# Sums may be taken in any order, so that they run on vector units; numbers must not be NaN.
ANY_ORDER = {"reassoc", "contract", "nnan", "nsz"}


def compiled(function: Callable[..., Any], *, any_order: bool = False) -> Any:
    """Compile a function; keep the machine code on disk if a directory is writable."""
    options: dict[str, Any] = {
        "error_model": "numpy",
        "fastmath": ANY_ORDER if any_order else False,
    }
    try:
        return numba.njit(cache=True, **options)(function)
    except RuntimeError:
        return numba.njit(**options)(function)


def compiled_sums(function: Callable[..., Any]) -> Any:
    """Compile a function of finite numbers whose sums may be taken in any order."""
    return compiled(function, any_order=True)
