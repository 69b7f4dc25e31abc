"""Compilation of loops by numba, which is imported with this module only.

Numba reads ``.numba_config.yaml`` in the current directory, which can name a directory of pickled
machine code. It is kept from doing so; environment variables ``NUMBA_*`` are obeyed.
"""

from __future__ import annotations

import logging
import os
import sys
import warnings
from collections.abc import Callable
from typing import Any


def _import_numba() -> Any:
    """Import numba such that it never reads a configuration file."""
    yaml = sys.modules.get("yaml")
    with warnings.catch_warnings():
        # A file that it cannot parse is ignored with this warning.
        warnings.filterwarnings("ignore", message="A Numba config file is found")
        sys.modules["yaml"] = None  # type: ignore[assignment]
        try:
            import numba
        finally:
            del sys.modules["yaml"]
            if yaml is not None:
                sys.modules["yaml"] = yaml
    numba.config._config_fname = os.devnull  # read again before each compilation
    numba.config.reload_config()
    return numba


numba = _import_numba()
events: Any = numba.core.event


class _Announcer(events.Listener):
    """Logs that loops are compiled, which takes some seconds, once for each process."""

    told = False

    def on_start(self, event: Any) -> None:
        if not self.told:
            logging.getLogger(__name__).info("Compiling loops, once on this machine: some seconds.")
            self.told = True

    def on_end(self, event: Any) -> None:
        pass


events.register("numba:compile", _Announcer())

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
