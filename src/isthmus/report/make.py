"""The work of the process that computes one part; it imports no more than it needs."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from isthmus.report.section import Section
from isthmus.report.sources import imported_sources

__all__ = ["import_packages", "make"]


def make(function: str, seed: int, full: bool) -> Any:
    """Call a function by name; the inputs of a section name the source files that it took."""
    module, _, name = function.partition(":")
    made = getattr(import_module(module), name)(seed, full)
    if isinstance(made, Section):
        return replace(made, inputs={"sources": imported_sources()})
    return made


def import_packages() -> None:
    """Import, once for all parts, the packages that take longest."""
    for name in ("torch", "sklearn.metrics", "scipy.stats", "matplotlib.figure"):
        import_module(name)
