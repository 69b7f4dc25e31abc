"""The work of the process that computes one part; it imports no more than it needs."""

from __future__ import annotations

from dataclasses import replace
from importlib import import_module
from typing import Any

from isthmus.report.section import Section
from isthmus.report.sources import imported_sources

__all__ = ["import_packages", "make_section", "prepare"]


def make_section(function: str, seed: int, full: bool) -> Section:
    """Compute a section; its inputs name the source files that this took."""
    section = _call(function, seed, full)
    return replace(section, inputs={"sources": imported_sources()})


def prepare(function: str, seed: int, full: bool) -> None:
    """Call a function that other parts need."""
    _call(function, seed, full)


def _call(function: str, seed: int, full: bool) -> Any:
    module, _, name = function.partition(":")
    return getattr(import_module(module), name)(seed, full)


def import_packages() -> None:
    """Import, once for all parts, the packages that take longest."""
    for name in ("torch", "sklearn.metrics", "scipy.stats", "matplotlib.figure"):
        import_module(name)
