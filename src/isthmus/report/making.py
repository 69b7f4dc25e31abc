"""The work of the process that computes one part, and a record of what it was computed from."""

from __future__ import annotations

import hashlib
import platform
import sys
from collections.abc import Iterable, Mapping
from dataclasses import replace
from importlib import import_module
from importlib.metadata import version
from pathlib import Path
from typing import Any

import isthmus
from isthmus.files import shipped
from isthmus.report.section import Section

PACKAGE = Path(isthmus.__file__).parent
# Packages whose version can change a number or a figure.
PACKAGES = ("torch", "numpy", "scipy", "scikit-learn", "matplotlib")


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


def imported_sources() -> list[str]:
    """Return the files of the package that this process has imported, and their data files.

    A data file belongs to the packages below whose folders it lies.
    """
    found = {
        Path(file)
        for name, module in [*sys.modules.items()]
        if name.partition(".")[0] == "isthmus" and (file := getattr(module, "__file__", None))
    }
    folders = {path.parent for path in found if path.name == "__init__.py"}
    # report.toml, beside this file, counts part by part.
    for folder in folders - {PACKAGE, Path(__file__).parent}:
        files = (path for path in folder.rglob("*") if path.is_file())
        found.update(path for path in files if path.suffix not in (".py", ".pyc"))
    return sorted(path.relative_to(PACKAGE).as_posix() for path in found)


def environment() -> dict[str, str]:
    """Return the versions of Python and of the packages that matter, without importing them."""
    versions = {package: version(package) for package in PACKAGES}
    return {"python": platform.python_version(), **versions}


def source_digests(shown: Iterable[str | None] = ()) -> dict[str, str]:
    """Return a digest for each file of the package and each shown place beside it."""
    files = {
        path.relative_to(PACKAGE).as_posix(): path
        for path in PACKAGE.rglob("*")
        if path.is_file() and not {"__pycache__", "_shipped"} & set(path.parts)
    }
    beside = {place: path for place in shown if place and (path := shipped(place)) is not None}
    return {name: digest(path) for name, path in (files | beside).items()}


def digest(place: Path) -> str:
    """Return a digest of a file, or of all files in a folder by path and content."""
    found = hashlib.sha256()
    for path in sorted(place.rglob("*")) if place.is_dir() else [place]:
        if path.is_file() and "__pycache__" not in path.parts:
            found.update(f"{path.relative_to(place).as_posix()}\0".encode())
            found.update(hashlib.sha256(path.read_bytes()).digest())
    return found.hexdigest()


def changes(inputs: Mapping[str, Any], current: Mapping[str, Any]) -> list[str]:
    """Return the names of the inputs, and of the source files among them, that differ."""
    names = [name for name in current if name != "sources" and inputs.get(name) != current[name]]
    before, now = inputs["sources"], current["sources"]
    return names + [path for path in now if before.get(path) != now[path]]
